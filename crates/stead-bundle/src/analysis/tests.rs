//! Whole captures, from bytes to summary.

mod formats;
mod hostile;
mod protocol;
mod streams;

use std::collections::BTreeMap;

use super::testing::*;
use super::*;

fn analyzed(capture: &[u8]) -> Capture {
    analyze(capture, "test.pcap", &AnalysisOptions::default()).unwrap()
}

/// Case 29: the golden captures of the contract.
#[test]
fn golden_a_has_its_figures() {
    let a = analyzed(&golden_a());
    assert_eq!((a.packets, a.cip.messages, a.cip.requests, a.cip.responses), (211, 200, 100, 100));
    let latency = &a.latency_ms;
    assert_eq!((latency.count, latency.unanswered), (100, 0));
    let figures = [latency.p50, latency.p95, latency.p99, latency.mean, latency.min, latency.max];
    assert_eq!(figures, [Some(50.0), Some(95.0), Some(99.0), Some(50.5), Some(1.0), Some(100.0)]);
    assert_eq!((a.enip.frames, a.enip.resync_bytes, a.tcp.flows), (211, 0, 1));
    assert_eq!((a.io.packets, a.io.flows.len(), a.io.intervals_ms.count), (11, 1, 10));
    assert_eq!((a.io.intervals_ms.jitter, a.io.intervals_ms.violations), (Some(0.0), 0));
    assert_eq!(a.io.flows[0].src, shown((CLIENT.0, 2222)));
    assert_eq!((a.truncated, a.truncated_packets, a.cip.malformed), (false, 0, 0));
    let services: Vec<(u8, &str, u16, bool, u64)> =
        a.cip.services.iter().map(|s| (s.service, s.name.as_str(), s.class, s.response, s.count)).collect();
    let name = "Get_Attribute_Single";
    assert_eq!(services, [(0x0e, name, 0, true, 100), (0x0e, name, 4, false, 100)]);
    assert_eq!(a.cip.classes, [4]);
}

/// Case 29: the golden captures of the contract.
#[test]
fn golden_b_has_its_figures() {
    let b = analyzed(&golden_b());
    assert_eq!((b.packets, b.cip.messages, b.latency_ms.count), (215, 204, 102));
    assert_eq!((b.latency_ms.p95, b.io.intervals_ms.jitter), (Some(190.0), Some(10.0)));
    assert_eq!((b.io.intervals_ms.violations, b.io.intervals_ms.violation_pct), (2, Some(20.0)));
    assert_eq!(b.cip.classes, [1, 4, 6]);
}

#[test]
fn a_summary_has_the_keys_of_the_contract_in_order() {
    let capture = serde_json::to_string(&analyzed(&golden_a())).unwrap();
    let keys = [
        "path",
        "bytes",
        "packets",
        "truncated",
        "truncated_packets",
        "first",
        "last",
        "enip",
        "frames",
        "requests",
        "responses",
        "commands",
        "resync_bytes",
        "cip",
        "messages",
        "services",
        "service",
        "name",
        "class",
        "response",
        "count",
        "classes",
        "status",
        "embedded",
        "unknown_services",
        "malformed",
        "paths_top",
        "latency_ms",
        "count",
        "min",
        "max",
        "mean",
        "p50",
        "p90",
        "p95",
        "p99",
        "unanswered",
        "io",
        "packets",
        "flows",
        "src",
        "dst",
        "connection_id",
        "packets",
        "mean_ms",
        "jitter_ms",
        "intervals_ms",
        "count",
        "min",
        "max",
        "mean",
        "std_dev",
        "jitter",
        "p50",
        "p90",
        "p95",
        "p99",
        "expected",
        "violations",
        "violation_pct",
        "tcp",
        "flows",
        "retransmits",
        "out_of_order",
        "lost_segments",
        "resets",
    ];
    let mut rest = capture.as_str();
    for key in keys {
        let at = rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is missing in {rest}"));
        rest = &rest[at + 1..];
    }
    let status = r#""status":{"0x00":100}"#;
    assert!(
        capture.contains(status) && capture.contains(r#""first":"2023-11-14T22:13:20.000000Z""#),
        "{capture}"
    );
    assert!(capture.contains(r#""commands":{"SendRRData":200,"SendUnitData":11}"#), "{capture}");
}

#[test]
fn captures_are_analysed_side_by_side_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let sources: Vec<CaptureSource> = (0..5)
        .map(|index| {
            let path = directory.path().join(format!("{index}.pcap"));
            let bytes = if index == 3 { b"no capture at all".to_vec() } else { golden_a() };
            std::fs::write(&path, bytes).unwrap();
            CaptureSource { path, name: format!("roles/client/{index}.pcap") }
        })
        .collect();
    for jobs in [0, 1, 3, 99] {
        let results = analyze_files(&sources, &AnalysisOptions::default(), jobs);
        let names: Vec<String> = results
            .into_iter()
            .map(|result| result.map_or_else(|error| error.to_string(), |capture| capture.path))
            .collect();
        assert_eq!(names[4], "roles/client/4.pcap");
        assert!(names[3].starts_with("roles/client/3.pcap is not a capture"), "{names:?}");
        assert_eq!(names.len(), 5);
    }
}

#[test]
fn a_client_is_compared_with_a_server() {
    let (a, b) = (analyzed(&golden_a()), analyzed(&golden_b()));
    let roles = BTreeMap::from([
        ("client".to_owned(), (RoleKind::Task, vec![b])),
        ("server".to_owned(), (RoleKind::Service, vec![a])),
        ("idle".to_owned(), (RoleKind::Task, vec![])),
    ]);
    let summary = summarize(roles, &AnalysisOptions::default());
    assert_eq!(summary.ports, [2222, 44818]);
    assert_eq!(summary.roles.len(), 2);
    let compare = summary.compare.unwrap();
    assert_eq!(compare.drop_rate, Some(0.018605));
    assert_eq!(compare.services_missing_at_server.len(), 4);
    assert!(!compare.latency_flag);
    assert_eq!(compare.latency_ratio, Some(0.509496));
}
