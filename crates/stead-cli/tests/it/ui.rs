//! `stead ui`, asked by hand and looked at with a real browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stead_testkit::browser::{Browser, is_picture};

use crate::cases_17_32::lab::Lab;
use crate::fleet::Fleet;
use crate::nodes::{BASE, manifest, site, write};

/// `stead ui` that runs.
struct Ui {
    child: Child,
    url: String,
}

impl Ui {
    fn start(lab: &Lab) -> Self {
        let mut child =
            lab.stead(["ui", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut text = String::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        // One document, over several lines.
        while serde_json::from_str::<Value>(&text).is_err() {
            assert_ne!(lines.read_line(&mut text).unwrap(), 0, "it ended: {text}");
        }
        let told: Value = serde_json::from_str(&text).unwrap();
        Self { child, url: told["url"].as_str().unwrap().to_owned() }
    }

    fn port(&self) -> u16 {
        self.url.split([':', '/']).nth(4).unwrap().parse().unwrap()
    }

    /// Returns the path of the page, with its key.
    fn path(&self) -> &str {
        self.url.split_at(self.url.rfind(&format!(":{}", self.port())).unwrap()).1.split_once('/').unwrap().1
    }

    /// Returns head and body of the answer to a request for `path`, under the name `host`.
    fn ask(&self, method: &str, path: &str, host: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        write!(stream, "{method} /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }

    /// Returns the document that the page gets for `question`.
    fn data(&self, question: &str) -> Value {
        let (head, body) = self.ask("GET", &format!("{}data/{question}", self.path()), "localhost");
        assert!(head.starts_with("http/1.1 200"), "{question}: {head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).ok();
        assert!(self.child.wait().unwrap().success() || std::thread::panicking());
    }
}

const WAITING: &str = r#"
api_version: v1
name: waits
tasks:
  - {name: first, shell: 'echo one; echo "<b>two</b>" >&2'}
  - {name: second, shell: 'while [ ! -e go ]; do sleep 0.1; done; echo gone', depends_on: [first]}
  - {name: third, exec: [/bin/false], depends_on: [second], on_error: continue}
"#;

/// Nobody sees anything without the key, under a strange name, or by another way than asking.
#[test]
fn the_page_is_for_who_has_the_address() {
    let lab = Lab::new("");
    let ui = Ui::start(&lab);
    let path = ui.path().to_owned();
    assert_eq!(path.len(), 33);
    let status = |method: &str, path: &str, host: &str| ui.ask(method, path, host).0[9..12].to_owned();
    assert_eq!(status("GET", &path, "localhost"), "200");
    assert_eq!(status("GET", &path, &format!("127.0.0.1:{}", ui.port())), "200");
    assert_eq!(status("GET", &path, "evil.example"), "403");
    assert_eq!(status("GET", "", "localhost"), "404");
    assert_eq!(status("GET", "data/about", "localhost"), "404");
    let other = if path.starts_with('0') { "1" } else { "0" };
    assert_eq!(status("GET", &format!("{other}{}", &path[1..]), "localhost"), "404");
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(status(method, &path, "localhost"), "405");
    }
    for bad in [
        "data/runs/..%2f..%2fetc",
        "data/runs/x",
        "data/nodes",
        "data/fleet",
        "data/jobs",
        "data/",
        "data/runs?x=1",
        "data/runs/x/log?file=/etc/passwd",
        "page.js",
    ] {
        assert_eq!(status("GET", &format!("{path}{bad}"), "localhost"), "404", "{bad}");
    }
    let (head, body) = ui.ask("GET", &path, "localhost");
    assert!(head.contains("content-security-policy: default-src 'none'; style-src 'sha256-"), "{head}");
    assert!(
        head.contains("cache-control: no-store") && head.contains("referrer-policy: no-referrer"),
        "{head}"
    );
    assert!(body.starts_with("<!doctype html>"));
    assert_eq!(ui.data("about")["views"], json!(["runs"]));
    assert_eq!(ui.data("runs"), json!({"runs": [], "problems": []}));
    let port = ui.port().to_string();
    lab.run(["ui", "--port", &port]).exits(1).says("cannot listen").says("--port");
    lab.run(["ui", "--site", "nowhere"]).exits(3);
}

/// A run is seen as it goes: states, output, its end; its record is verified; nothing that was written becomes a program.
#[test]
fn a_run_is_followed_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new(WAITING);
    let ui = Ui::start(&lab);
    let run = lab.start_plan("r1", &[]);
    browser.look(1200, "light");
    browser.open(&format!("{}#/runs", ui.url));
    browser.until_text("waits");
    browser.press("r1");
    browser.until("[...document.querySelectorAll('svg g.busy')].length === 1");
    browser.until_text("1 changed, 1 running, 1 waiting");
    browser.press("▸ first");
    // The keyboard stays where it is while the page is drawn again, every second.
    browser.ask("document.querySelector('button[data-name=first]').focus(); window.was = document.querySelector('table')");
    browser.until("document.querySelector('table') !== window.was");
    assert_eq!(browser.ask("document.activeElement.dataset.name"), json!("first"));
    browser.press("local.1.stderr");
    browser.until("document.querySelector('pre')?.textContent === '<b>two</b>\\n'");
    assert_eq!(browser.ask("document.querySelectorAll('main b').length"), json!(0));
    lab.write("go", "");
    browser.until_text("2 changed, 1 failed");
    browser.until("document.querySelectorAll('svg g.bad').length === 1");
    browser.press("Verify the record");
    browser.until_text("valid:");
    run.end();
    assert!(browser.text().contains("not signed"), "{}", browser.text());
    // A page that comes later sees the same.
    for (width, scheme) in [(1200, "dark"), (390, "light")] {
        browser.look(width, scheme);
        browser.open(&format!("{}#/runs/r1", ui.url));
        browser.until_text("2 changed, 1 failed");
        assert_eq!(browser.ask("document.documentElement.scrollWidth <= innerWidth"), json!(true), "{width}");
        assert!(is_picture(&browser.picture()));
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// What somebody else wrote into a record stays text, and a record that cannot be read is said.
#[test]
fn a_hostile_record_stays_text() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new("");
    let evil = "<img src=x onerror=alert(1)>";
    let meta = json!({
        "run_id": evil, "kind": evil, "status": evil, "plan": evil, "error": evil, "started_at": evil,
        "duration_seconds": 1,
    });
    lab.write("runs/r1/run_meta.json", meta.to_string());
    let plan =
        json!({"tasks": [{"name": evil, "depends_on": [evil, "x"]}, {"name": "x", "depends_on": [evil]}]});
    lab.write("runs/r1/plan.json", plan.to_string());
    let event = json!({"ev": "warning", "text": evil});
    lab.write("runs/r1/events.jsonl", format!("{{\"seq\":1,{}\n", &event.to_string()[1..]));
    lab.write("runs/r2/run_meta.json", "{");
    let ui = Ui::start(&lab);
    browser.look(1200, "light");
    browser.open(&ui.url);
    browser.until_text("<img src=x");
    browser.until_text("run_meta.json");
    browser.open(&format!("{}#/runs/r1", ui.url));
    browser.until("document.querySelectorAll('svg g').length === 2");
    assert_eq!(browser.ask("document.querySelectorAll('img').length"), json!(0));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Nodes are seen by topology as they come and go.
#[test]
fn nodes_come_and_go_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = site(&[("manifests/m.yaml", &manifest("  - {name: a, type: vm, spec: base}\n"))]);
    let ui = Ui::start(&lab);
    browser.look(1200, "light");
    browser.open(&format!("{}#/nodes", ui.url));
    browser.until_text("There are no nodes.");
    lab.run(["create", "-M", "m", "-H", "local"]).exits(0);
    browser.until_text("m on local");
    browser.until("document.querySelector('.tree .good') !== null");
    assert!(browser.text().contains("vm on sandbox"), "{}", browser.text());
    // One that is not what it should be says why, and what to do.
    write(&lab, "specs/base.yaml", &BASE.replace("htop", "vim"));
    browser.until_text("node/verification: its spec says something else since: `stead create` configures it");
    lab.run(["status", "-M", "m", "-H", "local"]).exits(1).says("`stead create` configures it");
    lab.run(["create", "-M", "m", "-H", "local"]).exits(0);
    browser.until("document.querySelector('.tree .good') !== null");
    lab.run(["destroy", "-M", "m", "-H", "local", "--yes"]).exits(0);
    browser.until("document.querySelector('.tree .good') === null");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Two runs of roles are compared, with all of their roles; what is said of one is what the command says.
#[test]
fn two_runs_are_compared_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new("");
    let roles = "  reader: {command: [/bin/echo, hi]}\n  writer: {command: [/bin/echo, ho]}\n";
    lab.write("lab.yaml", format!("api_version: v1\nroles:\n{roles}"));
    for _ in 0..2 {
        lab.run(["run", "manifest", "lab.yaml", "--bundle-dir", "runs"]).exits(0);
    }
    let listed = lab.run(["bundle", "list", "--json"]).exits(0).document();
    let name = |place: usize| listed[place]["run_id"].as_str().unwrap().to_owned();
    let (new, old) = (name(0), name(1));
    let ui = Ui::start(&lab);
    browser.look(1200, "light");
    browser.open(&ui.url);
    browser.press(&format!("Compare {new}"));
    browser.press(&format!("Compare {old}"));
    browser.press("Compare two");
    browser.until_text(&format!("From {old} to {new}"));
    browser.until(
        "['reader', 'writer'].every((role) => document.querySelector('pre')?.textContent.includes(role))",
    );
    browser.open(&format!("{}#/runs/{old}", ui.url));
    browser.until_text("reader");
    browser.until_text("exit code 0");
    browser.until("[...document.querySelectorAll('td')].some((cell) => cell.innerText === 'done')");
    assert!(!browser.text().contains("changed"), "phases are done: {}", browser.text());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// A fleet's convergence is seen by `stead ui` and on the master's own page.
#[test]
fn a_fleet_is_seen_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let fleet = Fleet::start();
    let first = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&first);
    let ui = Ui::start(&fleet.lab);
    browser.look(390, "dark");
    browser.open(&format!("{}#/fleet", ui.url));
    browser.until_text("100 %");
    browser.until("document.querySelector('.bar.good') !== null");
    assert!(browser.text().contains("web/0"), "{}", browser.text());
    // Healthy machines are called what `fleet status` calls them.
    assert!(browser.text().contains("ready") && !browser.text().contains("running"), "{}", browser.text());
    assert!(browser.text().contains("Every instance is as it should be."), "{}", browser.text());
    assert_eq!(browser.ask("document.documentElement.scrollWidth <= innerWidth"), json!(true));
    // The view is drawn again and again: where a person has scrolled to stays.
    browser.look(300, "dark");
    let wide =
        "[...document.querySelectorAll('.wide')].find((one) => one.scrollWidth > one.clientWidth + 30)";
    browser.ask(&format!("window.was = {wide}; was.scrollLeft = 30"));
    browser.until("!window.was.isConnected");
    assert_eq!(browser.ask(&format!("{wide}.scrollLeft")), json!(30));
    // The master's own page is the same.
    browser.look(1200, "light");
    browser.open(&fleet.page);
    browser.until_text("100 %");
    assert!(browser.text().contains("web/0") && !browser.text().contains("Runs"), "{}", browser.text());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Where nothing is, and where nobody answers, the page says what to do.
#[test]
fn an_empty_page_says_what_to_do() {
    let Some(mut browser) = Browser::start() else { return };
    let lab = Lab::new("");
    let ui = Ui::start(&lab);
    browser.look(390, "light");
    browser.open(&ui.url);
    browser.until_text("There are no runs here yet. `stead plan run FILE` makes one");
    let mut fleet = Fleet::start();
    fleet.end(Signal::INT);
    let ui = Ui::start(&fleet.lab);
    browser.open(&format!("{}#/fleet", ui.url));
    browser.until_text("no master answers");
    browser.until_text("→ is a master running");
    assert!(!browser.text().contains("Loading"), "{}", browser.text());
}
