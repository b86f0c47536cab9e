//! What one client may cost, and what it is told: connections, rates, heads, tokens that end while it waits.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use super::super::site;
use super::wire::{Serving, until};

/// A header that nobody looks at is no token: what needs none is counted, and who is refused keeps no connection.
#[test]
fn a_header_alone_does_not_escape_the_count() {
    let lab = site(&[("site.yaml", "server: {public_specs: true, limits: {anonymous_per_second: 5}}\n")]);
    let serving = Serving::start(&lab);
    for path in ["/health", "/nope", "/specs"] {
        let replies = serving.flood(30, path, "x");
        let refused = replies.iter().find(|reply| reply.status == 429);
        let refused = refused.unwrap_or_else(|| panic!("{path}: {replies:?}"));
        assert_eq!((refused.code().as_str(), refused.header("connection").as_str()), ("E105", "close"));
    }
}

/// What is no request is refused in our words, whatever was asked before it on the same connection.
#[test]
fn what_is_no_request_has_a_code() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let mut many = serving.connect();
    let fields: String = (0..80).map(|number| format!("A{number}: x\r\n")).collect();
    many.send(&format!("GET /health HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
    let refused = many.end();
    assert_eq!((refused.status, refused.code().as_str()), (413, "E103"), "{refused:?}");
    let mut second = serving.connect();
    second.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    let first = second.read_until("\"ok\"}");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    second.send("nonsense and more\r\n\r\n");
    let refused = second.end();
    assert_eq!((refused.status, refused.code().as_str()), (400, "E100"), "{refused:?}");
}

/// A connection that waits for its agent's next request is not told that the agent is slow.
#[test]
fn a_connection_may_rest_after_a_long_poll() {
    let lab = site(&[("site.yaml", "server: {limits: {header_seconds: 5}}\n")]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let poll = |wait: u64, more: &str| {
        format!(
            "GET /v1/nodes/edge/next?wait={wait} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
        )
    };
    let mut agent = serving.connect();
    agent.send(&poll(1, ""));
    assert!(agent.read_until("\r\n\r\n").starts_with("HTTP/1.1 204"));
    // Longer than a head may take.
    std::thread::sleep(Duration::from_millis(6500));
    agent.send(&poll(0, "Connection: close\r\n"));
    let next = agent.end();
    assert_eq!((next.status, next.body.as_str()), (204, ""), "{next:?}");
}

/// An answer goes on while its client takes its time, and what the client sends ahead does not get into it.
#[test]
fn an_answer_is_whole_however_slowly_it_is_taken() {
    let lab = site(&[("site.yaml", "server: {limits: {header_seconds: 5}}\n")]);
    let content = vec![b'x'; 24 << 20];
    lab.write("state/artifacts/image", &content);
    let hash = stead_model::plan::Digest::of(&content).to_string();
    let hash = hash.trim_start_matches("sha256:");
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let mut client = serving.connect();
    client.send(&format!(
        "GET /v1/artifacts/sha256/{hash} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\nGET /heal"
    ));
    let head = client.read_until("\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // Longer than a head may take; the answer is larger than all buffers on its way.
    std::thread::sleep(Duration::from_millis(6500));
    let mut body = vec![0; content.len()];
    client.stream().read_exact(&mut body).unwrap();
    assert!(body == content, "it is the file and nothing else");
    client.stream().write_all(b"th HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.end().status, 200, "the half that came ahead is the beginning of the next request");
}

/// Case 20: a poll that waits when its token is revoked is told so, and not what came after.
#[test]
fn a_poll_does_not_outlive_its_token() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let (token, ann) = (serving.mint(&["--node", "edge", "--spec", "base"]), serving.operator());
    let mut agent = serving.connect();
    agent.send(&format!(
        "GET /v1/nodes/edge/next?wait=55 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    ));
    until(|| serving.get("/v1/nodes/edge", &ann).json()["agent"] == "connected");
    lab.run(["token", "revoke", "--node", "edge"]).exits(0);
    let sent = serving.ask("POST", "/v1/nodes/edge/signals", &ann, r#"{"kind":"converge"}"#);
    assert_eq!(sent.status, 202);
    assert_eq!(agent.end().code(), "E303");
    let next = serving.mint(&["--node", "edge", "--spec", "base"]);
    assert_eq!(serving.get("/v1/nodes/edge/next", &next).json()["id"], sent.json()["id"]);
}
