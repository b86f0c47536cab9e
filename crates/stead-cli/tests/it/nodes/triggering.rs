//! Triggers of plans that a server runs: hooks, schedules, agents.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use stead_model::node::{NodeEntry, NodesState};
use stead_model::plan::PlanRunState;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::{Mode, NodeType};
use stead_model::time::Timestamp;
use stead_model::{NodeName, SiteKey};
use stead_runner::clock;

use super::pulled::{Pulled, block_on, wait_for};
use super::submitting::{ask, finished, plans_of, runs, submit};

/// Posts to a hook over the server's socket; returns the status and the document.
fn post(pulled: &Pulled, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    ask(pulled, request.as_bytes())
}

/// A plan that notes what started it, with these triggers.
fn triggered(pulled: &Pulled, triggers: &str) -> String {
    let place = pulled.lab.root().display().to_string();
    format!(
        "api_version: v1\nname: triggered\nvars: {{tag: none}}\nsecrets: {{hook: {{file: {place}/hook-secret}}}}\ntriggers:\n{triggers}tasks:\n  - {{name: note, shell: \"echo {{{{ vars.tag | quote }}}} >> {place}/noted\"}}\n"
    )
}

/// Section 13: a hook starts a run for who knows its secret, one for each delivery, with variables from what it brings.
#[test]
fn a_hook_starts_one_run_for_each_delivery() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let hook = "  - {webhook: {path: /deploy/web, secret: hook}, vars: {tag: '{{ trigger.payload.tag }}'}}\n";
    submit(&pulled, &triggered(&pulled, hook), &["--wait"]).exits(0);
    let knock = |headers: &str, body: &str| post(&pulled, "/v1/hooks/deploy/web", headers, body);
    assert_eq!(knock("", "{}").0, 401);
    assert_eq!(knock("Authorization: Bearer wrong\r\n", "{}").0, 401);
    assert_eq!(post(&pulled, "/v1/hooks/other", "Authorization: Bearer open sesame\r\n", "{}").0, 404);
    let open = "Authorization: Bearer open sesame\r\nIdempotency-Key: d1\r\n";
    let (status, first) = knock(open, r#"{"tag": "v2"}"#);
    assert_eq!(status, 202, "{first}");
    assert_eq!(knock(open, r#"{"tag": "v2"}"#).1, first, "one run per delivery");
    // Signed instead, as forges do: HMAC-SHA256 of the body, here by another program.
    let signed = pulled.lab.path("body");
    fs::write(&signed, r#"{"tag": "v3"}"#).unwrap();
    let mac = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", "open sesame", "-r"])
        .arg(&signed)
        .output()
        .unwrap();
    let mac = String::from_utf8(mac.stdout).unwrap();
    let signature = format!("X-Hub-Signature-256: sha256={}\r\nX-GitHub-Delivery: d3\r\n", &mac[..64]);
    assert_eq!(knock(&signature, r#"{"tag": "v4"}"#).0, 401, "of another body");
    assert_eq!(knock(&signature, r#"{"tag": "v3"}"#).0, 202);
    let (status, refused) = knock("Authorization: Bearer open sesame\r\nIdempotency-Key: d2\r\n", "no tag");
    assert_eq!(status, 422, "{refused}");
    // One that is not understood would have a run each time it comes.
    let twice = "Authorization: Bearer open sesame\r\nIdempotency-Key: d4\r\nIdempotency-Key: d4\r\n";
    assert_eq!(knock(twice, r#"{"tag": "v5"}"#).0, 400);
    wait_for("all runs", || finished(&pulled) == 3);
    assert_eq!(pulled.lab.read("noted"), "none\nv2\nv3\n");
    let known = runs(&pulled);
    let trigger = known[1].trigger.as_ref().unwrap();
    let id = trigger["id"].as_str().unwrap();
    assert!(id.starts_with("webhook:triggered:") && id.ends_with(":d1"), "{id}");
    assert_eq!((&trigger["kind"], trigger.get("payload")), (&json!("webhook"), None), "lists stay short");
    let whole = block_on(pulled.client().plan_run(&known[1].run_id)).unwrap();
    assert_eq!(whole.trigger.unwrap()["payload"]["tag"], "v2");

    // A plan of this name without triggers takes them away.
    submit(&pulled, &triggered(&pulled, "  []\n"), &["--wait"]).exits(0);
    assert_eq!(knock(open, "{}").0, 404);
}

/// In microseconds.
const MINUTE: i64 = 60_000_000;

fn marks(pulled: &Pulled) -> PathBuf {
    plans_of(pulled).join("armed/triggered/marks.json")
}

/// Section 13: what a schedule missed while the server was down is made up for once, and never twice.
#[test]
fn a_missed_time_is_made_up_for_once() {
    let mut pulled = Pulled::new(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    pulled.lab.write("hook-secret", "open sesame\n");
    // Midnight of the first of January: it does not come while this runs.
    let schedule = "  - {schedule: {cron: '0 0 1 1 *', catch_up: one}}\n";
    submit(&pulled, &triggered(&pulled, schedule), &["--wait"]).exits(0);
    pulled.kill_server();
    let mut known: Value = serde_json::from_str(&fs::read_to_string(marks(&pulled)).unwrap()).unwrap();
    let name = known["seen"].as_object().unwrap().keys().next().unwrap().clone();
    known["seen"][&name] = json!("2020-06-01T00:00:00.000000Z");
    fs::write(marks(&pulled), known.to_string()).unwrap();
    pulled.start_server();
    wait_for("the run", || finished(&pulled) == 2);
    let id = runs(&pulled)[1].trigger.as_ref().unwrap()["id"].clone();
    assert!(id.as_str().unwrap().starts_with(&format!("schedule:triggered:{name}:20")), "{id}");
    for _ in 0..2 {
        pulled.kill_server();
        // As if it had been killed before it could remember.
        fs::write(marks(&pulled), known.to_string()).unwrap();
        pulled.start_server();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(runs(&pulled).len(), 2);
    }
}

/// Section 13: a schedule fires when its time has come, once; what it catches up with plays no part in that.
#[test]
fn a_schedule_fires_on_time() {
    let mut pulled = Pulled::new(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let before = clock::now();
    let armed = Timestamp::parse("2020-01-01T00:00:00Z").unwrap();
    let every = "  - {schedule: {cron: '* * * * *'}, vars: {tag: '{{ trigger.kind }} {{ trigger.time }}'}}\n";
    submit(&pulled, &triggered(&pulled, every), &["--wait"]).exits(0);
    pulled.kill_server();
    let mut known: Value = serde_json::from_str(&fs::read_to_string(marks(&pulled)).unwrap()).unwrap();
    let name = known["seen"].as_object().unwrap().keys().next().unwrap().clone();
    // Nobody looked since long ago: of all minutes since only the one that is now is on time.
    known["seen"][&name] = json!(armed);
    fs::write(marks(&pulled), known.to_string()).unwrap();
    pulled.start_server();
    wait_for("a run", || finished(&pulled) >= 2);
    let id = runs(&pulled)[1].trigger.as_ref().unwrap()["id"].as_str().unwrap().to_owned();
    let time = id.strip_prefix(&format!("schedule:triggered:{name}:")).unwrap();
    assert_eq!(pulled.lab.read("noted").lines().nth(1), Some(format!("schedule {time}").as_str()), "{id}");
    let time = Timestamp::parse(time).unwrap().as_micros();
    assert_eq!(time % MINUTE, 0, "{id}");
    assert!(before.as_micros() - MINUTE < time && time <= clock::now().as_micros(), "{id} after {before}");
}

/// Section 13: an agent that was there before a plan watches for it is not new, nor when the server comes back.
#[test]
fn an_agent_that_was_there_before_starts_no_run() {
    let mut pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let is_connected = |pulled: &Pulled| {
        pulled.status().is_some_and(|status| status.agent == stead_model::node::wire::AgentState::Connected)
    };
    pulled.make(Some(pulled.bootstrap("hybrid", &[])));
    wait_for("the agent", || is_connected(&pulled));
    submit(&pulled, &triggered(&pulled, "  - {agent_online: {match: 'ed*'}}\n"), &["--wait"]).exits(0);
    // Written down when it was first looked at.
    wait_for("somebody who looks", || plans_of(&pulled).join("online.json").exists());
    assert_eq!(runs(&pulled).len(), 1);
    pulled.kill_server();
    pulled.start_server();
    wait_for("the agent", || is_connected(&pulled));
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(runs(&pulled).len(), 1);
}

/// Section 13: an agent that comes online starts a run; one that stays starts none, also over a restart of the server.
#[test]
fn an_agent_that_comes_online_starts_a_run() {
    let mut pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let online = "  - {agent_online: {match: 'ed*'}, vars: {tag: '{{ trigger.agent }}'}}\n  - {agent_online: {match: other}}\n";
    submit(&pulled, &triggered(&pulled, online), &["--wait"]).exits(0);
    pulled.make(Some(pulled.bootstrap("hybrid", &[])));
    wait_for("the run", || finished(&pulled) == 2);
    assert_eq!(pulled.lab.read("noted"), "none\nedge\n");
    pulled.kill_server();
    pulled.start_server();
    wait_for("the agent", || {
        pulled.status().is_some_and(|status| status.agent == stead_model::node::wire::AgentState::Connected)
    });
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(runs(&pulled).len(), 2);
}

/// Section 13: `match` is a target, so an agent is welcomed by the labels that targets know its node by, too.
#[test]
fn an_agent_is_welcomed_by_the_labels_of_its_node() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let mut entry = NodeEntry::new(NodeType::Vm, DriverKind::Sandbox, Mode::Hybrid);
    entry.spec = SiteKey::parse("base").ok();
    let mut known = NodesState::new("m", "local");
    known.nodes.insert(NodeName::parse("edge").unwrap(), entry);
    let place = pulled.lab.path("state/nodes/local/m");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("state.json"), known.to_bytes()).unwrap();
    let online = "  - {agent_online: {match: 'spec:base&mode:hybrid'}, vars: {tag: '{{ trigger.agent }}'}}
  - {agent_online: {match: 'spec:other'}}\n";
    submit(&pulled, &triggered(&pulled, online), &["--wait"]).exits(0);
    pulled.make(Some(pulled.bootstrap("hybrid", &[])));
    wait_for("the run", || finished(&pulled) == 2);
    assert_eq!(pulled.lab.read("noted"), "none\nedge\n");
    assert_eq!(runs(&pulled).len(), 2, "of the other nobody came");
    let way = submit(&pulled, &triggered(&pulled, "  - {agent_online: {match: 'ssh://root@edge'}}\n"), &[]);
    assert!(way.exits(3).stderr.contains("means no agent"));
}

const OPEN: &str = "Authorization: Bearer open sesame\r\n";

/// A plan that notes what started it and waits until it may go on, with this hook.
fn waiting(pulled: &Pulled, settings: &str) -> String {
    let place = pulled.lab.root().display().to_string();
    let hook = format!("  - {{webhook: {{path: /w, secret: hook}}, {settings}}}\n");
    let wait = format!("note, shell: \"until test -e {place}/go; do sleep 0.05; done;");
    triggered(pulled, &hook).replace("note, shell: \"", &wait)
}

fn knock(pulled: &Pulled, delivery: &str) -> (u16, Value) {
    post(pulled, "/v1/hooks/w", &format!("{OPEN}Idempotency-Key: {delivery}\r\n"), "{}")
}

/// Section 13: `overlap` and `min_interval`; what was dropped has fired for good, whatever becomes of the file that says so.
#[test]
fn what_was_dropped_never_fires_again() {
    let mut pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    submit(&pulled, &waiting(&pulled, "overlap: skip, min_interval: 1h"), &[]).exits(0);
    assert_eq!(knock(&pulled, "d1").0, 200, "the submitted run goes on");
    pulled.lab.write("go", "");
    wait_for("the submitted run", || finished(&pulled) == 1);
    assert_eq!(knock(&pulled, "d2").0, 202);
    wait_for("its run", || finished(&pulled) == 2);
    let (status, dropped) = knock(&pulled, "d3");
    assert_eq!((status, dropped["dropped"].is_string()), (200, true), "an hour has not passed");
    pulled.kill_server();
    let spent = plans_of(&pulled).join("spent");
    let mut bytes = fs::read(&spent).unwrap();
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), 2);
    bytes.extend(b"\xff");
    fs::write(&spent, bytes).unwrap();
    pulled.start_server();
    for delivery in ["d1", "d3"] {
        let (status, answer) = knock(&pulled, delivery);
        assert_eq!(
            (status, &answer["dropped"]),
            (200, &json!("this trigger has fired before")),
            "{delivery}"
        );
    }
    assert_eq!(knock(&pulled, "d2").0, 202, "it has its run");
    assert_eq!(knock(&pulled, "d4").0, 200, "the hour goes on");
    assert_eq!(runs(&pulled).len(), 2);
}

/// Section 13: runs that wait for their turn, as they do unless a trigger says otherwise, come one after the other.
#[test]
fn runs_that_are_queued_come_one_after_the_other() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let place = pulled.lab.root().display().to_string();
    let note = |word: &str| format!("echo {word} {{{{ vars.tag | quote }}}} >> {place}/noted");
    let (begin, end) = (note("begin"), note("end"));
    let hook = "  - {webhook: {path: /w, secret: hook}, vars: {tag: '{{ trigger.payload.tag }}'}}\n";
    // Nothing else keeps them apart: they lock no hosts.
    let plan = triggered(&pulled, hook).replace("tasks:\n", "lock: false\ntasks:\n");
    let (head, _) = plan.split_once("  - {name: note").unwrap();
    let wait = format!("until test -e {place}/go; do sleep 0.05; done");
    let plan = format!("{head}  - {{name: note, shell: \"{begin}; {wait}; {end}\"}}\n");
    submit(&pulled, &plan, &[]).exits(0);
    for tag in ["d1", "d2", "d3"] {
        let headers = format!("{OPEN}Idempotency-Key: {tag}\r\n");
        assert_eq!(post(&pulled, "/v1/hooks/w", &headers, &json!({"tag": tag}).to_string()).0, 202);
    }
    // Who starts runs has looked at all of them when one that came later has ended.
    submit(&pulled, "api_version: v1\nname: other\ntasks: []\n", &["--wait"]).exits(0);
    let states: Vec<PlanRunState> = runs(&pulled).iter().map(|run| run.state).collect();
    let (running, queued) = (PlanRunState::Running, PlanRunState::Queued);
    assert_eq!(states, [running, queued, queued, queued, PlanRunState::Finished]);
    pulled.lab.write("go", "");
    wait_for("all of them", || finished(&pulled) == 5);
    let turns = ["none", "d1", "d2", "d3"].map(|tag| format!("begin {tag}\nend {tag}\n"));
    assert_eq!(pulled.lab.read("noted"), turns.concat());
}

/// Section 13: runs that meet at a host wait for each other.
#[test]
fn runs_that_meet_at_a_host_all_run() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    submit(&pulled, &waiting(&pulled, "overlap: parallel"), &[]).exits(0);
    for delivery in ["d1", "d2", "d3"] {
        assert_eq!(knock(&pulled, delivery).0, 202);
    }
    wait_for("all of them", || runs(&pulled).iter().all(|run| run.state == PlanRunState::Running));
    // One that waits for a host stops as others do.
    wait_for("one that has the host", || fs::read_dir(pulled.lab.path("state/runs")).unwrap().count() == 1);
    let begun = fs::read_dir(pulled.lab.path("state/runs")).unwrap().next().unwrap().unwrap().file_name();
    let stopped = runs(&pulled).into_iter().find(|run| run.run_id.as_str() != begun).unwrap().run_id;
    block_on(pulled.client().cancel_plan(&stopped)).unwrap();
    pulled.lab.write("go", "");
    wait_for("their ends", || finished(&pulled) == 4);
    let codes: Vec<Option<u8>> = runs(&pulled).iter().map(|run| run.exit_code).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 3, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(130)).count(), 1, "{codes:?}");
}

/// A run whose process cannot be started is no run that was killed: it waits, says why, and begins when it can.
#[test]
fn what_cannot_be_started_is_started_later() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    submit(&pulled, &waiting(&pulled, "overlap: queue"), &[]).exits(0);
    let (_, queued) = knock(&pulled, "d1");
    let id = stead_model::RunId::parse(queued["run_id"].as_str().unwrap()).unwrap();
    let obstacle = plans_of(&pulled).join("runs").join(id.as_str()).join("stderr.txt");
    fs::create_dir(&obstacle).unwrap();
    pulled.lab.write("go", "");
    let known = || block_on(pulled.client().plan_run(&id)).unwrap();
    wait_for("why", || known().error.is_some_and(|error| error.contains("cannot be started")));
    assert_eq!(known().state, PlanRunState::Queued);
    fs::remove_dir(&obstacle).unwrap();
    wait_for("its end", || known().state == PlanRunState::Finished);
    assert_eq!((known().exit_code, known().error), (Some(0), None));
}

/// Section 8: a secret that a hook's request brings is nowhere.
#[test]
fn a_secret_in_a_payload_is_masked() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let hook = "  - {webhook: {path: /w, secret: hook}, vars: {tag: 'it is {{ trigger.payload.secret }}'}}\n";
    submit(&pulled, &triggered(&pulled, hook), &["--wait"]).exits(0);
    assert_eq!(post(&pulled, "/v1/hooks/w", OPEN, r#"{"secret": "open sesame"}"#).0, 202);
    wait_for("its run", || finished(&pulled) == 2);
    assert_eq!(pulled.lab.read("noted"), "none\nit is ***\n");
    let plans = plans_of(&pulled).strip_prefix(pulled.lab.root()).unwrap().display().to_string();
    for (path, content) in pulled.lab.snapshot(&plans).into_iter().chain(pulled.lab.snapshot("state/runs")) {
        assert!(!content.contains("open sesame"), "{}", path.display());
    }
}

/// Nobody is listened to without a hook, or without a word of its secret.
#[test]
fn a_body_is_read_of_who_may_send_it() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    submit(&pulled, &triggered(&pulled, "  - {webhook: {path: /w, secret: hook}}\n"), &["--wait"]).exits(0);
    for (path, header, status) in
        [("other", OPEN, 404), ("w", "", 401), ("w", "Authorization: Bearer open door\r\n", 401)]
    {
        // Its body never comes.
        let request = format!(
            "POST /v1/hooks/{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n{header}\r\n"
        );
        assert_eq!(ask(&pulled, request.as_bytes()).0, status);
    }
}

/// A secret that lies where nothing answers holds up who asks for its hook, and nobody else.
#[test]
fn a_secret_that_cannot_be_read_holds_nobody_up() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    submit(&pulled, &triggered(&pulled, "  - {webhook: {path: /w, secret: hook}}\n"), &["--wait"]).exits(0);
    let secret = pulled.lab.path("hook-secret");
    fs::remove_file(&secret).unwrap();
    assert!(Command::new("mkfifo").arg(&secret).status().unwrap().success());
    let mut stream = UnixStream::connect(pulled.server["socket"].as_str().unwrap()).unwrap();
    stream
        .write_all(
            format!("POST /v1/hooks/w HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{OPEN}\r\n").as_bytes(),
        )
        .unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(stream.read(&mut [0]).is_err(), "it was answered");
    assert_eq!(runs(&pulled).len(), 1);
    submit(&pulled, "api_version: v1\nname: other\ntasks: []\n", &["--wait"]).exits(0);
}
