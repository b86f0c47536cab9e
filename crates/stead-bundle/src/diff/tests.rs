//! Whole comparisons, from golden captures and made-up bundles.

use proptest::prelude::*;
use serde_json::json;

use super::numbers::Numbers;
use super::*;
use crate::Style;
use crate::analysis::testing::{golden_a, golden_b};
use crate::analysis::{AnalysisOptions, Capture, analyze};

fn capture(bytes: &[u8], name: &str) -> Capture {
    analyze(bytes, name, &AnalysisOptions::default()).unwrap()
}

fn a() -> Capture {
    capture(&golden_a(), "a.pcap")
}

/// Directories of runs differ always: a command that names its own is the same command.
#[test]
fn a_command_that_names_its_runs_directory_is_no_other_command() {
    let side = |run: &str, size: &str| {
        let mut side = bundle("x", None, 0, 1000);
        let client = side.roles.get_mut("client").unwrap();
        client.role_meta = Some(json!({"workdir": format!("/c/{run}/client"),
            "argv": ["load", format!("/c/{run}/store/inbox"), size, 7]}));
        side
    };
    let argv = |old: &Side, new: &Side| {
        let diff = compare(old, new, Some("client"), &DiffOptions::default()).unwrap();
        diff.generic.roles["client"].argv.clone()
    };
    let old = side("run-2026-11-18_10-17-24-5441a8e4", "200");
    assert!(!argv(&old, &side("run-2026-11-18_10-17-29-9609935f", "200")).changed);
    let other = argv(&old, &side("run-2026-11-18_10-17-29-9609935f", "201"));
    assert!(other.changed);
    assert_eq!(other.compare, json!(["load", "/c/run-…/store/inbox", "201", 7]));
    // A directory that somebody chose is what it is called.
    assert!(argv(&side("a", "200"), &side("b", "200")).changed);
}

fn b() -> Capture {
    capture(&golden_b(), "b.pcap")
}

fn alone(capture: Capture) -> Side {
    Side { name: capture.path.clone(), capture_alone: Some(capture), ..Side::default() }
}

/// Returns a bundle whose client captured `capture`, exited with `exit_code` and wrote `rps`.
fn bundle(name: &str, capture: Option<Capture>, exit_code: i32, rps: u32) -> Side {
    let client = RoleSide {
        role_meta: Some(json!({
            "status": if exit_code == 0 { "success" } else { "failed" }, "exit_code": exit_code, "argv": ["load", name],
            "started_at": "2026-01-01T00:00:00.000000Z", "finished_at": "2026-01-01T00:00:10.500000Z",
        })),
        capture,
        artifacts: [("out.json", rps.to_string()), (name, "1".to_owned())]
            .map(|(path, hash)| (path.to_owned(), hash))
            .into(),
        numbers: [("out.json".to_owned(), numbers(&json!({"rps": rps})))].into(),
        text: [("out.txt".to_owned(), format!("at {name}\nrate {rps}\n"))].into(),
    };
    Side {
        name: name.to_owned(),
        run_meta: Some(
            json!({"status": "success", "exit_code": 0, "duration_seconds": f64::from(rps) / 10.0}),
        ),
        versions: Some(
            json!({"stead_version": "1", "roles": {"client": {"program_sha256": name, "clock_offset_ms": rps}}}),
        ),
        roles: [("client".to_owned(), client)].into(),
        capture_alone: None,
    }
}

fn numbers(document: &serde_json::Value) -> Numbers {
    Numbers::read(&serde_json::to_vec(document).unwrap(), &mut 100).unwrap()
}

fn options(thresholds: &[&str]) -> DiffOptions {
    let thresholds = thresholds.iter().map(|expr| Threshold::parse(expr).unwrap()).collect();
    DiffOptions { thresholds, ..DiffOptions::default() }
}

/// Case 29: A→B exactly as the contract says, from bare files and from bundles.
#[test]
fn golden_a_to_b_has_its_figures() {
    let sides = [(alone(a()), alone(b())), (bundle("x", Some(a()), 0, 5), bundle("y", Some(b()), 0, 5))];
    for ((old, new), role) in sides.into_iter().zip([None, Some("client")]) {
        let diff = compare(&old, &new, role, &DiffOptions::default()).unwrap();
        let summary = &diff.summary;
        let services = (summary.services_added, summary.services_removed, summary.services_common);
        assert_eq!(services, (Some(4), Some(0), Some(2)));
        let classes = (summary.classes_added, summary.classes_removed, summary.classes_common);
        assert_eq!(classes, (Some(2), Some(0), Some(1)));
        assert_eq!((summary.latency_delta_ms, summary.latency_delta_pct), (Some(95.0), Some(100.0)));
        assert_eq!((summary.jitter_delta_ms, summary.diff_score), (Some(10.0), 50));
        assert_eq!((summary.packet_count_delta, summary.cip_count_delta), (Some(4), Some(4)));
        assert!(summary.has_significant_diff);
        let captures = diff.pcap_diff.unwrap();
        assert_eq!((captures.added_classes, captures.common_classes), (vec![1, 6], vec![4]));
        assert_eq!(captures.added_services[0].name, "Get_Attributes_All");
    }
}

/// Case 29: a capture does not differ from itself.
#[test]
fn golden_a_to_a_is_no_difference() {
    let diff = compare(&alone(a()), &alone(a()), None, &DiffOptions::default()).unwrap();
    assert_eq!((diff.summary.diff_score, diff.summary.has_significant_diff), (0, false));
    assert_eq!((diff.summary.services_common, diff.summary.latency_delta_ms), (Some(2), Some(0.0)));
}

#[test]
fn what_went_counts_like_what_came_and_parts_of_the_score_are_bounded() {
    let diff = compare(&alone(b()), &alone(a()), None, &DiffOptions::default()).unwrap();
    // 30 for four services, 10 for two classes, 10 for latency.
    assert_eq!((diff.summary.services_removed, diff.summary.diff_score), (Some(4), 50));
    assert_eq!(diff.summary.latency_delta_ms, Some(-95.0));
    let untimed =
        DiffOptions { skipped: Skipped { timing: true, intervals: true }, ..DiffOptions::default() };
    let diff = compare(&alone(b()), &alone(a()), None, &untimed).unwrap();
    assert_eq!(
        (diff.summary.diff_score, diff.summary.latency_delta_ms, diff.summary.jitter_delta_ms),
        (40, None, None)
    );
}

/// Case 30: a capture on one side only is an error that names the side.
#[test]
fn a_capture_on_one_side_only_is_refused() {
    let (with, without) = (bundle("x", Some(a()), 0, 1), bundle("y", None, 0, 1));
    let error = compare(&with, &without, Some("client"), &DiffOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "NEW has no capture of role `client`, the other side has one");
    let neither = compare(&without, &without, Some("client"), &DiffOptions::default()).unwrap();
    assert_eq!((neither.pcap_diff.as_ref(), neither.summary.services_added), (None, None));
    let text = render_diff(&RunDiff::One(Box::new(neither)), Style::Text);
    assert!(text.contains("Neither side has a capture"), "{text}");
}

/// Case 31: thresholds on A→B and A→A.
#[test]
fn thresholds_decide_by_signed_values() {
    let failed = |old: &Side, new: &Side, expr: &str| {
        compare(old, new, None, &options(&[expr])).unwrap().thresholds[0].failed
    };
    let (a, b) = (alone(a()), alone(b()));
    for expr in [
        "services_added",
        "latency_delta_ms>10",
        "latency_p95_delta_pct >= 100",
        "has_significant_diff",
        "diff_score==50",
    ] {
        assert!(failed(&a, &b, expr), "{expr} on A→B");
        assert!(!failed(&a, &a, expr), "{expr} on A→A");
    }
    assert!(!failed(&b, &a, "latency_delta_ms>5"));
    assert!(failed(&b, &a, "latency_delta_ms<=-95"));
    // Nothing to compare fails.
    assert!(failed(&a, &a, "duration_delta_s>1000") && failed(&a, &a, "metric:client/x.json#/y.delta"));
}

/// Case 31: a metric of a JSON artifact falls by a fifth.
#[test]
fn a_falling_metric_trips_its_threshold() {
    let (old, new) = (bundle("x", None, 0, 1000), bundle("y", None, 0, 800));
    let expr = "metric:client/out.json#/rps.delta_pct<-5";
    let diff = compare(&old, &new, Some("client"), &options(&[expr])).unwrap();
    let expected = ThresholdResult { expr: expr.to_owned(), value: Some(-20.0), failed: true };
    assert_eq!(diff.thresholds, [expected]);
    let same = compare(&old, &old, Some("client"), &options(&[expr])).unwrap();
    assert!(!same.thresholds[0].failed);
}

/// Section 8: how long the run took is a threshold, in seconds and in percent, with its sign.
#[test]
fn durations_trip_their_thresholds() {
    let (slow, fast) = (bundle("x", None, 0, 1000), bundle("y", None, 0, 800));
    let results = |old: &Side, new: &Side| -> Vec<(Option<f64>, bool)> {
        let options = options(&["duration_delta_s>10", "duration_delta_pct<-15", "duration_delta_s"]);
        let diff = compare(old, new, Some("client"), &options).unwrap();
        diff.thresholds.iter().map(|result| (result.value, result.failed)).collect()
    };
    assert_eq!(results(&slow, &fast), [(Some(-20.0), false), (Some(-20.0), true), (Some(-20.0), true)]);
    assert_eq!(results(&fast, &slow), [(Some(20.0), true), (Some(25.0), false), (Some(20.0), true)]);
    assert_eq!(results(&slow, &slow), [(Some(0.0), false), (Some(0.0), false), (Some(0.0), false)]);
}

#[test]
fn bundles_differ_in_outcome_duration_programs_and_files() {
    let (old, new) = (bundle("x", None, 0, 1000), bundle("y", None, 3, 800));
    let options = DiffOptions { ignored_lines: vec![Regex::new("^at ").unwrap()], ..DiffOptions::default() };
    let diff = compare(&old, &new, Some("client"), &options).unwrap();
    let generic = &diff.generic;
    assert_eq!(generic.files_added, ["client/y"]);
    assert_eq!(generic.files_removed, ["client/x"]);
    assert_eq!(generic.files_changed, ["client/out.json"]);
    let client = &generic.roles["client"];
    assert!(
        client.exit_code.changed && client.argv.changed && !client.signal.changed && client.status.changed
    );
    assert_eq!(client.versions.keys().collect::<Vec<_>>(), ["program_sha256"]);
    assert_eq!(client.duration_s.delta, Some(0.0));
    assert!(!generic.run.status.changed && generic.run.versions.is_empty());
    let summary = &diff.summary;
    assert_eq!((summary.exit_codes_changed, summary.text_lines_changed), (1, 2));
    assert_eq!((summary.duration_delta_s, summary.duration_delta_pct), (Some(-20.0), Some(-20.0)));
    assert_eq!(summary.diff_score, 0);
}

/// Case 30: the JSON form has the keys of the contract.
#[test]
fn the_json_form_has_its_keys_in_order_and_nulls() {
    let diff = compare(&alone(a()), &alone(b()), None, &options(&["services_added"])).unwrap();
    let json = serde_json::to_string(&RunDiff::One(Box::new(diff))).unwrap();
    let keys = [
        "schema",
        "role",
        "baseline_bundle",
        "compare_bundle",
        "baseline_pcap",
        "compare_pcap",
        "baseline_run_meta",
        "compare_run_meta",
        "baseline_role_meta",
        "compare_role_meta",
        "pcap_diff",
        "added_services",
        "removed_services",
        "common_services",
        "added_classes",
        "removed_classes",
        "common_classes",
        "baseline",
        "packets",
        "cip",
        "latency_ms",
        "intervals_ms",
        "compare",
        "packets",
        "cip",
        "latency_ms",
        "intervals_ms",
        "generic",
        "summary",
        "services_added",
        "diff_score",
        "thresholds",
        "expr",
        "value",
        "failed",
    ];
    let mut rest = json.as_str();
    for key in keys {
        let at = rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is missing in {rest}"));
        rest = &rest[at + 1..];
    }
    assert!(json.contains(r#""role":null,"baseline_bundle":"a.pcap""#), "{json}");
    assert!(json.contains(r#""baseline_run_meta":null"#), "{json}");
}

/// Case 30: Markdown has tables, text has the same facts.
#[test]
fn differences_can_be_read_by_people() {
    let (old, new) = (bundle("x", Some(a()), 0, 1000), bundle("y", Some(b()), 3, 800));
    let diff = compare(&old, &new, Some("client"), &options(&["services_added>1"])).unwrap();
    let diff = RunDiff::One(Box::new(diff));
    assert!(diff.has_failed());
    let page = render_diff(&diff, Style::Markdown);
    for part in [
        "| latency P95 ms | 95 | 190 | +95 | +100 |",
        "| added | 0x54 | Forward\\_Open | 0x06 | request |",
        "| client/out.json\\#/rps | 1000 | 800 | -200 | -20 |",
        "| client | exit code | 0 | 3 |",
        "| services\\_added>1 | 4 | failed |",
        "| diff\\_score | 50 |",
        "    -rate 1000",
    ] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    let text = render_diff(&diff, Style::Text);
    assert!(text.starts_with("x → y, role client\n"), "{text}");
    let raw = render_captures(&diff, Style::Text);
    assert!(
        raw.contains("Forward_Open") && !raw.contains("Outcomes") && !raw.contains("Conditions"),
        "{raw}"
    );
}

#[test]
fn all_roles_have_the_worst_summary_and_fail_together() {
    let with = |client: Capture, server: Capture| {
        let mut side = bundle("x", Some(client), 0, 1);
        side.roles.insert("server".to_owned(), RoleSide { capture: Some(server), ..RoleSide::default() });
        side
    };
    let (old, new) = (with(a(), a()), with(a(), b()));
    let roles = ["client".to_owned(), "server".to_owned()];
    let diff = compare_roles(&old, &new, &roles, &options(&["services_added", "services_removed"])).unwrap();
    assert_eq!((diff.summary.diff_score, diff.roles.len()), (50, 2));
    let failed: Vec<bool> = diff.thresholds.iter().map(|result| result.failed).collect();
    assert_eq!(failed, [true, false]);
    let json = serde_json::to_value(RunDiff::All(Box::new(diff.clone()))).unwrap();
    assert_eq!(json["roles"]["server"]["summary"]["diff_score"], 50);
    let text = render_diff(&RunDiff::All(Box::new(diff)), Style::Text);
    assert!(text.contains("server: Services") && text.contains("client: Captures"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_condition_is_read_or_refused(expr in "[a-z_:.#/<>=!0-9 -]{0,40}|metric:.{0,20}\\.delta.{0,5}|\\PC{0,30}") {
        if let Ok(threshold) = Threshold::parse(&expr) {
            let (old, new) = (bundle("x", None, 0, 1), bundle("y", None, 0, 2));
            let options = DiffOptions { thresholds: vec![threshold], ..DiffOptions::default() };
            let diff = compare(&old, &new, Some("client"), &options).unwrap();
            prop_assert_eq!(&diff.thresholds[0].expr, expr.trim());
        }
    }

    #[test]
    fn any_text_and_metadata_can_be_compared_and_shown(old in "\\PC{0,40}\n?\\PC{0,40}", new in any::<String>(), number in any::<f64>()) {
        let side = |text: &str, number: f64| {
            let mut side = bundle(text, None, 0, 1);
            if let Some(client) = side.roles.get_mut("client") {
                client.text.insert("t".to_owned(), text.to_owned());
                client.numbers.insert("n.json".to_owned(), numbers(&json!({ text: number })));
                client.role_meta = Some(json!({"started_at": text, "finished_at": number, "argv": text}));
            }
            side.run_meta = Some(json!(text));
            side
        };
        let diff = compare(&side(&old, number), &side(&new, 0.0), Some("client"), &DiffOptions::default()).unwrap();
        let diff = RunDiff::One(Box::new(diff));
        for style in [Style::Text, Style::Markdown] {
            let shown = render_diff(&diff, style);
            prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
