//! What a log keeps, and what a crash leaves of it.

use std::fs;
use std::io::Write as _;

use super::*;

fn placed(ordinal: u32) -> Fields {
    let instance = InstanceKey::parse(&format!("web/{ordinal}")).ok();
    Fields { instance, generation: Some(7), reason: "new".to_owned(), ..Fields::default() }
}

/// Section 15: lines have the form of every journal.
#[test]
fn lines_have_the_form_of_journals_and_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let events = Events::open(dir.path()).unwrap();
    events.write(Ev::Placed, placed(0)).unwrap();
    events.write_all([(Ev::Started, placed(0)), (Ev::Ready, placed(0))]).unwrap();
    let text = fs::read_to_string(dir.path().join("events-001.jsonl")).unwrap();
    let first = text.lines().next().unwrap();
    assert!(first.starts_with("{\"seq\":1,\"t\":\""), "{first}");
    assert!(
        first.contains(
            ",\"ev\":\"placed\",\"generation\":7,\"instance\":\"web/0\",\"reason\":\"new\",\"crc\":\""
        ),
        "{first}"
    );
    let lines = read(dir.path()).unwrap();
    assert_eq!(lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((lines[2].ev, &lines[2].fields), (Ev::Ready, &placed(0)));
}

#[test]
fn a_line_that_was_cut_off_goes_and_numbers_go_on() {
    for cut in 1..30 {
        let dir = tempfile::tempdir().unwrap();
        Events::open(dir.path()).unwrap().write_all((0..3).map(|at| (Ev::Placed, placed(at)))).unwrap();
        let path = dir.path().join("events-001.jsonl");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let events = Events::open(dir.path()).unwrap();
        events.write(Ev::Stopped, placed(9)).unwrap();
        let seqs: Vec<u64> = read(dir.path()).unwrap().iter().map(|line| line.seq).collect();
        assert_eq!(seqs, [1, 2, 3], "cut by {cut}");
    }
}

#[test]
fn files_are_bounded_and_the_oldest_go() {
    let dir = tempfile::tempdir().unwrap();
    let events = Events::open_with(dir.path(), 400).unwrap();
    for at in 0..200 {
        events.write(Ev::Moved, placed(at)).unwrap();
    }
    let kept = numbers(dir.path()).unwrap();
    assert_eq!((kept.len(), KEPT, LARGEST), (16, 16, 67_108_864));
    assert!(kept.iter().all(|number| fs::metadata(path(dir.path(), *number)).unwrap().len() <= 400));
    let lines = read(dir.path()).unwrap();
    assert_eq!(lines.last().unwrap().seq, 200);
    assert!(lines.windows(2).all(|pair| pair[0].seq + 1 == pair[1].seq), "no gap from file to file");
    drop(events);
    let reopened = Events::open_with(dir.path(), 400).unwrap();
    reopened.write(Ev::Moved, placed(0)).unwrap();
    assert_eq!(read(dir.path()).unwrap().last().unwrap().seq, 201);
}

#[test]
fn what_is_no_line_is_never_read_and_never_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = fs::File::create(dir.path().join("events-001.jsonl")).unwrap();
    file.write_all(b"not a line\n{\"seq\":1}\n").unwrap();
    let events = Events::open(dir.path()).unwrap();
    events.write(Ev::Hold, Fields::default()).unwrap();
    assert_eq!(read(dir.path()).unwrap().len(), 1);
}

/// Section 15: there is no event that nothing writes.
#[test]
fn every_event_is_written_by_something() {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = walkdir::WalkDir::new(own).into_iter().flatten().map(walkdir::DirEntry::into_path);
    let is_code = |path: &std::path::PathBuf| {
        path.extension().is_some_and(|end| end == "rs")
            && !path.ends_with("events.rs")
            && !path.ends_with("tests.rs")
    };
    let code: String = files.filter(is_code).map(|path| fs::read_to_string(path).unwrap()).collect();
    for word in "head_seen head_rejected pipeline reserved verdict activated worker_joined worker_state placed moved released rollout_held rollout_done brake fetched started adopted ready exited stopped removed fenced drift hold leader refused".split(' ') {
        let ev: Ev = serde_json::from_value(word.into()).unwrap();
        assert!(code.contains(&format!("Ev::{ev:?}")), "nothing writes `{word}`");
    }
}
