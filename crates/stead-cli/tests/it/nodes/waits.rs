//! Every wait of a node's life ends, says which one it was, and gives the run its exit code.

use super::pulled::wait_for;
use super::world::World;
use crate::cases_17_32::lab::Ended;

/// Longer than any test lives.
const FOR_EVER: &str = "delay_ms: 600000";

/// A world whose only node waits in vain: `fault` strikes it, and it may take so long.
fn world(fault: &str, timeouts: &str) -> World {
    let world = World::new();
    world.write("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n");
    world.host(
        "local",
        &format!("driver: sandbox\ntimeouts: {{{timeouts}}}\nfaults: [{{node: edge, {fault}}}]\n"),
    );
    world.manifest("settings: {timeout_buffer: 0}\nnodes:\n- {name: edge, type: vm, spec: base}\n");
    world
}

#[track_caller]
fn ends(ended: &Ended, code: i32, said: &str) {
    assert_eq!(ended.code, code, "{} {}", ended.stdout, ended.stderr);
    let document = ended.document();
    let node = &document["nodes"][0];
    assert_eq!(node["status"], "failed", "{document}");
    let error = node["error"].as_str().unwrap();
    assert!(error.contains(said), "{said}: {error}");
    let code = if code == 8 { "node/timeout" } else { "node/unreachable" };
    assert_eq!(document["error"]["code"], code);
}

/// Sections 2 and 10: a run all of whose failures are waits that ended exits with 8.
#[test]
fn a_machine_that_does_not_come_is_not_waited_for_for_ever() {
    for (phase, timeouts, said) in [
        ("create", "create: 1", "edge was not made within 1s"),
        ("address", "address: 1", "edge was not reachable within 1s"),
        // One that is slow to be made is late as well.
        ("boot", "create: 5", "within 5s"),
    ] {
        let world = world(&format!("phase: {phase}, {FOR_EVER}"), timeouts);
        ends(&world.create(&[]), 8, said);
    }
}

/// Section 3: `timeout_buffer` is added to every wait.
#[test]
fn every_wait_is_longer_by_what_the_manifest_adds() {
    for (phase, timeouts, said) in [
        ("create", "create: 1", "edge was not made within 3s"),
        ("address", "address: 1", "edge was not reachable within 3s"),
        ("config", "config: 1", "edge was not configured within 3s"),
    ] {
        let world = world(&format!("phase: {phase}, {FOR_EVER}"), timeouts);
        world.manifest("settings: {timeout_buffer: 2}\nnodes:\n- {name: edge, type: vm, spec: base}\n");
        ends(&world.create(&[]), 8, said);
    }
}

/// Section 5: the config timeout ends the wait for what is pushed and for what is reported.
#[test]
fn a_node_that_does_not_become_its_spec_is_not_waited_for_for_ever() {
    for (mode, said) in [
        ("push", "edge was not configured within 1s"),
        ("pull", "edge did not report within 1s that it is configured"),
        ("hybrid", "edge did not report within 1s that it is configured"),
    ] {
        let world = world(&format!("phase: config, {FOR_EVER}"), "config: 1");
        ends(&world.create(&["--mode", mode]), 8, said);
    }
}

/// Section 10: one that cannot be removed in time is said to be there still, and goes the next time.
#[test]
fn a_machine_that_does_not_go_is_not_waited_for_for_ever() {
    let world = world(&format!("phase: destroy, times: 1, {FOR_EVER}"), "destroy: 1");
    world.create(&[]).exits(0);
    ends(&world.destroy(&[]), 8, "edge was not removed within 1s");
    assert_eq!(world.machine_ids().len(), 1);
    // As long as it takes: this one is not about time.
    world.host("local", "driver: sandbox\n");
    assert_eq!((world.destroy(&[]).exits(0).code, world.left()), (0, Vec::new()));
}

/// Section 7: what strikes a sandbox is what its host says now, also while it goes.
#[test]
fn a_fault_of_going_is_the_one_that_the_host_has_now() {
    let world = World::new();
    world.nodes("- {name: edge, type: vm}\n");
    world.create(&[]).exits(0);
    world.host("local", "driver: sandbox\nfaults: [{node: edge, phase: destroy, error: it clings}]\n");
    let stays = world.destroy(&[]).exits(1).document();
    assert!(stays["nodes"][0]["error"].as_str().unwrap().contains("it clings"), "{stays}");
    world.host("local", "driver: sandbox\n");
    assert_eq!((world.destroy(&[]).exits(0).code, world.left()), (0, Vec::new()));
}

/// Section 10: a run all of whose failures are machines that were not reached exits with 7.
#[test]
fn a_machine_that_is_not_reached_is_told_apart() {
    let world = world("phase: ssh, error: no way in", "ssh: 1");
    ends(&world.create(&[]), 7, "edge was not reached over SSH within 1s");
}

/// Section 2: nobody answers any more at a machine that has ended, so it is not waited for.
#[test]
fn a_machine_that_ends_is_not_waited_for() {
    let world = world("phase: ssh, crash: true", "ssh: 3600");
    ends(&world.create(&[]), 7, "edge was not reached over SSH: its machine does not run");
}

/// Section 7: nor is its report.
#[test]
fn the_report_of_a_machine_that_ends_is_not_waited_for() {
    let world = world(&format!("phase: report, {FOR_EVER}"), "config: 3600");
    let is_configuring = || {
        let runs = std::fs::read_dir(world.state_dir().join("runs")).into_iter().flatten().flatten();
        let journals = runs.map(|run| std::fs::read_to_string(run.path().join("events.jsonl")));
        let journals: Vec<String> = journals.filter_map(Result::ok).collect();
        let mut lines = journals.iter().flat_map(|journal| journal.lines());
        lines.any(|line| line.contains("\"attempt_started\"") && line.contains("\"edge.config\""))
    };
    let ended = std::thread::scope(|scope| {
        let created = scope.spawn(|| world.create(&["--mode", "pull"]));
        wait_for("the report is waited for", is_configuring);
        world.kill_machines();
        created.join().unwrap()
    });
    ends(&ended, 7, "edge did not report that it is configured: its machine does not run");
}

/// Section 7: what a fault says is in the error of the node that waited in vain for it, as the last lines of the machine.
#[test]
fn a_wait_that_ended_shows_what_the_machine_said_last() {
    for (phase, timeouts, mode, code, said) in [
        ("address", "address: 1", "push", 8, "edge was not reachable within 1s"),
        ("ssh", "ssh: 1", "push", 7, "edge was not reached over SSH within 1s"),
        ("report", "config: 3", "pull", 8, "edge did not report within 3s that it is configured"),
    ] {
        let world = world(&format!("phase: {phase}, error: the dog ate the {phase}"), timeouts);
        let ended = world.create(&["--mode", mode]);
        ends(&ended, code, said);
        ends(&ended, code, "its last lines:");
        ends(&ended, code, &format!("the dog ate the {phase}"));
    }
}
