//! `stead job`: commands that agents run, at most once.

use std::ffi::OsString;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use stead_cli::args::{Cli, Command, JobCommand};

use super::pulled::{Pulled, wait_for_with};
use crate::cases_17_32::lab::{Ended, kill};

fn job(pulled: &Pulled, args: &[&str]) -> Ended {
    pulled.lab.run(["job"].into_iter().chain(args.iter().copied()))
}

fn submit(pulled: &Pulled, args: &[&str]) -> String {
    let all = [&["submit", "--node", "edge"], args].concat();
    job(pulled, &all).exits(0).stdout.trim().to_owned()
}

fn show(pulled: &Pulled, id: &str) -> Value {
    job(pulled, &["show", id, "--json"]).exits(0).document()
}

#[track_caller]
fn wait_until(pulled: &Pulled, id: &str, state: &str) -> Value {
    wait_for_with(
        state,
        || show(pulled, id)["state"] == state,
        || format!("{}{}", show(pulled, id), pulled.log()),
    );
    show(pulled, id)
}

fn with_agent() -> Pulled {
    let pulled = Pulled::new(&[]);
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    pulled.wait_for_reports(1);
    pulled
}

/// Section 12: a job waits an hour for its agent, and runs as long as it takes, unless somebody says otherwise.
#[test]
fn a_job_waits_an_hour_for_its_agent() {
    let argv = ["stead", "job", "submit", "--node", "edge", "--", "true"].map(OsString::from);
    let Command::Job(JobCommand::Submit(args)) = Cli::parse_argv(&argv).unwrap().command else {
        panic!("this is no job")
    };
    assert_eq!((args.ttl, args.timeout), (Duration::from_secs(3600), None));
}

/// Case 35: submit, wait, a code of its own, cancel while it runs, a time that is over.
#[test]
fn jobs_are_run_waited_for_and_ended() {
    let pulled = with_agent();
    let wait = ["submit", "--node", "edge", "--wait", "--json", "--", "sh", "-c"];
    let good = job(&pulled, &[&wait[..], &["pwd; hostname; echo oops >&2"]].concat()).exits(0).document();
    assert_eq!(
        (&good["state"], &good["rc"], &good["stderr"]),
        (&"succeeded".into(), &0.into(), &"oops\n".into())
    );
    let root = pulled.root().display().to_string();
    assert_eq!(good["stdout"], format!("{root}\nedge\n"), "it starts in the node's root, as the node");
    assert_eq!(good["truncated"], false);
    assert!(good["started_at"].is_string() && good["finished_at"].is_string() && good["by"].is_string());
    let bad = job(&pulled, &[&wait[..], &["exit 3"]].concat()).exits(1).document();
    assert_eq!((&bad["state"], &bad["rc"]), (&"failed".into(), &3.into()));

    let long = submit(&pulled, &["--", "sleep", "600"]);
    wait_until(&pulled, &long, "running");
    job(&pulled, &["cancel", &long]).exits(0);
    wait_until(&pulled, &long, "cancelled");
    job(&pulled, &["cancel", &long]).exits(1).says("E401");
    let late = submit(&pulled, &["--timeout", "1s", "--", "sleep", "600"]);
    let late = wait_until(&pulled, &late, "failed");
    assert!(late["error"].as_str().unwrap().contains("longer than 1 s"), "{late}");

    let list = job(&pulled, &["list", "--json"]).exits(0).document();
    assert_eq!(list["jobs"].as_array().unwrap().len(), 4);
    job(&pulled, &["show", "j999"]).exits(2).says("E200");
    job(&pulled, &["submit", "--node", "nobody", "--", "true"]).exits(3).says("stead exec nobody");
    let told = job(&pulled, &["submit", "--node", "edge", "--json", "--", "true"]).exits(0).document();
    assert_eq!((&told["argv"][0], &told["node"]), (&"true".into(), &"edge".into()));
    assert!(told["state"].is_string() && told["by"].is_string() && told["created_at"].is_string(), "{told}");
}

/// Section 12: the agent of a node in another asks that one's server. One that nobody has made yet is not found there, and
/// a job for it would wait here in vain.
#[test]
fn a_job_for_a_node_on_a_deeper_level_that_is_not_made_is_refused_at_once() {
    let nodes =
        "  - {name: quay, type: vm, spec: base}\n  - {name: crane, type: vm, spec: base, parent: quay}\n";
    let pulled = Pulled::new(&[("manifests/m.yaml", &super::manifest(nodes))]);
    let refused = job(&pulled, &["submit", "--node", "crane", "--wait", "--", "true"]).exits(3);
    refused.says("crane is on level 2: its agent asks the server of quay").says("stead exec crane");
    job(&pulled, &["submit", "--node", "quay", "--", "true"]).exits(0);
}

/// Case 35: cancel while it waits, a lifetime that is over, and a server that is killed before delivery: run once.
#[test]
fn jobs_wait_for_their_agent_and_survive_the_server() {
    let mut pulled =
        Pulled::new(&[("manifests/m.yaml", &super::manifest("  - {name: edge, type: vm, spec: base}\n"))]);
    let queued = submit(&pulled, &["--", "true"]);
    assert_eq!(show(&pulled, &queued)["state"], "queued");
    job(&pulled, &["cancel", &queued]).exits(0);
    assert_eq!(show(&pulled, &queued)["state"], "cancelled");
    let short = submit(&pulled, &["--ttl", "1s", "--", "true"]);
    let once = submit(&pulled, &["--", "sh", "-c", "echo ran >>ran"]);
    wait_until(&pulled, &short, "expired");
    pulled.kill_server();
    job(&pulled, &["list"]).exits(7).says("stead server start");
    pulled.start_server();
    assert_eq!(show(&pulled, &once)["state"], "queued");
    pulled.make(Some(pulled.bootstrap("pull", &[])));
    wait_until(&pulled, &once, "succeeded");
    pulled.kill_server();
    pulled.start_server();
    let after = submit(&pulled, &["--wait", "--", "true"]);
    assert!(after.is_empty(), "it wrote nothing");
    assert_eq!(pulled.read("ran"), "ran\n");
}

/// Section 12: a job whose agent was killed is lost, unless it may run again; nothing of it goes on.
#[test]
fn a_job_whose_agent_was_killed_is_lost_or_runs_again() {
    let pulled = with_agent();
    let line = "echo $$ >>pids; test -e go && exit 0; exec sleep 600";
    let lost = submit(&pulled, &["--", "sh", "-c", line]);
    let again = submit(&pulled, &["--idempotent", "--", "sh", "-c", line]);
    wait_for_with("both run", || pulled.read("pids").lines().count() == 2, || pulled.log());
    wait_until(&pulled, &again, "running");
    std::fs::write(pulled.root().join("go"), "").unwrap();
    kill(pulled.agent().unwrap(), Signal::KILL);
    let lost = wait_until(&pulled, &lost, "lost");
    assert!(lost["error"].as_str().unwrap().contains("nobody knows"));
    wait_until(&pulled, &again, "succeeded");
    let pids: Vec<u32> = pulled.read("pids").lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 3, "one of them ran twice");
    assert!(pids.iter().all(|pid| !super::pulled::is_alive(*pid)), "{pids:?}");
}

/// Whoever stands in the site directory is told by its whole name whose server does not run.
#[test]
fn the_site_whose_server_does_not_run_is_named() {
    let lab = super::site(&[]);
    let said = |directory: &str| -> String {
        let mut command = lab.stead(["job", "list"]);
        let ended: Ended = command.current_dir(lab.path(directory)).output().unwrap().into();
        ended.exits(7).stderr
    };
    let inside = lab.path("site-config").canonicalize().unwrap();
    let whole = format!("no server of the site {} runs here", inside.display());
    assert!(said("site-config").contains(&whole), "{}", said("site-config"));
    assert!(said(".").contains("no server of the site site-config runs here"), "{}", said("."));
}

/// Section 12: who asks a server that hangs is told so, soon, and with what to do.
#[test]
fn a_server_that_hangs_is_told_from_one_that_does_not_run() {
    let pulled = Pulled::new(&[]);
    let pid = u32::try_from(pulled.server["pid"].as_u64().unwrap()).unwrap();
    kill(pid, Signal::STOP);
    let ended = job(&pulled, &["list"]);
    kill(pid, Signal::CONT);
    ended.exits(7).says("does not answer").says("stead server start");
    kill(pid, Signal::KILL);
    wait_for_with(
        "its end",
        || job(&pulled, &["list"]).stderr.contains("no server of the site"),
        String::new,
    );
}
