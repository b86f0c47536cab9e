//! Commands: real processes, groups, pipes and signals.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::ErrorClass;
use stead_runner::operation::{Action, Cancel, Entry, OpContext, OpError, Outcome, Stop};
use stead_testkit::context::{Kept, context, params};
use tokio::sync::watch;

fn action(name: &str) -> std::sync::Arc<dyn Action> {
    match stead_drivers::Drivers::standard().get(name) {
        Some(Entry::Action(action)) => action.clone(),
        Some(Entry::State(_)) | None => panic!("{name} is no action"),
    }
}

async fn shell(cx: &OpContext, values: Value) -> Result<Outcome, OpError> {
    action("command.shell").run(cx, &params(values)).await
}

async fn exec(cx: &OpContext, values: Value) -> Result<Outcome, OpError> {
    action("command.exec").run(cx, &params(values)).await
}

fn stdout(outcome: &Outcome) -> &str {
    outcome.data.as_ref().unwrap()["stdout"].as_str().unwrap()
}

fn is_alive(pid: &str) -> bool {
    // A zombie that nobody has reaped yet is dead.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// Waits until `ready` says so; panics after a minute.
async fn until(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn cancellable(base: &Path) -> (OpContext, watch::Sender<Stop>) {
    let (sender, receiver) = watch::channel(Stop::No);
    (OpContext { cancel: Cancel::new(receiver), ..context(base) }, sender)
}

/// Reach, section 2: a variable that no shell can set is refused here as on every other way to a host.
#[tokio::test]
async fn a_variable_that_no_shell_can_set_is_refused_here_too() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.b", "1a", "", "a=b", "a-b"] {
        let error =
            exec(&context(dir.path()), json!({"command": "true", "env": {name: "x"}})).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{name}: {}", error.message);
    }
    let fine = json!({"command": "true", "env": {"_A1": "x"}});
    assert_eq!(exec(&context(dir.path()), fine).await.unwrap().exit_code, Some(0));
}

/// Case 17: a command is changed every time, `creates` and `unless` settle it, `ok_exit` widens success.
#[tokio::test]
async fn changed_follows_creates_unless_and_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    for _ in 0..2 {
        let outcome = exec(&cx, json!({"command": "true"})).await.unwrap();
        assert!(outcome.changed && outcome.failure.is_none() && outcome.exit_code == Some(0));
    }
    let creates = json!({"script": "touch made", "creates": "made"});
    assert!(action("command.shell").check(&cx, &params(creates.clone())).await.unwrap().changed);
    assert!(!dir.path().join("made").exists(), "check ran the command");
    let cx = context(dir.path());
    assert!(shell(&cx, creates.clone()).await.unwrap().changed);
    let second = shell(&cx, creates.clone()).await.unwrap();
    assert!(!second.changed && second.data.is_none());
    assert_eq!(second.reason.as_deref(), Some("creates: made exists"));
    assert!(!action("command.shell").check(&cx, &params(creates)).await.unwrap().changed);

    let unless = json!({"command": "touch", "args": ["never"], "unless": "true"});
    let outcome = exec(&cx, unless.clone()).await.unwrap();
    assert!(!outcome.changed && !dir.path().join("never").exists());
    assert_eq!(outcome.reason.as_deref(), Some("unless: `true` succeeded"));
    assert!(!action("command.exec").check(&cx, &params(unless)).await.unwrap().changed);
    assert!(exec(&cx, json!({"command": "true", "unless": "false"})).await.unwrap().changed);

    let outcome = shell(&cx, json!({"script": "exit 3", "ok_exit": [0, 3]})).await.unwrap();
    assert!(outcome.changed && outcome.failure.is_none() && outcome.exit_code == Some(3));
    let outcome = shell(&cx, json!({"script": "exit 3", "ok_exit": ["2-4"]})).await.unwrap();
    assert!(outcome.failure.is_none());
    let outcome = shell(&cx, json!({"script": "echo out; echo err >&2; exit 3"})).await.unwrap();
    let failure = outcome.failure.clone().unwrap();
    assert_eq!((failure.class, failure.message.as_str()), (ErrorClass::Exit, "exit code 3"));
    assert!(outcome.changed && failure.changed);
    assert_eq!(outcome.data.unwrap(), json!({"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}));
}

#[tokio::test]
async fn a_dry_run_knows_that_an_earlier_command_makes_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let creates = params(json!({"script": "touch made", "creates": "made"}));
    assert!(action("command.shell").check(&cx, &creates).await.unwrap().changed);
    assert!(!action("command.shell").check(&cx, &creates).await.unwrap().changed);
}

#[tokio::test]
async fn a_signal_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = shell(&context(dir.path()), json!({"script": "kill -USR1 $$"})).await.unwrap();
    assert_eq!(outcome.failure.unwrap().message, "signal 10 (SIGUSR1)");
    assert_eq!((outcome.exit_code, outcome.signal), (None, Some(10)));
}

#[tokio::test]
async fn a_missing_program_is_exit_code_127_naming_program_and_path() {
    let dir = tempfile::tempdir().unwrap();
    let kept = Kept::default();
    let cx = OpContext { output: kept.output(), ..context(dir.path()) };
    let outcome =
        exec(&cx, json!({"command": "no-such-program", "env": {"PATH": "/opt/here"}})).await.unwrap();
    let failure = outcome.failure.unwrap();
    assert_eq!((outcome.exit_code, failure.class), (Some(127), ErrorClass::Exit));
    assert!(
        failure.message.contains("`no-such-program`") && failure.message.contains("/opt/here"),
        "{failure}"
    );
    assert!(String::from_utf8(kept.stderr()).unwrap().contains("no-such-program"));
    let error = exec(&cx, json!({"command": "true", "cwd": "nowhere"})).await.unwrap_err();
    assert!(error.message.contains("nowhere"), "{error}");
}

#[tokio::test]
async fn argv_environment_and_stdin_arrive_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let hidden: std::sync::Arc<[String]> = std::sync::Arc::from(["CARGO_MANIFEST_DIR".to_owned()]);
    let cx = OpContext { attempt: 2, hidden_env: hidden, ..context(dir.path()) };
    let args = json!(["%s|", "", "a b", "it's", "$(x)", "~", "-n", "\n", "ü"]);
    let outcome = exec(&cx, json!({"command": "printf", "args": args})).await.unwrap();
    assert_eq!(stdout(&outcome), "|a b|it's|$(x)|~|-n|\n|ü|");
    let script = r#"printf '%s ' "$STEAD_RUN_ID" "$STEAD_TASK" "$STEAD_HOST" "$STEAD_ATTEMPT" "$EXTRA" "${CARGO_MANIFEST_DIR-unset}"; pwd; cat"#;
    let outcome =
        shell(&cx, json!({"script": script, "env": {"EXTRA": "a  b"}, "cwd": "sub", "stdin": "in\nput"}))
            .await
            .unwrap();
    let pwd = dir.path().canonicalize().unwrap().join("sub");
    assert_eq!(stdout(&outcome), format!("test-run the-task local 2 a  b unset {}\nin\nput", pwd.display()));
    let outcome = shell(&cx, json!({"script": "cat | wc -c"})).await.unwrap();
    assert_eq!(stdout(&outcome).trim(), "0", "stdin is empty unless given");
    let error = exec(&cx, json!({"command": "printf", "args": ["a\u{0}b"]})).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Invalid);
}

/// The kernel takes no argument of 128 KiB or more; a script may be longer and means the same.
#[tokio::test]
async fn a_long_script_runs_as_a_short_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let last = "read line; echo \"$0|$#|$line|${stead_part-unset}|${#word}\"; exit 3";
    // Characters of two bytes, so that a piece would end inside one.
    for size in [100, 131_070, 131_071, 131_072, 131_073, 300_001, 900_000] {
        let script = format!("word='{}'\n{last}", "ä".repeat((size - last.len()) / 2));
        let outcome = shell(&cx, json!({"script": script, "stdin": "given\n"})).await.unwrap();
        let counted = stdout(&outcome).rsplit('|').next().unwrap().trim().parse::<usize>().unwrap();
        let said = stdout(&outcome).rsplit_once('|').unwrap().0;
        assert_eq!((said, outcome.exit_code), ("/bin/sh|0|given|unset", Some(3)), "{size}");
        // Some shells count bytes.
        assert!(
            counted == (size - last.len()) / 2 || counted == (size - last.len()) / 2 * 2,
            "{size}: {counted}"
        );
    }
}

#[tokio::test]
async fn a_command_that_does_not_read_its_input_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let input = "x".repeat(1 << 20);
    let outcome = exec(&context(dir.path()), json!({"command": "true", "stdin": input})).await.unwrap();
    assert!(outcome.failure.is_none());
    let outcome =
        shell(&context(dir.path()), json!({"script": "cat | wc -c", "stdin": input})).await.unwrap();
    assert_eq!(stdout(&outcome).trim(), "1048576");
}

/// Case 28: 10 MB of one-line output is streamed whole; the result keeps the last 1 MiB.
#[tokio::test]
async fn ten_megabytes_in_one_line_are_streamed_whole() {
    let dir = tempfile::tempdir().unwrap();
    let kept = Kept::default();
    let cx = OpContext { output: kept.output(), ..context(dir.path()) };
    let script = "head -c 10000000 /dev/zero | tr '\\0' x; printf END";
    let outcome = shell(&cx, json!({"script": script})).await.unwrap();
    let streamed = kept.stdout();
    assert_eq!(streamed.len(), 10_000_003);
    assert!(streamed[..10_000_000].iter().all(|byte| *byte == b'x') && streamed.ends_with(b"END"));
    assert_eq!(stdout(&outcome).len(), 1 << 20);
    assert!(stdout(&outcome).ends_with("xEND"));
}

#[tokio::test]
async fn output_comes_while_the_command_runs() {
    let dir = tempfile::tempdir().unwrap();
    let kept = Kept::default();
    let cx = OpContext { output: kept.output(), ..context(dir.path()) };
    let run = shell(&cx, json!({"script": "printf part; while [ ! -e go ]; do sleep 0.01; done"}));
    let watch = async {
        until("the first piece", || kept.stdout() == b"part").await;
        std::fs::write(dir.path().join("go"), "").unwrap();
    };
    let (outcome, ()) = tokio::join!(run, watch);
    assert!(outcome.unwrap().failure.is_none());
}

/// Case 6: a cancelled command leaves nothing of its group, background children included.
#[tokio::test]
async fn cancelling_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let (cx, stop) = cancellable(dir.path());
    // Longer than anybody waits: it ends because it was asked to.
    let cx = OpContext { grace: Duration::from_secs(600), ..cx };
    let pids = dir.path().join("pids");
    let run = shell(&cx, json!({"script": "sleep 60 & echo $$ $! > pids.part; mv pids.part pids; wait"}));
    let cancel = async {
        until("the pids", || pids.exists()).await;
        stop.send(Stop::Ask).unwrap();
    };
    let (outcome, ()) = tokio::join!(run, cancel);
    assert_eq!(outcome.unwrap().failure.unwrap().message, "signal 15 (SIGTERM)");
    for pid in std::fs::read_to_string(pids).unwrap().split_whitespace() {
        until("its death", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn a_command_that_ignores_the_request_is_killed_after_the_grace_period() {
    let dir = tempfile::tempdir().unwrap();
    let (cx, stop) = cancellable(dir.path());
    let cx = OpContext { grace: Duration::from_millis(200), ..cx };
    let pids = dir.path().join("pids");
    let script = "trap '' TERM; (trap '' TERM; sleep 60) & echo $$ $! > pids.part; mv pids.part pids; while :; do wait; done";
    let run = shell(&cx, json!({"script": script}));
    let cancel = async {
        until("the pids", || pids.exists()).await;
        stop.send(Stop::Ask).unwrap();
    };
    let (outcome, ()) = tokio::join!(run, cancel);
    assert_eq!(outcome.unwrap().signal, Some(9));
    for pid in std::fs::read_to_string(pids).unwrap().split_whitespace() {
        until("its death", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn a_leader_that_obeys_does_not_save_a_child_that_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (cx, stop) = cancellable(dir.path());
    let cx = OpContext { grace: Duration::from_millis(200), ..cx };
    let pids = dir.path().join("pids");
    let script = "(trap '' TERM; sleep 60; sleep 60) & echo $! > pids.part; mv pids.part pids; wait";
    let run = shell(&cx, json!({"script": script}));
    let cancel = async {
        until("the pids", || pids.exists()).await;
        stop.send(Stop::Ask).unwrap();
    };
    let (outcome, ()) = tokio::join!(run, cancel);
    assert_eq!(outcome.unwrap().signal, Some(15));
    let pid = std::fs::read_to_string(pids).unwrap();
    until("its death", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn dropping_the_future_kills_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let pids = dir.path().join("pids");
    {
        let run = shell(&cx, json!({"script": "sleep 60 & echo $$ $! > pids.part; mv pids.part pids; wait"}));
        tokio::select! {
            _ = run => panic!("it ended by itself"),
            () = until("the pids", || pids.exists()) => {}
        }
    }
    for pid in std::fs::read_to_string(pids).unwrap().split_whitespace() {
        until("its death", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn a_background_child_with_the_pipe_open_does_not_hold_the_task() {
    let dir = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let outcome =
        shell(&context(dir.path()), json!({"script": "sleep 600 & echo $! > pid; echo done"})).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(120), "it waited for the background child");
    assert_eq!(stdout(&outcome), "done\n");
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    assert!(is_alive(&pid), "a command that ended normally may leave a daemon");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn inside_a_root_prefix_a_command_starts_there() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("root");
    std::fs::create_dir_all(root.join("srv/app")).unwrap();
    std::os::unix::fs::symlink("/srv/app", root.join("link")).unwrap();
    let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
    let outcome = exec(&cx, json!({"command": "pwd"})).await.unwrap();
    assert_eq!(stdout(&outcome).trim(), root.to_str().unwrap());
    let outcome = exec(&cx, json!({"command": "pwd", "cwd": "/link"})).await.unwrap();
    assert_eq!(stdout(&outcome).trim(), root.join("srv/app").to_str().unwrap());
    let outcome = exec(&cx, json!({"command": "true", "creates": "/link"})).await.unwrap();
    assert!(!outcome.changed);
}
