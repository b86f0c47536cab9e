//! Signals, sent to a process of this test's own: the test binary, started again as a child.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stead_cli::signals;

const CHILD: &str = "interrupting::child_counts_signals";

/// Not a test: what the tests below start. Prints each count it hears of, and never ends by itself.
#[test]
#[ignore = "started by the other tests of this module"]
fn child_counts_signals() {
    let mut counts = signals::listen().unwrap();
    println!("\nlistening");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        while counts.changed().await.is_ok() {
            println!("count {}", counts.borrow_and_update().count);
        }
    });
}

struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(launcher: &[&str]) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut argv: Vec<std::ffi::OsString> = launcher.iter().map(Into::into).collect();
        argv.push(exe.into());
        let mut child = Command::new(&argv[0])
            .args(&argv[1..])
            .args(["--exact", CHILD, "--ignored", "--nocapture"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut running = Self { child, lines };
        running.wait_for("listening");
        running
    }

    fn wait_for(&mut self, wanted: &str) {
        assert!(self.lines.any(|line| line.unwrap() == wanted), "the child ended before it said {wanted}");
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// The third signal exits 130 at once, whichever of the three they are.
#[test]
fn two_signals_are_counted_and_the_third_ends_the_process() {
    let mut running = Running::start(&[]);
    running.send(Signal::INT);
    running.wait_for("count 1");
    running.send(Signal::TERM);
    running.wait_for("count 2");
    running.send(Signal::HUP);
    assert_eq!(running.code(), Some(130));
}

#[test]
fn a_hangup_that_was_ignored_stays_ignored() {
    let mut running = Running::start(&["nohup"]);
    running.send(Signal::HUP);
    running.send(Signal::INT);
    running.wait_for("count 1");
    running.send(Signal::INT);
    running.wait_for("count 2");
    running.send(Signal::INT);
    assert_eq!(running.code(), Some(130));
}
