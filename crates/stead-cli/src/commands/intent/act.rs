//! Doing an intent: one run that edits, commits and goes on with steps, or its prediction.

use std::collections::BTreeMap;
use std::path::PathBuf;

use stead_drivers::Drivers;
use stead_drivers::intent::{self, IntentSurroundings};
use stead_engine::compile::intents;
use stead_engine::compile::{self, CompiledPlan};
use stead_model::bundle::PlanMeta;
use stead_model::catalogue::Order;
use stead_model::event::RunKind;
use stead_model::steps::{SelectionRow, StepsMeta};
use stead_model::{Diagnostic, ExitCode, Report, StepMode};
use stead_runner::operation::Registry;
use stead_runner::{CheckedPlan, Observer, Provenance, Runner};

use super::Intended;
use super::shown::{self, Outcome};
use crate::args::{IntentArgs, OutputArgs, Progress, Sink};
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{self, Shown};
use crate::commands::steps::act::{self as steps, OfIntent};
use crate::commands::steps::load::Configured;
use crate::commands::steps::plan::Planned;
use crate::commands::steps::tell_warnings;
use crate::failure::Failure;
use crate::output::{Handle, Output, Paint};
use crate::render::steps::{self as render, StepsShown};
use crate::settings::Settings;

/// The steps that follow an edit.
pub(super) struct Following {
    pub(super) configured: Configured,
    pub(super) planned: Planned,
}

/// An intent on its way to be done.
pub(super) struct Acting<'a> {
    pub(super) args: &'a IntentArgs,
    pub(super) intended: Intended,
    pub(super) following: Option<Following>,
    /// Said already.
    pub(super) recovered: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
    pub(super) state_dir: PathBuf,
    pub(super) settings: &'a Settings,
    pub(super) output: &'a Output,
}

impl Acting<'_> {
    /// Does it, or in a dry run shows what would be done.
    pub(super) fn act(mut self, dry_run: bool) -> Result<ExitCode, Failure> {
        let root = self.intended.catalogue.root.clone();
        let surroundings = IntentSurroundings::new(root, &self.state_dir, &self.intended.prepared);
        let compiled = self.compile(&surroundings)?;
        self.talk().0.print(&shown::changes(&self.intended.prepared, dry_run));
        let report = match self.following.take() {
            Some(following) => self.with_steps(following, compiled, surroundings.clone(), dry_run),
            None => self.alone(compiled, &surroundings, dry_run),
        };
        // What waits for a commit that never came is put back, however the run ended.
        let settled = surroundings.settle();
        let report = report?;
        let mut outcome = Outcome::new(&self.intended, &report, dry_run, self.args.commit);
        match settled {
            Ok(files) => outcome.put_back(files),
            Err(error) => outcome.stuck(&error),
        }
        Ok(self.finish(&report, &outcome))
    }

    /// Returns the plan of the edit, the commit and the steps.
    fn compile(&self, surroundings: &IntentSurroundings) -> Result<CompiledPlan, Failure> {
        let registry = with_intent(Drivers::standard(), surroundings);
        let operations = compile::Catalogue::new(registry.descriptors());
        let then = self.following.as_ref().map(|following| &following.planned.plan.compiled);
        let asked = intents::Asked { then, ..self.intended.asked(self.args.commit) };
        intents::compile(asked, &operations).map_err(Failure::invalid)
    }

    /// Returns the command that does it again.
    fn command(&self) -> String {
        self.intended.command(self.args.commit)
    }

    /// Whether standard output is for a program.
    fn is_for_programs(&self) -> bool {
        self.args.json || self.args.events == Some(Sink::Stdout)
    }

    /// Returns where people read.
    fn talk(&self) -> (Handle, Paint) {
        match self.is_for_programs() {
            true => (self.output.err.clone(), self.settings.stderr_paint),
            false => (self.output.out.clone(), self.settings.stdout_paint),
        }
    }

    fn with_steps(
        &mut self,
        following: Following,
        compiled: CompiledPlan,
        surroundings: IntentSurroundings,
        dry_run: bool,
    ) -> Result<Report, Failure> {
        let Following { mut configured, mut planned } = following;
        planned.plan.compiled = compiled;
        configured.warnings.append(&mut self.warnings);
        let shown = OutputArgs {
            json: self.args.json,
            events: self.args.events.clone(),
            progress: Progress::Plain,
            ..OutputArgs::default()
        };
        let intent = Some(OfIntent { surroundings, command: self.command() });
        let (settings, output) = (self.settings, self.output);
        let mut acting = steps::Acting {
            configured,
            planned,
            settings,
            output,
            shown,
            wait_lock: self.args.wait_lock,
            intent,
        };
        acting.show_plan();
        acting.settle()?;
        let report = if dry_run { acting.forecast(Default::default()) } else { acting.carry_out() };
        self.warnings = acting.configured.warnings;
        report
    }

    fn alone(
        &self,
        compiled: CompiledPlan,
        surroundings: &IntentSurroundings,
        dry_run: bool,
    ) -> Result<Report, Failure> {
        let registry = with_intent(Drivers::standard(), surroundings);
        let mut runner =
            Runner::new(registry).kind(RunKind::Steps).environment(self.settings.environment.to_map());
        for warning in &self.warnings {
            runner = runner.warn(warning.code, format!("{}: {}", warning.place, warning.message));
        }
        let plan = CheckedPlan::from(compiled).with_base_dir(self.intended.catalogue.root.clone());
        let events = present::events(self.args.events.as_ref(), self.settings, self.output)?;
        let mut renderers: Vec<Box<dyn Observer>> = Vec::new();
        if dry_run {
            tell_warnings(&self.warnings, self.settings, self.output);
            let shown = Shown { renderers: events.into_iter().collect(), pauser: None };
            let report = drive::predict(runner, shown, plan)?;
            self.talk().0.print("Dry run: nothing was executed.\n");
            return Ok(report);
        }
        let (out, err) = (self.talk().0, self.output.err.clone());
        renderers.push(Box::new(StepsShown::new(out, err, BTreeMap::new(), Order::Listed)));
        renderers.extend(events);
        runner = runner.parent_runs(self.settings.parent_runs.clone());
        let meta = PlanMeta {
            plan: self.intended.name.clone(),
            source: Some(self.intended.listed.file.display().to_string()),
            argv: self.settings.argv.clone(),
            segments: 1,
            ..PlanMeta::default()
        };
        let sources = vec![("catalogue.yaml".to_owned(), self.intended.catalogue.shown_text().into_bytes())];
        let steps = Some(Box::new(self.record()));
        runner = runner.record_in(&self.state_dir).provenance(Provenance { meta, sources, steps });
        let shown = Shown { renderers, pauser: None };
        drive::drive(runner, shown, &[], Person::SaidYes, move |runner| async move { runner.run(plan).await })
    }

    /// Returns what is recorded of an intent that no steps follow.
    fn record(&self) -> StepsMeta {
        let catalogue = &self.intended.catalogue;
        StepsMeta {
            catalogue: catalogue.name.to_string(),
            file: self.intended.listed.file.display().to_string(),
            mode: StepMode::Apply,
            target: shown::SCOPE.to_owned(),
            root: catalogue.root.display().to_string(),
            selection: SelectionRow::default(),
            steps: 0,
            profile: None,
            set: BTreeMap::new(),
            secret_set: Vec::new(),
            config: BTreeMap::new(),
            secret_marks: None,
            intent: Some(self.command()),
        }
    }

    fn finish(&self, report: &Report, outcome: &Outcome<'_>) -> ExitCode {
        let (talk, paint) = self.talk();
        self.output.err.print(&render::errors(report, self.settings.stderr_paint));
        if !outcome.dry_run {
            talk.print(&outcome.text(self.settings));
            let here = &self.settings.current_dir;
            talk.print(&render::ending(report, here, paint, Some(&self.command())));
        }
        if self.args.json {
            self.output.out.print(&outcome.document(self.recovered.iter().chain(&self.warnings)));
        }
        outcome.exit_code()
    }
}

fn with_intent(mut registry: Registry, surroundings: &IntentSurroundings) -> Registry {
    intent::add_to(&mut registry, surroundings);
    registry
}
