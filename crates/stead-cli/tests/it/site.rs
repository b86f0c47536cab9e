//! The shipped `examples/site/web.yaml` on three machines behind real SSH servers, each a container of its own.
//!
//! Accounts, packages, files and kernel settings are the real programs' work. The service manager and the web server
//! are stand-ins: the package brings a unit, and the server answers with whatever is below `/srv/www`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use stead_testkit::container::Container;
use stead_testkit::sshd::{KeyKind, make_key};
use stead_testkit::stand_in;

const NAMES: [&str; 3] = ["web1", "web2", "web3"];

/// Makes the container a fresh server: `sshd`, a repository with one package, a service manager.
const PREPARE: &str = r#"
mkdir -p /run/sshd /etc/ssh/site /srv/deb/DEBIAN /srv/deb/etc/systemd/system /srv/deb/etc/nginx/conf.d /srv/repository
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/site/host
cat >/etc/ssh/site/config <<'END'
HostKey /etc/ssh/site/host
AuthorizedKeysFile /etc/ssh/site/keys
StrictModes no
UsePAM no
PermitRootLogin yes
MaxSessions 100
END
printf '[Service]\nExecStart=/bin/true\n' >/srv/deb/etc/systemd/system/nginx.service
printf 'Package: nginx\nVersion: 1.0\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: t\n' \
    >/srv/deb/DEBIAN/control
dpkg-deb -Znone -b /srv/deb /srv/repository/nginx.deb >/dev/null
cd /srv/repository
{ cat /srv/deb/DEBIAN/control; echo "Filename: ./nginx.deb"; echo "Size: $(stat -c %s nginx.deb)"
  echo "SHA256: $(sha256sum nginx.deb | cut -d' ' -f1)"; } >Packages
rm -r /srv/deb
# Few packages and one source: apt is quick then.
: >/var/lib/dpkg/status
rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*
echo 'deb [trusted=yes] file:/srv/repository ./' >/etc/apt/sources.list
"#;

/// Answers every request with the page, while the test has it run.
const SERVER: &str = r#"
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 8080, Listen => 9, ReuseAddr => 1) or die;
while (my $client = $server->accept) {
    while (my $line = <$client>) { last if $line =~ /^\r?$/ }
    my $page = "";
    if (open my $file, "<", "/srv/www/index.html") { local $/; $page = <$file> }
    my $status = length $page ? "200 OK" : "404 Not Found";
    print $client "HTTP/1.1 $status\r\nContent-Length: " . length($page) . "\r\nConnection: close\r\n\r\n$page";
    close $client;
}
"#;

/// What is shipped can be shown as it stands, with nothing given that has a default.
#[test]
fn the_shipped_plan_needs_nothing_that_it_does_not_ask_for() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/site/web.yaml");
    let directory = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_stead"))
        .args(["plan", "show", "--json"])
        .arg(shipped)
        .current_dir(directory.path())
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

/// Starts a machine; returns it with the lines of `ssh_config` and `known_hosts` by which it is reached.
fn machine(name: &str, key: &Path) -> Option<(Container, String, String)> {
    let container = Container::start()?;
    container.sh(PREPARE);
    container.sh(&stand_in::systemd_script());
    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    container.sh(&format!("cat >/etc/ssh/site/keys <<'END'\n{public}END\n"));
    container.sh(&format!(
        "cat >/srv/server.pl <<'END'\n{SERVER}END\nhostname {name}\nsetsid perl /srv/server.pl </dev/null >/dev/null 2>&1 &"
    ));
    let host_key = container.sh("cut -d' ' -f1,2 /etc/ssh/site/host.pub");
    let enter = container.entering().join(" ");
    let config = format!("Host {name}\n    ProxyCommand {enter} /usr/sbin/sshd -i -f /etc/ssh/site/config\n");
    Some((container, config, format!("{name} {host_key}")))
}

fn run(dir: &Path, words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
    command.args(["plan", "run", "site/web.yaml", "--json", "-i", "inventory.yaml"]).args(words);
    command.current_dir(dir).env("HOME", dir).env_remove("SSH_AUTH_SOCK").stdin(Stdio::null());
    let output = command.output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        panic!("{error}: {}{said}", String::from_utf8_lossy(&output.stdout))
    });
    (output.status.code().unwrap(), report)
}

/// Returns the rows of a task, host by host.
fn rows<'a>(report: &'a Value, task: &str) -> &'a [Value] {
    let tasks = report["tasks"].as_array().unwrap();
    let task = tasks.iter().find(|found| found["name"] == task).unwrap();
    task["hosts"].as_array().unwrap()
}

/// Makes sure that no task was under way on two hosts at once, but those that may.
fn one_after_the_other(dir: &Path, report: &Value, but: &str) {
    let run = report["run_id"].as_str().unwrap();
    let events = fs::read_to_string(dir.join(format!(".stead/runs/{run}/events.jsonl"))).unwrap();
    let mut running: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut seen = 0;
    for event in events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let task = running.entry(text("task")).or_default();
        match event["ev"].as_str().unwrap() {
            "attempt_started" => {
                task.push(text("host"));
                seen += 1;
                assert!(task.len() == 1 || text("task") == but, "{} at once on {task:?}", text("task"));
            }
            "host_result" => task.retain(|host| *host != text("host")),
            _ => {}
        }
    }
    assert!(seen >= 3 * NAMES.len(), "{seen} attempts in {events}");
}

fn statuses(report: &Value) -> Vec<String> {
    let tasks = report["tasks"].as_array().unwrap();
    tasks
        .iter()
        .map(|task| format!("{} {}", task["name"].as_str().unwrap(), task["status"].as_str().unwrap()))
        .collect()
}

#[test]
fn three_web_servers_are_brought_to_one_state_and_then_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let key = path.join("id");
    make_key(&key, KeyKind::Ed25519);
    let mut machines = Vec::new();
    let (mut config, mut known, mut inventory) =
        (String::new(), String::new(), "api_version: v1\nhosts:\n".to_owned());
    for (number, name) in NAMES.into_iter().enumerate() {
        let Some((container, host_config, host_key)) = machine(name, &key) else { return };
        machines.push(container);
        config += &host_config;
        known += &host_key;
        let zone = ["a", "b", "b"][number];
        inventory += &format!(
            "  {name}: {{transport: \"ssh://root@{name}?key={0}/id&known_hosts={0}/known_hosts&agent=false&ssh_config={0}/config\", \
             labels: {{role: web.front, zone: {zone}}}}}\n",
            path.display()
        );
    }
    for (file, text) in [("config", config), ("known_hosts", known), ("inventory.yaml", inventory)] {
        fs::write(path.join(file), text).unwrap();
    }
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/site");
    fs::create_dir(path.join("site")).unwrap();
    for file in ["web.yaml", "site.conf.template"] {
        fs::copy(shipped.join(file), path.join("site").join(file)).unwrap();
    }

    let public = fs::read_to_string(key.with_extension("pub")).unwrap();
    let deploy_key = format!("deploy_key={}", public.trim());
    let run = |path: &Path, words: &[&str]| run(path, &[&["--var", &deploy_key], words].concat());

    // The dry run predicts what cannot surprise and changes nothing.
    let (code, predicted) = run(path, &["--dry-run"]);
    assert_eq!(code, 0, "{predicted:#}");
    assert_eq!(
        machines[0].sh("getent passwd deploy || echo none; ls /srv/www 2>/dev/null || true"),
        "none\n"
    );

    let (code, first) = run(path, &[]);
    assert_eq!(code, 0, "{first:#}");
    let expected: Vec<String> = [
        "account changed",
        "kernel changed",
        "package changed",
        "content changed",
        "configuration changed",
        "restart changed",
        "service unchanged",
        "verification unchanged",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(statuses(&first), expected, "{first:#}");
    one_after_the_other(path, &first, "verification");
    for task in ["kernel", "package", "configuration"] {
        let hosts: Vec<&str> = rows(&first, task).iter().map(|row| row["host"].as_str().unwrap()).collect();
        assert_eq!(hosts, NAMES, "{task}");
        assert!(rows(&first, task).iter().all(|row| row["diff"].is_object()), "{task}: {first:#}");
    }
    // What was predicted, and not left open, is what happened.
    for task in ["account", "kernel", "package", "content", "configuration"] {
        for (row, done) in rows(&predicted, task).iter().zip(rows(&first, task)) {
            let is_open = row["status"] == "unknown";
            assert!(is_open || row["status"] == done["status"], "{task}: {row:#} and then {done:#}");
        }
    }
    for task in ["kernel", "package"] {
        let known = rows(&predicted, task).iter().all(|row| row["status"] == "changed");
        assert!(known, "{task}: {predicted:#}");
    }
    for (container, name) in machines.iter().zip(NAMES) {
        let said = container.sh(
            "getent passwd deploy | cut -d: -f6-; dpkg-query -W nginx; stat -c '%U %G %a' /srv/www; cat /srv/www/index.html
            cat /etc/nginx/conf.d/site.conf; cat /run/stand-in/nginx.service.active; cat /home/deploy/.ssh/authorized_keys",
        );
        for part in [
            "/home/deploy:/bin/sh",
            "nginx\t1.0",
            "deploy deploy 755",
            "debian",
            name,
            "listen 8080;",
            "active",
            public.trim(),
        ] {
            assert!(said.contains(part), "{name}: no {part} in {said}");
        }
    }

    let (code, second) = run(path, &[]);
    assert_eq!(code, 0, "{second:#}");
    let unchanged = statuses(&second);
    let expected: Vec<String> = [
        "account unchanged",
        "kernel unchanged",
        "package unchanged",
        "content unchanged",
        "configuration unchanged",
        "restart skipped",
        "service unchanged",
        "verification unchanged",
    ]
    .map(str::to_owned)
    .into();
    assert_eq!(unchanged, expected, "{second:#}");
    let with_rows = second["tasks"].as_array().unwrap().iter().filter_map(|task| task["hosts"].as_array());
    assert!(with_rows.flatten().all(|row| row["diff"].is_null()), "{second:#}");

    // One host drifts: only it is repaired.
    machines[1].sh("echo broken >/etc/nginx/conf.d/site.conf");
    let (code, third) = run(path, &[]);
    assert_eq!(code, 0, "{third:#}");
    let tasks = third["tasks"].as_array().unwrap();
    let changed: Vec<&str> = tasks
        .iter()
        .flat_map(|task| task["hosts"].as_array().into_iter().flatten())
        .filter(|row| row["changed"] == true)
        .filter_map(|row| row["host"].as_str())
        .collect();
    assert_eq!(changed, ["web2", "web2"], "{third:#}");
}
