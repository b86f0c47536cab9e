//! How questions end: each exit code where the contract has it.

use super::Fleet;
use super::planned::plan;

const SCHEDULING: &str = "web: {spread: {maxPerWorker: 2}}";

/// Case 1, case 22: what is not ready yet is converging (10) and not in time (8); once it is, both are content.
#[test]
fn what_is_not_ready_yet_is_waited_for() {
    let fleet = Fleet::start();
    fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    let sign = fleet.lab.path("ready");
    let argv = format!("[/usr/bin/test, -e, '{}']", sign.display());
    let ready = format!("web: {{ready: {{kind: exec, argv: {argv}, intervalSeconds: 1}}}}");
    let text = fleet.lab.read("fleet/fleet.yaml");
    assert!(text.contains(SCHEDULING), "{text}");
    fleet.lab.write("fleet/fleet.yaml", text.replace(SCHEDULING, &ready));
    // What is replaced is there once it is ready, which it is not before the file is, however long that takes.
    let commit = fleet.commit("specs/web.yaml", "[nginx]", "[nginx, curl]");
    fleet.stead(&["wait", "--commit", &commit, "--timeout", "2s"]).exits(8).says("not in time");
    let status = fleet.until("waited for", |status| {
        let all = status["instances"].as_array().cloned().unwrap_or_default();
        status["state"] == "converging" && all.iter().any(|one| one["code"] == "not-ready")
    });
    fleet.stead(&["status"]).exits(10).says("not-ready");
    assert!(status["convergence_percent"].as_u64().unwrap() < 100);
    fleet.lab.write("ready", "");
    fleet.converged(&commit);
    fleet.stead(&["status"]).exits(0);
    let waited = fleet.stead(&["wait", "--commit", &commit, "--json"]).exits(0).document();
    assert_eq!((&waited["satisfied_by"], &waited["exit_code"]), (&commit.as_str().into(), &0.into()));
    // An older commit that the newest contains is there, too.
    let first = fleet.git(&["rev-parse", "HEAD~1"]);
    let waited = fleet.stead(&["wait", "--commit", &first, "--json"]).exits(0).document();
    assert_eq!(waited["satisfied_by"], commit.as_str());
}

/// Case 22, F26: a list that is suddenly empty is held (11) until it is approved; a plan says so before.
#[test]
fn an_empty_list_is_held() {
    let fleet = Fleet::start();
    fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    fleet.git(&["switch", "--quiet", "--create", "empty"]);
    fleet.git(&["rm", "--quiet", "manifests/fleet.yaml"]);
    let empty = fleet.commit("fleet.yaml", &format!("vms:\n  {SCHEDULING}\n"), "");
    fleet.git(&["switch", "--quiet", "main"]);
    plan(&fleet, &["empty", "--fail-on", "held"]).exits(4).says("empty-set");
    plan(&fleet, &["empty", "--fail-on", "replace,move,unschedulable"]).exits(0).says("- web/0");
    fleet.git(&["merge", "--quiet", "empty"]);
    fleet
        .stead(&["wait", "--commit", &empty, "--timeout", "150s"])
        .exits(11)
        .says("is held")
        .says("empty-set");
    let status = fleet.until("degraded", |status| status["state"] == "degraded");
    let groups = status["groups"].as_array().unwrap();
    let held = groups.iter().find(|group| group["group"] == "default").unwrap()["held"].clone();
    assert_eq!(status["counts"]["desired"], 3, "what runs stays: {status}");
    let approve = held["approve"].as_str().unwrap();
    fleet.stead(&["status"]).exits(11).says(approve).says("empty-set: 3 of 3 running instances would stop");
    let approved =
        fleet.commit("fleet.yaml", "api_version: v1", &format!("api_version: v1\napprove: [{approve}]"));
    let status = fleet.converged(&approved);
    assert_eq!(status["counts"]["desired"], 0, "{status}");
}

/// The person on call finds every code, every failure and every state of the repository on one page.
#[test]
fn everything_that_can_be_seen_is_on_the_page_for_who_is_on_call() {
    let page = include_str!("../../../../../docs/fleet.md");
    let missing: Vec<&str> = stead_model::fleet::Code::ALL
        .iter()
        .map(|code| code.word())
        .chain(["ref-missing", "rewrite-rejected", "signature-rejected", "unreachable", "waiting-for-master"])
        .filter(|word| {
            !page.contains(&format!("`{word}`")) && !page.contains(&format!("repository: {word}`"))
        })
        .collect();
    assert_eq!(missing, [""; 0]);
    let rows: String = page.lines().filter(|line| line.starts_with("| F")).collect();
    let failures: Vec<String> = (1..=26).map(|number| format!("F{number}")).collect();
    let is_told = |failure: &&String| {
        rows.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == failure.as_str())
    };
    assert_eq!(failures.iter().filter(|failure| !is_told(failure)).collect::<Vec<_>>(), [""; 0]);
}

/// Case 21: a plan fails on what it is told to, and on nothing else.
#[test]
fn a_plan_fails_on_what_it_is_told_to() {
    let fleet = Fleet::start();
    fleet.converged(&fleet.git(&["rev-parse", "HEAD"]));
    fleet.git(&["switch", "--quiet", "--create", "curl"]);
    fleet.commit("specs/web.yaml", "[nginx]", "[nginx, curl]");
    fleet.git(&["switch", "--quiet", "--create", "large", "main"]);
    fleet.commit("fleet.yaml", SCHEDULING, "web: {resources: {cpuMilli: 1, memMiB: 16777216}}");
    fleet.git(&["switch", "--quiet", "main"]);
    plan(&fleet, &["curl", "--fail-on", "replace"]).exits(4).says("~ web/0 is replaced");
    plan(&fleet, &["curl", "--fail-on", "move,unschedulable,held"]).exits(0);
    plan(&fleet, &["large", "--fail-on", "unschedulable"]).exits(4).says("! web/0 has no place");
    plan(&fleet, &["large", "--fail-on", "move,held"]).exits(0);
    plan(&fleet, &["large", "--fail-on", "nonsense"]).exits(2);
    plan(&fleet, &["nowhere"]).exits(2).says("nowhere");
}
