//! `stead fleet status`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use stead_fleet::api::{Master, StatusFilter};
use stead_model::ExitCode;
use stead_model::diagnostic::suggest;

use super::{call_failure, parsed, shown, way};
use crate::args::FleetStatusArgs;
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;
use crate::signals;

/// How long one question waits for a change.
const LONG: Duration = Duration::from_secs(30);

pub(crate) fn run(
    args: &FleetStatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    reach::block_on(async {
        let master = way::master(&args.way, settings).await?;
        if args.snapshot {
            let snapshot = master.snapshot().await.map_err(call_failure)?;
            output.out.print_line(&snapshot.0);
            return Ok(ExitCode::Success);
        }
        let filter =
            StatusFilter { group: args.group.clone(), worker: args.worker.clone(), vm: args.vm.clone() };
        if filter != StatusFilter::default() {
            check_names(master.as_ref(), &filter).await?;
        }
        if args.watch {
            return watch(master.as_ref(), &filter, args, settings, output).await;
        }
        let (status, _) = master.status(0, Duration::ZERO, &filter).await.map_err(call_failure)?;
        let status = parsed(&status)?;
        output.out.print(&told(&status, args.way.json, settings));
        Ok(shown::exit_code(&status))
    })?
}

/// Refuses a filter with a name that nobody has: nothing would be left of the fleet, and that is converged.
async fn check_names(master: &dyn Master, filter: &StatusFilter) -> Result<(), Failure> {
    let (status, _) = master.status(0, Duration::ZERO, filter).await.map_err(call_failure)?;
    let left = parsed(&status)?;
    if !names_of(&left, filter).iter().any(|(_, wanted, names)| !names.contains(*wanted)) {
        return Ok(());
    }
    // One name may leave nothing of another: what there is says the whole fleet.
    let (status, _) =
        master.status(0, Duration::ZERO, &StatusFilter::default()).await.map_err(call_failure)?;
    let mut whole = parsed(&status)?;
    // A VM without instances is in no status.
    whole["specs"] = parsed(&master.snapshot().await.map_err(call_failure)?)?["groups"].take();
    refuse_unknown(&whole, filter)
}

fn refuse_unknown(whole: &Value, filter: &StatusFilter) -> Result<(), Failure> {
    let names = names_of(whole, filter);
    match names.into_iter().find(|(_, wanted, names)| !names.contains(*wanted)) {
        None => Ok(()),
        Some((kind, wanted, names)) => {
            let message = format!("there is no {kind} `{wanted}`");
            Err(Failure::unknown_name(FailureKind::Usage, message)
                .hint(suggest(wanted, names.iter().copied())))
        }
    }
}

/// Returns for each name of a filter what it is, and which of these there are.
fn names_of<'a>(
    status: &'a Value,
    filter: &'a StatusFilter,
) -> Vec<(&'static str, &'a str, BTreeSet<&'a str>)> {
    fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
        value.get(key).and_then(Value::as_array).into_iter().flatten()
    }
    fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
        value.get(key).and_then(Value::as_str)
    }
    let mut found = Vec::new();
    if let Some(group) = &filter.group {
        // The default one is there though nothing of it was published yet.
        let names = list(status, "groups").filter_map(|group| text(group, "group")).chain(["default"]);
        found.push(("group", group.as_str(), names.collect()));
    }
    if let Some(worker) = &filter.worker {
        let names = list(status, "workers").filter_map(|worker| text(worker, "id"));
        found.push(("worker", worker.as_str(), names.collect()));
    }
    if let Some(vm) = &filter.vm {
        let placed = list(status, "instances").filter_map(|instance| text(instance, "key"));
        let placed = placed.filter_map(|key| Some(key.split_once('/')?.0));
        let specs = list(status, "specs").flat_map(|group| list(group, "specs"));
        found.push(("VM", vm.as_str(), placed.chain(specs.filter_map(|spec| text(spec, "id"))).collect()));
    }
    found
}

fn told(status: &Value, json: bool, settings: &Settings) -> String {
    if json { format!("{status}\n") } else { shown::to_text(status, settings.stdout_paint) }
}

/// Prints every change until a signal comes; for people, every one that they would see. What was seen last is the exit code.
async fn watch(
    master: &dyn Master,
    filter: &StatusFilter,
    args: &FleetStatusArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let mut signals = signals::listen().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let mut after = 0;
    let mut last = ExitCode::Converging;
    let mut before = String::new();
    while !output.out.is_closed() {
        let asked = master.status(after, LONG, filter);
        let (status, seq) = tokio::select! {
            asked = asked => asked.map_err(call_failure)?,
            changed = signals.changed() => {
                drop(changed);
                return Ok(last);
            }
        };
        if seq == after {
            continue;
        }
        let status = parsed(&status)?;
        last = shown::exit_code(&status);
        after = seq;
        // Workers report each second, and most of the time the same.
        let now = told(&status, args.way.json, settings);
        if now != before {
            let between = if before.is_empty() || args.way.json { "" } else { "\n" };
            output.out.print(&format!("{between}{now}"));
            before = now;
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stead_model::{GroupName, VmId, WorkerName};

    use super::*;

    /// Section 14: a name that nobody has is refused with the nearest, and one that only has nothing is not.
    #[test]
    fn names_that_match_nothing_are_refused() {
        let whole = json!({
            "groups": [{"group": "default"}], "workers": [{"id": "w1"}], "instances": [{"key": "web/0"}],
            "specs": [{"group": "default", "specs": [{"id": "web"}, {"id": "none"}]}],
        });
        let ask = |group: &str, worker: &str, vm: &str| {
            let filter = StatusFilter {
                group: GroupName::parse(group).ok(),
                worker: WorkerName::parse(worker).ok(),
                vm: VmId::parse(vm).ok(),
            };
            refuse_unknown(&whole, &filter)
                .err()
                .map(|failure| (failure.exit_code(), failure.message(), failure.hints))
        };
        assert_eq!(ask("default", "w1", "none"), None);
        for (asked, message, help) in [
            (ask("defualt", "", ""), "there is no group `defualt`", "did you mean `default`?"),
            (ask("", "nope", ""), "there is no worker `nope`", "known: w1"),
            (ask("", "", "wbe"), "there is no VM `wbe`", "did you mean `web`?"),
        ] {
            assert_eq!(asked, Some((ExitCode::Usage, message.to_owned(), vec![help.to_owned()])));
        }
    }
}
