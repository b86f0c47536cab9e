//! `stead destroy` without what it was made from, locks, interrupts and crashes.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;
use stead_testkit::pty::Pty;

use super::world::World;
use crate::cases_17_32::lab::{Ended, Running, wait_until};

/// Case 27 and section 11: nobody says yes, and nothing is touched.
#[test]
fn without_a_yes_nothing_goes() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    assert_eq!(world.create(&[]).code, 0);
    let (before, machines) = (world.state(), world.machine_ids());
    let asked = world.run(&["destroy", "-M", "m", "-H", "local"]);
    assert_eq!(asked.code, 6, "{}", asked.stderr);
    assert_eq!((world.state(), world.machine_ids()), (before, machines));
    let tested = world.run(&["test", "-M", "m", "-H", "local", "--json"]);
    assert_eq!(tested.code, 6, "a test over nodes that are there asks too: {}", tested.stdout);
}

/// Section 11: at a terminal somebody is asked, and only a yes goes on.
#[test]
fn at_a_terminal_only_a_yes_goes_on() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    let machines = world.machine_ids();
    for (answer, code) in [("n", 6), ("", 6), ("yes", 0)] {
        let command = world.command(&["destroy", "-M", "m", "-H", "local"]);
        let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
        let (program, args) = (text(command.get_program()), command.get_args().map(text).collect::<Vec<_>>());
        let around: Vec<(String, String)> =
            command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?)))).collect();
        let around: Vec<(&str, &str)> = around.iter().map(|(name, value)| (&**name, &**value)).collect();
        let mut terminal =
            Pty::start(&program, &args, command.get_current_dir().unwrap(), &around, (100, 30));
        terminal.wait_for("remove 1 nodes of m on local? [y/N]");
        assert_eq!(world.machine_ids(), machines, "nothing before the answer");
        terminal.type_text(&format!("{answer}\n"));
        let ended = terminal.wait();
        assert_eq!(ended.code(), Some(code), "{answer}: {}", terminal.screen());
        assert_eq!(world.machine_ids().is_empty(), code == 0, "{answer}");
    }
}

/// Section 10: what is there goes from state and labels alone.
#[test]
fn nodes_go_without_manifest_preset_spec_or_secrets() {
    for broken in ["manifests/m.yaml", "presets/vm-small.yaml", "specs/base.yaml", "secrets.yaml"] {
        for keeps_state in [true, false] {
            let world = World::new();
            world.nodes("- {name: a, type: vm, spec: base, preset: vm-small}\n");
            assert_eq!(world.create(&[]).code, 0);
            world.write(broken, "{{ nonsense\n");
            if !keeps_state {
                std::fs::remove_file(world.state_path()).unwrap();
            }
            assert_eq!(world.create(&[]).code, 3, "{broken}");
            let gone = world.destroy(&[]);
            assert_eq!(gone.code, 0, "{broken}: {}", gone.stdout);
            assert_eq!(gone.document()["nodes"][0]["status"], "destroyed", "{broken}: {}", gone.stdout);
            assert_eq!(world.left(), Vec::<String>::new(), "{broken}");
            assert_eq!(world.destroy(&[]).code, 0, "{broken}: there is nothing to do");
        }
    }
}

/// Case 5: a name that nobody knows is told with those that are known, whatever else is there.
#[test]
fn a_mistyped_manifest_is_not_taken_for_one_whose_nodes_are_gone() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    let machines = world.machine_ids();
    for more in [&["--yes"][..], &["--yes", "--only", "a"]] {
        let words = [&["destroy", "-M", "n", "-H", "local", "--json"], more].concat();
        let document = world.run(&words).exits(3).document();
        assert!(
            document.to_string().contains("manifests/m.yaml") || document.to_string().contains("`m`"),
            "{document}"
        );
    }
    assert_eq!(world.machine_ids(), machines);
    // Labels are enough: nothing else knows these nodes.
    std::fs::remove_file(world.state_path()).unwrap();
    std::fs::remove_file(world.path("site-config/manifests/m.yaml")).unwrap();
    assert_eq!((world.destroy(&[]).exits(0).code, world.left()), (0, Vec::new()));
    world.destroy(&[]).exits(3);
}

/// Section 10: machines are looked for where their host's file says, also where state is lost and files are broken.
#[test]
fn machines_are_found_where_their_host_keeps_them() {
    for host in [
        "driver: sandbox\nroot_dir: ../elsewhere\n",
        "driver: sandbox\nroot_dir: ../elsewhere\nparallel: many\n",
    ] {
        let world = World::new();
        world.host("yard", "driver: sandbox\nroot_dir: ../elsewhere\n");
        world.nodes("- {name: a, type: vm, spec: base}\n");
        world.run(&["create", "-M", "m", "-H", "yard", "--json"]).exits(0);
        let machines = || std::fs::read_dir(world.path("elsewhere")).into_iter().flatten().count();
        assert_eq!(machines(), 1);
        std::fs::remove_dir_all(world.state_dir().join("nodes")).unwrap();
        std::fs::remove_file(world.path("site-config/manifests/m.yaml")).unwrap();
        world.write("hosts/yard.yaml", host);
        let gone = world.run(&["destroy", "-M", "m", "-H", "yard", "--json", "--yes"]).exits(0).document();
        assert_eq!(gone["nodes"][0]["status"], "destroyed", "{gone}");
        assert_eq!(machines(), 0);
        assert!(world.path("elsewhere").is_dir(), "a directory that was named stays");
    }
}

/// Section 2: a run of nodes is found as its site is, without being told where either is.
#[test]
fn a_run_of_a_site_is_resumed_from_beside_it() {
    let world = World::new();
    world.write(
        "hosts/local.yaml",
        "driver: sandbox\nfaults: [{node: a, phase: config, times: 1, error: no luck}]\n",
    );
    world.nodes("- {name: a, type: vm, spec: base}\n");
    let stead = |args: &[&str]| -> Ended {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_stead"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_LAB", world.path(""));
        command.current_dir(world.path("")).args(args).stdin(Stdio::null()).output().unwrap().into()
    };
    let failed = stead(&["create", "-M", "m", "-H", "local", "--json", "--run-id", "r1"]);
    let resumed = stead(&["resume", "r1", "--json"]);
    let listed = stead(&["bundle", "info", "r1"]);
    let gone = stead(&["destroy", "-M", "m", "-H", "local", "--json", "--yes"]);
    failed.exits(1).says("no luck");
    assert_eq!(resumed.exits(0).document()["nodes"][0]["status"], "completed");
    listed.exits(0);
    gone.exits(0);
    assert!(world.path("site-config/.stead/runs/r1").is_dir());
}

/// Case 27: of two creates of one pair one is told that the other works.
#[test]
fn one_run_at_a_time_works_on_a_pair() {
    let world = World::new();
    world.host("local", "driver: sandbox\nboot_delay_ms: 1500\n");
    world.nodes("- {name: a, type: vm}\n");
    let mut first = world.command(&["create", "-M", "m", "-H", "local"]);
    let first = Running::of(first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("a machine", || !world.machine_ids().is_empty());
    let second = world.create(&[]);
    assert_eq!(second.code, 5, "{}", second.stdout);
    let message = second.document()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("pid {}", first.pid())) && message.contains("run "), "{message}");
    assert!(world.state_dir().join("locks/nodes-local-m.lock").exists());
    assert_eq!(first.end().code, 0);
}

/// Case 38: an interrupt in create of 20 nodes, then resume; no machine twice.
#[test]
fn an_interrupted_create_goes_on() {
    let world = World::new();
    world.host("local", "driver: sandbox\nboot_delay_ms: 300\n");
    world.manifest("settings: {parallel: 4}\nnodes:\n- {name: n, type: vm, count: 20}\n");
    let mut command = world.command(&["create", "-M", "m", "-H", "local", "--run-id", "r1"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let run = Running::of(command.spawn().unwrap());
    wait_until("some machines", || world.machine_ids().len() >= 5);
    run.signal(Signal::INT);
    assert_eq!(run.end().code, 130);
    assert!(world.machine_ids().len() < 20);
    let resumed = world.run(&["resume", "r1", "--json"]);
    assert_eq!(resumed.code, 0, "{} {}", resumed.stdout, resumed.stderr);
    let nodes = resumed.document()["nodes"].as_array().unwrap().clone();
    assert!(nodes.len() == 20 && nodes.iter().all(|node| node["status"] == "completed"), "{nodes:?}");
    assert_eq!(world.machine_ids().len(), 20);
}

/// Section 10: a driver that is killed leaves nothing that the same command, or resume, does not finish.
#[test]
fn a_killed_driver_is_followed_by_another() {
    let world = World::new();
    world.nodes("- {name: n, type: vm, spec: base, count: 4}\n");
    for (round, wait) in [0, 1, 2, 4].into_iter().enumerate() {
        let id = format!("r{round}");
        let mut command = world.command(&["create", "-M", "m", "-H", "local", "--run-id", &id]);
        let run = Running::of(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_until("some machines", || world.machine_ids().len() >= wait);
        run.kill_hard();
        let again = match round % 2 {
            0 => world.create(&[]),
            _ => world.run(&["resume", &id, "--json"]),
        };
        assert_eq!(again.code, 0, "{round}: {} {}", again.stdout, again.stderr);
        assert_eq!(again.document()["success"], json!(true));
        assert_eq!(world.machine_ids().len(), 4, "no duplicates");
        assert_eq!(world.destroy(&[]).code, 0);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// What is done is written down first, also when nodes go: who has no room for that is told how to get it.
#[test]
fn who_cannot_write_down_what_is_done_is_told_how_to() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    let runs = world.state_dir().join("runs");
    std::fs::remove_dir_all(&runs).unwrap();
    std::fs::write(&runs, "no room").unwrap();
    let refused = world.destroy(&[]).exits(1).document();
    let help = refused["error"]["help"].as_str().unwrap();
    assert!(help.contains("make room") && help.contains(runs.to_str().unwrap()), "{refused}");
    world.run(&["destroy", "-M", "m", "-H", "local", "--yes"]).exits(1).says("= help: what a run does is");
    assert_eq!(world.machine_ids().len(), 1, "nothing was touched");
    std::fs::remove_file(&runs).unwrap();
    assert_eq!((world.destroy(&[]).exits(0).code, world.left()), (0, Vec::new()));
}

/// Section 10: a node that the manifest does not have any more can go alone.
#[test]
fn an_orphan_goes_alone() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm}\n- {name: c, type: vm}\n");
    world.create(&[]).exits(0);
    world.nodes("- {name: a, type: vm}\n");
    let planned = world.destroy(&["--only", "b", "--dry-run"]).exits(0);
    assert_eq!(world.statuses(&planned), [("b", "pending"), ("a", "skipped")]);
    let tasks = |ended: &Ended| {
        let plan = ended.document()["plan"].clone();
        let rows = plan.as_array().unwrap().iter();
        rows.map(|row| row["task"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(tasks(&planned), ["b.destroy"], "section 11: everything that goes is in the plan");
    let all = world.destroy(&["--dry-run"]).exits(0);
    assert_eq!(world.statuses(&all), [("c", "pending"), ("b", "pending"), ("a", "pending")]);
    assert_eq!(tasks(&all), ["c.destroy", "b.destroy", "a.destroy"]);
    let text = world.run(&["destroy", "-M", "m", "-H", "local", "--dry-run"]).exits(0).stdout;
    assert!(text.contains("  b.destroy remove push at local\n"), "{text}");
    let asked = world.run(&["destroy", "-M", "m", "-H", "local"]).exits(6).stderr;
    assert!(asked.contains("remove 3 nodes of m on local?"), "{asked}");
    let gone = world.destroy(&["--only", "b"]).exits(0);
    assert_eq!(world.statuses(&gone), [("b", "destroyed"), ("a", "skipped")]);
    assert_eq!(world.machine_ids().len(), 2);
    assert!(!world.state().contains("\"b\"") && world.state().contains("\"c\""), "{}", world.state());
    world.destroy(&["--only", "nobody"]).exits(3);
    world.destroy(&["--only", "c,nobody"]).exits(3);
    assert_eq!(world.machine_ids().len(), 2);
    let gone = world.destroy(&["--only", "a,c*"]).exits(0);
    assert_eq!(world.statuses(&gone), [("c", "destroyed"), ("a", "destroyed")]);
    assert_eq!(world.left(), Vec::<String>::new());
}
