//! Whether a role is ready: decided from its lines, from looks and from the time, without doing anything itself.

use std::time::Duration;

use regex::bytes::Regex;
use serde_json::{Map, Value};
use stead_model::role::{Fallback, LogStream, Probe, ProbeAnswer, ProbeFrom, Readiness, ReadyMethod};
use tokio::time::Instant;

/// A line counts up to here.
const LONGEST_LINE: usize = 1 << 20;

/// What is known now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Ready { by: &'static str, values: Map<String, Value> },
    NotReady { reason: String },
}

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// Look, and tell what was seen.
    Look(Probe),
    /// It is decided.
    Decided(Verdict),
}

/// Which stream a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Stdout,
    Stderr,
}

/// Judges the readiness of one role that has started.
pub(super) struct Judge {
    ready: Readiness,
    pattern: Option<Regex>,
    lines: [Lines; 2],
    deadline: Instant,
    /// What is looked at, as what it counts, and when next; `None` while a look is under way.
    looking: Option<(Probe, &'static str, Option<Instant>)>,
    seen: Option<String>,
    is_settled: bool,
}

impl Judge {
    /// Begins to judge a role that was started at `now`.
    pub(super) fn new(ready: &Readiness, workdir: &str, started_micros: i64, now: Instant) -> Self {
        let looks_here = ready.from == ProbeFrom::Agent;
        let looking = match (&ready.method, ready.probe(workdir, started_micros)) {
            (method, Some(probe)) => Some((probe, method.as_str(), Some(now))),
            (ReadyMethod::StructuredStdout { fallback: Some(fallback), .. }, None) => {
                let Fallback { address, after_ms } = fallback;
                let first = now + Duration::from_millis(*after_ms);
                Some((Probe::Tcp(address.clone()), "tcp_connect", Some(first)))
            }
            (_, None) => None,
        };
        let pattern = match &ready.method {
            // It was checked when it was read.
            ReadyMethod::Regex { pattern, .. } => Regex::new(pattern).ok(),
            ReadyMethod::StructuredStdout { .. }
            | ReadyMethod::TcpConnect(_)
            | ReadyMethod::Http { .. }
            | ReadyMethod::File { .. }
            | ReadyMethod::Command { .. }
            | ReadyMethod::None => None,
        };
        Self {
            pattern,
            lines: Default::default(),
            deadline: now + Duration::from_millis(ready.timeout_ms),
            looking: looking.filter(|_| looks_here),
            seen: None,
            // Where the driver alone looks, the driver decides.
            is_settled: !looks_here && ready.probe(workdir, started_micros).is_some(),
            ready: ready.clone(),
        }
    }

    /// Whether it is decided, or not to be decided here.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Decides nothing any more.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
        self.lines = Default::default();
        self.looking = None;
    }

    /// Takes output as it comes.
    pub(super) fn hear(&mut self, said: Said, bytes: &[u8]) -> Option<Verdict> {
        if self.is_settled || !self.listens_to(said) {
            return None;
        }
        let lines = std::mem::take(&mut self.lines[said as usize]);
        let (lines, found) = lines.push(bytes, |line| self.judge_line(line));
        self.lines[said as usize] = lines;
        self.decide(found)
    }

    /// A stream has ended: what it said last counts as a line.
    pub(super) fn hear_end(&mut self, said: Said) -> Option<Verdict> {
        if self.is_settled || !self.listens_to(said) {
            return None;
        }
        let line = std::mem::take(&mut self.lines[said as usize]).open;
        let found = self.judge_line(&line);
        self.decide(found)
    }

    /// Takes what a look saw.
    pub(super) fn looked(&mut self, answer: ProbeAnswer, now: Instant) -> Option<Verdict> {
        if self.is_settled {
            return None;
        }
        let (_, by, next) = self.looking.as_mut()?;
        if answer.ok {
            let verdict = Verdict::Ready { by, values: Map::new() };
            return self.decide(Some(verdict));
        }
        *next = Some(now + Duration::from_millis(self.ready.interval_ms));
        self.seen = Some(answer.seen);
        None
    }

    /// Returns when there is something to do next.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.is_settled {
            return None;
        }
        let look = self.looking.as_ref().and_then(|(_, _, next)| *next);
        Some(look.map_or(self.deadline, |look| look.min(self.deadline)))
    }

    /// Returns what is due at `now`.
    pub(super) fn due(&mut self, now: Instant) -> Option<Next> {
        if self.is_settled {
            return None;
        }
        if self.ready.method == ReadyMethod::None {
            let verdict = Verdict::Ready { by: "none", values: Map::new() };
            return self.decide(Some(verdict)).map(Next::Decided);
        }
        if now >= self.deadline {
            let reason = self.too_late();
            return self.decide(Some(Verdict::NotReady { reason })).map(Next::Decided);
        }
        let (probe, _, next) = self.looking.as_mut()?;
        let is_due = next.is_some_and(|next| next <= now);
        if !is_due {
            return None;
        }
        *next = None;
        Some(Next::Look(probe.clone()))
    }

    fn decide(&mut self, verdict: Option<Verdict>) -> Option<Verdict> {
        if verdict.is_some() {
            self.settle();
        }
        verdict
    }

    fn listens_to(&self, said: Said) -> bool {
        match (&self.ready.method, said) {
            (ReadyMethod::StructuredStdout { .. }, said) => said == Said::Stdout,
            (ReadyMethod::Regex { stream, .. }, said) => match stream {
                LogStream::Stdout => said == Said::Stdout,
                LogStream::Stderr => said == Said::Stderr,
                LogStream::Both => true,
            },
            (
                ReadyMethod::TcpConnect(_)
                | ReadyMethod::Http { .. }
                | ReadyMethod::File { .. }
                | ReadyMethod::Command { .. }
                | ReadyMethod::None,
                _,
            ) => false,
        }
    }

    fn judge_line(&self, line: &[u8]) -> Option<Verdict> {
        if let (Some(pattern), ReadyMethod::Regex { .. }) = (&self.pattern, &self.ready.method) {
            let found = pattern.captures(line)?;
            let text = |name: &str| Some(String::from_utf8_lossy(found.name(name)?.as_bytes()).into_owned());
            let named = pattern.capture_names().flatten();
            let values =
                named.filter_map(|name| Some((name.to_owned(), Value::String(text(name)?)))).collect();
            return Some(Verdict::Ready { by: "regex", values });
        }
        let ReadyMethod::StructuredStdout { event, .. } = &self.ready.method else { return None };
        // Most lines are none: a glance is cheaper than reading them.
        line.iter().find(|byte| !byte.is_ascii_whitespace()).filter(|byte| **byte == b'{')?;
        let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return None };
        if object.get("event").and_then(Value::as_str) != Some(event) {
            return None;
        }
        object.remove("event");
        Some(Verdict::Ready { by: "structured_stdout", values: object })
    }

    fn too_late(&self) -> String {
        let time = stead_model::duration::to_exact(Duration::from_millis(self.ready.timeout_ms));
        let wanted = match &self.ready.method {
            ReadyMethod::StructuredStdout { event, .. } => format!("no event `{event}` on standard output"),
            ReadyMethod::TcpConnect(address) => format!("no connection to {address}"),
            ReadyMethod::Regex { pattern, .. } => format!("no line that matches `{pattern}`"),
            ReadyMethod::Http { url, .. } => format!("no answer as expected of {url}"),
            ReadyMethod::File { path } => format!("no file {path} from after its start"),
            ReadyMethod::Command { command } => {
                format!("`{}` did not exit 0", stead_model::argv::quote_text(command))
            }
            ReadyMethod::None => "nothing".to_owned(),
        };
        match &self.seen {
            Some(seen) => format!("{wanted} within {time}; last seen: {seen}"),
            None => format!("{wanted} within {time}"),
        }
    }
}

/// Bytes as lines; what is beyond the longest line is not kept.
#[derive(Debug, Default)]
struct Lines {
    open: Vec<u8>,
}

impl Lines {
    /// Takes bytes and gives whole lines to `judge` until it decides.
    fn push(mut self, bytes: &[u8], judge: impl Fn(&[u8]) -> Option<Verdict>) -> (Self, Option<Verdict>) {
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            let room = LONGEST_LINE.saturating_sub(self.open.len());
            self.open.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
            if pieces.peek().is_none() {
                break;
            }
            let line = self.open.strip_suffix(b"\r").unwrap_or(&self.open);
            if let Some(verdict) = judge(line) {
                return (self, Some(verdict));
            }
            self.open.clear();
            self.open.shrink_to(64 << 10);
        }
        (self, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stead_model::role::ReadyDefaults;

    fn judge(value: &Value, now: Instant) -> Judge {
        Judge::new(&Readiness::parse(value, &ReadyDefaults::default()).unwrap(), "/w", 5, now)
    }

    fn values(verdict: Option<Verdict>) -> Value {
        match verdict {
            Some(Verdict::Ready { by, values }) => json!([by, values]),
            Some(Verdict::NotReady { reason }) => json!(reason),
            None => Value::Null,
        }
    }

    /// Case 14.
    #[test]
    fn an_event_counts_however_it_is_written_and_only_as_an_event() {
        let now = Instant::now();
        let mut one = judge(&json!({"method": "structured_stdout"}), now);
        for noise in [
            "server_ready\n",
            "{\"say\": \"{\\\"event\\\":\\\"server_ready\\\"}\"}\n",
            "{\"event\":\"other\"}\n[{\"event\":\"server_ready\"}]\n",
        ] {
            assert_eq!(one.hear(Said::Stdout, noise.as_bytes()), None, "{noise}");
        }
        assert_eq!(one.hear(Said::Stderr, b"{\"event\":\"server_ready\"}\n"), None);
        assert_eq!(one.hear(Said::Stdout, b"  { \"listen\": \"x\",\n"), None);
        assert_eq!(one.hear(Said::Stdout, b" {\"event\"  : \"server"), None);
        let found = one.hear(Said::Stdout, b"_ready\", \"listen\": \"x\"}\r\nmore");
        assert_eq!(values(found), json!(["structured_stdout", {"listen": "x"}]));
        assert!(one.is_settled() && one.wakes_at().is_none());
    }

    #[test]
    fn a_line_beyond_a_mebibyte_is_no_event_and_the_next_one_is() {
        let mut one = judge(&json!({"method": "structured_stdout"}), Instant::now());
        let long = format!("{{\"event\":\"server_ready\",\"x\":\"{}\"}}\n", "y".repeat(LONGEST_LINE));
        assert_eq!(one.hear(Said::Stdout, long.as_bytes()), None);
        assert!(one.hear(Said::Stdout, b"{\"event\":\"server_ready\"}\n").is_some());
    }

    #[test]
    fn an_event_at_the_end_of_output_needs_no_newline() {
        let mut one = judge(&json!({"method": "structured_stdout"}), Instant::now());
        assert_eq!(one.hear(Said::Stdout, b"{\"event\":\"server_ready\"}"), None);
        assert!(one.hear_end(Said::Stdout).is_some());
    }

    #[test]
    fn named_groups_become_values() {
        let wish = json!({"method": "regex", "pattern": "listening on (?P<addr>\\S+)", "stream": "both"});
        let mut one = judge(&wish, Instant::now());
        assert_eq!(one.hear(Said::Stdout, b"listening on "), None);
        let found = one.hear(Said::Stderr, b"now listening on [::1]:80 yes\n");
        assert_eq!(values(found), json!(["regex", {"addr": "[::1]:80"}]));
    }

    #[test]
    fn looks_are_made_at_intervals_until_the_time_is_over() {
        let now = Instant::now();
        let wish = json!({"method": "tcp_connect", "port": 7, "timeout_seconds": 2, "interval_ms": 300});
        let mut one = judge(&wish, now);
        assert_eq!(one.wakes_at(), Some(now));
        assert!(matches!(one.due(now), Some(Next::Look(Probe::Tcp(_)))));
        assert_eq!(one.due(now), None, "one look at a time");
        let refused = ProbeAnswer { ok: false, seen: "refused".to_owned() };
        assert_eq!(one.looked(refused, now), None);
        assert_eq!(one.wakes_at(), Some(now + Duration::from_millis(300)));
        let Some(Next::Decided(Verdict::NotReady { reason })) = one.due(now + Duration::from_secs(2)) else {
            panic!("it is too late")
        };
        assert_eq!(reason, "no connection to 127.0.0.1:7 within 2s; last seen: refused");
    }

    #[test]
    fn a_fallback_is_tried_after_its_time_and_says_what_it_is() {
        let now = Instant::now();
        let mut one = judge(&json!({"method": "structured_stdout", "port": 7, "timeout_seconds": 4}), now);
        assert_eq!(one.wakes_at(), Some(now + Duration::from_secs(2)));
        assert!(matches!(one.due(now + Duration::from_secs(2)), Some(Next::Look(_))));
        let found = one.looked(ProbeAnswer { ok: true, seen: "open".to_owned() }, now);
        assert_eq!(values(found), json!(["tcp_connect", {}]));
    }

    #[test]
    fn what_the_driver_looks_at_is_not_looked_at_here() {
        let now = Instant::now();
        assert!(judge(&json!({"method": "tcp_connect", "port": 7, "from": "driver"}), now).is_settled());
        let mut one = judge(&json!({"method": "structured_stdout", "port": 7, "from": "driver"}), now);
        assert_eq!(one.due(now + Duration::from_secs(20)), None);
        assert!(one.hear(Said::Stdout, b"{\"event\":\"server_ready\"}\n").is_some());
    }

    #[test]
    fn none_is_ready_at_once() {
        let now = Instant::now();
        let mut one = judge(&json!({"method": "none"}), now);
        assert!(matches!(one.due(now), Some(Next::Decided(Verdict::Ready { by: "none", .. }))));
    }
}
