//! Runs, nodes and a fleet on a real terminal: what the program itself has made.

use stead_testkit::pty::Pty;

use crate::cases_17_32::lab::Lab;
use crate::fleet::Fleet;
use crate::nodes::{manifest, site};

/// Two tasks on two hosts, the second of which fails.
const PLAN: &str = r#"
api_version: v1
name: web
tasks:
  - {name: first, target: [h1, h2], shell: 'echo "hello from first"'}
  - {name: second, target: [h1, h2], depends_on: [first], shell: 'echo "oh no" >&2; exit 3'}
"#;

const HOSTS: &str = "{api_version: v1, hosts: {h1: {transport: local}, h2: {transport: local}}}";

/// Waits for a file between its tasks.
const WAITING: &str = r#"
api_version: v1
name: waits
tasks:
  - {name: first, shell: 'echo one'}
  - {name: second, shell: 'echo begun; while [ ! -e @/go ]; do sleep 0.1; done; echo gone', depends_on: [first]}
"#;

/// Starts a screen in a lab, with its state directory.
fn screen(lab: &Lab, size: (u16, u16), more: &[&str]) -> Pty {
    let state = lab.path("state");
    let mut args = vec!["--state-dir", state.to_str().unwrap(), "tui"];
    args.extend(more);
    let home = lab.root().to_str().unwrap();
    let env = [("PATH", "/usr/bin:/bin"), ("TERM", "xterm-256color"), ("HOME", home)];
    Pty::start(env!("CARGO_BIN_EXE_stead"), &args, lab.root(), &env, size)
}

fn leave(mut screen: Pty) {
    screen.type_text("q");
    assert_eq!(screen.wait().code(), Some(0));
    assert!(screen.is_restored());
}

/// Runs are filtered, one is opened down to what a host wrote, and shown again event by event.
#[test]
fn a_run_is_filtered_drilled_into_and_replayed() {
    let lab = Lab::new(PLAN);
    lab.write("inventory.yaml", HOSTS);
    lab.plan(&["--run-id", "bad-one"]).exits(1);
    lab.write("good.yaml", "{api_version: v1, name: quiet, tasks: [{name: t, exec: ['true']}]}");
    lab.run(["plan", "run", "good.yaml", "--run-id", "good-one"]).exits(0);
    let mut screen = screen(&lab, (80, 24), &[]);
    screen.wait_until("both runs", |shown| shown.contains("good-one") && shown.contains("bad-one"));
    screen.type_text("/no such run");
    screen.wait_for("nothing fits `no such run`");
    screen.type_text("\x15web fail\r");
    screen.wait_until("one run", |shown| shown.contains("bad-one") && !shown.contains("good-one"));
    screen.type_text("\r");
    screen.wait_for("Recorded run");
    screen.type_text("\r");
    let shown = screen.wait_for("Tasks (1/");
    assert!(shown.contains("first") && shown.contains("second") && shown.contains("h2"), "{shown}");
    // The second host of the first task.
    screen.type_text("jj");
    screen.wait_for("Output: first@h2");
    screen.wait_for("hello from first");
    screen.type_text("\r");
    screen.wait_for("Full log: first@h2");
    screen.type_text("\x1b");
    screen.wait_without("Full log");
    screen.type_text("\x1b");
    screen.wait_for("Result");

    screen.type_text("p");
    let shown = screen.wait_for("Event 0/");
    let events: usize =
        shown.split("Event 0/").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let told = lab.run(["bundle", "replay", "bad-one", "--json"]).exits(0).document();
    assert_eq!(told["events"].as_array().unwrap().len(), events, "the same reader");
    // One event after the other, until the first task has begun.
    while !screen.screen().contains("[start] first") {
        let before = screen.screen();
        screen.type_text("\x1b[C");
        screen.wait_until("the next event", |shown| shown != before);
    }
    screen.wait_until("it runs", |shown| shown.contains("first") && shown.contains("running"));
    screen.type_text("\x1b[F");
    screen.wait_for(&format!("Event {events}/{events}"));
    // What wrote last is shown, until a person chooses.
    screen.wait_for("oh no");
    screen.type_text("\x1b[D");
    screen.wait_for(&format!("Event {}/{events}", events - 1));
    screen.wait_without(" status ");
    screen.type_text("\x1b[H");
    screen.wait_for("Event 0/");
    screen.type_text("+++++++++ ");
    screen.wait_for("at its end");
    screen.resize((40, 12));
    screen.wait_until("40 columns", |shown| shown.contains("[1 Runs]") && shown.contains("? help"));
    screen.type_text("\x1b");
    screen.wait_for("Recorded run");
    screen.type_text("\x1b");
    screen.wait_for("filter: web fail");
    leave(screen);
}

/// A run that somebody else started is followed to its end.
#[test]
fn a_run_of_another_process_is_followed() {
    let lab = Lab::new(WAITING);
    let mut screen = screen(&lab, (80, 24), &[]);
    screen.wait_for("no runs yet");
    let run = lab.start_plan("r1", &[]);
    screen.wait_until("the new run", |shown| shown.contains("r1") && shown.contains("running"));
    screen.type_text("\r");
    screen.wait_until("the second task", |shown| {
        shown.lines().any(|line| line.contains("second") && line.contains("running"))
    });
    screen.wait_for("begun");
    lab.write("go", "");
    screen.wait_until("its end", |shown| shown.contains("Result") && shown.contains("success"));
    screen.wait_for("gone");
    run.end();
    leave(screen);
}

/// Nodes come and go, with why they are not converged; one is told in full.
#[test]
fn nodes_come_and_go_on_the_screen() {
    let nodes = "  - {name: a, type: vm, spec: base}\n  - {name: b, type: vm, spec: base}\n";
    let lab = site(&[("manifests/m.yaml", &manifest(nodes))]);
    let mut screen = screen(&lab, (80, 40), &[]);
    screen.type_text("2");
    screen.wait_for("no nodes are known");
    screen.wait_for("manifests of this site: m");
    lab.run(["create", "-M", "m", "-H", "local"]).exits(0);
    screen.wait_until("two nodes", |shown| {
        let good = |line: &&str| line.contains("completed") && !line.contains("not converged");
        shown.lines().filter(good).count() == 2
            && shown.contains("host local")
            && shown.contains("manifest m")
    });
    // What the spec says now is not what is in force on them.
    crate::nodes::write(&lab, "specs/base.yaml", &crate::nodes::BASE.replace("htop", "strace"));
    screen.wait_for("node/verification: its spec says something else since");
    screen.type_text("/b\r\r");
    screen.wait_for("Node b");
    let shown = screen.wait_for("none: its level has no server");
    assert!(
        shown.contains("sha256:") && shown.contains("sandbox") && shown.contains("stead drift"),
        "{shown}"
    );
    screen.type_text("\x1b");
    screen.wait_for("filter: b");
    screen.type_text("\x1b");
    screen.wait_without("filter:");
    lab.run(["destroy", "-M", "m", "-H", "local", "--yes"]).exits(0);
    screen.wait_until("none is left", |shown| {
        !shown.lines().any(|line| line.contains("completed")) && shown.contains("[2 Nodes]")
    });
    leave(screen);
}

/// Where there is no site and no fleet, it says so and what to do; a site that is named must be there.
#[test]
fn without_site_and_fleet_it_says_what_to_do() {
    let lab = Lab::new("");
    let mut screen = screen(&lab, (80, 24), &[]);
    screen.type_text("\t");
    screen.wait_for("stead init nodes");
    screen.type_text("\t");
    screen.wait_for("nobody has joined a fleet here");
    screen.wait_for("stead init fleet lab");
    screen.resize((40, 10));
    screen.wait_for("[3 Fleet]");
    screen.type_text("\t");
    screen.wait_for("Controller");
    screen.type_text("\x1b[Z");
    screen.wait_for("[3 Fleet]");
    leave(screen);
    lab.run(["tui", "--site", "nowhere"]).exits(3).says("nowhere");
    lab.run(["tui", "--masters", "127.0.0.1:9"]).exits(2).says("terminal");
}

/// A fleet's convergence, its workers and why an instance is where it is.
#[test]
fn a_fleet_is_seen_on_the_screen() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    let mut screen = screen(&fleet.lab, (80, 40), &[]);
    screen.type_text("3");
    screen.wait_for("converged 100 %");
    let shown = screen.wait_for("every instance is as it should be");
    assert!(shown.contains("w1") && shown.contains("web/0") && shown.contains(&first[..12]), "{shown}");
    screen.type_text("/web/0\r\r");
    screen.wait_for("Instance web/0");
    screen.wait_for("web/0 is on w");
    screen.type_text("\x1b");
    screen.wait_for("filter: web/0");
    screen.type_text("\x1b");
    screen.wait_without("filter:");
    screen.type_text("/workers w1\r\r");
    screen.wait_for("Worker w1");
    screen.type_text("\x1b");
    screen.wait_for("filter: workers w1");
    screen.type_text("\x1b");
    // What cannot be evaluated is said, and what ran goes on.
    fleet.commit("manifests/fleet.yaml", "preset: tiny", "preset: tinny");
    screen.wait_until("what is wrong", |shown| shown.contains("degraded 100 %") && shown.contains("failed:"));
    leave(screen);
}
