//! The canonical JSON of plans and tasks, written piece by piece: compact, sorted keys, no positions.
//!
//! A plan of a million tasks never exists a second time in memory: each task is written when its turn comes, and
//! settings that tasks share are made into text once. Where tasks and plan are hashed each task is written once for both.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Action, Digest, Op, Part, Plan, Section, Settings, Task};

/// How many settings are remembered as text; more than any sane plan has, and a bound for the others.
const REMEMBERED: usize = 1_024;

/// Writes tasks one after another.
#[derive(Debug, Default)]
pub struct TaskWriter {
    /// By address; each entry keeps its settings alive, so no address is used twice.
    settings: HashMap<usize, (Arc<Settings>, Box<[u8]>)>,
}

impl TaskWriter {
    /// Writes `task` without its `hash` and returns where that belongs.
    fn write(&mut self, task: &Task, out: &mut Vec<u8>) -> io::Result<usize> {
        // A task that gains a field must gain it here.
        let Task { name, section, depends_on, action, settings, item, hash: _ } = task;
        out.write_all(b"{\"action\":")?;
        write_action(action, out)?;
        if !depends_on.is_empty() {
            out.write_all(b",\"depends_on\":")?;
            plain(depends_on, out)?;
        }
        let hash_at = out.len();
        if let Some(item) = item {
            out.write_all(b",\"item\":")?;
            sorted(item, out)?;
        }
        out.write_all(b",\"name\":")?;
        plain(name, out)?;
        if *section != Section::Main {
            out.write_all(b",\"section\":")?;
            plain(section, out)?;
        }
        out.write_all(b",\"settings\":")?;
        out.write_all(self.settings(settings)?)?;
        out.write_all(b"}")?;
        Ok(hash_at)
    }

    fn settings(&mut self, settings: &Arc<Settings>) -> io::Result<&[u8]> {
        let address = Arc::as_ptr(settings) as usize;
        if self.settings.len() >= REMEMBERED && !self.settings.contains_key(&address) {
            self.settings.clear();
        }
        match self.settings.entry(address) {
            std::collections::hash_map::Entry::Occupied(entry) => Ok(&entry.into_mut().1),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let mut text = Vec::new();
                sorted(settings, &mut text)?;
                Ok(&entry.insert((Arc::clone(settings), text.into())).1)
            }
        }
    }

    /// Returns the hash of `task`'s canonical JSON without its own `hash`.
    pub fn digest(&mut self, task: &Task) -> Digest {
        let mut text = Vec::new();
        self.write(task, &mut text).expect("a task is always JSON, and memory takes all of it");
        Digest::of(&text)
    }
}

/// Writes `plan` to `out`.
pub(super) fn write(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    write_with(&head(plan)?, &plan.tasks, |task, _| task.hash, out)
}

/// Gives every task of `plan` its hash and returns the plan's.
pub(super) fn seal(plan: &mut Plan) -> io::Result<Digest> {
    let head = head(plan)?;
    let mut hasher = Hasher::default();
    let give = |task: &mut Task, text: &[u8]| {
        task.hash = Digest::of(text);
        task.hash
    };
    write_with(&head, &mut plan.tasks, give, &mut hasher)?;
    Ok(hasher.finish())
}

/// Returns what a plan says besides its tasks, of which there is an empty list.
fn head(plan: &Plan) -> io::Result<Map<String, Value>> {
    match serde_json::to_value(plan.head())? {
        Value::Object(head) => Ok(head),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

/// Writes a plan; `hash` gives the hash of a task, whose text without it is at hand.
fn write_with<T: Borrow<Task>>(
    head: &Map<String, Value>,
    tasks: impl IntoIterator<Item = T>,
    mut hash: impl FnMut(T, &[u8]) -> Digest,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut tasks = Some(tasks);
    out.write_all(b"{")?;
    for (i, (key, value)) in head.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        plain(key, out)?;
        out.write_all(b":")?;
        if key == "tasks" {
            out.write_all(b"[")?;
            let (mut writer, mut text) = (TaskWriter::default(), Vec::new());
            for (i, task) in tasks.take().into_iter().flatten().enumerate() {
                if i > 0 {
                    out.write_all(b",")?;
                }
                text.clear();
                let hash_at = writer.write(task.borrow(), &mut text)?;
                let hash = hash(task, &text);
                let (before, after) = text.split_at(hash_at);
                out.write_all(before)?;
                out.write_all(b",\"hash\":")?;
                plain(&hash, out)?;
                out.write_all(after)?;
            }
            out.write_all(b"]")?;
        } else {
            plain(value, out)?;
        }
    }
    out.write_all(b"}")
}

fn write_action(action: &Action, out: &mut Vec<u8>) -> io::Result<()> {
    match action {
        Action::Op(part) => {
            out.write_all(b"{\"op\":")?;
            write_part(part, out)?;
        }
        Action::Sequence(parts) => {
            out.write_all(b"{\"sequence\":[")?;
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.write_all(b",")?;
                }
                write_part(part, out)?;
            }
            out.write_all(b"]")?;
        }
        Action::Function(function) => {
            out.write_all(b"{\"function\":")?;
            sorted(function, out)?;
        }
    }
    out.write_all(b"}")
}

fn write_part(part: &Part, out: &mut Vec<u8>) -> io::Result<()> {
    // A part that gains a field must gain it here.
    let Part { name, op: Op { operation, params }, when_host, changed_when, failed_when } = part;
    out.write_all(b"{")?;
    if let Some(changed_when) = changed_when {
        out.write_all(b"\"changed_when\":")?;
        plain(changed_when, out)?;
        out.write_all(b",")?;
    }
    if let Some(failed_when) = failed_when {
        out.write_all(b"\"failed_when\":")?;
        plain(failed_when, out)?;
        out.write_all(b",")?;
    }
    if let Some(name) = name {
        out.write_all(b"\"name\":")?;
        plain(name, out)?;
        out.write_all(b",")?;
    }
    out.write_all(b"\"op\":{\"operation\":")?;
    plain(operation, out)?;
    if !params.is_empty() {
        // Maps of parameters, and those in their values, are sorted.
        out.write_all(b",\"params\":")?;
        plain(params, out)?;
    }
    out.write_all(b"}")?;
    if !when_host.is_empty() {
        out.write_all(b",\"when_host\":")?;
        sorted(when_host, out)?;
    }
    out.write_all(b"}")
}

/// Writes a value whose keys are in no particular order with sorted ones.
fn sorted(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    plain(&serde_json::to_value(value)?, out)
}

fn plain(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}

/// Takes bytes and gives their digest.
#[derive(Default)]
pub(super) struct Hasher(sha2::Sha256);

impl Hasher {
    pub(super) fn finish(self) -> Digest {
        use sha2::Digest as _;
        Digest(self.0.finalize().into())
    }
}

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        use sha2::Digest as _;
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Expression, Function, Guard, Item, Param};
    use crate::{OperationName, PlanName, TaskName};
    use serde_json::json;

    fn part(name: Option<&str>, is_full: bool) -> Part {
        let expression = |text: &str| Expression(text.into());
        let params = [
            ("path", Param::Value(json!({"z": 1, "a": {"y": [], "b": 2}}))),
            ("args", Param::List(vec![Param::Template("{{ vars.b }}".to_owned()), json!(1).into()])),
        ];
        let params = params.into_iter().map(|(name, param)| (name.to_owned(), param)).collect();
        Part {
            name: name.map(|name| TaskName::parse(name).unwrap()),
            op: Op {
                operation: OperationName::parse("command.run").unwrap(),
                params: if is_full { params } else { Default::default() },
            },
            when_host: match is_full {
                true => vec![Guard::Expr { expr: expression("a"), reason: Some("r".to_owned()) }],
                false => Vec::new(),
            },
            changed_when: is_full.then(|| expression("b")),
            failed_when: is_full.then(|| expression("c")),
        }
    }

    fn plan() -> Plan {
        let mut plan = Plan::new(PlanName::parse("web").unwrap());
        plan.vars.insert("b".to_owned(), json!({"z": 1, "a": [null, "é\n"]}));
        let settings = Arc::new(Settings::default());
        let actions = [
            Action::Function(Function { version: Some("1".into()) }),
            Action::Op(Arc::new(part(None, true))),
            Action::Sequence([part(Some("a"), true), part(Some("b"), false)].into()),
        ];
        let sections = [Section::Main, Section::Main, Section::Finally];
        for (i, (section, action)) in sections.into_iter().zip(actions).enumerate() {
            plan.tasks.push(Task {
                name: TaskName::parse(&format!("t{i}")).unwrap(),
                section,
                depends_on: if i == 1 { [TaskName::parse("t0").unwrap()].into() } else { [].into() },
                action,
                settings: if i == 2 { Arc::new(Settings::default()) } else { Arc::clone(&settings) },
                item: (i == 0)
                    .then(|| Box::new(Item { key: "k".to_owned(), value: json!({"y": 1, "x": 2}) })),
                hash: Digest::default(),
            });
        }
        plan
    }

    #[test]
    fn pieces_give_the_same_bytes_as_the_whole() {
        let mut plan = plan();
        for task in &mut plan.tasks {
            task.hash = task.digest();
        }
        let mut sealed = self::plan();
        assert_eq!(sealed.seal(), plan.digest());
        assert_eq!(sealed, plan);
        let whole = serde_json::to_vec(&serde_json::to_value(&plan).unwrap()).unwrap();
        assert_eq!(String::from_utf8(plan.to_json()).unwrap(), String::from_utf8(whole.clone()).unwrap());
        assert_eq!(plan.digest(), Digest::of(&whole));
        assert_eq!(serde_json::from_slice::<Plan>(&whole).unwrap(), plan);
        let empty = Plan::new(PlanName::parse("e").unwrap());
        assert_eq!(empty.to_json(), serde_json::to_vec(&serde_json::to_value(&empty).unwrap()).unwrap());
    }

    #[test]
    fn a_task_hash_covers_everything_but_itself() {
        let plan = plan();
        let mut value = serde_json::to_value(&plan.tasks[0]).unwrap();
        value.as_object_mut().unwrap().remove("hash");
        assert_eq!(plan.tasks[0].digest(), Digest::of(&serde_json::to_vec(&value).unwrap()));
        let mut other = plan.tasks[0].clone();
        other.hash = Digest([1; 32]);
        assert_eq!(other.digest(), plan.tasks[0].digest());
        other.item = None;
        assert_ne!(other.digest(), plan.tasks[0].digest());
    }

    #[test]
    fn keys_are_sorted() {
        // Fails if a dependency turns on serde_json's insertion order.
        assert_eq!(json!({"b": 1, "a": 2}).to_string(), r#"{"a":2,"b":1}"#);
    }
}
