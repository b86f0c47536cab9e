//! Starting, stopping and asking for servers, from outside of them.
//!
//! A server runs exactly as long as its lock file is locked: the kernel frees it however the server ends, so a process
//! id that was left behind fools nobody.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use stead_drivers::site::{LoadError, Manifests, load};
use stead_model::Diagnostics;
use stead_runner::clock;

use crate::lock;
use crate::place::{ServerFacts, ServerOptions, ServerPlace};
use crate::report::ServerReport;
use crate::socket::{self, AskError};

/// How long a server may take to answer before it counts as not answering.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a server may take to start: clones are made before it answers.
const LONGEST_START: Duration = Duration::from_secs(120);
/// How long a server is asked to end before it is made to.
const GRACE: Duration = Duration::from_millis(700);
/// How often is looked.
const POLL: Duration = Duration::from_millis(5);

/// Why a server could not be started, stopped or asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The site cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `site.yaml` has problems.
    #[error("{0}")]
    Site(Diagnostics),
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It said why it did not start.
    #[error("the server did not start: {message}")]
    Refused {
        /// What it said.
        message: String,
        /// What it exited with.
        exit_code: Option<u8>,
    },
    /// It did not say that it is ready.
    #[error("the server did not start within {} s; {} may say why", LONGEST_START.as_secs(), said.display())]
    NotReady {
        /// What it wrote.
        said: PathBuf,
    },
    /// It does not end.
    #[error("process {pid} of the server does not end")]
    Immortal {
        /// Which process.
        pid: i32,
    },
    /// It does not answer.
    #[error("the server at {} does not answer", socket.display())]
    Silent {
        /// Where it was asked.
        socket: PathBuf,
        /// Why.
        #[source]
        source: AskError,
    },
}

/// A server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started {
    /// This call has started it.
    Now(ServerFacts),
    /// It was there already.
    Before(ServerFacts),
}

impl Started {
    /// Returns what clients need to know of it.
    pub const fn facts(&self) -> &ServerFacts {
        match self {
            Self::Now(facts) | Self::Before(facts) => facts,
        }
    }
}

/// What is known of a server from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Whether its process is there.
    pub running: bool,
    /// Which process.
    pub pid: Option<u32>,
    /// Whether it answers.
    pub healthy: bool,
    /// Its port.
    pub port: u16,
    /// What it says of itself.
    #[serde(flatten)]
    pub report: Option<ServerReport>,
}

/// Makes sure that a server of this site runs and answers, as a process of its own that `program` (`stead`) is.
///
/// One that answers is left as it is, whatever `options` say. One that does not answer is replaced.
pub fn ensure(place: &ServerPlace, options: &ServerOptions, program: &Path) -> Result<Started, ServerError> {
    let port = port_of(place, options.port)?;
    let directory = place.directory();
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o700).create(&directory).map_err(file_error("make", &directory))?;
    if let Some(facts) = answering(place, port)? {
        return Ok(Started::Before(facts));
    }
    end(place, port)?;
    match launch(place, options, program) {
        // Another call was quicker: its server is as good.
        Err(refused @ ServerError::Refused { .. }) => {
            answering(place, port)?.map_or(Err(refused), |facts| Ok(Started::Before(facts)))
        }
        launched => launched.map(Started::Now),
    }
}

/// Stops the server on `port`, or on the site's. Returns whether there was one.
pub fn stop(place: &ServerPlace, port: Option<u16>) -> Result<bool, ServerError> {
    let port = port_of(place, port)?;
    end(place, port)
}

/// Returns what is known of the server on `port`, or on the site's.
pub fn status(place: &ServerPlace, port: Option<u16>) -> Result<StatusReport, ServerError> {
    let port = port_of(place, port)?;
    let holder = holder(place, port)?;
    let report = match &holder {
        Some(_) => socket::ask(&place.socket(port), "GET", "/v1/server", PATIENCE)
            .ok()
            .and_then(|body| serde_json::from_slice(&body).ok()),
        None => None,
    };
    Ok(StatusReport {
        running: holder.is_some(),
        pid: holder.flatten(),
        healthy: report.is_some(),
        port,
        report,
    })
}

/// Lets every server that runs for this site read everything again. Returns what each then says of itself.
pub fn reload(place: &ServerPlace) -> Result<Vec<ServerReport>, ServerError> {
    let mut reports = Vec::new();
    for port in ports(place)? {
        if holder(place, port)?.is_none() {
            continue;
        }
        let socket = place.socket(port);
        let silent = |source| ServerError::Silent { socket: socket.clone(), source };
        let body = socket::ask(&socket, "POST", "/v1/server/reload", LONGEST_START).map_err(silent)?;
        reports.push(serde_json::from_slice(&body).map_err(|_| silent(AskError::NotHttp))?);
    }
    Ok(reports)
}

/// Returns the ports that servers of this site have, or have had.
fn ports(place: &ServerPlace) -> Result<Vec<u16>, ServerError> {
    let directory = place.directory();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("list", &directory)(error)),
    };
    let port = |name: &str| name.strip_prefix("server-")?.strip_suffix(".pid")?.parse().ok();
    let mut ports: Vec<u16> = entries.filter_map(|entry| port(entry.ok()?.file_name().to_str()?)).collect();
    ports.sort_unstable();
    Ok(ports)
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServerError {
    let path = path.to_owned();
    move |source| ServerError::File { what, path, source }
}

/// Returns the port that is meant: the one given, that of the site, or the one kept from the last time any would do.
fn port_of(place: &ServerPlace, given: Option<u16>) -> Result<u16, ServerError> {
    let port = match given {
        Some(port) => port,
        None => {
            let settings = load(&place.site, &place.site, Manifests::None)?.site.settings;
            if settings.is_broken() {
                return Err(ServerError::Site(settings.diagnostics));
            }
            settings.value.server.port
        }
    };
    Ok(if port == 0 { kept_port(place).unwrap_or(0) } else { port })
}

/// Returns the port that was found when any would do.
pub(crate) fn kept_port(place: &ServerPlace) -> Option<u16> {
    fs::read_to_string(place.kept_port()).ok()?.trim().parse().ok()
}

/// Returns the process of the server, if one runs; the inner is none while it is starting.
fn holder(place: &ServerPlace, port: u16) -> Result<Option<Option<u32>>, ServerError> {
    let path = place.lock(port);
    lock::holder(&path).map_err(file_error("look at", &path))
}

/// Returns what the server on `port` says of itself, if it answers; one that is just starting is waited for.
fn answering(place: &ServerPlace, port: u16) -> Result<Option<ServerFacts>, ServerError> {
    let deadline = clock::instant() + PATIENCE;
    while holder(place, port)?.is_some() {
        let left = deadline.saturating_duration_since(clock::instant());
        if left.is_zero() {
            break;
        }
        let asked = socket::ask(&place.socket(port), "GET", "/v1/server", left);
        if let Some(report) = asked.ok().and_then(|body| serde_json::from_slice::<ServerReport>(&body).ok()) {
            return Ok(Some(report.facts));
        }
        thread::sleep(POLL);
    }
    Ok(None)
}

/// Ends the server on `port`: it is asked to, then made to. Returns whether there was one.
fn end(place: &ServerPlace, port: u16) -> Result<bool, ServerError> {
    let was_there = match holder(place, port)? {
        None => false,
        Some(pid) => {
            let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
            for signal in [Signal::TERM, Signal::KILL] {
                if let Some(pid) = pid {
                    // It may have ended in between.
                    kill_process(pid, signal).ok();
                }
                if ended(place, port, clock::instant() + GRACE)? {
                    break;
                }
            }
            if holder(place, port)?.is_some() {
                return Err(ServerError::Immortal { pid: pid.map_or(0, |pid| pid.as_raw_nonzero().get()) });
            }
            true
        }
    };
    for left in [place.pid_file(port), place.socket(port)] {
        match fs::remove_file(&left) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("remove", &left)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(was_there)
}

fn ended(place: &ServerPlace, port: u16, deadline: Instant) -> Result<bool, ServerError> {
    while holder(place, port)?.is_some() {
        if clock::instant() >= deadline {
            return Ok(false);
        }
        thread::sleep(POLL);
    }
    Ok(true)
}

/// Starts a server and waits until it says that it is ready.
fn launch(place: &ServerPlace, options: &ServerOptions, program: &Path) -> Result<ServerFacts, ServerError> {
    let said = place.directory().join("server.err");
    let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&said);
    let stderr = stderr.map_err(file_error("write", &said))?;
    let mut command = Command::new(program);
    command.args(["server", "start", "--foreground", "--detached", "--json"]);
    for (flag, path) in [("--site", &place.site), ("--state-dir", &place.state)] {
        // It is started elsewhere.
        command.arg(flag).arg(std::path::absolute(path).map_err(file_error("find", path))?);
    }
    if let Some(port) = options.port {
        command.arg("--port").arg(port.to_string());
    }
    if let Some(bind) = options.bind {
        command.arg("--bind").arg(bind.to_string());
    }
    if let Some((certificate, key)) = &options.certificate {
        command.arg("--cert").arg(certificate).arg("--key").arg(key);
    }
    if options.new_certificate {
        command.arg("--new-cert");
    }
    if let Some(log) = &options.log {
        command.arg("--log").arg(log);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().map_err(file_error("start", program))?;
    let Some(answer) = first_document(&mut child) else {
        child.kill().and_then(|()| child.wait()).map_err(file_error("end", program))?;
        return Err(ServerError::NotReady { said });
    };
    if let Ok(facts) = serde_json::from_slice(&answer) {
        return Ok(facts);
    }
    let status = child.wait().map_err(file_error("wait for", program))?;
    let refusal: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
    let message = refusal.pointer("/error/message").and_then(serde_json::Value::as_str).map(str::to_owned);
    let message = message.unwrap_or_else(|| format!("{status}; {} may say why", said.display()));
    let exit_code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(ServerError::Refused { message, exit_code })
}

/// Returns the JSON document that a process writes first, or what it wrote until its end; none if it takes too long.
fn first_document(child: &mut Child) -> Option<Vec<u8>> {
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    // It ends with the document, with the process or, when both fail, with the process that is then killed.
    thread::spawn(move || {
        let mut written = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match stdout.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(count) => written.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
            if serde_json::from_slice::<serde_json::Value>(&written).is_ok() {
                break;
            }
        }
        // Nobody waits any more if it took too long.
        sender.send(written).ok();
    });
    receiver.recv_timeout(LONGEST_START).ok()
}
