//! Jobs of nodes below level 1: asked for at the top, run where they are, at most once.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use super::by_job::assert_unconnected;
use super::*;

/// A hosting node without an agent, and a node in it that pulls: the way down is SSH.
const PUSHED_HOST: &str = "  - {name: quay, type: vm, spec: base, execution: {mode: push}}\n  - {name: crane, type: vm, spec: base, parent: quay}\nexecution: {default_mode: pull}\n";

/// Three levels that pull, each told what to do by agents alone.
const THREE_PULLED: &str = "  - {name: a, type: vm, spec: base}\n  - {name: b, type: vm, spec: base, parent: a}\n  - {name: c, type: vm, spec: base, parent: b}\nexecution: {default_mode: pull}\nsettings: {delegation: job, verify_ssh: false}\n";

fn made(nodes: &str) -> Tree {
    let tree = Tree::with(nodes, &[("site.yaml", SERVED)]);
    tree.run("create", &[]).exits(0);
    tree
}

fn job(tree: &Tree, args: &[&str]) -> Ended {
    tree.lab.run(["job"].into_iter().chain(args.iter().copied()))
}

fn submit(tree: &Tree, node: &str, args: &[&str]) -> String {
    let all = [&["submit", "--node", node], args].concat();
    job(tree, &all).exits(0).stdout.trim().to_owned()
}

fn waited(tree: &Tree, node: &str, code: i32, script: &str) -> Value {
    let args = ["submit", "--node", node, "--wait", "--json", "--", "sh", "-c", script];
    job(tree, &args).exits(code).document()
}

fn show(tree: &Tree, id: &str) -> Value {
    job(tree, &["show", id, "--json"]).exits(0).document()
}

fn wait_until(tree: &Tree, id: &str, state: &str) -> Value {
    wait_for(state, || show(tree, id)["state"] == state);
    show(tree, id)
}

/// Submits, waits, ends and lists jobs of `node`, whose ids begin with `path`.
fn jobs_of(tree: &Tree, node: &str, path: &str) {
    let good = waited(tree, node, 0, "hostname; echo oops >&2");
    let id = good["id"].as_str().unwrap();
    assert!(id.starts_with(&format!("{path}/j")), "{id}");
    assert_eq!((&good["node"], &good["state"], &good["rc"]), (&json!(node), &json!("succeeded"), &json!(0)));
    assert_eq!((&good["stdout"], &good["stderr"]), (&json!(format!("{node}\n")), &json!("oops\n")));
    assert_eq!(good["truncated"], false);
    assert!(good["started_at"].is_string() && good["finished_at"].is_string(), "{good}");
    let by = good["by"].as_str().unwrap();
    assert!(by.starts_with("uid:") && by.contains("@") && by.contains(" through uid:"), "{by}");
    assert_eq!(show(tree, id), good);
    let bad = waited(tree, node, 1, "exit 3");
    assert_eq!((&bad["state"], &bad["rc"]), (&json!("failed"), &json!(3)));

    let long = submit(tree, node, &["--", "sleep", "600"]);
    wait_until(tree, &long, "running");
    job(tree, &["cancel", &long]).exits(0);
    wait_until(tree, &long, "cancelled");
    job(tree, &["cancel", &long]).exits(1).says("E401");
    let late = submit(tree, node, &["--timeout", "1s", "--", "sleep", "600"]);
    let late = wait_until(tree, &late, "failed");
    assert!(late["error"].as_str().unwrap().contains("longer than 1 s"), "{late}");

    let list = job(tree, &["list", "--json"]).exits(0).document();
    // Levels that pull are told by jobs what to do, too.
    let is_own = |job: &&Value| job["node"] == json!(node) && job["argv"][0] != "stead";
    let own: Vec<&Value> = list["jobs"].as_array().unwrap().iter().filter(is_own).collect();
    assert_eq!(own.len(), 4, "{list}");
    assert!(own.iter().all(|job| job["id"].as_str().unwrap().starts_with(path) && job["stdout"] == ""));
    let only = job(tree, &["list", "--node", node, "--json"]).exits(0).document();
    assert_eq!(only["jobs"].as_array().unwrap().iter().filter(is_own).collect::<Vec<_>>(), own);
    job(tree, &["show", &format!("{path}/j999")]).exits(2).says("E200");
    job(tree, &["show", "nobody/j5"]).exits(2).says("nobody");
}

/// Sections 12 and 15, case 35: jobs of a node in another, over SSH; who asked is in the audit log of the server that has
/// the job, and what is long comes whole, or cut and said.
#[test]
fn jobs_reach_a_node_in_another_over_ssh() {
    let tree = made(PUSHED_HOST);
    jobs_of(&tree, "crane", "quay");
    assert!(!tree.lab.path("state/server").exists(), "a job starts no server here");
    let audit = tree.root(&["quay"]).join(SERVER_BELOW).join("audit.log");
    let audit = fs::read_to_string(audit).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in ["job", "cancel"] {
        let of = lines.iter().filter(|line| line["event"] == event && line["node"] == "crane");
        let by: Vec<&str> = of.map(|line| line["by"].as_str().unwrap()).collect();
        assert!(!by.is_empty() && by.iter().all(|by| by.contains(" through uid:")), "{event}: {audit}");
    }
    let long = "head -c 1500000 /dev/zero | tr '\\0' '\\1'; head -c 1500000 /dev/zero | tr '\\0' e >&2";
    let long = waited(&tree, "crane", 0, long);
    assert_eq!(long["truncated"], true);
    assert_eq!(long["stdout"].as_str().unwrap().len(), 1 << 20, "six bytes each on their way");
    assert_eq!(long["stderr"], "e".repeat(1 << 20));
    job(&tree, &["submit", "--node", "quay", "--", "true"]).exits(1).says("stead exec quay");
}

/// Sections 6 and 12, case 35: three levels that pull; agents alone lead down, and no machine is logged into.
#[test]
fn jobs_reach_three_levels_down_without_ssh() {
    let tree = made(THREE_PULLED);
    jobs_of(&tree, "b", "a");
    jobs_of(&tree, "c", "a/b");
    let big = waited(
        &tree,
        "c",
        0,
        "head -c 900000 /dev/zero | tr '\\0' x; head -c 900000 /dev/zero | tr '\\0' y >&2",
    );
    assert_eq!(
        (big["stdout"].as_str().unwrap().len(), big["stderr"].as_str().unwrap().len()),
        (900_000, 900_000)
    );
    let list = job(&tree, &["list", "--json"]).exits(0).document();
    let nodes: std::collections::BTreeSet<&str> =
        list["jobs"].as_array().unwrap().iter().map(|job| job["node"].as_str().unwrap()).collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    tree.lab.run(["status", "-M", "m", "-H", "local"]).exits(0);
    assert_unconnected(&tree, 3);
    // Each level has its own jobs, and those of no other.
    for (path, node) in [(&["a"][..], "b"), (&["a", "b"], "c")] {
        let below = tree.root(path).join(SERVER_BELOW);
        let journal = fs::read_dir(below).unwrap().flatten().map(|entry| entry.path());
        let journal = journal.filter(|path| path.extension().is_some_and(|kind| kind == "journal"));
        let text: String = journal.map(|path| fs::read_to_string(path).unwrap()).collect();
        let jobs = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of: Vec<Value> =
            jobs.filter(|line| line["record"] == "job").map(|line| line["node"].clone()).collect();
        assert!(!of.is_empty() && of.iter().all(|of| of == node), "{path:?}: {of:?}");
    }
}

/// Case 35, a level deeper: cancel while it waits, a lifetime that is over, and a server below that is killed before
/// delivery: run once.
#[test]
fn jobs_below_wait_for_their_agent_and_survive_its_server() {
    let tree = made(PUSHED_HOST);
    let agent = tree.processes(&["agent", "run"])[0];
    // It hears nothing, and holds no connection to the server that is started anew.
    kill_process(agent, Signal::STOP).unwrap();
    restart_server(&tree);
    let queued = submit(&tree, "crane", &["--", "true"]);
    assert_eq!(show(&tree, &queued)["state"], "queued");
    job(&tree, &["cancel", &queued]).exits(0);
    assert_eq!(show(&tree, &queued)["state"], "cancelled");
    let short = submit(&tree, "crane", &["--ttl", "1s", "--", "true"]);
    let once = submit(&tree, "crane", &["--", "sh", "-c", "echo ran >>ran"]);
    wait_until(&tree, &short, "expired");
    kill_server(&tree);
    job(&tree, &["show", &once]).exits(7).says("quay");
    let list = job(&tree, &["list", "--json"]).exits(7).document();
    assert_eq!((&list["jobs"], &list["unreachable"]), (&json!([]), &json!(["quay"])));
    start_server(&tree);
    assert_eq!(show(&tree, &once)["state"], "queued");
    kill_process(agent, Signal::CONT).unwrap();
    wait_until(&tree, &once, "succeeded");
    restart_server(&tree);
    assert_eq!(waited(&tree, "crane", 0, "true")["state"], "succeeded");
    let ran = tree.root(&["quay", "crane"]).join("ran");
    assert_eq!(fs::read_to_string(ran).unwrap(), "ran\n");
    // One that a run did not start is not a run's to stop.
    kill_server(&tree);
}

/// Section 12: a job below whose agent was killed is lost, unless it may run again.
#[test]
fn a_job_below_whose_agent_was_killed_is_lost_or_runs_again() {
    let tree = made(PUSHED_HOST);
    let line = "echo $$ >>pids; test -e go && exit 0; exec sleep 600";
    let lost = submit(&tree, "crane", &["--", "sh", "-c", line]);
    let again = submit(&tree, "crane", &["--idempotent", "--", "sh", "-c", line]);
    let root = tree.root(&["quay", "crane"]);
    let runs = || fs::read_to_string(root.join("pids")).unwrap_or_default().lines().count();
    wait_for("both run", || runs() == 2);
    wait_until(&tree, &again, "running");
    wait_until(&tree, &lost, "running");
    fs::write(root.join("go"), "").unwrap();
    kill_process(tree.processes(&["agent", "run"])[0], Signal::KILL).unwrap();
    let lost = wait_until(&tree, &lost, "lost");
    assert!(lost["error"].as_str().unwrap().contains("nobody knows"), "{lost}");
    wait_until(&tree, &again, "succeeded");
    assert_eq!(runs(), 3, "one of them ran twice");
}

/// Section 12, at most once: the stead on the hosting node submits the job and is killed before it can say so. It is asked
/// again, and there is one job.
#[test]
fn a_job_whose_submission_was_not_heard_of_is_submitted_once() {
    let tree = made(PUSHED_HOST);
    let programs = fs::read_dir(tree.root(&["quay"]).join("var/lib/stead/bin")).unwrap().flatten();
    let program = programs.map(|entry| entry.path().join("stead")).find(|path| path.is_file()).unwrap();
    let real = program.with_file_name("real");
    fs::rename(&program, &real).unwrap();
    let script = "#!/bin/sh\nif test \"$1 $2\" = 'errand job' && mkdir \"$STEAD_ROOT/asked\"; then \"${0%/*}/real\" \"$@\" >/dev/null; kill -9 $$; fi\nexec \"${0%/*}/real\" \"$@\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let told = waited(&tree, "crane", 0, "echo ran >>ran");
    fs::rename(&real, &program).unwrap();
    assert!(tree.root(&["quay"]).join("asked").is_dir(), "the first answer was lost");
    assert_eq!(told["state"], "succeeded");
    let list = job(&tree, &["list", "--json"]).exits(0).document();
    assert_eq!(list["jobs"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(fs::read_to_string(tree.root(&["quay", "crane"]).join("ran")).unwrap(), "ran\n");
    let audit = fs::read_to_string(tree.root(&["quay"]).join(SERVER_BELOW).join("audit.log")).unwrap();
    assert_eq!(audit.matches("\"again\":true").count(), 1, "{audit}");
}

/// Section 12, at most once: agents that lead to a job are killed while it is waited for. It goes on, is waited for, and runs
/// once.
#[test]
fn agents_on_the_way_to_a_job_may_be_killed() {
    let tree = made(THREE_PULLED);
    let script = "echo ran >>ran; until test -e go; do sleep 0.05; done";
    let mut command =
        tree.lab.stead(["job", "submit", "--node", "c", "--wait", "--json", "--", "sh", "-c", script]);
    let waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let root = tree.root(&["a", "b", "c"]);
    wait_for("the job runs", || root.join("ran").exists());
    wait_for("somebody waits for its end", || tree.processes(&["errand", "job"]).len() == 2);
    let of_c = b"STEAD_NODE=c\0";
    for agent in tree.processes(&["agent", "run"]) {
        let variables = fs::read(format!("/proc/{}/environ", agent.as_raw_nonzero())).unwrap_or_default();
        if !variables.windows(of_c.len()).any(|window| window == of_c) {
            kill_process(agent, Signal::KILL).unwrap();
        }
    }
    wait_for("who waited is gone", || tree.processes(&["errand", "job"]).is_empty());
    wait_for("somebody waits again", || tree.processes(&["errand", "job"]).len() == 2);
    fs::write(root.join("go"), "").unwrap();
    let ended: Ended = waiting.wait_with_output().unwrap().into();
    assert_eq!(ended.exits(0).document()["state"], "succeeded");
    assert_eq!(fs::read_to_string(root.join("ran")).unwrap(), "ran\n");
    assert_unconnected(&tree, 3);
}

/// Section 12: a node below without an agent is for `exec`; a hosting node that does not answer is exit 7.
#[test]
fn nodes_below_that_cannot_be_asked_say_so() {
    let nodes = "  - {name: quay, type: vm, spec: base, execution: {mode: push}}\n  - {name: crane, type: vm, spec: base, parent: quay}\n  - {name: rope, type: vm, spec: base, parent: quay, execution: {mode: push}}\nexecution: {default_mode: pull}\nsettings: {timeout_buffer: 0}\n";
    let host = ("hosts/local.yaml", "driver: sandbox\ntimeouts: {ssh: 15}\n");
    let tree = Tree::with(nodes, &[("site.yaml", SERVED), host]);
    tree.run("create", &[]).exits(0);
    job(&tree, &["submit", "--node", "rope", "--", "true"]).exits(1).says("stead exec rope");
    let id = submit(&tree, "crane", &["--wait", "--json", "--", "true"]);
    assert!(id.contains("succeeded"), "{id}");
    kill_process(tree.pid(&["quay"]), Signal::KILL).unwrap();
    job(&tree, &["submit", "--node", "crane", "--", "true"]).exits(7).says("quay");
    let list = job(&tree, &["list", "--json"]).exits(7).document();
    assert_eq!(list["unreachable"], json!(["quay"]));
}

/// Returns the process of the server on `quay`.
fn server(tree: &Tree) -> Pid {
    let files = fs::read_dir(tree.root(&["quay"]).join(SERVER_BELOW)).unwrap().flatten();
    let file =
        files.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|kind| kind == "pid"));
    let text = fs::read_to_string(file.unwrap()).unwrap();
    Pid::from_raw(text.split_ascii_whitespace().next().unwrap().parse().unwrap()).unwrap()
}

fn kill_server(tree: &Tree) {
    let pid = server(tree);
    kill_process(pid, Signal::KILL).unwrap();
    let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap();
    wait_for("the server is gone", || !super::super::pulled::is_alive(pid));
}

fn start_server(tree: &Tree) {
    let state = tree.root(&["quay"]).join("var/lib/stead");
    let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_LAB", tree.lab.root());
    command.args(["server", "start", "--site"]).arg(state.join("delegated/site/m"));
    command.arg("--state-dir").arg(&state).stdin(Stdio::null());
    Ended::from(command.output().unwrap()).exits(0);
}

fn restart_server(tree: &Tree) {
    kill_server(tree);
    start_server(tree);
}
