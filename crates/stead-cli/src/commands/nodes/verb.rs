//! `stead create`, `destroy` and `test`: from arguments to an exit code.

use std::path::Path;

use stead_engine::compile::nodes::NodesVerb;
use stead_model::{ExitCode, TaskName};

use super::act::Prepared;
use super::{document, load};
use crate::args::{NodesArgs, Sink, TestArgs};
use crate::commands::plan::drive::Person;
use crate::confirm::{Asker, Question};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{error_word, json as render_json, lock_hint};
use crate::settings::Settings;

pub(in crate::commands) fn create(
    args: &NodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    answered(NodesVerb::Create, args, output, |output| act(NodesVerb::Create, args, None, settings, output))
}

pub(in crate::commands) fn destroy(
    args: &NodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    answered(NodesVerb::Destroy, args, output, |output| act(NodesVerb::Destroy, args, None, settings, output))
}

pub(in crate::commands) fn verify(
    args: &NodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    answered(NodesVerb::Verify, args, output, |output| act(NodesVerb::Verify, args, None, settings, output))
}

pub(in crate::commands) fn test(
    args: &TestArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    answered(NodesVerb::Test, &args.nodes, output, |output| {
        act(NodesVerb::Test, &args.nodes, args.report_dir.as_deref(), settings, output)
    })
}

/// Has a failure told as the one document that programs expect, if they do.
pub(super) fn answered(
    verb: NodesVerb,
    args: &NodesArgs,
    output: &mut Output,
    act: impl FnOnce(&mut Output) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    act(output).map_err(|failure| {
        let manifest = args.manifest.manifest.as_deref();
        let told = document::of_failure(verb.word(), manifest, Some(&args.host), args.dry_run, &failure);
        failure.shown_as(told)
    })
}

fn act(
    verb: NodesVerb,
    args: &NodesArgs,
    report_dir: Option<&Path>,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let loaded = load::load(verb, args, settings)?;
    let mut prepared = Prepared::new(verb, loaded, args.dry_run, settings)?;
    prepared.report_dir = report_dir.map(|directory| settings.current_dir.join(directory));
    prepared.refuse_taken()?;
    if args.dry_run {
        match args.output.json {
            true => output.out.print(&render_json::document(&document::of_plan(&prepared))),
            false => output.out.print(&document::plan_to_text(&prepared)),
        }
        return Ok(ExitCode::Success);
    }
    confirm(&prepared, args, settings)?;
    prepared.preflight(settings)?;
    if let Some(directory) = &prepared.report_dir {
        // Found out now, and not when everything is over.
        std::fs::create_dir_all(directory).map_err(|error| {
            let message = format!("no report can be written to {}: {error}", directory.display());
            Failure::new(FailureKind::Invalid, message).hint("name another directory with --report-dir")
        })?;
    }
    run(&prepared, args, settings, output)
}

/// Runs what is prepared and shows how it ended.
pub(super) fn run(
    prepared: &Prepared,
    args: &NodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let (report, seen) = prepared.run(args, None, settings, output)?;
    Ok(show(prepared, &report, &seen, args, settings, output))
}

/// Shows how a run ended and returns what the process exits with.
pub(super) fn show(
    prepared: &Prepared,
    report: &stead_model::Report,
    seen: &super::seen::Seen,
    args: &NodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> ExitCode {
    if args.output.json {
        output.out.print(&render_json::document(&document::of_run(prepared, report, seen)));
    } else {
        let (to, paint) = match args.output.events {
            // Standard output has the journal's lines and nothing else.
            Some(Sink::Stdout) => (&output.err, settings.stderr_paint),
            Some(Sink::File(_)) | None => (&output.out, settings.stdout_paint),
        };
        if report.run_id.is_none() || report.tasks.iter().all(|row| row.started_at.is_none()) {
            for error in &report.errors {
                let word = error_word(report, error.class, settings.stderr_paint);
                output.err.print_line(&format!("{word} {}", error.message));
            }
            output.err.print(&lock_hint(report));
            output.err.print(&document::unrecorded_hint(prepared, report));
        }
        to.print(&document::to_text(prepared, report, seen, paint));
    }
    report.exit_code
}

/// Asks before nodes go, and before a test uses nodes that are there.
fn confirm(prepared: &Prepared, args: &NodesArgs, settings: &Settings) -> Result<(), Failure> {
    let loaded = &prepared.loaded;
    let refused = |message: String| {
        Err(Failure::new(FailureKind::Confirmation, message).hint("nothing was touched; --yes goes on"))
    };
    match (prepared.verb, args.yes) {
        (NodesVerb::Create | NodesVerb::Verify, _) | (_, true) => Ok(()),
        (NodesVerb::Test, false) => {
            let there = prepared.already_there()?;
            let Some(first) = there.first() else { return Ok(()) };
            refused(format!(
                "{} nodes are there already ({first}, …), and a test would remove them",
                there.len()
            ))
        }
        (NodesVerb::Destroy, false) => {
            let count = prepared.removed();
            let text = format!("remove {count} nodes of {} on {}?", loaded.name, loaded.host.name);
            match Person::find(false, settings) {
                Person::SaidYes => Ok(()),
                Person::Absent => refused(format!("nobody is there to say yes: {text}")),
                Person::AtTerminal => {
                    let failed = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
                    let mut asker = Asker::open(None).map_err(failed)?;
                    let task = TaskName::parse("destroy")
                        .map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
                    match asker.ask(&Question { task, text }, &|| false).map_err(failed)? {
                        Some(true) => Ok(()),
                        Some(false) | None => refused("the answer was no".to_owned()),
                    }
                }
            }
        }
    }
}
