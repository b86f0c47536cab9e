//! `wait.port`, `wait.http`, `wait.file`: look again and again until it is so, or the time is up.
//!
//! They are reads: never `changed`, and a dry run does not wait, since what they wait for may be only predicted.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use regex::bytes::Regex;
use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect, ErrorClass};
use stead_runner::files::Needs;
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Stop};
use tokio::time::Instant;

use crate::disk::seen::{Depth, Kind, open_file};
use crate::disk::{Disk, Last};
use crate::http::client::{self, Request};
use crate::http::{CA, EXPECT_STATUS, Kept, URL, unexpected};

/// One look may take this long, or the rest of the time if that is less.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// A file that is searched is held in memory.
const LARGEST_FILE: u64 = 64 << 20;

const TIMEOUT: ParamSpec = ParamSpec::new("timeout", ParamKind::Duration, "How long to wait; default: 5m.")
    .default(ParamDefault::Text("5m"));
const INTERVAL: ParamSpec =
    ParamSpec::new("interval", ParamKind::Duration, "How long between looks; default: 500ms.")
        .default(ParamDefault::Text("500ms"));

const READ: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Read,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[("looks", "How often it was looked."), ("seen", "The last thing seen.")],
};

static PORT: Descriptor = Descriptor {
    name: "wait.port",
    summary: "Waits until a TCP port is open, or closed.",
    params: &[
        ParamSpec::new("host", ParamKind::NonEmptyText, "Name or address; default: 127.0.0.1.")
            .default(ParamDefault::Text("127.0.0.1")),
        ParamSpec::new("port", ParamKind::Int(1, 65535), "The port.").required(),
        ParamSpec::new("state", ParamKind::Enum(&["open", "closed"]), "`open` (default) or `closed`.")
            .default(ParamDefault::Text("open")),
        TIMEOUT,
        INTERVAL,
    ],
    ..READ
};

static HTTP: Descriptor = Descriptor {
    name: "wait.http",
    summary: "Waits until an address answers as expected.",
    params: &[
        URL,
        EXPECT_STATUS,
        ParamSpec::new("body_regex", ParamKind::Regex, "Must match the first 1 MiB of the body."),
        CA,
        TIMEOUT,
        INTERVAL,
    ],
    ..READ
};

static FILE: Descriptor = Descriptor {
    name: "wait.file",
    summary: "Waits until a path is there, holds a text, or is gone.",
    params: &[
        ParamSpec::new("path", ParamKind::AbsolutePath, "Absolute path on the target; links are followed.")
            .required(),
        ParamSpec::new("regex", ParamKind::Regex, "Must match the file's content, of at most 64 MiB."),
        ParamSpec::new("state", ParamKind::Enum(&["present", "absent"]), "`present` (default) or `absent`.")
            .default(ParamDefault::Text("present")),
        TIMEOUT,
        INTERVAL,
    ],
    ..READ
};

/// Waits for a TCP port.
pub(crate) struct WaitPort;
/// Waits for an HTTP answer.
pub(crate) struct WaitHttp;
/// Waits for a file.
pub(crate) struct WaitFile;

/// What one look found: whether it is as wanted, and in words.
struct Look {
    done: bool,
    seen: String,
}

/// Looks until it is so.
async fn wait<F>(
    cx: &OpContext,
    params: &Params,
    what: &str,
    mut look: impl FnMut(Duration) -> F,
) -> Result<Outcome, OpError>
where
    F: Future<Output = Result<Look, OpError>>,
{
    let timeout = params.duration("timeout", Duration::from_secs(300));
    let interval = params.duration("interval", Duration::from_millis(500)).max(Duration::from_millis(1));
    let deadline = Instant::now() + timeout;
    let mut looks = 0u64;
    let mut seen_before = None;
    loop {
        looks += 1;
        let left = deadline
            .saturating_duration_since(Instant::now())
            .min(LONGEST_LOOK)
            .max(Duration::from_millis(1));
        let Look { done, seen } = tokio::select! {
            found = look(left) => found?,
            () = cx.cancel.at_least(Stop::Ask) => return Err(OpError::operation(format!("cancelled while waiting for {what}"))),
        };
        if done {
            return Ok(Outcome { data: Some(json!({"looks": looks, "seen": seen})), ..Outcome::default() });
        }
        let now = Instant::now();
        let next = now + interval;
        if next >= deadline {
            let waited = stead_model::duration::to_exact(timeout);
            // A look that the deadline cut off saw nothing; the one before it did.
            let seen = seen_before.filter(|_| now >= deadline).unwrap_or(seen);
            return Err(OpError::new(
                ErrorClass::Timeout,
                format!("{what}: not so after {waited}; last seen: {seen}"),
            ));
        }
        seen_before = Some(seen);
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = cx.cancel.at_least(Stop::Ask) => return Err(OpError::operation(format!("cancelled while waiting for {what}"))),
        }
    }
}

#[async_trait::async_trait]
impl Action for WaitPort {
    fn descriptor(&self) -> &'static Descriptor {
        &PORT
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let host = params.text("host").unwrap_or("127.0.0.1");
        let port = params.int("port").and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or_else(|| OpError::invalid("`port` is a number from 1 to 65535"))?;
        let state = params.text("state").unwrap_or("open");
        wait(cx, params, &format!("{host}:{port} {state}"), |left| async move {
            let connected = tokio::time::timeout(left, tokio::net::TcpStream::connect((host, port))).await;
            let seen = match &connected {
                Ok(Ok(_)) => "open".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            Ok(Look { done: matches!(connected, Ok(Ok(_))) == (state == "open"), seen })
        })
        .await
    }
}

#[async_trait::async_trait]
impl Action for WaitHttp {
    fn descriptor(&self) -> &'static Descriptor {
        &HTTP
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let url = params.required("url")?;
        let pattern = pattern(params, "body_regex")?;
        let roots = client::roots_soon(cx, params).await?;
        let look = |left: Duration| {
            let (roots, pattern) = (roots.clone(), &pattern);
            async move {
                let request = Request {
                    url,
                    method: "GET",
                    headers: Vec::new(),
                    body: Vec::new(),
                    roots,
                    timeout: left,
                };
                let mut kept = Kept::default();
                let response = match client::send(cx, request, &mut |bytes| kept.push(bytes)).await {
                    Ok(response) => response,
                    Err(error) if error.class == ErrorClass::Invalid => return Err(error),
                    Err(error) => return Ok(Look { done: false, seen: error.message }),
                };
                Ok(match unexpected(params, response.status) {
                    Some(seen) => Look { done: false, seen },
                    None if pattern.as_ref().is_some_and(|pattern| !pattern.is_match(&kept.bytes)) => {
                        Look { done: false, seen: format!("status {}, body does not match", response.status) }
                    }
                    None => Look { done: true, seen: format!("status {}", response.status) },
                })
            }
        };
        wait(cx, params, url, look).await
    }

    fn needs(&self, params: &Params) -> Needs {
        client::with_certificates(Needs::default(), params)
    }
}

#[async_trait::async_trait]
impl Action for WaitFile {
    fn descriptor(&self) -> &'static Descriptor {
        &FILE
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let path = params.required("path")?;
        let pattern = pattern(params, "regex")?;
        let state = params.text("state").unwrap_or("present");
        wait(cx, params, &format!("{path} {state}"), |_| {
            let found = file(cx, path, pattern.as_ref(), state);
            async move { found }
        })
        .await
    }
}

fn file(cx: &OpContext, path: &str, pattern: Option<&Regex>, state: &str) -> Result<Look, OpError> {
    let disk = Disk::open(cx)?;
    // A path that cannot be looked at is not there yet.
    let spot = match disk.locate(Path::new(path), Last::Follow) {
        Ok(spot) => spot,
        Err(error) => return Ok(Look { done: state == "absent", seen: error.message }),
    };
    let seen = match disk.see(&spot, Depth::Attributes) {
        Ok(seen) => seen,
        Err(error) => return Ok(Look { done: false, seen: error.message }),
    };
    if let (Some(pattern), Kind::File, Some(directory)) = (pattern, seen.kind, &spot.directory) {
        // As it is at this moment: somebody may be writing to it all the time.
        let mut bytes = Vec::new();
        let read = open_file(directory, &spot.name)
            .map_err(std::io::Error::from)
            .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes));
        if let Err(error) = read {
            return Ok(Look { done: false, seen: format!("cannot read `{path}`: {error}") });
        }
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(OpError::permanent(format!(
                "`{path}` has more than {LARGEST_FILE} bytes, which are too many to be searched"
            )));
        }
        let hit = pattern.is_match(&bytes);
        let words = if hit { "file, content matches" } else { "file, content does not match" };
        return Ok(Look { done: hit == (state == "present"), seen: words.to_owned() });
    }
    let is_there = seen.kind != Kind::Absent;
    Ok(Look { done: is_there == (state == "present"), seen: seen.kind.as_str().to_owned() })
}

fn pattern(params: &Params, name: &str) -> Result<Option<Regex>, OpError> {
    let compile = |pattern: &str| {
        Regex::new(pattern)
            .map_err(|error| OpError::invalid(format!("`{name}` is not a regular expression: {error}")))
    };
    params.text(name).map(compile).transpose()
}
