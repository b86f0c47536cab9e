//! What QEMU says of its machine's end. It writes its events into `events.log` itself, so that they are there whoever
//! was watching.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde_json::Value;
use stead_model::machine::MachineExit;
use stead_model::time::Timestamp;

use crate::machine::home::Home;

/// The file in the machine's directory.
pub(super) const FILE: &str = "events.log";
/// The end of a run is at the end of the file.
const TAIL: u64 = 64 << 10;

/// Returns how the last run ended, if QEMU said so.
pub(super) fn exit(home: &Home) -> Option<MachineExit> {
    let mut file = File::open(home.file(FILE)).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    read(&String::from_utf8_lossy(&bytes))
}

fn read(log: &str) -> Option<MachineExit> {
    let events: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let named = |name: &str| events.iter().rev().find(|event| event.get("event") == Some(&Value::from(name)));
    let shutdown = named("SHUTDOWN")?;
    let reason = shutdown.pointer("/data/reason").and_then(Value::as_str).unwrap_or("unknown");
    let was_asked = named("POWERDOWN").is_some();
    let has_panicked = named("GUEST_PANICKED").is_some() || reason == "guest-panic";
    let (code, reason) = match reason {
        _ if has_panicked => (None, "the guest panicked".to_owned()),
        "guest-shutdown" if was_asked => (Some(0), "the guest powered off, as it was asked to".to_owned()),
        "guest-shutdown" => (Some(0), "the guest powered off".to_owned()),
        "host-qmp-quit" => (Some(0), "QEMU was told to quit".to_owned()),
        "host-signal" => (None, "QEMU was ended by a signal".to_owned()),
        "host-error" => (None, "QEMU gave up after an error".to_owned()),
        other => (None, format!("QEMU ended: {other}")),
    };
    Some(MachineExit { code, signal: None, at: time(shutdown), reason })
}

fn time(event: &Value) -> Option<Timestamp> {
    let part = |name: &str| event.pointer(&format!("/timestamp/{name}")).and_then(Value::as_i64);
    part("seconds")?.checked_mul(1_000_000)?.checked_add(part("microseconds")?).map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: &str = r#"{"timestamp": {"seconds": 1794782757, "microseconds": 163062}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#;

    #[test]
    fn the_reason_is_the_one_that_qemu_gives() {
        let exit = read(&format!("{{\"QMP\": {{}}}}\n{{\"return\": {{}}}}\n{DOWN}\n")).unwrap();
        assert_eq!((exit.code, exit.reason.as_str()), (Some(0), "the guest powered off"));
        assert_eq!(exit.at.unwrap().as_micros(), 1_794_782_757_163_062);
        let asked = read(&format!("{{\"event\": \"POWERDOWN\"}}\n{DOWN}\n")).unwrap();
        assert!(asked.reason.ends_with("as it was asked to"), "{asked:?}");
        let panicked = read(&format!("{{\"event\": \"GUEST_PANICKED\"}}\n{DOWN}\n")).unwrap();
        assert_eq!((panicked.code, panicked.reason.as_str()), (None, "the guest panicked"));
        assert_eq!(read("{\"return\": {}}\n"), None, "one that is killed says nothing");
    }
}
