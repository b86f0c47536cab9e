//! What is disturbed: two hosts behind relays, a site that stays and a site that comes and goes.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stead_testkit::sshd::Sshd;

use super::relay::Relay;

/// Everything there is. Its directory is named by every process that belongs to it.
pub(super) struct World {
    directory: tempfile::TempDir,
    stead: PathBuf,
    pub(super) hosts: Vec<Host>,
}

/// A host and the way to it.
pub(super) struct Host {
    pub(super) sshd: Sshd,
    pub(super) relay: Relay,
}

const PLAN: &str = r#"api_version: v1
name: push
vars: {round: "0"}
defaults: {target: "h0,h1"}
tasks:
  - {name: place, op: file.directory, params: {path: "@/out/{{ host.name }}", parents: true}}
  - {name: one, depends_on: place, op: file.present, params: {path: "@/out/{{ host.name }}/one", content: "{{ vars.round }}\n"}}
  - {name: two, depends_on: one, idempotent: true, shell: "sleep 0.2; echo two"}
  - {name: three, depends_on: two, op: file.present, params: {path: "@/out/{{ host.name }}/three", content: "{{ vars.round }}\n"}}
  - {name: four, depends_on: three, idempotent: true, shell: "sleep 0.2; seq 1000"}
  - {name: five, depends_on: four, op: file.present, params: {path: "@/out/{{ host.name }}/five", content: "{{ vars.round }}\n"}}
"#;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

impl World {
    pub(super) fn new(stead: &Path) -> Result<Self, Box<dyn Error>> {
        // Short: it holds the paths of sockets.
        let directory = tempfile::Builder::new().prefix("soak").tempdir()?;
        let stead = fs::canonicalize(stead)?;
        let mut hosts = Vec::new();
        for _ in 0..2 {
            let sshd = Sshd::start();
            let relay = Relay::new(sshd.port())?;
            let known = fs::read_to_string(sshd.file("known_hosts"))?;
            let known = known.replace(&format!("]:{}", sshd.port()), &format!("]:{}", relay.port));
            fs::write(sshd.file("known_hosts"), known)?;
            hosts.push(Host { sshd, relay });
        }
        let world = Self { directory, stead, hosts };
        world.write("push.yaml", &PLAN.replace('@', &world.path().display().to_string()))?;
        let mut inventory = "api_version: v1\nhosts:\n".to_owned();
        for (number, host) in world.hosts.iter().enumerate() {
            let (place, workdir) = (host.sshd.path().display(), host.sshd.workdir());
            let user = host.sshd.user();
            let way = format!("ssh://{user}@127.0.0.1:{}", host.relay.port);
            let way =
                format!("{way}?key={place}/id&known_hosts={place}/known_hosts&agent=false&ssh_config=none");
            inventory.push_str(&format!(
                "  h{number}: {{transport: \"{way}\", workdir: \"{}\"}}\n",
                workdir.display()
            ));
        }
        world.write("inventory.yaml", &inventory)?;
        fs::create_dir(world.path().join("tmp"))?;
        for site in ["stays", "comes"] {
            world.make_site(site)?;
        }
        world.expect(world.site("stays", &["create", "-M", "lab", "-H", "local"]))?;
        Ok(world)
    }

    fn make_site(&self, name: &str) -> std::io::Result<()> {
        let write = |path: &str, text: &str| self.write(&format!("{name}/{path}"), text);
        write(
            "site.yaml",
            &format!(
                "name: {name}\nserver: {{port: 0, bind: 127.0.0.1}}\ndefaults: {{domain: lab.example}}\n"
            ),
        )?;
        let byte = if name == "stays" { "ab" } else { "cd" };
        write(
            "secrets.yaml",
            &format!("ssh_keys:\n  ann@desk: {KEY}\nauth:\n  signing_key: '{}'\n", byte.repeat(32)),
        )?;
        write("postures/local.yaml", "sudo: {nopasswd: true}\n")?;
        write(
            "specs/base.yaml",
            "schema_version: 1\naccess:\n  posture: local\n  users: [{name: ops, sudo: true}]\n",
        )?;
        let nodes = "schema_version: 2\nname: lab\npattern: flat\nnodes:\n  - {name: quay, type: vm, spec: base}\n  - {name: buoy, \
                     type: ct, spec: base, execution: {mode: hybrid}}\n  - {name: gull, type: ct, spec: base, execution: {mode: pull}}\n";
        write("manifests/lab.yaml", nodes)
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, path: &str, text: &str) -> std::io::Result<()> {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(self.path()))?;
        fs::write(&path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    }

    /// Returns `stead`, marked as ours.
    pub(super) fn stead(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.stead);
        command.args(words).current_dir(self.path()).stdin(Stdio::null());
        command.env("STEAD_DIR", self.path().join("state")).env("STEAD_SOAK", self.path());
        command.env("TMPDIR", self.path().join("tmp")).env("HOME", self.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns a command about a site.
    pub(super) fn site(&self, name: &str, words: &[&str]) -> Command {
        let site = self.path().join(name);
        let (before, after) =
            words.split_at(words.iter().position(|word| *word == "--").unwrap_or(words.len()));
        let mut command = self.stead(before);
        command.arg("--site").arg(&site).args(after).env("STEAD_DIR", site.join(".stead"));
        command
    }

    /// Returns a push, under a name that it can be resumed by.
    pub(super) fn push(&self, run: &str, round: u64) -> Command {
        let round = format!("round={round}");
        self.stead(&["plan", "run", "push.yaml", "-i", "inventory.yaml", "--run-id", run, "--var", &round])
    }

    /// Runs a command that has to succeed.
    pub(super) fn expect(&self, mut command: Command) -> Result<Output, Box<dyn Error>> {
        let words: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let output = command.output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last: Vec<&str> = said.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Err(format!("`stead {}` ended with {}:\n{}", words.join(" "), output.status, last.join("\n")).into())
    }

    /// Takes everything away that a user would.
    pub(super) fn end(&self) {
        for site in ["stays", "comes"] {
            for words in [["destroy", "-M", "lab", "-H", "local", "--yes"].as_slice(), &["server", "stop"]] {
                drop(self.site(site, words).output());
            }
        }
    }
}
