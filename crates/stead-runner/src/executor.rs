//! Making one attempt: parameters rendered, operation carried out, verdict over its result.
//!
//! The executor answers the dispatcher's commands and knows nothing of order, retries or limits. What
//! leaves it is already masked.

pub(crate) mod facts;
pub mod operate;
mod output;
mod publish;
mod render;
mod row;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use serde_json::Map;
use stead_engine::expr::{self, HostScope, Names, Results, Scope, Verdict};
use stead_engine::run::{Attempt, PartEnd};
use stead_model::event::{EventKind, Mode, Prediction, RowResult};
use stead_model::inventory::{ExecutorMode, Host};
use stead_model::plan::{Op, Part, Plan, Section, TaskIndex, Undo};
use stead_model::report::Warning;
use stead_model::transport::TransportSpec;
use stead_model::{Effect, ErrorClass, HostName, RunId, RunStatus, Status};
use tokio::sync::{mpsc, oneshot};

use crate::author;
use crate::context::{OpOutput, TaskContext};
use crate::files::LocalFiles;
use crate::function::{Ended, Failure, Functions, TaskFunction, TaskFuture};
use crate::lock::RunLocks;
use crate::operation::{
    Cancel, Entry, OpContext, OpError, Output, Params, Predicted, Registry, Stop, UndoStore,
};
use crate::record::Recording;
use crate::redact::Redactor;
use crate::remote::{self, HostPool, Lost, Sending};

use operate::Ran;
use output::AttemptOutput;
pub(crate) use output::OpenStreams;
use render::{RenderError, render};
use row::{failed, is_failed_check, join, not_checkable, predicted, timed_out};

/// What the executor tells the dispatcher while an attempt goes on.
#[derive(Debug)]
pub(crate) enum Message {
    /// For the run.
    Input(stead_engine::run::Input),
    /// Output was written; the bytes are there if somebody watches.
    Log(EventKind, Option<Vec<u8>>),
    /// Facts of a host were gathered; they are used once the journal has them.
    Facts {
        /// Of which host.
        host: HostName,
        /// The facts.
        facts: Box<serde_json::Value>,
        /// Told when they are recorded; dropped if they cannot be.
        journaled: oneshot::Sender<()>,
    },
    /// Something happened that decides nothing.
    Note(EventKind),
    /// An operation says what a person should know.
    Warning(Warning),
    /// Recording something failed; the run goes on.
    RecordingFailed(String),
}

/// Host facts an attempt needs.
pub(crate) trait HostTable: Send + Sync {
    /// Returns a host's labels.
    fn labels(&self, host: &HostName) -> BTreeMap<String, String>;
    /// Whether there is such a host.
    fn has(&self, host: &HostName) -> bool;
    /// Returns the directory operations on a host act below.
    fn root(&self, host: &HostName) -> Option<PathBuf>;
    /// Returns what is known of a host; nothing if there is none of this name.
    fn host(&self, host: &HostName) -> Option<&Host>;
}

/// Everything attempts share.
pub(crate) struct Executor {
    pub(crate) registry: Registry,
    pub(crate) plan: Arc<Plan>,
    pub(crate) plan_number: u32,
    pub(crate) functions: Arc<Functions>,
    pub(crate) names: Arc<Names>,
    pub(crate) results: Arc<Results>,
    pub(crate) facts: facts::Facts,
    pub(crate) hosts: Arc<dyn HostTable>,
    pub(crate) secrets: Arc<BTreeMap<String, String>>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) hidden_env: Arc<[String]>,
    pub(crate) base_dir: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) predicted: Mutex<BTreeMap<HostName, Predicted>>,
    pub(crate) recording: Option<Arc<Recording>>,
    pub(crate) run_id: Option<RunId>,
    pub(crate) parents: Arc<[RunId]>,
    pub(crate) grace: Duration,
    pub(crate) wants_output: bool,
    /// What operations of closures write to.
    pub(crate) open_streams: OpenStreams,
    /// Where copies for `undo: auto` go; of a run that is not recorded there are none.
    pub(crate) undo: UndoStore,
    /// The run's locks, while it goes on; dangling if it takes none. Work that outlives the run must not keep them.
    pub(crate) locks: Option<Weak<RunLocks>>,
    pub(crate) messages: mpsc::Sender<Message>,
    /// The way to other machines, if there is one.
    pub(crate) pool: Option<HostPool>,
    /// Hosts for which the plan has operations that need the executor.
    pub(crate) executor_hosts: BTreeSet<HostName>,
}

impl Executor {
    /// Judges a task's guards on a snapshot of what is known; the hosts are those whose facts they read in vain.
    fn judge(
        self: &Arc<Self>,
        task: TaskIndex,
        run_status: Option<RunStatus>,
    ) -> (Verdict, BTreeSet<HostName>) {
        let settings = &self.plan.task(task).settings;
        let scope = self.guard_scope(task, run_status);
        let context =
            TaskContext { executor: Arc::clone(self), task, attempt: 0, cancel: Cancel::never(), run_status };
        let function = |number: u32| -> Result<bool, String> {
            let guard = self.functions.guards.get(number as usize).ok_or("there is no such closure")?;
            std::panic::catch_unwind(AssertUnwindSafe(|| guard(&context)))
                .map_err(|panic| format!("panicked: {}", panic_text(&*panic)))?
                .map_err(|failure| failure.to_string())
        };
        let verdict = expr::judge(&settings.when, settings.only_if_changed, &scope, &function);
        (verdict, scope.take_wanted())
    }

    fn guard_scope(&self, task: TaskIndex, run_status: Option<RunStatus>) -> Scope {
        let scope = Scope::new(Arc::clone(&self.names), Some(task));
        match run_status {
            Some(status) => scope.with_run_status(status),
            None => scope,
        }
    }

    fn host_scope(&self, scope: Scope, host: &HostName, index: u32) -> Scope {
        let labels = self.hosts.labels(host);
        scope.on_host(&HostScope { name: host.clone(), index: index as usize, labels })
    }

    /// Makes an attempt and returns how it ended. Never panics; a panic inside becomes the attempt's failure.
    ///
    /// The future is small; see [`Self::tell`] and [`Self::call`].
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        attempt: &Attempt,
        cancel: Cancel,
        run_status: Option<RunStatus>,
    ) -> Box<RowResult> {
        let mut result = match &attempt.host {
            // In a box of its own: a closure's attempt need not carry its size.
            Some(host) => Box::pin(self.attempt_on_host(attempt, host, cancel, run_status)).await,
            None => self.attempt_function(attempt, cancel, run_status).await,
        };
        self.mask(&mut result);
        if result.data.is_some() {
            Box::pin(self.keep_long_data(attempt, &mut result)).await;
        }
        result
    }

    async fn attempt_function(
        self: &Arc<Self>,
        attempt: &Attempt,
        cancel: Cancel,
        run_status: Option<RunStatus>,
    ) -> Box<RowResult> {
        let closures = self.functions.of(attempt.task);
        let function = match (self.mode, closures) {
            (Mode::Run, Some(closures)) => closures.run.clone(),
            (Mode::DryRun, Some(closures)) => closures.check.clone(),
            (Mode::Run | Mode::DryRun, None) => None,
        };
        let Some(function) = function else {
            return Box::new(match self.mode {
                Mode::DryRun => RowResult::new(Status::Unknown),
                Mode::Run => failed(ErrorClass::Invalid, "the task's closure is not part of this program"),
            });
        };
        let ended = self.call(function, attempt.task, attempt.attempt, cancel, run_status).await;
        let mut result = Box::new(match ended {
            Called::Ended(Ok(done)) => RowResult {
                data: done.value,
                ..RowResult::new(if done.changed { Status::Changed } else { Status::Unchanged })
            },
            Called::Ended(Err(failure)) => RowResult {
                changed: failure.changed,
                data: failure.data,
                ..failed(failure.class, failure.message)
            },
            Called::Panicked(message) => failed(ErrorClass::Panic, format!("panicked: {message}")),
            Called::TimedOut(after) => timed_out(after),
            Called::Cancelled => RowResult::new(Status::Cancelled),
        });
        if self.mode == Mode::DryRun && result.status != Status::Failed {
            result.prediction = Some(Prediction::Exact);
        }
        result
    }

    /// Calls a closure under the task's timeout and the run's cancellation. When stopping begins the closure
    /// has the grace period to end by itself, then its future is dropped.
    async fn call(
        self: &Arc<Self>,
        function: TaskFunction,
        task: TaskIndex,
        attempt: u32,
        cancel: Cancel,
        run_status: Option<RunStatus>,
    ) -> Called {
        let context =
            TaskContext { executor: Arc::clone(self), task, attempt, cancel: cancel.clone(), run_status };
        let future = match std::panic::catch_unwind(AssertUnwindSafe(|| function(context))) {
            Ok(future) => future,
            Err(panic) => return Called::Panicked(panic_text(&*panic)),
        };
        let mut future = CatchPanic(future);
        // Most closures that do little are done at once and need nobody to watch over them.
        let first = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await;
        match first {
            Poll::Ready(ended) => called(ended, &cancel),
            Poll::Pending => Box::pin(self.watch_over(future, task, cancel)).await,
        }
    }

    async fn watch_over(
        &self,
        mut future: CatchPanic<TaskFuture>,
        task: TaskIndex,
        cancel: Cancel,
    ) -> Called {
        let timeout = self.plan.task(task).settings.timeout;
        tokio::select! {
            biased;
            ended = &mut future => called(ended, &cancel),
            () = sleep_if(timeout) => Called::TimedOut(timeout.unwrap_or_default()),
            () = async {
                cancel.at_least(Stop::Ask).await;
                tokio::select! { () = tokio::time::sleep(self.grace) => {}, () = cancel.at_least(Stop::Kill) => {} }
            } => Called::Cancelled,
        }
    }

    async fn attempt_on_host(
        self: &Arc<Self>,
        attempt: &Attempt,
        host: &HostName,
        cancel: Cancel,
        run_status: Option<RunStatus>,
    ) -> Box<RowResult> {
        Box::new(self.carry_out_on_host(attempt, host, cancel, run_status).await)
    }

    async fn carry_out_on_host(
        self: &Arc<Self>,
        attempt: &Attempt,
        host: &HostName,
        cancel: Cancel,
        run_status: Option<RunStatus>,
    ) -> RowResult {
        let scope = self.host_scope(self.guard_scope(attempt.task, run_status), host, attempt.row);
        let output = AttemptOutput::new(self, attempt);
        // Cancellation and the task's timeout reach the operation through one channel of its own.
        let (stop, stopped) = Cancel::signal();
        let timeout = self.plan.task(attempt.task).settings.timeout;
        let mut context = self.op_context(attempt, host, stopped, output.sink(), scope.clone());
        context.deadline = timeout.and_then(|timeout| tokio::time::Instant::now().checked_add(timeout));
        let mut work = CatchPanic(Box::pin(self.judge_and_run(attempt, &context, scope)));
        let mut flush = tokio::time::interval(output::FLUSH_EVERY);
        flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut end_of_patience = None;
        let mut timer = std::pin::pin!(sleep_if(timeout));
        let mut too_late = false;
        let result = loop {
            tokio::select! {
                biased;
                ended = &mut work => break match ended {
                    Ok(result) => result,
                    Err(message) => failed(ErrorClass::Panic, format!("panicked: {message}")),
                },
                _ = flush.tick() => output.flush_some(),
                () = &mut timer, if !too_late => {
                    too_late = true;
                    stop.stop(Stop::Ask);
                    end_of_patience = Some(tokio::time::Instant::now() + self.grace + PATIENCE);
                }
                () = cancel.at_least(Stop::Ask), if stop.now() == Stop::No => {
                    stop.stop(Stop::Ask);
                    end_of_patience = Some(tokio::time::Instant::now() + self.grace + PATIENCE);
                }
                () = cancel.at_least(Stop::Kill), if stop.now() < Stop::Kill => {
                    stop.stop(Stop::Kill);
                    end_of_patience = Some(tokio::time::Instant::now() + PATIENCE);
                }
                // An operation that does not listen is left behind; dropping it kills what it started.
                () = sleep_until(end_of_patience) => break RowResult::new(Status::Cancelled),
            }
        };
        output.finish().await;
        // What ended before it was asked to stop has ended by itself, even if the request is on its way.
        let asked = stop.now();
        self.settle(result, too_late.then_some(timeout).flatten(), asked)
    }

    /// Takes the reason an attempt was stopped into its result.
    fn settle(&self, result: RowResult, timed_out_after: Option<Duration>, stop: Stop) -> RowResult {
        let succeeded = matches!(result.status, Status::Changed | Status::Unchanged | Status::Skipped);
        match timed_out_after {
            _ if succeeded => result,
            Some(after) => RowResult { changed: result.changed, data: result.data, ..timed_out(after) },
            None if stop > Stop::No => RowResult {
                changed: result.changed,
                data: result.data,
                exit_code: result.exit_code,
                ..RowResult::new(Status::Cancelled)
            },
            None => result,
        }
    }

    fn op_context(
        self: &Arc<Self>,
        attempt: &Attempt,
        host: &HostName,
        cancel: Cancel,
        output: Output,
        scope: Scope,
    ) -> OpContext {
        let mut predicted = self.predicted.lock().unwrap_or_else(PoisonError::into_inner);
        OpContext {
            run_id: self.run_id.clone(),
            parents: Arc::clone(&self.parents),
            bundle: self.recording.as_ref().map(|recording| recording.directory.path().to_owned()),
            task: self.plan.task(attempt.task).name.clone(),
            host: host.clone(),
            attempt: attempt.attempt,
            base_dir: self.base_dir.clone(),
            files: Arc::new(self.local_files(host)),
            undo: self.undo_store(host).wanted(
                self.mode == Mode::Run && self.plan.task(attempt.task).settings.undo == Some(Undo::Auto),
            ),
            root: self.hosts.root(host),
            hidden_env: Arc::clone(&self.hidden_env),
            grace: self.grace,
            deadline: None,
            restarted: None,
            predicted: predicted.entry(host.clone()).or_default().clone(),
            output,
            cancel,
            scope: Arc::new(scope),
        }
    }

    /// Returns where copies go of what is replaced on a host: below its own `workdir` first.
    fn undo_store(&self, host: &HostName) -> UndoStore {
        let workdir = self.hosts.host(host).and_then(|host| host.workdir.as_ref());
        match workdir {
            Some(workdir) => self.undo.clone().first_below(PathBuf::from(workdir)),
            None => self.undo.clone(),
        }
    }

    async fn judge_and_run(self: &Arc<Self>, attempt: &Attempt, cx: &OpContext, scope: Scope) -> RowResult {
        let guards = &self.plan.task(attempt.task).settings.when_host;
        match self.judge_on_host(guards, cx, &scope).await {
            Ok(()) => self.run_parts(attempt, cx, scope).await,
            Err(row) => *row,
        }
    }

    /// Returns the driver's files as operations on `host` see them.
    fn local_files(&self, host: &HostName) -> LocalFiles {
        let artifacts = self.recording.as_ref().map(|recording| {
            let directory = recording.directory.path().join(stead_bundle::ARTIFACTS);
            directory.join(stead_bundle::file_name(host.as_str(), ""))
        });
        LocalFiles { base_dir: self.base_dir.clone(), artifacts }
    }

    /// Carries out the operations of a task on one host, in order, stopping at the first failure.
    async fn run_parts(self: &Arc<Self>, attempt: &Attempt, cx: &OpContext, scope: Scope) -> RowResult {
        let task = self.plan.task(attempt.task);
        let parts = task.action.parts();
        let is_sequence = matches!(task.action, stead_model::plan::Action::Sequence(_));
        let wants_inverse = task.settings.undo == Some(Undo::Auto);
        // A sequence of which every part is left out is left out itself.
        let nothing_yet =
            if is_sequence && attempt.from_part == 0 { Status::Skipped } else { Status::Unchanged };
        let mut whole = RowResult::new(nothing_yet);
        for part in &parts[attempt.from_part.min(parts.len())..] {
            if cx.cancel.now() > Stop::No {
                return RowResult { status: Status::Cancelled, ..whole };
            }
            // A host that took the place of another of `_any` was not among those locked when the run began.
            let late = task.settings.target.iter().any(|text| text.contains("_any"));
            if late && let Err(error) = self.lock_for(&part.op, &cx.host, &cx.cancel).await {
                return failed(error.class, error.message);
            }
            let mut result = self.run_part(part, cx, &scope, wants_inverse).await;
            if self.mode == Mode::DryRun
                && is_failed_check(&result)
                && (whole.changed
                    || whole.status == Status::Unknown
                    || self.will_change(attempt.task, &cx.host))
            {
                result = not_checkable(&result);
            }
            if is_sequence {
                let name = part.name.clone().unwrap_or_else(|| task.name.clone());
                let mut end = PartEnd {
                    name,
                    status: result.status,
                    changed: result.changed,
                    error: result.error.clone().map(|error| self.redactor.redact_text(&error).into_owned()),
                    inverse: None,
                };
                // A part that was stopped runs again: it has not ended.
                if result.status != Status::Cancelled && cx.cancel.now() == Stop::No {
                    // The run keeps it from now on; the attempt's own result does not repeat it, unless it holds a
                    // secret.
                    end.inverse = result.inverse.first().map(|op| Box::new(self.without_secrets(op)));
                    result.inverse.retain(|op| self.op_holds_secret(op));
                    let input = stead_engine::run::Input::PartEnded {
                        task: attempt.task,
                        row: attempt.row,
                        part: Box::new(end),
                    };
                    self.send(Message::Input(input)).await;
                }
            }
            whole = join(whole, result, is_sequence);
            if matches!(whole.status, Status::Failed | Status::Cancelled) {
                break;
            }
        }
        whole
    }

    /// Whether a task before `task` would change the host, or might: then a check of it now says nothing about then.
    fn will_change(&self, task: TaskIndex, host: &HostName) -> bool {
        let mut before = self.results.graph().upstream(task);
        if self.plan.task(task).section == Section::Finally {
            let main = self.plan.indexed().filter(|(_, task)| task.section == Section::Main);
            before.extend(main.map(|(index, _)| index));
        }
        before.into_iter().filter_map(|task| self.results.peek(task)).any(|end| {
            let touched = |row: &expr::Row| row.changed || row.status == Status::Unknown;
            end.hosts.is_empty() && touched(&end.row)
                || end.hosts.iter().any(|(on, row)| on == host && touched(row))
        })
    }

    async fn run_part(&self, part: &Part, cx: &OpContext, scope: &Scope, wants_inverse: bool) -> RowResult {
        if let Err(row) = self.judge_on_host(&part.when_host, cx, scope).await {
            return *row;
        }
        loop {
            let row = self.try_part(part, cx, scope, wants_inverse).await;
            match self.gather_wanted(cx, scope).await {
                Ok(false) => return row,
                // Parameters and templates are read before anything is changed.
                Ok(true) => {}
                Err(error) => return row::error_row(error),
            }
        }
    }

    async fn try_part(&self, part: &Part, cx: &OpContext, scope: &Scope, wants_inverse: bool) -> RowResult {
        let Some(entry) = self.registry.get(part.op.operation.as_str()) else {
            return failed(ErrorClass::Invalid, format!("unknown operation `{}`", part.op.operation));
        };
        let params = match self.render_params(&part.op, scope) {
            Ok(params) => params,
            // A dry run cannot know what a parameter will be that an earlier task has yet to find.
            Err(RenderError::NotKnown) => return RowResult::new(Status::Unknown),
            Err(RenderError::Wrong(error)) => return failed(ErrorClass::Invalid, error),
        };
        let mut ran = self.carry_out(entry, cx, params, &|| scope.to_names(), wants_inverse).await;
        if let Ok(ran) = &mut ran {
            self.say_all(std::mem::take(&mut ran.warnings)).await;
        }
        match self.mode {
            Mode::DryRun => predicted(part, ran),
            Mode::Run => self.judge_outcome(part, ran, cx, scope).await,
        }
    }

    /// Carries out an operation where its host is: in this process, or through the session there.
    async fn carry_out(
        &self,
        entry: &Entry,
        cx: &OpContext,
        params: Params,
        names: NamesOf<'_>,
        wants_inverse: bool,
    ) -> Result<Ran, OpError> {
        match self.hosts.host(&cx.host) {
            Some(host) if remote::is_here(host) => {
                operate::operate(entry, cx, params, self.mode, wants_inverse).await
            }
            Some(host) => self.operate_there(host, entry, cx, params, names, wants_inverse).await,
            None => Err(OpError::permanent(format!("there is no host `{}` in the inventory", cx.host))),
        }
    }

    /// Carries out an operation on another machine, or under another account of this one.
    ///
    /// In a box with a type of its own: it may gather facts first, which comes back to here.
    fn operate_there<'a>(
        &'a self,
        host: &'a Host,
        entry: &'a Entry,
        cx: &'a OpContext,
        params: Params,
        names: NamesOf<'a>,
        wants_inverse: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Ran, OpError>> + Send + 'a>> {
        Box::pin(async move {
            let Some(pool) = &self.pool else {
                return Err(OpError::permanent(format!(
                    "this program has no way to `{}`; give its runner one with `reach`",
                    cx.host
                )));
            };
            // Another account of this machine is still this machine.
            if let (TransportSpec::Local, Entry::Action(action)) = (&host.transport, entry)
                && let Some(why) = action.refused_here()
            {
                return Err(OpError::permanent(why));
            }
            let effect = entry.descriptor().effect_with(|name| params.as_map().get(name));
            let writes = self.mode == Mode::Run && effect != Effect::Read;
            if self.goes_bare(pool, host, entry, &cx.host) {
                let done = pool.act_bare(host, entry, cx, &params, self.mode).await;
                return done.unwrap_or_else(|lost| self.lost(lost, cx, writes));
            }
            let files = self.local_files(&cx.host);
            // A template is rendered over there, where nothing can be asked for any more.
            if remote::reads_facts(entry, &params, &files) {
                self.gather(cx).await?;
            }
            let sending = Sending {
                entry,
                cx,
                files,
                names,
                secrets: self.secrets.values().filter(|secret| params.holds(secret)).cloned().collect(),
                mode: self.mode,
                wants_inverse,
            };
            let (request, allowed) = sending.prepare(params).await?;
            let done = pool.operate(host, cx, request, allowed, writes).await;
            done.unwrap_or_else(|lost| self.lost(lost, cx, writes))
        })
    }

    /// Whether an operation is carried out without the executor: where it is forbidden, and where nothing needs it.
    fn goes_bare(&self, pool: &HostPool, host: &Host, entry: &Entry, name: &HostName) -> bool {
        match host.executor {
            ExecutorMode::Never => true,
            ExecutorMode::Always => false,
            // Another account and another root are the executor's business.
            ExecutorMode::Auto => {
                entry.as_bare().is_some()
                    && host.account().is_none()
                    && host.root.is_none()
                    && !self.executor_hosts.contains(name)
                    && !pool.has_session(name)
            }
        }
    }

    /// Returns the failure of an operation without a result: if it may have begun and cannot simply be done again, a
    /// person has to decide.
    fn lost(&self, lost: Lost, cx: &OpContext, writes: bool) -> Result<Ran, OpError> {
        let Lost { error, begun } = lost;
        let task = self.results.graph().index_of(cx.task.as_str());
        let is_idempotent = task.is_some_and(|task| self.plan.task(task).settings.idempotent);
        if begun && writes && !is_idempotent {
            let message = format!("{}; whether it ended there is not known", error.message);
            return Err(OpError { changed: true, ..OpError::new(ErrorClass::Interrupted, message) });
        }
        Err(OpError { not_started: !begun, ..error })
    }

    fn render_params(&self, op: &Op, scope: &Scope) -> Result<Params, RenderError> {
        let scope = scope.clone().with_secrets(&self.secrets);
        let descriptor = self.registry.get(op.operation.as_str()).map(crate::operation::Entry::descriptor);
        let mut values = Map::new();
        for (name, param) in &op.params {
            let value = render(param, &scope, name)?;
            if param.as_value().is_none()
                && let Some(spec) = descriptor.and_then(|descriptor| descriptor.param(name))
                && let Some(problem) = spec.kind.refuse(&value)
            {
                return Err(RenderError::Wrong(format!("parameter `{name}`: {problem}")));
            }
            values.insert(name.clone(), value);
        }
        Ok(Params::new(values))
    }

    /// Carries out an operation for a closure.
    pub(crate) async fn op_in_function(
        self: Arc<Self>,
        cx: &TaskContext,
        op: author::Op,
        host: HostName,
    ) -> Result<OpOutput, Failure> {
        let part = op.into_part().map_err(Failure::permanent)?;
        self.reach_in_function(cx, &part.op, &host).await?;
        let attempt =
            Attempt { task: cx.task, row: 0, host: Some(host.clone()), attempt: cx.attempt, from_part: 0 };
        let scope = self.host_scope(self.guard_scope(cx.task, cx.run_status), &host, 0);
        let output = AttemptOutput::shared(&self, &attempt, &host);
        let context = self.op_context(&attempt, &host, cx.cancel.clone(), output.sink(), scope.clone());
        let result = self.run_part(&part, &context, &scope, false).await;
        output.finish().await;
        match result.status {
            Status::Changed | Status::Unchanged => {
                Ok(OpOutput { changed: result.changed, exit_code: result.exit_code, data: result.data })
            }
            Status::Skipped | Status::Failed | Status::Cancelled | Status::NotRun | Status::Unknown => {
                let message = result.error.or(result.reason).unwrap_or_else(|| result.status.to_string());
                let mut failure = Failure::new(message).changed(result.changed);
                failure.class = result.class.unwrap_or(ErrorClass::Operation);
                failure.data = result.data;
                Err(failure)
            }
        }
    }

    /// Makes sure that a closure may carry out `op` on `host`: the host is known, and locked if it may be written to.
    async fn reach_in_function(&self, cx: &TaskContext, op: &Op, host: &HostName) -> Result<(), Failure> {
        if !self.hosts.has(host) {
            let message = format!("there is no host `{host}` in the inventory");
            return Err(Failure { class: ErrorClass::Invalid, ..Failure::new(message) });
        }
        let locked = self.lock_for(op, host, &cx.cancel).await;
        locked.map_err(|error| Failure { class: error.class, ..Failure::new(error.message) })
    }

    /// Makes sure that `host` is locked if `op` may write to it. Most hosts are, since the run began; those that only
    /// became known since are not.
    async fn lock_for(&self, op: &Op, host: &HostName, cancel: &Cancel) -> Result<(), OpError> {
        let entry = self.registry.get(op.operation.as_str());
        let writes = entry.is_some_and(|entry| entry.descriptor().effect_of(op) != Effect::Read);
        let Some(locks) = &self.locks else { return Ok(()) };
        if !writes || self.mode == Mode::DryRun {
            return Ok(());
        }
        let Some(locks) = locks.upgrade() else {
            let message = format!("host {host} is not locked: the run is over");
            return Err(OpError::new(ErrorClass::Locked, message));
        };
        tokio::select! {
            taken = locks.take(host) => {
                taken.map_err(|error| OpError::new(error.class(), crate::record::chain(&error)))
            }
            () = cancel.at_least(Stop::Ask) => {
                Err(OpError::operation(format!("stopped while waiting for the lock of host {host}")))
            }
        }
    }

    /// Tells the dispatcher from a blocking thread.
    pub(crate) fn send_blocking(&self, message: Message) {
        // Without a dispatcher the run's future was dropped: nobody is left to tell.
        drop(self.messages.blocking_send(message));
    }

    /// Tells the dispatcher at once, or returns the wait for room. So the caller's future need not hold the message.
    pub(crate) fn tell(
        self: &Arc<Self>,
        message: Message,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        match self.messages.try_send(message) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(message) | mpsc::error::TrySendError::Closed(message)) => {
                let executor = Arc::clone(self);
                Some(Box::pin(async move { executor.send(message).await }))
            }
        }
    }

    /// Tells the dispatcher.
    pub(crate) async fn send(&self, message: Message) {
        // The dispatcher outlives its executor's work unless the run's future was dropped.
        if self.messages.send(message).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Gives the names that a template may use, as data.
type NamesOf<'a> = &'a (dyn Fn() -> Map<String, serde_json::Value> + Sync);

/// How long after the grace period an operation may take to notice that it was killed.
const PATIENCE: Duration = Duration::from_millis(800);

/// How a call of a closure ended.
enum Called {
    Ended(Ended),
    Panicked(String),
    TimedOut(Duration),
    Cancelled,
}

/// Returns how a closure whose future has ended did; one that fails when it is asked to stop has stopped.
fn called(ended: Result<Ended, String>, cancel: &Cancel) -> Called {
    match ended {
        Ok(Err(_)) if cancel.now() > Stop::No => Called::Cancelled,
        Ok(ended) => Called::Ended(ended),
        Err(message) => Called::Panicked(message),
    }
}

/// A future whose panic is a value.
pub(crate) struct CatchPanic<F>(pub(crate) F);

/// Returns the result of an attempt that panicked.
pub(crate) fn failed_by_panic(message: String) -> RowResult {
    failed(ErrorClass::Panic, format!("panicked: {message}"))
}

impl<F: Future + Unpin> Future for CatchPanic<F> {
    type Output = Result<F::Output, String>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        let inner = std::pin::Pin::new(&mut self.0);
        match std::panic::catch_unwind(AssertUnwindSafe(|| inner.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic_text(&*panic))),
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

async fn sleep_if(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn no_functions(_: u32) -> Result<bool, String> {
    Err("closures cannot be judged per host".to_owned())
}
