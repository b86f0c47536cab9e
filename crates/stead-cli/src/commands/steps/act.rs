//! Acting on a plan of steps: a run, a dry run or a resumed run, shown as it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_drivers::Drivers;
use stead_drivers::intent::{self, IntentSurroundings};
use stead_drivers::steps::MarkKey;
use stead_model::bundle::PlanMeta;
use stead_model::event::RunKind;
use stead_model::plan::TaskIndex;
use stead_model::steps::{SecretMarks, StepsMeta};
use stead_model::{Diagnostic, ExitCode, Report, TaskName, argv};
use stead_runner::redact::Redactor;
use stead_runner::{CheckedPlan, Observer, Provenance, ResumeError, ResumeOptions, Runner};

use super::load::Configured;
use super::plan::{self, Planned};
use super::report;
use crate::args::{OutputArgs, Progress, Sink};
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{self, Shown};
use crate::failure::{Failure, FailureKind};
use crate::output::{Handle, Output, Paint};
use crate::render::json;
use crate::render::steps::{self as render, Label, StepsShown};
use crate::settings::Settings;

/// A plan of steps on its way to be run.
pub(crate) struct Acting<'a> {
    pub(crate) configured: Configured,
    pub(crate) planned: Planned,
    pub(crate) settings: &'a Settings,
    pub(crate) output: &'a Output,
    pub(crate) shown: OutputArgs,
    pub(crate) wait_lock: Option<Duration>,
    pub(crate) intent: Option<OfIntent>,
}

/// What an intent adds to the run of its steps.
pub(crate) struct OfIntent {
    /// What its own operations work with.
    pub(crate) surroundings: IntentSurroundings,
    /// The command that does it again.
    pub(crate) command: String,
}

impl Acting<'_> {
    /// Returns where people read: standard output, unless a program does.
    pub(crate) fn talk(&self) -> (Handle, Paint) {
        match self.is_for_programs() {
            true => (self.output.err.clone(), self.settings.stderr_paint),
            false => (self.output.out.clone(), self.settings.stdout_paint),
        }
    }

    /// Whether standard output is for a program.
    pub(crate) fn is_for_programs(&self) -> bool {
        self.shown.json || self.shown.events == Some(Sink::Stdout)
    }

    /// Shows the plan. From here on it can be read, whatever follows.
    pub(crate) fn show_plan(&self) {
        self.talk().0.print(&self.planned.plan.text());
    }

    /// Returns what a person should know, or the failure of what keeps the plan from running.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        if self.planned.problems.has_errors() {
            let mut problems = std::mem::take(&mut self.planned.problems);
            problems.0.append(&mut self.configured.warnings);
            return Err(report::refused(FailureKind::Invalid, problems, &self.configured, &self.planned));
        }
        self.configured.warnings.append(&mut self.planned.problems.0);
        Ok(())
    }

    /// Predicts a run: starts nothing, writes nothing. Steps in `done` are left out.
    pub(crate) fn predict(self, done: BTreeSet<TaskIndex>) -> Result<ExitCode, Failure> {
        let report = self.forecast(done)?;
        self.output.err.print(&render::predicted_errors(&report, self.settings.stderr_paint));
        if self.shown.json {
            self.output.out.print(&json::report(&report));
        }
        let problems = present::write_reports(&report, &self.shown, self.settings);
        Ok(present::told(&problems, &report, self.settings, self.output))
    }

    /// Returns the report of a predicted run, its configuration shown.
    pub(crate) fn forecast(&self, done: BTreeSet<TaskIndex>) -> Result<Report, Failure> {
        super::tell_warnings(&self.configured.warnings, self.settings, self.output);
        let (talk, _) = self.talk();
        talk.print(&report::config_text(&plan::config(&self.configured)));
        let renderers = present::events(self.shown.events.as_ref(), self.settings, self.output)?;
        let shown = Shown { renderers: renderers.into_iter().collect(), pauser: None };
        let runner = self.runner().leave_out(done);
        let plan = self.checked_plan();
        let report = drive::predict(runner, shown, plan)?;
        talk.print("Dry run: nothing was executed.\n");
        Ok(report)
    }

    /// Runs the plan.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let report = self.carry_out()?;
        Ok(self.finish(&report))
    }

    /// Runs the plan and returns its report.
    pub(crate) fn carry_out(&self) -> Result<Report, Failure> {
        let state_dir = self.settings.state_dir.from(&self.configured.catalogue.root);
        let runner = self.acting_runner()?.record_in(state_dir.path).provenance(self.provenance()?);
        let (shown, plan) = (self.shown_by()?, self.checked_plan());
        drive::drive(runner, shown, &[], Person::SaidYes, move |runner| async move { runner.run(plan).await })
    }

    /// Takes the run recorded in `bundle` up again.
    pub(crate) fn resume(
        self,
        bundle: PathBuf,
        meta: PlanMeta,
        options: ResumeOptions,
    ) -> Result<Result<ExitCode, ResumeError>, Failure> {
        let provenance = Provenance { meta, ..self.provenance()? };
        let state_dir = bundle.parent().and_then(|runs| runs.parent()).unwrap_or(&bundle).to_owned();
        let runner = self.acting_runner()?.record_in(state_dir).provenance(provenance);
        let (shown, plan) = (self.shown_by()?, self.checked_plan());
        let ended = drive::drive(runner, shown, &[], Person::SaidYes, move |runner| async move {
            runner.resume_at(&bundle, plan, options).await
        })?;
        Ok(ended.map(|report| self.finish(&report)))
    }

    fn checked_plan(&self) -> CheckedPlan {
        CheckedPlan::from(self.planned.plan.compiled.clone())
            .with_base_dir(self.configured.catalogue.root.clone())
    }

    /// Returns a runner that knows the steps' surroundings and completes reports.
    fn runner(&self) -> Runner {
        let (steps, rows) = (self.planned.report(&self.configured), self.planned.rows());
        let mut registry = Drivers::with_steps(self.planned.surroundings.clone());
        if let Some(of) = &self.intent {
            intent::add_to(&mut registry, &of.surroundings);
        }
        let mut runner = Runner::new(registry)
            .kind(RunKind::Steps)
            .environment(self.settings.environment.to_map())
            .mask(self.planned.secrets.clone())
            .complete_report(move |report: &mut Report| report::complete(report, steps, rows));
        for warning in &self.configured.warnings {
            runner = runner.warn(warning.code, words(warning));
        }
        runner
    }

    /// Returns a runner that acts: it holds the target's lock, and steps see what others said.
    fn acting_runner(&self) -> Result<Runner, Failure> {
        let Some(locks) = &self.settings.user_state_dir else {
            let message = "nothing says where this account keeps its locks: it has no home";
            return Err(Failure::new(FailureKind::Invalid, message).hint("set HOME or XDG_STATE_HOME"));
        };
        let mut runner = self
            .runner()
            .observe(self.planned.surroundings.outputs.clone())
            .lock_named(locks, &self.planned.plan.target);
        if let Some(wait) = self.wait_lock {
            runner = runner.wait_lock(wait);
        }
        runner = runner.parent_runs(self.settings.parent_runs.clone());
        Ok(runner)
    }

    fn shown_by(&self) -> Result<Shown, Failure> {
        let label = |step: &stead_engine::compile::steps::SelectedStep| {
            let label = Label { basename: step.basename.clone(), args: step.args.clone() };
            (TaskName::from(&step.id), label)
        };
        let labels: BTreeMap<TaskName, Label> = self.planned.plan.steps.iter().map(label).collect();
        let mut renderers: Vec<Box<dyn Observer>> = Vec::new();
        if self.shown.progress != Progress::None {
            let (out, err) = (self.talk().0, self.output.err.clone());
            renderers.push(Box::new(StepsShown::new(out, err, labels, self.planned.order)));
        }
        renderers.extend(present::events(self.shown.events.as_ref(), self.settings, self.output)?);
        Ok(Shown { renderers, pauser: None })
    }

    fn finish(&self, report: &Report) -> ExitCode {
        let (talk, paint) = self.talk();
        self.output.err.print(&render::errors(report, self.settings.stderr_paint));
        let here = &self.settings.current_dir;
        talk.print(&render::ending(report, here, paint, self.resuming(report).as_deref()));
        if self.shown.json {
            self.output.out.print(&json::report(report));
        }
        let problems = present::write_reports(report, &self.shown, self.settings);
        present::told(&problems, report, self.settings, self.output)
    }

    /// Returns how the run is taken up again from where the caller is, if its id does not say enough there.
    fn resuming(&self, report: &Report) -> Option<String> {
        let bundle = Path::new(report.bundle.as_deref()?);
        let here = self.settings.state_dir.from(&self.settings.current_dir).runs();
        let bundle = bundle.canonicalize().ok()?;
        let is_here = here.canonicalize().is_ok_and(|here| bundle.parent() == Some(&here));
        (!is_here).then(|| argv::quote_text(["stead", "resume", &bundle.display().to_string()]))
    }

    /// Returns the marks of the run's secrets. Without a key there are none, and a resume knows less: no reason not to run.
    fn secret_marks(&self) -> Option<SecretMarks> {
        self.configured.secrets().next()?;
        let key = MarkKey::ensure(self.settings.user_state_dir.as_ref()?).ok()?;
        key.marks(self.configured.secrets()).ok()
    }

    /// Returns where the plan came from: enough to make it again, and no secret.
    fn provenance(&self) -> Result<Provenance, Failure> {
        let Configured { listed, catalogue, given, .. } = &self.configured;
        let redactor = Redactor::new(self.planned.secrets.iter())
            .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
        let masked = |text: &str| redactor.redact_text(text).into_owned();
        let meta = PlanMeta {
            plan: self.planned.plan.compiled.plan.name.to_string(),
            source: Some(listed.file.display().to_string()),
            argv: self.settings.argv.iter().map(|arg| masked(arg)).collect(),
            segments: 1,
            ..PlanMeta::default()
        };
        let is_secret = |name: &str| {
            catalogue.is_secret(name)
                || self.configured.values.get(name).is_some_and(|effective| effective.secret)
        };
        let (secret, open): (Vec<_>, Vec<_>) =
            given.set.iter().cloned().partition(|(name, _)| is_secret(name));
        let secret_set: BTreeSet<String> = secret.into_iter().map(|(name, _)| name).collect();
        let steps = StepsMeta {
            catalogue: catalogue.name.to_string(),
            file: listed.file.display().to_string(),
            mode: self.planned.plan.mode,
            target: self.planned.plan.target.clone(),
            root: catalogue.root.display().to_string(),
            selection: self.planned.selection.clone(),
            steps: u32::try_from(self.planned.plan.steps.len()).unwrap_or(u32::MAX),
            profile: given.profile.as_ref().map(|profile| profile.path.display().to_string()),
            set: open.into_iter().collect(),
            secret_set: secret_set.into_iter().collect(),
            config: self.configured.recorded_config(),
            secret_marks: self.secret_marks(),
            intent: self.intent.as_ref().map(|of| of.command.clone()),
        };
        let source = masked(&catalogue.shown_text()).into_bytes();
        let sources = vec![("catalogue.yaml".to_owned(), source)];
        Ok(Provenance { meta, sources, steps: Some(Box::new(steps)) })
    }
}

fn words(warning: &Diagnostic) -> String {
    let help = if warning.help.is_empty() { String::new() } else { format!(" ({})", warning.help) };
    format!("{}: {}{help}", warning.place, warning.message)
}
