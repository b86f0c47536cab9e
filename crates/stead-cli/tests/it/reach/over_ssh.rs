//! `stead exec` and targets against a real SSH server.

use serde_json::{Value, json};
use stead_testkit::sshd::{self, Sshd};

use super::{Site, Told};

/// A server that the inventory calls `near`, and a host `gone` where nobody listens.
struct Network {
    sshd: Sshd,
    site: Site,
}

impl Network {
    /// Nothing where there is no server to start; the test command installs one where it may.
    fn new() -> Option<Self> {
        if !sshd::available() {
            return None;
        }
        let sshd = Sshd::start();
        let gone =
            format!("ssh://u@127.0.0.1:{}?agent=false&connect_timeout=5s&ssh_config=none", sshd::free_port());
        let site = Site::of(&format!(
            "  near: {{transport: \"{}\", workdir: {}, labels: {{role: web}}}}\n  gone: {{transport: \"{gone}\", labels: {{role: web}}}}\n",
            sshd.spec_text(),
            sshd.workdir().display()
        ));
        Some(Self { sshd, site })
    }

    /// Returns how many connections there were, once the server has told of the one that looked whether it listens.
    fn settled(&self) -> usize {
        self.run(&["exec", "near", "--", "true"]).exits(0);
        connections(&self.sshd)
    }

    fn run(&self, args: &[&str]) -> Told {
        let mut command = self.site.command(args);
        command.env("HOME", self.site.file("driver-home"));
        Told::of(command)
    }
}

/// Nodes, section 12: a command over SSH; 7 if the only trouble is that a host is not reached.
#[test]
fn a_command_runs_over_ssh_and_hosts_not_reached_exit_7() {
    let Some(network) = Network::new() else { return };
    let words = ["printf", "%s|", "a b", "$(x)", "it's", ""];
    let told = network.run(&[&["exec", "near", "--json", "--"], &words[..]].concat()).exits(0);
    let row = told.json()["results"][0].clone();
    assert_eq!(
        (&row["target"], &row["rc"], &row["stdout"]),
        (&json!("near"), &json!(0), &json!("a b|$(x)|it's||"))
    );

    let told = network.run(&["exec", "role:web", "--json", "--", "true"]).exits(7);
    let document = told.json();
    assert_eq!(document["success"], false);
    let gone = document["results"].as_array().unwrap().iter().find(|row| row["target"] == "gone").unwrap();
    assert_eq!((&gone["rc"], &gone["class"]), (&Value::Null, &json!("unreachable")));

    // One that failed by itself weighs more.
    network.run(&["exec", "role:web", "--", "false"]).exits(1);
    let told = network.run(&["exec", "near", "--", "sh", "-c", "echo hi; exit 3"]).exits(1);
    assert_eq!(told.stdout, "near | hi\n");
}

/// Section 5: a host that only the target names.
#[test]
fn an_ad_hoc_host_is_reached_by_its_transport() {
    let Some(network) = Network::new() else { return };
    let transport = network.sshd.spec_text();
    let name = format!("{}@127.0.0.1:{}", network.sshd.user(), network.sshd.port());
    let told = network.run(&["exec", &transport, "--json", "--", "sh", "-c", "echo $STEAD_HOST"]).exits(0);
    let row = told.json()["results"][0].clone();
    assert_eq!((&row["target"], &row["stdout"]), (&json!(name), &json!(format!("{name}\n"))));

    network.site.write(
        "p.yaml",
        &format!(
            "api_version: v1\nname: p\ntasks:\n  - {{name: a, target: [\"{transport}\"], shell: 'true'}}\n  - {{name: b, target: \"{transport}\", depends_on: a, shell: 'true'}}\n"
        ),
    );
    let told = network.run(&["plan", "run", "p.yaml", "--json"]).exits(0);
    assert_eq!(told.json()["tasks"][1]["hosts"][0]["host"], name);
}

/// Section 5: `_any` passes over the host that is not reached, says so, and finds the other one.
#[test]
fn any_finds_the_host_that_is_reached() {
    let Some(network) = Network::new() else { return };
    network.site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks: [{name: a, target: 'role:web&_any', shell: 'true'}]\n",
    );
    let mut passed_over = 0;
    for run in 0..6 {
        let told = network.run(&["plan", "run", "p.yaml", "--json", "--run-id", &format!("r{run}")]).exits(0);
        let report = told.json();
        assert_eq!(report["tasks"][0]["hosts"][0]["host"], "near", "{report:#}");
        let codes: Vec<&Value> =
            report["warnings"].as_array().unwrap().iter().map(|warning| &warning["code"]).collect();
        passed_over += codes.iter().filter(|code| **code == "reach/passed-over").count();
    }
    // The ids are fixed, and so is what they choose: some chose each of the two.
    assert!((1..6).contains(&passed_over), "{passed_over}");
}

/// Section 2: only names not found, refusals and timeouts are tried again; a refused login and a changed key are not.
#[test]
fn refused_logins_and_changed_keys_are_not_tried_again() {
    let Some(network) = Network::new() else { return };
    let sshd = &network.sshd;
    let plan = "api_version: v1
name: p
tasks:
  - {name: a, target: far, shell: 'true', retry: 3}
  - {name: b, target: far, op: file.present, params: {path: /nonexistent/x}, retry: 3}
";
    network.site.write("p.yaml", plan);
    network.settled();
    let other = Sshd::start();
    let (own, stranger) = (sshd.file("id"), other.file("id"));
    let known = network.site.file("known");
    let port = sshd.port();
    let line = |of: &Sshd| {
        let line = of.known_host(sshd::KeyKind::Ed25519);
        line.replacen(&format!(":{} ", of.port()), &format!(":{port} "), 1)
    };
    let cases = [(stranger, line(sshd)), (own, line(&other))];
    for (key, known_host) in cases {
        std::fs::write(&known, known_host).unwrap();
        let spec = format!(
            "ssh://{}@127.0.0.1:{port}?key={}&agent=false&known_hosts={}&ssh_config=none",
            sshd.user(),
            key.display(),
            known.display()
        );
        network
            .site
            .write("inventory.yaml", &format!("api_version: v1\nhosts:\n  far: {{transport: \"{spec}\"}}\n"));
        for task in ["a", "b"] {
            let before = connections(sshd);
            let told = network.run(&["plan", "run", "p.yaml", "--only", task, "--json"]).exits(7);
            let report = told.json();
            let tasks = report["tasks"].as_array().unwrap();
            let row = &tasks.iter().find(|row| row["name"] == task).unwrap()["hosts"][0];
            assert_eq!((&row["attempts"], &row["class"]), (&json!(1), &json!("unreachable")), "{report:#}");
            assert_eq!(connections(sshd) - before, 1, "{}", sshd.log());
        }
    }
}

/// Section 2: what only compiles a plan opens no connection.
#[test]
fn looking_at_a_plan_opens_no_connection() {
    let Some(network) = Network::new() else { return };
    network.site.write(
        "p.yaml",
        "api_version: v1\nname: p\ntasks:\n  - {name: a, target: near, op: file.present, params: {path: /x}}\n",
    );
    let before = network.settled();
    for args in [&["plan", "show", "p.yaml"][..], &["plan", "graph", "p.yaml"], &["exec", "near", "--list"]] {
        network.run(args).exits(0);
        assert_eq!(connections(&network.sshd), before, "{args:?}: {}", network.sshd.log());
    }
    // One that runs does.
    network.run(&["exec", "near", "--", "true"]).exits(0);
    assert_eq!(connections(&network.sshd), before + 1);
}

/// How many connections a server has been asked for: each is greeted once.
fn connections(sshd: &Sshd) -> usize {
    sshd.log().lines().filter(|line| line.starts_with("Connection from ")).count()
}
