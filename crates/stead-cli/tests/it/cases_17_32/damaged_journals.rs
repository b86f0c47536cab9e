//! Journals that were cut or changed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::lab::{Lab, essence};

/// Ten idempotent tasks with a retry, a skip and results that later tasks read.
const PLAN: &str = r#"api_version: v1
name: cut
tasks:
  - {name: a, op: file.present, params: {path: @/a, content: x}}
  - {name: b, depends_on: a, op: assert, params: {that: ["results.a.changed"]}}
  - {name: c, depends_on: a, idempotent: true, shell: "echo c", changed_when: "false"}
  - {name: d, depends_on: c, when: "results.c.data.stdout == 'c\n'", op: file.line, params: {path: @/a, line: d}}
  - {name: e, depends_on: c, when: "changed('c')", op: file.present, params: {path: @/e, content: e}}
finally:
  - {name: f, op: file.present, params: {path: @/f, content: "{{ run.status }}"}}
"#;

/// A lab with a finished run `r1`, its report and its journal.
fn finished() -> (Lab, Value, Vec<u8>) {
    let lab = Lab::for_damage(PLAN);
    let report = lab.plan_report(&["--run-id", "r1", "--parallel", "1"], 0);
    let journal = fs::read(lab.bundle("r1").join("events.jsonl")).unwrap();
    (lab, report, journal)
}

/// Puts back what the run found, so that going on from any point changes what it changed the first time.
fn rewind(lab: &Lab, journal: &[u8]) {
    let done = |task: &str| {
        let mark = format!("\"ev\":\"host_result\",\"task\":\"{task}\"");
        String::from_utf8_lossy(journal).lines().any(|line| line.contains(&mark) && line.ends_with('}'))
    };
    let a = match (done("a"), done("d")) {
        (_, true) => Some("x\nd\n"),
        (true, false) => Some("x"),
        (false, false) => None,
    };
    fs::remove_file(lab.path("a")).ok();
    fs::remove_file(lab.path("f")).ok();
    if let Some(content) = a {
        lab.write("a", content);
    }
}

fn whole_lines(journal: &[u8]) -> &[u8] {
    &journal[..journal.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)]
}

/// Writes `journal` and takes the run up again; returns the report.
fn resumed_with(lab: &Lab, journal: &[u8]) -> Value {
    fs::write(lab.bundle("r1").join("events.jsonl"), journal).unwrap();
    rewind(lab, whole_lines(journal));
    lab.run(["resume", "r1", "--json"]).exits(0).document()
}

/// The report without `f` where the run was over before: all of it is compared with the uninterrupted one.
fn assert_same(report: &Value, wanted: &Value, at: usize) {
    assert_eq!(essence(report), essence(wanted), "cut at byte {at}");
}

/// Case 22: the last line cut at every one of its bytes: resumed, with a warning that counts the bytes.
#[test]
fn the_last_line_may_be_cut_at_every_byte() {
    let (lab, wanted, journal) = finished();
    let start = whole_lines(&journal[..journal.len() - 1]).len();
    for at in start..journal.len() {
        let report = resumed_with(&lab, &journal[..at]);
        assert_same(&report, &wanted, at);
        let warnings = report["warnings"].to_string();
        let dropped = at - start;
        assert_eq!(
            warnings.contains(&format!("{dropped} bytes were cut off")),
            dropped > 0,
            "{at}: {warnings}"
        );
        if at % 16 == 0 {
            lab.verify("r1");
        }
    }
}

/// Case 22: the whole journal cut at many bytes, 0 included: the report is that of the uninterrupted run.
#[test]
fn the_journal_may_be_cut_anywhere() {
    let (lab, wanted, journal) = finished();
    let mut cuts: Vec<usize> = (0..journal.len()).step_by(journal.len() / 60).collect();
    // Every line's beginning, first byte and last byte.
    for (at, byte) in journal.iter().enumerate() {
        if *byte == b'\n' {
            cuts.extend([at, at + 1, (at + 2).min(journal.len())]);
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    for at in cuts {
        let report = resumed_with(&lab, &journal[..at]);
        assert_same(&report, &wanted, at);
    }
    // The file may be missing altogether.
    fs::remove_file(lab.bundle("r1").join("events.jsonl")).unwrap();
    rewind(&lab, b"");
    let report = lab.run(["resume", "r1", "--json"]).exits(0).document();
    assert_same(&report, &wanted, 0);
    lab.verify("r1");
}

fn journal_of(lab: &Lab) -> std::path::PathBuf {
    lab.bundle("r1").join("events.jsonl")
}

fn refused(lab: &Lab, journal: &Path, line: usize, offset: usize) {
    let before = (fs::read(journal).unwrap(), lab.snapshot("state/runs"));
    let ended = lab.run(["resume", "r1", "--json"]).exits(4);
    let said = ended.document().to_string();
    assert!(said.contains(&format!("line {line}, byte {offset}")), "line {line}, byte {offset}: {said}");
    assert_eq!((fs::read(journal).unwrap(), lab.snapshot("state/runs")), before, "nothing was written");
    lab.run(["resume", "r1", "--force"]).exits(4);
}

/// Case 22: one byte flipped in a middle line: exit 4 with line and offset; nothing runs.
#[test]
fn a_flipped_byte_in_a_middle_line_is_named() {
    let (lab, _, journal) = finished();
    let path = journal_of(&lab);
    let starts: Vec<usize> = std::iter::once(0)
        .chain(journal.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1))
        .collect();
    for (index, into) in [(0, 2), (3, 0), (5, 30), (8, 60)] {
        let mut changed = journal.clone();
        changed[starts[index] + into] ^= 0x01;
        fs::write(&path, changed).unwrap();
        refused(&lab, &path, index + 1, starts[index]);
    }
    // A line that is missing, or stands twice, is a gap in the numbers.
    let missing = [&journal[..starts[4]], &journal[starts[5]..]].concat();
    fs::write(&path, missing).unwrap();
    refused(&lab, &path, 5, starts[4]);
    let twice = [&journal[..starts[5]], &journal[starts[4]..]].concat();
    fs::write(&path, twice).unwrap();
    refused(&lab, &path, 6, starts[5]);
}

/// Case 22: several bad lines at the end are cut off together.
#[test]
fn several_damaged_last_lines_are_cut_off() {
    let (lab, wanted, journal) = finished();
    let good = whole_lines(&journal[..journal.len() - 1]);
    let tail = b"\0\0\0\0\nnot json\n{\"seq\":1";
    let report = resumed_with(&lab, &[good, tail].concat());
    assert_same(&report, &wanted, good.len());
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains(&format!("{} bytes were cut off", tail.len())), "{warnings}");
    lab.verify("r1");
}
