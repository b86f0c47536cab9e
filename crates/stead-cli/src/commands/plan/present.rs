//! How a run is shown while it goes on and when it has ended, by its output flags.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use stead_model::{ExitCode, Report};
use stead_runner::Observer;

use crate::args::{OutputArgs, Progress, Sink};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::events::Events;
use crate::render::plain::Plain;
use crate::render::terminal::{Live, Pauser, Screen, Terminal};
use crate::render::{Differences, Options, Streaming, json, junit, markdown, summary};
use crate::settings::Settings;

/// Why a file that was asked for could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}", path = path.display())]
struct WriteFile {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What reads the run's events, made before anything starts.
pub(crate) struct Shown {
    /// In the order they are called.
    pub(crate) renderers: Vec<Box<dyn Observer>>,
    /// Stops the moving display while a person is asked; none if nothing moves.
    pub(crate) pauser: Option<Pauser>,
}

/// Where the run is recorded.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    /// Nowhere.
    No,
    /// In a new bundle below this directory.
    Below(PathBuf),
    /// In this bundle, which exists.
    In(PathBuf),
}

impl Shown {
    /// Opens the files and renderers that the flags ask for.
    ///
    /// # Errors
    /// If the events file cannot be made: better now than after the run.
    pub(crate) fn new(
        args: &OutputArgs,
        diff: Differences,
        recorded: Recorded,
        settings: &Settings,
        output: &Output,
    ) -> Result<Self, Failure> {
        let (runs_dir, bundle) = match recorded {
            Recorded::No => (None, None),
            Recorded::Below(dir) => (Some(dir), None),
            Recorded::In(bundle) => (None, Some(bundle)),
        };
        let streaming = if args.verbose { Streaming::Live } else { Streaming::Off };
        let options = Options { streaming, diff, runs_dir, bundle };
        let mut shown = Self { renderers: Vec::new(), pauser: None };
        match settings.progress(args.progress) {
            Progress::Tty | Progress::Auto => {
                let screen = Screen::of_stderr(settings.size_hint);
                let live =
                    Live::start(Terminal::new(output.err.clone(), settings.stderr_paint, screen, options));
                shown.pauser = Some(live.pauser());
                shown.renderers.push(Box::new(live));
            }
            Progress::Plain => shown.renderers.push(Box::new(Plain::new(output.err.clone(), options))),
            Progress::None => {}
        }
        shown.renderers.extend(events(args.events.as_ref(), settings, output)?);
        Ok(shown)
    }
}

/// Opens what `--events` names.
///
/// # Errors
/// If the file cannot be made: better now than after the run.
pub(crate) fn events(
    sink: Option<&Sink>,
    settings: &Settings,
    output: &Output,
) -> Result<Option<Box<dyn Observer>>, Failure> {
    Ok(match sink {
        Some(Sink::Stdout) => Some(Box::new(Events::new(output.out.clone()))),
        Some(Sink::File(path)) => {
            let path = settings.current_dir.join(path);
            let file = File::create(&path).map_err(|source| {
                Failure::caused_by(FailureKind::Output, WriteFile { path: path.clone(), source })
            })?;
            // Flushed after every piece; the buffer joins what one piece writes in parts.
            Some(Box::new(Events::new(output.file(path, BufWriter::new(file)))))
        }
        None => None,
    })
}

/// Shows the report of an ended run and writes the files that the flags ask for.
///
/// A file that cannot be written is told on standard error and makes a success exit 1; the report is shown
/// all the same, and a run that failed keeps its code.
pub(crate) fn finish(report: &Report, args: &OutputArgs, settings: &Settings, output: &Output) -> ExitCode {
    let problems = write_reports(report, args, settings);
    if args.json {
        output.out.print(&json::report(report));
    } else if args.events == Some(Sink::Stdout) {
        // Standard output has the journal's lines and nothing else.
        output.err.print(&summary::to_text(report, &settings.current_dir, settings.stderr_paint));
    } else {
        output.out.print(&summary::to_text(report, &settings.current_dir, settings.stdout_paint));
    }
    told(&problems, report, settings, output)
}

/// Writes the report files that the flags ask for; returns what went wrong.
pub(crate) fn write_reports(report: &Report, args: &OutputArgs, settings: &Settings) -> Vec<Failure> {
    let mut problems = Vec::new();
    let mut write = |path: &Option<PathBuf>, content: &dyn Fn() -> String| {
        if let Some(path) = path
            && let Err(problem) = write_file(&settings.current_dir.join(path), &content())
        {
            problems.push(Failure::caused_by(FailureKind::Output, problem));
        }
    };
    write(&args.junit, &|| junit::to_xml(report));
    write(&args.markdown, &|| markdown::to_markdown(report));
    problems
}

/// Tells of report files that could not be written and returns what the process exits with.
pub(crate) fn told(problems: &[Failure], report: &Report, settings: &Settings, output: &Output) -> ExitCode {
    // With `--json` the one document is out already, so these are told here and not by the caller.
    for problem in problems {
        output.err.print(&problem.to_text(settings.stderr_paint));
    }
    match problems.first() {
        Some(problem) if report.exit_code == ExitCode::Success => problem.exit_code(),
        Some(_) | None => report.exit_code,
    }
}

fn write_file(path: &Path, content: &str) -> Result<(), WriteFile> {
    std::fs::write(path, content).map_err(|source| WriteFile { path: path.to_owned(), source })
}
