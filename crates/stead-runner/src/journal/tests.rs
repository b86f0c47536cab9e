//! The journal against real files: cut, flipped, full and unwritable.

use std::fs;

use stead_model::event::{CancelReason, Counts, RunFinished};
use stead_model::time::Timestamp;
use stead_model::{ExitCode, HostName, RunStatus, TaskName};

use super::*;

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + micros)
}

fn ready(name: &str) -> EventKind {
    EventKind::TaskReady { task: TaskName::parse(name).unwrap() }
}

/// Returns `kinds` as the next events of `journal`.
fn next(journal: &Journal, kinds: impl IntoIterator<Item = EventKind>) -> Vec<Event> {
    let first = journal.next_seq();
    kinds.into_iter().zip(first..).map(|(kind, seq)| Event { seq, t: at(seq as i64), kind }).collect()
}

fn finished() -> EventKind {
    EventKind::RunFinished(Box::new(RunFinished {
        status: RunStatus::Success,
        exit_code: ExitCode::Success,
        counts: Counts::default(),
        duration_ms: 5,
        error: None,
    }))
}

/// Events of a small run, in turns.
fn turns() -> Vec<Vec<EventKind>> {
    let task = |name: &str| TaskName::parse(name).unwrap();
    let attempt = |name: &str| EventKind::AttemptStarted {
        task: task(name),
        host: Some(HostName::local()),
        attempt: 1,
        batch: 0,
    };
    vec![
        vec![ready("a"), ready("b"), ready("p[eu]")],
        vec![EventKind::TaskStarted { task: task("a"), hosts: vec![HostName::local()], batches: vec![] }],
        vec![attempt("a"), attempt("b")],
        vec![EventKind::Warning { code: "plan/x".to_owned(), text: "ü \" \u{1} \n".to_owned(), role: None }],
        vec![EventKind::CancelRequested { why: CancelReason::Signal, task: None }],
        vec![
            EventKind::TaskNotRun { task: task("b"), reason: "cancelled".to_owned() },
            EventKind::TaskNotRun { task: task("p[eu]"), reason: "cancelled".to_owned() },
        ],
        vec![ready("c"), ready("d")],
        vec![finished()],
    ]
}

/// Writes `turns()` to `path`; returns the file's bytes and its events.
fn written(path: &Path) -> (Vec<u8>, Vec<Event>) {
    let mut journal = Journal::create(path).unwrap();
    let mut tee = Vec::new();
    let mut events = Vec::new();
    for kinds in turns() {
        let turn = next(&journal, kinds);
        tee.extend_from_slice(journal.append(&turn).unwrap().lines);
        events.extend(turn);
    }
    drop(journal);
    let bytes = fs::read(path).unwrap();
    assert_eq!(tee, bytes, "what a tee gets is what the file holds");
    (bytes, events)
}

#[test]
fn reads_back_what_was_appended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (bytes, events) = written(&path);
    let read = read(&path).unwrap();
    assert_eq!(read.events, events);
    assert_eq!((read.good_len, read.dropped_bytes), (bytes.len() as u64, 0));
    assert_eq!(read.next_seq, events.len() as u64 + 1);
}

/// Case 22: a cut at any byte loses only what is behind it, and the run can go on from there.
#[test]
fn a_cut_at_any_byte_leaves_a_good_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (bytes, events) = written(&path);
    for cut in 0..=bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        let good = bytes[..cut].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let lines = bytes[..good].iter().filter(|b| **b == b'\n').count();
        let read_cut = read(&path).unwrap();
        assert_eq!(read_cut.events, events[..lines], "cut at {cut}");
        assert_eq!(
            (read_cut.good_len, read_cut.dropped_bytes),
            (good as u64, (cut - good) as u64),
            "cut at {cut}"
        );

        // Each of these waits for the disk: do it where lines end and at some bytes between.
        if cut != good && cut % 16 != 0 {
            continue;
        }
        repair(&path, read_cut.good_len).unwrap();
        let mut journal = Journal::reopen(&path, read_cut.next_seq).unwrap();
        journal.append(&next(&journal, [ready("again")])).unwrap();
        drop(journal);
        let again = read(&path).unwrap();
        assert_eq!((again.events.len(), again.dropped_bytes), (lines + 1, 0), "cut at {cut}");
    }
}

/// Case 22: one byte flipped in a middle line is an error that says where.
#[test]
fn any_flipped_byte_before_a_good_line_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (bytes, _) = written(&path);
    let starts: Vec<usize> = std::iter::once(0)
        .chain(bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1))
        .collect();
    for line in [0, 5, 9] {
        for flip in starts[line]..starts[line + 1] {
            let mut damaged = bytes.clone();
            damaged[flip] ^= 1 << (flip % 8);
            fs::write(&path, &damaged).unwrap();
            match read(&path) {
                Err(ReadError::Damaged { line: found, offset, .. }) => {
                    assert_eq!((found, offset), (line as u64 + 1, starts[line] as u64), "flip at {flip}");
                }
                other => panic!("flip at {flip}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_removed_line_is_a_gap_and_garbage_at_the_end_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (bytes, events) = written(&path);
    let lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();

    fs::write(&path, [&lines[..3], &lines[4..]].concat().concat()).unwrap();
    let error = read(&path).unwrap_err();
    assert!(matches!(error, ReadError::Gap { line: 4, expected: 4, found: 5, .. }), "{error:?}");

    fs::write(&path, [bytes.as_slice(), b"{\"x\":1}\n\n\0\0\0"].concat()).unwrap();
    let read = read(&path).unwrap();
    assert_eq!((read.events.len(), read.dropped_bytes), (events.len(), 12));
}

#[test]
fn a_whole_line_of_a_newer_version_is_not_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let body = r#"{"seq":1,"t":"2026-01-02T03:04:05.678901Z","ev":"from_the_future""#;
    let crc = crc32c::crc32c(body.as_bytes());
    fs::write(&path, format!("{body},\"crc\":\"{crc:08x}\"}}\n")).unwrap();
    assert!(matches!(read(&path), Err(ReadError::Unknown { line: 1, offset: 0, .. })));
}

#[test]
fn without_a_file_lines_are_made_only_if_wanted() {
    let mut silent = Journal::without_file(false);
    let turn = next(&silent, [ready("a"), ready("b")]);
    assert_eq!(silent.append(&turn).unwrap().lines, b"");
    assert_eq!(silent.next_seq(), 3);

    let mut loud = Journal::without_file(true);
    let turn = next(&loud, [ready("a"), ready("b")]);
    let lines = loud.append(&turn).unwrap().lines;
    assert_eq!(lines.iter().filter(|b| **b == b'\n').count(), 2);
    loud.sync_now().unwrap();
}

#[test]
fn an_event_that_does_not_follow_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let mut journal = Journal::create(&path).unwrap();
    let mut turn = next(&journal, [ready("a"), ready("b")]);
    turn[1].seq = 3;
    assert!(matches!(journal.append(&turn), Err(JournalError::OutOfOrder { expected: 2, found: 3 })));
    assert_eq!((journal.next_seq(), fs::read(&path).unwrap().len()), (1, 0));
}

#[test]
fn an_existing_journal_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    fs::write(&path, "mine").unwrap();
    assert!(matches!(Journal::create(&path), Err(JournalError::Open { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

/// A tmpfs of 64 KiB, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(dir.path()).output();
        mount.is_ok_and(|mount| mount.status.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the tmpfs stays mounted");
    }
}

/// A full disk is an error that names the file and its cause, and leaves whole lines only.
#[test]
fn a_full_disk_leaves_a_well_formed_journal() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    let path = disk.0.path().join("events.jsonl");
    let mut journal = Journal::create(&path).unwrap();
    let long = EventKind::Warning { code: "x".to_owned(), text: "y".repeat(1_000), role: None };
    let mut turns_written = 0;
    let error = loop {
        match journal.append(&next(&journal, [ready("a"), long.clone(), ready("b")])) {
            Ok(_) => turns_written += 1,
            Err(error) => break error,
        }
        assert!(turns_written < 1_000, "the disk never fills");
    };
    let read_full = read(&path).unwrap();
    assert_eq!((read_full.events.len(), read_full.dropped_bytes), (turns_written * 3, 0));
    assert_eq!(read_full.next_seq, journal.next_seq());
    let JournalError::Write { path: named, source } = error else { panic!("{error:?}") };
    assert_eq!((named, source.kind()), (path, io::ErrorKind::StorageFull));
}

/// `kill -9` loses nothing that was acted on: every event a real process announced after appending it is there.
#[test]
fn a_killed_process_leaves_every_event_it_acted_on() {
    use std::io::BufRead as _;
    const VARIABLE: &str = "STEAD_TEST_JOURNAL";
    let given = std::env::vars_os().find(|(name, _)| name == VARIABLE).map(|(_, value)| value);
    if let Some(path) = given {
        let mut journal = Journal::create(Path::new(&path)).unwrap();
        loop {
            journal.append(&next(&journal, [ready("a"), ready("b")])).unwrap();
            println!("\nacted {}", journal.next_seq() - 1);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "--nocapture",
        "journal::tests::a_killed_process_leaves_every_event_it_acted_on",
    ]);
    let mut child = command.env(VARIABLE, &path).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let acted = |line: String| line.strip_prefix("acted ").and_then(|seq| seq.parse::<u64>().ok());
    let first = lines.by_ref().filter_map(acted).nth(500);
    child.kill().unwrap();
    child.wait().unwrap();
    let last = lines.filter_map(acted).last().or(first).expect("it appended something");
    let read = read(&path).unwrap();
    assert!(read.next_seq > last, "event {last} is lost: the next one would be {}", read.next_seq);
}

#[test]
fn a_torn_journal_is_not_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (bytes, _) = written(&path);
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(Journal::reopen(&path, 3), Err(JournalError::Torn { .. })));
}

/// Not a benchmark with a bar: fails only if appending is wrong, prints what it costs.
#[test]
fn a_hundred_thousand_events_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let mut journal = Journal::create(&path).unwrap();
    let events = next(&journal, (0..100_000).map(|i| ready(&format!("task-{i}"))));
    let start = std::time::Instant::now();
    for turn in events.chunks(4) {
        journal.append(turn).unwrap();
    }
    let each = start.elapsed() / 100_000;
    journal.sync_now().unwrap();
    drop(journal);
    let mut count = 0;
    let read = read_with(&path, |event| count += u64::from(event.seq > 0)).unwrap();
    println!("{each:?} per event");
    assert_eq!((count, read.next_seq, read.dropped_bytes), (100_000, 100_001, 0));
}
