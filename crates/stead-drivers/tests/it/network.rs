//! Requests and waits against a real loopback server; assertions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::{Request, Response};
use serde_json::{Value, json};
use stead_model::ErrorClass;
use stead_runner::operation::{Action, Cancel, Entry, OpContext, OpError, Outcome, Stop};
use stead_testkit::context::{Scope, context, params};
use tokio::sync::watch;

use crate::contract::sh;
use crate::server::{Answer, with_server, with_tls_server};

fn action(name: &str) -> Arc<dyn Action> {
    match stead_drivers::Drivers::standard().get(name) {
        Some(Entry::Action(action)) => action.clone(),
        Some(Entry::State(_)) | None => panic!("{name} is no action"),
    }
}

async fn run(cx: &OpContext, name: &str, values: Value) -> Result<Outcome, OpError> {
    action(name).run(cx, &params(values)).await
}

fn echo() -> Answer {
    Arc::new(|request: Request<()>, body| {
        let status = request.uri().path().trim_start_matches('/').parse().unwrap_or(200);
        let said = json!({
            "method": request.method().as_str(), "path": request.uri().to_string(),
            "content_type": request.headers().get("content-type").map(|value| value.to_str().unwrap()),
            "token": request.headers().get("x-token").map(|value| value.to_str().unwrap()),
            "body": String::from_utf8(body).unwrap(),
        });
        let body = if request.uri().path() == "/long" { "x".repeat(3 << 20) } else { said.to_string() };
        Response::builder()
            .status(status)
            .header("X-Two", "a")
            .header("x-two", "b")
            .body(Full::from(body))
            .unwrap()
    })
}

/// Section 8: GET and HEAD are reads, which take no lock and may be done again; what a template gives is not known.
#[test]
fn only_get_and_head_are_reads() {
    use stead_model::Effect;
    let action = action("http.request");
    let effect =
        |method: Value| action.descriptor().effect_with(|name| (name == "method").then_some(&method));
    for (method, wanted) in [
        (json!("GET"), Effect::Read),
        (json!("HEAD"), Effect::Read),
        (json!("OPTIONS"), Effect::Command),
        (json!("POST"), Effect::Command),
        (Value::Null, Effect::Command),
    ] {
        assert_eq!(effect(method.clone()), wanted, "{method}");
    }
    assert_eq!(action.descriptor().effect_with(|_| None), Effect::Read, "the default is GET");
}

#[tokio::test]
async fn a_request_arrives_whole_and_so_does_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    with_server(echo(), |url| async move {
        let get = run(&cx, "http.request", json!({"url": format!("{url}/a?b=c")})).await.unwrap();
        assert!(!get.changed, "GET is a read");
        let data = get.data.unwrap();
        assert_eq!((&data["status"], &data["headers"]["x-two"]), (&json!(200), &json!("a, b")));
        let said: Value = serde_json::from_str(data["body"].as_str().unwrap()).unwrap();
        assert_eq!((&said["method"], &said["path"]), (&json!("GET"), &json!("/a?b=c")));

        let post = json!({"url": url, "method": "POST", "json": {"k": "v"}, "headers": {"X-Token": "t"}});
        assert!(action("http.request").check(&cx, &params(post.clone())).await.unwrap().changed);
        let post = run(&cx, "http.request", post).await.unwrap();
        assert!(post.changed && post.failure.is_none());
        let said: Value = serde_json::from_str(post.data.unwrap()["body"].as_str().unwrap()).unwrap();
        assert_eq!(said["body"], json!(r#"{"k":"v"}"#));
        assert_eq!((&said["content_type"], &said["token"]), (&json!("application/json"), &json!("t")));

        let failed = run(&cx, "http.request", json!({"url": format!("{url}/503")})).await.unwrap();
        assert_eq!(failed.failure.unwrap().message, "status 503, expected 200-299");
        let fine = json!({"url": format!("{url}/503"), "expect_status": ["500-599"]});
        assert!(run(&cx, "http.request", fine).await.unwrap().failure.is_none());

        let long =
            run(&cx, "http.request", json!({"url": format!("{url}/long")})).await.unwrap().data.unwrap();
        assert_eq!((long["body"].as_str().unwrap().len(), &long["truncated"]), (1 << 20, &json!(true)));
    })
    .await;
}

/// A real TLS server is talked to if `ca` vouches for it, and only then.
#[tokio::test]
async fn tls_servers_are_trusted_by_ca_alone() {
    let dir = tempfile::tempdir().unwrap();
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        assert!(std::env::var_os("STEAD_CI").is_none(), "openssl is not installed");
        return;
    }
    sh(
        dir.path(),
        "new='openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
        for ca in ca other; do
            $new -x509 -days 2 -keyout $ca.key -out $ca.pem -subj /CN=$ca \\
                -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
        done
        $new -keyout server.key -out server.csr -subj /CN=server
        printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n' > extensions
        openssl x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extensions -out server.pem",
    );
    let cx = context(dir.path());
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (ca, other) = (read("ca.pem"), read("other.pem"));
    with_tls_server(&read("server.pem"), &read("server.key"), echo(), |port| async move {
        for host in ["localhost", "127.0.0.1"] {
            let url = format!("https://{host}:{port}/a");
            // As a file beside the plan, and as text.
            for ca in ["ca.pem", ca.as_str()] {
                let values = json!({"url": url, "method": "PUT", "body": "over TLS", "ca": ca});
                let outcome = run(&cx, "http.request", values).await.unwrap();
                assert!(outcome.changed && outcome.failure.is_none(), "{outcome:?}");
                let said: Value =
                    serde_json::from_str(outcome.data.unwrap()["body"].as_str().unwrap()).unwrap();
                assert_eq!((&said["method"], &said["body"]), (&json!("PUT"), &json!("over TLS")));
            }
            let waited = run(&cx, "wait.http", json!({"url": url, "ca": "ca.pem", "timeout": "20s"})).await;
            assert_eq!(waited.unwrap().data.unwrap()["looks"], 1);
        }
        let url = format!("https://localhost:{port}/a");
        for (values, says) in [
            (json!({"url": url, "ca": other}), "UnknownIssuer"),
            (json!({"url": url}), ""),
            (json!({"url": url, "ca": "nowhere.pem"}), "nowhere.pem"),
            (json!({"url": format!("https://127.0.0.2:{port}/"), "ca": "ca.pem"}), ""),
        ] {
            let error = run(&cx, "http.request", values).await.unwrap_err();
            assert!(error.message.contains(says), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let error =
        run(&context(dir.path()), "http.request", json!({"url": url, "timeout": "100ms"})).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Timeout);
    let address = json!({"url": "http://user:secret@127.0.0.1/"});
    let error = run(&context(dir.path()), "http.request", address).await.unwrap_err();
    assert!(error.class == ErrorClass::Invalid && !error.message.contains("secret"), "{error}");
}

#[tokio::test]
async fn waits_end_when_it_is_so_and_say_what_was_seen_when_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let count = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let answer: Answer = Arc::new(move |_, _| {
        let ready = asked.fetch_add(1, Ordering::SeqCst) >= 2;
        Response::builder().status(if ready { 200 } else { 503 }).body(Full::from("ready")).unwrap()
    });
    with_server(answer, |url| async move {
        let wait = json!({"url": url, "interval": "5ms", "timeout": "10s", "body_regex": "^ready$"});
        let outcome = run(&cx, "wait.http", wait).await.unwrap();
        assert!(!outcome.changed && outcome.data.unwrap()["looks"] == json!(3));
        let wrong = json!({"url": url, "interval": "5ms", "timeout": "500ms", "body_regex": "never"});
        let error = run(&cx, "wait.http", wrong).await.unwrap_err();
        assert!(error.class == ErrorClass::Timeout && error.message.contains("does not match"), "{error}");
        let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
        assert!(run(&cx, "wait.port", json!({"port": port})).await.is_ok());
        let closed = json!({"port": port, "state": "closed", "timeout": "20ms", "interval": "5ms"});
        let error = run(&cx, "wait.port", closed).await.unwrap_err();
        assert!(error.message.contains("last seen: open"), "{error}");
    })
    .await;
    let unused = stead_testkit::sshd::free_port();
    let cx = context(dir.path());
    let error = run(&cx, "wait.port", json!({"port": unused, "timeout": "20ms", "interval": "5ms"}))
        .await
        .unwrap_err();
    assert!(error.class == ErrorClass::Timeout && error.message.contains("refused"), "{error}");
    assert!(run(&cx, "wait.port", json!({"port": unused, "state": "closed"})).await.is_ok());
}

#[tokio::test]
async fn a_file_is_waited_for_until_it_holds_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let file = dir.path().join("f");
    let values = json!({"path": file.to_str().unwrap(), "regex": "up", "interval": "5ms", "timeout": "60s"});
    let write = async {
        std::fs::write(&file, "starting").unwrap();
        // It has looked by then, and looks again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        std::fs::write(&file, "starting\nup\n").unwrap();
    };
    let (waited, ()) = tokio::join!(run(&cx, "wait.file", values), write);
    assert!(waited.unwrap().data.unwrap()["looks"].as_u64().unwrap() > 1);
    let gone =
        json!({"path": file.to_str().unwrap(), "state": "absent", "timeout": "20ms", "interval": "5ms"});
    let error = run(&cx, "wait.file", gone.clone()).await.unwrap_err();
    assert!(error.message.contains("last seen: file"), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert!(run(&cx, "wait.file", gone).await.is_ok());
}

/// Section 8: a log is found to hold a text while it grows, and however long it is; one too long is said to be so.
#[tokio::test]
async fn what_a_growing_or_a_long_file_holds_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let file = dir.path().join("log");
    std::fs::write(&file, "line\n".repeat(4 << 20) + "listening\n").unwrap();
    let path = file.to_str().unwrap();
    let growing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let writer = std::thread::spawn({
        let (growing, file) = (growing.clone(), file.clone());
        move || {
            let mut log = std::fs::OpenOptions::new().append(true).open(file).unwrap();
            while growing.load(std::sync::atomic::Ordering::Relaxed) {
                std::io::Write::write_all(&mut log, b"x\n").unwrap();
            }
        }
    });
    let there = json!({"path": path, "regex": "(?m)^listening$", "timeout": "1m", "interval": "1ms"});
    let found = run(&cx, "wait.file", there.clone()).await;
    growing.store(false, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(found.unwrap().data.unwrap()["looks"], 1);
    let gone = json!({"path": path, "regex": "(?m)^listening$", "state": "absent", "timeout": "1ms"});
    assert!(
        run(&cx, "wait.file", gone).await.unwrap_err().message.contains("last seen: file, content matches")
    );
    std::fs::File::options().append(true).open(&file).unwrap().set_len((64 << 20) + 1).unwrap();
    let error = run(&cx, "wait.file", there).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.message.contains("too many to be searched"), "{error}");
}

#[tokio::test]
async fn a_wait_ends_soon_after_it_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let (stop, receiver) = watch::channel(Stop::No);
    let cx = OpContext { cancel: Cancel::new(receiver), ..context(dir.path()) };
    let values =
        json!({"path": dir.path().join("never").to_str().unwrap(), "interval": "10m", "timeout": "1h"});
    let start = Instant::now();
    let (waited, ()) = tokio::join!(run(&cx, "wait.file", values), async {
        tokio::task::yield_now().await;
        stop.send(Stop::Ask).unwrap();
    });
    assert!(waited.unwrap_err().message.contains("cancelled") && start.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn assertions_name_what_is_false() {
    let dir = tempfile::tempdir().unwrap();
    let names = json!({"vars": {"n": 3}}).as_object().unwrap().clone();
    let cx = OpContext { scope: Arc::new(Scope(names)), ..context(dir.path()) };
    assert!(run(&cx, "assert", json!({"that": ["vars.n == 3", "vars.n > 1"]})).await.is_ok());
    let error = run(&cx, "assert", json!({"that": ["vars.n == 3", "vars.n > 9"], "message": "too few"}))
        .await
        .unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (ErrorClass::Permanent, "too few: `vars.n > 9` is false")
    );
    for that in ["vars.n", "vars.nope", "1 +"] {
        assert_eq!(
            run(&cx, "assert", json!({"that": that})).await.unwrap_err().class,
            ErrorClass::Invalid,
            "{that}"
        );
    }
}

#[tokio::test]
async fn a_fetched_file_is_checked_and_written_only_if_it_differs() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let from = dir.path().join("remote");
    std::fs::write(&from, vec![7u8; 2 << 20]).unwrap();
    let values = json!({"path": from.to_str().unwrap(), "to": "got/here"});
    let first = run(&cx, "file.fetch", values.clone()).await.unwrap();
    assert!(!first.changed && first.data.unwrap()["size"] == json!(2 << 20));
    let got = dir.path().join("got/here");
    let written = got.metadata().unwrap().modified().unwrap();
    run(&cx, "file.fetch", values).await.unwrap();
    assert_eq!(got.metadata().unwrap().modified().unwrap(), written);
    let missing = dir.path().join("missing");
    let error =
        run(&cx, "file.fetch", json!({"path": missing.to_str().unwrap(), "to": "x"})).await.unwrap_err();
    assert!(error.message.contains("missing"), "{error}");
    let optional = json!({"path": missing.to_str().unwrap(), "to": "x", "required": false});
    assert_eq!(run(&cx, "file.fetch", optional).await.unwrap().data.unwrap(), json!({"found": false}));
}
