//! Jobs: journaled before they start, run in a group of their own, ended on time or on request.
//!
//! ```text
//!   order ──▶ jobs/ID.json on the disk ──▶ process ──▶ report on the disk ──▶ jobs/ID.json gone
//!                    └── an agent that ended here does not know whether it ran: lost, or again if that does no harm
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stead_model::MessageId;
use stead_model::event::Stream;
use stead_model::node::wire::{JobOutcome, NodeReport, ReportKind, ReportStatus, STREAM_BYTES};
use stead_runner::clock;
use stead_runner::operation::{Cancel, Stop, Stopper};

use super::place::{self, AGENT, NodeFiles};
use super::voice::{Lines, Voice};
use crate::command::process::{self, Capture, Start};
use crate::command::program;
use crate::supervisor::tree::Orphans;

/// The variable by which what a job starts is known. Who removes it from what is started lets that outlive the job.
pub(crate) const MARK: &str = "STEAD_JOB";
/// The name by which jobs start the program of the agent itself, wherever it is.
const OWN: &str = "stead";
/// How long a job may take to end once it is asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How often a job that does no harm is begun.
const MOST_TRIES: u32 = 3;
const FOLDER: &str = "jobs";

/// A job that was begun, as it is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) job: MessageId,
    pub(super) argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) timeout: Option<u64>,
    pub(super) idempotent: bool,
    /// Whether what it writes is told while it runs.
    #[serde(default)]
    pub(super) live: bool,
    /// Whether the server has something for it to read.
    #[serde(default)]
    pub(super) input: bool,
    /// How often it was begun.
    pub(super) tries: u32,
}

/// The jobs of a node's agent.
#[derive(Debug)]
pub(super) struct Jobs {
    directory: PathBuf,
    root: PathBuf,
    running: BTreeMap<MessageId, Running>,
}

#[derive(Debug)]
struct Running {
    stopper: Stopper,
    cancelled: bool,
}

impl Jobs {
    pub(super) fn open(files: &NodeFiles) -> io::Result<Self> {
        let directory = files.directory(&format!("{AGENT}/{FOLDER}"))?;
        Ok(Self { directory, root: files.root().to_owned(), running: BTreeMap::new() })
    }

    /// Returns the jobs that an agent before this one has begun and not ended, by id; what still runs of them is ended.
    pub(super) fn left(&self) -> io::Result<Vec<Begun>> {
        let mut left: Vec<Begun> = Vec::new();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let bytes = place::read(&entry.path()).ok().flatten();
            left.extend(bytes.and_then(|bytes| serde_json::from_slice::<Begun>(&bytes).ok()));
        }
        left.sort_by_key(|begun| begun.job.sequence());
        for begun in &left {
            Orphans { session: None, marks: &[(MARK, &self.mark(&begun.job))] }.kill();
        }
        Ok(left)
    }

    /// Takes down that a job begins; no if it was begun already. Nothing has run when this returns.
    pub(super) fn begin(&mut self, begun: &Begun) -> io::Result<Option<Cancel>> {
        if self.running.contains_key(&begun.job) {
            return Ok(None);
        }
        place::write(&self.file(&begun.job), &serde_json::to_vec(begun)?, 0o600)?;
        let (stopper, cancel) = Cancel::signal();
        self.running.insert(begun.job.clone(), Running { stopper, cancelled: false });
        Ok(Some(cancel))
    }

    /// Returns how many run.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether a job runs or is taken down.
    pub(super) fn knows(&self, job: &MessageId) -> bool {
        self.running.contains_key(job) || self.file(job).exists()
    }

    /// Asks a job to end; no if it does not run.
    pub(super) fn cancel(&mut self, job: &MessageId) -> bool {
        let Some(running) = self.running.get_mut(job) else { return false };
        running.cancelled = true;
        running.stopper.stop(Stop::Ask);
        true
    }

    /// Returns what to report of a job that ended.
    pub(super) fn report(&mut self, job: &MessageId, ended: JobEnd) -> NodeReport {
        let cancelled = self.running.remove(job).is_some_and(|running| running.cancelled);
        ended.report(job, cancelled)
    }

    /// Forgets a job whose end is on the disk.
    pub(super) fn forget(&mut self, job: &MessageId) {
        // One that stays is lost at the next start, which the server does not believe: it knows the end.
        place::remove(&self.file(job)).ok();
    }

    fn file(&self, job: &MessageId) -> PathBuf {
        self.directory.join(format!("{job}.json"))
    }

    fn mark(&self, job: &MessageId) -> String {
        format!("{}:{job}", self.root.display())
    }

    /// Returns the work of a job; dropping it kills everything it started.
    pub(super) fn work(
        &self,
        begun: &Begun,
        cancel: Cancel,
        voice: Voice,
    ) -> impl Future<Output = JobEnd> + Send + use<> {
        let env = BTreeMap::from([(MARK.to_owned(), self.mark(&begun.job))]);
        work(begun.clone(), self.root.clone(), env, cancel, voice)
    }
}

/// Returns whether a job that was left may begin again.
pub(super) fn again(left: Begun) -> Option<Begun> {
    (left.idempotent && left.tries < MOST_TRIES).then(|| Begun { tries: left.tries + 1, ..left })
}

/// Returns the report of a job of which nobody knows whether it ran.
pub(super) fn lost(job: &MessageId) -> NodeReport {
    NodeReport {
        id: Some(job.clone()),
        error: Some("the agent ended while it ran: nobody knows how far it came".to_owned()),
        outcome: Some(JobOutcome::Lost),
        ..NodeReport::new(ReportKind::Job, ReportStatus::Failed)
    }
}

/// Returns the report of a job that was ended before it began.
pub(super) fn never_begun(job: &MessageId) -> NodeReport {
    NodeReport {
        id: Some(job.clone()),
        error: Some("it was cancelled before it began".to_owned()),
        outcome: Some(JobOutcome::Cancelled),
        ..NodeReport::new(ReportKind::Job, ReportStatus::Failed)
    }
}

/// Returns the report that a job runs.
pub(super) fn running(job: &MessageId) -> NodeReport {
    NodeReport { id: Some(job.clone()), ..NodeReport::new(ReportKind::Job, ReportStatus::Running) }
}

/// How a job ended.
#[derive(Debug, Default)]
pub(super) struct JobEnd {
    rc: Option<i32>,
    error: Option<String>,
    stdout: Kept,
    stderr: Kept,
    seconds: f64,
}

impl JobEnd {
    fn report(self, job: &MessageId, cancelled: bool) -> NodeReport {
        let is_good = self.rc == Some(0) && self.error.is_none() && !cancelled;
        let status = if is_good { ReportStatus::Complete } else { ReportStatus::Failed };
        let truncated = self.stdout.is_cut || self.stderr.is_cut;
        NodeReport {
            id: Some(job.clone()),
            rc: self.rc,
            error: if cancelled { Some("it was cancelled".to_owned()) } else { self.error },
            stdout: self.stdout.into_text(),
            stderr: self.stderr.into_text(),
            truncated,
            duration_seconds: self.seconds,
            outcome: cancelled.then_some(JobOutcome::Cancelled),
            ..NodeReport::new(ReportKind::Job, status)
        }
    }
}

/// The first bytes of a stream.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let room = STREAM_BYTES - self.bytes.len();
        self.is_cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn into_text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

async fn work(
    begun: Begun,
    root: PathBuf,
    env: BTreeMap<String, String>,
    cancel: Cancel,
    voice: Voice,
) -> JobEnd {
    let started = clock::instant();
    let mut end = JobEnd::default();
    let path = std::env::var_os("PATH");
    let (name, args) = begun.argv.split_first().map_or(("", &[][..]), |(name, args)| (name.as_str(), args));
    let own = if name == OWN { std::env::current_exe().ok() } else { None };
    let file = match own.map_or_else(|| program::find(name, &root, path.as_deref()), Ok) {
        Ok(file) => file,
        Err(error) => {
            return JobEnd { rc: Some(error.code), error: Some(error.message), ..end };
        }
    };
    let stdin = match begun.input {
        true => tokio::select! {
            read = voice.input(&begun.job) => match read {
                Ok(input) => Some(input),
                Err(error) => return JobEnd { error: Some(format!("it has nothing to read: {error}")), ..end },
            },
            () = cancel.at_least(Stop::Ask) => return end,
        },
        false => None,
    };
    let start = Start {
        program: file,
        name: name.to_owned(),
        args: args.iter().map(Into::into).collect(),
        cwd: root,
        hidden_env: Vec::new(),
        env,
        stdin,
        capture: Capture::Stream,
    };
    let (lines, heard) = Lines::channel();
    let (stdout, stderr) = (&mut end.stdout, &mut end.stderr);
    let mut sink = |stream: Stream, bytes: &[u8]| match stream {
        Stream::Stdout => {
            stdout.push(bytes);
            if begun.live {
                lines.show(&stdout.bytes);
            }
        }
        Stream::Stderr => stderr.push(bytes),
    };
    let ended = tokio::select! {
        ended = run(start, begun.timeout, &cancel, &mut sink) => ended,
        never = voice.tell(&begun.job, heard), if begun.live => match never {},
    };
    end.seconds = started.elapsed().as_secs_f64();
    match ended {
        Ok((ended, timed_out)) => {
            end.rc = ended.exit_code.or_else(|| ended.signal.map(|signal| 128 + signal));
            let seconds = begun.timeout.unwrap_or_default();
            end.error = timed_out.then(|| format!("it took longer than {seconds} s"));
        }
        Err(error) => end.error = Some(format!("it cannot be started: {error}")),
    }
    end
}

/// Runs a process, for a time at most; returns also whether it took longer.
async fn run(
    start: Start,
    timeout: Option<u64>,
    cancel: &Cancel,
    sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
) -> io::Result<(process::Ended, bool)> {
    let (stopper, stop) = Cancel::signal();
    let running = process::run(start, &stop, GRACE, sink);
    tokio::pin!(running);
    let late = async {
        match timeout {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    let timed_out = tokio::select! {
        ended = &mut running => return ended.map(|ended| (ended, false)),
        () = late => true,
        () = cancel.at_least(Stop::Ask) => false,
    };
    stopper.stop(Stop::Ask);
    running.await.map(|ended| (ended, timed_out && ended.stopped))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stead_model::NodeName;

    use super::*;
    use crate::server_client::ServerClient;

    fn begun(line: &str) -> Begun {
        Begun {
            job: MessageId::job(7),
            argv: ["sh", "-c", line].map(str::to_owned).to_vec(),
            timeout: None,
            idempotent: false,
            live: false,
            input: false,
            tries: 1,
        }
    }

    fn voice() -> Voice {
        let client = ServerClient::socket("/nowhere");
        Voice { client, node: NodeName::parse("edge").unwrap() }
    }

    fn jobs(root: &Path) -> Jobs {
        Jobs::open(&NodeFiles::below(root)).unwrap()
    }

    async fn ended(jobs: &mut Jobs, begun: &Begun) -> NodeReport {
        let cancel = jobs.begin(begun).unwrap().unwrap();
        let end = jobs.work(begun, cancel, voice()).await;
        jobs.report(&begun.job, end)
    }

    /// At most once: a job that cannot be taken down does not begin, and only what has begun can run.
    #[test]
    fn a_job_that_cannot_be_journaled_does_not_begin() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let job = begun("exit 0");
        // No file takes the place of a directory, whoever writes it.
        fs::create_dir_all(jobs.file(&job.job).join("x")).unwrap();
        assert!(jobs.begin(&job).is_err());
        assert_eq!(jobs.running(), 0);
        fs::remove_dir_all(jobs.file(&job.job)).unwrap();
        assert!(jobs.begin(&job).unwrap().is_some());
        assert!(jobs.file(&job.job).is_file(), "known before it runs");
    }

    #[tokio::test]
    async fn output_is_cut_at_a_mebibyte_and_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let report =
            ended(&mut jobs, &begun("head -c 1048577 /dev/zero | tr '\\0' x; echo e >&2; exit 3")).await;
        assert_eq!((report.status, report.rc), (ReportStatus::Failed, Some(3)));
        assert_eq!((report.stdout.len(), report.stderr.as_str(), report.truncated), (1_048_576, "e\n", true));
        let report = ended(&mut jobs, &begun("pwd; echo $STEAD_JOB")).await;
        assert_eq!((report.status, report.rc, report.truncated), (ReportStatus::Complete, Some(0), false));
        assert!(report.stdout.starts_with(&dir.path().display().to_string()));
    }

    #[tokio::test]
    async fn a_job_ends_on_time_or_on_request_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let long = Begun { timeout: Some(1), ..begun("sleep 600 & wait") };
        let report = ended(&mut jobs, &long).await;
        assert_eq!((report.status, report.outcome), (ReportStatus::Failed, None));
        assert!(report.error.unwrap().contains("longer than 1 s"));

        let long = begun("sleep 600 & wait");
        let cancel = jobs.begin(&long).unwrap().unwrap();
        assert_eq!(jobs.begin(&long).unwrap().map(drop), None, "begun once");
        let work = jobs.work(&long, cancel, voice());
        assert!(jobs.cancel(&long.job));
        let report = jobs.report(&long.job, work.await);
        assert_eq!(report.outcome, Some(JobOutcome::Cancelled));
        assert!(!jobs.cancel(&long.job));
        assert_eq!(
            Orphans { session: None, marks: &[(MARK, &jobs.mark(&long.job))] }.kill(),
            0,
            "nothing is left"
        );
    }

    #[tokio::test]
    async fn what_was_begun_and_not_ended_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = jobs(dir.path());
        let one = begun("true");
        assert!(!first.knows(&one.job));
        assert!(first.begin(&one).unwrap().is_some());
        let mut next = jobs(dir.path());
        assert!(next.knows(&one.job));
        assert_eq!(next.left().unwrap(), std::slice::from_ref(&one));
        assert_eq!(again(one.clone()), None);
        let harmless = Begun { idempotent: true, ..one.clone() };
        assert_eq!(again(harmless.clone()).map(|begun| begun.tries), Some(2));
        assert_eq!(again(Begun { tries: MOST_TRIES, ..harmless }), None);
        next.forget(&one.job);
        assert!(next.left().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = jobs(dir.path());
        let report = ended(&mut jobs, &Begun { argv: vec!["no-such-program".to_owned()], ..begun("") }).await;
        assert_eq!((report.rc, report.status), (Some(127), ReportStatus::Failed));
        assert!(report.error.unwrap().contains("no-such-program"));
    }
}
