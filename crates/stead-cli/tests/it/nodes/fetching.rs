//! `stead config fetch`: whom it asks, how often, and what it leaves behind.

use std::fs;

use serde_json::Value;

use super::pulled::{Pulled, wait_for};
use super::{site, write};
use crate::cases_17_32::lab::{Ended, Lab};

fn fetch(lab: &Lab, args: &[&str], variables: &[(&str, &str)]) -> Ended {
    let mut command = lab.stead(["config", "fetch"]);
    command.args(args).env("STEAD_ROOT", lab.path("root")).envs(variables.iter().copied());
    fs::create_dir_all(lab.path("root")).unwrap();
    command.output().unwrap().into()
}

fn failed(lab: &Lab) -> Value {
    serde_json::from_str(&lab.read("root/var/lib/stead/config/config-failed.json")).unwrap()
}

const SPEC: &str = "root/var/lib/stead/config/spec.yaml";

/// Case 17: without a server or a token it is said what is missing; a server that is not there is tried three times.
#[test]
fn what_is_missing_is_named_and_a_server_that_is_away_is_tried_again() {
    let lab = site(&[]);
    fetch(&lab, &[], &[]).exits(2).says("--server").says("STEAD_SERVER");
    lab.run(["config", "--fetch"]).exits(2).says("STEAD_SERVER");
    let url = format!("https://127.0.0.1:{}", stead_testkit::sshd::free_port());
    fetch(&lab, &["--server", &url], &[]).exits(2).says("--token-file").says("STEAD_TOKEN");

    let around = [("HOMESTAK_SPEC_SERVER", url.as_str()), ("HOMESTAK_TOKEN", "a.b")];
    let pin = "ab".repeat(32);
    let args = ["--identity", "edge", "--attempts", "3", "--backoff", "0.1", "--fingerprint", &pin];
    let ended = fetch(&lab, &args, &around).exits(7).says("E501");
    assert_eq!(ended.stderr.matches("attempt ").count(), 3, "{}", ended.stderr);
    assert!(!ended.stderr.contains("a.b"), "the token is not shown");
    let marker = failed(&lab);
    assert_eq!((&marker["code"], &marker["attempts"]), (&"E501".into(), &3.into()));
    assert_eq!((&marker["node"], &marker["server"]), (&"edge".into(), &url.as_str().into()));
    assert_eq!(marker["log"].as_array().unwrap().len(), 3);
    assert!(!lab.path(SPEC).exists());
}

/// Case 17: 401 ends at once; a spec that changed between two fetches leaves the one before.
#[test]
fn a_refusal_ends_at_once_and_the_spec_before_is_kept() {
    let pulled = Pulled::new(&[]);
    let lab = &pulled.lab;
    let asking = ["--server", pulled.url(), "--fingerprint", pulled.fingerprint()];
    let token = pulled.token(&[]);
    let (payload, signature) = token.split_once('.').unwrap();
    let other = if signature.starts_with('A') { "B" } else { "A" };
    let foreign = format!("{payload}.{other}{}", &signature[1..]);
    let ended = fetch(lab, &[&asking[..], &["--identity", "edge"]].concat(), &[("STEAD_TOKEN", &foreign)]);
    ended.exits(1).says("E301").says("attempt 1 of 5");
    assert_eq!((&failed(lab)["code"], &failed(lab)["attempts"]), (&"E301".into(), &1.into()));

    // The node is the one the token is for.
    let first =
        fetch(lab, &[&asking[..], &["--json"]].concat(), &[("STEAD_TOKEN", &token)]).exits(0).document();
    assert_eq!((&first["node"], &first["spec"]), (&"edge".into(), &"base".into()));
    let before = lab.read(SPEC);
    assert!(before.contains("htop"));
    write(lab, "specs/base.yaml", &super::BASE.replace("htop", "strace"));
    lab.write("token", &token);
    crate::cases_17_32::lab::kill(
        u32::try_from(pulled.server["pid"].as_u64().unwrap()).unwrap(),
        rustix::process::Signal::HUP,
    );
    super::pulled::wait_for("the server has read its site again", || {
        fetch(lab, &[&asking[..], &["--token-file", "token"]].concat(), &[]).exits(0);
        lab.read(SPEC).contains("strace")
    });
    assert_eq!(lab.read(&format!("{SPEC}.prev")), before);

    fetch(lab, &[&asking[..], &["--token-file", "token", "--output", "elsewhere"]].concat(), &[]).exits(0);
    assert_eq!(lab.read("elsewhere/spec.yaml"), lab.read(SPEC));
}

/// Section 9: a server that is not pinned is sent nothing, and both fingerprints are named.
#[test]
fn another_certificate_is_sent_nothing() {
    let pulled = Pulled::new(&[]);
    let lab = &pulled.lab;
    let (token, pin) = (pulled.token(&[]), vec!["AB"; 32].join(":"));
    let around = [("STEAD_TOKEN", token.as_str()), ("STEAD_SERVER", pulled.url())];
    let ended = fetch(lab, &["--fingerprint", &pin], &around).exits(7).says(&pin);
    assert!(ended.stderr.contains(pulled.fingerprint()), "{}", ended.stderr);
    // Whoever does not vouch for it is not believed either.
    fetch(lab, &[], &around).exits(7).says("E501");
    let log = fs::read_dir(lab.path("state/server")).unwrap().flatten();
    let log = log
        .map(|entry| entry.path())
        .find(|path| path.to_str().unwrap().ends_with(".log") && !path.ends_with("audit.log"));
    let log = log.unwrap();
    let asked = || fs::read_to_string(&log).unwrap().contains("\"event\":\"request\"");
    assert!(!asked(), "nothing was asked");

    let key = pulled.server["spki_pin"].as_str().unwrap();
    fetch(lab, &["--fingerprint", key], &around).exits(0);
    wait_for("a request in the log", asked);
    fetch(lab, &["--ca-cert", "state/server/cert.pem"], &around).exits(0);
    fetch(lab, &["--insecure"], &around).exits(0).says("[warning] server/insecure");
}
