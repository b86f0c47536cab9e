//! Finds bundles and reads one: a recorded run is the fold of its events, as a live one is.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use stead_bundle::{EVENTS, LOGS, LoadError, PLAN, RUN_META, Source, Unpacked};
use stead_model::RunStatus;
use stead_runner::journal;

use super::Surroundings;
use crate::commands::bundle::run_directories_with;
use crate::failure::{Failure, FailureKind};
use crate::render::{one_line, visible};
use crate::tui::state::Message;
use crate::tui::watched::{Liveness, Verbosity, Watched};

/// Finds the bundles that `stead bundle list` finds.
pub(super) fn list(work: &Surroundings) {
    let directories = run_directories_with(&work.args.site, &work.settings);
    let found = lock(&work.kept.lister).list(&directories);
    let told = |error| Failure::caused_by(FailureKind::Invalid, error).message();
    work.send(Message::Bundles(match found {
        Ok(mut listing) => {
            for bundle in &mut listing.bundles {
                bundle.status = stead_web::status_of(bundle).to_owned();
            }
            let problem = listing.problems.into_iter().next();
            tell_once(
                work,
                problem.map(|problem| Failure::caused_by(FailureKind::Invalid, problem).message()),
            );
            Ok(listing.bundles)
        }
        Err(error) => Err(told(error)),
    }));
}

/// Says what is wrong, unless that was said the last time.
fn tell_once(work: &Surroundings, problem: Option<String>) {
    let mut last = lock(&work.kept.problem);
    if let Some(problem) = problem.as_ref().filter(|problem| last.as_ref() != Some(problem)) {
        work.send(Message::Notice(one_line(problem)));
    }
    *last = problem;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the bundle at `path`; the run is called `key`.
pub(super) fn open(work: &Surroundings, path: &Path, key: u64) {
    work.send(Message::Recorded(read(path, key).map(Box::new)));
}

/// Returns where the files of the bundle at `path` can be read that show its run.
pub(super) fn unpack(path: &Path) -> Result<Unpacked, LoadError> {
    let needed = |file: &Path| {
        let logs = file.starts_with("roles") && file.extension().is_some_and(|end| end == "log");
        logs || file.starts_with(LOGS) || [PLAN, EVENTS, RUN_META].iter().any(|name| file == Path::new(name))
    };
    Unpacked::of(&Source::open(path)?, needed)
}

/// Returns the run that is recorded at `path` before anything happened in it.
pub(super) fn unbegun(path: &Path, key: u64) -> Result<Watched, String> {
    let told = |error| one_line(&Failure::caused_by(FailureKind::Invalid, error).message());
    let unpacked = unpack(path).map_err(told)?;
    let mut run = Watched::new(key, path.parent().unwrap_or(path).to_owned(), Verbosity::Quiet);
    let plan = fs::read(unpacked.path().join(PLAN)).ok();
    if let Some(plan) = plan.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        expect(&mut run, &plan);
    }
    run.bundle = Some(path.to_owned());
    run.unpacked = Some(Arc::new(unpacked));
    Ok(run)
}

fn read(path: &Path, key: u64) -> Result<Watched, String> {
    let mut run = unbegun(path, key)?;
    let place = run.directory().unwrap_or(path).to_owned();
    let mut events = 0_u64;
    // What would be read for each event is read once, when the run is shown.
    let read = journal::read_with(&place.join(EVENTS), |event| {
        events += 1;
        drop(run.apply(&event));
    });
    match read {
        Ok(_) => {}
        Err(error) if events == 0 => {
            return Err(one_line(&Failure::caused_by(FailureKind::Invalid, error).message()));
        }
        // What is whole is still worth seeing.
        Err(error) => run.error = Some(one_line(&Failure::caused_by(FailureKind::Invalid, error).message())),
    }
    if let Ok(meta) = stead_bundle::load_meta(&place) {
        let goes_on = meta.status == RunStatus::Running && run.ended.is_none() && stead_web::is_held(path);
        run.liveness = if goes_on { Liveness::Live } else { Liveness::Over };
        let whole = meta.error.map(|error| error.lines().map(visible).collect::<Vec<_>>().join("\n"));
        run.error = whole.or_else(|| run.error.take());
    }
    Ok(run)
}

/// Learns from a recorded plan what was to happen.
fn expect(run: &mut Watched, plan: &Value) {
    let tasks = plan.get("tasks").and_then(Value::as_array).into_iter().flatten();
    tasks.filter_map(|task| task.get("name")?.as_str()).for_each(|name| run.expect_phase(name));
    let roles = plan.get("roles").and_then(Value::as_object);
    let order = plan.get("start_order").and_then(Value::as_array);
    let Some(roles) = roles else { return };
    let names: Vec<&str> = match order {
        Some(order) => order.iter().filter_map(Value::as_str).collect(),
        None => roles.keys().map(String::as_str).collect(),
    };
    for name in names {
        let agent = roles.get(name).and_then(|role| role.get("agent_id")?.as_str()).unwrap_or("-");
        run.expect_role(name, agent);
    }
}
