//! The rules of a journal, checked over its bytes: independent of the code that writes and reads journals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// CRC-32C, from its definition.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(u32::MAX, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}

/// The fields of an event in the order of the contract; `plan_hash`, `data_file`, `inverse` and the like are our own.
fn fields(ev: &str) -> &'static [&'static str] {
    match ev {
        "run_started" => {
            &["run_id", "kind", "plan", "plan_hash", "schema", "stead_version", "mode", "tasks", "trigger"]
        }
        "run_resumed" => &[
            "segment",
            "dropped_bytes",
            "reset",
            "interrupted",
            "assumed_done",
            "rerun",
            "replaced",
            "forced",
            "plan_hash",
        ],
        "section_started" => &["section"],
        "facts_gathered" => &["host", "facts"],
        "task_ready" => &["task"],
        "task_started" => &["task", "hosts", "batches"],
        "attempt_started" => &["task", "host", "attempt", "batch"],
        "attempt_failed" => &["task", "host", "attempt", "class", "error", "retry_in_ms", "changed"],
        "log" => &["task", "host", "attempt", "stream", "file", "offset", "len"],
        "part_finished" => &["task", "host", "part", "status", "changed", "error", "inverse"],
        "host_result" => &[
            "task",
            "host",
            "attempt",
            "status",
            "changed",
            "class",
            "error",
            "reason",
            "exit_code",
            "data",
            "data_file",
            "diff",
            "prediction",
            "inverse",
            "duration_ms",
        ],
        "task_finished" => &[
            "task",
            "status",
            "changed",
            "partial",
            "attempts",
            "class",
            "error",
            "cause",
            "reason",
            "data",
            "data_file",
            "prediction",
            "duration_ms",
        ],
        "task_skipped" => &["task", "cause", "reason"],
        "task_not_run" => &["task", "reason"],
        "confirmed" => &["task", "answer"],
        "undo_started" => &["task", "hosts"],
        "undo_finished" => &["task", "status", "error"],
        "warning" => &["code", "text"],
        "cancel_requested" => &["why", "task"],
        "delegated" => &["task", "origin", "event"],
        "node" => &[
            "name",
            "changed",
            "duration_ms",
            "status",
            "type",
            "driver",
            "host",
            "machine_id",
            "vm_id",
            "ip",
            "ssh_port",
            "host_key",
            "parent",
            "mode",
            "spec",
            "spec_digest",
            "state_digest",
            "jti",
            "created_at",
            "error",
        ],
        "run_finished" => &["status", "exit_code", "counts", "duration_ms", "error"],
        other => panic!("unknown event {other}"),
    }
}

/// An object whose keys keep their order.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Checks the form of one line and returns its event.
pub(crate) fn check_line(line: &str, number: usize) -> BTreeMap<String, Value> {
    let at = || format!("line {number}: {line}");
    let (body, crc) = line.rsplit_once(",\"crc\":\"").unwrap_or_else(|| panic!("no crc, {}", at()));
    assert_eq!(crc, format!("{:08x}\"}}", crc32c(body.as_bytes())), "{}", at());
    let Pairs(pairs) = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}, {}", at()));
    let keys: Vec<&str> = pairs.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys[..3], ["seq", "t", "ev"], "{}", at());
    assert_eq!(keys.last(), Some(&"crc"), "{}", at());
    let mut known = fields(pairs[2].1.as_str().unwrap()).iter();
    for key in &keys[3..keys.len() - 1] {
        assert!(known.any(|field| field == key), "`{key}` is not in its place, {}", at());
    }
    // What is remembered of a node stands in an event as it stands in its file.
    let is_whole = pairs[2].1 == "node";
    for (key, value) in pairs[3..].iter().filter(|_| !is_whole) {
        let empty = value.is_null() || *value == Value::Array(vec![]);
        assert!(!empty, "`{key}` is empty, {}", at());
    }
    assert_eq!(pairs[0].1, number, "{}", at());
    let t = pairs[1].1.as_str().unwrap().as_bytes();
    let form = b"0000-00-00T00:00:00.000000Z";
    let fits = t.len() == form.len()
        && t.iter().zip(form).all(|(is, as_in)| is == as_in || *as_in == b'0' && is.is_ascii_digit());
    assert!(fits, "{}", at());
    // No spaces and no needless escapes: written again it is as long.
    let lens = pairs.iter().map(|(key, value)| key.len() + 4 + serde_json::to_string(value).unwrap().len());
    assert_eq!(line.len(), lens.sum::<usize>() + 1, "not compact, {}", at());
    pairs.into_iter().collect()
}

/// How far a task, or one of its hosts, has come in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    None,
    Ready,
    Started,
    Attempt,
    Result,
    Decided,
}

#[derive(Default)]
struct Order {
    /// In this segment.
    stages: BTreeMap<String, Stage>,
    hosts: BTreeMap<(String, String), Stage>,
    /// Started in this segment.
    started: BTreeSet<String>,
    undone: BTreeMap<String, bool>,
    finished: bool,
    logs: BTreeMap<String, u64>,
    /// Who depends on a task.
    users: BTreeMap<String, Vec<String>>,
}

/// Checks the journal of the bundle `run`; a run that died may lack its end.
pub(crate) fn check(run: &Path) {
    let Ok(text) = std::fs::read_to_string(run.join("events.jsonl")) else { return };
    let plan: Value = serde_json::from_slice(&std::fs::read(run.join("plan.json")).unwrap()).unwrap();
    let mut order = Order::default();
    for task in plan["tasks"].as_array().unwrap() {
        for needed in task["depends_on"].as_array().into_iter().flatten() {
            let users = order.users.entry(needed.as_str().unwrap().to_owned()).or_default();
            users.push(task["name"].as_str().unwrap().to_owned());
        }
    }
    assert!(text.is_empty() || text.ends_with('\n'), "{}: no newline at the end", run.display());
    for (index, line) in text.lines().enumerate() {
        let event = check_line(line, index + 1);
        assert_eq!(
            event["ev"] == "run_started",
            index == 0,
            "run_started stands first, and only there: {line}"
        );
        order.take(&event, line);
    }
    for (file, len) in &order.logs {
        let size = std::fs::metadata(run.join(file)).unwrap().len();
        assert!(size >= *len, "{file} has {size} bytes, {len} are pointed to");
        assert!(!order.finished || size == *len, "{file} has {size} bytes, only {len} are pointed to");
    }
}

impl Order {
    fn take(&mut self, event: &BTreeMap<String, Value>, line: &str) {
        let text = |key: &str| event.get(key).and_then(Value::as_str).map(str::to_owned);
        let ev = text("ev").unwrap();
        if ev == "run_resumed" {
            self.stages.clear();
            self.hosts.clear();
            self.started.clear();
            self.undone.clear();
            self.finished = false;
            return;
        }
        assert!(!self.finished, "after run_finished: {line}");
        self.finished = ev == "run_finished";
        let Some(task) = text("task").filter(|_| ev != "cancel_requested") else { return };
        if let Some(user) =
            self.users.get(&task).into_iter().flatten().find(|user| self.started.contains(*user))
        {
            assert!(
                ev.starts_with("undo_"),
                "{user} has started before this event of what it depends on: {line}"
            );
        }
        let stage = self.stages.get(&task).copied().unwrap_or_default();
        let key = (task.clone(), text("host").unwrap_or_default());
        let host = self.hosts.get(&key).copied().unwrap_or_default();
        let mut is_now = |now| self.stages.insert(task.clone(), now);
        match ev.as_str() {
            "confirmed" => assert_eq!(stage, Stage::None, "{line}"),
            "task_ready" => {
                assert_eq!(stage, Stage::None, "{line}");
                is_now(Stage::Ready);
            }
            "task_started" => {
                assert_eq!(stage, Stage::Ready, "{line}");
                is_now(Stage::Started);
                self.started.insert(task);
            }
            "attempt_started" => {
                assert_eq!(stage, Stage::Started, "{line}");
                assert!(host < Stage::Result, "{line}");
                self.hosts.insert(key, Stage::Attempt);
            }
            "attempt_failed" | "part_finished" | "log" => {
                assert_eq!((stage, host), (Stage::Started, Stage::Attempt), "{line}");
                if ev == "log" {
                    let end = self.logs.entry(text("file").unwrap()).or_default();
                    assert_eq!(event["offset"], *end, "not contiguous: {line}");
                    *end += event["len"].as_u64().unwrap();
                }
            }
            "host_result" => {
                assert_eq!(stage, Stage::Started, "{line}");
                assert!(host < Stage::Result, "{line}");
                self.hosts.insert(key, Stage::Result);
            }
            "task_finished" => {
                assert!(matches!(stage, Stage::Started | Stage::Ready | Stage::None), "{line}");
                let hosts = self
                    .hosts
                    .range((task.clone(), String::new())..)
                    .take_while(|((name, _), _)| *name == task);
                let open = hosts.into_iter().find(|(_, at)| **at == Stage::Attempt);
                assert!(open.is_none(), "{open:?} has no result: {line}");
                is_now(Stage::Decided);
            }
            "task_skipped" => {
                assert!(stage < Stage::Started, "{line}");
                is_now(Stage::Decided);
            }
            "task_not_run" => {
                assert!(stage < Stage::Started, "{line}");
                is_now(Stage::Decided);
            }
            "undo_started" => assert_eq!(self.undone.insert(task, false), None, "{line}"),
            "undo_finished" => assert_eq!(self.undone.insert(task, true), Some(false), "{line}"),
            other => panic!("{other} has a task: {line}"),
        }
    }
}

/// Case 25: the golden line of the contract.
#[test]
fn the_golden_line_keeps_the_rules() {
    let golden = r#"{"seq":7,"t":"2026-01-02T03:04:05.678901Z","ev":"task_ready","task":"install-nginx","crc":"015ca1b4"}"#;
    check_line(golden, 7);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
