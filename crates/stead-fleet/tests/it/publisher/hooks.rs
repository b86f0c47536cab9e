//! Hooks: a signed request means "look now", and nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use stead_model::fleet::webhook::is_signed;

use super::world::{Daemon, TestMaster, World};

const BODY: &str = r#"{"ref":"refs/heads/main"}"#;
const GOOD: &str = "sha256=d63fd8813bffaa25c0628456e58cf73409501acf93c857de82029409be3ea833";
/// The signature of a body that is one byte too large.
const LARGE: &str = "sha256=5a84c2a2bf2dddcb51b74deac833bee7484ef023d2577b81489921990bf6b3de";

fn send(port: u16, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let host = if head.contains("Host:") { "" } else { "Host: x\r\n" };
    let request =
        format!("{head}\r\n{host}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Case 7: the vector is 202 and a look; anything else is 401 and none, and a body over 1 MiB is 413 and none, signed or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_signed_hook_makes_it_look() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    fs::write(world.path("secret"), "s3cret-hook-key\n").unwrap();
    let port = stead_testkit::sshd::free_port();
    let more =
        format!("webhook: {{listen: '127.0.0.1:{port}', secret_file: {}}}\n", world.path("secret").display());
    let mut settings = world.settings(&more);
    settings.file.poll = std::time::Duration::from_secs(3600);
    let metrics = Arc::clone(&settings.metrics);
    let daemon = Daemon::start(settings, &master);
    master.wait("the first commit", |master| master.active("default").is_some()).await;
    world.write("README", "2");
    world.commit("second");

    let hook = |header: &str, body: &str| {
        status(&send(port, &format!("POST /hooks/git HTTP/1.1\r\nX-Hub-Signature-256: {header}"), body))
    };
    assert_eq!(hook(&GOOD.replace('d', "c"), BODY), 401);
    assert_eq!(hook(GOOD, "{}"), 401);
    assert_eq!(status(&send(port, "POST /hooks/git HTTP/1.1", BODY)), 401);
    assert_eq!(status(&send(port, "POST /elsewhere HTTP/1.1", BODY)), 404);
    assert_eq!(status(&send(port, "GET /hooks/git HTTP/1.1", "")), 405);
    let large = "x".repeat((1 << 20) + 1);
    assert!(is_signed(b"s3cret-hook-key", large.as_bytes(), LARGE), "whoever sends it may");
    assert_eq!(hook(LARGE, &large), 413);
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(master.active("default").unwrap().number, 1, "nobody who may not made it look");

    assert_eq!(hook(GOOD, BODY), 202);
    master
        .wait("the second commit", |master| master.active("default").is_some_and(|on| on.number == 2))
        .await;
    // The master has it a moment before the publisher hears so.
    master.wait("its number", |_| metrics.to_text().contains("stead_fleet_head_generation 2")).await;
    let told = send(port, "GET /metrics HTTP/1.1", "");
    assert!(told.contains("stead_fleet_head_generation 2"), "{told}");
    master.wait("it is counted", |_| metrics.to_text().contains("stead_fleet_publish_seconds_count 2")).await;
    daemon.stop().await;
}

/// Section 15: a publisher without hooks shows its figures, too, to this machine alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_shows_its_figures() {
    let world = World::new();
    let master = TestMaster::of(&world);
    world.small_site();
    world.commit("first");
    let port = stead_testkit::sshd::free_port();
    let settings = world.settings(&format!("observe: 127.0.0.1:{port}\n"));
    let daemon = Daemon::start(settings, &master);
    master.wait("the first commit", |master| master.active("default").is_some()).await;
    master
        .wait("its figures", |_| {
            send(port, "GET /metrics HTTP/1.1\r\nHost: localhost", "")
                .contains("stead_fleet_head_generation 1\n")
        })
        .await;
    assert_eq!(status(&send(port, "GET /metrics HTTP/1.1", "")), 403, "of a page elsewhere");
    assert_eq!(status(&send(port, "POST /metrics HTTP/1.1", "")), 405);
    daemon.stop().await;
}
