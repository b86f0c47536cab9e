//! Facts of hosts: gathered before the first use on a host, once per host and run, journaled before they are used.
//!
//! Nobody says beforehand who needs them. An expression that reads facts nobody has leaves the hosts in its scope;
//! here they are gathered, by the operation `facts` as any other, and the expression is evaluated again. The second to
//! ask for a host waits for the first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use stead_engine::expr::{self, HostFacts, Scope, Verdict};
use stead_engine::run::Attempt;
use stead_model::event::RowResult;
use stead_model::plan::{Guard, Part, TaskIndex};
use stead_model::report::Warning;
use stead_model::{ErrorClass, HostName, RunStatus, Status};
use tokio::sync::oneshot;

use crate::operation::{Cancel, OpContext, OpError, Output, Params};

use super::operate::Ran;
use super::row::{error_row, failed, judge_result};
use super::{Executor, Message, no_functions};

/// The operation that gathers facts.
const OPERATION: &str = "facts";

/// What a run knows of its hosts, and who is finding out more.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    known: Arc<HostFacts>,
    gates: Mutex<BTreeMap<HostName, Arc<tokio::sync::Mutex<()>>>>,
}

impl Facts {
    /// Returns the facts of these hosts; `journaled` are those an earlier segment of the run has gathered.
    pub(crate) fn new(hosts: BTreeSet<HostName>, journaled: &[(HostName, Value)]) -> Self {
        let known = HostFacts::new(hosts);
        journaled.iter().for_each(|(host, facts)| known.learn(host, facts));
        Self { known: Arc::new(known), gates: Mutex::default() }
    }

    /// Returns what expressions read.
    pub(crate) fn known(&self) -> &Arc<HostFacts> {
        &self.known
    }

    fn gate(&self, host: &HostName) -> Arc<tokio::sync::Mutex<()>> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(gates.entry(host.clone()).or_default())
    }
}

impl Executor {
    /// Judges a task's guards, for which facts of hosts are gathered if they read them. Call on a blocking thread.
    pub(crate) fn judge_with_facts(
        self: &Arc<Self>,
        task: TaskIndex,
        run_status: Option<RunStatus>,
    ) -> Verdict {
        loop {
            let (verdict, wanted) = self.judge(task, run_status);
            for host in &wanted {
                let attempt = Attempt { task, row: 0, host: Some(host.clone()), attempt: 0, from_part: 0 };
                let scope = self.guard_scope(task, run_status);
                let cx = self.op_context(&attempt, host, Cancel::never(), Output::none(), scope);
                let gathered = tokio::runtime::Handle::current().block_on(self.gather(&cx));
                if let Err(error) = gathered {
                    return Verdict::Error(error.message);
                }
            }
            if wanted.is_empty() {
                return verdict;
            }
        }
    }

    /// Judges guards on one host; an error is the row of a host on which nothing runs.
    pub(super) async fn judge_on_host(
        &self,
        guards: &[Guard],
        cx: &OpContext,
        scope: &Scope,
    ) -> Result<(), Box<RowResult>> {
        loop {
            let verdict = expr::judge(guards, Default::default(), scope, &no_functions);
            if self.gather_wanted(cx, scope).await.map_err(|error| Box::new(error_row(error)))? {
                continue;
            }
            let row = match verdict {
                Verdict::Pass => return Ok(()),
                Verdict::Fail { reason, .. } => {
                    RowResult { reason: Some(reason), ..RowResult::new(Status::Skipped) }
                }
                Verdict::Error(error) => failed(ErrorClass::Guard, error),
                Verdict::Unknown => RowResult::new(Status::Unknown),
            };
            return Err(Box::new(row));
        }
    }

    /// Judges what a part gave. The part has run and is not run again, whatever its expressions read.
    pub(super) async fn judge_outcome(
        &self,
        part: &Part,
        ran: Result<Ran, OpError>,
        cx: &OpContext,
        scope: &Scope,
    ) -> RowResult {
        let reads_facts = [&part.changed_when, &part.failed_when]
            .into_iter()
            .flatten()
            .any(|expression| expression.0.contains("fact"));
        if !reads_facts {
            return judge_result(part, ran, scope);
        }
        loop {
            let row = judge_result(part, ran.clone(), scope);
            match self.gather_wanted(cx, scope).await {
                Ok(true) => {}
                Ok(false) => return row,
                Err(error) => {
                    let changed = ran.as_ref().map_or(row.changed, |ran| ran.changed);
                    return RowResult { changed, data: row.data, ..error_row(error) };
                }
            }
        }
    }

    /// Gathers what was read through `scope` and nobody had. Returns whether there was something: then what was
    /// evaluated must be evaluated again.
    pub(super) async fn gather_wanted(&self, cx: &OpContext, scope: &Scope) -> Result<bool, OpError> {
        let wanted = scope.take_wanted();
        for host in &wanted {
            if *host == cx.host {
                self.gather(&OpContext { output: Output::none(), ..cx.clone() }).await?;
                continue;
            }
            let predicted = {
                let mut predicted = self.predicted.lock().unwrap_or_else(PoisonError::into_inner);
                predicted.entry(host.clone()).or_default().clone()
            };
            let other = OpContext {
                host: host.clone(),
                root: self.hosts.root(host),
                files: Arc::new(self.local_files(host)),
                predicted,
                output: Output::none(),
                ..cx.clone()
            };
            self.gather(&other).await?;
        }
        Ok(!wanted.is_empty())
    }

    /// Gathers the facts of the host of `cx`, unless they are known.
    pub(super) async fn gather(&self, cx: &OpContext) -> Result<(), OpError> {
        let gate = self.facts.gate(&cx.host);
        let _one_at_a_time = gate.lock().await;
        if self.facts.known.knows(&cx.host) {
            return Ok(());
        }
        let facts =
            self.facts_of(cx).await.map_err(|error| error.within(format_args!("facts of {}", cx.host)))?;
        // Known only once it is recorded: nothing may hang on what a resume would not find.
        let (journaled, is_journaled) = oneshot::channel();
        let (host, boxed) = (cx.host.clone(), Box::new(facts.clone()));
        self.send(Message::Facts { host, facts: boxed, journaled }).await;
        if is_journaled.await.is_err() {
            return Err(OpError::new(ErrorClass::Journal, "the facts of the host could not be recorded"));
        }
        self.facts.known.learn(&cx.host, &facts);
        Ok(())
    }

    async fn facts_of(&self, cx: &OpContext) -> Result<Value, OpError> {
        let Some(entry) = self.registry.get(OPERATION) else {
            return Err(OpError::invalid(format!("this program has no operation `{OPERATION}`")));
        };
        let ran = self.carry_out(entry, cx, Params::default(), &Map::new, false).await?;
        self.say_all(ran.warnings).await;
        if let Some(failure) = ran.failure {
            return Err(failure);
        }
        let mut facts = ran.data.ok_or_else(|| OpError::operation("the host gave none"))?;
        if !self.redactor.is_empty() {
            self.redactor.redact_value(&mut facts);
        }
        Ok(facts)
    }

    /// Adds an operation's warnings to the run's.
    pub(super) async fn say_all(&self, warnings: Vec<Warning>) {
        for Warning { code, text, role } in warnings {
            let text = self.redactor.redact_text(&text).into_owned();
            self.send(Message::Warning(Warning { code, text, role })).await;
        }
    }
}
