//! Plans that a server runs: submitted, triggered, taken up again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use stead_drivers::server_client::{ClientError, Submitted};
use stead_model::plan::{PlanRun, PlanRunState, PlanSubmission};

use super::pulled::{Pulled, block_on, wait_for};
use super::tls::Canned;
use crate::cases_17_32::lab::{Ended, kill};

/// Three tasks, one of them skipped.
const CHAIN: &str = "api_version: v1
name: chain
vars: {word: hello}
tasks:
  - {name: a, shell: \"echo {{ vars.word | quote }}\"}
  - {name: b, depends_on: a, exec: ['true'], changed_when: 'false'}
  - {name: c, depends_on: b, only_if_changed: true, exec: ['true']}
";

pub(super) fn submit(pulled: &Pulled, plan: &str, args: &[&str]) -> Ended {
    pulled.lab.write("plan.yaml", plan);
    let words = ["plan", "submit", "plan.yaml", "--site", "site-config", "--json"];
    pulled.lab.run(words.into_iter().chain(args.iter().copied()))
}

pub(super) fn runs(pulled: &Pulled) -> Vec<PlanRun> {
    block_on(pulled.client().plans()).unwrap()
}

fn submission(pulled: &Pulled, plan: &str, key: &str) -> PlanSubmission {
    pulled.lab.write("other.yaml", plan);
    let shown = pulled.lab.run(["plan", "show", "other.yaml", "--json"]).exits(0).document();
    serde_json::from_value(json!({
        "plan": shown["compiled"], "plan_hash": shown["plan_hash"], "source": plan, "idempotency_key": key,
    }))
    .unwrap()
}

pub(super) fn finished(pulled: &Pulled) -> usize {
    runs(pulled).iter().filter(|run| run.state == PlanRunState::Finished).count()
}

/// Returns where the server keeps its plans.
pub(super) fn plans_of(pulled: &Pulled) -> PathBuf {
    let port = pulled.server["port"].as_u64().unwrap();
    pulled.lab.path(&format!("state/server/server-{port}.plans"))
}

/// Asks over the server's socket; returns the status and the document.
pub(super) fn ask(pulled: &Pulled, request: &[u8]) -> (u16, Value) {
    let mut stream = UnixStream::connect(pulled.server["socket"].as_str().unwrap()).unwrap();
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

/// Submits a plan over the server's socket; returns the status and the document.
fn post(pulled: &Pulled, submission: &PlanSubmission) -> (u16, Value) {
    let body = serde_json::to_string(submission).unwrap();
    let head = format!(
        "POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    ask(pulled, [head.as_bytes(), body.as_bytes()].concat().as_slice())
}

/// Returns name, status and changed of every task of a report.
fn rows(report: &Value) -> Vec<Value> {
    let tasks = report["tasks"].as_array().unwrap_or_else(|| panic!("{report}"));
    tasks.iter().map(|row| json!([row["name"], row["status"], row["changed"], row["reason"]])).collect()
}

/// Case 31: a submitted plan ends as a local one does.
#[test]
fn a_submitted_plan_has_the_report_of_a_local_run() {
    let pulled = Pulled::new(&[]);
    let ended = submit(&pulled, CHAIN, &["--wait", "--var", "word=moin"]).exits(0).document();
    let local =
        pulled.lab.run(["plan", "run", "plan.yaml", "--json", "--var", "word=moin"]).exits(0).document();
    assert_eq!(rows(&ended), rows(&local));
    assert_eq!((&ended["plan_hash"], &ended["counts"]), (&local["plan_hash"], &local["counts"]));
    // It is recorded as every run is.
    let run = ended["run_id"].as_str().unwrap();
    let events = pulled.lab.events(run);
    assert_eq!(events.last().unwrap()["ev"], "run_finished");
    let known = &runs(&pulled)[0];
    assert_eq!((known.run_id.as_str(), known.state, known.exit_code), (run, PlanRunState::Finished, Some(0)));
    let all = block_on(pulled.client().plan_events(&known.run_id, 0, Duration::ZERO)).unwrap();
    assert_eq!(all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(), events.len());

    let failing = CHAIN.replace("exec: ['true'], changed_when", "exec: ['false'], changed_when");
    let failed = submit(&pulled, &failing, &["--wait"]).exits(1).document();
    assert_eq!(failed["status"], "failed");
}

/// Case 31: one key is one run; refusals have their exit codes.
#[test]
fn one_key_is_one_run() {
    let pulled = Pulled::new(&[]);
    let client = pulled.client();
    let first = submission(&pulled, CHAIN, "k1");
    let take = |submission: &PlanSubmission| match block_on(client.submit_plan(submission)).unwrap() {
        Submitted::Run(run) => run.run_id,
        Submitted::Invalid(problems) => panic!("{problems:?}"),
    };
    let run = take(&first);
    assert_eq!(take(&first), run);
    let (status, answer) = post(&pulled, &first);
    let url = format!("/v1/plans/{run}");
    assert_eq!((status, answer), (202, json!({"run_id": run, "url": url})));
    let other = submission(&pulled, &CHAIN.replace("hello", "bye"), "k1");
    let refused = block_on(client.submit_plan(&other)).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 409, .. }), "{refused}");
    assert_eq!(runs(&pulled).len(), 1);
    let bent = PlanSubmission { plan_hash: other.plan_hash, idempotency_key: "k2".to_owned(), ..first };
    let Submitted::Invalid(problems) = block_on(client.submit_plan(&bent)).unwrap() else { panic!("taken") };
    assert!(problems[0]["message"].as_str().unwrap().contains("hash"), "{problems:?}");
    let (status, answer) = post(&pulled, &bent);
    assert_eq!((status, &answer["error"]["code"]), (422, &json!("E400")), "{answer}");
    assert_eq!(
        answer["diagnostics"],
        json!(problems),
        "every invalid submission says what is wrong in one shape"
    );

    // What this program can compile and that server cannot run.
    let mut unknown = submission(&pulled, CHAIN, "k3");
    let text = serde_json::to_string(&unknown.plan).unwrap().replace("command.exec", "no.such");
    unknown.plan = serde_json::from_str(&text).unwrap();
    unknown.plan_hash = unknown.plan.seal();
    let Submitted::Invalid(problems) = block_on(client.submit_plan(&unknown)).unwrap() else {
        panic!("taken")
    };
    assert!(problems.iter().any(|problem| problem["code"] == "plan/unknown-operation"), "{problems:?}");

    submit(&pulled, &CHAIN.replace("only_if_changed: true", "confirm: sure?"), &[]).exits(6);
    submit(&pulled, CHAIN, &["--key", "a b"]).exits(2);
    pulled.lab.write("token", pulled.token(&[]));
    let server = ["--server", pulled.url(), "--fingerprint", pulled.fingerprint(), "--token-file", "token"];
    submit(&pulled, CHAIN, &server).exits(1);
    submit(&pulled, CHAIN, &["--server", "https://127.0.0.1:1", "--insecure", "--token-file", "token"])
        .exits(7);
    assert_eq!(runs(&pulled).len(), 1);

    // Section 13: `--token-file` may be left out; then the token is in the environment.
    let server = ["--server", pulled.url(), "--fingerprint", pulled.fingerprint()];
    submit(&pulled, CHAIN, &server).exits(2).says("--token-file").says("STEAD_TOKEN");
    let minted = ["token", "mint", "--node", "ann", "--aud", "operator", "--site", "site-config"];
    let token = pulled.lab.run(minted).exits(0).stdout;
    let words = ["plan", "submit", "plan.yaml", "--json"].into_iter().chain(server);
    let taken: Ended = pulled.lab.stead(words).env("STEAD_TOKEN", token.trim()).output().unwrap().into();
    taken.exits(0);
    assert_eq!(runs(&pulled).len(), 2);
}

/// Contract, section 13: what a server finds wrong with a plan that is good here ends the command with 3, and is shown in
/// the server's words. Our server finds what we find, so another one says what ours says of a plan that nobody can write.
#[test]
fn a_plan_that_only_the_server_refuses_is_invalid() {
    let pulled = Pulled::new(&[]);
    let mut unknown = submission(&pulled, CHAIN, "k1");
    let text = serde_json::to_string(&unknown.plan).unwrap().replace("command.exec", "no.such");
    unknown.plan = serde_json::from_str(&text).unwrap();
    unknown.plan_hash = unknown.plan.seal();
    let (status, answer) = post(&pulled, &unknown);
    assert_eq!((status, &answer["error"]["code"]), (422, &json!("E400")), "{answer}");

    let refusing = Canned::start(&pulled.lab, &[("422 Unprocessable Entity", "", &answer.to_string())]);
    pulled.lab.write("token", pulled.token(&[]));
    let server = ["--server", &refusing.url, "--fingerprint", &refusing.fingerprint, "--token-file", "token"];
    let shown = submit(&pulled, CHAIN, &server).exits(3).document();
    assert_eq!(shown["diagnostics"], answer["diagnostics"]);
    assert_eq!(refusing.asked().len(), 1, "it is not asked again");
    let words = ["plan", "submit", "plan.yaml", "--site", "site-config"];
    let said = pulled.lab.run(words.into_iter().chain(server)).exits(3);
    assert_eq!(said.stdout, "");
    assert!(
        said.stderr.contains("error[plan/unknown-operation]: ") && said.stderr.contains("no.such"),
        "{said:?}"
    );
    assert_eq!(runs(&pulled).len(), 0);
}

/// The process of a run, if it is there.
fn keepers(pulled: &Pulled) -> Vec<u32> {
    let own = pulled.lab.root().display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("\0plan\0keep\0") && line.contains(&own)
        })
        .collect()
}

/// Case 31: server and run are killed; a new server takes the run up again, and who waits hears of its end.
#[test]
fn a_run_is_taken_up_again_after_a_crash() {
    let mut pulled = Pulled::new(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: long\ntasks:\n  - {{name: one, shell: 'echo 1 >> {place}/did'}}\n  - {{name: two, depends_on: one, idempotent: true, shell: 'echo 2 >> {place}/did; test -e {place}/go || sleep 60'}}\n"
    );
    pulled.lab.write("plan.yaml", &plan);
    let words = ["plan", "submit", "plan.yaml", "--site", "site-config", "--json", "--wait"];
    let mut waiting = pulled.lab.stead(words);
    let waiting =
        waiting.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_for("the second task", || pulled.lab.read("did").contains('2'));
    pulled.kill_server();
    for pid in keepers(&pulled) {
        kill(pid, Signal::KILL);
    }
    pulled.lab.write("go", "");
    pulled.start_server();
    let ended: Ended = waiting.wait_with_output().unwrap().into();
    let report = ended.exits(0).document();
    assert_eq!((&report["status"], &report["segments"]), (&json!("success"), &json!(2)));
    assert_eq!(pulled.lab.read("did"), "1\n2\n2\n");
    assert_eq!(runs(&pulled).len(), 1);
}

/// A run outlives its server; cancelling is a first signal.
#[test]
fn a_run_is_cancelled_as_by_a_signal() {
    let mut pulled = Pulled::new(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: long\ntasks: [{{name: one, shell: 'touch {place}/began; sleep 60'}}]\nfinally: [{{name: last, shell: 'touch {place}/last'}}]\n"
    );
    let run = submit(&pulled, &plan, &[]).exits(0).document();
    assert_eq!(run["url"], format!("/v1/plans/{}", run["run_id"].as_str().unwrap()));
    wait_for("its task", || pulled.lab.path("began").exists());
    pulled.lab.run(["server", "stop"]).exits(0);
    assert_eq!(keepers(&pulled).len(), 1, "it goes on without the server");
    pulled.start_server();
    let id = runs(&pulled)[0].run_id.clone();
    assert_eq!(runs(&pulled)[0].state, PlanRunState::Running);
    block_on(pulled.client().cancel_plan(&id)).unwrap();
    wait_for("its end", || runs(&pulled)[0].state == PlanRunState::Finished);
    assert_eq!(runs(&pulled)[0].exit_code, Some(130));
    assert!(pulled.lab.path("last").exists(), "`finally` ran");
    let report = block_on(pulled.client().plan_run(&id)).unwrap().report.unwrap();
    assert_eq!(report["status"], "cancelled");
}

/// Contract, section 13: a run that failed is not run again because the process that ran it died before it could say so.
#[test]
fn a_run_that_failed_is_not_run_again_after_a_crash() {
    let mut pulled = Pulled::new(&[]);
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: failing\ntasks: [{{name: one, shell: 'echo 1 >> {place}/did; exit 1'}}]\nfinally: [{{name: last, shell: 'echo last >> {place}/did'}}]\n"
    );
    let run = submit(&pulled, &plan, &["--wait"]).exits(1).document()["run_id"].as_str().unwrap().to_owned();
    pulled.kill_server();
    // As if it had died right after its last event.
    fs::remove_file(plans_of(&pulled).join("runs").join(&run).join("end.json")).unwrap();
    for name in ["report.json", "hashes.txt"] {
        fs::remove_file(pulled.lab.bundle(&run).join(name)).unwrap();
    }
    pulled.start_server();
    wait_for("its end", || finished(&pulled) == 1);
    assert_eq!(pulled.lab.read("did"), "1\nlast\n");
    assert_eq!(pulled.lab.events(&run).iter().filter(|event| event["ev"] == "run_resumed").count(), 0);
    let known = block_on(pulled.client().plan_run(&runs(&pulled)[0].run_id)).unwrap();
    assert_eq!((known.exit_code, &known.report.unwrap()["status"]), (Some(1), &json!("failed")));
    pulled.lab.verify(&run);
}

/// A cancel that was answered is carried out, whoever is killed meanwhile.
#[test]
fn a_cancel_outlives_the_process_that_was_told() {
    let pulled = Pulled::new(&[]);
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: long\ntasks:\n  - {{name: one, idempotent: true, shell: 'touch {place}/began; test -e {place}/go || sleep 60'}}\n  - {{name: two, depends_on: one, shell: 'touch {place}/two'}}\nfinally: [{{name: last, shell: 'touch {place}/last'}}]\n"
    );
    submit(&pulled, &plan, &[]).exits(0);
    wait_for("its task", || pulled.lab.path("began").exists());
    let id = runs(&pulled)[0].run_id.clone();
    let keeper = keepers(&pulled)[0];
    kill(keeper, Signal::STOP);
    block_on(pulled.client().cancel_plan(&id)).unwrap();
    pulled.lab.write("go", "");
    kill(keeper, Signal::KILL);
    wait_for("its end", || finished(&pulled) == 1);
    assert_eq!(runs(&pulled)[0].exit_code, Some(130));
    assert!(!pulled.lab.path("two").exists() && pulled.lab.path("last").exists());

    // However early it comes.
    for _ in 0..3 {
        let plan = format!(
            "api_version: v1\nname: early\ntasks: [{{name: one, shell: 'sleep 60; touch {place}/late'}}]\n"
        );
        let run = submit(&pulled, &plan, &[]).exits(0).document();
        let id = stead_model::RunId::parse(run["run_id"].as_str().unwrap()).unwrap();
        block_on(pulled.client().cancel_plan(&id)).unwrap();
        let known = || block_on(pulled.client().plan_run(&id)).unwrap();
        wait_for("its end", || known().state == PlanRunState::Finished);
        assert_eq!(known().exit_code, Some(130));
    }
}

/// Section 2: a run that cannot start still has a report, with the error.
#[test]
fn a_run_that_cannot_start_says_why() {
    let pulled = Pulled::new(&[]);
    let plan = "api_version: v1\nname: secretive\nsecrets: {pass: {file: /nowhere/at/all}}\ntasks: [{name: one, exec: ['true'], params: {env: {P: '{{ secrets.pass }}'}}}]\n";
    let report = submit(&pulled, plan, &["--wait"]).exits(3).document();
    assert_eq!((&report["tasks"][0]["status"], &report["exit_code"]), (&json!("not_run"), &json!(3)));
    assert!(report["errors"][0]["message"].as_str().unwrap().contains("secret `pass`"), "{report}");
    assert!(runs(&pulled)[0].error.as_ref().unwrap().contains("secret `pass`"));
    let words = ["plan", "submit", "plan.yaml", "--site", "site-config", "--wait"];
    pulled.lab.run(words).exits(3).says("cannot read secret `pass`");
}

/// A plan whose run is known is armed: who asks again with the same key is told no less.
#[test]
fn a_plan_that_was_accepted_is_armed() {
    let pulled = Pulled::new(&[]);
    pulled.lab.write("hook-secret", "open sesame\n");
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: armed\nsecrets: {{hook: {{file: {place}/hook-secret}}}}\ntriggers: [{{webhook: {{path: /a, secret: hook}}}}]\ntasks: []\n"
    );
    let obstacle = plans_of(&pulled).join("armed/armed");
    fs::write(&obstacle, "").unwrap();
    submit(&pulled, &plan, &["--key", "k"]).exits(7);
    assert_eq!(runs(&pulled).len(), 0);
    fs::remove_file(&obstacle).unwrap();
    submit(&pulled, &plan, &["--key", "k", "--wait"]).exits(0);
    let knock = "POST /v1/hooks/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: Bearer open sesame\r\n\r\n";
    assert_eq!(ask(&pulled, knock.as_bytes()).0, 202);

    // Its hook is no other plan's.
    submit(&pulled, &plan.replace("name: armed", "name: aaa"), &[]).exits(1).says("that of the plan `armed`");
    submit(&pulled, &plan.replace("path: /a", "path: /b"), &["--wait"]).exits(0);
    submit(&pulled, &plan.replace("name: armed", "name: aaa"), &["--wait"]).exits(0);
}

/// Who waits for events of a run is answered when the server stops, and asks the next one.
#[test]
fn who_waits_for_events_is_answered_when_the_server_stops() {
    let mut pulled = Pulled::new(&[]);
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: long\ntasks: [{{name: one, shell: 'touch {place}/began; until test -e {place}/go; do sleep 0.1; done'}}]\n"
    );
    let run = submit(&pulled, &plan, &[]).exits(0).document()["run_id"].as_str().unwrap().to_owned();
    wait_for("its task", || pulled.lab.path("began").exists());
    let request = format!(
        "GET /v1/plans/{run}/events?after=1000&wait=50 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    );
    let mut stream = UnixStream::connect(pulled.server["socket"].as_str().unwrap()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    // It is in its hands when another that came later is answered.
    runs(&pulled);
    pulled.lab.run(["server", "stop"]).exits(0);
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 204"), "{text}");
    pulled.lab.write("go", "");
    pulled.start_server();
    wait_for("its end", || finished(&pulled) == 1);
}

/// Plans that nobody serves because the server has another port now are told of.
#[test]
fn plans_of_a_server_that_does_not_run_are_told_of() {
    let mut pulled = Pulled::new(&[]);
    let plan = "api_version: v1\nname: nightly\ntriggers: [{schedule: {cron: '0 0 1 1 *'}}]\ntasks: []\n";
    submit(&pulled, plan, &["--wait"]).exits(0);
    let before = pulled.server["port"].to_string();
    pulled.lab.run(["server", "stop"]).exits(0);
    let free = stead_testkit::sshd::free_port().to_string();
    pulled.server = pulled.lab.run(["server", "start", "-p", &free, "--json"]).exits(0).document();
    let told = format!("plans of a server at port {before} are armed or unfinished");
    pulled.lab.run(["server", "status", "-p", &free]).exits(0).says(&told);
}

/// Section 9: what a server was told outlives it also where any port will do and its own is taken when it comes back: jobs,
/// hooks, and runs that went on without it.
#[test]
fn what_a_server_was_told_goes_along_to_another_port() {
    let manifest = super::manifest("  - {name: edge, type: vm, spec: base}\n");
    let files = [("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n"), ("manifests/m.yaml", &manifest)];
    let mut pulled = Pulled::new(&files);
    pulled.lab.write("hook-secret", "open sesame\n");
    let place = pulled.lab.root().display().to_string();
    let plan = format!(
        "api_version: v1\nname: long\nsecrets: {{hook: {{file: {place}/hook-secret}}}}\ntriggers: [{{webhook: {{path: /w, secret: hook}}}}]\ntasks: [{{name: one, shell: 'echo began >> {place}/noted; until test -e {place}/go; do sleep 0.05; done'}}]\n"
    );
    submit(&pulled, &plan, &[]).exits(0);
    wait_for("its task", || pulled.lab.path("noted").exists());
    let job = pulled.lab.run(["job", "submit", "--node", "edge", "--", "true"]).exits(0).stdout;
    let before = u16::try_from(pulled.server["port"].as_u64().unwrap()).unwrap();
    pulled.kill_server();
    let mut taken = None;
    wait_for("the port", || {
        taken = std::net::TcpListener::bind(("127.0.0.1", before)).ok();
        taken.is_some()
    });
    pulled.start_server();
    assert_ne!(pulled.server["port"], before);
    let shown = pulled.lab.run(["job", "show", job.trim(), "--json"]).exits(0).document();
    assert_eq!(shown["state"], "queued");
    let knock = "POST /v1/hooks/w HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\nAuthorization: Bearer open sesame\r\n\r\n";
    assert_eq!(ask(&pulled, knock.as_bytes()).0, 202);
    assert_eq!((runs(&pulled).len(), runs(&pulled)[0].state), (2, PlanRunState::Running));
    pulled.lab.write("go", "");
    wait_for("their ends", || finished(&pulled) == 2);
    assert!(runs(&pulled).iter().all(|run| run.exit_code == Some(0)), "{:?}", runs(&pulled));
    assert_eq!(pulled.lab.read("noted"), "began\nbegan\n", "the first went on, the second came after it");

    // From there on it is its port.
    let second = pulled.server["port"].clone();
    drop(taken);
    pulled.lab.run(["server", "stop"]).exits(0);
    pulled.start_server();
    assert_eq!((&pulled.server["port"], runs(&pulled).len()), (&second, 2));
}
