//! Drivers and supervisors that are killed: nothing keeps running, and the bundle is finished.

use serde_json::json;

use super::place::{Place, SERVER};
use crate::cases_17_32::lab::{kill, wait_until};

/// A run that is slow in every phase, so that its driver can be killed in each.
fn slow() -> Place {
    let place = Place::of(&format!(
        "api_version: v1
run_id: r
roles:
  server: {}
  client: {{needs: [server], files: [a.bin], command: [sh, -c, 'echo on; cp a.bin client.pcap; sleep 0.4']}}
",
        SERVER.replace("kind: service", "kind: service, stop: {signal: TERM}")
    ));
    place.lab.write("a.bin", stead_testkit::captures::golden_a());
    place
}

/// Where a role ran, and which program, is known also after its driver was lost.
#[track_caller]
fn knows_where_and_what(place: &Place, role: &str) {
    let workdir = place.role(role)["workdir"].as_str().map(str::to_owned);
    assert!(workdir.is_some_and(|workdir| workdir.starts_with('/')), "{}", place.role(role));
    let versions: serde_json::Value = serde_json::from_str(&place.read("versions.json")).unwrap();
    let versions = &versions["roles"][role];
    assert!(versions["program"].as_str().is_some_and(|program| program.starts_with('/')), "{versions}");
    for known in ["host", "os", "arch"] {
        assert!(versions[known].is_string(), "{versions}");
    }
    for hash in ["program_sha256", "stead_sha256"] {
        assert_eq!(versions[hash].as_str().map(str::len), Some(64), "{versions}");
    }
}

#[track_caller]
fn is_finished_by_resume(place: &Place) {
    let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{text}\n{}", String::from_utf8_lossy(&ended.stderr));
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["status"], "failed");
    assert!(document["error"].as_str().unwrap().contains("driver was lost"), "{document}");
    for role in ["server", "client"] {
        assert!(document["roles"][role]["status"].is_string(), "{document}");
        assert_eq!(place.role(role)["role"], role);
        if place.role(role)["started_at"].is_string() {
            knows_where_and_what(place, role);
        }
    }
    place.is_clean();
    // A finished run stays as it is.
    let before = place.lab.snapshot("runs/r");
    let again = place.stead(["resume", "runs/r"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(place.lab.snapshot("runs/r"), before);
}

/// Case 24, in every phase: the driver is killed, `resume` collects and seals.
#[test]
fn a_driver_that_is_killed_in_any_phase_leaves_a_run_that_resume_finishes() {
    let phases = [
        "init",
        "stage",
        "server_start",
        "server_ready",
        "client_start",
        "client_done",
        "server_stop",
        "collect",
        "bundle",
        "analyze",
    ];
    for phase in phases {
        let place = slow();
        let running = place.start(&[]);
        place.wait_for_phase(phase);
        running.kill_hard();
        if place.bundle().join("hashes.txt").exists() {
            continue;
        }
        is_finished_by_resume(&place);
    }
}

/// Case 24: logs and artifacts of the lost run are in its bundle.
#[test]
fn what_a_lost_run_left_is_collected() {
    let place = slow();
    // It is there however long the look at it takes.
    place.lab.write("m.yaml", place.lab.read("m.yaml").replace("sleep 0.4", "sleep 600"));
    let running = place.start(&[]);
    place.wait_for_event("role_started", "client");
    wait_until("the capture", || {
        let cache = place.lab.path("cache/stead");
        let runs = std::fs::read_dir(cache).into_iter().flatten().flatten();
        runs.into_iter().any(|run| run.path().join("client/client.pcap").exists())
    });
    running.kill_hard();
    is_finished_by_resume(&place);
    assert_eq!(place.read("roles/client/stdout.log"), "on\n");
    assert_eq!(place.role("client")["pcap_files"], json!(["client.pcap"]).clone());
    assert_eq!(place.role("client")["status"], "lost");
    assert_eq!(place.read("roles/server/marker"), "stopped\n");
}

/// Section 4.3: a supervisor that is killed takes its role with it, and the run fails.
#[test]
fn a_supervisor_that_is_killed_is_a_lost_role() {
    let place =
        Place::new(&format!("  server: {SERVER}\n  client: {{needs: [server], command: [sleep, '60']}}\n"));
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    let supervisors: Vec<u32> = place
        .lab
        .processes()
        .into_iter()
        .filter(|(pid, line)| line.contains("supervise") && *pid != running.pid())
        .map(|(pid, _)| pid)
        .collect();
    assert_eq!(supervisors.len(), 2);
    kill(*supervisors.iter().max().unwrap(), rustix::process::Signal::KILL);
    let document = running.end().exits(1).document();
    assert_eq!(document["status"], "failed");
    assert!(
        document["roles"].as_object().unwrap().values().any(|role| role["status"] == "lost"),
        "{document}"
    );
    place.is_clean();
}

/// A role that is killed by somebody else failed.
#[test]
fn a_role_that_is_killed_from_outside_failed() {
    let place = Place::new("  client: {command: [sleep, '60']}\n");
    let running = place.start(&["--json"]);
    place.wait_for_event("role_started", "client");
    let pid =
        place.events().iter().find(|event| event["ev"] == "role_started").unwrap()["pid"].as_u64().unwrap();
    kill(u32::try_from(pid).unwrap(), rustix::process::Signal::KILL);
    let document = running.end().exits(1).document();
    assert_eq!(document["roles"]["client"], json!({"status": "failed", "exit_code": null, "signal": "KILL"}));
    place.is_clean();
}

/// Cuts the journal off before the first line that has all of `words`.
fn cut_journal(place: &Place, words: &[&str]) {
    let path = place.bundle().join("events.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let kept: Vec<&str> =
        text.lines().take_while(|line| !words.iter().all(|word| line.contains(word))).collect();
    assert!(kept.len() < text.lines().count());
    std::fs::write(&path, kept.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
}

/// Section 4.5: roles are not started again, whatever is missing in the journal, and what they left is collected.
#[test]
fn roles_of_which_nothing_is_recorded_are_collected_and_not_started_again() {
    for words in [vec!["\"run_started\""], vec!["\"role_started\"", "\"one\""]] {
        let place = Place::new("");
        let (work, ran) = (place.lab.path("work"), place.lab.path("ran"));
        place.lab.write(
            "m.yaml",
            format!(
                "api_version: v1\nrun_id: r\nroles:\n  one: {{workdir: {}, command: [sh, -c, 'echo 1 > new.json; echo x >> {}; sleep 60'], artifacts: ['*.json']}}\n",
                work.display(),
                ran.display()
            ),
        );
        let running = place.start(&[]);
        place.wait_for_event("role_started", "one");
        wait_until("the file", || ran.exists());
        running.kill_hard();
        cut_journal(&place, &words);
        let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
        let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert!(document["error"].as_str().unwrap().contains("driver was lost"), "{document}");
        let role = place.role("one");
        assert_eq!((&role["status"], &role["artifacts"][0]["path"]), (&json!("lost"), &json!("new.json")));
        assert!(role["started_at"].is_string(), "{role}");
        assert_eq!(place.lab.read("ran"), "x\n", "it ran once");
        assert!(place.told(&["role_started"]).is_empty());
        place.is_clean();
    }
}

/// Section 2.2 after a loss: a workdir that the manifest names stays, and what was in it before is not collected.
#[test]
fn a_workdir_of_the_manifest_survives_its_driver() {
    let place = Place::new("");
    let work = place.lab.path("work");
    place.lab.write("work/old.json", "{}");
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::File::open(work.join("old.json")).unwrap().set_modified(long_ago).unwrap();
    place.lab.write(
        "m.yaml",
        format!(
            "api_version: v1\nrun_id: r\nroles:\n  one: {{workdir: {}, command: [sh, -c, 'echo 1 > new.json; echo on; sleep 60'], artifacts: ['*.json']}}\n",
            work.display()
        ),
    );
    let running = place.start(&[]);
    place.wait_for_event("role_started", "one");
    wait_until("output", || place.lab.read("runs/r/roles/one/stdout.log") == "on\n");
    running.kill_hard();
    let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    let role = place.role("one");
    assert_eq!(role["workdir"], work.display().to_string());
    let collected: Vec<&str> =
        role["artifacts"].as_array().unwrap().iter().map(|found| found["path"].as_str().unwrap()).collect();
    assert_eq!(collected, ["new.json"]);
    assert!(place.warnings().contains(&"run/stale-artifact".to_owned()), "{:?}", place.warnings());
    assert!(work.join("old.json").exists() && work.join("new.json").exists());
    knows_where_and_what(&place, "one");
    place.is_clean();
}

/// Section 4.5: a driver that was lost between the last event and the seal was lost.
#[test]
fn a_run_that_ended_without_a_seal_has_failed() {
    let place = Place::new("  one: {command: ['true']}\n");
    place.json(&[], 0);
    std::fs::remove_file(place.bundle().join("hashes.txt")).unwrap();
    let ended = place.stead(["resume", "runs/r", "--json"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", String::from_utf8_lossy(&ended.stderr));
    let document: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(document["error"].as_str().unwrap().contains("driver was lost"), "{document}");
    assert_eq!((&place.meta()["status"], &place.meta()["exit_code"]), (&json!("failed"), &json!(1)));
    assert_eq!(document["roles"]["one"]["status"], "success");
    place.is_clean();
}
