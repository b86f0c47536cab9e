//! The API of Proxmox VE: requests, refusals and tasks.
//!
//! A change that takes its time is a task, known by its UPID; [`Api::run`] waits for its end. What may pass, locks and
//! answers that are lost, is told apart from what will not ([`ApiError::may_pass`]): who made the change looks at what is
//! there before it is made again, with [`Tries`] between.

use std::fmt;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::Value;
use stead_model::site::secrets::Secret;
use stead_model::tail::last_words;
use stead_runner::machine::MachineError;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::form;
use crate::server_client::ClientError;
use crate::server_client::way::{Answer, Way};

/// Requests at once: the daemon behind the API has few workers, which others need too.
const CALLS: usize = 16;
/// How long an answer may take. Some changes are made before they are answered.
const PATIENCE: Duration = Duration::from_secs(90);
/// The most bytes of an answer: lists of large clusters have some megabytes.
const MOST_BYTES: usize = 64 << 20;
/// Lines of a task's log that are asked for: its end is what says why it failed.
const LOG_LINES: u64 = 5000;
/// How often a task is looked at: at first, and at last; see [`longer`].
const FIRST_LOOK: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How patient the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Before a task is looked at for the second time; later it takes longer.
    pub first_look: Duration,
    /// How long locks and an API that does not answer are waited for.
    pub busy: Duration,
    /// How long an answer may take to who only wants to know whether there is one: nothing is done before it is given.
    pub look: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { first_look: FIRST_LOOK, busy: Duration::from_secs(120), look: Duration::from_secs(10) }
    }
}

/// Why a request was not answered with what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    /// The token is not accepted, or may not do this.
    Denied(String),
    /// It refuses, with these words.
    Refused(String),
    /// Somebody else is at it: a lock is held.
    Busy(String),
    /// The task failed; the end of its log.
    Task { what: String, log: Vec<String> },
    /// There is no answer. What was asked for may have been done.
    Lost(String),
    /// Whoever answers is not the API that is meant.
    Untrusted(String),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(text)
            | Self::Refused(text)
            | Self::Busy(text)
            | Self::Lost(text)
            | Self::Untrusted(text)
            | Self::Task { what: text, .. } => f.write_str(text),
        }
    }
}

impl ApiError {
    /// Whether it may be gone if one waits.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Busy(_) | Self::Lost(_) => true,
            Self::Task { what, .. } => is_busy(what),
            Self::Denied(_) | Self::Refused(_) | Self::Untrusted(_) => false,
        }
    }

    /// Whether it says that there is no such machine or volume.
    pub(super) fn is_absent(&self) -> bool {
        let absent = |text: &str| text.contains("does not exist") || text.contains("no such");
        match self {
            Self::Refused(text) | Self::Task { what: text, .. } => absent(text),
            Self::Denied(_) | Self::Busy(_) | Self::Lost(_) | Self::Untrusted(_) => false,
        }
    }

    /// Whether it says that the number is taken.
    pub(super) fn is_taken(&self) -> bool {
        match self {
            Self::Refused(text) | Self::Task { what: text, .. } => text.contains("already exists"),
            Self::Denied(_) | Self::Busy(_) | Self::Lost(_) | Self::Untrusted(_) => false,
        }
    }

    /// Returns the driver's error of `doing` something that ended so.
    pub(super) fn while_doing(self, doing: &str) -> MachineError {
        let said = format!("{doing}: {self}");
        match self {
            Self::Denied(_) => MachineError::Invalid(said),
            Self::Refused(_) => MachineError::failed(said),
            Self::Busy(_) => MachineError::Timeout(said),
            Self::Task { log, .. } => MachineError::Failed { what: said, last_lines: log },
            Self::Lost(_) | Self::Untrusted(_) => MachineError::Unavailable(said),
        }
    }
}

/// Whether a refusal says that somebody else holds a lock.
fn is_busy(text: &str) -> bool {
    ["can't lock file", "is locked (", "got lock request timeout", "trying to acquire lock"]
        .iter()
        .any(|words| text.contains(words))
}

/// A request that changes something.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) fields: Vec<(String, String)>,
}

impl Change {
    pub(super) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), fields: Vec::new() }
    }

    pub(super) fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }
}

/// The API of one cluster, asked with one token.
pub(super) struct Api {
    way: Way,
    authorization: Secret,
    /// The token as messages name it.
    token: String,
    calls: Semaphore,
    pub(super) pace: Pace,
}

impl Api {
    /// Returns the API at the end of `way`. `token` is `user@realm!id=value`, called `name` by the site.
    pub(super) fn new(way: Way, name: &str, token: &Secret, pace: Pace) -> Self {
        let account = token.expose().split('=').next().unwrap_or_default();
        Self {
            way,
            authorization: Secret::new(format!("PVEAPIToken={}", token.expose())),
            token: format!("the API token `{name}` ({account})"),
            calls: Semaphore::new(CALLS),
            pace,
        }
    }

    /// Returns a new count of tries.
    pub(super) fn tries(&self) -> Tries {
        Tries { until: Instant::now() + self.pace.busy, pause: self.pace.first_look }
    }

    /// Asks for what is at `path`, again while there is no answer.
    pub(super) async fn get(&self, path: &str) -> Result<Value, ApiError> {
        let mut tries = self.tries();
        loop {
            match self.send(&Change::new("GET", path)).await {
                Ok(data) => return Ok(data),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Asks once for what is at `path`. An API that takes the question and says nothing is soon given up.
    pub(super) async fn look(&self, path: &str) -> Result<Value, ApiError> {
        self.exchange("GET", path, None, Vec::new(), self.pace.look).await
    }

    /// As [`Self::get`]; none if there is no such thing.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, ApiError> {
        match self.get(path).await {
            Ok(data) => Ok(Some(data)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a change and waits until it is made; returns what its end warns of.
    pub(super) async fn run(&self, change: &Change) -> Result<Option<String>, ApiError> {
        let data = self.send(change).await?;
        self.finish(&data).await
    }

    /// Makes a change that may be made again, until it is made.
    pub(super) async fn ensure(&self, change: &Change) -> Result<Option<String>, ApiError> {
        let mut tries = self.tries();
        loop {
            match self.run(change).await {
                Ok(warning) => return Ok(warning),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Waits for the task that an answer names, if it names one.
    pub(super) async fn finish(&self, data: &Value) -> Result<Option<String>, ApiError> {
        let Some(upid) = data.as_str().filter(|text| text.starts_with("UPID:")) else { return Ok(None) };
        let node = upid.split(':').nth(1).unwrap_or_default();
        let path = format!("nodes/{}/tasks/{}", form::encode(node), form::encode(upid));
        let mut pause = self.pace.first_look;
        let exit = loop {
            let status = self.get(&format!("{path}/status")).await?;
            if status.get("status").and_then(Value::as_str) == Some("stopped") {
                break status.get("exitstatus").and_then(Value::as_str).unwrap_or("unknown").to_owned();
            }
            sleep(pause).await;
            pause = longer(pause);
        };
        if exit == "OK" {
            return Ok(None);
        }
        if exit.starts_with("WARNINGS") {
            return Ok(Some(format!("the task {upid} ended with {exit}")));
        }
        let log = self.get(&format!("{path}/log?start=0&limit={LOG_LINES}")).await.unwrap_or_default();
        let lines = log.as_array().into_iter().flatten().filter_map(|line| line.get("t")?.as_str());
        let text = lines.collect::<Vec<_>>().join("\n");
        let log = last_words(&text).into_iter().map(str::to_owned).collect();
        Err(ApiError::Task { what: exit, log })
    }

    /// Puts a file into a storage.
    pub(super) async fn upload(&self, path: &str, name: &str, content: &[u8]) -> Result<(), ApiError> {
        let (kind, body) = form::multipart(name, content);
        let mut tries = self.tries();
        loop {
            let sent = match self.exchange("POST", path, Some(kind.clone()), body.clone(), PATIENCE).await {
                Ok(data) => self.finish(&data).await,
                Err(error) => Err(error),
            };
            match sent {
                Ok(_) => return Ok(()),
                Err(error) => tries.again(error).await?,
            }
        }
    }

    /// Sends one request and returns the data of its answer.
    pub(super) async fn send(&self, change: &Change) -> Result<Value, ApiError> {
        let form = form::form(&change.fields);
        let (path, body, kind) = match change.method {
            // These have no body.
            "GET" | "DELETE" if !form.is_empty() => (format!("{}?{form}", change.path), String::new(), None),
            "GET" | "DELETE" => (change.path.clone(), String::new(), None),
            _ => (change.path.clone(), form, Some("application/x-www-form-urlencoded".to_owned())),
        };
        self.exchange(change.method, &path, kind, body.into_bytes(), PATIENCE).await
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        kind: Option<String>,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<Value, ApiError> {
        let invalid = |error: hyper::http::Error| ApiError::Refused(format!("{method} {path}: {error}"));
        let mut message = hyper::Request::builder()
            .method(method)
            .uri(format!("/api2/json/{path}"))
            .header("host", self.way.host())
            .header("user-agent", concat!("stead/", env!("CARGO_PKG_VERSION")))
            .header("accept", "application/json")
            .header("authorization", self.authorization.expose());
        if let Some(kind) = kind {
            message = message.header("content-type", kind);
        }
        let message = message.body(Full::new(Bytes::from(body))).map_err(invalid)?;
        let _one_of_few = self.calls.acquire().await;
        let answer = self.way.exchange(message, MOST_BYTES, patience).await.map_err(unanswered)?;
        self.judge(&format!("{method} {path}"), &answer)
    }

    /// Returns the data of an answer, or what it refuses.
    fn judge(&self, asked: &str, answer: &Answer) -> Result<Value, ApiError> {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if (200..300).contains(&answer.status) {
            // Whoever reads it finds what it looks for, or finds it missing.
            return Ok(body.get("data").cloned().unwrap_or_default());
        }
        let said = complaint(&body, answer.reason.as_deref());
        Err(match answer.status {
            401 => ApiError::Denied(format!("{} is refused: {said}", self.token)),
            403 => ApiError::Denied(format!("{} may not do this: {said}", self.token)),
            502..=504 | 595..=599 => {
                ApiError::Lost(format!("{} cannot reach its node: {} {said}", self.way, answer.status))
            }
            _ if is_busy(&said) => ApiError::Busy(said),
            status => ApiError::Refused(format!("{said} ({asked}: {status})")),
        })
    }
}

fn unanswered(error: ClientError) -> ApiError {
    match error {
        ClientError::Unreachable { server, why } => {
            ApiError::Lost(format!("{server} cannot be reached: {why}"))
        }
        ClientError::Untrusted { ref expected, seen: Some(_), .. } if expected.is_empty() => {
            ApiError::Untrusted(format!("{error}; if that is the API's, say so by the host's `fingerprint`"))
        }
        ClientError::Untrusted { .. } => ApiError::Untrusted(error.to_string()),
        ClientError::Refused { .. } | ClientError::Answer(_) | ClientError::Invalid(_) => {
            ApiError::Refused(error.to_string())
        }
    }
}

/// Returns what a refusal says: its message, else the words of the status line, and what is wrong with which field.
fn complaint(body: &Value, reason: Option<&str>) -> String {
    let message = body.get("message").and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    let mut said = message.or(reason.map(str::trim)).unwrap_or("no reason is given").to_owned();
    for (field, text) in body.get("errors").and_then(Value::as_object).into_iter().flatten() {
        said.push_str(&format!("; {field}: {}", text.as_str().unwrap_or_default().trim()));
    }
    said
}

/// Returns the pause after this one.
fn longer(pause: Duration) -> Duration {
    (pause * 3 / 2).min(LAST_LOOK)
}

/// Counts tries: how long they may go on, and how long the next one waits.
pub(super) struct Tries {
    until: Instant,
    pause: Duration,
}

impl Tries {
    /// Waits before the next try.
    ///
    /// # Errors
    /// `error` itself if it will not pass, or has not passed for too long.
    pub(super) async fn again(&mut self, error: ApiError) -> Result<(), ApiError> {
        if !error.may_pass() || Instant::now() + self.pause > self.until {
            return Err(error);
        }
        sleep(self.pause).await;
        self.pause = longer(self.pause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_told_in_its_own_words_whoever_says_them() {
        let newer = json!({"data": null, "message": "VM is locked (backup)\n"});
        assert_eq!(complaint(&newer, Some("VM is locked (backup)")), "VM is locked (backup)");
        assert_eq!(complaint(&json!({"data": null}), Some("no such VM ('7')")), "no such VM ('7')");
        let fields = json!({"errors": {"cores": "type check failed", "memory": "too small\n"}});
        assert_eq!(
            complaint(&fields, Some("Parameter verification failed.")),
            "Parameter verification failed.; cores: type check failed; memory: too small"
        );
    }

    /// Whoever only looks does not wait as long as who changes something.
    #[tokio::test]
    async fn who_only_looks_gives_up_soon() {
        assert_eq!((Pace::default().look, PATIENCE), (Duration::from_secs(10), Duration::from_secs(90)));
        let dir = tempfile::tempdir().unwrap();
        // It takes every connection, and says nothing.
        let _deaf = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
        let way = Way::Socket(dir.path().join("s"));
        let api = Api::new(
            way,
            "lab",
            &Secret::new("root@pam!stead=x"),
            Pace { look: Duration::from_millis(50), ..Pace::default() },
        );
        let lost = api.look("version").await.unwrap_err();
        assert!(
            matches!(&lost, ApiError::Lost(why) if why.ends_with("no whole answer within 50ms")),
            "{lost}"
        );
    }

    /// Reach, section 10: what the API answers, by its status; 501 and 500 have their text in the status line.
    #[test]
    fn answers_mean_what_their_status_says() {
        let api = Api::new(
            Way::Socket("/nowhere".into()),
            "lab",
            &Secret::new("root@pam!stead=hush"),
            Pace::default(),
        );
        let judged = |status: u16, reason: &str, body: Value| {
            let (reason, body) = (Some(reason.to_owned()), body.to_string().into());
            let answer = Answer { status, reason, headers: Vec::new(), body };
            api.judge("GET x", &answer)
        };
        assert_eq!(judged(200, "OK", json!({"data": 7})), Ok(json!(7)));
        for status in 595..=599 {
            let lost = judged(status, "Connection timed out", json!({"data": null})).unwrap_err();
            assert!(matches!(lost, ApiError::Lost(_)), "{status}: {lost}");
            assert!(matches!(lost.while_doing("x"), MachineError::Unavailable(_)), "{status}");
        }
        for status in [500, 501, 594] {
            let refused =
                judged(status, "Method 'GET x' not implemented", json!({"data": null})).unwrap_err();
            assert!(
                matches!(&refused, ApiError::Refused(said) if said.starts_with("Method 'GET x'")),
                "{refused}"
            );
        }
        for status in [401, 403] {
            let denied = judged(status, "permission denied (/vms/9000, VM.Clone)", json!({})).unwrap_err();
            let said = denied.to_string();
            assert!(said.contains("`lab` (root@pam!stead)") && said.contains("VM.Clone"), "{said}");
            assert!(!said.contains("hush") && matches!(denied, ApiError::Denied(_)), "{said}");
        }
        let locked = judged(500, "VM is locked (backup)", json!({})).unwrap_err();
        assert!(matches!(locked, ApiError::Busy(_)) && locked.may_pass(), "{locked}");
    }

    #[test]
    fn pauses_grow_to_their_end() {
        let first = Pace::default().first_look;
        let pauses = std::iter::successors(Some(first), |pause| Some(longer(*pause)));
        let millis: Vec<u128> = pauses.take(8).map(|pause| pause.as_micros() / 100).collect();
        assert_eq!(millis, [2_000, 3_000, 4_500, 6_750, 10_125, 15_187, 20_000, 20_000]);
    }

    #[test]
    fn what_may_pass_is_told_from_what_will_not() {
        let task = |what: &str| ApiError::Task { what: what.to_owned(), log: Vec::new() };
        assert!(is_busy("VM is locked (clone)") && is_busy("CT is locked (disk)"));
        assert!(
            task("clone failed: can't lock file '/var/lock/pve-manager/pve-storage-x' - got timeout")
                .may_pass()
        );
        assert!(ApiError::Lost("x".to_owned()).may_pass());
        assert!(!task("no space left").may_pass() && !ApiError::Refused("x".to_owned()).may_pass());
        let gone = "Configuration file 'nodes/a/qemu-server/100.conf' does not exist";
        assert!(ApiError::Refused(gone.to_owned()).is_absent() && !task("no space left").is_absent());
        assert!(
            ApiError::Refused("unable to create VM 100 - VM 100 already exists on node 'a'".to_owned())
                .is_taken()
        );
    }
}
