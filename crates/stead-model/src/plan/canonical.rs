//! The canonical JSON of plans and tasks, written piece by piece: compact, sorted keys, no positions.
//!
//! A plan of a million tasks never exists a second time in memory: each task is written when its turn comes, and
//! settings that tasks share are made into text once.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{Digest, Plan, Section, Settings, Task};

/// How many settings are remembered as text; more than any sane plan has, and a bound for the others.
const REMEMBERED: usize = 1_024;

/// Writes tasks one after another.
#[derive(Debug, Default)]
pub struct TaskWriter {
    /// By address; each entry keeps its settings alive, so no address is used twice.
    settings: HashMap<usize, (Arc<Settings>, Box<[u8]>)>,
}

impl TaskWriter {
    /// Writes `task` with its `hash`, or without.
    fn write(&mut self, task: &Task, with_hash: bool, out: &mut impl Write) -> io::Result<()> {
        // A task that gains a field must gain it here.
        let Task { name, section, depends_on, action, settings, item, hash } = task;
        out.write_all(b"{\"action\":")?;
        sorted(action, out)?;
        if !depends_on.is_empty() {
            out.write_all(b",\"depends_on\":")?;
            plain(depends_on, out)?;
        }
        if with_hash {
            out.write_all(b",\"hash\":")?;
            plain(hash, out)?;
        }
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
        out.write_all(b"}")
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
        let mut hasher = Hasher::default();
        self.write(task, false, &mut hasher).expect("a task is always JSON, and a hash takes all of it");
        hasher.finish()
    }
}

/// Writes `plan` to `out`.
pub(super) fn write(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    // A few keys and an empty list of tasks: the tasks themselves are left out of this copy.
    let Value::Object(head) = serde_json::to_value(plan.head())? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    out.write_all(b"{")?;
    for (i, (key, value)) in head.iter().enumerate() {
        if i > 0 {
            out.write_all(b",")?;
        }
        plain(key, out)?;
        out.write_all(b":")?;
        if key == "tasks" {
            out.write_all(b"[")?;
            let mut writer = TaskWriter::default();
            for (i, task) in plan.tasks.iter().enumerate() {
                if i > 0 {
                    out.write_all(b",")?;
                }
                writer.write(task, true, out)?;
            }
            out.write_all(b"]")?;
        } else {
            plain(value, out)?;
        }
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
    use crate::plan::{Action, Function, Item};
    use crate::{PlanName, TaskName};
    use serde_json::json;

    fn plan() -> Plan {
        let mut plan = Plan::new(PlanName::parse("web").unwrap());
        plan.vars.insert("b".to_owned(), json!({"z": 1, "a": [null, "é\n"]}));
        let settings = Arc::new(Settings::default());
        for (i, section) in [Section::Main, Section::Main, Section::Finally].into_iter().enumerate() {
            plan.tasks.push(Task {
                name: TaskName::parse(&format!("t{i}")).unwrap(),
                section,
                depends_on: if i == 1 { [TaskName::parse("t0").unwrap()].into() } else { [].into() },
                action: Action::Function(Function { version: Some("1".into()) }),
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
