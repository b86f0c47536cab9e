//! Tokens over HTTP.

use serde_json::json;

use super::super::{BASE, LOCAL, site, write};
use super::wire::Serving;

/// Case 19: the codes of refused tokens, over HTTP.
#[test]
fn refused_tokens_have_their_codes() {
    let lab = site(&[
        ("specs/posture.yaml", &BASE.replace("posture: local", "posture: gone")),
        ("specs/key.yaml", &BASE.replace("sudo: true}", "sudo: true, ssh_keys: [gone]}")),
        ("specs/broken.yaml", "schema_version: 1\nplatforms: 3\n"),
    ]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let (payload, mac) = token.split_once('.').unwrap();
    let changed = format!("{}A.{mac}", &payload[..payload.len() - 1]);
    let header = |value: &str| serving.request("GET", "/spec/edge", &[("Authorization", value)], "").end();
    for (value, code, status) in [
        (format!("Basic {token}"), "E300", 400),
        (format!("bearer {token}"), "E300", 400),
        (format!("Bearer  {token}"), "E300", 400),
        ("Bearer ".to_owned(), "E300", 400),
        (format!("Bearer {payload}"), "E300", 400),
        (format!("Bearer {token}.x"), "E300", 400),
        (format!("Bearer {token}="), "E300", 400),
        (format!("Bearer {}", "a".repeat(4097)), "E300", 400),
        (format!("Bearer {changed}"), "E301", 401),
    ] {
        let reply = header(&value);
        assert_eq!((reply.code().as_str(), reply.status), (code, status), "{value}");
        assert!(!reply.body.contains(payload), "nothing of a token is said back");
    }
    assert_eq!(serving.get("/spec/edge", "").code(), "E300");
    let bearer = format!("Bearer {token}");
    let twice = [("Authorization", bearer.as_str()), ("Authorization", bearer.as_str())];
    assert_eq!(serving.request("GET", "/spec/edge", &twice, "").end().code(), "E300");
    assert_eq!(serving.get("/spec/other", &token).code(), "E301");
    let expired = serving.mint(&["--node", "edge", "--spec", "base", "--iat", "1000", "--exp", "2000"]);
    assert_eq!(serving.get("/spec/edge", &expired).code(), "E302");
    for (spec, code, status) in
        [("gone", "E200", 404), ("posture", "E201", 404), ("key", "E202", 404), ("broken", "E400", 422)]
    {
        let token = serving.mint(&["--node", "edge", "--spec", spec]);
        let reply = serving.get("/spec/edge", &token);
        assert_eq!((reply.code().as_str(), reply.status), (code, status), "{spec}");
    }
    let elsewhere = site(&[]);
    let secrets = format!("auth:\n  signing_key: '{}'\n", "ee".repeat(32));
    write(&elsewhere, "secrets.yaml", &secrets);
    let foreign = elsewhere.run(["token", "mint", "--node", "edge", "--spec", "base"]).exits(0).stdout;
    assert_eq!(serving.get("/spec/edge", foreign.trim()).code(), "E301");
    let revoked = serving.mint(&["--node", "edge", "--spec", "base", "--jti", "given-away"]);
    serving.lab.run(["token", "revoke", "--jti", "given-away"]).exits(0);
    assert_eq!(serving.get("/spec/edge", &revoked).code(), "E303");
    super::wire::until(|| serving.log().contains("E303"));
    let log = serving.log();
    for code in ["E302", "E303"] {
        let line = log.lines().find(|line| line.contains(code)).unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["node"], &line["spec"]), (&json!("edge"), &json!("base")), "{line}");
        assert!(line["jti"].is_string(), "{line}");
    }
    assert!(!log.contains(payload) && !log.contains(mac), "no token is in the log");
}

/// Case 20: rotation, revocation and purposes, without a restart.
#[test]
fn keys_rotate_and_tokens_are_revoked_while_it_serves() {
    let lab = site(&[("postures/local.yaml", LOCAL)]);
    let serving = Serving::start(&lab);
    let old = serving.mint(&["--node", "edge", "--spec", "base"]);
    let rotated = lab.run(["token", "rotate", "--overlap", "1h", "--json"]).exits(0).document();
    assert_eq!(rotated["servers"], json!([serving.port]));
    let new = serving.mint(&["--node", "edge", "--spec", "base"]);
    for token in [&old, &new] {
        assert_eq!(serving.get("/spec/edge", token).status, 200);
    }
    lab.run(["token", "rotate", "--overlap", "1s"]).exits(0);
    super::wire::until(|| serving.get("/spec/edge", &new).code() == "E301");
    assert_eq!(serving.get("/spec/edge", &old).status, 200, "its own overlap goes on");

    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let spec_only = serving.mint(&["--node", "edge", "--spec", "base", "--aud", "spec"]);
    assert_eq!(serving.get("/spec/edge", &spec_only).status, 200);
    assert_eq!(serving.get("/v1/nodes/edge/next", &spec_only).code(), "E304");
    assert_eq!(serving.get("/v1/nodes/edge/next", &token).status, 204);
    assert_eq!(serving.get("/v1/nodes", &token).code(), "E304");
    assert_eq!(serving.get("/v1/nodes", &serving.operator()).status, 200);
    lab.run(["token", "revoke", &token]).exits(0);
    assert_eq!(serving.get("/spec/edge", &token).code(), "E303");
    assert_eq!(serving.get("/spec/edge", &spec_only).status, 200);
    lab.run(["token", "revoke", "--node", "edge"]).exits(0);
    assert_eq!(serving.get("/spec/edge", &spec_only).code(), "E303");

    // A broken spec is in nobody's way; a change that a server does not take is said.
    write(&lab, "specs/base.yaml", "schema_version: [");
    lab.run(["token", "revoke", "--jti", "x"]).exits(0);
    super::wire::kill(&serving.facts, rustix::process::Signal::STOP);
    lab.run(["token", "revoke", "--jti", "y"]).exits(1).says("a server does not know of the change");
}

/// Case 20: without a key nothing is answered that needs one.
#[test]
fn without_a_key_it_fails_closed() {
    let keyed = site(&[]);
    let token = keyed.run(["token", "mint", "--node", "edge", "--spec", "base"]).exits(0).stdout;
    for secrets in ["", "auth:\n  signing_key: 'short'\n", "auth: [\n"] {
        let lab = site(&[("secrets.yaml", secrets)]);
        let serving = Serving::start(&lab);
        assert_eq!(serving.get("/health", "").status, 200);
        let reply = serving.get("/spec/edge", token.trim());
        assert_eq!((reply.code().as_str(), reply.status), ("E500", 500), "{secrets}");
        let page = serving.get("/ui", token.trim());
        assert_eq!((page.status, page.header("www-authenticate").as_str()), (500, ""), "no token would do");
    }
}

/// A token is renewed for its own node, and comes with the pins.
#[test]
fn tokens_are_renewed_with_pins() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base", "--ttl", "1m"]);
    let renewed = serving.ask("POST", "/v1/nodes/edge/token", &token, "").json();
    assert_eq!(renewed["fingerprints"], json!([serving.facts["fingerprint"]]));
    assert_eq!(renewed["spki_pin"], serving.facts["spki_pin"]);
    let new = renewed["token"].as_str().unwrap();
    assert_ne!(new, token);
    assert_eq!(serving.get("/spec/edge", new).status, 200);
    assert_eq!(serving.ask("POST", "/v1/nodes/other/token", &token, "").code(), "E301");
}
