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

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use stead_drivers::site::{LoadError, Manifests, load};
use stead_model::Diagnostics;
use stead_runner::clock;
use stead_runner::process_table::Process;

use crate::certificate::CertificateError;
use crate::lock;
use crate::place::{ServerFacts, ServerOptions, ServerPlace};
use crate::report::ServerReport;
use crate::snapshot::{SnapshotError, Sources};
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
        pid: u32,
    },
    /// It goes on with the site as it was.
    #[error("the server on port {port} goes on without the change: {}", problems.join("; "))]
    Unchanged {
        /// Which.
        port: u16,
        /// What is wrong with the site.
        problems: Vec<String>,
    },
    /// Its new certificate cannot be made.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// What it serves cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
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
/// One that answers is left as it is, whatever `options` say, but for a new certificate. One that is starting is waited
/// for; one that does not answer is replaced.
pub fn ensure(place: &ServerPlace, options: &ServerOptions, program: &Path) -> Result<Started, ServerError> {
    if let Some(facts) = make_way(place, options)? {
        return Ok(Started::Before(facts));
    }
    match launch(place, options, program) {
        // Another call was quicker: its server is as good.
        Err(refused @ ServerError::Refused { .. }) => {
            let port = port_of(place, options.port)?;
            answering(place, port)?.map_or(Err(refused), |facts| Ok(Started::Before(facts)))
        }
        launched => launched.map(Started::Now),
    }
}

/// Returns what a server of this site says of itself that is there already, with the new certificate if one is wanted. One
/// that is starting is waited for; one that does not answer is ended, so that another can take its place.
pub fn make_way(place: &ServerPlace, options: &ServerOptions) -> Result<Option<ServerFacts>, ServerError> {
    let port = port_of(place, options.port)?;
    let directory = place.directory();
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o700).create(&directory).map_err(file_error("make", &directory))?;
    let was_there = holder(place, port)?.is_some();
    if let Some(facts) = answering(place, port)? {
        let facts = if options.new_certificate { renew(place, options, facts)? } else { facts };
        return Ok(Some(facts));
    }
    // One that has come since is starting: whoever starts another waits for it.
    if was_there {
        end(place, port)?;
    }
    Ok(None)
}

/// Gives a server that runs a new certificate. Returns what it then says of itself.
fn renew(
    place: &ServerPlace,
    options: &ServerOptions,
    before: ServerFacts,
) -> Result<ServerFacts, ServerError> {
    let settings = load(&place.site, &place.site, Manifests::None)?.site.settings;
    let (port, bind) = (before.port, options.bind.unwrap_or(settings.value.server.bind));
    let options = ServerOptions { certificate: None, ..options.clone() };
    Sources { place: place.clone(), options, port, bind }.certificate()?;
    let facts = tell(place, port, Telling::Everything)?.facts;
    let is_same = facts.fingerprint == before.fingerprint;
    if is_same {
        let problems = vec!["it serves with a certificate that it was given".to_owned()];
        return Err(ServerError::Unchanged { port, problems });
    }
    Ok(ServerFacts { replaced_fingerprint: Some(before.fingerprint), ..facts })
}

/// Stops the server on `port`, on the site's, or the only one that runs. Returns whether there was one.
pub fn stop(place: &ServerPlace, port: Option<u16>) -> Result<bool, ServerError> {
    let port = port_meant(place, port)?;
    end(place, port)
}

/// Returns what is known of the server on `port`, on the site's, or of the only one that runs.
pub fn status(place: &ServerPlace, port: Option<u16>) -> Result<StatusReport, ServerError> {
    let port = port_meant(place, port)?;
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
        healthy: report.as_ref().is_some_and(|report: &ServerReport| report.problem.is_none()),
        port,
        report,
    })
}

/// Which servers know of a change.
#[derive(Debug, Default)]
#[must_use = "a server that does not know of a change goes on without it"]
pub struct Reloaded {
    /// The ports of those that do.
    pub known: Vec<u16>,
    /// Why others do not.
    pub failed: Vec<ServerError>,
}

impl Reloaded {
    /// Returns the ports if all know of it, else why the first does not.
    pub fn into_result(self) -> Result<Vec<u16>, ServerError> {
        let Self { known, failed } = self;
        failed.into_iter().next().map_or(Ok(known), Err)
    }
}

/// What a server is to read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Everything,
    /// Everything, but what was spoilt of nodes that nobody asks about stays as it was.
    Usable,
    Keys,
}

/// Lets every server that runs for this site read everything again.
pub fn reload(place: &ServerPlace) -> Result<Reloaded, ServerError> {
    tell_all(place, Telling::Everything)
}

/// Lets every server that runs for this site read everything again for a run, which has looked at all that its nodes need:
/// other specs and postures that could be used and cannot any more stay as they were.
pub fn reload_usable(place: &ServerPlace) -> Result<Reloaded, ServerError> {
    tell_all(place, Telling::Usable)
}

/// Lets every server that runs for this site read its keys again, and which tokens are revoked.
pub fn reload_keys(place: &ServerPlace) -> Result<Reloaded, ServerError> {
    tell_all(place, Telling::Keys)
}

fn tell_all(place: &ServerPlace, telling: Telling) -> Result<Reloaded, ServerError> {
    let mut reloaded = Reloaded::default();
    for port in ports(place)? {
        // One that is starting may have read what there was before.
        let told = match answering(place, port) {
            Ok(Some(_)) => tell(place, port, telling),
            Ok(None) if matches!(holder(place, port), Ok(None)) => continue,
            Ok(None) => {
                let source = AskError::Io(io::ErrorKind::TimedOut.into());
                Err(ServerError::Silent { socket: place.socket(port), source })
            }
            Err(error) => Err(error),
        };
        match told {
            Ok(_) => reloaded.known.push(port),
            Err(error) => reloaded.failed.push(error),
        }
    }
    Ok(reloaded)
}

/// Tells one server. It is an error if it goes on with what it has.
fn tell(place: &ServerPlace, port: u16, telling: Telling) -> Result<ServerReport, ServerError> {
    let socket = place.socket(port);
    let target = match telling {
        Telling::Everything => "/v1/server/reload",
        Telling::Usable => "/v1/server/usable",
        Telling::Keys => "/v1/server/keys",
    };
    let silent = |source| ServerError::Silent { socket: socket.clone(), source };
    let body = match socket::ask(&socket, "POST", target, LONGEST_START) {
        Ok(body) => body,
        Err(AskError::Refused(why)) => {
            return Err(ServerError::Unchanged { port, problems: vec![why.message] });
        }
        Err(error) => return Err(silent(error)),
    };
    let report: ServerReport = serde_json::from_slice(&body).map_err(|_| silent(AskError::NotHttp))?;
    match (&report.reload, telling) {
        (Some(reload), Telling::Everything) if !reload.ok => {
            Err(ServerError::Unchanged { port, problems: reload.problems.clone() })
        }
        (Some(_) | None, Telling::Everything | Telling::Usable | Telling::Keys) => Ok(report),
    }
}

/// Returns the ports that servers of this site have, or have had.
fn ports(place: &ServerPlace) -> Result<Vec<u16>, ServerError> {
    let directory = place.directory();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("list", &directory)(error)),
    };
    let port = |name: &str| name.strip_prefix("server-")?.strip_suffix(".lock")?.parse().ok();
    let mut ports: Vec<u16> = entries.filter_map(|entry| port(entry.ok()?.file_name().to_str()?)).collect();
    ports.sort_unstable();
    Ok(ports)
}

/// Returns the port of the server that is meant: the one given, else the site's, else that of the only one that runs.
fn port_meant(place: &ServerPlace, given: Option<u16>) -> Result<u16, ServerError> {
    let port = port_of(place, given)?;
    if given.is_some() || holder(place, port)?.is_some() {
        return Ok(port);
    }
    let mut running = Vec::new();
    for other in ports(place)? {
        if holder(place, other)?.is_some() {
            running.push(other);
        }
    }
    Ok(if let [only] = running[..] { only } else { port })
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServerError {
    let path = path.to_owned();
    move |source| ServerError::File { what, path, source }
}

/// Returns the port that is meant: the one given, that of the site, or the one kept from the last time any would do.
fn port_of(place: &ServerPlace, given: Option<u16>) -> Result<u16, ServerError> {
    let of_site = match given {
        Some(given) => given,
        None => {
            let settings = load(&place.site, &place.site, Manifests::None)?.site.settings;
            if settings.is_broken() {
                return Err(ServerError::Site(settings.diagnostics));
            }
            settings.value.server.port
        }
    };
    let wanted = place.wanted_port(given, of_site);
    Ok(wanted.kept.unwrap_or(wanted.number))
}

/// Returns the process of the server, if one runs; the inner is none while it is starting.
fn holder(place: &ServerPlace, port: u16) -> Result<Option<Option<u32>>, ServerError> {
    let path = place.lock(port);
    lock::holder(&path).map_err(file_error("look at", &path))
}

/// Returns what the server on `port` says of itself, if it answers; one that is just starting is waited for.
fn answering(place: &ServerPlace, port: u16) -> Result<Option<ServerFacts>, ServerError> {
    let begun = clock::instant();
    // One that has just come to answer has not been silent yet, however long it took to start.
    let mut silent_since = begun;
    while holder(place, port)?.is_some() {
        let now = clock::instant();
        let until = if is_starting(place, port) {
            silent_since = now;
            begun + LONGEST_START
        } else {
            silent_since + PATIENCE
        };
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            break;
        }
        let asked = socket::ask(&place.socket(port), "GET", "/v1/server", left.min(PATIENCE));
        if let Some(report) = asked.ok().and_then(|body| serde_json::from_slice::<ServerReport>(&body).ok()) {
            return Ok(Some(report.facts));
        }
        thread::sleep(POLL);
    }
    Ok(None)
}

/// Whether the server that holds the lock has not come to answer yet, and has not had all the time it has for that: it has
/// written down its process when it took the lock, and that it answers it writes down later.
fn is_starting(place: &ServerPlace, port: u16) -> bool {
    let taken = fs::metadata(place.lock(port)).and_then(|lock| lock.modified());
    // A clock that was set back makes it look young, which costs the same patience once.
    let is_young = taken.is_ok_and(|taken| taken.elapsed().unwrap_or_default() < LONGEST_START);
    is_young && !place.pid_file(port).exists()
}

/// Ends the server on `port`: it is asked to, then made to. Returns whether there was one.
fn end(place: &ServerPlace, port: u16) -> Result<bool, ServerError> {
    let was_there = match holder(place, port)? {
        None => false,
        Some(pid) => {
            let process = pid.and_then(Process::read);
            let mut is_over = false;
            for signal in [Signal::TERM, Signal::KILL] {
                // It may have ended in between.
                process.map(|process| process.signal(signal));
                is_over = ended(place, port, process, clock::instant() + GRACE)?;
                if is_over {
                    break;
                }
            }
            if !is_over {
                return Err(ServerError::Immortal { pid: pid.unwrap_or_default() });
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

/// Waits until neither the lock is held nor the process is there: a process that ends lets go of its files first.
fn ended(
    place: &ServerPlace,
    port: u16,
    process: Option<Process>,
    deadline: Instant,
) -> Result<bool, ServerError> {
    while holder(place, port)?.is_some() || process.is_some_and(|process| process.lives()) {
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
    if options.for_run {
        command.arg("--for-run");
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// One that holds its lock and has not written down that it answers is starting, not hung: nobody kills it.
    #[test]
    fn a_server_that_starts_is_told_from_one_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let place = ServerPlace { site: dir.path().join("site"), state: dir.path().to_owned() };
        fs::create_dir(place.directory()).unwrap();
        assert!(!is_starting(&place, 1));
        let _lock = lock::take(&place.lock(1)).unwrap().unwrap();
        assert!(is_starting(&place, 1));
        let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options().write(true).open(place.lock(1)).unwrap().set_modified(long_ago).unwrap();
        assert!(!is_starting(&place, 1), "it had its time");
        drop(lock::take(&place.lock(2)).unwrap().unwrap());
        fs::write(place.pid_file(2), "1").unwrap();
        assert!(!is_starting(&place, 2), "it has answered");
        assert_eq!(ports(&place).unwrap(), [1, 2], "also one that has not answered yet is told");
    }

    /// One server that does not know of a change does not keep it from the others.
    #[test]
    fn every_server_is_told_whatever_the_first_says() {
        let dir = tempfile::tempdir().unwrap();
        let place = ServerPlace { site: dir.path().join("site"), state: dir.path().to_owned() };
        fs::create_dir(place.directory()).unwrap();
        let mut locks = Vec::new();
        let mut threads = Vec::new();
        let bodies = [
            "HTTP/1.1 500 X\r\n\r\n{\"error\":{\"code\":\"E500\",\"message\":\"no\"}}",
            "HTTP/1.1 200 OK\r\n\r\n{\"url\":\"u\",\"port\":2,\"pid\":1,\"fingerprint\":\"f\",\"spki_pin\":\"p\",\"socket\":\"s\",\"specs\":0,\"repos\":0,\"uptime_seconds\":1,\"agents\":0,\"reload\":null}",
        ];
        for (port, body) in [1, 2].into_iter().zip(bodies) {
            locks.push(lock::take(&place.lock(port)).unwrap().unwrap());
            fs::write(place.pid_file(port), "1").unwrap();
            let listener = std::os::unix::net::UnixListener::bind(place.socket(port)).unwrap();
            threads.push(thread::spawn(move || {
                let mut last = false;
                while !last {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut head = [0; 512];
                    let count = stream.read(&mut head).unwrap();
                    last = head[..count].starts_with(b"POST");
                    // The second question is the one that counts; the first is answered as one who lives.
                    let said = if last { body } else { bodies[1] };
                    io::Write::write_all(&mut stream, said.as_bytes()).unwrap();
                }
            }));
        }
        let reloaded = reload_keys(&place).unwrap();
        assert_eq!((reloaded.known.as_slice(), reloaded.failed.len()), ([2].as_slice(), 1));
        assert!(matches!(reloaded.into_result(), Err(ServerError::Unchanged { port: 1, .. })));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
