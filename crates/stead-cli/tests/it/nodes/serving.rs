//! `stead server`: starting, stopping, and what nodes and operators are answered.

mod attacks;
mod durable;
mod files;
mod limits;
mod operators;
mod options;
mod tokens;
mod wire;
mod work;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{BASE, KEY, LOCAL, manifest, site, write};
use crate::cases_17_32::lab::{Ended, Lab};
pub(super) use files::git;
use wire::Serving;

fn server(lab: &Lab, args: &[&str]) -> Ended {
    lab.run(["server"].into_iter().chain(args.iter().copied()))
}

/// Case 22, the table of the server: every cell.
#[test]
fn every_cell_of_the_server_table() {
    let lab = site(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    let status = |code: i32| server(&lab, &["status", "--json"]).exits(code).document();
    assert_eq!(status(1)["running"], false);
    server(&lab, &["stop"]).exits(0).says("not running");
    let first = server(&lab, &["start", "--json"]).exits(0).document();
    let port = first["port"].as_u64().unwrap().to_string();
    let pid_file = lab.path(&format!("state/server/server-{port}.pid"));
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim(), first["pid"].to_string());
    for key in ["url", "fingerprint", "specs", "repos"] {
        assert!(!first[key].is_null(), "{key}: {first}");
    }
    let running = status(0);
    assert_eq!((&running["healthy"], &running["pid"]), (&json!(true), &first["pid"]));
    for key in ["port", "fingerprint", "uptime_seconds", "specs", "agents"] {
        assert!(!running[key].is_null(), "{key}: {running}");
    }
    server(&lab, &["start"]).exits(0).says("already running");

    // Running but not answering: it is replaced.
    wire::kill(&first, Signal::STOP);
    assert_eq!(status(7)["healthy"], false);
    let second = server(&lab, &["start", "--json"]).exits(0).document();
    assert_ne!(second["pid"], first["pid"]);
    assert_eq!((&second["port"], &second["fingerprint"]), (&first["port"], &first["fingerprint"]), "reused");

    // A process id that was left behind fools nobody.
    wire::kill(&second, Signal::KILL);
    wire::until(|| server(&lab, &["status"]).code == 1);
    assert!(pid_file.exists());
    let third = server(&lab, &["start", "--json"]).exits(0).document();

    // Stopped, it is gone when this returns; also if it does not listen. How long that takes the bench shows.
    server(&lab, &["stop"]).exits(0).says("stopped");
    assert!(!wire::is_alive(&third) && !pid_file.exists());
    assert_eq!(status(1)["pid"], Value::Null);
    let deaf = server(&lab, &["start", "--json"]).exits(0).document();
    wire::kill(&deaf, Signal::STOP);
    server(&lab, &["stop"]).exits(0).says("stopped");
    assert!(!wire::is_alive(&deaf) && !pid_file.exists());

    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    server(&lab, &["start", "-p", &port]).exits(1).says("held by another program");
    assert!(!lab.path(&format!("state/server/server-{port}.pid")).exists());
    server(&lab, &["stop", "-p", &port]).exits(0);
    server(&lab, &["status", "-p", &port]).exits(1);

    let renewed = server(&lab, &["start", "--new-cert", "--json"]).exits(0).document();
    assert_eq!(renewed["replaced_fingerprint"], third["fingerprint"]);
    assert_ne!(renewed["fingerprint"], third["fingerprint"]);
    server(&lab, &["stop"]).exits(0);
}

/// Section 9: the socket is an operator's key to everything; the certificate outlives the site and is of the names it is asked by.
#[test]
fn the_socket_is_its_owners_and_the_certificate_is_as_it_is_told() {
    let lab = site(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    let started = server(&lab, &["start", "--json"]).exits(0).document();
    let port = started["port"].as_u64().unwrap();
    let socket = std::fs::metadata(lab.path(&format!("state/server/server-{port}.sock"))).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-text", "-checkend", &(9 * 365 * 86_400).to_string(), "-in"]);
    let shown = openssl.arg(lab.path("state/server/cert.pem")).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "it lasts ten years: {text}");
    assert!(text.contains("prime256v1"), "{text}");
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let own = own.lines().filter_map(|line| u128::from_str_radix(line.get(..32)?, 16).ok());
    // As the program that is asked writes them: eight numbers, none left out.
    let own = own.map(|address| {
        let parts = std::net::Ipv6Addr::from(address).segments().map(|part| format!("{part:X}"));
        format!("IP Address:{}", parts.join(":"))
    });
    let names = ["DNS:localhost".to_owned(), format!("DNS:{name}"), "IP Address:127.0.0.1".to_owned()];
    for known in names.into_iter().chain(own) {
        assert!(text.contains(&known), "{known}: {text}");
    }
    server(&lab, &["stop"]).exits(0);
}

/// Whoever let a server choose its port need not remember it.
#[test]
fn the_only_server_that_runs_is_meant() {
    let lab = site(&[("site.yaml", "server: {bind: 127.0.0.1}\n")]);
    let started = server(&lab, &["start", "-p", "0", "--json"]).exits(0).document();
    assert_eq!(server(&lab, &["status", "--json"]).exits(0).document()["port"], started["port"]);
    server(&lab, &["stop"]).exits(0).says("stopped");
    assert!(!wire::is_alive(&started));
    server(&lab, &["status"]).exits(1);
}

/// A machine has sites of several levels above: none has to know which ports the others use.
#[test]
fn a_site_that_was_handed_down_gives_way_and_keeps_its_port() {
    let lab = Lab::new("");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let text = format!("server: {{port: {port}, bind: 127.0.0.1}}\n");
    lab.write("state/delegated/a/m/site.yaml", text);
    let server = |words: &[&str]| {
        let place = lab.path("state/delegated/a/m");
        lab.run(
            ["server"].into_iter().chain(words.iter().copied()).chain(["--site", place.to_str().unwrap()]),
        )
    };
    let first = server(&["start", "--json"]).exits(0).document();
    assert_ne!(first["port"], port);
    assert_eq!(server(&["status", "--json"]).exits(0).document()["port"], first["port"]);
    server(&["stop"]).exits(0);
    drop(held);
    let again = server(&["start", "--json"]).exits(0).document();
    assert_eq!((&again["port"], &again["fingerprint"]), (&first["port"], &first["fingerprint"]));
    server(&["stop"]).exits(0);
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    server(&["start", "-p", &port]).exits(1).says("held by another program");
}

#[test]
fn a_site_that_cannot_be_served_says_why() {
    let lab = site(&[("site.yaml", "server: {prot: 1}\n")]);
    server(&lab, &["start"]).exits(3).says("prot");
    let lab = site(&[("site.yaml", "server: {port: 0, repos: {kit: ../nowhere}}\n")]);
    server(&lab, &["start"]).exits(3).says("kit");
    server(&lab, &["start", "--cert", "x"]).exits(2);
}

/// Case 21, and the tag of a spec; case 13: the vector from the server.
#[test]
fn endpoints_answer_as_tabled() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let get = |path: &str, token: &str| serving.get(path, token);
    assert_eq!(get("/health", "").body, "{\"status\":\"ok\"}");
    assert_eq!(get("/health/", "").status, 200);
    let head = serving.ask("HEAD", "/health", "", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(get("/specs", "").code(), "E300");
    assert_eq!(get("/specs", &token).json(), json!({"specs": ["base"]}));
    for (method, path, code, status) in [
        ("GET", "/nope", "E100", 400),
        ("GET", "/", "E100", 400),
        ("GET", "/spec/", "E101", 400),
        ("GET", "/spec", "E101", 400),
        ("POST", "/spec/edge", "E102", 405),
        ("DELETE", "/health", "E102", 405),
        ("GET", "/v1/nodes/edge/reports", "E102", 405),
        ("GET", "/v1/nodes", "E300", 400),
        ("GET", "/v1/plans", "E300", 400),
        ("PUT", "/v1/plans", "E102", 405),
        ("GET", "/v1/hooks/deploy", "E102", 405),
        ("POST", "/v1/hooks/deploy", "E200", 404),
        ("GET", "/v1/nodes/edge/jobs/j1/input", "E300", 400),
        ("GET", "/ui", "E300", 401),
    ] {
        let reply = serving.ask(method, path, "", "");
        assert_eq!((reply.code().as_str(), reply.status), (code, status), "{method} {path}");
    }
    assert_eq!(serving.ask("POST", "/spec/edge", "", "").header("allow"), "GET, HEAD");

    let spec = get("/spec/edge", &token);
    let digest = "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f";
    assert_eq!(spec.json()["digest"], digest);
    assert_eq!(spec.json()["access"]["users"][0]["ssh_keys"], json!([KEY]));
    let tag = spec.header("etag");
    assert_eq!(tag, format!("\"{digest}\""));
    let again = serving.ask_with("GET", "/spec/edge", &token, &[("If-None-Match", &tag)], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let other = serving.ask_with("GET", "/spec/edge", &token, &[("If-None-Match", "\"x\"")], "");
    assert_eq!(other.status, 200);
}

/// Case 22: everything is read again as one; what cannot be used leaves the old answers, and shows.
#[test]
fn a_reload_is_whole_or_not_at_all() {
    let lab = site(&[("manifests/m.yaml", &manifest("- {name: edge, type: vm, spec: base}\n"))]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let spec = || serving.get("/spec/edge", &token).json();
    let before = spec();
    write(&lab, "specs/base.yaml", &BASE.replace("htop", "vim"));
    write(&lab, "postures/local.yaml", &LOCAL.replace("nopasswd: true", "nopasswd: false"));
    let secrets = format!("ssh_keys:\n  bob@desk: {KEY}\nauth:\n  signing_key: '{}'\n", "cd".repeat(32));
    write(&lab, "secrets.yaml", &secrets);
    assert_eq!(spec(), before, "nothing changes by itself");
    serving.reload();
    assert_eq!(serving.get("/spec/edge", &token).code(), "E301", "the old key is gone");
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let after = serving.get("/spec/edge", &token).json();
    assert_eq!(after["platform"]["packages"][0], "vim");
    assert_eq!(after["access"]["security"]["sudo"]["nopasswd"], false);
    assert_eq!(serving.status()["reload"]["ok"], true);

    for (path, text) in [
        ("specs/base.yaml", "schema_version: ["),
        ("site.yaml", "server: 1\n"),
        ("manifests/m.yaml", "nodes: ["),
    ] {
        let good = lab.read(&format!("site-config/{path}"));
        write(&lab, path, text);
        serving.reload();
        assert_eq!(serving.get("/spec/edge", &token).json(), after, "{path}");
        let reload = serving.status()["reload"].clone();
        assert_eq!(reload["ok"], false);
        assert!(reload["problems"].to_string().contains(path), "{reload}");
        write(&lab, path, &good);
    }
    serving.reload();
    assert_eq!(serving.status()["reload"]["ok"], true);
}

/// Section 9: a reload that is refused tells all that is wrong, of whatever kind.
#[test]
fn a_refused_reload_tells_every_kind_of_problem() {
    let lab = site(&[("site.yaml", "server: {repos: {}}\n")]);
    let serving = Serving::start(&lab);
    write(&lab, "site.yaml", "server: {repos: {kit: ../no-kit, box: ../no-box}}\n");
    write(&lab, "specs/base.yaml", "schema_version: [");
    write(&lab, "secrets.yaml", "ssh_keys: 1\n");
    lab.write("state/server/key.pem", "nonsense");
    serving.reload();
    let told = |serving: &Serving<'_>| serving.status()["reload"]["problems"].to_string();
    for part in ["key.pem", "`kit`", "`box`", "specs/base.yaml", "secrets.yaml"] {
        assert!(told(&serving).contains(part), "{part}: {}", told(&serving));
    }
    write(&lab, "site.yaml", "server: 1\n");
    serving.reload();
    for part in ["key.pem", "site.yaml", "specs/base.yaml", "secrets.yaml"] {
        assert!(told(&serving).contains(part), "{part}: {}", told(&serving));
    }
}

/// SIGTERM ends the server, and long-polls with 204.
#[test]
fn long_polls_end_with_the_server() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let polls: Vec<_> =
        (0..1).map(|_| serving.begin("GET", "/v1/nodes/edge/next?wait=55", &token, "")).collect();
    wire::until(|| serving.status()["agents"] == 1);
    server(&lab, &["stop", "-p", &serving.port.to_string()]).exits(0);
    assert!(!wire::is_alive(&serving.facts), "it has ended when this returns");
    for poll in polls {
        assert_eq!(poll.end().status, 204);
    }
}
