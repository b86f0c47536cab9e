//! `http.request`: one request, and what came back.

pub(crate) mod client;

use serde_json::{Map, Value, json};
use std::time::Duration;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect};
use stead_runner::files::Needs;
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use client::{Request, Response};

/// Gets what is at `url` and gives it to `sink`, piece by piece; whoever the system trusts may serve it.
///
/// # Errors
/// If it is not there or not whole within `timeout`, or what the sink says.
pub async fn download(
    url: &str,
    timeout: Duration,
    sink: &mut (dyn FnMut(&[u8]) -> Result<(), OpError> + Send),
) -> Result<(), OpError> {
    let request = Request {
        url,
        method: "GET",
        headers: Vec::new(),
        body: Vec::new(),
        roots: client::Roots::System,
        timeout,
    };
    let response = client::send_uncancelled(request, sink).await?;
    if response.status == 200 {
        return Ok(());
    }
    Err(OpError::operation(format!("the answer is {}", response.status)))
}

/// How much of a body a result keeps.
pub(crate) const LONGEST_BODY: usize = 1 << 20;
/// Methods that change nothing: no lock is taken for them, and one that was cut off is simply sent again.
const READS: &[&str] = &["GET", "HEAD"];
const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

pub(crate) const URL: ParamSpec =
    ParamSpec::new("url", ParamKind::Url, "The address.").required().judged(client::judge_address);
pub(crate) const CA: ParamSpec = ParamSpec::new(
    "ca",
    ParamKind::NonEmptyText,
    "Certificates to trust instead of the system's: PEM text, or a file relative to the plan file.",
);
pub(crate) const EXPECT_STATUS: ParamSpec = ParamSpec::new(
    "expect_status",
    ParamKind::IntList(100, 599),
    "Status codes and ranges that are success; default: [\"200-299\"].",
)
.default(ParamDefault::Texts(&["200-299"]));

static DESCRIPTOR: Descriptor = Descriptor {
    name: "http.request",
    summary: "Sends an HTTP request; GET and HEAD never count as a change. Redirects are not followed.",
    effect: Effect::Command,
    idempotent: false,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[
        URL,
        ParamSpec::new("method", ParamKind::Enum(METHODS), "The method; default: GET.")
            .default(ParamDefault::Text("GET"))
            .reads(READS),
        ParamSpec::new("headers", ParamKind::TextMap, "Headers to send; default: none.")
            .secret()
            .default(ParamDefault::EmptyMap),
        ParamSpec::new("body", ParamKind::Text, "What to send, as text.").secret(),
        ParamSpec::new("json", ParamKind::Any, "What to send, as JSON; sets the content type.").secret(),
        EXPECT_STATUS,
        CA,
        ParamSpec::new("timeout", ParamKind::Duration, "For the whole exchange; default: 30s.")
            .default(ParamDefault::Text("30s")),
        ParamSpec::new(
            "changed_when",
            ParamKind::Text,
            "An expression over `result`: did it change something? The same as the task's key.",
        ),
    ],
    exclusive: &[&["body", "json"]],
    one_of: &[],
    result: &[
        ("status", "The status code."),
        ("headers", "The headers, names in lower case; the values of one name joined by `, `."),
        ("body", "The first 1 MiB of the body, as text."),
        ("truncated", "Whether there was more."),
    ],
};

/// Sends an HTTP request.
pub(crate) struct HttpRequest;

#[async_trait::async_trait]
impl Action for HttpRequest {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, _cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome { changed: !is_read(params), ..Outcome::default() })
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let mut headers: Vec<(String, String)> = params.text_map("headers").into_iter().collect();
        let body = match (params.text("body"), params.as_map().get("json")) {
            (Some(body), _) => body.as_bytes().to_vec(),
            (None, Some(value)) => {
                if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                    headers.push(("content-type".to_owned(), "application/json".to_owned()));
                }
                value.to_string().into_bytes()
            }
            (None, None) => Vec::new(),
        };
        let request = Request {
            url: params.required("url")?,
            method: params.text("method").unwrap_or("GET"),
            headers,
            body,
            roots: client::roots_soon(cx, params).await?,
            timeout: params.duration("timeout", Duration::from_secs(30)),
        };
        let mut kept = Kept::default();
        let response = client::send(cx, request, &mut |bytes| kept.push(bytes)).await;
        let response = response.map_err(|error| OpError { changed: !is_read(params), ..error })?;
        let failure = unexpected(params, response.status)
            .map(|message| OpError { changed: !is_read(params), ..OpError::operation(message) });
        Ok(Outcome {
            changed: !is_read(params),
            failure,
            data: Some(kept.into_data(&response)),
            ..Outcome::default()
        })
    }

    fn needs(&self, params: &Params) -> Needs {
        client::with_certificates(Needs::default(), params)
    }
}

fn is_read(params: &Params) -> bool {
    READS.contains(&params.text("method").unwrap_or("GET"))
}

/// Returns what is wrong with a status code, if something is.
pub(crate) fn unexpected(params: &Params, status: u16) -> Option<String> {
    let ranges = crate::ranges::parse(params, "expect_status").unwrap_or_else(|| vec![(200, 299)]);
    if ranges.iter().any(|(from, to)| (*from..=*to).contains(&i64::from(status))) {
        return None;
    }
    let show = |(from, to): &(i64, i64)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    Some(format!("status {status}, expected {}", ranges.iter().map(show).collect::<Vec<_>>().join(", ")))
}

/// The start of a body.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    /// Takes a piece; says whether more is wanted.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        let room = LONGEST_BODY - self.bytes.len();
        self.truncated |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(())
    }

    fn into_data(self, response: &Response) -> Value {
        let mut headers = Map::new();
        for (name, value) in &response.headers {
            match headers.get_mut(name) {
                Some(Value::String(known)) => {
                    known.push_str(", ");
                    known.push_str(value);
                }
                Some(_) | None => {
                    headers.insert(name.clone(), value.as_str().into());
                }
            }
        }
        json!({
            "status": response.status, "headers": headers,
            "body": String::from_utf8_lossy(&self.bytes), "truncated": self.truncated,
        })
    }
}
