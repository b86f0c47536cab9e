//! Signals, jobs and reports over the wire.

use serde_json::{Value, json};
use stead_testkit::browser::Browser;

use super::super::{manifest, site};
use super::wire::{Serving, until};

const DIGEST: &str = "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f";

fn complete() -> String {
    json!({"kind": "config", "status": "complete", "spec": "base", "spec_digest": DIGEST, "state_digest": DIGEST,
        "changed": 2, "duration_seconds": 0.5})
    .to_string()
}

/// A signal reaches the agent that waits; its report reaches the operator who waits.
#[test]
fn signals_and_reports_meet_who_waits_for_them() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let (token, ann) = (serving.mint(&["--node", "edge", "--spec", "base"]), serving.operator());
    assert_eq!(serving.get("/v1/nodes/edge", &ann).code(), "E200");
    let agent = serving.begin("GET", "/v1/nodes/edge/next?wait=30", &token, "");
    until(|| serving.get("/v1/nodes/edge", &ann).json()["agent"] == "connected");
    let follower = serving.begin("GET", "/v1/nodes/edge?after=0&wait=30", &ann, "");
    let sent = serving.ask("POST", "/v1/nodes/edge/signals", &ann, r#"{"kind":"converge"}"#);
    assert_eq!(sent.status, 202);
    let signal = agent.end().json();
    assert_eq!((&signal["kind"], &signal["id"]), (&json!("converge"), &sent.json()["id"]));
    assert_eq!(serving.get("/v1/nodes/edge/next", &token).status, 204, "it is delivered once");
    for _ in 0..2 {
        let first = serving.get("/v1/nodes/edge/next?after=0", &token).json();
        assert_eq!(first["id"], sent.json()["id"], "until an agent has taken one down, nothing is lost");
    }
    let after = sent.json()["id"].as_str().unwrap().to_owned();
    let again = serving.get(&format!("/v1/nodes/edge/next?after={after}"), &token);
    assert_eq!(again.status, 204);

    assert_eq!(serving.ask("POST", "/v1/nodes/edge/reports", &token, &complete()).status, 202);
    let followed = follower.end().json();
    assert_eq!(followed["spec_digest"], DIGEST);
    assert_eq!(followed["reports"][0]["changed"], 2);
    let seq = followed["seq"].as_u64().unwrap();
    let nothing = serving.get(&format!("/v1/nodes/edge?after={seq}&wait=0"), &ann).json();
    assert_eq!(nothing["reports"], json!([]));
    let all = serving.get("/v1/nodes", &ann).json();
    assert_eq!(all["nodes"][0]["node"], "edge");
    let waiting = serving.get("/v1/nodes/later?after=0&wait=0", &ann).json();
    assert_eq!(waiting["agent"], "none", "who waits for a node need not know it");

    for (path, body, code) in [
        ("/v1/nodes/edge/signals", r#"{"kind":"dance"}"#, "E400"),
        ("/v1/nodes/edge/signals", r#"{"kind":"job"}"#, "E400"),
        ("/v1/nodes/edge/signals", "", "E400"),
        ("/v1/jobs", r#"{"node":"edge","argv":[]}"#, "E400"),
        ("/v1/jobs", r#"{"node":"ghost","argv":["true"]}"#, "E200"),
    ] {
        assert_eq!(serving.ask("POST", path, &ann, body).code(), code, "{path} {body}");
    }
    assert_eq!(serving.ask("POST", "/v1/nodes/edge/reports", &token, "{}").code(), "E400");
    let audit = lab.read("state/server/audit.log");
    assert!(audit.contains("\"by\":\"ann@desk\"") && audit.contains("converge"), "{audit}");
}

/// A connection goes on after a long-poll, whatever was sent in the meantime; a newer poll ends the older.
#[test]
fn a_connection_outlives_its_long_polls() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let (token, ann) = (serving.mint(&["--node", "edge", "--spec", "base"]), serving.operator());
    let poll = |wait: u64, more: &str| {
        format!(
            "GET /v1/nodes/edge/next?wait={wait} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
        )
    };
    let is_connected = || serving.get("/v1/nodes/edge", &ann).json()["agent"] == "connected";
    let mut older = serving.connect();
    older.send(&poll(30, ""));
    until(is_connected);
    assert_eq!(serving.get("/v1/nodes/edge/next", &token).status, 204);
    older.send(&poll(0, "Connection: close\r\n"));
    let both = older.end();
    assert_eq!((both.status, both.body.starts_with("HTTP/1.1 204")), (204, true), "{both:?}");

    let mut agent = serving.connect();
    agent.send(&poll(30, ""));
    agent.send(&poll(30, "Connection: close\r\n"));
    let sent = [(); 2].map(|()| {
        let sent = serving.ask("POST", "/v1/nodes/edge/signals", &ann, r#"{"kind":"converge"}"#);
        sent.json()["id"].to_string()
    });
    let all = agent.end();
    assert_eq!(all.status, 200, "{all:?}");
    assert!(sent.iter().all(|id| all.body.contains(id)), "{all:?}");
}

/// Case 35: jobs, signals and reports outlive a crash, and a job that was not delivered runs once.
#[test]
fn what_was_promised_outlives_a_crash() {
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm}\n"))]);
    let mut serving = Serving::start(&lab);
    let (token, ann) = (serving.mint(&["--node", "edge", "--spec", "base"]), serving.operator());
    let submit = |serving: &Serving<'_>, ttl: &str| {
        let body = json!({"node": "edge", "argv": ["echo", "hi"], "ttl": ttl}).to_string();
        let reply = serving.ask("POST", "/v1/jobs", &ann, &body);
        assert_eq!(reply.status, 202, "{reply:?}");
        reply.json()["id"].as_str().unwrap().to_owned()
    };
    let state = |serving: &Serving<'_>, id: &str| serving.get(&format!("/v1/jobs/{id}"), &ann).json();
    let id = submit(&serving, "1h");
    serving.ask("POST", "/v1/nodes/edge/reports", &token, &complete());
    serving.crash_and_start();
    assert_eq!(state(&serving, &id)["state"], "queued");
    assert_eq!(serving.get("/v1/nodes/edge", &ann).json()["state_digest"], DIGEST);
    let order = serving.get("/v1/nodes/edge/next", &token).json();
    assert_eq!(order["payload"]["argv"], json!(["echo", "hi"]));
    serving.crash_and_start();
    assert_eq!(state(&serving, &id)["state"], "delivered");
    assert_eq!(serving.get("/v1/nodes/edge/next", &token).status, 204, "not twice");

    let report = |status: &str, more: Value| {
        let mut body = json!({"kind": "job", "status": status, "id": id});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serving.ask("POST", &format!("/v1/nodes/edge/reports?job={id}"), &token, &body.to_string())
    };
    assert_eq!(report("running", json!({})).status, 202);
    assert_eq!(state(&serving, &id)["state"], "running");
    let large = "\u{1}".repeat(1 << 20);
    assert_eq!(report("complete", json!({"rc": 0, "stdout": large, "stderr": "warned"})).status, 202);
    serving.crash_and_start();
    let ended = state(&serving, &id);
    assert_eq!(
        (&ended["state"], &ended["rc"], &ended["stderr"]),
        (&json!("succeeded"), &json!(0), &json!("warned"))
    );
    assert_eq!(ended["stdout"].as_str().unwrap().len(), 1 << 20);

    let cancelled = submit(&serving, "1h");
    assert_eq!(
        serving.ask("DELETE", &format!("/v1/jobs/{cancelled}"), &ann, "").json()["state"],
        "cancelled"
    );
    assert_eq!(serving.ask("DELETE", &format!("/v1/jobs/{cancelled}"), &ann, "").code(), "E401");
    let late = submit(&serving, "1s");
    until(|| state(&serving, &late)["state"] == "expired");
    assert_eq!(serving.get("/v1/nodes/edge/next", &token).status, 204);
    assert_eq!(serving.get("/v1/jobs/j99999", &ann).code(), "E200");
    let running = submit(&serving, "1h");
    serving.get("/v1/nodes/edge/next", &token);
    assert_eq!(serving.ask("DELETE", &format!("/v1/jobs/{running}"), &ann, "").status, 202);
    let order = serving.get("/v1/nodes/edge/next", &token).json();
    assert_eq!(order["payload"], json!({"action": "cancel", "job": running}));
    let listed = serving.get("/v1/jobs", &ann).json();
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 4);
}

#[test]
fn manifests_are_shown_with_what_is_wrong_with_them() {
    let lab = site(&[
        ("manifests/m.yaml", &manifest("  - {name: edge, type: vm, spec: base}\n")),
        ("manifests/n.yaml", "schema_version: 2\nname: n\nnodes: []\n"),
    ]);
    let serving = Serving::start(&lab);
    let ann = serving.operator();
    let listed = serving.get("/v1/manifests", &ann).json();
    assert_eq!(listed["manifests"][0], json!({"name": "m", "valid": true, "pattern": "flat", "nodes": 1}));
    assert_eq!(listed["manifests"][1]["valid"], false);
    let shown = serving.get("/v1/manifests/m", &ann).json();
    assert_eq!(shown["nodes"][0]["spec_digest"], DIGEST);
    assert_eq!(serving.get("/v1/manifests/x", &ann).code(), "E200");
    assert_eq!(serving.get("/v1/manifests", "").code(), "E300");
}

/// Section 11: the page shows nodes, jobs and runs to operators, by a password too, and holds no secret and no program.
#[test]
fn the_page_is_for_operators() {
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm, spec: base}\n"))]);
    let serving = Serving::start(&lab);
    let ann = serving.operator();
    let job = json!({"node": "edge", "argv": ["/bin/<b>", "a-word"]});
    assert_eq!(serving.ask("POST", "/v1/jobs", &ann, &job.to_string()).status, 202);
    let shown = serving.get("/ui", &ann);
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert!(shown.header("content-security-policy").contains("default-src 'none'"));
    assert!(shown.body.contains("data-root=\"ui/data/\""));
    let data = |question: &str| serving.get(&format!("/ui/data/{question}"), &ann).json();
    assert_eq!(data("about")["views"], json!(["nodes", "jobs", "runs"]));
    let jobs = data("jobs")["jobs"].to_string();
    assert!(jobs.contains("/bin/<b>") && !jobs.contains("a-word"), "{jobs}");
    assert_eq!(data("runs")["runs"], json!([]));
    assert_eq!(data("nodes")["nodes"][0]["node"], "edge");
    for bad in ["fleet", "runs/none", "runs/none/events"] {
        assert_eq!(serving.get(&format!("/ui/data/{bad}"), &ann).status, 404, "{bad}");
    }
    assert_eq!(serving.get("/ui/data/runs/..%2f..", &ann).code(), "E100");
    assert_eq!(serving.get("/ui/data/jobs", "").code(), "E300");
    let password = stead_model::base64::encode(format!("ann:{ann}").as_bytes());
    let basic = format!("Basic {password}");
    assert_eq!(serving.request("GET", "/ui", &[("Authorization", basic.as_str())], "").end().status, 200);
    let stranger = serving.get("/ui", "");
    assert_eq!(
        (stranger.status, stranger.header("www-authenticate").as_str()),
        (401, "basic realm=\"stead\"")
    );
    let node = serving.mint(&["--node", "edge", "--spec", "base"]);
    assert_eq!(serving.get("/ui", &node).status, 401);
    assert_eq!(serving.ask("POST", "/ui", &ann, "").code(), "E102");
}

/// An operator signs in with a browser: nodes, jobs and runs are seen, and change while they are looked at.
#[test]
fn the_page_is_seen_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: edge, type: vm, spec: base}\n"))]);
    let serving = Serving::start(&lab);
    let ann = serving.operator();
    let page = format!("https://127.0.0.1:{}/ui", serving.port);
    browser.look(390, "dark");
    // Without a token nothing is shown.
    browser.trust("ann", &serving.mint(&["--node", "edge", "--spec", "base"]));
    browser.open(&page);
    browser.until("document.readyState === 'complete'");
    assert!(!browser.text().contains("Nodes"), "{}", browser.text());
    let submit = |program: &str| {
        let job = json!({"node": "edge", "argv": [program, "a-word"]});
        assert_eq!(serving.ask("POST", "/v1/jobs", &ann, &job.to_string()).status, 202);
    };
    submit("/bin/<b>");
    browser.trust("ann", &ann);
    browser.open(&page);
    browser.until_text("edge");
    assert_eq!(browser.ask("document.documentElement.scrollWidth <= innerWidth"), json!(true));
    browser.press("Jobs");
    browser.until_text("/bin/<b>");
    submit("/bin/later");
    browser.until_text("/bin/later");
    assert!(!browser.text().contains("a-word"), "{}", browser.text());
    browser.press("Runs");
    browser.until_text("There are no runs");
}
