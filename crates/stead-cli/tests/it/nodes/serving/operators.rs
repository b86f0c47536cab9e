//! Operators at other machines: commands with a token, over TLS.

use serde_json::json;

use super::super::{manifest, site};
use super::wire::{Serving, until};

/// One task that asks before it runs, and a hook.
fn plan(place: &str) -> String {
    format!(
        "api_version: v1\nname: asking\nsecrets: {{hook: {{file: {place}/hook-secret}}}}\ntriggers: [{{webhook: {{path: /w, secret: hook}}}}]\ntasks: [{{name: note, confirm: sure?, shell: 'echo ran >> {place}/noted'}}]\n"
    )
}

/// Sections 12 and 13: with an operator's token plans are submitted and followed, and jobs submitted, seen and ended, from
/// anywhere; hooks are heard from anywhere. Nothing else tells who asks: there is no site where the commands run.
#[test]
fn operators_work_from_other_machines() {
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm, spec: base}\n"))]);
    lab.write("hook-secret", "open sesame\n");
    let serving = Serving::start(&lab);
    lab.write("desk/token", serving.operator());
    lab.write("desk/node-token", serving.mint(&["--node", "edge", "--spec", "base"]));
    lab.write("desk/plan.yaml", plan(&lab.root().display().to_string()));
    let with = |token: &str, words: &[&str]| {
        let url = serving.facts["url"].as_str().unwrap();
        let way = [
            "--server",
            url,
            "--fingerprint",
            serving.facts["fingerprint"].as_str().unwrap(),
            "--token-file",
        ];
        // A command of a job comes last.
        let (words, command) =
            words.split_at(words.iter().position(|word| *word == "--").unwrap_or(words.len()));
        let mut stead = lab.stead([]);
        stead.current_dir(lab.path("desk")).args(words).args(way).arg(token).args(command);
        crate::cases_17_32::lab::Ended::from(stead.output().unwrap())
    };
    let ann = |words: &[&str]| with("token", words);

    let submit = ["plan", "submit", "plan.yaml", "--json", "--wait"];
    ann(&submit).exits(6);
    with("node-token", &[&submit[..], &["--yes"]].concat()).exits(1);
    let report = ann(&[&submit[..], &["--yes"]].concat()).exits(0).document();
    assert_eq!((&report["status"], lab.read("noted")), (&json!("success"), "ran\n".to_owned()));
    let token = serving.operator();
    let runs = || serving.get("/v1/plans", &token).json()["plans"].clone();
    assert_eq!((&runs()[0]["by"], &runs()[0]["run_id"]), (&json!("ann@desk"), &report["run_id"]));
    let knock = |secret: &str| {
        let bearer = format!("Bearer {secret}");
        serving.request("POST", "/v1/hooks/w", &[("Authorization", &bearer)], "{}").end()
    };
    assert_eq!(knock("open door").status, 401);
    assert_eq!(knock("open sesame").status, 202);
    until(|| runs()[1]["state"] == "finished");
    assert_eq!((&runs()[1]["exit_code"], lab.read("noted")), (&json!(0), "ran\nran\n".to_owned()));

    with("node-token", &["job", "submit", "--node", "edge", "--", "true"]).exits(1);
    let job = ann(&["job", "submit", "--node", "edge", "--", "true"]).exits(0).stdout.trim().to_owned();
    let shown = ann(&["job", "show", &job, "--json"]).exits(0).document();
    assert_eq!((&shown["by"], &shown["state"]), (&json!("ann@desk"), &json!("queued")));
    assert_eq!(ann(&["job", "list", "--json"]).exits(0).document()["jobs"].as_array().unwrap().len(), 1);
    ann(&["job", "cancel", &job]).exits(0);
    assert_eq!(ann(&["job", "show", &job, "--json"]).exits(0).document()["state"], "cancelled");
}
