//! Promises about programs.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stead_runner::transport::{Command, Exit, Running, Signal, Stdin, Transport, TransportErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{run, shell};

const SOON: Duration = Duration::from_secs(60);

pub(super) async fn bytes_reach_the_program(transport: &dyn Transport) {
    let all: Vec<u8> = (1..=255).collect();
    let mut command = Command::new(["sh", "-c", "printf '%s\\0' \"$@\" \"$STEAD_VALUE\"; cat", "sh"]);
    let words: Vec<OsString> =
        ["", "a b", "it's", "$(x)", "~", "-n", "`id`", "*", "\\", "a\nb\n", "!x", "%s"]
            .into_iter()
            .map(OsString::from)
            .chain([OsString::from_vec(all.clone())])
            .collect();
    command.argv.extend(words.iter().cloned());
    command.env.insert("STEAD_VALUE".into(), OsString::from_vec([&all[..], b"\n\n"].concat()));
    let input: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    command.stdin = Stdin::Bytes(input.clone());
    let finished = run(transport, command).await;
    let mut expected = Vec::new();
    for word in &words {
        expected.extend_from_slice(word.as_bytes());
        expected.push(0);
    }
    expected.extend_from_slice(&all);
    expected.extend_from_slice(b"\n\n\0");
    expected.extend_from_slice(&input);
    assert!(finished.stdout == expected, "argv, environment or input was changed on the way");
    assert_eq!(finished.exit, Exit::Code(0));
}

pub(super) async fn the_environment_is_added_or_alone(transport: &dyn Transport) {
    let mut command = Command::new(["env"]);
    command.env.insert("STEAD_A".into(), "1 2".into());
    let text = String::from_utf8(run(transport, command.clone()).await.stdout).expect("text");
    assert!(text.lines().any(|line| line == "STEAD_A=1 2") && text.contains("PATH="), "{text}");
    command.clear_env = true;
    let text = String::from_utf8(run(transport, command).await.stdout).expect("text");
    assert_eq!(text, "STEAD_A=1 2\n", "a cleared environment has what was given alone");
}

pub(super) async fn the_directory_is_entered_or_named(transport: &dyn Transport, directory: &Path) {
    let mut command = Command::new(["pwd"]);
    command.cwd = Some(directory.to_path_buf());
    let said = run(transport, command.clone()).await.stdout;
    assert_eq!(String::from_utf8_lossy(&said).trim_end(), directory.display().to_string());
    command.cwd = Some(directory.join("no such place"));
    let error = transport.exec(command).await.expect_err("there is no such directory");
    assert_eq!(error.kind, TransportErrorKind::Failed);
    assert!(error.message.contains("no such place"), "{error}");
}

pub(super) async fn exits_are_exact(transport: &dyn Transport) {
    for code in [0, 1, 2, 126, 127, 128, 255] {
        let finished = run(transport, shell(&format!("exit {code}"))).await;
        assert_eq!(finished.exit, Exit::Code(code));
    }
    for (name, number) in
        [("HUP", 1), ("INT", 2), ("KILL", 9), ("USR1", 10), ("SEGV", 11), ("USR2", 12), ("TERM", 15)]
    {
        let finished = run(transport, shell(&format!("kill -{name} $$; sleep 60"))).await;
        assert_eq!(finished.exit, Exit::Signal(number), "{name}");
    }
}

pub(super) async fn a_missing_program_is_127(transport: &dyn Transport) {
    let mut command = Command::new(["stead-no-such-program", "x"]);
    command.env.insert("PATH".into(), "/nowhere:/else".into());
    let finished = run(transport, command).await;
    let message = String::from_utf8_lossy(&finished.stderr).into_owned();
    assert_eq!(finished.exit, Exit::Code(127), "{message}");
    assert!(message.contains("`stead-no-such-program` not found in PATH `/nowhere:/else`"), "{message}");
    // The usual directories are searched besides, and PATH stays as it is.
    let mut command = Command::new(["printenv", "PATH"]);
    command.env.insert("PATH".into(), "/nowhere".into());
    assert_eq!(run(transport, command).await.stdout, b"/nowhere\n");
}

pub(super) async fn input_is_piped_and_output_comes_at_once(transport: &dyn Transport) {
    // No line ends here: a byte written is a byte to be seen.
    let mut command = shell("while read -r line; do printf '<%s>' \"$line\"; done; printf end >&2");
    command.stdin = Stdin::Piped;
    let mut running = transport.exec(command).await.expect("a start");
    let mut stdin = running.stdin.take().expect("a pipe was asked for");
    for word in ["one", "two"] {
        stdin.write_all(format!("{word}\n").as_bytes()).await.expect("a write");
        stdin.flush().await.expect("a flush");
        let mut echo = vec![0; word.len() + 2];
        let read = timeout(SOON, running.stdout.read_exact(&mut echo)).await;
        read.expect("output waits for more").expect("output");
        assert_eq!(String::from_utf8_lossy(&echo), format!("<{word}>"));
    }
    drop(stdin);
    let mut rest = String::new();
    let read = timeout(SOON, running.stderr.read_to_string(&mut rest)).await;
    read.expect("dropping the pipe ends the input").expect("errors");
    assert_eq!(rest, "end");
    assert_eq!(running.process.wait().await.expect("an exit"), Exit::Code(0));
    assert_eq!(running.process.wait().await.expect("the same again"), Exit::Code(0));
}

/// Starts a shell with a child in its group, both of which write their number to `name`.
async fn family(transport: &dyn Transport, directory: &Path, name: &str) -> (Running, Vec<u32>) {
    let script = "sleep 600 & printf '%s %s\\n' \"$$\" \"$!\" >\"$1\"; echo up; wait";
    let mut command = Command::new(["sh", "-c", script, "sh"]);
    let path = directory.join(name);
    command.argv.push(path.clone().into());
    let mut running = transport.exec(command).await.expect("a start");
    let mut up = [0; 3];
    timeout(SOON, running.stdout.read_exact(&mut up)).await.expect("it starts").expect("output");
    let text = std::fs::read_to_string(path).expect("the numbers");
    let pids = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    (running, pids)
}

/// Waits until none of the processes lives.
async fn all_gone(pids: &[u32]) {
    let end = Instant::now() + SOON;
    let lives = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
    };
    while pids.iter().any(lives) {
        assert!(Instant::now() < end, "{pids:?} outlive the signal");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(super) async fn signals_reach_the_group(transport: &dyn Transport, directory: &Path) {
    for (signal, number) in [(Signal::Terminate, 15), (Signal::Kill, 9)] {
        let (mut running, pids) = family(transport, directory, "signalled").await;
        running.process.signal(signal).await.expect("a signal");
        let exit = timeout(SOON, running.process.wait()).await.expect("it ends").expect("an exit");
        assert_eq!(exit, Exit::Signal(number));
        all_gone(&pids).await;
        running.process.signal(signal).await.expect("nothing is left to be signalled");
    }
    // INT is ignored by children a shell without job control put behind; the shell itself has it.
    let mut running = transport
        .exec(shell("trap 'exit 42' INT; echo up; while :; do sleep 0.01; done"))
        .await
        .expect("a start");
    let mut up = [0; 3];
    running.stdout.read_exact(&mut up).await.expect("output");
    running.process.signal(Signal::Interrupt).await.expect("a signal");
    assert_eq!(
        timeout(SOON, running.process.wait()).await.expect("it ends").expect("an exit"),
        Exit::Code(42)
    );
}

pub(super) async fn dropping_kills_the_group(transport: &dyn Transport, directory: &Path) {
    let (running, pids) = family(transport, directory, "dropped").await;
    drop(running);
    all_gone(&pids).await;
    // Its parts too: the process is what holds the program.
    let (running, pids) = family(transport, directory, "dropped").await;
    let Running { stdin, stdout, stderr, process } = running;
    drop((stdin, stdout, stderr));
    drop(process);
    all_gone(&pids).await;
}

pub(super) async fn nothing_is_cut(transport: &dyn Transport) {
    let count = 3_000_000;
    let script = format!("head -c {count} /dev/zero; head -c {count} /dev/zero >&2");
    let finished = timeout(SOON * 3, run(transport, shell(&script))).await.expect("it ends");
    assert_eq!((finished.stdout.len(), finished.stderr.len()), (count, count));
}

pub(super) async fn an_unread_program_holds_up_nothing(transport: &Arc<dyn Transport>) {
    // More than any window or pipe holds.
    let running = transport.exec(shell("head -c 8000000 /dev/zero; echo last")).await.expect("a start");
    for _ in 0..3 {
        let finished = timeout(SOON, run(&**transport, shell("echo other"))).await;
        assert_eq!(finished.expect("another program runs meanwhile").stdout, b"other\n");
    }
    let finished = timeout(SOON, super::finish(running)).await.expect("it ends");
    assert_eq!(finished.stdout.len(), 8_000_005);
}

pub(super) async fn what_cannot_be_is_refused(transport: &dyn Transport) {
    let mut nul = Command::new(["echo"]);
    nul.argv.push(OsString::from_vec(b"a\0b".to_vec()));
    let mut value = Command::new(["echo"]);
    value.env.insert("A".into(), OsString::from_vec(b"a\0b".to_vec()));
    let mut name = Command::new(["echo"]);
    name.env.insert("A=B".into(), "1".into());
    for command in [Command::default(), nul, value, name] {
        let error = transport.exec(command).await.expect_err("it cannot be started");
        assert_eq!(error.kind, TransportErrorKind::Invalid, "{error}");
    }
}
