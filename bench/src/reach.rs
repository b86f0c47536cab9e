//! Reaching hosts over SSH: against ansible-core, pyinfra and OpenSSH, same servers, same run.
//!
//! The hosts are OpenSSH servers on loopback, one per host, so that every tool pays for real connections. The peers
//! come from PyPI into a virtual environment that lives as long as the measurement.

mod executor;
mod peers;
mod servers;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Effort;
use crate::sample::{median, time};
use crate::shell::{binary, is_installed, run, write};
use crate::table::{Table, micros, millis};

use executor::{Executor, time_alone};
use peers::Peers;
use servers::Servers;

/// The lines about SSH.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    if !stead_testkit::sshd::available() {
        return table.skipped("hosts over SSH", "no SSH server (Debian: openssh-server)");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let servers = Servers::start(50);
    let work = Work { directory: directory.path().to_owned(), servers, samples: effort.samples() };
    let site = Site::new(&work);
    let ours = site.measure(&work, table);
    rate(&work, table);
    overhead(&work, table);
    whole_way(&work, table);
    facts(&work, table);
    idle(&work, effort, table);
    let ours_alone = fan_out(&work, table);
    // Last, because they take minutes where we take seconds.
    let Some(peers) = Peers::install(&work.directory.join("peers")) else {
        return table
            .skipped("the same by ansible-core and pyinfra", "they could not be installed from PyPI");
    };
    site.compare(&work, &peers, ours, effort, table);
    fan_out_by_ansible(&work, &peers, ours_alone, table);
}

/// What every measurement works with.
struct Work {
    directory: PathBuf,
    servers: Servers,
    samples: usize,
}

impl Work {
    /// Returns `stead` with an inventory of `hosts` hosts and a state directory of its own.
    fn stead(&self, hosts: usize, words: &[&str]) -> Command {
        let inventory = self.directory.join(format!("inventory-{hosts}.yaml"));
        if !inventory.exists() {
            write(&inventory, &self.servers.inventory(hosts, &self.directory.join("hosts")));
        }
        let mut command = Command::new(binary());
        command.args(words).arg("-i").arg(inventory);
        command.env("STEAD_DIR", self.directory.join("state")).current_dir(&self.directory);
        command
    }

    fn plan(&self, hosts: usize, plan: &Path, words: &[&str]) -> Command {
        let mut command = self.stead(hosts, &["plan", "run"]);
        command.arg(plan).args(words);
        command
    }

    fn write_plan(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        write(&path, text);
        path
    }

    fn median(&self, mut work: impl FnMut()) -> f64 {
        median((0..self.samples).map(|_| time(&mut work)).collect()).as_secs_f64()
    }
}

/// Twenty operations on fifty hosts.
struct Site {
    base: PathBuf,
    spec: PathBuf,
}

/// How long making it and finding it made took, in seconds.
type MadeAndFound = [f64; 2];

const SITE: [&str; 2] = ["20 operations on 50 hosts, made", "20 operations on 50 hosts, no change"];

impl Site {
    const HOSTS: usize = 50;

    fn new(work: &Work) -> Self {
        let spec = Path::new(env!("CARGO_MANIFEST_DIR")).join("reach/site.yaml");
        Self { base: work.directory.join("site"), spec }
    }

    /// Returns how long `command` takes from nothing and again.
    fn time(&self, work: &Work, rounds: usize, command: &dyn Fn() -> Command) -> MadeAndFound {
        let mut times: [Vec<Duration>; 2] = Default::default();
        for _ in 0..rounds {
            // Not there the first time.
            std::fs::remove_dir_all(&self.base).ok();
            for name in work.servers.names(Self::HOSTS) {
                std::fs::create_dir_all(self.base.join(name)).expect("a directory");
            }
            for times in &mut times {
                times.push(time(|| run(command())));
            }
        }
        times.map(|times| median(times).as_secs_f64())
    }

    fn measure(&self, work: &Work, table: &mut Table) -> MadeAndFound {
        let var = format!("base={}", self.base.display());
        let command = || work.plan(Self::HOSTS, &self.spec, &["--var", var.as_str(), "--parallel", "50"]);
        // Afterwards the binary is there, as in every run but the very first.
        self.time(work, 1, &command);
        let ours = self.time(work, work.samples, &command);
        SITE.iter().zip(ours).for_each(|(what, ours)| table.note(what, millis(ours)));
        ours
    }

    fn compare(&self, work: &Work, peers: &Peers, ours: MadeAndFound, effort: Effort, table: &mut Table) {
        // A peer takes minutes: one sample of each is enough to tell 20 from 4.
        let rounds = if effort == Effort::Quick { 1 } else { 3 };
        let pyinfra = peers.pyinfra(&work.servers, Self::HOSTS, &self.base);
        let ansible = peers.ansible(&work.servers, Self::HOSTS, &self.base);
        for (name, limit, command) in
            [("pyinfra", 4.0, &pyinfra as &dyn Fn() -> Command), ("ansible-core", 20.0, &ansible)]
        {
            let theirs = self.time(work, rounds, command);
            for (what, (ours, theirs)) in SITE.iter().zip(ours.into_iter().zip(theirs)) {
                table.times_faster(what, ours, (name, theirs), limit);
            }
        }
    }
}

const FAN_OUT: usize = 100;

/// One command on a hundred hosts; returns how long it took, in seconds.
fn fan_out(work: &Work, table: &mut Table) -> f64 {
    let ours = work.median(|| {
        let mut command = work.stead(FAN_OUT, &["exec", "_all"]);
        run(command.args(["--", "true"]));
    });
    let floor = work.median(|| run(work.servers.openssh(FAN_OUT, &work.directory)));
    let peer = format!("`ssh` 50 at a time {}", millis(floor));
    table.peer("1 command on 100 hosts", millis(ours), ours, peer, floor);
    ours
}

fn fan_out_by_ansible(work: &Work, peers: &Peers, ours: f64, table: &mut Table) {
    let theirs = time(|| run(peers.ansible_raw(&work.servers, FAN_OUT))).as_secs_f64();
    let peer = format!("ansible-core {}", millis(theirs));
    table.peer("1 command on 100 hosts", millis(ours), ours, peer, theirs);
}

/// A thousand commands over one connection.
fn rate(work: &Work, table: &mut Table) {
    let commands = 1_000;
    let plan = |count: usize| {
        let mut text =
            "api_version: v1\nname: rate\nlimits: {per_target: 16}\ndefaults: {target: h0}\ntasks:\n"
                .to_owned();
        (0..count).for_each(|task| text += &format!("  - {{name: t{task}, exec: [\"true\"]}}\n"));
        text
    };
    let (one, many) =
        (work.write_plan("one.yaml", &plan(1)), work.write_plan("many.yaml", &plan(1 + commands)));
    let parallel = ["--parallel", "16"];
    let base = work.median(|| run(work.plan(1, &one, &parallel)));
    let ours = work.median(|| run(work.plan(1, &many, &parallel))) - base;
    let per_second = commands as f64 / ours;
    let theirs = commands as f64 / work.servers.multiplexed(commands, &work.directory).as_secs_f64();
    let limit = f64::min(2_000.0, 0.8 * theirs);
    table.at_least(
        "commands over an open session",
        format!("{per_second:.0}/s"),
        per_second,
        format!("{limit:.0}/s (2,000 or 0.8 × OpenSSH's multiplexed {theirs:.0})"),
        limit,
    );
}

/// What the executor adds to an operation.
fn overhead(work: &Work, table: &mut Table) {
    let operations = 1_000;
    let base = work.directory.join("executor");
    std::fs::create_dir_all(&base).expect("the temporary directory can be written to");
    let mut executor = Executor::start(&base);
    executor.time(operations);
    let there = median((0..work.samples).map(|_| executor.time(operations)).collect()).as_secs_f64();
    let alone = median((0..work.samples).map(|_| time_alone(operations)).collect()).as_secs_f64();
    let each = (there - alone) / f64::from(operations);
    table.at_most(
        "`assert` in the executor, beyond itself",
        micros(each),
        each * 1e6,
        "200 µs".into(),
        200.0,
    );
}

/// What an operation costs with the way there and back, rendering and journal.
fn whole_way(work: &Work, table: &mut Table) {
    let operations = 1_000;
    let plan = |count: usize| {
        let mut text =
            "api_version: v1\nname: overhead\ndefaults: {target: h0}\ntasks:\n  - name: all\n    sequence:\n"
                .to_owned();
        (0..count).for_each(|part| {
            text += &format!(
                "      - {{name: p{part}, op: file.absent, params: {{path: /nonexistent/stead}}}}\n"
            );
        });
        text
    };
    let few = work.write_plan("few-parts.yaml", &plan(1));
    let many = work.write_plan("many-parts.yaml", &plan(1 + operations));
    let base = work.median(|| run(work.plan(1, &few, &[])));
    let each = (work.median(|| run(work.plan(1, &many, &[]))) - base) / operations as f64;
    table.note("one operation on a host, journal and way included", micros(each));
}

/// Facts, beyond connecting.
fn facts(work: &Work, table: &mut Table) {
    let with = |words: &'static [&'static str]| {
        work.median(|| {
            let mut command = work.stead(1, &["exec", "h0"]);
            run(command.args(words));
        })
    };
    let base = with(&["--op", "assert", "that=true"]);
    let facts = with(&["--facts"]) - base;
    table.at_most("facts of a host, beyond connecting", millis(facts), facts * 1e3, "20 ms".into(), 20.0);
}

/// What open sessions take in the driver.
fn idle(work: &Work, effort: Effort, table: &mut Table) {
    let hosts = if effort == Effort::Quick { 100 } else { 500 };
    let mark = work.directory.join("open");
    let plan = work.write_plan(
        "idle.yaml",
        &format!(
            "api_version: v1\nname: idle\ntasks:\n  - {{name: open, target: _all, op: file.absent, params: {{path: /nonexistent/stead}}}}\n  \
             - {{name: hold, depends_on: open, target: local, shell: \"touch '{0}'; while [ -e '{0}' ]; do sleep 0.1; done\"}}\n",
            mark.display()
        ),
    );
    let mut command = work.plan(hosts, &plan, &["--parallel", "50"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("stead can be started");
    let end = Instant::now() + Duration::from_secs(300);
    while !mark.exists() && Instant::now() < end && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(50));
    }
    let memory = crate::sample::memory_of(child.id(), "VmRSS:");
    // Ends the run, however far it came.
    std::fs::remove_file(&mark).ok();
    assert!(child.wait().expect("a child").success(), "the run that holds sessions open failed");
    let limit = 64.0 * hosts as f64 / 500.0;
    let mib = memory as f64 / f64::from(1 << 20);
    table.at_most(
        &format!("memory of the driver, {hosts} hosts connected"),
        format!("{mib:.1} MiB"),
        mib,
        format!("{:.0} MiB", if hosts == 500 { limit } else { 64.0 }),
        if hosts == 500 { limit } else { 64.0 },
    );
    // Where a binary is copied with `scp`, that is what a put is measured by.
    if is_installed("scp") {
        put(work, effort, table);
    }
}

/// A large file there, as `scp` does it.
fn put(work: &Work, effort: Effort, table: &mut Table) {
    let size: u64 = if effort == Effort::Quick { 256 << 20 } else { 1 << 30 };
    let (ours, theirs) = work.servers.put(size, &work.directory);
    let rate = |time: Duration| size as f64 / time.as_secs_f64() / f64::from(1 << 20);
    table.at_least(
        &format!("`put` of {} MiB", size >> 20),
        format!("{:.0} MiB/s", rate(ours)),
        rate(ours),
        format!("0.8 × scp's {:.0} MiB/s", rate(theirs)),
        0.8 * rate(theirs),
    );
}
