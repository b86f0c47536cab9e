//! `stead diff run`: golden figures, forms, roles, and conditions as a gate.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stead_testkit::captures::{golden_a, golden_b};

use super::fixture::{Role, json_of, run, write_run};

/// Writes two captures, and two bundles with one each, as directories and archives.
fn write_golden(dir: &Path) {
    for (name, capture, rps) in [("a", golden_a(), 1000), ("b", golden_b(), 800)] {
        fs::write(dir.join(format!("{name}.pcap")), &capture).unwrap();
        let client =
            Role::client().with("client.pcap", capture).with("out.json", json!({"rps": rps}).to_string());
        write_run(dir, name, "success", &[Role::server(), client]);
        for end in ["zip", "tar.zst"] {
            let out = format!("{name}.{end}");
            assert_eq!(run(dir, &["bundle", "export", &format!("./{name}"), "-o", &out]).0, 0);
        }
    }
}

/// Case 29: A to B and A to A, from bundles, archives and bare files.
#[test]
fn golden_captures_differ_as_the_contract_says() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    for end in [".pcap", "", ".zip", ".tar.zst"] {
        let path = |name: &str| format!("./{name}{end}");
        let diff = json_of(dir.path(), &["diff", "run", &path("a"), &path("b"), "--json"]);
        let summary = &diff["summary"];
        let expected = json!({
            "services_added": 4, "services_common": 2, "classes_added": 2, "latency_delta_ms": 95.0,
            "jitter_delta_ms": 10.0, "diff_score": 50, "has_significant_diff": true, "packet_count_delta": 4,
            "cip_count_delta": 4,
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&summary[key], value, "{end} {key}");
        }
        let base = &diff["pcap_diff"]["baseline"];
        assert_eq!((&base["packets"], &base["cip"]["messages"]), (&211.into(), &200.into()));
        let latency = &base["latency_ms"];
        assert_eq!(
            [&latency["p50"], &latency["p95"], &latency["p99"], &latency["mean"]],
            [&50.0.into(), &95.0.into(), &99.0.into(), &50.5.into()].map(|value: &Value| value)
        );
        let new = &diff["pcap_diff"]["compare"];
        assert_eq!((&new["packets"], &new["latency_ms"]["count"]), (&215.into(), &102.into()));
        assert_eq!(diff["baseline_bundle"], path("a"));
        let same = json_of(dir.path(), &["diff", "run", &path("a"), &path("a"), "--json"]);
        assert_eq!(
            (&same["summary"]["diff_score"], &same["summary"]["has_significant_diff"]),
            (&0.into(), &false.into())
        );
    }
    let capture = json_of(dir.path(), &["bundle", "report", "a.pcap", "--json"]);
    assert_eq!(
        (&capture["capture"]["packets"], &capture["capture"]["path"]),
        (&211.into(), &"a.pcap".into())
    );
}

/// Case 30: forms and exit codes.
#[test]
fn differences_have_three_forms_and_wrong_words_an_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    let (code, page, _) = run(dir.path(), &["diff", "run", "./a", "b.zip", "--format", "md"]);
    assert_eq!(code, 0);
    assert!(page.contains("| figure | BASE | NEW | change | % |\n| --- |"), "{page}");
    let (_, text, _) = run(dir.path(), &["diff", "run", "a.pcap", "b.pcap"]);
    insta::assert_snapshot!("diff_of_golden_captures", text);
    let (_, page, _) = run(dir.path(), &["diff", "run", "./a", "./b", "--format", "markdown", "--raw"]);
    insta::assert_snapshot!("raw_diff_as_a_page", page);

    let (code, stdout, _) = run(dir.path(), &["diff", "run", "./a", "./b", "-o", "out.json", "--json"]);
    assert_eq!((code, stdout.as_str()), (0, ""));
    let written: Value = serde_json::from_slice(&fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    assert_eq!(written["role"], "client");
    let raw = json_of(dir.path(), &["diff", "run", "./a", "./b", "--raw", "--json"]);
    assert_eq!((&raw["baseline_pcap"], &raw["summary"]), (&"roles/client/client.pcap".into(), &Value::Null));

    for (words, expected, says) in [
        (vec!["./a", "./b", "--format", "yaml"], 2, "yaml"),
        (vec!["./a", "./b", "--fail-on", "servces_added"], 2, "services_added"),
        (vec!["./a", "./b", "--ignore", "("], 2, "--ignore"),
        (vec!["./a", "./b", "--text", "["], 2, "--text"),
        (vec!["./a", "./b", "--expected-rpi", "0"], 2, "above 0"),
        (vec!["./a", "missing"], 3, "missing"),
        (vec!["./a", "./b", "--role", "store"], 3, "BASE has no role `store`; it has client, server"),
        (vec!["./a", "out.json"], 3, "not a capture"),
        (vec!["./a", "./b", "--role", "server", "--raw"], 3, "neither BASE nor NEW has a capture"),
    ] {
        let (code, _, stderr) = run(dir.path(), &[&["diff", "run"], &words[..]].concat());
        assert_eq!(code, expected, "{words:?}: {stderr}");
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
    // Without captures the rest is compared, and that is said; with one on one side nothing is.
    let (code, text, _) = run(dir.path(), &["diff", "run", "./a", "./b", "--role", "server"]);
    assert_eq!(code, 0);
    assert!(text.contains("Neither side has a capture"), "{text}");
    write_run(dir.path(), "c", "success", &[Role::server(), Role::client()]);
    let (code, _, stderr) = run(dir.path(), &["diff", "run", "./a", "./c"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("NEW has no capture of role `client`"), "{stderr}");
}

/// Case 31: conditions make an exit code.
#[test]
fn conditions_are_a_gate() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    let gate = |base: &str, new: &str, condition: &str| {
        run(dir.path(), &["diff", "run", base, new, "--fail-on", condition])
    };
    for condition in [
        "services_added",
        "latency_delta_ms>10",
        "metric:client/out.json#/rps.delta_pct<-5",
        "diff_score >= 50",
    ] {
        let (code, text, _) = gate("./a", "./b", condition);
        assert_eq!(code, 4, "{condition}: {text}");
        assert!(text.contains("Summary") && text.contains("failed"), "everything is printed first: {text}");
        assert_eq!(gate("./a", "./a", condition).0, 0, "{condition}");
    }
    // A speed-up does not trip it; what has no value does.
    assert_eq!(gate("./b", "./a", "latency_delta_ms>5").0, 0);
    assert_eq!(gate("./a", "./a", "metric:client/none.json#/x.delta").0, 4);
    let words = ["diff", "run", "./a", "./b", "--fail-on", "services_added", "-o", "d.txt"];
    let (code, stdout, stderr) = run(dir.path(), &words);
    assert_eq!((code, stdout.as_str()), (4, ""));
    assert!(stderr.contains("failed: services_added (4)"), "{stderr}");
}

/// Section 8: text files by line, every role at once, left-out figures, other ports, and doubtful sides.
#[test]
fn flags_choose_what_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    let client = Role { stdout: "asked 1\nasked 3\ntime 9\n".to_owned(), ..Role::client() };
    write_run(dir.path(), "x", "success", &[Role::client()]);
    write_run(dir.path(), "y", "failed", &[Role { exit_code: Some(42), status: "failed", ..client }]);
    let words = ["diff", "run", "./x", "./y", "--text", "*.log", "--ignore", "^time", "--json"];
    let diff = json_of(dir.path(), &words);
    assert_eq!(
        (&diff["summary"]["text_lines_changed"], &diff["summary"]["exit_codes_changed"]),
        (&2.into(), &1.into())
    );
    assert_eq!(diff["generic"]["run"]["status"]["compare"], "failed");

    let all = json_of(dir.path(), &["diff", "run", "./a", "./b", "--role", "all", "--json"]);
    assert_eq!(
        (&all["roles"]["client"]["summary"], &all["roles"]["server"]["pcap_diff"]),
        (&all["summary"], &Value::Null)
    );
    let words = ["diff", "run", "./a", "./b", "--skip-timing", "--skip-rpi", "--json"];
    let skipped = json_of(dir.path(), &words);
    assert_eq!(skipped["summary"]["latency_delta_ms"], Value::Null);
    assert_eq!(skipped["pcap_diff"]["baseline"]["intervals_ms"], Value::Null);
    let words = ["diff", "run", "./a", "./b", "--expected-rpi", "25", "--rpi-tolerance", "0", "--json"];
    assert_eq!(json_of(dir.path(), &words)["pcap_diff"]["compare"]["intervals_ms"]["violations"], 9);

    fs::write(dir.path().join("a/plan.json"), "changed").unwrap();
    let (code, _, stderr) = run(dir.path(), &["diff", "run", "./a", "./b"]);
    assert_eq!(code, 0);
    assert!(stderr.contains("warning: BASE does not verify: plan.json"), "{stderr}");
}
