//! `stead bundle replay PATH`.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use stead_bundle::{EVENTS, LOGS, Source, Unpacked, open_inside};
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, ExitCode, event};

use crate::args::{BundleReplayArgs, Speed};
use crate::commands::bundle::{find, unreadable};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;
use crate::render::replay::Replayed;
use crate::settings::Settings;

/// The directory of roles in a bundle.
const ROLES: &str = "roles";
/// A longer line is no event: it is read in pieces, none of which is one.
const LONGEST_EVENT: u64 = 64 << 20;

pub(crate) fn run(
    args: &BundleReplayArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let source = Source::open(&find(&args.path, settings)?).map_err(unreadable)?;
    let bundle = Unpacked::of(&source, needed).map_err(unreadable)?;
    let known = Known::of(bundle.path())?;
    known.expect("phase", args.from.as_deref(), &known.phases)?;
    known.expect("role", args.role.as_deref(), &known.roles)?;
    if known.damaged > 0 {
        let message =
            format!("warning: {} lines of the journal cannot be read and are left out", known.damaged);
        output.err.print_line(&message);
    }
    if args.json {
        return as_document(args, bundle.path(), output);
    }
    let mut replayed = Replayed::new(output.out.clone(), bundle.path().to_owned(), args.role.clone());
    let mut tempo = Tempo::new(args.speed);
    let mut begun = args.from.is_none();
    each_event(bundle.path(), |event| {
        begun |= event.kind.task().map(|task| task.as_str()) == args.from.as_deref();
        if begun {
            tempo.wait_for(event.t);
            replayed.show(event);
        } else {
            replayed.pass_over(event);
        }
        !output.out.is_closed()
    })?;
    replayed.finish();
    Ok(ExitCode::Success)
}

/// Prints the events as one document, without their pauses.
fn as_document(args: &BundleReplayArgs, bundle: &Path, output: &Output) -> Result<ExitCode, Failure> {
    let mut begun = args.from.is_none();
    let mut events = Vec::new();
    each_event(bundle, |event| {
        let task = event.kind.task().map(|task| task.as_str());
        begun |= task == args.from.as_deref();
        let mut told = serde_json::to_value(&event.kind).unwrap_or_default();
        told["seq"] = json!(event.seq);
        told["t"] = json!(event.t);
        let is_of = |role: &str| task == Some(role) || told["role"] == role;
        if begun && args.role.as_deref().is_none_or(is_of) {
            events.push(told);
        }
        true
    })?;
    output.out.print(&json::document(&json!({"schema": 1, "events": events})));
    Ok(ExitCode::Success)
}

/// Whether a file of a bundle is needed to show its run again.
fn needed(path: &Path) -> bool {
    path == Path::new(EVENTS)
        || path.starts_with(LOGS)
        || (path.starts_with(ROLES) && path.extension().is_some_and(|end| end == "log"))
}

/// What a journal has to offer.
#[derive(Default)]
struct Known {
    phases: BTreeSet<String>,
    roles: BTreeSet<String>,
    damaged: u64,
}

impl Known {
    fn of(bundle: &Path) -> Result<Self, Failure> {
        let mut known = Self::default();
        known.damaged = each_event(bundle, |event| {
            let kind = &event.kind;
            if let EventKind::Log { task, .. } = kind {
                known.roles.insert(task.to_string());
            } else if let EventKind::RoleStarted(started) = kind {
                known.roles.insert(started.role.clone());
            } else {
                known.phases.extend(kind.task().map(ToString::to_string));
            }
            true
        })?;
        for entry in std::fs::read_dir(bundle.join(ROLES)).into_iter().flatten().flatten() {
            known.roles.insert(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(known)
    }

    fn expect(&self, what: &str, name: Option<&str>, names: &BTreeSet<String>) -> Result<(), Failure> {
        match name {
            Some(name) if !names.contains(name) => {
                let list = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let message = format!("the bundle has no {what} `{name}`; it has {list}");
                Err(Failure::unknown_name(FailureKind::Usage, message))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Gives every event of the bundle's journal to `take` until that returns false; returns how many lines are none.
pub(crate) fn each_event(bundle: &Path, mut take: impl FnMut(&Event) -> bool) -> Result<u64, Failure> {
    let path = bundle.join(EVENTS);
    let unreadable = |error: io::Error| Failure::unreadable(path.display(), &error);
    let mut lines = BufReader::new(open_inside(bundle, Path::new(EVENTS)).map_err(unreadable)?);
    let (mut line, mut damaged) = (Vec::new(), 0);
    loop {
        line.clear();
        if (&mut lines).take(LONGEST_EVENT).read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            return Ok(damaged);
        }
        match event::decode(line.strip_suffix(b"\n").unwrap_or(&line)) {
            Ok(event) if !take(&event) => return Ok(damaged),
            Ok(_) => {}
            Err(_) => damaged += 1,
        }
    }
}

/// When the next event is due.
struct Tempo {
    speed: Speed,
    /// The moment of the first event, and when it was shown.
    begun: Option<(Timestamp, Instant)>,
}

impl Tempo {
    fn new(speed: Speed) -> Self {
        Self { speed, begun: None }
    }

    fn wait_for(&mut self, moment: Timestamp) {
        let Speed::Times(times) = self.speed else { return };
        let (first, shown) = *self.begun.get_or_insert_with(|| (moment, stead_runner::clock::instant()));
        let recorded = Duration::from_millis(moment.millis_since(first));
        let due = Duration::try_from_secs_f64(recorded.as_secs_f64() / times).unwrap_or(Duration::MAX);
        std::thread::sleep(due.saturating_sub(shown.elapsed()));
    }
}
