//! One operation in a session: its context made from what the driver sent, carried out, masked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_model::event::{Mode, Stream};
use stead_model::executor::{OpRequest, OpResult, Pipe};
use stead_model::{ErrorClass, HostName, RunId, TaskName};
use stead_runner::operate::{operate_safely, to_result};
use stead_runner::operation::{
    Cancel, OpContext, OpError, Output, Params, Predicted, Registry, Stop, UndoStore,
};
use stead_runner::redact::{MaskingStream, Redactor};
use tokio::sync::{mpsc, watch};

use super::files::RemoteFiles;
use super::host::Event;
use super::leftovers::{self, Attempt};
use super::output::Kept;
use super::shipped::Shipped;

/// What an operation gets from its session.
pub(super) struct Surroundings {
    pub(super) registry: Registry,
    pub(super) run: RunId,
    /// The session's directory, by which its processes are known.
    pub(super) directory: PathBuf,
    /// Where relative paths start: the account's home.
    pub(super) account_home: PathBuf,
    pub(super) root: Option<PathBuf>,
    pub(super) predicted: Predicted,
    pub(super) events: mpsc::UnboundedSender<Event>,
}

/// Carries out an operation; returns how it went, as it travels.
pub(super) async fn carry_out(
    around: Surroundings,
    id: u32,
    request: OpRequest,
    output: Kept,
    stop: Arc<watch::Sender<Stop>>,
) -> OpResult {
    let attempt = Attempt::new(&request.env);
    let (directory, grace) = (around.directory.clone(), Duration::from_millis(request.grace_ms));
    let redactor = match Redactor::new(&request.secrets) {
        Ok(redactor) => redactor,
        Err(error) => return to_result(Err(OpError::invalid(error.to_string()))),
    };
    let masks = Masks::new(&redactor, output.clone());
    let timeout = request.timeout_ms.map(Duration::from_millis);
    let mut too_late = false;
    let ran = {
        let mut work = Box::pin(run(around, id, request, masks.output(), Cancel::new(stop.subscribe())));
        loop {
            tokio::select! {
                ran = &mut work => break ran,
                () = sleep_if(timeout), if !too_late => {
                    too_late = true;
                    stop.send_if_modified(|now| {
                        let sooner = *now < Stop::Ask;
                        if sooner { *now = Stop::Ask }
                        sooner
                    });
                }
            }
        }
    };
    masks.finish();
    if *stop.borrow() > Stop::No {
        // What left the command's process group is still known by its marks.
        let attempts = BTreeSet::from([attempt]);
        let ending = tokio::task::spawn_blocking(move || leftovers::end(&directory, &attempts, grace));
        // A panic there has left nothing to be undone here.
        drop(ending.await);
    }
    let mut result = to_result(ran);
    if too_late && matches!(result.status, stead_model::executor::OpStatus::Cancelled) {
        let after = stead_model::duration::to_exact(timeout.unwrap_or_default());
        let timed_out = OpError::new(ErrorClass::Timeout, format!("timed out after {after}"));
        result = OpResult { changed: result.changed, data: result.data, ..to_result(Err(timed_out)) };
    }
    if let Some(lost) = output.failure() {
        let error = OpError::operation(format!("its output could not be kept: {lost}"));
        result = OpResult { changed: result.changed, data: result.data, ..to_result(Err(error)) };
    }
    mask(&redactor, &mut result);
    result
}

async fn sleep_if(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

async fn run(
    around: Surroundings,
    id: u32,
    request: OpRequest,
    output: Output,
    cancel: Cancel,
) -> Result<stead_runner::operate::Ran, OpError> {
    let Some(entry) = around.registry.get(request.operation.as_str()) else {
        return Err(OpError::invalid(format!(
            "the executor does not know operation `{}`",
            request.operation
        )));
    };
    let mark = |name: &str| request.env.get(name).map(String::as_str).unwrap_or_default();
    let bad = |what: &str| OpError::invalid(format!("the driver sent no valid {what}"));
    // The session's directory is `BASE/run/RUN`.
    let base = around.directory.ancestors().nth(2).map(PathBuf::from);
    let undo = UndoStore::new(base.into_iter().collect(), around.run.clone());
    let context = OpContext {
        undo: undo.wanted(request.undo && !request.check),
        run_id: Some(around.run),
        parents: Arc::default(),
        bundle: None,
        task: TaskName::parse(mark("STEAD_TASK")).map_err(|_| bad("task"))?,
        host: HostName::parse(mark("STEAD_HOST")).map_err(|_| bad("host"))?,
        attempt: mark("STEAD_ATTEMPT").parse().map_err(|_| bad("attempt"))?,
        base_dir: around.account_home,
        files: Arc::new(RemoteFiles::new(id, request.sources, around.events)),
        root: around.root,
        hidden_env: request.hidden_env.into(),
        grace: Duration::from_millis(request.grace_ms),
        // Its time is kept here, by who carries it out.
        deadline: None,
        restarted: request.restarted,
        predicted: around.predicted,
        output,
        cancel,
        scope: Arc::new(Shipped::new(request.names, request.answers)),
    };
    let mode = if request.check { Mode::DryRun } else { Mode::Run };
    let mut ran = operate_safely(entry, &context, Params::new(request.params), mode, request.undo).await?;
    if !request.diff {
        ran.diff = None;
    }
    Ok(ran)
}

/// Masks what leaves the target. What undoes the operation stays whole: masked it would restore asterisks.
fn mask(redactor: &Redactor, result: &mut OpResult) {
    for text in [&mut result.error, &mut result.reason].into_iter().flatten() {
        *text = redactor.redact_text(text).into_owned();
    }
    for value in [&mut result.data, &mut result.diff].into_iter().flatten() {
        redactor.redact_value(value);
    }
}

/// Both streams of an operation on their way out.
struct Masks {
    streams: Arc<Mutex<BTreeMap<Pipe, MaskingStream>>>,
    kept: Kept,
}

impl Masks {
    fn new(redactor: &Redactor, kept: Kept) -> Self {
        let streams = [Pipe::Stdout, Pipe::Stderr].map(|pipe| (pipe, redactor.stream()));
        Self { streams: Arc::new(Mutex::new(BTreeMap::from(streams))), kept }
    }

    fn output(&self) -> Output {
        let (streams, kept) = (Arc::clone(&self.streams), self.kept.clone());
        Output::new(move |stream, bytes| {
            let pipe = match stream {
                Stream::Stdout => Pipe::Stdout,
                Stream::Stderr => Pipe::Stderr,
            };
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(mask) = streams.get_mut(&pipe) {
                kept.push(pipe, &mask.push(bytes));
            }
        })
    }

    fn finish(&self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for (pipe, mask) in streams.iter_mut() {
            self.kept.push(*pipe, &mask.finish());
        }
    }
}
