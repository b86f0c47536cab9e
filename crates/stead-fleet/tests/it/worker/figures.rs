//! What Prometheus sees of a worker.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use stead_fleet::events::Events;
use stead_fleet::worker::{self, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::yard::{Yard, kill, vm};

/// What a daemon says, as somebody beside it reads it.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    /// Waits until it is said where the figures are, and returns the address.
    async fn address(&self) -> String {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
            if let Some((_, rest)) = text.split_once("figures at http://") {
                return rest.split_once("/metrics").unwrap().0.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it does not say where its figures are");
    }
}

async fn ask(address: &str, head: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{head} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Waits until the figures have this line.
async fn until(address: &str, line: &str) {
    let begun = Instant::now();
    let mut last = String::new();
    while begun.elapsed() < Duration::from_secs(60) {
        last = ask(address, "GET /metrics", "localhost").await;
        if last.lines().any(|found| found == line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there is no `{line}`: {last}");
}

/// Section 15: a worker's figures are at `/metrics` of `observe`, for this machine alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_shows_its_figures() {
    let yard = Yard::new();
    let said = Said::default();
    let events = Events::at(&yard.path("state/fleet/events")).with_copy(Box::new(said.clone()));
    let settings = Settings { events: Some(Arc::new(events)), ..yard.settings() };
    let stop = CancellationToken::new();
    let running = worker::run(settings, yard.stage.clone(), stop.clone());
    let looking = async {
        let address = said.address().await;
        let spec = vm("web", json!({"runtime": yard.sleeper("web", "one")}));
        yard.assign(7, &[("web/0", &spec)]);
        yard.until_ready("web/0", &spec).await;
        until(&address, "stead_fleet_instances{state=\"running\"} 1").await;
        for line in
            ["stead_fleet_generation 7", "stead_fleet_restarts_total 0", "stead_fleet_fetch_bytes_total 0"]
        {
            until(&address, line).await;
        }
        kill(yard.pid("web/0"), "-KILL");
        until(&address, "stead_fleet_restarts_total 1").await;
        let text = ask(&address, "GET /metrics", "localhost").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        let beats = text.lines().find_map(|line| line.strip_prefix("stead_fleet_heartbeats_total ")).unwrap();
        assert!(beats.parse::<u64>().unwrap() > 0, "{text}");
        assert!(text.contains("\nstead_fleet_heartbeat_rejected_total "), "{text}");
        for (head, host, wanted) in [
            ("GET /metrics", "evil.example", "403"),
            ("GET /", "localhost", "404"),
            ("POST /metrics", "localhost", "405"),
        ] {
            let text = ask(&address, head, host).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {wanted}")), "{head}: {text}");
        }
        // Section 10: what is older than what is applied is ignored, and counted.
        yard.assign(6, &[]);
        let begun = Instant::now();
        while ask(&address, "GET /metrics", "localhost").await.contains("_ignored_total 0\n") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not counted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        yard.assign(8, &[]);
        yard.until_gone("web/0").await;
        until(&address, "stead_fleet_instances{state=\"running\"} 0").await;
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(running, looking);
    ended.unwrap();
}
