//! `stead agent status|check|list`, against this machine and a real SSH server.

use std::fs;

use serde_json::{Value, json};
use stead_testkit::sshd::{self, Sshd};

use crate::cases_17_32::lab::{Ended, Lab};

fn server() -> Option<Sshd> {
    sshd::available().then(Sshd::start)
}

#[test]
fn the_status_of_this_machine_is_tried_not_guessed() {
    let lab = Lab::new("");
    lab.write("file", "");
    let document = lab.run(["agent", "status", "--json", "--workdir", "new/place"]).exits(0).document();
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&document["os"], &document["arch"]),
        (&json!(std::env::consts::OS), &json!(std::env::consts::ARCH))
    );
    let workdir = &document["workdir"];
    assert_eq!(workdir["path"], lab.path("new/place").display().to_string());
    assert_eq!(
        (&workdir["exists"], &workdir["writable"], &workdir["error"]),
        (&json!(false), &json!(true), &Value::Null)
    );
    assert!(!lab.path("new").exists(), "a directory that was absent is absent afterwards");
    let interfaces = document["interfaces"].as_array().unwrap();
    let loopback = interfaces.iter().find(|interface| interface["name"] == "lo").unwrap();
    assert_eq!(loopback["can_bind"], true);
    assert!(loopback["addresses"].as_array().unwrap().contains(&json!("127.0.0.1")));
    for interface in interfaces {
        for address in interface["addresses"].as_array().unwrap() {
            assert!(!address.as_str().unwrap().starts_with("fe80"), "{interface}");
        }
    }
    assert_eq!(document["pcap_capable"], document["pcap_method"].is_string());
    assert_eq!(
        (&document["supported_roles"], &document["kits"]),
        (&json!(["service", "task"]), &json!(["cipdip"]))
    );

    let document = lab.run(["agent", "status", "--json", "--workdir", "file/x"]).exits(0).document();
    assert_eq!(document["workdir"]["writable"], false);
    assert!(document["workdir"]["error"].as_str().unwrap().contains("cannot make"));
    let text = lab.run(["agent", "status"]).exits(0).stdout;
    for section in
        ["Agent Status", "Working Directory", "Network Interfaces", "Packet Capture", "Supported Roles"]
    {
        assert!(text.contains(&format!("{section}\n")), "{text}");
    }
}

/// What runs local roles is this program, also where the PATH has none.
#[test]
fn this_machine_is_checked_with_this_program() {
    let lab = Lab::new("");
    let document = lab.run(["agent", "check", "local", "--json"]).exits(0).document();
    assert_eq!(
        (&document["stead_found"], &document["version"]),
        (&json!(true), &json!(env!("CARGO_PKG_VERSION")))
    );
    let installed = &document["checks"][1];
    assert_eq!((&installed["name"], &installed["status"]), (&json!("stead_installed"), &json!("pass")));
    assert!(installed["detail"].as_str().unwrap().contains(env!("CARGO_BIN_EXE_stead")), "{installed}");
}

/// Runs, case 22: latency in milliseconds, the password masked, a closed port is exit 7.
#[test]
fn an_agent_is_checked_over_ssh() {
    let Some(server) = server() else { return };
    let lab = Lab::new("");
    let workdir = server.workdir().display().to_string();
    let spec = server.spec_text();
    let ended = lab.run(["agent", "check", &spec, "--json", "--workdir", &workdir]).exits(0);
    let document = ended.document();
    assert_eq!(
        (&document["ok"], &document["connected"], &document["stead_found"]),
        (&json!(true), &json!(true), &json!(false))
    );
    let latency = document["latency_ms"].as_f64().unwrap();
    assert!(latency > 0.0 && latency < 5000.0, "{latency}");
    assert!(document["clock_offset_ms"].as_f64().unwrap().abs() < 5000.0, "{document}");
    assert_eq!(
        (&document["remote_os"], &document["remote_arch"]),
        (&json!("linux"), &json!(std::env::consts::ARCH))
    );
    let names: Vec<&Value> =
        document["checks"].as_array().unwrap().iter().map(|check| &check["name"]).collect();
    assert_eq!(names, ["connectivity", "stead_installed", "system_info", "workdir_writable", "pcap_capable"]);
    assert!(document["checks"][1]["detail"].as_str().unwrap().contains("will be uploaded"));
    assert_eq!(fs::read_dir(server.workdir()).map_or(0, Iterator::count), 0, "it uploads nothing");

    let text = lab.run(["agent", "check", &spec, "--workdir", &workdir]).exits(0).stdout;
    assert!(text.starts_with("[PASS] connectivity: ") && text.ends_with("Result: READY\n"), "{text}");
    let refused = lab.run(["agent", "check", &spec, "--workdir", "/proc/nowhere"]).exits(1);
    assert!(
        refused.stdout.contains("[FAIL] workdir_writable") && refused.stdout.ends_with("Result: NOT READY\n")
    );

    let closed = format!("ssh://ann:hunter22@127.0.0.1:{}?agent=false&ssh_config=none", sshd::free_port());
    let ended = lab.run(["agent", "check", &closed, "--json"]).exits(7);
    let document = ended.document();
    assert_eq!((&document["ok"], &document["connected"]), (&json!(false), &json!(false)));
    assert!(
        document["connect_error"].is_string() && document["transport"].as_str().unwrap().contains("ann:***@")
    );
    assert!(!ended.stdout.contains("hunter22") && !ended.stderr.contains("hunter22"));

    // An unknown key names the options that help.
    let strange = spec.replace("/known_hosts&", "/nothing&");
    lab.run(["agent", "check", &strange]).exits(7).says("known_hosts=").says("insecure=true");
}

#[test]
fn verbose_prints_the_values_that_hold_as_ssh_does() {
    let Some(server) = server() else { return };
    let lab = Lab::new("");
    let config = format!(
        "Host box\n  HostName 127.0.0.1\n  Port {}\n  User {}\n  Compression yes\n",
        server.port(),
        server.user()
    );
    lab.write("ssh_config", config);
    let place = server.path().display().to_string();
    let spec = format!(
        "ssh://box?key={place}/id&known_hosts={place}/known_hosts&agent=false&ssh_config={}",
        lab.path("ssh_config").display()
    );
    let workdir = server.workdir().display().to_string();
    let text = lab.run(["agent", "check", &spec, "-v", "--workdir", &workdir]).exits(0).stdout;
    assert!(
        text.contains("hostname 127.0.0.1\n") && text.contains(&format!("port {}\n", server.port())),
        "{text}"
    );
    assert!(
        text.lines()
            .any(|line| line.starts_with("without effect here: ")
                && line.to_lowercase().contains("compression")),
        "{text}"
    );
    let document =
        lab.run(["agent", "check", &spec, "-v", "--json", "--workdir", &workdir]).exits(0).document();
    assert_eq!(document["ok"], true, "one document, whatever else is asked for");
}

#[test]
fn agents_are_found_in_the_registry_listed_and_checked() {
    let Some(server) = server() else { return };
    let lab = Lab::new("");
    let agents = format!(
        "agents:\n  near: {{transport: \"{}\", workdir: \"{}\", description: the bench}}\n  \
         away: {{transport: \"ssh://ann:hunter22@127.0.0.1:{}?agent=false&ssh_config=none\"}}\n  bad: {{transport: local, workdir: /proc/nowhere}}\n",
        server.spec_text(),
        server.workdir().display(),
        sshd::free_port(),
    );
    lab.write("agents.yaml", &agents);
    let listed = lab.run(["agent", "list", "--json"]).exits(0).document();
    let agents = listed["agents"].as_array().unwrap();
    assert_eq!(agents.iter().map(|agent| &agent["name"]).collect::<Vec<_>>(), ["away", "bad", "near"]);
    assert_eq!(agents[2]["description"], "the bench");
    assert!(agents[0]["transport"].as_str().unwrap().contains("ann:***@") && agents[0]["status"].is_null());
    let listed = lab.run(["agent", "list", "--check", "--json"]).exits(0).document();
    let states: Vec<&Value> =
        listed["agents"].as_array().unwrap().iter().map(|agent| &agent["status"]).collect();
    assert_eq!(states, ["unreachable", "error", "ok"]);
    let text = lab.run(["agent", "list"]).exits(0).stdout;
    assert!(
        text.contains("near  ssh://") && text.contains("the bench") && !text.contains("hunter22"),
        "{text}"
    );
    lab.run(["agent", "check", "near"]).exits(0).says("Result: READY");
    lab.run(["agent", "check", "neer"]).exits(2).says("near");

    // Elsewhere the registry is named, or found by the variable.
    let elsewhere = Lab::new("");
    let file = lab.path("agents.yaml").display().to_string();
    elsewhere.run(["agent", "list"]).exits(0).says("no agents");
    elsewhere.run(["agent", "list", "--agents", &file]).exits(0).says("near");
    let ended: Ended = elsewhere.stead(["agent", "list"]).env("STEAD_AGENTS", &file).output().unwrap().into();
    ended.exits(0).says("near");
    elsewhere.run(["agent", "list", "--agents", "nowhere.yaml"]).exits(3).says("nowhere.yaml");
}
