//! What a run leaves behind: no secret, a history, lists.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use stead_model::base64;

use super::homelab::Homelab;

/// Section 6: no secret is in the bundle or the output, neither as it is nor in base64.
#[test]
fn no_secret_is_shown_or_recorded() {
    let lab = Homelab::with(
        "api_version: v1\ntarget: {from: value, value: box}\nlayers: [{file: s.env, secret: true}]\n\
         vars: {A: {default: secret-by-default, secret: true}, B: {}, GIVEN: {secret: true}}\n\
         steps:\n  say: {run: say.sh, secrets: [\"*\"], env: {BOTH: \"${A}/${B}\"}}\n  fail: {run: fail.sh, secrets: [\"*\"]}\n\
         apply: [{steps: [say, fail]}]\n",
    );
    lab.write("s.env", "B=secret-of-the-layer\n");
    lab.script(
        "say.sh",
        "for secret in \"$A\" \"$B\" \"$GIVEN\" \"$BOTH\"; do\n\
         echo \"text $secret\"; echo \"error $secret\" >&2; printf %s \"$secret\" | base64; echo \"$secret\" | base64\n\
         echo \"::check ok key $secret\"; echo \"::suggest use $secret\"; echo \"::output K=$secret\"; echo \"::check $secret\"\n\
         done\n",
    );
    lab.script("fail.sh", "echo \"got $STEAD_OUTPUT_SAY_K\"; echo \"::check bad broken $B\"; exit 1\n");
    let secrets = [
        "secret-by-default",
        "secret-of-the-layer",
        "given-on-the-line",
        "secret-by-default/secret-of-the-layer",
    ];
    let ended = lab.stead(&["steps", "run", "--set", "GIVEN=given-on-the-line"]).exits(4);
    assert!(ended.stderr.contains("GIVEN"), "a secret in arguments draws a warning: {}", ended.stderr);
    let json = lab.stead(&["steps", "run", "--set", "GIVEN=given-on-the-line", "--json"]).exits(4);
    let mut places: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    let mut open: Vec<PathBuf> = lab.bundles();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            places.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    assert!(places.len() > 10);
    for (name, text) in
        [("stdout", ended.stdout), ("stderr", ended.stderr), ("json", json.stdout), ("json", json.stderr)]
    {
        places.push((name.into(), text.into_bytes()));
    }
    for secret in secrets {
        let encoded = base64::encode(secret.as_bytes());
        let with_newline = base64::encode(format!("{secret}\n").as_bytes());
        for form in [secret, encoded.trim_end_matches('='), with_newline.trim_end_matches('=')] {
            for (name, bytes) in &places {
                let found = bytes.windows(form.len()).any(|window| window == form.as_bytes());
                assert!(!found, "{form} is in {}", name.display());
            }
        }
    }
}

/// Section 8: history shows runs of steps only, newest first.
#[test]
fn history_lists_runs_of_steps_newest_first() {
    let lab = Homelab::new();
    lab.run(&["--only", "15"]).exits(0);
    lab.script("scripts/bootstrap/install-flux.sh", "exit 1\n");
    lab.run(&[]).exits(1);
    lab.write("p.yaml", "api_version: v1\nname: p\ntasks: []\n");
    lab.stead(&["plan", "run", "p.yaml"]).exits(0);
    let document = lab.stead(&["steps", "history", "cluster", "--json"]).exits(0).document();
    let runs = document["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    let shown = |at: usize, key: &str| runs[at][key].clone();
    assert_eq!(
        (shown(0, "outcome"), shown(0, "exit_code"), shown(0, "done"), shown(0, "total")),
        (json!("failed"), json!(1), json!(2), json!(6))
    );
    assert_eq!(
        (shown(1, "catalogue"), shown(1, "mode"), shown(1, "target")),
        (json!("cluster"), json!("apply"), json!("homelab"))
    );
    assert_eq!(shown(1, "selection")["only"], json!(["15"]));
    let text = lab.stead(&["steps", "history", "--limit", "1"]).exits(0).stdout;
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("2/6"), "{text}");
    lab.stead(&["bundle", "info", "last"]).exits(0);
}

/// Section 1: what there is.
#[test]
fn list_shows_catalogues_with_their_steps() {
    let lab = Homelab::new();
    let document = lab.stead(&["steps", "list", "--json"]).exits(0).document();
    let names: Vec<&str> =
        document["catalogues"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cluster", "host"]);
    assert_eq!(document["catalogues"][0]["steps"].as_array().unwrap().len(), 10);
    let text = lab.stead(&["steps", "list", "cluster"]).exits(0).stdout;
    assert!(text.contains("91_verify_platform_state.sh [platform-state] (gate FEAT_VERIFY)"), "{text}");
    assert!(text.contains("99_execute_teardown.sh [teardown] (destructive)"), "{text}");
}

/// Section 1: with `--events -` standard output has the journal's lines and nothing else.
#[test]
fn events_are_the_journals_lines() {
    let lab = Homelab::new();
    let ended = lab.run(&["--only", "15", "--events", "-"]).exits(0);
    let journal = fs::read_to_string(lab.bundles()[0].join("events.jsonl")).unwrap();
    assert_eq!(ended.stdout, journal);
    assert!(ended.stderr.contains("Done."), "{}", ended.stderr);
    lab.run(&["--json", "--events", "-"]).exits(2);
    lab.stead(&["bundle", "verify", "last"]).exits(0);
}
