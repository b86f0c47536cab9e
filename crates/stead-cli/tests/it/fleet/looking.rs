//! Questions to a fleet, and what may be frozen.

use std::process::Command;

use serde_json::Value;

use super::Fleet;
use super::planned::{merge, plan};
use crate::cases_17_32::lab::Lab;

/// Case 20: a hold is visible with who and why, ends by itself, and no longer than a day.
#[test]
fn a_hold_freezes_shows_and_ends() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    fleet.stead(&["hold", "worker/w1", "--for", "25h", "--reason", "x"]).exits(2).says("24h");
    fleet.stead(&["hold", "rack/w1", "--for", "1h", "--reason", "x"]).exits(2).says("worker");
    let id = fleet.stead(&["hold", "worker/w1", "--for", "10s", "--reason", "new fan"]).exits(0).stdout;
    let held =
        fleet.until("held", |status| status["holds"].as_array().is_some_and(|holds| !holds.is_empty()));
    assert_eq!(
        (&held["holds"][0]["id"], &held["holds"][0]["reason"]),
        (&id.trim().into(), &"new fan".into())
    );
    assert_eq!(held["state"], "degraded");
    fleet.until("free", |status| status["holds"].as_array().is_some_and(Vec::is_empty));
    // Section 14: one document, with what the status has of it.
    let words = ["hold", "vm/web", "--for", "1h", "--reason", "looking", "--json"];
    let hold = fleet.stead(&words).exits(0).document();
    let shown = fleet.status()["holds"][0].clone();
    assert_eq!(
        (&hold["schema"], &hold["active"], &hold["target"]),
        (&1.into(), &true.into(), &"vm/web".into())
    );
    for key in ["id", "target", "until", "by", "reason"] {
        assert!(!hold[key].is_null() && hold[key] == shown[key], "{key}: {hold} {shown}");
    }
    let released = fleet.stead(&["release", hold["id"].as_str().unwrap(), "--json"]).exits(0).document();
    assert_eq!((&released["id"], &released["active"]), (&hold["id"], &false.into()));
    fleet.until("free", |status| status["holds"].as_array().is_some_and(Vec::is_empty));
}

/// Case 21: a plan of a branch says what its merge does; a snapshot needs no master.
#[test]
fn a_plan_is_what_happens() {
    let mut fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    let before = fleet.converged(&first);
    fleet.git(&["switch", "--quiet", "--create", "more"]);
    let second = fleet.commit("manifests/fleet.yaml", "count: 2", "count: 3");
    fleet.git(&["switch", "--quiet", "main"]);
    plan(&fleet, &["more"]).exits(0).says("web/2");
    let snapshot = fleet.stead(&["status", "--snapshot"]).exits(0).stdout;
    fleet.lab.write("snapshot.json", snapshot);
    let file = fleet.lab.path("snapshot.json").display().to_string();
    let (planned, after) = merge(&fleet, "more", "there", |status| status["state"] == "converged");
    assert_eq!(planned["add"], serde_json::json!(["web/2"]));
    assert_eq!((&planned["replace"], &planned["move"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(planned["rev"], second.as_str());
    let worker = |status: &Value, key: &str| {
        let all = status["instances"].as_array().unwrap().clone();
        all.iter().find(|one| one["key"] == key).unwrap()["worker"].clone()
    };
    assert_eq!(planned["assign"]["web/2"], worker(&after, "web/2"));
    for key in ["web/0", "web/1", "cache/0"] {
        assert_eq!(worker(&before, key), worker(&after, key));
    }
    fleet.end(rustix::process::Signal::INT);
    let alone = plan(&fleet, &["more", "--snapshot", &file, "--json"]).exits(0).document();
    assert_eq!(alone["add"], planned["add"]);
}

/// A status that is watched is printed when it says something else, not with every report of a worker.
#[test]
fn a_watched_status_is_printed_when_it_changes() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    let watch = fleet.lab.start(["fleet", "status", "--watch"]);
    let uptime = |status: &Value| status["instances"][0]["uptime_ms"].as_u64().unwrap_or_default();
    let before = uptime(&fleet.status());
    fleet.until("three reports later", |status| uptime(status) > before + 3_000);
    let second = fleet.commit("manifests/fleet.yaml", "count: 2", "count: 3");
    fleet.converged(&second);
    fleet.until("settled", |status| status["state"] == "converged");
    watch.signal(rustix::process::Signal::INT);
    let printed = watch.end().stdout;
    let told: Vec<&str> = printed.split("\n\n").map(str::trim).collect();
    assert!(told.len() > 1 && told[0].contains("generation 1"), "{printed}");
    assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{printed}");
}

/// Whether a text is a moment of RFC 3339, in universal time.
fn is_moment(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let Some((day, rest)) = shape.split_once('T') else { return false };
    let seconds = rest.strip_suffix('Z').unwrap_or_default();
    let (whole, part) = seconds.split_once('.').unwrap_or((seconds, "0"));
    (day, whole) == ("0000-00-00", "00:00:00") && !part.is_empty() && part.chars().all(|c| c == '0')
}

/// Explanations name a worker and every other one; what is not there is named by what is.
#[test]
fn an_instance_is_explained() {
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    let said = fleet.stead(&["explain", "web/0", "--json"]).exits(0).document();
    assert_eq!(said["instance"], "web/0");
    assert_eq!(said["candidates"].as_array().unwrap().len(), 3);
    let history = said["history"].as_array().unwrap();
    assert!(!history.is_empty(), "{said}");
    for at in history.iter().map(|past| &past["at"]).chain([&said["last_changed_by"]["at"]]) {
        assert!(at.as_str().is_some_and(is_moment), "{said}");
    }
    fleet.stead(&["explain", "web/0"]).exits(0).says("web/0 is on");
    fleet.stead(&["explain", "wbe/0"]).exits(2).says("web/0");
    fleet.stead(&["wait", "--commit", "nonsense"]).exits(2);
}

#[test]
fn what_cannot_be_a_fleet_says_why() {
    let lab = Lab::new("");
    let git = |words: &[&str]| {
        let status = Command::new("git").args(words).current_dir(lab.root()).status().unwrap();
        assert!(status.success(), "{words:?}");
    };
    lab.write("plain/file", "");
    lab.run(["fleet", "dev", "plain"]).exits(3).says("not a git repository");
    lab.run(["fleet", "dev", "nowhere"]).exits(3);
    git(&["init", "--quiet", "repo"]);
    lab.run(["fleet", "dev", "repo"]).exits(3).says("its branch has no commit yet");
    lab.write("repo/sub/file", "");
    lab.run(["fleet", "dev", "repo/sub"]).exits(3).says("only the directory sub/ of a repository");
}
