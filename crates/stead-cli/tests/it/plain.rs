//! The plain renderer, line by line.

use stead_cli::render::plain::Plain;
use stead_cli::render::{Differences, Options, Streaming};
use stead_model::event::{CancelReason, RowResult, Stream};
use stead_model::{EventKind, Status};
use stead_runner::Observer;

use crate::events::{Buffer, feed, finished, host, retry, row, run_started, skipped, started, task};

fn lines(kinds: impl IntoIterator<Item = EventKind>) -> Vec<String> {
    let buffer = Buffer::default();
    feed(&mut Plain::new(buffer.handle(), Options::default()), kinds);
    buffer.text().lines().map(str::to_owned).collect()
}

#[test]
fn every_end_has_the_contracts_form() {
    let shown = lines([
        started("a", &["local"]),
        row("a", "local", Status::Changed, 1_234, None),
        finished("a", Status::Changed, 1_234, None),
        finished("b", Status::Unchanged, 12, None),
        finished("c", Status::Failed, 1_200, Some("exit code 1")),
        skipped("d", "guard is false: vars.start"),
        finished("e", Status::Cancelled, 60_000, None),
        EventKind::TaskNotRun { task: task("f"), reason: "task c failed".to_owned() },
    ]);
    let wanted = [
        "[start] a",
        "[changed] a 1.2s",
        "[unchanged] b 12ms",
        "[failed] c 1.2s: exit code 1",
        "[skipped] d: guard is false: vars.start",
        "[cancelled] e 1m00s",
        "[not_run] f: task c failed",
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn hosts_are_told_only_of_tasks_with_several() {
    let shown = lines([
        started("one", &["h1"]),
        row("one", "h1", Status::Changed, 1, None),
        finished("one", Status::Changed, 1, None),
        started("two", &["h1", "h2"]),
        retry("two", Some("h1"), 1, 200, "exit code 7"),
        row("two", "h1", Status::Changed, 12, None),
        row("two", "h2", Status::Failed, 13, Some("no route")),
        finished("two", Status::Failed, 20, Some("failed on h2")),
        retry("func", None, 2, 0, "again"),
    ]);
    let wanted = [
        "[start] one",
        "[changed] one 1ms",
        "[start] two",
        "[retry] two@h1 attempt=1 in 200ms: exit code 7",
        "[host] two@h1 changed 12ms",
        "[host] two@h2 failed 13ms: no route",
        "[failed] two 20ms: failed on h2",
        "[retry] func attempt=2 in 0ms: again",
    ];
    assert_eq!(shown, wanted);
}

/// Case 27: plain output has no ESC byte, and stays one line per event.
#[test]
fn nothing_a_task_says_becomes_a_control_character() {
    let evil = "\x1b[2Jgone\x07\r\n\u{9b}31mline 2\nline 3\n";
    let shown = lines([
        run_started(),
        finished("a", Status::Failed, 0, Some(evil)),
        retry("a", Some("h"), 1, 1, evil),
        skipped("b", evil),
        EventKind::Warning { code: "x/y".to_owned(), text: evil.to_owned(), role: None },
        EventKind::CancelRequested { why: CancelReason::Failure, task: Some(task("a")) },
    ]);
    assert_eq!(shown.len(), 6);
    assert_eq!(shown[1], "[failed] a 0ms: gone\u{fffd} | \u{fffd}31mline 2 | line 3");
    assert!(shown.iter().all(|line| !line.contains(char::is_control)));
}

#[test]
fn output_is_streamed_live_or_from_the_logs() {
    let buffer = Buffer::default();
    let options = Options { streaming: Streaming::Live, ..Options::default() };
    let mut plain = Plain::new(buffer.handle(), options);
    plain.on_output(&task("t"), Some(&host("h")), Stream::Stdout, b"one\ntw");
    plain.on_output(&task("t"), Some(&host("h")), Stream::Stdout, b"o\nrest");
    feed(&mut plain, [row("t", "h", Status::Changed, 1, None)]);
    assert_eq!(buffer.text(), "t@h | one\nt@h | two\nt@h | rest\n");

    let runs = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(runs.path().join("r1/logs/t")).unwrap();
    std::fs::write(runs.path().join("r1/logs/t/h.1.stdout"), "from the file\n").unwrap();
    let buffer = Buffer::default();
    let options =
        Options { streaming: Streaming::Logs, runs_dir: Some(runs.path().to_owned()), ..Options::default() };
    let mut plain = Plain::new(buffer.handle(), options);
    let log = EventKind::Log {
        task: task("t"),
        host: Some(host("h")),
        attempt: 1,
        stream: Stream::Stdout,
        file: "logs/t/h.1.stdout".to_owned(),
        offset: 5,
        len: 9,
    };
    feed(&mut plain, [run_started(), log]);
    assert_eq!(buffer.text(), "[run] web r1\nt@h | the file\n");
}

#[test]
fn differences_are_shown_when_asked_for() {
    let mut result = RowResult::new(Status::Changed);
    result.diff = Some(serde_json::json!({"text": "-old\n+new\n"}));
    let event =
        EventKind::HostResult { task: task("t"), host: host("h"), attempt: 1, result: Box::new(result) };
    assert!(lines([event.clone()]).is_empty());
    let buffer = Buffer::default();
    let options = Options { diff: Differences::Shown, ..Options::default() };
    feed(&mut Plain::new(buffer.handle(), options), [event]);
    assert_eq!(buffer.text(), "  -old\n  +new\n");
}
