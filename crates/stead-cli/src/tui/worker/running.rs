//! Reads manifests and runs them, by the same functions as the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use stead_engine::compile::runs::CompiledRun;
use stead_model::{Event, Severity};
use stead_runner::Observer;

use super::{Stops, Surroundings, bundles, entries};
use crate::args::{Cli, Command, RunCommand, RunManifestArgs};
use crate::commands::reach;
use crate::commands::run::act::{self, RunRequest};
use crate::commands::run::load::{self, Loaded};
use crate::entry::split_usage;
use crate::failure::{Failure, Source};
use crate::render::{one_line, visible};
use crate::settings::Settings;
use crate::tui::form::{DEFAULT_TIMEOUT, Manifest, Problem, Request, RoleLine};
use crate::tui::state::{Message, RunEnd, Why};

/// Reads a manifest and tells of its roles, or of every problem.
pub(super) fn load(work: &Surroundings, serial: u64, why: Why, request: &Request) {
    let loaded = Order::of(request, &work.settings).and_then(|order| order.load());
    work.send(Message::Loaded { serial, why, result: loaded.map(|loaded| manifest(&loaded.run)) });
}

/// Tells what a run would do: its phases, and with `verbose` everything that is planned.
pub(super) fn dry_run(work: &Surroundings, serial: u64, request: &Request) {
    let loaded = Order::of(request, &work.settings).and_then(|order| order.load());
    let text = loaded.map(|loaded| match request.verbose {
        true => loaded.run.whole_text(),
        false => loaded.run.phases_text(),
    });
    let lines = text.map(|text| text.lines().map(visible).collect());
    work.send(Message::DryRun { serial, result: lines });
}

/// Runs a manifest to its end; its events become messages, `stops` ends it.
pub(super) fn run(work: &Surroundings, key: u64, request: &Request, stops: &Stops) {
    // A panic must not leave a run on the screen that nobody ends.
    let mut ending = Ending { work, key, result: Err(vec![broken()]) };
    ending.result = try_run(work, key, request, stops);
    stops.forget();
}

fn try_run(work: &Surroundings, key: u64, request: &Request, stops: &Stops) -> Result<RunEnd, Vec<Problem>> {
    let order = Order::of(request, &work.settings)?;
    let Loaded { run, bytes, path, given } = order.load()?;
    let bundle_dir = work.settings.current_dir.join(&order.args.bundle_dir);
    work.send(Message::RunPlanned { key, manifest: manifest(&run), runs_dir: bundle_dir.clone() });
    let request = RunRequest {
        compiled: run,
        source: path,
        bytes,
        vars: given,
        bundle_dir,
        force: order.args.force,
        signing: None,
    };
    let watcher = Watcher { work: work.clone(), key };
    let prepared = act::prepare(request, vec![Box::new(watcher)], &order.settings).map_err(problems)?;
    stops.listen(prepared.stopper());
    let ended = reach::block_on(prepared.run()).map_err(problems)?.map_err(problems)?;
    let error = ended.meta.error.map(|error| error.lines().map(visible).collect::<Vec<_>>().join("\n"));
    let bundle = ended.report.bundle.map(PathBuf::from);
    let unpacked = bundle.as_deref().and_then(|bundle| bundles::unpack(bundle).ok()).map(Arc::new);
    Ok(RunEnd { bundle, unpacked, error })
}

/// Says how a run ended, whatever happened.
struct Ending<'a> {
    work: &'a Surroundings,
    key: u64,
    result: Result<RunEnd, Vec<Problem>>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Err(Vec::new()));
        self.work.send(Message::RunEnded { key: self.key, result });
    }
}

fn broken() -> Problem {
    Problem {
        place: String::new(),
        message: "a part of stead broke; please report this".to_owned(),
        help: "`stead resume last` collects what the run left".to_owned(),
    }
}

/// Tells the screen what happens in a run.
struct Watcher {
    work: Surroundings,
    key: u64,
}

impl Observer for Watcher {
    fn on_event(&mut self, event: &Event) {
        self.work.send(Message::RunEvent { key: self.key, event: Box::new(event.clone()) });
    }
}

/// What was typed into the fields, as the command line that says the same.
struct Order {
    args: RunManifestArgs,
    settings: Settings,
}

impl Order {
    fn of(request: &Request, settings: &Settings) -> Result<Self, Vec<Problem>> {
        let argv = argv(request, settings);
        let typed: Vec<OsString> = argv.iter().map(Into::into).collect();
        match Cli::parse_argv(&typed) {
            Ok(Cli { command: Command::Run(RunCommand::Manifest(args)), .. }) => {
                let mut settings = settings.clone();
                settings.argv = argv;
                Ok(Self { args: *args, settings })
            }
            Ok(_) => Err(vec![broken()]),
            Err(error) => {
                let (message, help) = split_usage(&error);
                Err(vec![Problem {
                    place: String::new(),
                    message: one_line(&message),
                    help: one_line(&help),
                }])
            }
        }
    }

    fn load(&self) -> Result<Loaded, Vec<Problem>> {
        load::load(&self.args, &self.settings).map_err(problems)
    }
}

fn argv(request: &Request, settings: &Settings) -> Vec<String> {
    let mut argv = vec!["stead".to_owned(), "run".to_owned(), "manifest".to_owned()];
    argv.push(format!("--bundle-dir={}", entries::expand(&request.bundle_dir, settings)));
    // The default is not the same for every manifest: one that ends by a signal has no limit.
    if request.timeout != DEFAULT_TIMEOUT {
        argv.push(format!("--timeout={}", request.timeout));
    }
    if request.verbose {
        argv.push("--verbose".to_owned());
    }
    argv.push("--".to_owned());
    argv.push(entries::expand(&request.manifest, settings));
    argv
}

fn manifest(compiled: &CompiledRun) -> Manifest {
    let roles = compiled.run.in_start_order().map(|(name, role)| RoleLine {
        name: one_line(name),
        kind: role.kind.as_str().to_owned(),
        agent: one_line(role.agent_id.as_str()),
        transport: one_line(&role.transport),
    });
    let phases = compiled.compiled.plan.indexed().map(|(_, task)| task.name.to_string());
    let warnings = compiled.run.warnings.iter().map(|warning| one_line(&warning.text));
    Manifest { roles: roles.collect(), phases: phases.collect(), warnings: warnings.collect() }
}

/// Returns every problem of a failure, each with its place.
fn problems(failure: Failure) -> Vec<Problem> {
    match &failure.source {
        Source::Diagnostics(diagnostics) => {
            let errors = diagnostics.iter().filter(|problem| problem.severity == Severity::Error);
            let told = errors.map(|problem| {
                let path = if problem.path.is_empty() { String::new() } else { format!(" {}", problem.path) };
                Problem {
                    place: one_line(&format!("{}{path}", problem.place)),
                    message: one_line(&problem.message),
                    help: one_line(&problem.help),
                }
            });
            told.collect()
        }
        Source::Message(_) | Source::Error(_) => vec![Problem {
            place: String::new(),
            message: one_line(&failure.message()),
            help: one_line(&failure.hints.join("\n")),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::GlobalArgs;
    use crate::settings::{Environment, Terminals};

    fn order(manifest: &str, bundle_dir: &str, timeout: &str) -> Result<Order, Vec<Problem>> {
        let environment: Environment = [("HOME", "/home/ann")].into_iter().collect();
        let place = PathBuf::from("/lab");
        let settings = Settings::new(&GlobalArgs::default(), environment, Terminals::default(), place);
        let text = |text: &str| text.to_owned();
        let request = Request {
            manifest: text(manifest),
            bundle_dir: text(bundle_dir),
            timeout: text(timeout),
            verbose: false,
        };
        Order::of(&request, &settings)
    }

    #[test]
    fn the_fields_mean_what_the_flags_mean() {
        let defaults = order("lab.yaml", "runs", "5m").unwrap().args;
        assert_eq!((defaults.timeout, defaults.bundle_dir), (None, PathBuf::from("runs")));
        let typed = order("-odd name.yaml", "~/x", "90s").unwrap();
        assert_eq!(typed.args.file, PathBuf::from("-odd name.yaml"));
        assert_eq!(typed.args.bundle_dir, PathBuf::from("/home/ann/x"));
        assert_eq!(typed.args.timeout, Some(std::time::Duration::from_secs(90)));
        assert_eq!(typed.settings.argv[..3], ["stead", "run", "manifest"]);
    }

    #[test]
    fn a_field_that_means_nothing_is_told() {
        for (bundle_dir, timeout) in [("runs", "90"), ("runs", ""), ("", "5m")] {
            let problems = order("lab.yaml", bundle_dir, timeout).err().unwrap();
            assert_eq!(problems.len(), 1);
            assert!(!problems[0].message.is_empty());
        }
    }
}
