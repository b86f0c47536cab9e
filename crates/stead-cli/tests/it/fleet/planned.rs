//! Plans against what then happens: case 21 for everything that a commit can do to an instance.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Fleet, hash_of};
use crate::cases_17_32::lab::Ended;

/// What is planned for an instance, or happened to it: what, which, and where to or to what.
type Acts = BTreeSet<(String, String, String)>;

/// Runs `stead fleet plan` in the repository.
pub(super) fn plan(fleet: &Fleet, words: &[&str]) -> Ended {
    let mut command = fleet.lab.stead(["fleet", "plan"].into_iter().chain(words.iter().copied()));
    command.current_dir(fleet.lab.path("fleet")).output().unwrap().into()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Returns what a plan says.
fn acts_of(plan: &Value) -> Acts {
    let list = |key: &str| plan[key].as_array().unwrap().clone();
    let mut acts = Acts::new();
    for key in list("add") {
        acts.insert(("placed".to_owned(), word(&key), word(&plan["assign"][word(&key)])));
    }
    for key in list("remove") {
        acts.insert(("removed".to_owned(), word(&key), String::new()));
    }
    for change in list("replace") {
        acts.insert(("released".to_owned(), word(&change["instance"]), word(&change["to"])));
    }
    for change in list("move") {
        let to = format!("{} {}", word(&change["to"]), word(&change["reason"]));
        acts.insert(("moved".to_owned(), word(&change["instance"]), to));
    }
    acts
}

/// Returns what the master did to instances so far, by its events.
fn happened(fleet: &Fleet) -> Vec<(String, String, String)> {
    let text = fleet.lab.read("state/fleet/events/events-001.jsonl");
    // The last line may be in the middle of being written.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let acts = lines.filter_map(|line| {
        let (worker, reason) = (word(&line["worker"]), word(&line["reason"]));
        let detail = match line["ev"].as_str()? {
            "placed" => worker,
            "moved" => format!("{worker} {reason}"),
            "released" => reason,
            // A copy that was replaced goes from its worker as well, and is no instance that goes.
            "removed" if reason == "not-wanted" => String::new(),
            _ => return None,
        };
        Some((word(&line["ev"]), word(&line["instance"]), detail))
    });
    acts.collect()
}

/// Whether every group of a commit is active.
fn is_active(status: &Value, commit: &str) -> bool {
    let groups = status["groups"].as_array().cloned().unwrap_or_default();
    groups.len() == 2 && groups.iter().all(|group| group["active"]["commit"] == commit)
}

/// Plans a branch, merges it and waits until a status is as wanted: what was planned has happened, and nothing else. Returns
/// the plan and the status.
#[track_caller]
pub(super) fn merge(
    fleet: &Fleet,
    branch: &str,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> (Value, Value) {
    let planned = plan(fleet, &[branch, "--json"]).exits(0).document();
    let before = happened(fleet).len();
    fleet.git(&["merge", "--quiet", branch]);
    let commit = fleet.git(&["rev-parse", "HEAD"]);
    let status = fleet.until(what, |status| is_active(status, &commit) && wanted(status));
    let done: Vec<_> = happened(fleet).split_off(before);
    let once: Acts = done.iter().cloned().collect();
    assert_eq!(once.len(), done.len(), "nothing is done twice: {done:?}");
    assert_eq!(once, acts_of(&planned), "{planned:#}");
    (planned, status)
}

/// Writes a branch: each file with its old and its new text.
fn branch(fleet: &Fleet, name: &str, changes: &[(&str, &str, &str)]) {
    fleet.git(&["switch", "--quiet", "--create", name]);
    for (file, old, new) in changes {
        let path = format!("fleet/{file}");
        let text = fleet.lab.read(&path);
        assert!(text.contains(old), "{text}");
        fleet.lab.write(&path, text.replace(old, new));
    }
    fleet.git(&["commit", "--quiet", "--all", "--message", name]);
    fleet.git(&["switch", "--quiet", "main"]);
}

fn is_converged(status: &Value) -> bool {
    status["state"] == "converged"
}

fn instance(status: &Value, key: &str) -> Value {
    let all = status["instances"].as_array().unwrap();
    all.iter().find(|one| one["key"] == key && one["leaving"] != true).cloned().unwrap_or_default()
}

const SCHEDULING: &str = "web: {spread: {maxPerWorker: 2}}";

/// Case 21: what is replaced is named with the fields that differ, and with what it runs before and after.
#[test]
fn replacements_are_planned_with_their_fields() {
    let fleet = Fleet::start();
    let before = fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    let smaller = format!("{SCHEDULING}\n  cache: {{resources: {{cpuMilli: 1000, memMiB: 256}}}}");
    branch(
        &fleet,
        "new",
        &[("specs/web.yaml", "[nginx]", "[nginx, curl]"), ("fleet.yaml", SCHEDULING, &smaller)],
    );
    let (planned, after) = merge(&fleet, "new", "replaced", is_converged);
    let fields = |key: &str| {
        let all = planned["replace"].as_array().unwrap();
        let found =
            all.iter().find(|change| change["instance"] == key).unwrap_or_else(|| panic!("{planned:#}"));
        assert_eq!(
            (&found["from"], &found["to"]),
            (&hash_of(&before, key).into(), &hash_of(&after, key).into())
        );
        found["fields"].clone()
    };
    assert_eq!(fields("web/0"), json!(["runtime.config"]));
    assert_eq!(fields("web/1"), json!(["runtime.config"]));
    assert_eq!(fields("cache/0"), json!(["resources.diskMiB", "resources.memMiB"]));
    assert_eq!((&planned["unchanged"], &planned["move"]), (&json!(0), &json!([])));
}

/// Case 21: what leaves a worker that is drained is planned with where it goes; a drain of all of them moves nothing.
#[test]
fn drains_are_planned() {
    let fleet = Fleet::start();
    let before = fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    let drained = word(&instance(&before, "web/0")["worker"]);
    let drain = |names: &[&str]| {
        let entries: Vec<String> = names.iter().map(|name| format!("{name}: {{drain: true}}")).collect();
        format!("api_version: v1\nworkers: {{{}}}", entries.join(", "))
    };
    branch(&fleet, "drain", &[("fleet.yaml", "api_version: v1", &drain(&[drained.as_str()]))]);
    let gone = |status: &Value| {
        let all = status["instances"].as_array().unwrap();
        is_converged(status) && all.iter().all(|one| one["worker"] != drained.as_str())
    };
    let (planned, after) = merge(&fleet, "drain", "drained", gone);
    let moves = planned["move"].as_array().unwrap();
    assert!(moves.iter().any(|change| change["instance"] == "web/0"), "{planned:#}");
    for change in moves {
        assert_eq!((&change["from"], &change["reason"]), (&drained.as_str().into(), &"drained".into()));
        assert_eq!(instance(&after, change["instance"].as_str().unwrap())["worker"], change["to"]);
    }
    let one = drain(&[drained.as_str()]);
    branch(&fleet, "all", &[("fleet.yaml", &one, &drain(&["w1", "w2", "w3"]))]);
    let blocked = |status: &Value| {
        let all = status["instances"].as_array().unwrap();
        all.len() == 3 && all.iter().all(|one| one["code"] == "drain-blocked")
    };
    let (planned, _) = merge(&fleet, "all", "blocked", blocked);
    assert_eq!((&planned["move"], &planned["unchanged"]), (&json!([]), &json!(3)));
}

/// Case 21: what has no place says why in the plan as it then does in the status, filter by filter, whether it is new or
/// ran until now; what ran goes on where it is.
#[test]
fn what_will_have_no_place_is_planned() {
    let fleet = Fleet::start();
    let before = fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    let workers = "api_version: v1\nworkers: {w1: {labels: {disk: ssd}}, w2: {cordon: true}}";
    let large = "web: {selector: {disk: nvme}}\n  big: {selector: {disk: ssd}, resources: {cpuMilli: 1, memMiB: 16777216}}";
    let node = "\n  - {name: big, type: vm, spec: base, preset: tiny}\n";
    branch(
        &fleet,
        "large",
        &[
            ("fleet.yaml", "api_version: v1", workers),
            ("fleet.yaml", SCHEDULING, large),
            ("manifests/fleet.yaml", "\n  - {name: cache", &format!("{node}  - {{name: cache")),
        ],
    );
    let keys = ["big/0", "web/0", "web/1"];
    let homeless = |status: &Value| keys.iter().all(|key| instance(status, key)["code"] == "no-fit");
    let (planned, after) = merge(&fleet, "large", "without a place", homeless);
    let unschedulable = planned["unschedulable"].as_array().unwrap();
    assert_eq!(unschedulable.iter().map(|one| one["instance"].clone()).collect::<Vec<_>>(), keys);
    assert_eq!(unschedulable[0]["filters"], json!({"state": 1, "selector": 1, "memory": 1}));
    assert_eq!(unschedulable[1]["filters"], json!({"state": 1, "selector": 2}));
    for (key, one) in keys.iter().zip(unschedulable) {
        let (said, shown) = (word(&one["message"]), word(&instance(&after, key)["message"]));
        assert!(
            said.starts_with("3 workers: 1 take nothing now, ") && shown.contains(&said),
            "{said}: {shown}"
        );
    }
    // Whatever ran until now does so, where it was.
    for copy in after["instances"].as_array().unwrap().iter().filter(|one| one["leaving"] == true) {
        let key = copy["key"].as_str().unwrap();
        assert_eq!((&copy["worker"], &copy["ready"]), (&instance(&before, key)["worker"], &json!(true)));
    }
}

/// Case 21: of a VM that an operator holds, or that is suspended, nothing is planned and nothing happens; of a group on
/// hold the plan says that its commit would wait.
#[test]
fn what_is_frozen_is_planned_so() {
    let fleet = Fleet::start();
    let before = fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    let hold = fleet.stead(&["hold", "vm/web", "--for", "1h", "--reason", "looking"]).exits(0).stdout;
    // Something else changes as well, so that there is something to wait for.
    let other = |status: &Value| {
        let cache = instance(status, "cache/0");
        cache["ready"] == true && cache["observed_hash"] == cache["desired_hash"]
    };
    branch(
        &fleet,
        "held",
        &[
            ("specs/web.yaml", "[nginx]", "[nginx, jq]"),
            ("specs/base.yaml", "[curl]", "[curl, jq]"),
            ("manifests/fleet.yaml", "count: 2", "count: 3"),
        ],
    );
    let (planned, after) = merge(&fleet, "held", "held", other);
    let of_cache = |planned: &Value| {
        let replaced: Vec<&str> = planned["replace"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|one| one["instance"].as_str())
            .collect();
        assert_eq!((replaced, &planned["add"]), (vec!["cache/0"], &json!([])), "{planned:#}");
        assert_eq!(planned["unchanged"], 2, "{planned:#}");
    };
    of_cache(&planned);
    assert_eq!(hash_of(&after, "web/0"), hash_of(&before, "web/0"));
    // The commit suspends what the operator holds: ending the hold lets nothing happen.
    branch(
        &fleet,
        "suspended",
        &[
            ("fleet.yaml", "api_version: v1", "api_version: v1\nsuspend: {vms: [web]}"),
            ("specs/base.yaml", "[curl, jq]", "[jq]"),
        ],
    );
    let (planned, _) = merge(&fleet, "suspended", "suspended", other);
    of_cache(&planned);
    fleet.stead(&["release", hold.trim()]).exits(0);
    branch(&fleet, "more", &[("specs/base.yaml", "[jq]", "[curl]")]);
    let (planned, after) = merge(&fleet, "more", "more", other);
    of_cache(&planned);
    assert_eq!(hash_of(&after, "web/0"), hash_of(&before, "web/0"));
    // With both gone everything that waited is planned, and happens.
    branch(&fleet, "free", &[("fleet.yaml", "\nsuspend: {vms: [web]}", "")]);
    let (planned, _) = merge(&fleet, "free", "free", is_converged);
    assert_eq!((&planned["add"], &planned["unchanged"]), (&json!(["web/2"]), &json!(1)));
    // This commit brings nothing but the end of the wait; what differs from what runs is said all the same.
    assert_eq!(planned["replace"][0]["fields"], json!(["runtime.config"]), "{planned:#}");
    fleet.stead(&["hold", "group/default", "--for", "1h", "--reason", "looking"]).exits(0);
    branch(&fleet, "waits", &[("specs/web.yaml", "[nginx, jq]", "[nginx]")]);
    let planned = plan(&fleet, &["waits", "--json"]).exits(0).document();
    assert_eq!(planned["held"]["code"], "suspended");
    let done = happened(&fleet);
    fleet.git(&["merge", "--quiet", "waits"]);
    let commit = fleet.git(&["rev-parse", "HEAD"]);
    fleet.stead(&["wait", "--commit", &commit, "--timeout", "150s"]).exits(11);
    assert_eq!(happened(&fleet), done);
}
