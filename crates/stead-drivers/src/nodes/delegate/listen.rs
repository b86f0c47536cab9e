//! Listens to a run on a hosting node until it ends, over as many connections as it takes.
//!
//! The run there does not need this connection. One that is cut is opened again, and the run is read on after the last
//! event that was heard: none is missed, none comes twice.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use stead_model::event::decode;
use stead_model::node::{ErrandEnd, ErrandNote, NodeChange, NodeStatus};
use stead_model::report::Warning;
use stead_model::{MessageId, NodeName, RunId, Value};
use stead_runner::operation::{OpContext, OpError, Stop};
use stead_runner::transport::{Reader, Transport};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::time::{sleep, timeout};

use super::super::NodesSurroundings;
use super::super::line::Line;
use super::super::push::start;
use super::super::reach;
use super::Deputy;
use crate::errand::COMMAND;

/// The longest line of a run below. Events are bounded by far less.
const LONGEST_LINE: u64 = 64 << 20;
/// Connections in a row over which nothing was heard: then something else is wrong.
const DEAF: u32 = 10;

/// Between two connections, and longer the more were good for nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a run that is not heard is asked to stop.
const LAST_WORD: Duration = Duration::from_secs(15);

/// What was heard of a run below.
pub(super) struct Listening {
    /// Who runs it, for messages.
    name: String,
    pub(super) run: RunId,
    /// The hash of the program there.
    program: String,
    /// The number of the last event that was heard.
    pub(super) after: u64,
    /// How many lines were heard, whatever they say.
    pub(super) lines: u64,
    pub(super) asked_to_stop: bool,
    /// The job by which it is asked, until that has ended.
    pub(super) stop_job: Option<MessageId>,
    /// Whether anything is different there.
    pub(super) changed: bool,
    statuses: BTreeMap<NodeName, NodeStatus>,
}

/// What a line says.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    Event(Value),
    Nothing,
    End(ErrandEnd),
}

impl Listening {
    pub(super) fn new(name: &impl fmt::Display, run: RunId, program: String, after: u64) -> Self {
        Self {
            name: name.to_string(),
            run,
            program,
            after,
            lines: 0,
            asked_to_stop: false,
            stop_job: None,
            changed: false,
            statuses: BTreeMap::new(),
        }
    }

    /// Remembers what was said of a node.
    pub(super) fn note(&mut self, change: &NodeChange) {
        self.changed |= change.changed;
        self.statuses.insert(change.name.clone(), change.entry.status);
    }

    /// Whether nothing was begun with a node.
    pub(super) fn never_started(&self, name: &NodeName) -> bool {
        self.statuses.get(name).is_none_or(|status| *status == NodeStatus::Pending)
    }

    /// Whether it was not asked to stop, and is not being asked.
    pub(super) fn may_ask_to_stop(&self) -> bool {
        !self.asked_to_stop && self.stop_job.is_none()
    }

    /// Returns what a line says; an event only if it is the next one.
    pub(super) fn hear(&mut self, line: &[u8]) -> Result<Heard, OpError> {
        self.lines += 1;
        let broken = |what: &str| OpError::operation(format!("the run on {} {what}", self.name));
        if !line.starts_with(b"{\"seq\":") {
            return match serde_json::from_slice(line) {
                Ok(ErrandNote::Waiting {}) => Ok(Heard::Nothing),
                Ok(ErrandNote::End(end)) => Ok(Heard::End(end)),
                Err(_) => Err(broken("says what nobody understands")),
            };
        }
        let event = decode(line).map_err(|error| broken(&format!("has a damaged event: {error}")))?;
        if event.seq <= self.after {
            return Ok(Heard::Nothing);
        }
        if event.seq != self.after + 1 {
            return Err(broken(&format!("has no event {}", self.after + 1)));
        }
        self.after = event.seq;
        let mut value: Value =
            serde_json::from_slice(line).map_err(|_| broken("has an event that is not JSON"))?;
        if let Value::Object(fields) = &mut value {
            // It is of the line, which is another one here.
            fields.remove("crc");
        }
        Ok(Heard::Event(value))
    }
}

impl NodesSurroundings {
    /// Listens until the run ends; `line` is the one over which it was begun. One that is not heard to its end is asked to
    /// stop.
    pub(super) async fn listen(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        line: Line,
    ) -> Result<ErrandEnd, OpError> {
        let heard = self.hear_out(cx, deputy, listening, line).await;
        if heard.is_err() {
            self.give_up(deputy, listening).await;
        }
        heard
    }

    async fn hear_out(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        line: Line,
    ) -> Result<ErrandEnd, OpError> {
        let mut opened = Some(line);
        let mut deaf = 0;
        loop {
            let line = match opened.take() {
                Some(line) => line,
                None => self.line_to(deputy).await?,
            };
            let before = listening.lines;
            let heard = match &line {
                Line::Ssh(transport) => self.listen_over(cx, deputy, listening, &**transport).await?,
                Line::Jobs(client) => self.overhear(cx, deputy, listening, client).await?,
            };
            let lost = match heard {
                Ok(end) => return Ok(end),
                Err(lost) => lost,
            };
            deaf = if listening.lines > before { 0 } else { deaf + 1 };
            if deaf >= DEAF {
                return Err(OpError::new(lost.class, format!("the run on {deputy} is not heard: {lost}")));
            }
            sleep(PAUSE * (deaf + 1)).await;
        }
    }

    /// Asks a run that is not heard any more to stop: nobody will wait for it.
    async fn give_up(&self, deputy: &Deputy<'_>, listening: &Listening) {
        let asking = async {
            let line = self.line_to(deputy).await?;
            let argv = [COMMAND, "stop", "--run", listening.run.as_str()];
            self.ask(&line, deputy.node(), &argv, Vec::new()).await
        };
        // It may be as deaf as it is silent.
        drop(timeout(LAST_WORD, asking).await);
    }

    /// Listens over one connection: the end of the run, or why the connection did not last that long.
    async fn listen_over(
        &self,
        cx: &OpContext,
        deputy: &Deputy<'_>,
        listening: &mut Listening,
        transport: &dyn Transport,
    ) -> Result<Result<ErrandEnd, OpError>, OpError> {
        let after = listening.after.to_string();
        let argv = [COMMAND, "follow", "--run", listening.run.as_str(), "--after", &after];
        let started = transport.exec(start(&listening.program, &argv, Vec::new())).await;
        let mut running = match started {
            Ok(running) => running,
            Err(error) => return Ok(Err(OpError::new(error.class(), error.to_string()))),
        };
        let mut lines = BufReader::new(&mut running.stdout);
        let mut line = Vec::new();
        loop {
            let read = tokio::select! {
                read = next_line(&mut lines, &mut line) => read,
                () = cx.cancel.at_least(Stop::Ask), if !listening.asked_to_stop => {
                    let argv = [COMMAND, "stop", "--run", listening.run.as_str()];
                    let asked = reach::run(transport, start(&listening.program, &argv, Vec::new()));
                    // Over a connection that is lost it is asked again over the next.
                    listening.asked_to_stop = asked.await.is_ok();
                    continue;
                }
            };
            if !matches!(read, Ok(true)) {
                let lost = "the connection was cut".to_owned();
                return Ok(Err(OpError::new(stead_model::ErrorClass::Unreachable, lost)));
            }
            match listening.hear(line.trim_ascii_end())? {
                Heard::Event(event) => self.hand_up(cx, deputy, listening, event).await?,
                Heard::Nothing => {}
                Heard::End(end) => return Ok(Ok(end)),
            }
            line.clear();
        }
    }
}

/// Adds what is left of a line to `line`; returns whether it is whole. Cancel safe: what was read is in `line`.
async fn next_line(reader: &mut BufReader<&mut Reader>, line: &mut Vec<u8>) -> std::io::Result<bool> {
    reader.take(LONGEST_LINE).read_until(b'\n', line).await?;
    Ok(line.last() == Some(&b'\n'))
}

/// Returns which run wrote an event that the run on `node` has, and the event itself, unwrapped. None: the run is on
/// another machine of this level.
pub(super) fn origin(node: Option<&NodeName>, event: Value) -> (Vec<NodeName>, Value) {
    let mut origin: Vec<NodeName> = node.cloned().into_iter().collect();
    if event["ev"] != "delegated" {
        return (origin, event);
    }
    let Value::Object(mut fields) = event else { return (origin, Value::Null) };
    let inner: Vec<NodeName> =
        fields.remove("origin").and_then(|inner| serde_json::from_value(inner).ok()).unwrap_or_default();
    origin.extend(inner);
    (origin, fields.remove("event").unwrap_or_default())
}

/// Returns the warning that an event is.
pub(super) fn warning(event: &Value) -> Option<Warning> {
    if event["ev"] != "warning" {
        return None;
    }
    let text = |key: &str| event[key].as_str().map(str::to_owned);
    Some(Warning::new(text("code")?, text("text")?))
}

/// Returns what an event says of a node. A root of a level below is in the node that runs that level.
pub(super) fn node_change(origin: &[NodeName], event: &Value) -> Option<NodeChange> {
    if event["ev"] != "node" {
        return None;
    }
    let mut change: NodeChange = serde_json::from_value(event.clone()).ok()?;
    change.entry.parent = change.entry.parent.or_else(|| origin.last().cloned());
    // Hosts of a level below are its own.
    change.entry.host = None;
    Some(change)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stead_model::EventKind;
    use stead_model::TaskName;
    use stead_model::event::encode;
    use stead_model::time::Timestamp;

    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::parse(text).unwrap()
    }

    fn line(seq: u64) -> Vec<u8> {
        let mut line = Vec::new();
        let kind = EventKind::TaskReady { task: TaskName::parse("t").unwrap() };
        encode(seq, Timestamp::parse("2026-01-02T03:04:05Z").unwrap(), &kind, &mut line);
        line.pop();
        line
    }

    fn seq(heard: &Heard) -> Option<u64> {
        match heard {
            Heard::Event(event) => event["seq"].as_u64(),
            Heard::Nothing | Heard::End(_) => None,
        }
    }

    /// Case 32: whatever a new connection repeats is heard once, and a hole is noticed.
    #[test]
    fn every_event_is_heard_once_and_in_order() {
        let mut listening = Listening::new(&name("quay"), RunId::parse("r").unwrap(), String::new(), 0);
        for number in [1, 2] {
            assert_eq!(seq(&listening.hear(&line(number)).unwrap()), Some(number));
        }
        for again in [1, 2] {
            assert_eq!(listening.hear(&line(again)).unwrap(), Heard::Nothing);
        }
        assert_eq!(listening.hear(b"{\"waiting\":{}}").unwrap(), Heard::Nothing);
        assert_eq!(seq(&listening.hear(&line(3)).unwrap()), Some(3));
        let error = listening.hear(&line(5)).unwrap_err();
        assert!(error.message.contains("has no event 4"), "{}", error.message);
        let mut damaged = line(4);
        damaged[20] ^= 1;
        assert!(listening.hear(&damaged).is_err());
        let end = listening.hear(b"{\"end\":{\"code\":0}}").unwrap();
        assert_eq!(end, Heard::End(ErrandEnd { code: Some(0), ..ErrandEnd::default() }));
    }

    #[test]
    fn an_event_of_a_deeper_level_is_unwrapped_and_has_its_whole_path() {
        let event = json!({"seq": 9, "ev": "delegated", "task": "crane.children.create", "origin": ["crane"],
            "event": {"seq": 4, "ev": "task_ready", "task": "hook.create"}});
        let (path, event) = origin(Some(&name("quay")), event);
        assert_eq!(path, [name("quay"), name("crane")]);
        assert_eq!(event["task"], "hook.create");
        let (path, _) = origin(Some(&name("quay")), json!({"ev": "task_ready"}));
        assert_eq!(path, [name("quay")]);
    }
}
