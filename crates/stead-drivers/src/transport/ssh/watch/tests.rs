use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::SCRIPT;

/// A watcher on this machine.
struct Watcher {
    shell: Child,
    input: Option<ChildStdin>,
    door: String,
}

impl Watcher {
    fn start(shell: &str) -> Self {
        let mut shell = Command::new(shell)
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut door = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut door).unwrap();
        let input = shell.stdin.take();
        Self { shell, input, door: door.trim_end().to_owned() }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_ref().unwrap(), "{line}").unwrap();
    }

    /// Ends its input and waits for its end.
    fn end(mut self) {
        self.input = None;
        assert!(self.shell.wait().unwrap().success());
    }
}

/// Starts `script` in a group of its own, and waits until it says that it runs.
fn group(script: &str) -> Child {
    let mut child =
        Command::new("/bin/sh").args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let mut up = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut up).unwrap();
    child
}

const SLEEPS: &str = "echo up; exec sleep 600";
/// It is ended by KILL alone.
const STUBBORN: &str = "trap '' TERM; echo up; while :; do sleep 0.05; done";

fn shells() -> impl Iterator<Item = &'static str> {
    ["/bin/sh", "/bin/bash"].into_iter().filter(|shell| std::path::Path::new(shell).exists())
}

/// Case 11: what is on the list when the input ends is asked to stop, what was taken off is left alone.
#[test]
fn who_is_on_the_list_at_the_end_is_asked_to_stop() {
    for shell in shells() {
        let mut watcher = Watcher::start(shell);
        let (mut on, mut off, mut last) = (group(SLEEPS), group(SLEEPS), group(SLEEPS));
        for (key, child) in [(1, &on), (11, &off), (12, &last)] {
            watcher.say(&format!("+ {key} {} 1", child.id()));
        }
        watcher.say("- 11");
        watcher.say("- 111");
        watcher.end();
        for ended in [&mut on, &mut last] {
            assert_eq!(ended.wait().unwrap().signal(), Some(15), "{shell}");
        }
        assert_eq!(off.try_wait().unwrap(), None, "{shell}: it was taken off the list");
        off.kill().unwrap();
        assert_eq!(off.wait().unwrap().signal(), Some(9), "{shell}");
    }
}

#[test]
fn who_does_not_stop_is_killed_after_its_grace() {
    for shell in shells() {
        let mut watcher = Watcher::start(shell);
        let mut stubborn = group(STUBBORN);
        watcher.say(&format!("+ 1 {} 1", stubborn.id()));
        watcher.end();
        assert_eq!(stubborn.wait().unwrap().signal(), Some(9), "{shell}");
    }
}

#[test]
fn a_command_writes_itself_on_the_list() {
    for shell in shells() {
        let watcher = Watcher::start(shell);
        assert!(watcher.door.starts_with("/proc/"), "{}", watcher.door);
        let mut itself = group(&format!("echo \"+ 7 $$ 1\" >{}; {SLEEPS}", watcher.door));
        watcher.end();
        assert_eq!(itself.wait().unwrap().signal(), Some(15), "{shell}");
    }
}

#[test]
fn lines_that_make_no_sense_are_passed_over() {
    for shell in shells() {
        let mut watcher = Watcher::start(shell);
        let mut kept = group(SLEEPS);
        for line in
            ["", "+", "-", "+ 1 1 0", "+ 1 0 0", "+ x 1 1", "x 1 2 3", "+ 1 $(touch x) 1", "- *", "+ 2 -1 0"]
        {
            watcher.say(line);
        }
        // Without its end a line is none.
        write!(watcher.input.as_ref().unwrap(), "+ 3 {} 1", kept.id()).unwrap();
        watcher.end();
        assert_eq!(kept.try_wait().unwrap(), None, "{shell}");
        kept.kill().unwrap();
        kept.wait().unwrap();
    }
}
