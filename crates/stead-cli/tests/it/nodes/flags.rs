//! One set of flags for all verbs of nodes, also for those that only look.

use super::world::World;

/// Everything that section 11 lists, but for the manifest's other sources.
const ALL: [&str; 19] = [
    "-M",
    "m",
    "-H",
    "local",
    "--mode",
    "push",
    "--only",
    "a",
    "--depth",
    "1",
    "--dry-run",
    "--json",
    "--yes",
    "--on-error",
    "continue",
    "--self-addr",
    "192.0.2.7",
    "--skip-preflight",
    "--events",
];

/// Section 11: the five verbs take the same flags.
#[test]
fn one_set_of_flags_does_for_all_verbs() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm}\n");
    let log = world.path("events.jsonl");
    let log = log.to_str().unwrap();
    // Nobody has made it yet, which is what a status says.
    for (verb, code) in [("create", 0), ("destroy", 0), ("test", 0), ("validate", 0), ("status", 1)] {
        let ended = world.run(&[&[verb], &ALL[..], &[log]].concat()).exits(code);
        let nodes = ended.document()["nodes"].clone();
        let names: Vec<&str> =
            nodes.as_array().unwrap().iter().filter_map(|node| node["name"].as_str()).collect();
        assert!(names.contains(&"a") || verb == "destroy", "{verb}: {nodes}");
    }
    assert!(world.left().is_empty());
}

/// Section 11: what is wrong with such a flag is told as `create` tells it; the log of a verb that is no run is empty.
#[test]
fn flags_of_verbs_that_act_are_checked_by_those_that_look() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    let log = world.path("events.jsonl");
    for verb in ["validate", "status"] {
        let run = |more: &[&str]| world.run(&[&[verb, "-M", "m", "-H", "local"], more].concat());
        for bad in ["", "0.0.0.0", "::"] {
            let told = run(&["--json", "--self-addr", bad]).exits(2).document();
            assert!(told["error"]["message"].as_str().unwrap().contains("--self-addr"), "{told}");
        }
        run(&["--on-error", "explode"]).exits(2);
        run(&["--json", "--events", "-"]).exits(2).says("both write to standard output");
        std::fs::write(&log, "old\n").unwrap();
        let seen = run(&["--events", log.to_str().unwrap()]).exits(0);
        assert!(!seen.stdout.is_empty());
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "");
        let seen = run(&["--events", "-"]).exits(0);
        assert_eq!(seen.stdout, "", "there are no events");
        assert!(!seen.stderr.is_empty(), "what people read goes elsewhere");
    }
}

/// Section 11: a status that contacts nobody knows what is remembered, and of machines only that nobody made them.
#[test]
fn a_dry_status_contacts_nobody() {
    let world = World::new();
    world.nodes("- {name: a, type: vm}\n");
    world.create(&[]).exits(0);
    world.nodes("- {name: a, type: vm}\n- {name: b, type: vm}\n");
    let machines = |more: &[&str]| -> Vec<String> {
        let told =
            world.run(&[&["status", "-M", "m", "-H", "local", "--json"], more].concat()).exits(1).document();
        let rows = told["nodes"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {} {}", row["name"], row["status"], row["machine"]).replace('"', ""))
            .collect()
    };
    assert_eq!(machines(&[]), ["a completed running", "b pending absent"]);
    assert_eq!(machines(&["--dry-run"]), ["a completed unknown", "b pending absent"]);
}
