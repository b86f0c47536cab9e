//! A site directory with everything that a node of it needs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::shell::{binary, write};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

/// What a node of the site becomes.
pub(crate) const SPEC: &str = "schema_version: 1\naccess:\n  posture: local\n  users: [{name: ops, sudo: true}]\n\
                               platform:\n  packages: [htop, curl]\n  services: {disable: [rpcbind]}\n";

/// A site in a directory of its own, with the spec `base`.
pub(crate) struct Site {
    directory: tempfile::TempDir,
}

impl Site {
    /// Makes a site whose server is set up by `server`, the rest of a YAML mapping.
    pub(crate) fn new(server: &str) -> Self {
        let site = Self { directory: tempfile::tempdir().expect("a temporary directory") };
        let defaults = "{domain: lab.example, packages: [ca-certificates]}";
        let server = format!("{{port: 0, bind: 127.0.0.1{server}}}");
        site.write("site.yaml", &format!("defaults: {defaults}\nserver: {server}\n"));
        let secrets = format!("ssh_keys:\n  ann@desk: {KEY}\nauth:\n  signing_key: '{}'\n", "ab".repeat(32));
        site.write("secrets.yaml", &secrets);
        site.write("postures/local.yaml", "sudo: {nopasswd: true}\n");
        site.write("specs/base.yaml", SPEC);
        site
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory can be made");
        write(&path, text);
    }

    pub(crate) fn stead(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).arg("--site").arg(self.path());
        command.env("STEAD_DIR", self.path().join(".stead")).stderr(Stdio::null());
        command
    }
}
