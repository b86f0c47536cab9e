//! The hosts: OpenSSH servers on loopback, and OpenSSH's own client as the floor.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_model::transport::TransportSpec;
use stead_runner::transport::{Connect as _, FileMeta, Source};
use stead_testkit::sshd::Sshd;

use crate::sample::time;
use crate::shell::{run, write};

/// Servers that stand for any number of hosts: host `n` is reached through server `n` modulo their number.
pub(super) struct Servers(Vec<Sshd>);

impl Servers {
    pub(super) fn start(count: usize) -> Self {
        // pyinfra sends files by SFTP.
        Self((0..count).map(|_| Sshd::builder().config("Subsystem sftp internal-sftp").start()).collect())
    }

    pub(super) fn of(&self, host: usize) -> &Sshd {
        &self.0[host % self.0.len()]
    }

    pub(super) fn names(&self, hosts: usize) -> impl Iterator<Item = String> {
        (0..hosts).map(|host| format!("h{host}"))
    }

    /// Returns an inventory in which every host has a place of its own below `places`.
    pub(super) fn inventory(&self, hosts: usize, places: &Path) -> String {
        let mut text = "api_version: v1\nhosts:\n".to_owned();
        for (host, name) in self.names(hosts).enumerate() {
            let place = places.join(&name);
            std::fs::create_dir_all(&place).expect("the temporary directory can be written to");
            let (spec, place) = (self.of(host).spec_text(), place.display().to_string());
            text += &format!("  {name}: {{transport: \"{spec}\", workdir: \"{place}\"}}\n");
        }
        text
    }

    fn client(&self, host: usize) -> Vec<String> {
        let server = self.of(host);
        let file = |name: &str| server.file(name).display().to_string();
        [
            "-F".into(),
            "none".into(),
            "-p".into(),
            server.port().to_string(),
            "-i".into(),
            file("id"),
            "-o".into(),
            format!("UserKnownHostsFile={}", file("known_hosts")),
            "-o".into(),
            "BatchMode=yes".into(),
            format!("{}@127.0.0.1", server.user()),
        ]
        .into()
    }

    /// Returns what runs `true` on every host with `ssh`, fifty at a time.
    pub(super) fn openssh(&self, hosts: usize, directory: &Path) -> Command {
        let list = directory.join(format!("ssh-{hosts}"));
        let lines = (0..hosts).map(|host| self.client(host).join(" ") + " true\n");
        write(&list, &lines.collect::<String>());
        let mut command = Command::new("xargs");
        command.arg("-a").arg(list).args(["-P", "50", "-L", "1", "ssh"]);
        command
    }

    /// Returns how long `commands` commands take over one connection of OpenSSH's client, sixteen at a time.
    pub(super) fn multiplexed(&self, commands: usize, directory: &Path) -> Duration {
        let socket = directory.join("mux");
        let socket = socket.display().to_string();
        let words = self.client(0);
        let master = Command::new("ssh").args(["-M", "-N", "-f", "-S", &socket]).args(&words).status();
        assert!(master.is_ok_and(|status| status.success()), "the multiplexing client did not start");
        let list = directory.join("mux-list");
        write(&list, &"true\n".repeat(commands));
        let took = time(|| {
            let mut command = Command::new("xargs");
            command.arg("-a").arg(list).args(["-P", "16", "-n", "1", "ssh", "-S", &socket]).args(&words);
            run(command);
        });
        let end = Command::new("ssh")
            .args(["-S", &socket, "-O", "exit"])
            .args(&words)
            .stderr(Stdio::null())
            .status();
        assert!(end.is_ok(), "the multiplexing client did not end");
        took
    }

    /// Returns how long a file of `size` takes by our transport and by `scp`.
    pub(super) fn put(&self, size: u64, directory: &Path) -> (Duration, Duration) {
        let from = directory.join("large");
        let bytes: Vec<u8> = (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut file = std::fs::File::create(&from).expect("the temporary directory can be written to");
        for _ in 0..size >> 20 {
            std::io::Write::write_all(&mut file, &bytes).expect("enough space");
        }
        let spec = TransportSpec::Ssh(Box::new(self.of(0).spec()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let to = directory.join("put");
        let transports = Transports::new(Surroundings::default(), Notices::ignored());
        let transport = runtime.block_on(transports.connect(&spec)).expect("the server is there");
        let ours = time(|| {
            let put = transport.put(Source::File(from.clone()), &to, FileMeta::default());
            runtime.block_on(put).expect("the file can be put");
        });
        std::fs::remove_file(&to).expect("it was put");
        let theirs = time(|| {
            let words = self.client(0);
            let (target, options) = words.split_last().expect("there are words");
            let options: Vec<&str> =
                options.iter().map(|word| if word == "-p" { "-P" } else { word }).collect();
            let mut command = Command::new("scp");
            command.arg("-O").args(options).arg(&from).arg(format!("{target}:{}", to.display()));
            run(command);
        });
        std::fs::remove_file(&to).expect("it was put");
        std::fs::remove_file(&from).expect("it was made");
        (ours, theirs)
    }
}
