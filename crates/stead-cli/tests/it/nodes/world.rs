//! A site whose sandboxes go when the test ends, however it ends.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::Value;

use super::{site, write};
use crate::cases_17_32::lab::{Ended, Lab};

/// A site, its state directory and its machines.
pub(crate) struct World {
    lab: Lab,
    variables: Vec<(String, String)>,
    hosts: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { lab: site(&[]), variables: Vec::new(), hosts: Mutex::new(vec!["local".to_owned()]) }
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write(&self.lab, path, text);
    }

    /// Writes the manifest `m`: everything after its name.
    pub(crate) fn manifest(&self, rest: &str) {
        self.write("manifests/m.yaml", &format!("schema_version: 2\nname: m\n{rest}"));
    }

    pub(crate) fn nodes(&self, nodes: &str) {
        self.manifest(&format!("nodes:\n{nodes}"));
    }

    pub(crate) fn host(&self, name: &str, text: &str) {
        self.hosts.lock().unwrap().push(name.to_owned());
        self.write(&format!("hosts/{name}.yaml"), text);
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.lab.stead(args.iter().copied());
        command.envs(self.variables.iter().cloned());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn create(&self, more: &[&str]) -> Ended {
        self.run(&[&["create", "-M", "m", "-H", "local", "--json"], more].concat())
    }

    pub(crate) fn destroy(&self, more: &[&str]) -> Ended {
        self.run(&[&["destroy", "-M", "m", "-H", "local", "--json", "--yes"], more].concat())
    }

    /// Returns name and status of every node of a document, in its order.
    pub(crate) fn statuses(&self, ended: &Ended) -> Vec<(&'static str, &'static str)> {
        let document = ended.document();
        let rows = document["nodes"].as_array().unwrap();
        let text = |row: &Value, key: &str| -> &'static str { row[key].as_str().unwrap().to_owned().leak() };
        rows.iter().map(|row| (text(row, "name"), text(row, "status"))).collect()
    }

    /// Returns where a file of this place is, outside of what commands use.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.lab.path(name)
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.lab.path("state")
    }

    /// Returns the journal of a run.
    pub(crate) fn events(&self, run: &str) -> Vec<Value> {
        self.lab.events(run)
    }

    pub(crate) fn state_path(&self) -> PathBuf {
        self.state_dir().join("nodes/local/m/state.json")
    }

    pub(crate) fn state(&self) -> String {
        std::fs::read_to_string(self.state_path()).unwrap()
    }

    /// Returns the machines there are, sorted.
    pub(crate) fn machine_ids(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.state_dir().join("machines")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort_unstable();
        names
    }

    /// Returns what is left of nodes: machines and what is remembered.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = self.machine_ids();
        if self.state_path().exists() && left.is_empty() {
            left.push(self.state());
        }
        left
    }

    /// Ends the processes of all machines at once, as a power cut would; returns where machines are.
    pub(crate) fn kill_machines(&self) -> PathBuf {
        let machines = self.state_dir().join("machines");
        for id in self.machine_ids() {
            let text = std::fs::read_to_string(machines.join(id).join("pid")).unwrap_or_default();
            let pid = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                // Waited for: for a moment it may still look as if it ran.
                let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
                if let Ok(process) = process {
                    let ended = rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN);
                    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
                    rustix::event::poll(&mut [ended], Some(&limit)).ok();
                }
            }
        }
        machines
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for host in self.hosts.lock().unwrap().iter() {
            self.write(&format!("hosts/{host}.yaml"), "driver: sandbox\n");
            self.run(&["destroy", "-M", "m", "-H", host, "--yes"]);
        }
        self.kill_machines();
    }
}
