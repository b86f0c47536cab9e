//! What people see of a master, over HTTP.

use std::sync::Arc;
use std::time::Duration;

use stead_fleet::api::{Master as _, PipelineReport, WatcherReport};
use stead_fleet::master::Observe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::yard::*;

pub(super) async fn ask(port: u16, head: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Section 15: page, status, health and figures; nothing else, and nothing can be changed.
#[tokio::test]
async fn a_master_shows_itself() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 1, "default", vms("default", &[("web", 2, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    let listener = Observe::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let observe = Observe { tls: None, check: Arc::new(|_| false) };
    let serving = observe.serve(listener, master, stop.clone());
    let looking = async {
        let (head, body) = ask(port, "GET /").await;
        assert!(
            head.starts_with("HTTP/1.1 200") && head.contains("content-security-policy: default-src 'none'"),
            "{head}"
        );
        assert!(body.contains("data-root=\"data/\""));
        let (_, body) = ask(port, "GET /data/about").await;
        assert_eq!(body, r#"{"title":"fleet","views":["fleet"]}"#);
        assert_eq!(ask(port, "GET /data/fleet").await.1, ask(port, "GET /status.json").await.1);
        let (head, body) = ask(port, "GET /status.json").await;
        assert!(head.contains("application/json"));
        let shown: serde_json::Value = serde_json::from_str(&body).unwrap();
        check(&shown);
        assert_eq!(shown["state"], "converged");
        let (head, body) = ask(port, "HEAD /status.json").await;
        assert!(
            head.contains("content-length: ") && !head.contains("content-length: 0") && body.is_empty(),
            "{head}"
        );
        let (head, body) = ask(port, "GET /healthz").await;
        assert!(head.starts_with("HTTP/1.1 200"));
        assert_eq!(body, "leader\n");
        let (_, body) = ask(port, "GET /metrics").await;
        for line in [
            "stead_fleet_leader 1",
            "stead_fleet_generation{group=\"default\"} 1",
            "stead_fleet_head_generation{group=\"default\"} 1",
            "stead_fleet_convergence_ratio 1.00",
            "stead_fleet_instances{state=\"converged\"} 2",
            "stead_fleet_workers{state=\"ready\"} 1",
            "stead_fleet_rollout_held 0",
            "stead_fleet_brake_active 0",
            "stead_fleet_publish_seconds_count 1",
        ] {
            assert!(body.lines().any(|found| found == line), "{line}\n{body}");
        }
        let watcher = WatcherReport { last_poll: 1_700_000_000_000, ..WatcherReport::default() };
        let report = PipelineReport { watcher, groups: Vec::new() };
        running.handle().report_pipeline(report).await.unwrap();
        let (_, body) = ask(port, "GET /metrics").await;
        for name in [
            "last_poll_age_seconds",
            "heartbeats_total",
            "heartbeat_rejected_total",
            "assignment_seconds_count",
            "store_txn_seconds_sum",
        ] {
            assert!(body.contains(&format!("\nstead_fleet_{name} ")), "{name}");
        }
        // Section 15: labels are bounded, and none is an instance.
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let label =
                line.split_once('{').and_then(|(_, rest)| rest.split_once('=')).map(|(label, _)| label);
            assert!(label.is_none_or(|label| ["group", "state", "le"].contains(&label)), "{line}");
        }
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let (head, _) = ask(port, &format!("{method} /status.json")).await;
            assert!(head.starts_with("HTTP/1.1 405") && head.contains("allow: GET, HEAD"), "{head}");
        }
        assert!(ask(port, "GET /else").await.0.starts_with("HTTP/1.1 404"));
        stop.cancel();
    };
    tokio::join!(serving, looking);
    running.stop().await;
}
