//! The example `wire`: real programs on a real cable between two network namespaces, captured by a real `tcpdump`.
//!
//! Needs root and the programs the example names; without them the tests say so and are skipped, on CI they fail.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::place::Place;
use crate::cases_17_32::lab::{Ended, Running, wait_until};

const PROGRAMS: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/wire/wire.yaml");

/// A place for runs of the example, with a cable of its own name.
struct Wire {
    place: Place,
    cable: String,
}

impl Wire {
    /// Returns the place, or why there can be no cable.
    fn new(name: &str) -> Result<Self, String> {
        if let Some(why) = missing() {
            assert!(std::env::var_os("STEAD_CI").is_none(), "{why}");
            return Err(why);
        }
        let cable = format!("stead-{name}-{}", std::process::id());
        Ok(Self { place: Place::new(""), cable })
    }

    fn stead(&self, words: &[&str]) -> Command {
        let mut command = self.place.stead(words.iter().copied());
        command.env("PATH", PROGRAMS);
        command
    }

    fn manifest(&self, variables: &[&str]) -> Command {
        let mut command = self.stead(&["run", "manifest", EXAMPLE, "--json"]);
        command.args(["--var", &format!("cable={}", self.cable)]);
        for variable in variables {
            command.args(["--var", variable]);
        }
        command
    }

    /// Runs the example and returns its bundle, which is whole.
    #[track_caller]
    fn run(&self, variables: &[&str]) -> PathBuf {
        let ended = Ended::from(self.manifest(variables).output().unwrap()).exits(0);
        let bundle = ended.document()["bundle"].as_str().unwrap().to_owned();
        self.is_gone();
        Ended::from(self.stead(&["bundle", "verify", &bundle]).output().unwrap()).exits(0);
        self.place.lab.path(&bundle)
    }

    /// Starts the example and returns it once its client asks.
    fn start(&self) -> Running {
        let mut command = self.manifest(&["requests=100000"]);
        let running =
            Running::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
        wait_until("the client", || {
            let line = |(_, line): (u32, String)| line.contains("pair.py client");
            self.place.lab.processes().into_iter().any(line)
        });
        assert!(self.ends().iter().all(|end| end.exists()), "the cable is there");
        running
    }

    fn ends(&self) -> [PathBuf; 2] {
        ["near", "far"].map(|end| Path::new("/run/netns").join(format!("{}-{end}", self.cable)))
    }

    /// Neither a process nor a namespace is left.
    #[track_caller]
    fn is_gone(&self) {
        self.place.lab.nothing_runs();
        assert!(self.ends().iter().all(|end| !end.exists()), "namespaces are left");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in self.ends().iter().filter(|end| end.exists()) {
            let mut ip = Command::new("ip");
            ip.env("PATH", PROGRAMS).args(["netns", "delete"]).arg(end.file_name().unwrap_or_default());
            drop(ip.status());
        }
    }
}

/// Returns why there can be no cable here.
fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    let is_there =
        |program: &&str| PROGRAMS.split(':').any(|directory| Path::new(directory).join(program).exists());
    if let Some(program) = ["ip", "tcpdump", "python3"].iter().find(|program| !is_there(program)) {
        return Some(format!("{program} is not installed"));
    }
    let name = format!("stead-can-{}", std::process::id());
    let ip = |words: &[&str]| Command::new("ip").env("PATH", PROGRAMS).args(words).output().unwrap();
    let made = ip(&["netns", "add", &name]);
    let linked = ip(&["-n", &name, "link", "add", "name", "can0", "type", "veth", "peer", "name", "can1"]);
    ip(&["netns", "delete", &name]);
    let refused = [made, linked].into_iter().find(|done| !done.status.success())?;
    Some(format!("there can be no cable here: {}", String::from_utf8_lossy(&refused.stderr).trim()))
}

fn capture(bundle: &Path, role: &str) -> Value {
    let text = std::fs::read(bundle.join("analysis/summary.json")).unwrap();
    let summary: Value = serde_json::from_slice(&text).unwrap();
    summary["roles"][role]["captures"][0].clone()
}

/// Section 7 and 8, with nothing made up: what was said is captured at both ends, analysed and compared; a server that
/// became slower is found.
#[test]
fn what_is_said_on_a_cable_is_captured_analysed_and_compared() {
    let wire = match Wire::new("wire") {
        Ok(wire) => wire,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let first = wire.run(&[]);
    for end in ["near", "far"] {
        let found = capture(&first, end);
        assert_eq!(found["enip"]["commands"], json!({"RegisterSession": 2, "SendRRData": 80}), "{found}");
        assert_eq!((&found["cip"]["requests"], &found["cip"]["responses"]), (&json!(40), &json!(40)));
        assert_eq!(found["cip"]["services"][1]["name"], "Get_Attribute_Single");
        let latency = &found["latency_ms"];
        assert_eq!((&latency["count"], &latency["unanswered"]), (&json!(40), &json!(0)));
        assert!(latency["min"].as_f64().unwrap() >= 2.0, "{latency}");
        assert_eq!(found["truncated"], false);
    }
    assert_eq!(capture(&first, "near")["packets"], capture(&first, "far")["packets"]);

    let second = wire.run(&[]);
    let slower = wire.run(&["answer_ms=60"]);
    let compared = |new: &Path, code: i32| {
        let (base, new) = (first.to_str().unwrap(), new.to_str().unwrap());
        let gate = ["--role", "far", "--fail-on", "latency_p50_delta_ms>30", "--fail-on", "services_added"];
        let mut diff = wire.stead(&["diff", "run", base, new, "--json"]);
        Ended::from(diff.args(gate).output().unwrap()).exits(code).document()
    };
    let same = compared(&second, 0);
    assert_eq!(same["summary"]["services_common"], 2);
    let thresholds = compared(&slower, 4)["thresholds"].clone();
    assert_eq!((&thresholds[0]["failed"], &thresholds[1]["failed"]), (&json!(true), &json!(false)));
    let delta = thresholds[0]["value"].as_f64().unwrap();
    assert!((30.0..1_000.0).contains(&delta), "{thresholds}");
}

/// Section 4.3, with more than processes: the namespaces go with the run that made them.
#[test]
fn a_run_that_is_stopped_or_lost_takes_its_cable_with_it() {
    let wire = match Wire::new("lost") {
        Ok(wire) => wire,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let running = wire.start();
    running.signal(rustix::process::Signal::INT);
    let document = running.end().exits(130).document();
    assert_eq!(document["status"], "cancelled");
    wire.is_gone();
    let running = wire.start();
    running.kill_hard();
    wait_until("the supervisors' end", || wire.place.lab.processes().is_empty());
    wire.is_gone();
}
