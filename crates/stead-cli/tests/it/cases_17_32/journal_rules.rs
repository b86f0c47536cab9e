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
        "warning" => &["code", "text", "role"],
        "agent_connected" => &["agent", "os", "arch", "latency_ms", "clock_offset_ms", "uploaded"],
        "agent_lost" => &["agent", "error"],
        "agent_back" => &["agent"],
        "role_started" => &["role", "agent", "pid", "argv", "workdir", "program", "program_sha256"],
        "role_ready" => &["role", "by", "values", "after_ms"],
        "role_stop" => &["role", "signal", "reason"],
        "role_exited" => &["role", "exit_code", "signal", "duration_ms"],
        "artifact" => &["role", "path", "bytes", "sha256"],
        "cancel_requested" => &["why", "task"],
        "run_finished" => &["status", "exit_code", "counts", "duration_ms", "error"],
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
            "told",
            "created_at",
            "made_by",
            "error",
        ],
        "delegated" => &["task", "origin", "event"],
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
    for (key, value) in &pairs[3..] {
        // How a role ended always has both keys; what is remembered of a node has all of its own, as in the file.
        let has_all = pairs[2].1 == "role_exited" || pairs[2].1 == "node";
        let empty = (value.is_null() && !has_all) || *value == Value::Array(vec![]);
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

/// How far a role has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoleStage {
    Started,
    Ready,
    Stopping,
    Ended,
}

#[derive(Default)]
struct Order {
    /// In any segment: roles are never started again.
    roles: BTreeMap<String, RoleStage>,
    is_resumed: bool,
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
        // What a lost role wrote last is brought by a driver that does not retell it.
        let is_retold = !(order.is_resumed && file.starts_with("roles/"));
        assert!(
            !order.finished || !is_retold || size == *len,
            "{file} has {size} bytes, only {len} are pointed to"
        );
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
            self.is_resumed = true;
            return;
        }
        assert!(!self.finished, "after run_finished: {line}");
        self.finished = ev == "run_finished";
        if let Some(role) = text("role").filter(|_| ev != "warning") {
            return self.take_role(&ev, &role, line);
        }
        if let Some(file) = text("file").filter(|file| ev == "log" && file.starts_with("roles/")) {
            return self.take_role_log(&file, event, line);
        }
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
                    self.take_log(text("file").unwrap(), event, line);
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
            "delegated" => assert!(stage >= Stage::Started, "{line}"),
            other => panic!("{other} has a task: {line}"),
        }
    }

    fn take_log(&mut self, file: String, event: &BTreeMap<String, Value>, line: &str) {
        let end = self.logs.entry(file).or_default();
        assert_eq!(event["offset"], *end, "not contiguous: {line}");
        *end += event["len"].as_u64().unwrap();
    }

    /// What a role wrote is told after its start, below its own name.
    fn take_role_log(&mut self, file: &str, event: &BTreeMap<String, Value>, line: &str) {
        let role = event["task"].as_str().unwrap();
        assert!(self.roles.contains_key(role), "{role} has not started: {line}");
        assert_eq!(file, format!("roles/{role}/{}.log", event["stream"].as_str().unwrap()), "{line}");
        self.take_log(file.to_owned(), event, line);
    }

    /// A role starts once, is ready once, and has ended when no process of it is left; then its files come.
    fn take_role(&mut self, ev: &str, role: &str, line: &str) {
        let stage = self.roles.get(role).copied();
        let next = match (ev, stage) {
            ("role_started", None) => RoleStage::Started,
            ("role_ready", Some(RoleStage::Started)) => RoleStage::Ready,
            // A second signal hurries a role that stops already; one that never was ready may be stopped too.
            ("role_stop", Some(RoleStage::Started | RoleStage::Ready | RoleStage::Stopping)) => {
                RoleStage::Stopping
            }
            ("role_exited", Some(RoleStage::Started | RoleStage::Ready | RoleStage::Stopping)) => {
                RoleStage::Ended
            }
            // A driver that came later collects of roles whose end nobody recorded.
            ("artifact", None) if self.is_resumed => return,
            ("artifact", Some(stage)) if stage == RoleStage::Ended || self.is_resumed => stage,
            (ev, stage) => panic!("{ev} of {role}, which is {stage:?}: {line}"),
        };
        self.roles.insert(role.to_owned(), next);
    }
}

/// What roles do has its order too.
#[test]
fn a_role_that_does_things_out_of_order_is_found() {
    let told = |events: &[&str]| {
        let mut order = Order::default();
        events.iter().for_each(|ev| order.take_role(ev, "server", ev));
    };
    told(&["role_started", "role_ready", "role_stop", "role_stop", "role_exited", "artifact"]);
    for wrong in [
        &["role_ready"][..],
        &["role_started", "role_started"],
        &["role_started", "role_ready", "role_ready"],
        &["role_started", "artifact"],
        &["role_started", "role_exited", "role_stop"],
    ] {
        assert!(std::panic::catch_unwind(|| told(wrong)).is_err(), "{wrong:?}");
    }
}

/// Case 25: the golden line of the contract.
#[test]
fn the_golden_line_keeps_the_rules() {
    let golden = r#"{"seq":7,"t":"2026-01-02T03:04:05.678901Z","ev":"task_ready","task":"install-nginx","crc":"015ca1b4"}"#;
    check_line(golden, 7);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
