//! What Cloud Hypervisor says of its machine's end. Its event monitor writes to `events.json` itself, so that it is
//! there whoever was watching.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde_json::{Deserializer, Value};
use stead_model::machine::MachineExit;

use crate::machine::home::Home;

/// The file in the machine's directory.
pub(super) const FILE: &str = "events.json";
/// A run has a few dozen events; of one whose guest resets again and again the last ones count.
const LONGEST: u64 = 4 << 20;

/// Returns how the last run ended, if that was said.
pub(super) fn exit(home: &Home) -> Option<MachineExit> {
    let mut file = File::open(home.file(FILE)).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LONGEST))).ok()?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    read(&String::from_utf8_lossy(&bytes))
}

fn read(text: &str) -> Option<MachineExit> {
    // An empty line ends each of them; the first one may be cut off.
    let events = text
        .split("\n\n")
        .flat_map(|event| Deserializer::from_str(event).into_iter::<Value>().map_while(Result::ok));
    let mut reason = None;
    for event in events {
        let part = |name: &str| event.get(name).and_then(Value::as_str);
        match (part("source"), part("event")) {
            (Some("vm"), Some("booted" | "rebooted")) => reason = None,
            (Some("guest"), Some("panic")) => reason = Some((None, "the guest panicked")),
            (Some("vm" | "vmm"), Some("shutdown")) => {
                reason = reason.or(Some((Some(0), "the guest powered off")));
            }
            _ => {}
        }
    }
    let (code, reason) = reason?;
    Some(MachineExit { code, signal: None, at: None, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_was_shut_down_says_so() {
        let booted = "{\n  \"timestamp\": {\"secs\": 0, \"nanos\": 1},\n  \"source\": \"vm\",\n  \"event\": \"booted\",\n  \"properties\": null\n}\n\n";
        let down = booted.replace("booted", "shutdown");
        assert_eq!(read(booted), None);
        let exit = read(&format!("{booted}{down}")).unwrap();
        assert_eq!((exit.code, exit.reason.as_str()), (Some(0), "the guest powered off"));
        assert_eq!(read(&format!("{booted}{down}{booted}")), None, "it runs again");
        assert_eq!(read(&format!("{booted}{{\"source\": \"vm")), None, "a line cut off says nothing");
    }

    /// What is cut off at the beginning, or no text, takes nothing from what follows.
    #[test]
    fn the_end_counts_whatever_came_before() {
        let down = "{\n  \"source\": \"vm\",\n  \"event\": \"shutdown\"\n}\n\n";
        let exit = read(&format!("\"event\": \"re\u{fffd}\"\n}}\n\n{down}")).unwrap();
        assert_eq!(exit.code, Some(0));
    }
}
