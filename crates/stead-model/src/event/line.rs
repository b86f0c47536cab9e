//! One event as one line: compact JSON with a checksum last.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Event, EventKind};
use crate::time::Timestamp;

/// Bytes before the eight hex digits of the checksum.
const CRC_KEY: &[u8] = b",\"crc\":\"";
/// Bytes after them.
const CRC_END: &[u8] = b"\"}";
/// How long the checksum member and the closing brace are.
const TAIL: usize = CRC_KEY.len() + 8 + CRC_END.len();

/// Why a line is not an event.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// No checksum where it must stand.
    #[error("the line has no checksum at its end")]
    NoChecksum,
    /// Bytes and checksum differ.
    #[error("the checksum does not match the line")]
    BadChecksum,
    /// The checksum is right but the content is none this version knows.
    #[error("the line is not an event this version knows")]
    NotAnEvent(#[source] serde_json::Error),
}

/// Appends the line of an event, newline included, to `out`. An event is written as an object that begins with `ev`.
pub fn encode(seq: u64, t: Timestamp, kind: &impl Serialize, out: &mut Vec<u8>) {
    use std::io::Write as _;
    let start = out.len();
    let written = write!(out, "{{\"seq\":{seq},\"t\":\"{t}\"");
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    let body = out.len();
    serde_json::to_writer(&mut *out, kind).expect("an event is always JSON");
    // The tagged event is an object of its own: its opening brace becomes a comma, its closing one goes.
    out[body] = b',';
    out.pop();
    let crc = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(CRC_KEY);
    out.extend_from_slice(format!("{crc:08x}").as_bytes());
    out.extend_from_slice(CRC_END);
    out.push(b'\n');
}

/// Returns the event of a line without its newline. The checksum is compared before anything is parsed.
pub fn decode(line: &[u8]) -> Result<Event, LineError> {
    #[derive(Deserialize)]
    struct Envelope {
        seq: u64,
        t: Timestamp,
        #[serde(flatten)]
        kind: EventKind,
    }

    let envelope: Envelope = decode_as(line)?;
    Ok(Event { seq: envelope.seq, t: envelope.t, kind: envelope.kind })
}

/// Returns what a line without its newline says, as a type that knows its events.
pub fn decode_as<T: DeserializeOwned>(line: &[u8]) -> Result<T, LineError> {
    let at = line.len().checked_sub(TAIL).ok_or(LineError::NoChecksum)?;
    let (body, tail) = line.split_at(at);
    let digits = tail
        .strip_prefix(CRC_KEY)
        .and_then(|tail| tail.strip_suffix(CRC_END))
        .filter(|digits| digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        .ok_or(LineError::NoChecksum)?;
    let wanted = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
    if wanted != Some(crc32c::crc32c(body)) {
        return Err(LineError::BadChecksum);
    }
    serde_json::from_slice(line).map_err(LineError::NotAnEvent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        AgentBack, AgentConnected, AgentLost, Artifact, RoleExited, RoleReady, RoleStarted, RoleStop,
        RowResult, Stream,
    };
    use crate::id::{HostName, NodeName, TaskName};
    use crate::node::{NodeChange, NodeEntry};
    use crate::plan::Digest;
    use crate::site::host::DriverKind;
    use crate::site::manifest::{Mode, NodeType};
    use crate::status::Status;

    const GOLDEN: &str = r#"{"seq":7,"t":"2026-01-02T03:04:05.678901Z","ev":"task_ready","task":"install-nginx","crc":"015ca1b4"}"#;

    fn line_of(kind: &EventKind) -> Vec<u8> {
        let mut line = Vec::new();
        encode(7, Timestamp::parse("2026-01-02T03:04:05.678901Z").unwrap(), kind, &mut line);
        line
    }

    /// Case 25: the golden crc.
    #[test]
    fn writes_the_golden_line() {
        let line = line_of(&EventKind::TaskReady { task: TaskName::parse("install-nginx").unwrap() });
        assert_eq!(String::from_utf8(line).unwrap(), format!("{GOLDEN}\n"));
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let task = TaskName::parse("t").unwrap();
        let mut result = RowResult::new(Status::Failed);
        result.error = Some("quote \" and \u{1} and ü".to_owned());
        for kind in [
            EventKind::HostResult {
                task: task.clone(),
                host: HostName::local(),
                attempt: 2,
                result: Box::new(result),
            },
            EventKind::Log {
                task,
                host: Some(HostName::local()),
                attempt: 1,
                stream: Stream::Stdout,
                file: "logs/t/local.1.stdout".to_owned(),
                offset: 0,
                len: 3,
            },
            EventKind::Warning {
                code: "run/role-killed".to_owned(),
                text: "x".to_owned(),
                role: Some("server".to_owned()),
            },
            EventKind::AgentConnected(Box::new(AgentConnected {
                agent: "edge".to_owned(),
                os: "linux".to_owned(),
                arch: "x86_64".to_owned(),
                latency_ms: 0.25,
                clock_offset_ms: -1.5,
                uploaded: true,
            })),
            EventKind::AgentLost(Box::new(AgentLost { agent: "edge".to_owned(), error: None })),
            EventKind::AgentBack(Box::new(AgentBack { agent: "edge".to_owned() })),
            EventKind::RoleStarted(Box::new(RoleStarted {
                role: "server".to_owned(),
                agent: "edge".to_owned(),
                pid: 7,
                argv: vec!["a b".to_owned(), String::new()],
                workdir: Some("/w".to_owned()),
                program: Some("/bin/a b".to_owned()),
                program_sha256: None,
            })),
            EventKind::RoleReady(Box::new(RoleReady {
                role: "server".to_owned(),
                by: "regex".to_owned(),
                values: serde_json::Map::from_iter([("addr".to_owned(), "x:1".into())]),
                after_ms: 3,
            })),
            EventKind::RoleStop(Box::new(RoleStop {
                role: "server".to_owned(),
                signal: "TERM".to_owned(),
                reason: "the run is over".to_owned(),
            })),
            EventKind::RoleExited(Box::new(RoleExited {
                role: "server".to_owned(),
                exit_code: None,
                signal: Some("KILL".to_owned()),
                duration_ms: 9,
            })),
            EventKind::Artifact(Box::new(Artifact {
                role: "server".to_owned(),
                path: "out/a.json".to_owned(),
                bytes: 2,
                sha256: Digest([7; 32]),
            })),
            EventKind::Node(Box::new(NodeChange {
                name: NodeName::parse("edge").unwrap(),
                changed: true,
                duration_ms: Some(12),
                entry: NodeEntry::new(NodeType::Pve, DriverKind::Sandbox, Mode::Pull),
            })),
            EventKind::Delegated {
                task: TaskName::parse("quay.children.create").unwrap(),
                origin: vec![NodeName::parse("quay").unwrap()],
                event: Box::new(serde_json::json!({"seq": 1, "ev": "task_ready", "task": "edge.create"})),
            },
        ] {
            let mut line = line_of(&kind);
            assert_eq!(line.pop(), Some(b'\n'));
            assert_eq!(decode(&line).unwrap().kind, kind);
        }
    }

    #[test]
    fn refuses_any_flipped_byte_and_any_cut() {
        for i in 0..GOLDEN.len() {
            let mut line = GOLDEN.as_bytes().to_vec();
            line[i] ^= 1;
            assert!(decode(&line).is_err(), "flip at {i}");
            assert!(decode(&GOLDEN.as_bytes()[..i]).is_err(), "cut at {i}");
        }
    }
}
