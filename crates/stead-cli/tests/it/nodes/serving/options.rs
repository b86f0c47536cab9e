//! How a server is started: with a certificate of one's own, in the foreground, with another log.

use std::fs::File;

use super::super::tls::make_certificate;
use super::*;
use crate::cases_17_32::lab::Running;

/// Whether a client that believes only this certificate is served.
fn serves_with(serving: &Serving<'_>, fingerprint: &str) -> bool {
    let (lab, token) = (serving.lab, serving.mint(&["--node", "edge", "--spec", "base"]));
    let url = format!("https://127.0.0.1:{}", serving.port);
    let words =
        ["config", "fetch", "--attempts", "1", "--output", "fetched", "--server", &url, "--fingerprint"];
    let mut fetch = lab.stead(words.into_iter().chain([fingerprint]));
    let ended: Ended =
        fetch.env("STEAD_TOKEN", &token).env("STEAD_ROOT", lab.root()).output().unwrap().into();
    assert!([0, 7].contains(&ended.code), "{}", ended.stderr);
    ended.code == 0
}

/// Section 9: whoever brings a certificate is served with it, also by the next one in its place.
#[test]
fn a_certificate_of_ones_own_is_served_and_read_again() {
    let lab = site(&[]);
    let own = make_certificate(&lab, "own");
    let start = ["start", "-p", "0", "-b", "127.0.0.1", "--cert", "own.pem", "--key", "own.key", "--json"];
    let serving = Serving::of(&lab, server(&lab, &start).exits(0).document());
    assert_eq!(serving.facts["fingerprint"], own.as_str());
    assert!(serves_with(&serving, &own));
    let next = make_certificate(&lab, "own");
    assert_ne!(own, next);
    serving.reload();
    assert_eq!(serving.status()["fingerprint"], next.as_str());
    assert!(serves_with(&serving, &next) && !serves_with(&serving, &own));
    // One that fits no key leaves the old one in force.
    lab.write("own.key", "nonsense");
    serving.reload();
    assert_eq!(serving.status()["reload"]["ok"], false);
    assert!(serves_with(&serving, &next));
}

/// Section 9: in the foreground it says when it is ready, reads everything again when told to, and ends well when asked.
#[test]
fn in_the_foreground_it_says_when_it_is_ready_and_obeys_signals() {
    let lab = site(&[]);
    let mut command =
        lab.stead(["server", "start", "-p", "0", "-b", "127.0.0.1", "--foreground", "--log", "own.log"]);
    command.stdout(File::create(lab.path("said")).unwrap()).stderr(File::create(lab.path("errors")).unwrap());
    let running = Running::of(command.spawn().unwrap());
    // Its two lines: where it is, and what it is known by.
    wire::until(|| lab.read("said").lines().count() == 2);
    let said = lab.read("said");
    let status = server(&lab, &["status", "--json"]).exits(0).document();
    assert_eq!(status["pid"], running.pid());
    let (port, fingerprint) = (&status["port"], status["fingerprint"].as_str().unwrap());
    assert!(
        said.starts_with(&format!("running: https://127.0.0.1:{port} (process {})", running.pid())),
        "{said}"
    );
    assert!(said.contains(fingerprint), "{said}");
    let pid_file = lab.path(&format!("state/server/server-{port}.pid"));
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim(), running.pid().to_string());

    let serving = Serving::of(&lab, status);
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    assert_eq!(serving.get("/spec/edge", &token).status, 200);
    wire::until(|| lab.read("own.log").contains("\"event\":\"request\""));
    assert!(
        !lab.path(&format!("state/server/server-{}.log", serving.port)).exists(),
        "it logs where it was told to"
    );
    write(&lab, "specs/base.yaml", &BASE.replace("htop", "vim"));
    serving.reload();
    assert_eq!(serving.get("/spec/edge", &token).json()["platform"]["packages"][0], "vim");
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 0, "{}", lab.read("errors"));
    assert!(!pid_file.exists());
    server(&lab, &["status"]).exits(1);
}

/// Section 9: where one runs there is nothing to do, in the foreground too; one that does not answer is replaced.
#[test]
fn in_the_foreground_one_that_runs_is_left_and_one_that_hangs_is_replaced() {
    let lab = site(&[("site.yaml", "server: {port: 0, bind: 127.0.0.1}\n")]);
    let serving = Serving::of(&lab, server(&lab, &["start", "--json"]).exits(0).document());
    let again = server(&lab, &["start", "--foreground", "--json"]).exits(0).document();
    assert_eq!((&again["pid"], &again["port"]), (&serving.facts["pid"], &serving.facts["port"]));
    server(&lab, &["start", "--foreground", "-b", "127.0.0.1"])
        .exits(0)
        .says("already running")
        .says("--bind");

    wire::kill(&serving.facts, Signal::STOP);
    let mut command = lab.stead(["server", "start", "--foreground"]);
    command.stdout(File::create(lab.path("said")).unwrap()).stderr(File::create(lab.path("errors")).unwrap());
    let running = Running::of(command.spawn().unwrap());
    wire::until(|| lab.read("said").lines().count() == 2);
    assert!(!wire::is_alive(&serving.facts), "the one before has gone");
    let status = server(&lab, &["status", "--json"]).exits(0).document();
    assert_eq!((&status["pid"], &status["port"]), (&json!(running.pid()), &serving.facts["port"]));
    running.signal(Signal::TERM);
    assert_eq!(running.end().code, 0, "{}", lab.read("errors"));
}

/// Section 9: in the background it logs where it was told to as well.
#[test]
fn in_the_background_it_logs_where_it_was_told_to() {
    let lab = site(&[]);
    let start = ["start", "-p", "0", "-b", "127.0.0.1", "--log", "own.log", "--json"];
    let serving = Serving::of(&lab, server(&lab, &start).exits(0).document());
    assert_eq!(serving.get("/spec/edge", "").code(), "E300");
    wire::until(|| lab.read("own.log").contains("E300"));
}

/// Section 9: TLS from 1.2 on, and nothing older.
#[test]
fn only_tls_of_today_is_spoken() {
    let lab = site(&[]);
    let serving = Serving::start(&lab);
    let spoken = |version: &str| {
        let mut client = Command::new("openssl");
        let place = format!("127.0.0.1:{}", serving.port);
        // Also what this machine's own rules would not let it offer.
        client.args(["s_client", "-connect", &place, version, "-cipher", "DEFAULT@SECLEVEL=0"]);
        client.stdin(std::process::Stdio::null());
        let said = client.output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.lines().any(|line| line.starts_with("New, TLSv1."))
    };
    assert!(spoken("-tls1_2") && spoken("-tls1_3"));
    assert!(!spoken("-tls1") && !spoken("-tls1_1"));
}
