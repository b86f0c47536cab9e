//! The client of a site's server, for nodes and for operators.
//!
//! A server is known by its pins, which are checked in the TLS handshake: no byte of a request, and so no token, goes to
//! another one. Operators of the same account take the server's socket instead. Answers are bounded and so is the time
//! they may take. Nothing is tried twice here: who calls knows whether that makes sense.

mod operator;
mod plans;
pub(crate) mod trust;
pub(crate) mod way;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stead_model::node::wire::{
    ErrorBody, LONGEST_WAIT_SECONDS, NodeReport, Pins, RenewedToken, Signal, WireCode,
};
use stead_model::plan::Digest;
use stead_model::site::ResolvedSpec;
use stead_model::site::secrets::Secret;
use stead_model::{ExitCode, MessageId, NodeName};

pub use plans::Submitted;
use trust::{PinSet, Trust};
use way::{Answer, Way};

/// The port of a server whose address names none.
const PORT: u16 = 44443;
/// How long an answer may take besides what it is asked to wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of an answer.
const MOST_BYTES: usize = 16 << 20;
/// What a server may ask to wait, at most.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Why a request was not answered with what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refuses.
    #[error("{}{message}", .code.map_or_else(|| format!("status {status}: "), |code| format!("{}: ", code.as_str())))]
    Refused {
        /// The status of the answer.
        status: u16,
        /// Which code, if it is one of ours.
        code: Option<WireCode>,
        /// Why.
        message: String,
        /// When to come again.
        retry_after: Option<Duration>,
    },
    /// There is no answer.
    #[error("E501: {server} cannot be reached: {why}")]
    Unreachable {
        /// Who was asked.
        server: String,
        /// Why.
        why: String,
    },
    /// Who answers is not the server that is meant. Nothing was sent to it.
    #[error("E501: {server} is not trusted and was sent nothing: {}", untrusted(.expected, .seen.as_deref(), .why))]
    Untrusted {
        /// Who was asked.
        server: String,
        /// The pins.
        expected: Vec<String>,
        /// The fingerprint of the certificate that was shown.
        seen: Option<String>,
        /// What TLS says.
        why: String,
    },
    /// The answer is not what it should be.
    #[error("{0}")]
    Answer(String),
    /// The address, a pin or a certificate is not one.
    #[error("{0}")]
    Invalid(String),
}

fn untrusted(expected: &[String], seen: Option<&str>, why: &str) -> String {
    match (expected, seen) {
        ([], Some(seen)) => format!("{why} (its certificate is {seen})"),
        ([], None) => why.to_owned(),
        (expected, Some(seen)) => format!("its certificate is {seen}, expected {}", expected.join(" or ")),
        (expected, None) => format!("expected {}: {why}", expected.join(" or ")),
    }
}

impl ClientError {
    /// Returns the code, as markers and reports name it.
    pub fn code(&self) -> Option<WireCode> {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Unreachable { .. } | Self::Untrusted { .. } => Some(WireCode::E501),
            Self::Answer(_) | Self::Invalid(_) => None,
        }
    }

    /// Whether another try may be answered otherwise: the server was away, or could not answer then.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || *status == 429,
            Self::Unreachable { .. } => true,
            Self::Untrusted { .. } | Self::Answer(_) | Self::Invalid(_) => false,
        }
    }

    /// Returns how long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::Untrusted { .. } | Self::Answer(_) | Self::Invalid(_) => None,
        }
    }

    /// Returns what a command ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Refused { status, .. } if *status < 500 => ExitCode::Failed,
            Self::Refused { .. } | Self::Unreachable { .. } | Self::Untrusted { .. } => ExitCode::Unreachable,
            Self::Answer(_) => ExitCode::Invalid,
            Self::Invalid(_) => ExitCode::Usage,
        }
    }
}

/// A site's server, as a node or an operator sees it. `Debug` shows no token.
#[derive(Clone)]
pub struct ServerClient {
    way: Way,
    token: Option<Secret>,
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerClient").field("server", &self.way.to_string()).finish_non_exhaustive()
    }
}

/// A spec that was fetched.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchedSpec {
    /// The spec.
    pub spec: ResolvedSpec,
    /// Its digest: the server's, which is also that of `spec`.
    pub digest: String,
}

impl ServerClient {
    /// Returns the client of the server at `url` that one of `pins` fits.
    pub fn pinned(url: &str, pins: &Pins) -> Result<Self, ClientError> {
        Self::new(url, Trust::Pinned(PinSet::parse(pins)?))
    }

    /// Returns the client of the server at `url` that the certificates in `pem` vouch for.
    pub fn vouched_for(url: &str, pem: Vec<u8>) -> Result<Self, ClientError> {
        Self::new(url, Trust::Authority(pem))
    }

    /// Returns the client of the server at `url` that this machine's certificates vouch for.
    pub fn public(url: &str) -> Result<Self, ClientError> {
        Self::new(url, Trust::System)
    }

    /// Returns the client of whoever answers at `url`: everything it is sent may be read by others.
    pub fn insecure(url: &str) -> Result<Self, ClientError> {
        Self::new(url, Trust::Anybody)
    }

    /// Returns the client of the server that listens on this socket; it needs no token.
    pub fn socket(path: impl Into<PathBuf>) -> Self {
        Self { way: Way::Socket(path.into()), token: None }
    }

    fn new(url: &str, trust: Trust) -> Result<Self, ClientError> {
        Ok(Self { way: Way::tls(url, PORT, trust)?, token: None })
    }

    /// Returns this client with what it identifies itself by.
    pub fn with_token(self, token: Secret) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Returns what the server is called in messages.
    pub fn server(&self) -> String {
        self.way.to_string()
    }

    /// Asks whether the server answers.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.call("GET", "/health", None).await.map(drop)
    }

    /// Returns the spec of a node; nothing if it is still the one with digest `known`.
    pub async fn spec(
        &self,
        node: &NodeName,
        known: Option<&str>,
    ) -> Result<Option<FetchedSpec>, ClientError> {
        let known = known.map(|digest| ("if-none-match", format!("\"{digest}\"")));
        let answer = self.send("GET", &format!("/spec/{node}"), known, None, PATIENCE).await?;
        if answer.status == 304 {
            return Ok(None);
        }
        fetched(node, &self.accepted(answer)?.body).map(Some)
    }

    /// Waits for what the node is to do next, after the signal that it took down last; nothing if nothing came. Until
    /// it says that it took one down, the same comes again.
    pub async fn next(
        &self,
        node: &NodeName,
        after: Option<&MessageId>,
        wait: Duration,
    ) -> Result<Option<Signal>, ClientError> {
        let seconds = wait.as_secs().min(LONGEST_WAIT_SECONDS);
        let after = after.map_or("0", MessageId::as_str);
        let path = format!("/v1/nodes/{node}/next?wait={seconds}&after={after}");
        let patience = PATIENCE + Duration::from_secs(seconds);
        let answer = self.accepted(self.send("GET", &path, None, None, patience).await?)?;
        if answer.status == 204 { Ok(None) } else { self.read(&answer.body).map(Some) }
    }

    /// Reports.
    pub async fn report(&self, node: &NodeName, report: &NodeReport) -> Result<(), ClientError> {
        // A job's output is larger than anything else that is taken.
        let job = report.id.as_ref().filter(|_| report.kind == stead_model::node::wire::ReportKind::Job);
        let query = job.map_or_else(String::new, |id| format!("?job={id}"));
        let body = to_body(report)?;
        self.call("POST", &format!("/v1/nodes/{node}/reports{query}"), Some(body)).await.map(drop)
    }

    /// Returns what a job of the node reads.
    pub async fn job_input(&self, node: &NodeName, job: &MessageId) -> Result<Vec<u8>, ClientError> {
        let path = format!("/v1/nodes/{node}/jobs/{job}/input");
        Ok(self.call("GET", &path, None).await?.body.to_vec())
    }

    /// Returns a part of the file with this hash, from `from` to before `end`; it may be shorter, but not empty.
    pub async fn artifact_part(&self, sha256: &Digest, from: u64, end: u64) -> Result<Vec<u8>, ClientError> {
        let range = ("range", format!("bytes={from}-{}", end.saturating_sub(1)));
        let path = format!("/v1/artifacts/sha256/{sha256}");
        let answer = self.accepted(self.send("GET", &path, Some(range), None, PATIENCE).await?)?;
        let begins = format!("bytes {from}-");
        let is_part = answer.header("content-range").is_some_and(|shown| shown.starts_with(&begins));
        let most = end.saturating_sub(from);
        if !is_part || answer.body.is_empty() || answer.body.len() as u64 > most {
            return Err(ClientError::Answer(format!("{} answers with another part of a file", self.way)));
        }
        Ok(answer.body)
    }

    /// Returns a new token in place of this client's.
    pub async fn renew(&self, node: &NodeName) -> Result<RenewedToken, ClientError> {
        let answer = self.call("POST", &format!("/v1/nodes/{node}/token"), None).await?;
        self.read(&answer.body)
    }

    /// Makes a request and returns the answer of a server that does not refuse.
    async fn call(&self, method: &str, path: &str, body: Option<Vec<u8>>) -> Result<Answer, ClientError> {
        self.accepted(self.send(method, path, None, body, PATIENCE).await?)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        header: Option<(&str, String)>,
        body: Option<Vec<u8>>,
        patience: Duration,
    ) -> Result<Answer, ClientError> {
        let mut builder = hyper::Request::builder().method(method).uri(path).header("host", self.way.host());
        builder = builder.header("user-agent", concat!("stead/", env!("CARGO_PKG_VERSION")));
        if let Some((name, value)) = header {
            builder = builder.header(name, value);
        }
        if body.is_some() {
            builder = builder.header("content-type", "application/json");
        }
        if let Some(token) = &self.token {
            let value = hyper::header::HeaderValue::from_str(&format!("Bearer {}", token.expose()));
            // The error's own text may show the token.
            let mut value =
                value.map_err(|_| ClientError::Invalid("the token is not one line of text".to_owned()))?;
            value.set_sensitive(true);
            builder = builder.header("authorization", value);
        }
        let message = builder.body(Full::new(Bytes::from(body.unwrap_or_default())));
        let message =
            message.map_err(|error| ClientError::Invalid(format!("the request cannot be built: {error}")))?;
        self.way.exchange(message, MOST_BYTES, patience).await
    }

    fn accepted(&self, answer: Answer) -> Result<Answer, ClientError> {
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        let seconds = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(LONGEST_RETRY));
        let (code, message) = match ErrorBody::parse(&answer.body) {
            Some(error) => (Some(error.code), error.message),
            None => (None, format!("{} does not answer as a Stead server does", self.way)),
        };
        Err(ClientError::Refused { status: answer.status, code, message, retry_after })
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ClientError> {
        // Only the place: an answer may hold a token.
        serde_json::from_slice(body).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            ClientError::Answer(format!(
                "the answer of {} does not fit at line {line} column {column}",
                self.way
            ))
        })
    }
}

fn to_body(value: &impl serde::Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|error| ClientError::Invalid(format!("it cannot be sent: {error}")))
}

/// Reads a spec with its digest, and holds one against the other.
fn fetched(node: &NodeName, body: &[u8]) -> Result<FetchedSpec, ClientError> {
    let bad = |why: String| ClientError::Answer(format!("the spec of {node} is invalid: {why}"));
    let mut value: Value = serde_json::from_slice(body).map_err(|error| bad(error.to_string()))?;
    let digest = value.as_object_mut().and_then(|members| members.remove("digest"));
    let Some(digest) = digest.as_ref().and_then(Value::as_str) else {
        return Err(bad("it has no digest".to_owned()));
    };
    let spec: ResolvedSpec = serde_json::from_value(value).map_err(|error| bad(error.to_string()))?;
    if spec.digest() != digest {
        return Err(bad(format!("its digest is {}, the server says {digest}", spec.digest())));
    }
    if spec.node != *node {
        return Err(bad(format!("it is that of {}", spec.node)));
    }
    Ok(FetchedSpec { digest: digest.to_owned(), spec })
}
