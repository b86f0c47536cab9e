//! ansible-core and pyinfra, from PyPI, for as long as they are measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::servers::Servers;
use crate::shell::write;

/// Where they were installed.
pub(super) struct Peers(PathBuf);

impl Peers {
    /// Installs them below `place`; none if that does not work here.
    pub(super) fn install(place: &Path) -> Option<Self> {
        let done = |command: &mut Command| {
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let installed = done(Command::new("python3").args(["-m", "venv"]).arg(place))
            && done(Command::new(place.join("bin/pip")).args(["install", "-q", "ansible-core", "pyinfra"]));
        installed.then(|| Self(place.to_owned()))
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("reach"));
        command.env("ANSIBLE_CONFIG", self.0.join("ansible.cfg")).env("HOME", &self.0);
        command
    }

    fn ansible_inventory(&self, servers: &Servers, hosts: usize) -> PathBuf {
        let settings =
            "[defaults]\nhost_key_checking = False\nforks = 50\n[ssh_connection]\npipelining = True\n";
        write(&self.0.join("ansible.cfg"), settings);
        let path = self.0.join(format!("inventory-{hosts}.ini"));
        let lines = servers.names(hosts).enumerate().map(|(host, name)| {
            let server = servers.of(host);
            format!(
                "{name} ansible_host=127.0.0.1 ansible_port={} ansible_user={} ansible_ssh_private_key_file={} \
                 ansible_python_interpreter=/usr/bin/python3\n",
                server.port(),
                server.user(),
                server.file("id").display()
            )
        });
        write(&path, &lines.collect::<String>());
        path
    }

    /// Returns the twenty operations by ansible-core.
    pub(super) fn ansible(&self, servers: &Servers, hosts: usize, base: &Path) -> impl Fn() -> Command {
        let inventory = self.ansible_inventory(servers, hosts);
        let base = format!("base={}", base.display());
        move || {
            let mut command = self.program("ansible-playbook");
            command.arg("-i").arg(&inventory).args(["-e", &base, "playbook.yaml"]);
            command
        }
    }

    /// Returns one command on all hosts by ansible-core.
    pub(super) fn ansible_raw(&self, servers: &Servers, hosts: usize) -> Command {
        let inventory = self.ansible_inventory(servers, hosts);
        let mut command = self.program("ansible");
        command.arg("-i").arg(inventory).args(["all", "-f", "100", "-m", "raw", "-a", "true"]);
        command
    }

    /// Returns the twenty operations by pyinfra.
    pub(super) fn pyinfra(&self, servers: &Servers, hosts: usize, base: &Path) -> impl Fn() -> Command {
        let inventory = self.0.join("pyinfra_inventory.py");
        let mut text = "hosts = [\n".to_owned();
        for (host, name) in servers.names(hosts).enumerate() {
            let server = servers.of(host);
            text += &format!(
                "    ({name:?}, {{\"ssh_hostname\": \"127.0.0.1\", \"ssh_port\": {}, \"ssh_user\": {:?}, \"ssh_key\": {:?}, \
                 \"base\": {:?}, \"ssh_strict_host_key_checking\": \"no\"}}),\n",
                server.port(),
                server.user(),
                server.file("id").display().to_string(),
                base.display().to_string()
            );
        }
        write(&inventory, &(text + "]\n"));
        move || {
            let mut command = self.program("pyinfra");
            command.args(["-y", "--parallel", "50"]).arg(&inventory).arg("deploy.py");
            command
        }
    }
}
