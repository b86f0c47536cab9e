//! What is shown on a terminal, and what where there is none.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

use rustix::process::Signal;

use super::lab::{Lab, kill};
use crate::terminal::pty;

const ROWS: u16 = 10;

/// Fifty tasks that run until `go` is there.
fn fifty() -> Lab {
    let tasks: String = (0..50)
        .map(|i| format!("  - {{name: t{i:02}, shell: \"while ! test -e go; do sleep 0.05; done\"}}\n"))
        .collect();
    Lab::new(&format!(
        "api_version: v1\nname: wide\ngrace: 1s\nlimits: {{parallel: 64, per_target: 64}}\ntasks:\n{tasks}"
    ))
}

/// Follows a terminal until its end; `step` sees the screen after every read.
fn follow(master: &mut File, mut step: impl FnMut(&vt100::Screen)) -> vt100::Parser {
    let (mut emulator, mut buffer) = (vt100::Parser::new(ROWS, 60, 1000), [0; 4096]);
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        emulator.process(&buffer[..count]);
        step(emulator.screen());
    }
    emulator
}

/// Case 27: fifty running tasks on ten rows: never more than the screen, the cursor back at the end.
#[test]
fn fifty_tasks_never_exceed_ten_rows() {
    let lab = fifty();
    let (slave, mut master) = pty(ROWS, 60);
    let mut command = lab.stead(["plan", "run", "p.yaml"]);
    let mut child = command.env("TERM", "xterm").stdout(Stdio::null()).stderr(slave).spawn().unwrap();
    drop(command);
    let mut counted = false;
    let mut emulator = follow(&mut master, |screen| {
        let shown = screen.contents();
        let live = shown.lines().filter(|line| line.contains(" t") && !line.contains("changed")).count();
        assert!(live <= usize::from(ROWS), "{shown}");
        // All fifty run, and only a screenful is drawn: then they may end.
        if !counted && shown.contains("… and 4") {
            assert!(screen.hide_cursor());
            counted = true;
            lab.write("go", "");
        }
    });
    assert!(child.wait().unwrap().success());
    assert!(counted && !emulator.screen().hide_cursor());
    emulator.screen_mut().set_scrollback(usize::MAX);
    let scrolled = emulator.screen().scrollback();
    assert!((40..=50).contains(&scrolled), "only finished lines scroll away: {scrolled}");
}

/// Case 27: the cursor is back after every exit: one signal, two, three, and a failure to start.
#[test]
fn the_cursor_is_back_after_every_exit() {
    for signals in 1..=3 {
        let lab = Lab::new(
            "{api_version: v1, name: s, grace: 1s, tasks: [{name: t, shell: \"trap '' TERM; touch started; while ! test -e go; do sleep 0.05; done\"}], finally: [{name: f, shell: \"touch cleaning; while ! test -e go; do sleep 0.05; done\"}]}",
        );
        let (slave, mut master) = pty(ROWS, 60);
        let mut command = lab.stead(["plan", "run", "p.yaml"]);
        let mut child = command.env("TERM", "xterm").stdout(Stdio::null()).stderr(slave).spawn().unwrap();
        drop(command);
        let (mut sent, mut was_hidden) = (0, false);
        let emulator = follow(&mut master, |screen| {
            was_hidden |= screen.hide_cursor();
            let due = match sent {
                0 => lab.path("started").exists() && was_hidden,
                _ => lab.path("cleaning").exists(),
            };
            if due && sent < signals {
                sent += 1;
                kill(child.id(), Signal::INT);
                if signals == 3 && sent == 2 {
                    sent = 3;
                    kill(child.id(), Signal::INT);
                }
            } else if due && signals == 1 {
                lab.write("go", "");
            }
        });
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signals}");
        assert!(was_hidden && !emulator.screen().hide_cursor(), "{signals}");
        for (pid, _) in lab.processes() {
            assert_eq!(signals, 3, "only the third signal leaves anything");
            kill(pid, Signal::KILL);
        }
        super::lab::wait_until("nothing runs", || lab.processes().is_empty());
    }
}

/// Case 27: plain output has no ESC byte, whatever tasks print, on a pipe and with `--progress plain` on a terminal.
#[test]
fn plain_output_has_no_escape_byte() {
    let lab = Lab::new(
        r#"api_version: v1
name: plain
on_error: continue
tasks:
  - {name: colour, shell: "printf '\\033[31mred\\033[0m\\n'; printf '\\033]0;title\\007' >&2; exit 1"}
  - {name: retried, retry: 1, shell: "printf '\\033[2J'; test $STEAD_ATTEMPT = 2"}
  - {name: skipped, when: "false", shell: "true"}
"#,
    );
    for args in [&[][..], &["-v"], &["--progress", "plain", "-v"], &["--color", "never"]] {
        let ended = lab.plan(args).exits(1);
        assert!(!ended.stdout.contains('\x1b') && !ended.stderr.contains('\x1b'), "{args:?}: {ended:?}");
        for line in [
            "[start] colour",
            "[retry] retried@local attempt=1 in 0ms: exit code 1",
            "[skipped] skipped: guard is false: false",
        ] {
            assert!(ended.stderr.lines().any(|shown| shown == line), "no `{line}` in {}", ended.stderr);
        }
        assert!(
            ended
                .stderr
                .lines()
                .any(|line| line.starts_with("[failed] colour ") && line.ends_with(": exit code 1"))
        );
    }
    let (slave, mut master) = pty(ROWS, 60);
    let mut command = lab.stead(["plan", "run", "p.yaml", "--progress", "plain", "-v", "--color", "never"]);
    let mut child = command.env("TERM", "xterm").stdout(Stdio::null()).stderr(slave).spawn().unwrap();
    drop(command);
    let (mut shown, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!shown.contains(&0x1b), "{}", String::from_utf8_lossy(&shown));
}
