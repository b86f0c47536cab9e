use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::{Output, Stdio};

use super::*;

const NONCE: &str = "f00d";

/// Runs a launch the way a login shell would, by this shell.
fn run(shell: &str, command: &Command, input: &[u8]) -> Output {
    let launch = Launch::new(command, NONCE).unwrap();
    let mut child = std::process::Command::new(shell)
        .args(["-c", launch.line])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&launch.script).unwrap();
    stdin.write_all(input).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn after_mark(output: &Output) -> Vec<u8> {
    let end = output.stdout.iter().position(|byte| *byte == b'\n').unwrap();
    assert!(output.stdout.starts_with(b"f00d "), "{output:?}");
    output.stdout[end + 1..].to_vec()
}

#[test]
fn every_byte_but_nul_reaches_the_program_and_input_is_untouched() {
    let all: Vec<u8> = (1..=255).collect();
    let mut command = Command::new(["cat", "-", "/proc/self/cmdline", "/proc/self/environ"]);
    command.argv.push(OsString::from_vec([b"/nonexistent/".as_slice(), &all].concat()));
    command.env.insert("STEAD_ODD".into(), OsString::from_vec([all.as_slice(), b"\n\n"].concat()));
    let output = run("sh", &command, b"rest of\nthe input\n");
    let found = after_mark(&output);
    let has = |part: &[u8]| found.windows(part.len()).any(|window| window == part);
    assert!(found.starts_with(b"rest of\nthe input\n"));
    assert!(has(&[b"\0/nonexistent/".as_slice(), &all, b"\0"].concat()), "the argument");
    assert!(has(&[b"\0STEAD_ODD=".as_slice(), &all, b"\n\n\0"].concat()), "the variable");
}

#[test]
fn words_that_look_like_shell_stay_words() {
    let words = ["", "a b", "it's", "$(x)", "~", "-n", "`id`", "*", "!!", "\\", "\"", "a\nb\n", ";", "#"];
    let mut command = Command::new(["printf", "<%s>"]);
    command.argv.extend(words.iter().map(Into::into));
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    for shell in ["sh", "bash"] {
        let output = run(shell, &command, b"");
        assert_eq!(String::from_utf8_lossy(&after_mark(&output)), expected, "{shell}");
    }
}

#[test]
fn a_missing_program_is_127_and_names_itself_and_the_path() {
    for program in ["stead-no-such", "/stead/no/such"] {
        let mut command = Command::new([program]);
        command.env.insert("PATH".into(), "/nowhere:/else".into());
        let output = run("sh", &command, b"");
        assert_eq!(output.status.code(), Some(127));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(&format!("program `{program}` not found")), "{message}");
    }
    let mut command = Command::new(["stead-no-such"]);
    command.env.insert("PATH".into(), "/nowhere:/else".into());
    let message = String::from_utf8_lossy(&run("sh", &command, b"").stderr).into_owned();
    assert!(message.contains("in PATH `/nowhere:/else` nor in /usr/local/sbin"), "{message}");
}

#[test]
fn a_file_without_execute_permission_is_126() {
    for (program, path) in [("/etc/passwd", "/bin"), ("os-release", "/nowhere:/etc")] {
        let mut command = Command::new([program]);
        command.env.insert("PATH".into(), path.into());
        let output = run("sh", &command, b"");
        assert_eq!(output.status.code(), Some(126), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("is not executable"));
    }
}

#[test]
fn the_extra_path_finds_what_path_does_not_and_path_stays() {
    let mut command = Command::new(["printenv", "PATH"]);
    command.env.insert("PATH".into(), "/nowhere".into());
    assert_eq!(after_mark(&run("sh", &command, b"")), b"/nowhere\n");
}

#[test]
fn a_cleared_environment_has_what_was_given_alone() {
    let mut command = Command::new(["env"]);
    command.clear_env = true;
    command.env.insert("A".into(), "1".into());
    command.env.insert("B".into(), "2".into());
    let output = run("sh", &command, b"");
    assert_eq!(String::from_utf8_lossy(&after_mark(&output)), "A=1\nB=2\n");
}

#[test]
fn the_line_for_the_login_shell_is_one_every_shell_reads_alike() {
    for line in [LINE, CLEAN_LINE] {
        assert!(!line.contains(['\\', '\n', '!']), "{line}");
        assert_eq!(line.matches('\'').count(), 2, "{line}");
    }
}

#[test]
fn nul_and_impossible_names_are_refused() {
    let mut nul = Command::new(["a"]);
    nul.argv.push(OsString::from_vec(vec![b'x', 0]));
    let mut name = Command::new(["a"]);
    name.env.insert("a.b".into(), "1".into());
    for command in [Command::default(), Command::new([""]), nul, name] {
        let error = Launch::new(&command, NONCE).err().unwrap();
        assert_eq!(error.kind, TransportErrorKind::Invalid, "{error}");
    }
}
