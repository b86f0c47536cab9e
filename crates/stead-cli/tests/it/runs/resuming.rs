//! What `resume` of a lost run needs, keeps and refuses.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::place::Place;
use crate::cases_17_32::lab::{Running, wait_until};

/// Section 4.5: nothing is started any more, so no secret is needed; the bundle is what the manifest says it is, and
/// what cannot be done without the key is said.
#[test]
fn a_lost_run_is_finished_without_its_secrets_in_its_format() {
    let place = Place::of(
        "api_version: v1
run_id: r
artifacts: {bundle_format: zip}
secrets: {token: {env: THE_TOKEN}}
roles:
  one: {command: [sh, -c, 'echo \"key $KEY\"; echo kept > out.txt; echo on; sleep 60'], env: {KEY: '{{ secrets.token }}'}, artifacts: [out.txt]}
",
    );
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", "key"]).current_dir(place.lab.root());
    assert!(keygen.status().unwrap().success());
    let mut command = place.stead(["run", "manifest", "m.yaml", "--sign", "key"]);
    command.env("THE_TOKEN", "s3cret-value").stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command.spawn().unwrap());
    place.wait_for_event("role_started", "one");
    wait_until("output", || place.lab.read("runs/r/roles/one/stdout.log").contains("on\n"));
    running.kill_hard();
    wait_until("no role runs", || place.lab.processes().is_empty());
    for flags in [
        &["--limit", "x"][..],
        &["--inventory", "x"],
        &["--agents", "x"],
        &["--profile", "x"],
        &["--host-env", "x"],
        &["--yes"],
        &["--wait-lock", "1s"],
        &["--junit", "x"],
        &["--rerun", "init"],
    ] {
        let ended =
            place.stead(["resume", "runs/r"].into_iter().chain(flags.iter().copied())).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{told}");
        assert!(told.contains(flags[0]), "{told}");
    }
    let ended = place.stead(["resume", "runs/r"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(place.lab.path("runs/r.zip").exists() && !place.bundle().exists());
    let held = |name: &str| {
        let unzip = Command::new("unzip").arg("-p").arg(place.lab.path("runs/r.zip")).arg(name).output();
        String::from_utf8(unzip.unwrap().stdout).unwrap()
    };
    assert_eq!(held("*roles/one/out.txt"), "kept\n");
    assert_eq!(held("*roles/one/stdout.log"), "key ***\non\n");
    let meta: Value = serde_json::from_str(&held("*run_meta.json")).unwrap();
    let codes: Vec<&str> = meta["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| warning["code"].as_str().unwrap())
        .collect();
    for code in ["run/secret-unreadable", "run/seal-unsigned"] {
        assert!(codes.contains(&code), "{codes:?}");
    }
    // An archive is the end of a run.
    for named in ["runs/r.zip", "r"] {
        let again = place.stead(["resume", named]).output().unwrap();
        let told = String::from_utf8_lossy(&again.stderr).into_owned();
        assert_eq!(again.status.code(), Some(3), "{told}");
        assert!(told.contains("is an archive") && told.contains("`stead bundle report "), "{told}");
    }
    let verified = place.stead(["bundle", "verify", "runs/r.zip"]).output().unwrap();
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stdout));
    place.lab.nothing_runs();
}
