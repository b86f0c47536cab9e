//! How long a fleet has no leader: three masters on an etcd, each a process of its own. The one that leads is killed, or stands
//! still, and the others are asked until one of them leads.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stead_testkit::etcd;
use tempfile::TempDir;

use super::daemons::{Daemon, begin_master};
use crate::shell::is_installed;
use crate::table::{Table, millis};
use crate::{Effort, interrupt};

const NAMES: [&str; 3] = ["m1", "m2", "m3"];
/// The bar of the contract.
const SLOWEST: f64 = 10.0;
/// When nobody waits any longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lines about leaders that go; each is the slowest of its samples.
pub(super) fn measure(effort: Effort, table: &mut Table) {
    let (killed, paused) = (
        "fleet: a leader is killed, until another leads",
        "fleet: a leader stands still, until another leads",
    );
    if !is_installed("etcd") {
        table.skipped(killed, "etcd is not installed (Debian: etcd-server)");
        table.skipped(paused, "etcd is not installed (Debian: etcd-server)");
        return;
    }
    let mut masters = Masters::start();
    let (mut of_killed, mut of_paused) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..effort.samples() {
        interrupt::check();
        of_killed = of_killed.max(masters.after_a_kill());
        of_paused = of_paused.max(masters.after_a_pause());
    }
    for (what, taken) in [(killed, of_killed), (paused, of_paused)] {
        let taken = taken.as_secs_f64();
        table.at_most(what, millis(taken), taken, millis(SLOWEST), SLOWEST);
    }
}

/// A master, and where it shows its figures.
struct Master {
    process: Daemon,
    observe: String,
}

impl Master {
    /// Whether it leads, as it says itself; none: it says nothing.
    fn leads(&self) -> Option<bool> {
        let mut stream = TcpStream::connect(&self.observe).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said.lines().any(|line| line == "stead_fleet_leader 1"))
    }
}

/// Three masters, and what they keep their state in.
struct Masters {
    // Before their store: they end first.
    running: BTreeMap<&'static str, Master>,
    directory: TempDir,
    etcd: etcd::Server,
}

impl Masters {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let etcd = etcd::Server::start().expect("etcd is installed");
        let mut masters = Self { running: BTreeMap::new(), directory, etcd };
        NAMES.into_iter().for_each(|name| masters.begin(name));
        masters
    }

    fn begin(&mut self, name: &'static str) {
        let store = format!("{{kind: distributed, endpoints: ['{}']}}", self.etcd.address());
        let words = ["master", "--name", name, "--listen", "127.0.0.1:0", "--observe", "127.0.0.1:0"];
        let words = [&words[..], &["--json", "--store", &store]].concat();
        let (process, said) = begin_master(self.directory.path(), name, &words);
        let observe = said["observe"].as_str().expect("an address").to_owned();
        self.running.insert(name, Master { process, observe });
    }

    /// Waits until all of them say whether they lead and one does, and returns which.
    fn settle(&self) -> &'static str {
        let end = Instant::now() + PATIENCE;
        loop {
            let said: Vec<_> = self.running.iter().map(|(name, master)| (*name, master.leads())).collect();
            let mut leaders = said.iter().filter(|(_, leads)| *leads == Some(true));
            if let (Some((leader, _)), None) = (leaders.next(), leaders.next())
                && said.iter().all(|(_, leads)| leads.is_some())
            {
                return leader;
            }
            assert!(Instant::now() < end, "the masters do not agree who leads: {said:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns how long it takes until somebody else leads.
    fn until_followed(&self, old: &str) -> Duration {
        let began = Instant::now();
        let others = || self.running.iter().filter(|(name, _)| **name != old);
        while !others().any(|(_, master)| master.leads() == Some(true)) {
            assert!(began.elapsed() < PATIENCE, "nobody leads");
            std::thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }

    fn after_a_kill(&mut self) -> Duration {
        let leader = self.settle();
        drop(self.running.remove(leader));
        let taken = self.until_followed(leader);
        self.begin(leader);
        taken
    }

    fn after_a_pause(&self) -> Duration {
        let leader = self.settle();
        let process = Pid::from_child(&self.running[leader].process.0);
        kill_process(process, Signal::STOP).expect("it runs");
        let taken = self.until_followed(leader);
        kill_process(process, Signal::CONT).expect("it is there");
        taken
    }
}
