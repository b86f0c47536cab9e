//! When a role counts as ready: the methods with their keys, read from a value.
//!
//! [`Readiness::parse`] reads what is final, [`Readiness::check`] what may still hold templates. Both tell every
//! problem at once, each with the key it is about.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diagnostic::suggest;

/// When a role counts as ready, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// What is waited for.
    pub method: ReadyMethod,
    /// How long.
    pub timeout_ms: u64,
    /// How long between looks.
    pub interval_ms: u64,
    /// Who looks. Streams are always read on the agent.
    pub from: ProbeFrom,
}

/// Who looks whether a role is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFrom {
    /// The agent it runs on.
    #[default]
    Agent,
    /// The machine that drives the run.
    Driver,
}

/// What makes a role ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum ReadyMethod {
    /// A line of standard output is a JSON object whose `event` is this one.
    StructuredStdout {
        /// The event.
        event: String,
        /// What is tried when no event came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fallback: Option<Fallback>,
    },
    /// A connection succeeds.
    TcpConnect(Address),
    /// A line matches; named groups become values.
    Regex {
        /// The expression.
        pattern: String,
        /// Of which output.
        stream: LogStream,
    },
    /// A request is answered as expected.
    Http {
        /// Where to.
        url: String,
        /// What counts.
        expect_status: Vec<StatusRange>,
        /// Must match the body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body_regex: Option<String>,
    },
    /// A file is there and from after the role's start.
    File {
        /// Absolute, or relative to the workdir.
        path: String,
    },
    /// A command exits 0, in the workdir and the role's environment.
    Command {
        /// It, never a shell's.
        command: Vec<String>,
    },
    /// It was started.
    None,
}

impl ReadyMethod {
    /// Returns the word used in files and output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::StructuredStdout { .. } => "structured_stdout",
            Self::TcpConnect(_) => "tcp_connect",
            Self::Regex { .. } => "regex",
            Self::Http { .. } => "http",
            Self::File { .. } => "file",
            Self::Command { .. } => "command",
            Self::None => "none",
        }
    }
}

/// A connection that is tried when a role says nothing of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// Where to.
    pub address: Address,
    /// After this long.
    pub after_ms: u64,
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// A name or address; never the unspecified one.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Which output of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
    /// Either.
    Both,
}

/// Status codes that count, ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRange {
    /// The first.
    pub from: u16,
    /// The last.
    pub to: u16,
}

impl StatusRange {
    /// What counts unless something else is said.
    pub const DEFAULT: Self = Self { from: 200, to: 399 };
}

/// One look, from wherever it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
pub enum Probe {
    /// Does it accept a connection?
    Tcp(Address),
    /// Does it answer as expected?
    Http {
        /// Where to.
        url: String,
        /// What counts.
        expect_status: Vec<StatusRange>,
        /// Must match the body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body_regex: Option<String>,
    },
    /// Is it there, and not older than this (microseconds since the epoch)?
    File {
        /// Absolute.
        path: String,
        /// Not older than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        newer_than_micros: Option<i64>,
    },
    /// Does it exit 0 within five seconds?
    Command {
        /// It.
        command: Vec<String>,
        /// Where.
        workdir: String,
    },
}

/// What a look saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    /// Whether it is as wanted.
    pub ok: bool,
    /// What was seen, in words.
    pub seen: String,
}

/// What the keys of `ready` default to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadyDefaults {
    /// `server_listen_ip`.
    pub host: Option<String>,
    /// `target_port`, with its own default.
    pub port: Option<u16>,
    /// The port of a `structured_stdout` fallback: `target_port` if it is written, or the kit's.
    pub fallback_port: Option<u16>,
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {message}")]
pub struct ReadyProblem {
    /// Which; empty: the value as a whole.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
}

const METHODS: [&str; 7] = ["structured_stdout", "tcp_connect", "regex", "http", "file", "command", "none"];
const COMMON: [&str; 4] = ["method", "timeout_seconds", "interval_ms", "from"];
/// A year: longer is a slip, and fits every clock.
const LONGEST_SECONDS: f64 = 31_536_000.0;

impl Readiness {
    /// Every method, as it is written.
    pub const METHODS: &'static [&'static str] = &METHODS;

    /// Returns the readiness that `value` states.
    ///
    /// # Errors
    /// Every problem there is.
    pub fn parse(value: &Value, defaults: &ReadyDefaults) -> Result<Self, Vec<ReadyProblem>> {
        let mut reader = Reader::new(value, false);
        let readiness = reader.readiness(defaults);
        match readiness {
            Some(readiness) if reader.problems.is_empty() => Ok(readiness),
            Some(_) | None => Err(reader.problems),
        }
    }

    /// Returns every problem of `value`; text with a template is not judged.
    pub fn check(value: &Value, defaults: &ReadyDefaults) -> Vec<ReadyProblem> {
        let mut reader = Reader::new(value, true);
        // Only its problems matter.
        drop(reader.readiness(defaults));
        reader.problems
    }

    /// Returns the look that answers whether a role is ready, for methods that look; `started` is its start.
    pub fn probe(&self, workdir: &str, started_micros: i64) -> Option<Probe> {
        match &self.method {
            ReadyMethod::TcpConnect(address) => Some(Probe::Tcp(address.clone())),
            ReadyMethod::Http { url, expect_status, body_regex } => Some(Probe::Http {
                url: url.clone(),
                expect_status: expect_status.clone(),
                body_regex: body_regex.clone(),
            }),
            ReadyMethod::File { path } => Some(Probe::File {
                path: if path.starts_with('/') { path.clone() } else { format!("{workdir}/{path}") },
                newer_than_micros: Some(started_micros),
            }),
            ReadyMethod::Command { command } => {
                Some(Probe::Command { command: command.clone(), workdir: workdir.to_owned() })
            }
            ReadyMethod::StructuredStdout { .. } | ReadyMethod::Regex { .. } | ReadyMethod::None => None,
        }
    }

    /// Returns the address that must not accept connections before the role starts, and whether it is a fallback.
    pub fn address(&self) -> Option<(&Address, bool)> {
        match &self.method {
            ReadyMethod::TcpConnect(address) => Some((address, false)),
            ReadyMethod::StructuredStdout { fallback: Some(fallback), .. } => Some((&fallback.address, true)),
            ReadyMethod::StructuredStdout { fallback: None, .. }
            | ReadyMethod::Regex { .. }
            | ReadyMethod::Http { .. }
            | ReadyMethod::File { .. }
            | ReadyMethod::Command { .. }
            | ReadyMethod::None => None,
        }
    }
}

/// A port whose value is not known yet.
const SOME_PORT: u16 = 1;

struct Reader<'v> {
    fields: Option<&'v Map<String, Value>>,
    has_templates: bool,
    problems: Vec<ReadyProblem>,
}

impl<'v> Reader<'v> {
    fn new(value: &'v Value, has_templates: bool) -> Self {
        let mut reader = Self { fields: value.as_object(), has_templates, problems: Vec::new() };
        if reader.fields.is_none() {
            reader.problem("", "is no map", "write `{method: …}`");
        }
        reader
    }

    fn problem(&mut self, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.problems.push(ReadyProblem { key: key.to_owned(), message: message.into(), help: help.into() });
    }

    fn get(&self, key: &str) -> Option<&'v Value> {
        self.fields?.get(key).filter(|value| !value.is_null())
    }

    fn is_template(&self, value: &Value) -> bool {
        self.has_templates && value.as_str().is_some_and(|text| text.contains("{{") || text.contains("{%"))
    }

    fn readiness(&mut self, defaults: &ReadyDefaults) -> Option<Readiness> {
        self.fields?;
        let method = match self.get("method") {
            Some(value) if self.is_template(value) => return None,
            Some(value) => value.as_str().unwrap_or_default(),
            None => {
                self.problem("method", "is missing", format!("one of {}", METHODS.join(", ")));
                return None;
            }
        };
        let own: &[&str] = match method {
            "structured_stdout" => &["event", "fallback", "fallback_after_seconds", "host", "port"],
            "tcp_connect" => &["host", "port"],
            "regex" => &["pattern", "stream"],
            "http" => &["url", "expect_status", "body_regex"],
            "file" => &["path"],
            "command" => &["command"],
            "none" => &[],
            other => {
                let shown = if other.is_empty() { "no text" } else { other };
                self.problem("method", format!("is `{shown}`"), format!("one of {}", METHODS.join(", ")));
                return None;
            }
        };
        self.refuse_unknown(method, own);
        let timeout_ms = self.millis("timeout_seconds", 30.0);
        let interval_ms = self.whole("interval_ms", 100, 1, 3_600_000);
        let from = match self.word("from", &["agent", "driver"], "agent").as_str() {
            "driver" => ProbeFrom::Driver,
            _ => ProbeFrom::Agent,
        };
        let method = self.method(method, defaults, timeout_ms)?;
        Some(Readiness { method, timeout_ms, interval_ms, from })
    }

    fn method(&mut self, method: &str, defaults: &ReadyDefaults, timeout_ms: u64) -> Option<ReadyMethod> {
        match method {
            "structured_stdout" => self.structured(defaults, timeout_ms),
            "tcp_connect" => self.address(defaults, defaults.port).map(ReadyMethod::TcpConnect),
            "regex" => {
                let pattern = self.text("pattern")?;
                self.regex("pattern", &pattern);
                let stream = match self.word("stream", &["stdout", "stderr", "both"], "stdout").as_str() {
                    "stderr" => LogStream::Stderr,
                    "both" => LogStream::Both,
                    _ => LogStream::Stdout,
                };
                Some(ReadyMethod::Regex { pattern, stream })
            }
            "http" => {
                let url = self.text("url")?;
                let is_http = url.starts_with("http://") || url.starts_with("https://");
                if !is_http && !self.is_template(&Value::String(url.clone())) {
                    self.problem("url", format!("is `{url}`"), "it begins with http:// or https://");
                }
                let body_regex = self.get("body_regex").is_some().then(|| self.text("body_regex")).flatten();
                if let Some(pattern) = &body_regex {
                    self.regex("body_regex", pattern);
                }
                Some(ReadyMethod::Http { url, expect_status: self.statuses(), body_regex })
            }
            "file" => Some(ReadyMethod::File { path: self.text("path")? }),
            "command" => Some(ReadyMethod::Command { command: self.argv()? }),
            _ => Some(ReadyMethod::None),
        }
    }

    fn structured(&mut self, defaults: &ReadyDefaults, timeout_ms: u64) -> Option<ReadyMethod> {
        let event = match self.get("event") {
            None => "server_ready".to_owned(),
            Some(_) => self.text("event")?,
        };
        let port = self.get("port").is_some() || defaults.fallback_port.is_some();
        let default = if port { "tcp_connect" } else { "none" };
        let wish = self.word("fallback", &["tcp_connect", "none"], default);
        let after_ms = self.millis("fallback_after_seconds", 5.0).min(timeout_ms / 2);
        let fallback = match wish == "tcp_connect" {
            true => {
                let address = self.address(defaults, defaults.fallback_port.or(defaults.port))?;
                Some(Fallback { address, after_ms })
            }
            false => None,
        };
        Some(ReadyMethod::StructuredStdout { event, fallback })
    }

    fn refuse_unknown(&mut self, method: &str, own: &[&str]) {
        let known: Vec<&str> = COMMON.iter().chain(own).copied().collect();
        let unknown: Vec<&String> = self
            .fields
            .into_iter()
            .flat_map(Map::keys)
            .filter(|key| !known.contains(&key.as_str()))
            .collect();
        for key in unknown {
            self.problem(key, format!("is no key of `{method}`"), suggest(key, known.iter().copied()));
        }
    }

    fn text(&mut self, key: &str) -> Option<String> {
        match self.get(key) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(_) => {
                self.problem(key, "is no text", "write a text that is not empty");
                None
            }
            None => {
                self.problem(key, "is missing", "this method needs it");
                None
            }
        }
    }

    fn word(&mut self, key: &str, words: &[&str], default: &str) -> String {
        match self.get(key) {
            None => default.to_owned(),
            Some(value) if self.is_template(value) => default.to_owned(),
            Some(value) => match value.as_str().filter(|word| words.contains(word)) {
                Some(word) => word.to_owned(),
                None => {
                    self.problem(
                        key,
                        format!("is `{}`", shown(value)),
                        format!("one of {}", words.join(", ")),
                    );
                    default.to_owned()
                }
            },
        }
    }

    /// Returns a number that may be written as text, as templates leave it.
    fn number(&mut self, key: &str) -> Option<Result<f64, ()>> {
        let value = self.get(key)?;
        if self.is_template(value) {
            return None;
        }
        let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
        Some(number.filter(|number: &f64| number.is_finite()).ok_or(()))
    }

    fn millis(&mut self, key: &str, default: f64) -> u64 {
        let seconds = match self.number(key) {
            None => default,
            Some(Ok(seconds)) if seconds > 0.0 && seconds <= LONGEST_SECONDS => seconds,
            Some(_) => {
                self.problem(key, "is no number above 0", format!("seconds; default: {default}"));
                default
            }
        };
        // In range, as was just seen.
        std::time::Duration::from_secs_f64(seconds).as_millis().try_into().unwrap_or(u64::MAX).max(1)
    }

    fn whole(&mut self, key: &str, default: u64, least: u64, most: u64) -> u64 {
        let value = match self.get(key) {
            None => return default,
            Some(value) if self.is_template(value) => return default,
            Some(value) => value,
        };
        let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => number,
            None => {
                let help = format!("a whole number from {least} to {most}; default: {default}");
                self.problem(key, format!("is `{}`", shown(value)), help);
                default
            }
        }
    }

    fn address(&mut self, defaults: &ReadyDefaults, port: Option<u16>) -> Option<Address> {
        let host = match self.get("host") {
            Some(_) => self.text("host")?,
            None => defaults.host.clone().unwrap_or_else(|| "127.0.0.1".to_owned()),
        };
        let port = match self.get("port") {
            Some(value) if self.is_template(value) => SOME_PORT,
            Some(_) => {
                u16::try_from(self.whole("port", u64::from(SOME_PORT), 1, 65_535)).unwrap_or(SOME_PORT)
            }
            None => match port {
                Some(port) => port,
                None => {
                    self.problem("port", "is missing", "write it here or as network.data_plane.target_port");
                    return None;
                }
            },
        };
        Some(Address { host: reachable(host), port })
    }

    fn regex(&mut self, key: &str, pattern: &str) {
        if self.is_template(&Value::String(pattern.to_owned())) {
            return;
        }
        if let Err(error) = regex::bytes::Regex::new(pattern) {
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            self.problem(
                key,
                format!("is no regular expression: {why}"),
                "see the syntax of the regex crate",
            );
        }
    }

    fn statuses(&mut self) -> Vec<StatusRange> {
        let items = match self.get("expect_status") {
            None => return vec![StatusRange::DEFAULT],
            Some(value) if self.is_template(value) => return vec![StatusRange::DEFAULT],
            Some(Value::Array(items)) => items.iter().collect(),
            Some(one) => vec![one],
        };
        let ranges: Option<Vec<StatusRange>> = items.iter().map(|item| status_range(item)).collect();
        match ranges.filter(|ranges| !ranges.is_empty()) {
            Some(ranges) => ranges,
            None => {
                let help = "codes and ranges of them, such as [200, \"300-399\"]; default: 200-399";
                self.problem("expect_status", "holds what is no status code", help);
                vec![StatusRange::DEFAULT]
            }
        }
    }

    fn argv(&mut self) -> Option<Vec<String>> {
        let items = self.get("command").and_then(Value::as_array).filter(|items| !items.is_empty());
        let words: Option<Vec<String>> = items.and_then(|items| {
            let word = |item: &Value| match item {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                Value::Bool(_) | Value::Null | Value::Array(_) | Value::Object(_) => None,
            };
            items.iter().map(word).collect()
        });
        if words.is_none() {
            self.problem(
                "command",
                "is no list of words",
                "write `[program, argument, …]`; no shell reads it",
            );
        }
        words
    }
}

fn status_range(item: &Value) -> Option<StatusRange> {
    let (from, to) = match item.as_str() {
        Some(text) => {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            (from.trim().parse().ok()?, to.trim().parse().ok()?)
        }
        None => {
            let code = u16::try_from(item.as_u64()?).ok()?;
            (code, code)
        }
    };
    let range = StatusRange { from, to };
    (range.from <= range.to && range.from >= 100 && range.to <= 599).then_some(range)
}

/// Returns where a program that listens on `host` is reached from its own machine.
fn reachable(host: String) -> String {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "::1".to_owned(),
        Ok(_) | Err(_) => bare.to_owned(),
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<Readiness, Vec<ReadyProblem>> {
        Readiness::parse(value, &ReadyDefaults::default())
    }

    fn keys(value: &Value) -> Vec<String> {
        parse(value).unwrap_err().into_iter().map(|problem| problem.key).collect()
    }

    /// Case 14: each method with its keys and defaults.
    #[test]
    fn every_method_is_read_with_its_defaults() {
        let port = ReadyDefaults { host: Some("0.0.0.0".to_owned()), port: Some(44818), fallback_port: None };
        let tcp = Readiness::parse(&json!({"method": "tcp_connect"}), &port).unwrap();
        assert_eq!(
            tcp.method,
            ReadyMethod::TcpConnect(Address { host: "127.0.0.1".to_owned(), port: 44818 })
        );
        assert_eq!((tcp.timeout_ms, tcp.interval_ms, tcp.from), (30_000, 100, ProbeFrom::Agent));

        let structured = Readiness::parse(&json!({"method": "structured_stdout"}), &port).unwrap();
        let none = ReadyMethod::StructuredStdout { event: "server_ready".to_owned(), fallback: None };
        assert_eq!(structured.method, none);
        let with_port = json!({"method": "structured_stdout", "port": "7070", "timeout_seconds": 4});
        let Ok(Readiness { method: ReadyMethod::StructuredStdout { fallback, .. }, .. }) = parse(&with_port)
        else {
            panic!("a port brings a fallback")
        };
        let address = Address { host: "127.0.0.1".to_owned(), port: 7070 };
        assert_eq!(fallback, Some(Fallback { address, after_ms: 2_000 }));

        let http =
            parse(&json!({"method": "http", "url": "http://x/", "expect_status": [200, "300-302"]})).unwrap();
        let ranges = vec![StatusRange { from: 200, to: 200 }, StatusRange { from: 300, to: 302 }];
        let url = "http://x/".to_owned();
        assert_eq!(http.method, ReadyMethod::Http { url, expect_status: ranges, body_regex: None });

        let command = parse(&json!({"method": "command", "command": ["test", "-e", 7]})).unwrap();
        let words = ["test", "-e", "7"].map(str::to_owned).to_vec();
        assert_eq!(command.method, ReadyMethod::Command { command: words });
        assert_eq!(parse(&json!({"method": "none"})).unwrap().method, ReadyMethod::None);
        let file = parse(&json!({"method": "file", "path": "up"})).unwrap();
        let probe = Probe::File { path: "/w/up".to_owned(), newer_than_micros: Some(5) };
        assert_eq!(file.probe("/w", 5), Some(probe));
        let regex = parse(&json!({"method": "regex", "pattern": "up (?P<a>.*)", "stream": "both"})).unwrap();
        assert!(matches!(regex.method, ReadyMethod::Regex { stream: LogStream::Both, .. }));
    }

    #[test]
    fn all_problems_are_told_at_once() {
        assert_eq!(keys(&json!([])), [""]);
        assert_eq!(keys(&json!({"method": "tcp"})), ["method"]);
        let many = json!({"method": "regex", "pattern": "(", "streem": 1, "timeout_seconds": -1, "interval_ms": 0,
            "from": "moon"});
        let mut found = keys(&many);
        found.sort();
        assert_eq!(found, ["from", "interval_ms", "pattern", "streem", "timeout_seconds"]);
        let help =
            parse(&many).unwrap_err().into_iter().find(|problem| problem.key == "streem").unwrap().help;
        assert_eq!(help, "did you mean `stream`?");
        assert_eq!(keys(&json!({"method": "tcp_connect", "port": 99_999})), ["port"]);
        assert_eq!(keys(&json!({"method": "tcp_connect"})), ["port"]);
        assert_eq!(
            keys(&json!({"method": "http", "url": "x", "expect_status": 1})),
            ["url", "expect_status"]
        );
        assert_eq!(keys(&json!({"method": "command", "command": "ls"})), ["command"]);
    }

    #[test]
    fn templates_are_judged_when_they_are_filled_in() {
        let value =
            json!({"method": "tcp_connect", "port": "{{ port }}", "timeout_seconds": "{{ t }}", "hots": 1});
        let found = Readiness::check(&value, &ReadyDefaults::default());
        assert_eq!(found.iter().map(|problem| problem.key.as_str()).collect::<Vec<_>>(), ["hots"]);
        assert!(keys(&value).contains(&"port".to_owned()));
    }
}
