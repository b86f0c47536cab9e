//! `stead config fetch`: whom it asks, how often, and what it leaves behind.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use stead_cli::args::{Cli, Command, ConfigCommand};

use super::pulled::{Pulled, wait_for};
use super::tls::Canned;
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

/// Section 5: five attempts, ten seconds before the second, unless somebody says otherwise.
#[test]
fn a_server_is_tried_five_times_with_growing_pauses() {
    let argv = ["stead", "config", "fetch"].map(OsString::from);
    let Command::Config(ConfigCommand::Fetch(args)) = Cli::parse_argv(&argv).unwrap().command else {
        panic!("this is no fetch")
    };
    assert_eq!((args.attempts, args.backoff), (5, Duration::from_secs(10)));
}

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

const REFUSED: (&str, &str, &str) =
    ("401 Unauthorized", "", "{\"error\":{\"code\":\"E301\",\"message\":\"no\"}}");

/// Section 5: whom to ask, and as whom, is said by flags, then by the environment, then by the bootstrap.
#[test]
fn flags_come_before_the_environment_and_that_before_the_bootstrap() {
    let lab = site(&[]);
    let canned = Canned::start(&lab, &[REFUSED]);
    let (url, pin) = (canned.url.as_str(), canned.fingerprint.as_str());
    // Nobody is there, and nobody has that certificate.
    let (dead, other) = ("https://127.0.0.1:1", vec!["AB"; 32].join(":"));
    let told = |server: &str, pin: &str| {
        let text = json!({"schema": 1, "node": "edge", "mode": "pull", "server": server, "fingerprints": [pin],
            "token": "told.told"});
        lab.write("root/etc/stead/bootstrap.json", text.to_string());
    };
    let ask = |args: &[&str], around: &[(&str, &str)]| {
        fetch(&lab, &[&["--attempts", "1"], args].concat(), around).exits(1).says("E301");
        let asked = canned.asked().remove(0).to_ascii_lowercase();
        let line = asked.lines().next().unwrap().to_owned();
        let token =
            asked.lines().find_map(|line| line.strip_prefix("authorization: bearer ")).unwrap().to_owned();
        (line, token)
    };
    let edge = "get /spec/edge http/1.1".to_owned();
    told(url, pin);
    assert_eq!(ask(&[], &[]), (edge.clone(), "told.told".to_owned()));

    told(dead, &other);
    let ours = [("STEAD_SERVER", url), ("STEAD_TOKEN", "around.around"), ("STEAD_FINGERPRINT", pin)];
    assert_eq!(ask(&[], &ours), (edge.clone(), "around.around".to_owned()));
    let older =
        [("HOMESTAK_SERVER", dead), ("HOMESTAK_SPEC_SERVER", dead), ("HOMESTAK_TOKEN", "older.older")];
    assert_eq!(ask(&[], &[&older[..], &ours].concat()), (edge.clone(), "around.around".to_owned()));
    let pinned = ("STEAD_FINGERPRINT", pin);
    for name in ["HOMESTAK_SERVER", "HOMESTAK_SPEC_SERVER"] {
        let around = [(name, url), ("HOMESTAK_TOKEN", "older.older"), pinned];
        assert_eq!(ask(&[], &around), (edge.clone(), "older.older".to_owned()), "{name}");
    }

    let wrong = [("STEAD_SERVER", dead), ("STEAD_TOKEN", "around.around"), ("STEAD_FINGERPRINT", &other)];
    lab.write("token", "flag.flag\n");
    let flags = ["--server", url, "--token-file", "token", "--fingerprint", pin, "--identity", "far"];
    assert_eq!(ask(&flags, &wrong), ("get /spec/far http/1.1".to_owned(), "flag.flag".to_owned()));
}

/// Section 11: what a server says is the spec of a node, and is not, exits with 3 and is not kept.
#[test]
fn an_invalid_spec_is_refused_and_not_kept() {
    for body in [
        "nonsense",
        "{}",
        "{\"digest\": \"sha256:00\"}",
        // All there, but it is not what its digest says.
        "{\"access\":{\"posture\":\"local\",\"security\":{\"fail2ban\":{\"enabled\":false},\"ssh\":{\"password_authentication\":\"no\",\
         \"permit_root_login\":\"no\",\"port\":22},\"sudo\":{\"nopasswd\":true}},\"users\":[]},\"config\":{\"timezone\":\"UTC\"},\
         \"identity\":{\"hostname\":\"edge\"},\"node\":\"edge\",\"platform\":{\"packages\":[],\"services\":{\"disable\":[],\"enable\":[]}},\
         \"run\":{\"trigger\":\"manual\"},\"schema_version\":1,\"spec\":\"base\",\"digest\":\"sha256:00\"}",
    ] {
        let lab = site(&[]);
        let canned = Canned::start(&lab, &[("200 OK", "", body)]);
        let args = ["--server", &canned.url, "--fingerprint", &canned.fingerprint, "--identity", "edge"];
        fetch(&lab, &args, &[("STEAD_TOKEN", "a.b")]).exits(3).says("the spec of edge is invalid");
        assert_eq!(canned.asked().len(), 1, "it would not become better: {body}");
        assert_eq!(failed(&lab)["error"], "spec-invalid", "{body}");
        assert!(!lab.path(SPEC).exists(), "{body}");
    }
}

/// Section 5: who is asked too often says when to come again, and that is waited for.
#[test]
fn a_server_says_when_to_come_again() {
    let lab = site(&[]);
    let busy = "{\"error\":{\"code\":\"E105\",\"message\":\"slowly\"}}";
    let canned = Canned::start(&lab, &[("429 Too Many Requests", "Retry-After: 1\r\n", busy), REFUSED]);
    let trust = ["--server", &canned.url, "--fingerprint", &canned.fingerprint, "--identity", "edge"];
    let args = [&trust[..], &["--attempts", "3", "--backoff", "0.1"]].concat();
    let ended = fetch(&lab, &args, &[("STEAD_TOKEN", "a.b")]).exits(1).says("attempt 1 of 3").says("E105");
    assert!(ended.stderr.contains("the next in 1s"), "{}", ended.stderr);
    assert_eq!(canned.asked().len(), 2, "and any other refusal ends it");
    assert_eq!((&failed(&lab)["code"], &failed(&lab)["attempts"]), (&"E301".into(), &2.into()));
}

/// Section 11: why there is no spec decides what a fetch ends with, also where that cannot be kept; a spec that cannot be
/// kept names its file.
#[test]
fn a_node_that_cannot_write_still_says_why_it_has_no_spec() {
    let pulled = Pulled::new(&[]);
    let lab = &pulled.lab;
    // Nobody makes a directory in a file, not even root.
    lab.write("root/var", "no directory");
    let url = format!("https://127.0.0.1:{}", stead_testkit::sshd::free_port());
    let pin = "ab".repeat(32);
    let away = ["--server", &url, "--fingerprint", &pin, "--identity", "edge", "--attempts", "1"];
    let ended = fetch(lab, &away, &[("STEAD_TOKEN", "a.b")]).exits(7).says("E501").says("config-failed.json");
    assert!(ended.stderr.contains("warning: "), "{}", ended.stderr);
    let asking = ["--server", pulled.url(), "--fingerprint", pulled.fingerprint()];
    let refused = [&asking[..], &["--identity", "other"]].concat();
    let token = pulled.token(&[]);
    fetch(lab, &refused, &[("STEAD_TOKEN", &token)]).exits(1).says("E301");
    fetch(lab, &asking, &[("STEAD_TOKEN", &token)]).exits(1).says("cannot write").says("config/spec.yaml");
}
