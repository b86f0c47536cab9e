//! A node's agent: it hears what its server has for it, becomes its spec, heals it on schedule, runs jobs and reports.
//!
//! ```text
//!            ┌────────── next (long-poll) ──────────┐
//!   server ──┤                                      ├──▶ Agent ──▶ converge, jobs, link, terminate
//!            └─◀── reports (from the disk, in order) ┘     ▲
//!                                                    signals, times
//! ```
//! One owner of all state; everything that takes time is a task of its `JoinSet`, at most one of each kind but jobs.
//! What must survive a crash is on the disk before it counts: which signal was taken down, which jobs were begun, which
//! reports the server has not taken.

mod control;
mod converge;
mod fetch;
mod jobs;
mod links;
mod lock;
mod once;
mod pause;
mod place;
mod spool;
mod voice;
mod wanted;

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal as ProcessSignal, getpid, kill_process};
use serde::{Deserialize, Serialize};
use stead_model::node::bootstrap::InvalidBootstrap;
use stead_model::node::wire::{
    JobOrder, NodeReport, Pins, RenewedToken, ReportKind, ReportStatus, Signal, SignalKind,
};
use stead_model::node::{Bootstrap, path};
use stead_model::site::manifest::Mode;
use stead_model::site::secrets::Secret;
use stead_model::{MessageId, token};
use stead_runner::clock;
use tokio::signal::unix::{SignalKind as UnixSignal, signal};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

pub use control::{disable, enable, signal_converge};
pub use fetch::{FetchFailed, Patience, fetch};
pub(crate) use jobs::MARK as JOB_MARK;
pub use links::{Peer, Peers, know_peers};
pub use once::{Once, run_once};
pub use place::NodeFiles;

use crate::config::{ApplyError, ConfigFiles};
use crate::machine::sandbox::{self, Phase};
use crate::server_client::{ClientError, ServerClient};
use control::{has_request, take_request};
use converge::{Converged, Why, converge};
use jobs::{Begun, JobEnd, Jobs};
use lock::Held;
use pause::Pause;
use place::AGENT;
use spool::Spool;
use voice::Voice;

/// How long the server is asked to wait for something to do.
const WAIT: Duration = Duration::from_secs(50);
/// An answer of nothing that comes sooner is that of a server that goes away.
const TOO_SOON: Duration = Duration::from_secs(1);
/// How long the last reports of a node may take.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// As many jobs run at once.
const MOST_JOBS: usize = 64;

/// Is told what happens, a line at a time.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Why an agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// One runs already.
    #[error("another agent runs on this node{}", .pid.map_or_else(String::new, |pid| format!(", process {pid}")))]
    Running {
        /// Which.
        pid: Option<u32>,
    },
    /// The node was never told who it is.
    #[error("there is no {}: this node was not told who it is", path::BOOTSTRAP)]
    NoBootstrap,
    /// What it was told makes no sense.
    #[error("{} is invalid", path::BOOTSTRAP)]
    InvalidBootstrap(#[source] InvalidBootstrap),
    /// The server's address or pins are none.
    #[error("the server cannot be asked")]
    Server(#[source] ClientError),
    /// A file cannot be read or written.
    #[error("{what}")]
    Files {
        /// What was being done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The service manager does not do as it is told.
    #[error("{0}")]
    Service(String),
    /// A part of it ended early.
    #[error("a part of the agent ended early")]
    Broken(#[source] JoinError),
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Files { what, source }
}

/// Returns an error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Returns what the node was told when it was made; nothing if it was not.
pub fn bootstrap(files: &NodeFiles) -> Result<Option<Bootstrap>, AgentError> {
    let bytes = files.read(path::BOOTSTRAP).map_err(failed("the bootstrap cannot be read"))?;
    bytes.map(|bytes| Bootstrap::parse(&bytes).map_err(AgentError::InvalidBootstrap)).transpose()
}

/// Returns what the node was told when it was made.
fn told(files: &NodeFiles) -> Result<Bootstrap, AgentError> {
    bootstrap(files)?.ok_or(AgentError::NoBootstrap)
}

/// Returns the client that a bootstrap describes.
pub fn client(bootstrap: &Bootstrap) -> Result<ServerClient, ClientError> {
    let pins = Pins {
        fingerprints: bootstrap.fingerprints.clone(),
        spki_pin: bootstrap.spki_pin.clone().unwrap_or_default(),
    };
    Ok(ServerClient::pinned(&bootstrap.server, &pins)?.with_token(bootstrap.token.clone()))
}

/// Runs the agent of the node below `root` until a signal ends it.
///
/// # Errors
/// If another runs, or the node was not told who it is.
pub async fn run(root: PathBuf, tell: Tell) -> Result<(), AgentError> {
    let unheard = failed("signals cannot be heard");
    let mut signals = Signals::new().map_err(unheard)?;
    let files = NodeFiles::below(root);
    let held = take_place(&files)?;
    sandbox::end_with(files.root()).map_err(failed("the agent cannot end with its machine"))?;
    let bootstrap = told(&files)?;
    if bootstrap.mode == Mode::Push {
        tell("the mode of this node is push: there is nothing to do");
        return Ok(());
    }
    let mut agent = Agent::new(files, bootstrap, tell, held)?;
    agent.recover()?;
    loop {
        agent.arm();
        let next_time = agent.next_time(Instant::now());
        let alarm = async {
            match next_time {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            heard = signals.next() => match heard {
                Heard::Stop => {
                    (agent.tell)("ended by a signal");
                    return Ok(());
                }
                Heard::Nudge => agent.look_for_request()?,
            },
            Some(turn) = agent.tasks.join_next() => agent.handle(turn.map_err(AgentError::Broken)?)?,
            () = alarm => {}
        }
    }
}

/// Takes the place of the one agent of the node. A machine that is no node is left as it is.
fn take_place(files: &NodeFiles) -> Result<Held, AgentError> {
    told(files)?;
    let taken = lock::take(files).map_err(failed("the agent's lock cannot be taken"))?;
    taken.map_err(|taken| AgentError::Running { pid: taken.pid })
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    nudge: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(UnixSignal::terminate())?,
            interrupt: signal(UnixSignal::interrupt())?,
            nudge: signal(UnixSignal::user_defined1())?,
        })
    }

    async fn next(&mut self) -> Heard {
        tokio::select! {
            _ = self.terminate.recv() => Heard::Stop,
            _ = self.interrupt.recv() => Heard::Stop,
            _ = self.nudge.recv() => Heard::Nudge,
        }
    }
}

/// What a signal of the operating system means.
enum Heard {
    Stop,
    Nudge,
}

/// What a task of the agent ended with.
enum Turn {
    Heard { asked: Instant, answer: Result<Option<Signal>, ClientError> },
    Delivered { number: u64, answer: Result<(), ClientError> },
    Renewed(Result<RenewedToken, ClientError>),
    Converged(Box<Converged>),
    JobEnded { job: MessageId, end: JobEnd },
}

/// Something that is done by at most one task at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    is_busy: bool,
    pause: Pause,
}

impl Line {
    /// Whether a task may begin; then it has.
    fn begin(&mut self, now: Instant) -> bool {
        let may = !self.is_busy && self.pause.until(now).is_none();
        self.is_busy |= may;
        may
    }

    fn until(&self, now: Instant) -> Option<Instant> {
        self.pause.until(now).filter(|_| !self.is_busy)
    }
}

/// The last signal that was taken down, and of which server: another one counts anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cursor {
    server: String,
    after: MessageId,
}

struct Agent {
    files: NodeFiles,
    bootstrap: Bootstrap,
    client: ServerClient,
    tell: Tell,
    _held: Held,
    tasks: JoinSet<Turn>,
    spool: Spool,
    jobs: Jobs,
    cursor: Option<MessageId>,
    hearing: Line,
    delivering: Line,
    renewing: Line,
    converging: Line,
    /// What is to be converged for, once nothing else is; and what is being converged for.
    // Invariant: what of both was told is on the disk.
    wanted: Option<Why>,
    under_way: Option<Why>,
    due: Option<Instant>,
    renew_at: Option<Instant>,
    /// The node stops for good: until then its last words may be delivered.
    end_by: Option<Instant>,
}

impl Agent {
    fn new(files: NodeFiles, bootstrap: Bootstrap, tell: Tell, held: Held) -> Result<Self, AgentError> {
        let spool = Spool::open(&files).map_err(failed("undelivered reports cannot be read"))?;
        let jobs = Jobs::open(&files).map_err(failed("jobs cannot be read"))?;
        let server = server_key(&bootstrap);
        let cursor: Option<Cursor> = files.json(&cursor_path());
        Ok(Self {
            client: client(&bootstrap).map_err(AgentError::Server)?,
            renew_at: half_life(&bootstrap.token),
            cursor: cursor.filter(|cursor| cursor.server == server).map(|cursor| cursor.after),
            files,
            bootstrap,
            tell,
            _held: held,
            tasks: JoinSet::new(),
            spool,
            jobs,
            hearing: Line::default(),
            delivering: Line::default(),
            renewing: Line::default(),
            converging: Line::default(),
            wanted: None,
            under_way: None,
            due: None,
            end_by: None,
        })
    }

    /// Goes on where an agent before this one ended.
    fn recover(&mut self) -> Result<(), AgentError> {
        (self.tell)(&format!(
            "the agent of {} runs, mode {}",
            self.bootstrap.node,
            self.bootstrap.mode.word()
        ));
        for left in self.jobs.left().map_err(failed("jobs cannot be read"))? {
            // It may have been taken down just before the agent ended.
            if self.cursor.as_ref().is_none_or(|cursor| cursor.sequence() < left.job.sequence()) {
                self.take_down(&left.job)?;
            }
            let job = left.job.clone();
            match jobs::again(left) {
                Some(begun) => self.begin(begun)?,
                None => {
                    self.keep(&jobs::lost(&job))?;
                    self.jobs.forget(&job);
                }
            }
        }
        if let Some(left) = wanted::left(&self.files) {
            self.want(left)?;
        }
        match self.bootstrap.mode {
            Mode::Pull => self.want(Vec::new())?,
            Mode::Hybrid | Mode::Push => {
                if self.is_signalled() {
                    let spec = ConfigFiles::below(self.files.root()).spec();
                    self.set_due(spec.as_ref().and_then(converge::interval));
                }
            }
        }
        self.look_for_request()
    }

    /// Whether a hybrid node was ever told to converge: from then on it heals by itself.
    fn is_signalled(&self) -> bool {
        self.files.read(&signalled_path()).is_ok_and(|marker| marker.is_some())
    }

    fn look_for_request(&mut self) -> Result<(), AgentError> {
        if has_request(&self.files) {
            (self.tell)("told to converge");
            self.want(Vec::new())?;
            // An agent that ends before this finds it again, and converges once more.
            take_request(&self.files);
        }
        Ok(())
    }

    fn want(&mut self, ids: Vec<MessageId>) -> Result<(), AgentError> {
        let mut all = match self.wanted.take() {
            Some(Why::Told(before)) => before,
            Some(Why::Schedule) | None => Vec::new(),
        };
        all.extend(ids);
        self.wanted = Some(Why::Told(all));
        // Somebody waits: what failed before may work now.
        self.converging.pause.succeed();
        self.keep_wanted()
    }

    fn keep_wanted(&self) -> Result<(), AgentError> {
        wanted::keep(&self.files, self.under_way.as_ref(), self.wanted.as_ref())
            .map_err(failed("what was asked for cannot be kept"))
    }

    /// Starts whatever may start now.
    fn arm(&mut self) {
        let now = Instant::now();
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            self.wanted.get_or_insert(Why::Schedule);
        }
        let is_ending = self.end_by.is_some();
        if !is_ending && self.hearing.begin(now) {
            self.hear();
        }
        if !self.spool.is_empty() && self.delivering.begin(now) {
            self.deliver();
        }
        if self.renew_at.is_some_and(|at| at <= now) && self.renewing.begin(now) {
            let (client, node) = (self.client.clone(), self.bootstrap.node.clone());
            self.tasks.spawn(async move { Turn::Renewed(client.renew(&node).await) });
        }
        if !is_ending
            && self.wanted.is_some()
            && self.converging.begin(now)
            && let Some(why) = self.wanted.take()
        {
            self.converge(why);
        }
        if self.end_by.is_some_and(|end| end <= now || self.spool.is_empty()) {
            self.end_by = None;
            self.power_off();
        }
    }

    /// Returns when something may start next.
    fn next_time(&self, now: Instant) -> Option<Instant> {
        let lines = [
            self.hearing.until(now),
            self.delivering.until(now).filter(|_| !self.spool.is_empty()),
            self.renewing.until(now).or(self.renew_at).filter(|_| !self.renewing.is_busy),
            self.converging.until(now).filter(|_| self.wanted.is_some()),
            self.due,
            self.end_by,
        ];
        lines.into_iter().flatten().min()
    }

    fn hear(&mut self) {
        let (client, node, after) = (self.client.clone(), self.bootstrap.node.clone(), self.cursor.clone());
        self.tasks.spawn(async move {
            let asked = Instant::now();
            Turn::Heard { asked, answer: client.next(&node, after.as_ref(), WAIT).await }
        });
    }

    fn deliver(&mut self) {
        let Some((number, report)) = self.spool.first() else {
            self.delivering.is_busy = false;
            return;
        };
        let (client, node) = (self.client.clone(), self.bootstrap.node.clone());
        let root = self.files.root().to_owned();
        self.tasks.spawn(async move {
            let answer = match suffer(&root).await {
                Some(why) => Err(ClientError::Unreachable { server: client.server(), why }),
                None => client.report(&node, &report).await,
            };
            Turn::Delivered { number, answer }
        });
    }

    fn converge(&mut self, why: Why) {
        self.due = None;
        self.under_way = Some(why.clone());
        if matches!(why, Why::Told(_)) && self.bootstrap.mode == Mode::Hybrid && !self.is_signalled() {
            // Without it the node waits for the next signal after a restart.
            self.files.write(&signalled_path(), b"", 0o600).ok();
        }
        let work = converge(
            self.files.clone(),
            self.bootstrap.clone(),
            self.client.clone(),
            why,
            Patience { attempts: 1, ..Patience::default() },
            Arc::clone(&self.tell),
        );
        self.tasks.spawn(async move { Turn::Converged(Box::new(work.await)) });
    }

    fn handle(&mut self, turn: Turn) -> Result<(), AgentError> {
        match turn {
            Turn::Heard { asked, answer } => self.heard(asked, answer),
            Turn::Delivered { number, answer } => {
                self.delivered(number, answer);
                Ok(())
            }
            Turn::Renewed(answer) => self.renewed(answer),
            Turn::Converged(converged) => self.converged(*converged),
            Turn::JobEnded { job, end } => {
                let report = self.jobs.report(&job, end);
                self.keep(&report)?;
                self.jobs.forget(&job);
                Ok(())
            }
        }
    }

    fn heard(
        &mut self,
        asked: Instant,
        answer: Result<Option<Signal>, ClientError>,
    ) -> Result<(), AgentError> {
        self.hearing.is_busy = false;
        match answer {
            Ok(Some(signal)) => {
                self.hearing.pause.succeed();
                self.obey(signal)
            }
            Ok(None) => {
                self.hearing.pause.succeed();
                if asked.elapsed() < TOO_SOON {
                    self.hearing.pause.rest();
                }
                Ok(())
            }
            Err(error) => {
                self.hearing.pause.fail(error.retry_after());
                (self.tell)(&format!("nothing heard: {error}"));
                Ok(())
            }
        }
    }

    /// Does what a signal says; one that was taken down is not done again.
    fn obey(&mut self, signal: Signal) -> Result<(), AgentError> {
        if self.cursor.as_ref().is_some_and(|cursor| cursor.sequence() >= signal.id.sequence()) {
            self.hearing.pause.rest();
            return Ok(());
        }
        (self.tell)(&format!("{}: {}", signal.id, signal.kind.as_str()));
        match signal.kind {
            SignalKind::Job => return self.obey_order(&signal),
            SignalKind::Converge => self.want(vec![signal.id.clone()])?,
            SignalKind::Link => self.link(&signal)?,
            SignalKind::Terminate => {
                let report = NodeReport::new(ReportKind::Terminated, ReportStatus::Complete);
                self.keep(&NodeReport { id: Some(signal.id.clone()), ..report })?;
                self.end_by = Some(Instant::now() + LAST_WORDS);
            }
        }
        self.take_down(&signal.id)
    }

    fn link(&mut self, signal: &Signal) -> Result<(), AgentError> {
        let known = serde_json::from_value::<Peers>(signal.payload.clone())
            .map_err(io::Error::other)
            .and_then(|payload| know_peers(&self.files, payload));
        let mut report = NodeReport::new(ReportKind::Link, ReportStatus::Complete);
        match known {
            Ok(true) => {
                report.changed = 1;
                (self.tell)("peers changed");
            }
            Ok(false) => {}
            Err(error) => {
                let why = format!("peers are not written: {error}");
                (self.tell)(&format!("{}: {why}", signal.id));
                (report.status, report.error) = (ReportStatus::Failed, Some(why));
            }
        }
        // Whoever told it waits for this.
        self.keep(&NodeReport { id: Some(signal.id.clone()), ..report })
    }

    fn obey_order(&mut self, signal: &Signal) -> Result<(), AgentError> {
        match serde_json::from_value(signal.payload.clone()) {
            Ok(JobOrder::Run { job, argv, timeout, idempotent, live, input }) => {
                if self.jobs.knows(&job) {
                    return self.take_down(&signal.id);
                }
                let begun = Begun { job, argv, timeout, idempotent, live, input, tries: 1 };
                self.begin_taking_down(begun, &signal.id)
            }
            Ok(JobOrder::Cancel { job }) => {
                if !self.jobs.cancel(&job) {
                    self.keep(&jobs::never_begun(&job))?;
                }
                self.take_down(&signal.id)
            }
            Err(error) => {
                (self.tell)(&format!("{}: not understood: {error}", signal.id));
                self.take_down(&signal.id)
            }
        }
    }

    fn begin_taking_down(&mut self, begun: Begun, signal: &MessageId) -> Result<(), AgentError> {
        if self.jobs.running() >= MOST_JOBS {
            self.take_down(signal)?;
            let error = Some(format!("{MOST_JOBS} jobs run on this node already"));
            let report = NodeReport::new(ReportKind::Job, ReportStatus::Failed);
            return self.keep(&NodeReport { id: Some(begun.job), error, ..report });
        }
        // The job first: an agent that ends between the two finds it, and does not begin it twice.
        let Some(cancel) = self.jobs.begin(&begun).map_err(failed("a job cannot be taken down"))? else {
            return self.take_down(signal);
        };
        self.take_down(signal)?;
        self.keep(&jobs::running(&begun.job))?;
        self.start(&begun, cancel);
        Ok(())
    }

    fn begin(&mut self, begun: Begun) -> Result<(), AgentError> {
        let cancel = self.jobs.begin(&begun).map_err(failed("a job cannot be taken down"))?;
        if let Some(cancel) = cancel {
            self.start(&begun, cancel);
        }
        Ok(())
    }

    fn start(&mut self, begun: &Begun, cancel: stead_runner::operation::Cancel) {
        let voice = Voice { client: self.client.clone(), node: self.bootstrap.node.clone() };
        let (job, work) = (begun.job.clone(), self.jobs.work(begun, cancel, voice));
        self.tasks.spawn(async move { Turn::JobEnded { job, end: work.await } });
    }

    /// Takes down which signal was the last: it does not come again.
    fn take_down(&mut self, signal: &MessageId) -> Result<(), AgentError> {
        let cursor = Cursor { server: server_key(&self.bootstrap), after: signal.clone() };
        self.files.write_json(&cursor_path(), &cursor).map_err(failed("a signal cannot be taken down"))?;
        self.cursor = Some(cursor.after);
        Ok(())
    }

    /// Keeps a report until the server has taken it.
    fn keep(&mut self, report: &NodeReport) -> Result<(), AgentError> {
        let given_up = self.spool.push(report).map_err(failed("a report cannot be kept"))?;
        if given_up > 0 {
            (self.tell)(&format!("{given_up} undelivered reports were given up: there are too many"));
        }
        Ok(())
    }

    fn delivered(&mut self, number: u64, answer: Result<(), ClientError>) {
        self.delivering.is_busy = false;
        match answer {
            Ok(()) => {
                self.spool.done(number);
                self.delivering.pause.succeed();
            }
            Err(error) if is_final(&error) => {
                (self.tell)(&format!("a report is not taken and given up: {error}"));
                self.spool.done(number);
            }
            Err(error) => {
                self.delivering.pause.fail(error.retry_after());
                (self.tell)(&format!("a report is not delivered yet: {error}"));
            }
        }
    }

    fn renewed(&mut self, answer: Result<RenewedToken, ClientError>) -> Result<(), AgentError> {
        self.renewing.is_busy = false;
        let renewed = match answer {
            Ok(renewed) => renewed,
            Err(error) => {
                self.renewing.pause.fail(error.retry_after());
                (self.tell)(&format!("the token is not renewed yet: {error}"));
                return Ok(());
            }
        };
        self.renewing.pause.succeed();
        let mut next = self.bootstrap.clone();
        next.token = Secret::new(renewed.token);
        next.fingerprints = renewed.pins.fingerprints;
        next.spki_pin = Some(renewed.pins.spki_pin).filter(|pin| !pin.is_empty());
        self.client = client(&next).map_err(AgentError::Server)?;
        self.renew_at = half_life(&next.token);
        // Somebody may have told the node something else meanwhile: that counts.
        if bootstrap(&self.files)?.is_some_and(|now| now.token == self.bootstrap.token) {
            self.files
                .write(path::BOOTSTRAP, next.to_json().as_bytes(), 0o600)
                .map_err(failed("the new token cannot be kept"))?;
        }
        self.bootstrap = next;
        if let Some(cursor) = self.cursor.clone() {
            self.take_down(&cursor)?;
        }
        (self.tell)("the token is renewed");
        Ok(())
    }

    fn converged(&mut self, converged: Converged) -> Result<(), AgentError> {
        self.converging.is_busy = false;
        if let Some((_, Err(ApplyError::Crashed(_)))) = &converged.applied {
            die();
        }
        self.under_way = None;
        for report in converged.reports() {
            let how = if report.status == ReportStatus::Complete { "is" } else { "is not" };
            let why = report.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            (self.tell)(&format!("the node {how} what its spec wants, {} changed{why}", report.changed));
            self.keep(&report)?;
        }
        self.set_due(converged.interval());
        let asked = converged.away().and_then(ClientError::retry_after);
        if converged.is_open() {
            self.converging.pause.fail(asked);
            let Why::Told(ids) = converged.why else { return self.keep_wanted() };
            let newer = match self.wanted.take() {
                Some(Why::Told(newer)) => newer,
                Some(Why::Schedule) | None => Vec::new(),
            };
            self.wanted = Some(Why::Told([ids, newer].concat()));
        } else {
            self.converging.pause.succeed();
        }
        // After its reports: what they do not tell of is done again.
        self.keep_wanted()
    }

    fn set_due(&mut self, interval: Option<u64>) {
        self.due = interval.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    }

    /// Stops the machine.
    fn power_off(&self) {
        (self.tell)("the node stops for good");
        if let Err(error) = control::power_off(&self.files) {
            (self.tell)(&format!("the machine cannot be stopped: {error}"));
        }
    }
}

/// Whether a report will never be taken. Tokens are renewed, so one that is refused for its token waits.
fn is_final(error: &ClientError) -> bool {
    match error {
        ClientError::Refused { status, .. } => !error.may_pass() && !matches!(status, 401 | 403 | 408),
        ClientError::Unreachable { .. }
        | ClientError::Untrusted { .. }
        | ClientError::Answer(_)
        | ClientError::Invalid(_) => false,
    }
}

/// Suffers what a sandbox is to suffer when it reports; returns why the report does not get through.
async fn suffer(root: &std::path::Path) -> Option<String> {
    let struck = sandbox::strike(root, Phase::Report)?;
    tokio::time::sleep(struck.delay).await;
    if struck.crash {
        die();
    }
    struck.error
}

/// Ends this process as a crash does.
fn die() {
    // Nothing comes after it.
    kill_process(getpid(), ProcessSignal::KILL).ok();
}

fn cursor_path() -> String {
    format!("{AGENT}/cursor.json")
}

fn signalled_path() -> String {
    format!("{AGENT}/signalled")
}

/// Returns what tells one server from another: one of the same key at another port counts for itself.
fn server_key(bootstrap: &Bootstrap) -> String {
    let pin = bootstrap.spki_pin.as_ref().or_else(|| bootstrap.fingerprints.first());
    format!("{} {}", bootstrap.server, pin.map_or("", String::as_str))
}

/// Returns when half of a token's life is over; none for one that does not end.
fn half_life(token: &Secret) -> Option<Instant> {
    let claims = token::inspect(token.expose()).ok()?;
    let half = claims.iat + (claims.exp()? - claims.iat) / 2;
    let left = half.saturating_sub(clock::now().as_micros() / 1_000_000);
    Some(Instant::now() + Duration::from_secs(u64::try_from(left).unwrap_or_default()))
}
