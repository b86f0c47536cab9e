//! What roles leave: collected with its hashes, or said why not.

use serde_json::json;
use stead_testkit::captures;

use super::place::Place;

/// Case 18: a capture is in the bundle, in the role's metadata and in the hashes.
#[test]
fn a_capture_is_collected_with_its_hash() {
    let place = Place::new(
        "  client: {files: [a.pcap], command: [sh, -c, 'cp a.pcap client.pcap; mkdir out; echo 1 > out/x.json; ln -s x out/y.json'], artifacts: ['out/*.json']}\n",
    );
    place.lab.write("a.pcap", captures::golden_a());
    let document = place.json(&[], 0);
    let role = place.role("client");
    assert!(role["pcap_files"].as_array().unwrap().contains(&json!("client.pcap")), "{role}");
    assert!(role["artifacts"].as_array().unwrap().iter().any(|file| file["path"] == "out/x.json"), "{role}");
    assert!(place.read("hashes.txt").contains("roles/client/client.pcap\n"));
    assert_eq!(std::fs::read(place.bundle().join("roles/client/client.pcap")).unwrap(), captures::golden_a());
    // Links are not collected, and that is said.
    assert_eq!(document["warnings"][0]["code"], "run/artifact-skipped");
    assert!(place.told(&["artifact"]).contains(&"artifact:client".to_owned()));
    place.is_clean();
}

#[test]
fn a_required_artifact_that_is_missing_fails_the_run() {
    let place = Place::new("  one: {command: ['true'], artifacts: [{path: out.json, required: true}]}\n");
    place.run(&[]).exits(1).says("one left no required artifact `out.json`");
    assert_eq!(place.meta()["failed_phase"], "collect");
    place.is_clean();
}

/// Section 2.2: in a workdir that was there before, older files are not the run's.
#[test]
fn stale_reserved_and_large_files_are_left_out_with_a_warning() {
    let place = Place::new("");
    let work = place.lab.path("work");
    place.lab.write("work/old.json", "{}");
    place.lab.write(
        "m.yaml",
        format!(
            "api_version: v1\nrun_id: r\nartifacts: {{max_bytes: 100}}\nroles:\n  one: {{workdir: {}, command: [sh, -c, 'sleep 0.1; echo 1 > new.json; echo x > stdout.log; head -c 200 /dev/zero > big.json'], artifacts: ['*.json', '*.log']}}\n",
            work.display()
        ),
    );
    place.json(&[], 0);
    let paths: Vec<_> =
        place.role("one")["artifacts"].as_array().unwrap().iter().map(|file| file["path"].clone()).collect();
    assert_eq!(paths, ["new.json"]);
    let mut warnings = place.warnings();
    warnings.sort();
    assert_eq!(warnings, ["run/artifact-skipped", "run/artifact-too-big", "run/stale-artifact"]);
    assert!(place.lab.path("work/old.json").exists(), "an explicit workdir stays");
    place.is_clean();
}

#[test]
fn a_workdir_stays_if_it_is_to_be_kept() {
    let place = Place::of(
        "api_version: v1\nrun_id: r\nkeep_workdir: on_failure\nroles:\n  one: {command: [sh, -c, 'touch here; exit 1']}\n",
    );
    place.run(&[]).exits(1);
    let workdir = place.role("one")["workdir"].as_str().unwrap().to_owned();
    assert!(std::path::Path::new(&workdir).join("here").exists());
    place.verifies();
    std::fs::remove_dir_all(place.lab.path("cache")).unwrap();
}
