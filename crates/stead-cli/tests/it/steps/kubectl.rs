//! Documents of secret values in a cluster: through a stand-in that records, and the real client against a server here.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stead_model::base64;

use super::homelab::Homelab;
use crate::cases_17_32::lab::program;

/// The catalogue: two keys, one of which has its value from the environment.
fn catalogue(command: &str) -> String {
    format!(
        "\
api_version: v1
name: cloud
target: {{from: kubeconfig, default: nowhere}}
layers: [{{file: s.env, secret: true}}]
vars: {{API_KEY: {{}}, FROM_ENV: {{env: true}}}}
steps: {{hand-over: {{inputs: runtime}}}}
apply: [{{steps: [hand-over]}}]
delete: [{{steps: [hand-over]}}]
inputs:
  runtime:
    sink: {{kind: kubectl, command: {command}, namespace: flux-system, name: runtime-inputs, labels: {{tier: one}}, annotations: {{a/b: c}}}}
    keys: {{API_KEY: {{required: true}}, FROM_ENV: {{}}}}
"
    )
}

const SECRETS: [&str; 2] = ["very-secret-key", "secret-of-the-environment"];

/// Returns a lab whose target is the context `loop` of a kubeconfig that names the server at `port`.
fn lab(command: &str, port: u16) -> Homelab {
    let lab = Homelab::with(&catalogue(command));
    lab.write("s.env", format!("API_KEY={}\n", SECRETS[0]));
    lab.write(
        "kubeconfig",
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: loop\n\
             clusters: [{{name: here, cluster: {{server: \"http://127.0.0.1:{port}\"}}}}]\n\
             contexts: [{{name: loop, context: {{cluster: here, user: me}}}}]\nusers: [{{name: me, user: {{}}}}]\n"
        ),
    );
    lab
}

#[track_caller]
fn run(lab: &Homelab, args: &[&str], code: i32) -> Value {
    let args: Vec<&str> = ["steps", "run", "--json"].into_iter().chain(args.iter().copied()).collect();
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &args);
    command.env("KUBECONFIG", lab.path("kubeconfig")).env("FROM_ENV", SECRETS[1]);
    let ended: crate::cases_17_32::lab::Ended = command.output().unwrap().into();
    ended.exits(code).document()
}

/// A program that records what it is started with and answers `get` with a file.
fn stand_in(lab: &Homelab) {
    let dir = lab.path("seen").display().to_string();
    lab.write("seen/.keep", "");
    lab.script(
        "bin/kubectl",
        &format!(
            "printf '%s\\n' \"$*\" >>{dir}/argv\nenv >>{dir}/env\ncase \" $* \" in\n\
             *' get '*) [ ! -e {dir}/answer ] || cat {dir}/answer ;;\n\
             *' apply '*) cat >{dir}/stdin ;;\n*' delete '*) rm -f {dir}/answer ;;\nesac\n\
             if [ -e {dir}/fail ]; then echo \"refused: $(cat {dir}/fail)\" >&2; exit 3; fi\n"
        ),
    );
}

/// Section 9: what is asked and applied, and that values travel on standard input alone.
#[test]
fn values_travel_on_standard_input_alone() {
    let lab = lab("bin/kubectl", 1);
    stand_in(&lab);
    let report = run(&lab, &[], 0);
    assert_eq!(report["steps"]["target"], "loop");
    assert_eq!(
        report["steps"]["inputs"]["runtime"],
        json!({"changed": true, "added": ["API_KEY", "FROM_ENV"], "updated": [], "removed": []})
    );
    let argv = lab.read("seen/argv");
    assert_eq!(
        argv,
        "--context loop -n flux-system get secret runtime-inputs --ignore-not-found -o json\n\
         --context loop -n flux-system apply --server-side --force-conflicts --validate=false --field-manager=stead -f -\n"
    );
    let stdin = lab.read("seen/stdin");
    assert!(stdin.contains(&base64::encode(SECRETS[0].as_bytes())), "{stdin}");
    for secret in SECRETS {
        for form in [secret.to_owned(), base64::encode(secret.as_bytes())] {
            assert!(!argv.contains(&form) && !lab.read("seen/env").contains(&form), "{form}");
        }
    }

    let data = json!({"API_KEY": base64::encode(SECRETS[0].as_bytes()), "FROM_ENV": base64::encode(SECRETS[1].as_bytes())});
    let labels = json!({"app.kubernetes.io/managed-by": "stead", "tier": "one", "theirs": "kept"});
    let mut answer = json!({"kind": "Secret", "type": "Opaque", "metadata": {"labels": labels, "annotations": {"a/b": "c"}}, "data": data});
    lab.write("seen/answer", answer.to_string());
    assert_eq!(run(&lab, &[], 0)["tasks"][0]["status"], "unchanged");
    answer["data"]["API_KEY"] = base64::encode(b"old").into();
    answer["data"]["GONE"] = "".into();
    lab.write("seen/answer", answer.to_string());
    let updated = run(&lab, &[], 0);
    assert_eq!(
        updated["steps"]["inputs"]["runtime"],
        json!({"changed": true, "added": [], "updated": ["API_KEY"], "removed": ["GONE"]})
    );
    answer["metadata"]["annotations"] = json!({});
    answer["data"] = data;
    lab.write("seen/answer", answer.to_string());
    assert_eq!(run(&lab, &[], 0)["tasks"][0]["status"], "changed");

    let delete = ["--delete", "--confirm", "loop"];
    answer["metadata"]["labels"] = json!({});
    lab.write("seen/answer", answer.to_string());
    let foreign = run(&lab, &delete, 1);
    assert!(foreign["tasks"][0]["error"].as_str().unwrap().contains("does not carry the mark of Stead"));
    assert!(lab.path("seen/answer").exists());
    answer["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "stead"});
    lab.write("seen/answer", answer.to_string());
    assert_eq!(
        run(&lab, &delete, 0)["steps"]["inputs"]["runtime"]["removed"],
        json!(["API_KEY", "FROM_ENV"])
    );
    assert_eq!(run(&lab, &delete, 0)["tasks"][0]["status"], "unchanged");
}

/// Section 9: a failing client fails the step with what it said, masked.
#[test]
fn a_failing_client_fails_the_step_with_its_words_masked() {
    let lab = lab("bin/kubectl", 1);
    stand_in(&lab);
    lab.write("seen/fail", format!("{} and {}", SECRETS[0], base64::encode(SECRETS[1].as_bytes())));
    let report = run(&lab, &[], 1);
    assert_eq!(report["tasks"][0]["class"], "operation");
    let error = report["tasks"][0]["error"].as_str().unwrap();
    assert!(error.contains("refused: *** and ***"), "{error}");
    lab.replace("steps.yaml", "bin/kubectl", "no-such-kubectl");
    let missing = run(&lab, &[], 1);
    assert!(missing["tasks"][0]["error"].as_str().unwrap().contains("`no-such-kubectl` not found"));
}

/// The real client, against a server that knows Secrets and nothing else.
#[test]
fn the_real_client_hands_over_compares_and_deletes() {
    if program("kubectl").is_none() {
        return;
    }
    let server = Server::start();
    let lab = lab("kubectl", server.port);
    let first = run(&lab, &[], 0);
    assert_eq!(first["tasks"][0]["status"], "changed", "{first:#}");
    let stored = server.secret().unwrap();
    assert_eq!(stored["data"]["API_KEY"], base64::encode(SECRETS[0].as_bytes()));
    assert_eq!(stored["metadata"]["labels"]["app.kubernetes.io/managed-by"], "stead");
    assert_eq!(run(&lab, &[], 0)["tasks"][0]["status"], "unchanged");
    lab.write("s.env", "API_KEY=another-secret\n");
    assert_eq!(run(&lab, &[], 0)["steps"]["inputs"]["runtime"]["updated"], json!(["API_KEY"]));
    let asked = server.asked();
    assert!(
        asked.iter().any(|line| line.starts_with("PATCH ")
            && line.contains("fieldManager=stead")
            && line.contains("force=true")),
        "{asked:#?}"
    );
    assert_eq!(run(&lab, &["--delete", "--confirm", "loop"], 0)["tasks"][0]["status"], "changed");
    assert_eq!(server.secret(), None);
    assert_eq!(run(&lab, &["--delete", "--confirm", "loop"], 0)["tasks"][0]["status"], "unchanged");
}

/// As much of a cluster as one Secret needs.
struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    secret: Option<Value>,
    asked: Vec<String>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { port, state }
    }

    fn secret(&self) -> Option<Value> {
        self.state.lock().unwrap().secret.clone()
    }

    fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }
}

/// Answers requests until the client goes.
fn serve(stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let (status, answer) = answer(line.trim(), &body, &mut state.lock().unwrap());
        let text = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        let mut out = stream;
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(text.as_bytes())).is_err() {
            return;
        }
    }
}

fn answer(request: &str, body: &[u8], state: &mut State) -> (&'static str, Value) {
    const SECRET: &str = "/api/v1/namespaces/flux-system/secrets/runtime-inputs";
    state.asked.push(request.to_owned());
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    let missing = || {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "not found", "details": {"name": "runtime-inputs", "kind": "secrets"}});
        ("404 Not Found", status)
    };
    match (method, path) {
        ("GET", "/version") => ("200 OK", json!({"major": "1", "minor": "30", "gitVersion": "v1.30.0"})),
        ("GET", "/api") => {
            ("200 OK", json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))
        }
        ("GET", "/apis") => ("200 OK", json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})),
        ("GET", "/api/v1") => {
            let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
            let secrets = json!({"name": "secrets", "singularName": "secret", "namespaced": true, "kind": "Secret", "verbs": verbs});
            ("200 OK", json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [secrets]}))
        }
        ("GET", SECRET) => state.secret.clone().map_or_else(missing, |secret| ("200 OK", secret)),
        ("PATCH", SECRET) => {
            let text = String::from_utf8_lossy(body);
            let secret: Value = serde_saphyr::from_str(&text).unwrap();
            state.secret = Some(secret.clone());
            ("200 OK", secret)
        }
        ("DELETE", SECRET) => match state.secret.take() {
            Some(_) => ("200 OK", json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
            None => missing(),
        },
        _ => missing(),
    }
}
