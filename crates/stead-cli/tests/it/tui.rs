//! `stead tui` on a real terminal, with real roles: shell scripts.

mod views;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stead_testkit::pty::Pty;

use crate::process::stead;

const MANIFEST: &str = r#"
api_version: v1
roles:
  server:
    kind: service
    files: [server.sh]
    command: [./server.sh]
    ready: {method: structured_stdout}
  client:
    needs: [server]
    files: [client.sh]
    command: [./client.sh]
    artifacts: ["*.json"]
"#;

/// Says that it is ready, then waits; when it is stopped it says so.
const SERVER: &str = r#"#!/bin/sh
trap 'echo server stops; echo by a signal >&2; exit 0' TERM
echo '{"event": "server_ready"}'
while :; do sleep 0.1; done
"#;

/// Writes to both streams for ever, with a grandchild that would outlive it.
const CLIENT: &str = r#"#!/bin/sh
sleep 1000 &
echo '{"ok": true}' > result.json
echo "an error line" >&2
i=0
while :; do i=$((i + 1)); echo "client line $i"; sleep 0.1; done
"#;

/// A directory with a manifest and its scripts, for screens to be started in.
struct Lab {
    dir: tempfile::TempDir,
    mark: String,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let lab = Self { dir, mark };
        lab.write("lab.yaml", MANIFEST);
        lab.script("server.sh", SERVER);
        lab.script("client.sh", CLIENT);
        lab
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn script(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn screen_with(&self, size: (u16, u16), more: &[(&str, &str)]) -> Pty {
        let dir = self.path().to_str().unwrap();
        let mut env = vec![
            ("PATH", "/usr/bin:/bin"),
            ("TERM", "xterm-256color"),
            ("HOME", dir),
            ("LAB_MARK", self.mark.as_str()),
        ];
        env.extend(more);
        Pty::start(env!("CARGO_BIN_EXE_stead"), &["tui"], self.path(), &env, size)
    }

    /// Opens the panel of a new screen and types the manifest's path.
    fn panel(&self, size: (u16, u16)) -> Pty {
        let mut screen = self.screen_with(size, &[]);
        screen.wait_for("no runs yet");
        screen.type_text("o");
        screen.wait_for("Bundle directory");
        screen.type_text(&format!("{}/lab.yaml\r", self.path().display()));
        screen.wait_for("client  task");
        screen
    }

    /// Returns the only bundle below `directory`.
    fn bundle(&self, directory: &str) -> PathBuf {
        let bundles: Vec<PathBuf> =
            fs::read_dir(self.path().join(directory)).unwrap().map(|entry| entry.unwrap().path()).collect();
        let [bundle] = bundles.as_slice() else { panic!("{bundles:?}") };
        bundle.clone()
    }

    /// Returns `run_meta.json` of the only bundle below `directory`, which verifies.
    fn meta(&self, directory: &str) -> serde_json::Value {
        let bundle = self.bundle(directory);
        let verified = stead(self.path()).args(["bundle", "verify"]).arg(&bundle).output().unwrap();
        assert!(verified.status.success(), "{verified:?}");
        serde_json::from_slice(&fs::read(bundle.join("run_meta.json")).unwrap()).unwrap()
    }

    /// Waits until no process is left that has this lab's mark, but for `screen`.
    fn wait_until_only(&self, screen: &Pty) {
        let begin = Instant::now();
        loop {
            let left = self.processes(screen.pid());
            if left.is_empty() {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn processes(&self, except: u32) -> Vec<(u32, String)> {
        let wanted = format!("LAB_MARK={}", self.mark);
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let marked = ids.filter(|id| {
            let environ = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            *id != except && environ.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes())
        });
        let name = |id: u32| {
            fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default().replace('\0', " ")
        };
        marked.map(|id| (id, name(id))).collect()
    }
}

fn wait_for_live_output(screen: &mut Pty) {
    screen.wait_for("client line ");
    screen.wait_until("phases", |shown| {
        let done = |phase: &str| shown.lines().any(|line| line.contains(phase) && line.contains("done"));
        done("server_ready") && shown.contains("client_done")
    });
}

/// Case 34: `o`, path typed, `r`: phases and live output appear; `x`: cancelled, sealed, no process left. Tab shows the
/// agent, and the run can be opened from the list.
#[test]
fn a_run_is_started_watched_stopped_and_looked_at() {
    let lab = Lab::new();
    let mut screen = lab.panel((80, 24));
    screen.type_text("r");
    wait_for_live_output(&mut screen);
    let first = screen.wait_for("running");
    assert!(first.contains("ready on local"), "{first}");
    let line = |shown: &str| {
        let numbers = shown.lines().filter_map(|line| line.split("client line ").nth(1));
        numbers.filter_map(|rest| rest.split_whitespace().next()?.parse::<u32>().ok()).max().unwrap_or(0)
    };
    let before = line(&first);
    screen.wait_until("more output", |shown| line(shown) > before + 3);
    // The server's own output, by choosing it.
    screen.type_text("\x1b[D");
    screen.wait_for("server_ready\"}");
    screen.type_text("x");
    let shown = screen.wait_for("Enter new run");
    assert!(shown.contains("cancelled") && shown.contains("status"), "{shown}");
    screen.wait_for("server stops");
    lab.wait_until_only(&screen);
    let meta = lab.meta("runs");
    assert_eq!((&meta["status"], &meta["exit_code"]), (&"cancelled".into(), &130.into()));
    // Everything that is told of the end can be reached.
    let mut seen = shown;
    let end = Instant::now() + Duration::from_secs(60);
    while !(seen.contains("client/result.json") && seen.contains("bundle")) {
        assert!(Instant::now() < end, "{seen}");
        screen.type_text("j");
        std::thread::sleep(Duration::from_millis(20));
        seen.push_str(&screen.screen());
    }

    screen.type_text("l");
    screen.wait_for("Full log: server stdout.log");
    screen.type_text("\x1b[C");
    screen.wait_for("Full log: server stderr.log");
    screen.type_text("\x1b[C");
    screen.wait_for("Full log: client stdout.log");
    screen.wait_for("client line");
    screen.type_text("\x1b");
    screen.wait_without("Full log");

    screen.type_text("\t");
    let shown = screen.wait_for("interfaces");
    assert!(shown.contains(env!("CARGO_PKG_VERSION")) && shown.contains("workdir"), "{shown}");
    assert!(shown.contains("capture") && shown.contains(std::env::consts::ARCH), "{shown}");

    screen.type_text("\x1b");
    screen.wait_until("the run in the list", |shown| shown.contains("run   cancelled"));
    screen.type_text("\r");
    screen.wait_for("Recorded run");
    screen.wait_for("client line ");
    screen.type_text("q");
    assert_eq!(screen.wait().code(), Some(0));
    assert!(screen.is_restored());
}

/// Case 34: changed bundle directory and timeout take effect.
#[test]
fn changed_fields_take_effect() {
    let lab = Lab::new();
    let mut screen = lab.panel((80, 24));
    screen.type_text("j\r\x15elsewhere\r");
    screen.type_text("j\r\x156s\r");
    screen.wait_for("6s");
    screen.type_text("r");
    screen.wait_for("Enter new run");
    let meta = lab.meta("elsewhere");
    assert_eq!((&meta["status"], &meta["exit_code"]), (&"timeout".into(), &8.into()));
    assert!(!lab.path().join("runs").exists());
    lab.wait_until_only(&screen);
    // A dry run starts nothing and makes nothing.
    screen.type_text("\r");
    screen.wait_for("Bundle directory");
    screen.type_text("j ");
    screen.wait_for("[x] yes");
    screen.type_text("r");
    screen.wait_for("Dry run ─");
    lab.bundle("elsewhere");
}

/// Section 9: `q` during a run asks first; then the run is stopped in order.
#[test]
fn leaving_during_a_run_asks_first() {
    let lab = Lab::new();
    let mut screen = lab.panel((100, 30));
    screen.type_text("r");
    wait_for_live_output(&mut screen);
    screen.type_text("q");
    screen.wait_for("A run goes on.");
    screen.type_text("n");
    screen.wait_without("A run goes on.");
    screen.resize((80, 24));
    screen.wait_until("24 rows", |shown| shown.lines().count() <= 24 && shown.contains("? help"));
    wait_for_live_output(&mut screen);
    screen.type_text("q");
    screen.wait_for("A run goes on.");
    screen.type_text("y");
    assert_eq!(screen.wait().code(), Some(0));
    assert!(screen.is_restored());
    lab.wait_until_only(&screen);
    assert_eq!(lab.meta("runs")["status"], "cancelled");
}

/// SIGTERM is as `x`, and the screen is left when the run has ended.
#[test]
fn a_signal_stops_the_run_and_leaves() {
    let lab = Lab::new();
    let mut screen = lab.panel((80, 24));
    screen.type_text("r");
    wait_for_live_output(&mut screen);
    screen.signal(Signal::TERM);
    assert_eq!(screen.wait().code(), Some(130));
    assert!(screen.is_restored());
    lab.wait_until_only(&screen);
    assert_eq!(lab.meta("runs")["status"], "cancelled");
}

/// A window that is closed stops the run; its bundle is complete.
#[test]
fn a_closed_terminal_stops_the_run() {
    let lab = Lab::new();
    let mut screen = lab.panel((80, 24));
    screen.type_text("r");
    wait_for_live_output(&mut screen);
    screen.hang_up();
    assert!(!screen.wait().success());
    lab.wait_until_only(&screen);
    assert_eq!(lab.meta("runs")["status"], "cancelled");
}

/// Section 9: output is shown within 200 ms of its writing, as often as the machine has a moment for it.
#[test]
fn output_is_shown_soon() {
    let lab = Lab::new();
    let client = "#!/bin/sh\nwhile :; do sleep 0.4; echo \"mark-$(date +%s%N)-end\"; done\n";
    lab.script("client.sh", client);
    let mut screen = lab.panel((80, 24));
    screen.type_text("r");
    let mut delays = Vec::new();
    let mut seen = String::new();
    let begun = Instant::now();
    while delays.last().is_none_or(|delay| *delay > 200) {
        assert!(begun.elapsed() < Duration::from_secs(90), "{delays:?} ms");
        let shown =
            screen.wait_until("a new mark", |shown| last_mark(shown).is_some_and(|mark| mark != seen));
        seen = last_mark(&shown).unwrap();
        delays.push(millis_since(&seen));
    }
}

/// One line followed by silence is shown: nothing later has to bring it.
#[test]
fn a_line_followed_by_silence_is_shown() {
    let lab = Lab::new();
    // Far longer than the screen is waited for.
    lab.script("client.sh", "#!/bin/sh\nsleep 0.5; echo \"mark-$(date +%s%N)-end\"; sleep 600\n");
    let mut screen = lab.panel((80, 24));
    screen.type_text("r");
    screen.wait_until("the only mark", |shown| last_mark(shown).is_some());
}

/// Returns how long ago a mark was made.
fn millis_since(mark: &str) -> i64 {
    stead_runner::clock::now().as_micros() / 1_000 - mark.parse::<i64>().unwrap() / 1_000_000
}

fn last_mark(shown: &str) -> Option<String> {
    let begin = shown.rfind("mark-")? + 5;
    let end = shown[begin..].find("-end")?;
    Some(shown[begin..begin + end].to_owned())
}

#[test]
fn every_problem_of_a_manifest_is_shown_with_its_line() {
    let lab = Lab::new();
    lab.write("bad.yaml", "api_version: v1\nreadines: {}\nroles:\n  a: {kind: servce, command: []}\n");
    let mut screen = lab.screen_with((80, 24), &[]);
    screen.wait_for("no runs yet");
    screen.type_text("o\rbad.yaml\r");
    screen.wait_for("problems");
    screen.type_text("v");
    let shown = screen.wait_for("bad.yaml:2:1");
    assert!(shown.contains("bad.yaml:4:") && shown.contains("readiness"), "{shown}");
    // Nothing can be run, and nothing is.
    screen.type_text("r");
    screen.wait_for("problems");
    assert!(!lab.path().join("runs").exists());
}

#[test]
fn no_colours_where_none_are_wanted() {
    let colours = |more: &[(&str, &str)]| {
        let lab = Lab::new();
        let mut screen = lab.screen_with((80, 24), more);
        let is_plain = |screen: &vt100::Screen| {
            let cells = (0..24).flat_map(|row| (0..80).map(move |column| (row, column)));
            cells
                .filter_map(|(row, column)| screen.cell(row, column))
                .all(|cell| cell.fgcolor() == vt100::Color::Default)
        };
        screen.wait_for("no runs yet");
        // Nothing is wrong in the first, and what is wrong in the others is a word as well.
        [
            ("?", "Keys"),
            ("\x1b", "no runs yet"),
            ("2", "stead init nodes"),
            ("3", "nobody has joined a fleet"),
        ]
        .map(|(keys, text)| {
            screen.type_text(keys);
            screen.wait_for(text);
            !screen.look(is_plain)
        })
        .contains(&true)
    };
    assert!(colours(&[]));
    assert!(!colours(&[("NO_COLOR", "1")]));
}

#[test]
fn without_a_terminal_it_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let result = stead(dir.path()).arg("tui").stdout(Stdio::piped()).output().unwrap();
    assert_eq!(result.status.code(), Some(2));
    let said = String::from_utf8(result.stderr).unwrap();
    assert!(said.contains("stead tui needs a terminal: standard input is not a terminal"), "{said}");
    assert!(result.stdout.is_empty());
}
