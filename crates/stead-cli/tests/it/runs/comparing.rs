//! `analyze` and `diff` as phases of a run.

use serde_json::{Value, json};
use stead_testkit::captures;

use super::place::Place;

fn with(name: &str, post_run: &str) -> Place {
    let place = Place::of(&format!(
        "api_version: v1\nrun_id: r\npost_run: {post_run}\nroles:\n  client: {{files: [{name}], command: [cp, {name}, client.pcap], artifacts: [client.pcap]}}\nartifacts: {{include: []}}\n"
    ));
    place.lab.write("a.bin", captures::golden_a());
    place.lab.write("b.bin", captures::golden_b());
    place
}

/// Case 26: captures are analysed, the summary is under the seal, and nothing is to be warned of.
#[test]
fn a_capture_is_analysed_and_sealed() {
    let place = with("a.bin", "{}");
    let document = place.json(&[], 0);
    assert_eq!(document["warnings"], json!([]));
    let summary: Value = serde_json::from_str(&place.read("analysis/summary.json")).unwrap();
    assert_eq!(summary["roles"]["client"]["captures"][0]["packets"], 211);
    assert!(place.read("hashes.txt").contains("  analysis/summary.json\n"));
    let checked = place.stead(["bundle", "verify", "runs/r", "--json"]).output().unwrap();
    let found: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(found["warnings"], json!([]));
    place.is_clean();
}

/// Case 31: a condition of the manifest is a gate; the run's results stay.
#[test]
fn a_condition_that_is_true_fails_the_run_with_four() {
    let place = with("a.bin", "{}");
    place.json(&[], 0);
    std::fs::rename(place.lab.path("runs/r"), place.lab.path("base")).unwrap();
    let manifest = place.lab.read("m.yaml");
    place.lab.write(
        "m.yaml",
        manifest.replace("post_run: {}", "post_run: {diff_baseline: base, fail_on: [services_added]}"),
    );
    place.json(&[], 0);
    assert!(
        place.bundle().join("analysis/diff.json").exists()
            && place.bundle().join("analysis/diff.txt").exists()
    );
    place.lab.write("m.yaml", place.lab.read("m.yaml").replace("a.bin", "b.bin"));
    let document = place.json(&["--force"], 4);
    assert_eq!((&document["status"], &document["failed_phase"]), (&json!("failed"), &json!("diff")));
    assert_eq!(document["roles"]["client"]["status"], "success");
    place.is_clean();
    place.json(&["--force", "--no-diff"], 0);
}

/// Case 32: a baseline that is not there, or is none, is invalid before anything starts.
#[test]
fn a_baseline_that_cannot_be_read_is_told_before_anything_starts() {
    let place = with("a.bin", "{diff_baseline: nowhere}");
    place.run(&[]).exits(3).says("nowhere");
    let manifest = place.lab.read("m.yaml");
    place.lab.write("damaged.zip", b"PK\x03\x04 and nothing more");
    std::fs::create_dir(place.lab.path("empty")).unwrap();
    for baseline in ["a.bin", "m.yaml", "damaged.zip", "empty", "/dev/null"] {
        place.lab.write("m.yaml", manifest.replace("nowhere", baseline));
        place.run(&[]).exits(3).says("cannot compare with this").says("m.yaml:3");
    }
    assert!(!place.lab.path("runs").exists());
    place.run(&["--no-diff"]).exits(0);
    assert_eq!(place.phases().last().unwrap(), "diff:skipped");
}

/// Section 8: a run of roles none of which is the obvious one compares all of them.
#[test]
fn a_run_of_several_roles_compares_all_of_them() {
    let place = Place::of(
        "api_version: v1\nrun_id: r\npost_run: {}\nroles:\n  store: {command: [echo, x]}\n  load: {command: [echo, y], repeat: 2}\n",
    );
    place.json(&[], 0);
    std::fs::rename(place.lab.path("runs/r"), place.lab.path("base")).unwrap();
    let manifest = place.lab.read("m.yaml").replace("post_run: {}", "post_run: {diff_baseline: base}");
    place.lab.write("m.yaml", manifest);
    place.json(&[], 0);
    let diff: Value = serde_json::from_str(&place.read("analysis/diff.json")).unwrap();
    let roles: Vec<&String> = diff["roles"].as_object().unwrap().keys().collect();
    assert_eq!(roles, ["load-1", "load-2", "store"]);
}

/// Section 4.1: what is no capture fails the phase; the results of roles stay.
#[test]
fn a_capture_that_is_none_fails_the_analysis() {
    let place = Place::new("  client: {command: [sh, -c, 'echo no capture > client.pcap']}\n");
    let document = place.json(&[], 1);
    assert_eq!(
        (&document["failed_phase"], &document["roles"]["client"]["status"]),
        (&json!("analyze"), &json!("success"))
    );
    place.is_clean();
    place.json(&["--force", "--no-analyze"], 0);
}

/// Section 8: a run that compares itself has a status and a duration already.
#[test]
fn a_run_is_compared_as_it_will_be_recorded() {
    let place = with("a.bin", "{}");
    place.json(&[], 0);
    std::fs::rename(place.lab.path("runs/r"), place.lab.path("base")).unwrap();
    let manifest = place.lab.read("m.yaml");
    let gate = "post_run: {diff_baseline: base, fail_on: ['duration_delta_pct<-99.9']}";
    place.lab.write("m.yaml", manifest.replace("post_run: {}", gate));
    place.json(&[], 0);
    let diff: Value = serde_json::from_str(&place.read("analysis/diff.json")).unwrap();
    let meta = &diff["compare_run_meta"];
    assert_eq!((&meta["status"], &meta["exit_code"]), (&json!("success"), &json!(0)));
    assert!(meta["duration_seconds"].as_f64().unwrap() > 0.0, "{meta}");
    place.is_clean();
}
