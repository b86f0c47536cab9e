//! Nodes: checking and planning many of them, and making, configuring and removing sandboxes.
//!
//! Every figure is of the whole program, from its start to its end.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::Effort;
use crate::sample::{median, time};
use crate::shell::{binary, run};
use crate::site::Site;
use crate::table::{Table, millis, thousands};

/// The bars of the contract, in seconds.
const SLOWEST_VERSION: f64 = 0.010;
const SLOWEST_CHECK: f64 = 0.030;
const SLOWEST_LARGE: f64 = 1.0;
const SLOWEST_LIFE: f64 = 15.0;
const SLOWEST_AGAIN: f64 = 3.0;
const SLOWEST_PUSH: f64 = 0.150;
const SLOWEST_PEERS: f64 = 2.0;
const SLOWEST_AGENT_END: f64 = 1.0;

/// The lines about nodes.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    version(effort, table);
    planning(effort, table);
    lives(effort, table);
    unchanged(effort, table);
    peers(effort, table);
    terminated(effort, table);
}

/// Adds a line about how long something takes, by the median of `times`.
fn line(what: &str, times: Vec<Duration>, limit: f64, table: &mut Table) {
    let taken = median(times).as_secs_f64();
    table.at_most(what, precise(taken), taken, precise(limit), limit);
}

/// Shows seconds as milliseconds, with tenths where they matter.
fn precise(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.1} ms", seconds * 1e3) } else { millis(seconds) }
}

fn version(effort: Effort, table: &mut Table) {
    let once = || time(|| run(Command::new(binary()).arg("--version")));
    // The first reads the program from the disk.
    once();
    line("`stead --version`", (0..effort.samples()).map(|_| once()).collect(), SLOWEST_VERSION, table);
}

fn planning(effort: Effort, table: &mut Table) {
    let site = Site::new("");
    let lines = |count: usize, parent: &dyn Fn(usize) -> Option<usize>| {
        (0..count).fold(String::new(), |mut text, number| {
            let parent = parent(number).map_or(String::new(), |parent| format!(", parent: n{parent}"));
            writeln!(text, "- {{name: n{number}, type: vm, spec: base{parent}}}").expect("text in memory");
            text
        })
    };
    let alone = |_| None;
    manifest(&site, "many", "", &lines(1_000, &alone));
    manifest(&site, "deep", "", &lines(2_000, &|number| number.checked_sub(1)));
    manifest(&site, "wide", "", &lines(10_000, &alone));
    let (validate, dry_run) =
        (["validate", "-H", "local", "--json"], ["create", "-H", "local", "--json", "--dry-run"]);
    let lines: [(&str, &str, &[&str], f64); 5] = [
        ("validate 1,000 nodes", "many", &validate, SLOWEST_CHECK),
        ("validate 2,000 nodes in each other", "deep", &validate, SLOWEST_LARGE),
        ("dry run of create, 2,000 nodes in each other", "deep", &dry_run, SLOWEST_LARGE),
        ("validate 10,000 nodes side by side", "wide", &validate, SLOWEST_LARGE),
        ("dry run of create, 10,000 nodes side by side", "wide", &dry_run, SLOWEST_LARGE),
    ];
    for (what, manifest, words, limit) in lines {
        let once = || time(|| run(site.stead(&[words, &["-M", manifest]].concat())));
        line(what, (0..effort.samples()).map(|_| once()).collect(), limit, table);
    }
}

fn lives(effort: Effort, table: &mut Table) {
    let count = match effort {
        Effort::Quick => 20,
        Effort::Full => 100,
    };
    for mode in ["push", "pull"] {
        let nodes = format!("- {{name: n, type: vm, spec: base, count: {count}}}\n");
        let lab = Lab::new(mode, &nodes);
        let (mut lives, mut again) = (Vec::new(), Vec::new());
        for _ in 0..effort.samples() {
            let made = lab.create();
            again.push(lab.create());
            lives.push(made + lab.destroy());
        }
        let sandboxes = format!("{} sandboxes, {mode}", thousands(count));
        line(&format!("create, configure and destroy {sandboxes}"), lives, SLOWEST_LIFE, table);
        line(&format!("create the same {sandboxes} again"), again, SLOWEST_AGAIN, table);
    }
}

/// A spec that a sandbox has already, pushed over one connection.
fn unchanged(effort: Effort, table: &mut Table) {
    let lab = Lab::new("push", "- {name: n, type: vm, spec: base}\n");
    lab.create();
    let before = lab.connections();
    let times: Vec<Duration> = (0..effort.samples()).map(|_| lab.create()).collect();
    let connections = (lab.connections() - before) as f64 / times.len() as f64;
    line("push an unchanged spec to a sandbox", times, SLOWEST_PUSH, table);
    table.at_most("connections that this takes", format!("{connections}"), connections, "1".to_owned(), 1.0);
}

/// ST-6: peers that take a second to start do so at once.
fn peers(effort: Effort, table: &mut Table) {
    let lab = Lab::new("push", "- {name: n, type: vm, spec: base, count: 3}\n");
    lab.0.write("hosts/local.yaml", "driver: sandbox\nboot_delay_ms: 1000\n");
    let once = || {
        let made = lab.create();
        lab.destroy();
        made
    };
    let times = (0..effort.samples()).map(|_| once()).collect();
    line("create 3 peers that boot for 1 s each", times, SLOWEST_PEERS, table);
}

/// An agent that is asked to end, while it waits for its server.
fn terminated(effort: Effort, table: &mut Table) {
    let lab = Lab::new("pull", "- {name: n, type: vm, spec: base}\n");
    let once = || {
        lab.create();
        let agent = lab.agent();
        let taken = time(|| {
            kill_process(agent, Signal::TERM).expect("the agent runs");
            let patience = Instant::now() + Duration::from_secs(60);
            while test_kill_process(agent).is_ok() && Instant::now() < patience {
                thread::sleep(Duration::from_millis(1));
            }
        });
        lab.destroy();
        taken
    };
    let times = (0..effort.samples()).map(|_| once()).collect();
    line("an agent ends after SIGTERM", times, SLOWEST_AGENT_END, table);
}

fn manifest(site: &Site, name: &str, head: &str, nodes: &str) {
    let text = format!("schema_version: 2\nname: {name}\n{head}nodes:\n{nodes}");
    site.write(&format!("manifests/{name}.yaml"), &text);
}

/// A site whose sandboxes go with it.
struct Lab(Site);

impl Lab {
    fn new(mode: &str, nodes: &str) -> Self {
        let lab = Self(Site::new(""));
        manifest(&lab.0, "lab", &format!("execution: {{default_mode: {mode}}}\n"), nodes);
        lab
    }

    fn stead(&self, verb: &str) -> Command {
        self.0.stead(&[verb, "-M", "lab", "-H", "local", "--json", "--yes"])
    }

    fn create(&self) -> Duration {
        time(|| run(self.stead("create")))
    }

    fn destroy(&self) -> Duration {
        time(|| run(self.stead("destroy")))
    }

    /// Returns the process that pulls for its only machine.
    fn agent(&self) -> Pid {
        let mark = format!("STEAD_SANDBOX={}", self.0.path().display());
        let read = |process: i32, file: &str| fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
        let is_it = |process: i32| {
            let environment = read(process, "environ");
            read(process, "cmdline").ends_with(b"\0agent\0run\0")
                && environment.split(|byte| *byte == 0).any(|one| one.starts_with(mark.as_bytes()))
        };
        let names =
            fs::read_dir("/proc").expect("Linux tells processes").flatten().map(|one| one.file_name());
        let mut processes = names.filter_map(|name| name.to_str()?.parse::<i32>().ok());
        processes.find(|process| is_it(*process)).and_then(Pid::from_raw).expect("an agent runs")
    }

    /// Returns how many logins its machines have noted.
    fn connections(&self) -> usize {
        let machines = fs::read_dir(self.0.path().join(".stead/machines")).expect("machines were made");
        let consoles = machines.flatten().map(|machine| machine.path().join("console.log"));
        consoles
            .filter_map(|console| fs::read_to_string(console).ok())
            .map(|text| text.matches("login of").count())
            .sum()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stead("destroy").stdout(std::process::Stdio::null()).status().ok();
    }
}
