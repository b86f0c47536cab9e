//! The keys of every document that the contract lists: programs read these by name.

use std::collections::BTreeSet;

use serde_json::Value;

use super::pulled::Pulled;
use super::world::World;

/// Asserts that an object has these keys and no other; `more` are those that the contract leaves to us.
#[track_caller]
fn has_keys(object: &Value, wanted: &str, more: &str) {
    let found: BTreeSet<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted: BTreeSet<&str> = [wanted, more].iter().flat_map(|words| words.split_whitespace()).collect();
    assert_eq!(found, wanted, "{object}");
}

const RUN: &str = "verb success dry_run manifest host run bundle duration_seconds nodes";
const OURS: &str = "schema exit_code diagnostics pattern pattern_inferred";
const NODE: &str = "name status changed mode parent depth";
const STATE: &str =
    "status driver machine_id ip ssh_port host_key parent mode spec spec_digest state_digest created_at";

/// Sections 10 and 11: create, status, test and destroy, and what is remembered in between.
#[test]
fn documents_of_runs_have_the_promised_keys() {
    let world = World::new();
    world.nodes("- {name: edge, type: vm, spec: base, vmid: 120}\n");
    let planned = world.create(&["--dry-run"]).exits(0).document();
    has_keys(&planned, RUN, &format!("{OURS} plan"));
    has_keys(&planned["plan"][0], "task node phase mode action at depends_on", "");
    assert_eq!(planned["dry_run"], true);
    let made = world.create(&[]).exits(0).document();
    has_keys(&made, RUN, OURS);
    has_keys(&made["nodes"][0], NODE, "vm_id ip spec_digest state_digest duration");
    assert_eq!(
        (&made["verb"], &made["host"], &made["dry_run"]),
        (&"create".into(), &"local".into(), &false.into())
    );
    assert_eq!((&made["pattern"], &made["pattern_inferred"]), (&"flat".into(), &true.into()));
    assert!(made["duration_seconds"].is_f64() && made["nodes"][0]["duration"].is_f64(), "{made}");

    let state: Value = serde_json::from_str(&world.state()).unwrap();
    has_keys(&state, "schema manifest manifest_digest host run nodes", "");
    has_keys(&state["nodes"]["edge"], STATE, "vm_id type made_by");
    let seen = world.run(&["status", "-M", "m", "-H", "local", "--json"]).exits(0).document();
    has_keys(&seen, "success nodes", "schema verb");
    has_keys(
        &seen["nodes"][0],
        &format!("{STATE} machine agent converged"),
        "vm_id type made_by name manifest on",
    );

    world.host("local", "driver: sandbox\nfaults: [{node: far, phase: create, error: no}]\n");
    world.nodes("- {name: far, type: vm}\n");
    let failed = world.create(&["--on-error", "continue"]).exits(1).document();
    has_keys(&failed, RUN, &format!("{OURS} error"));
    has_keys(&failed["error"], "code message", "help");
    let row = failed["nodes"].as_array().unwrap().iter().find(|row| row["name"] == "far").unwrap();
    has_keys(row, NODE, "duration error");
    let gone = world.destroy(&[]).exits(0).document();
    has_keys(&gone, RUN, OURS);

    world.nodes("- {name: edge, type: vm, spec: base}\n");
    let tested = world.run(&["test", "-M", "m", "-H", "local", "--json"]).exits(0).document();
    has_keys(&tested, RUN, &format!("{OURS} report"));
}

/// Section 11: problems have one shape, whichever verb tells them.
#[test]
fn problems_of_a_run_have_the_keys_of_validate() {
    const PROBLEM: &str = "code severity file line column path message candidates";
    let world = World::new();
    world.write("specs/odd.yaml", "schema_version: 1\nconfig: {colour: red}\naccess: {posture: local}\n");
    world.nodes("- {name: edge, type: vm, spec: odd}\n");
    for more in [&["--dry-run"][..], &[]] {
        let told = world.create(more).exits(0).document();
        let problem = &told["diagnostics"][0];
        has_keys(problem, PROBLEM, "help");
        assert_eq!((&problem["line"], &problem["severity"]), (&2.into(), &"warning".into()), "{problem}");
        assert!(problem["file"].as_str().unwrap().ends_with("specs/odd.yaml"), "{problem}");
    }
    let none = world.create(&["--only", "egde"]).exits(3).document();
    assert_eq!(none["error"]["code"], "node/not-found", "{none}");
    assert_eq!(none["diagnostics"][0]["candidates"], serde_json::json!(["edge"]), "{none}");
}

/// Section 3: people hear of a pattern that nobody wrote, as documents say it; of one that somebody wrote, and of nodes
/// that only go, nothing is said.
#[test]
fn an_inferred_pattern_is_said_to_people() {
    let world = World::new();
    world.nodes("- {name: edge, type: vm}\n");
    let of = |verb: &str, more: &[&str]| {
        let ended = world.run(&[&[verb, "-M", "m", "-H", "local", "--yes"], more].concat()).exits(0);
        let lines = ended.stdout.lines().filter(|line| line.starts_with("pattern"));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("create", &["--dry-run"]), ["pattern: flat (inferred)"]);
    assert_eq!(of("create", &[]), ["pattern: flat (inferred)"]);
    assert!(of("destroy", &[]).is_empty());
    assert_eq!(of("test", &[]), ["pattern: flat (inferred)"]);
    world.manifest("pattern: flat\nnodes:\n- {name: edge, type: vm}\n");
    assert!(of("create", &["--dry-run"]).is_empty());
}

/// Section 11: a status that is not good says why, and names the file that cannot be read.
#[test]
fn a_status_that_is_not_good_says_why() {
    let world = World::new();
    world.nodes("- {name: edge, type: vm}\n");
    let none = world.run(&["status", "-M", "m", "-H", "local", "--json"]).exits(1).document();
    has_keys(&none, "success nodes error diagnostics", "schema verb");
    assert_eq!(none["error"]["message"], "1 of 1 nodes are not converged", "{none}");
    assert!(none["diagnostics"][0]["message"].as_str().unwrap().starts_with("edge: nobody has made it"));
    world.create(&[]).exits(0);
    let kept = world.state();
    std::fs::write(world.state_path(), "{").unwrap();
    for pair in [&["-M", "m", "-H", "local"][..], &[]] {
        let words = [&["status", "--json"], pair].concat();
        let told = world.run(&words).document();
        assert_eq!(told["success"], false, "{told}");
        assert!(told["error"]["code"].is_string(), "{told}");
        assert!(told["error"]["message"].as_str().unwrap().contains("m/state.json"), "{told}");
        assert!(told["diagnostics"].to_string().contains("m/state.json"), "{told}");
    }
    std::fs::write(world.state_path(), kept).unwrap();
}

/// Sections 2, 5 and 6: what lies on a node that is to fetch: it is told the site's server if others reach that, and the
/// driver's key is for nobody else to read.
#[test]
fn a_node_is_told_what_was_promised() {
    let world = World::new();
    let told = "https://192.0.2.9:44443";
    world.write(
        "site.yaml",
        &format!("server: {{port: 0, bind: 127.0.0.1}}\ndefaults: {{server_url: '{told}'}}\n"),
    );
    // Nobody is there: the node is made and waited for in vain.
    world.host("local", "driver: sandbox\ntimeouts: {config: 1}\n");
    world.manifest("settings: {timeout_buffer: 0}\nnodes:\n- {name: edge, type: vm, spec: base}\n");
    world.create(&["--mode", "pull"]).exits(8);
    let root = world.state_dir().join("machines").join(&world.machine_ids()[0]).join("root");
    let path = root.join("etc/stead/bootstrap.json");
    let bootstrap: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let keys = "schema node mode server fingerprints spki_pin token binary_sha256 authorized_keys";
    has_keys(&bootstrap, keys, "");
    assert_eq!(
        (&bootstrap["server"], &bootstrap["node"], &bootstrap["mode"]),
        (&told.into(), &"edge".into(), &"pull".into())
    );
    let key = world.state_dir().join("ssh/id_ed25519");
    for private in [path, key.clone()] {
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&private).unwrap());
        assert_eq!(mode & 0o777, 0o600, "{}", private.display());
    }
    let public = bootstrap["authorized_keys"][0].as_str().unwrap();
    let planted = std::fs::read_to_string(root.join("etc/stead/keys/stead")).unwrap();
    assert!(public.starts_with("ssh-ed25519 ") && planted.contains(public.trim()), "{planted}");
}

/// Sections 10 and 12: what comes with an agent, and a job that it ran.
#[test]
fn documents_of_agents_and_jobs_have_the_promised_keys() {
    let one = super::manifest("  - {name: edge, type: vm, spec: base}\n");
    let pulled = Pulled::new(&[("manifests/m.yaml", &one)]);
    let pair = ["-M", "m", "-H", "local", "--json"];
    pulled.lab.run(["create", "--mode", "pull", "--yes"].into_iter().chain(pair)).exits(0);
    let state: Value = serde_json::from_str(&pulled.lab.read("state/nodes/local/m/state.json")).unwrap();
    has_keys(&state, "schema manifest manifest_digest host run server nodes", "");
    has_keys(&state["nodes"]["edge"], &format!("{STATE} jti"), "type told made_by");
    let job = ["job", "submit", "--node", "edge", "--wait", "--json", "--", "true"];
    let job = pulled.lab.run(job).exits(0).document();
    has_keys(
        &job,
        "id node argv state by created_at started_at finished_at rc stdout stderr truncated",
        "schema",
    );
    assert_eq!((&job["node"], &job["argv"][0]), (&"edge".into(), &"true".into()));
    pulled.lab.run(["destroy", "--yes"].into_iter().chain(pair)).exits(0);
}
