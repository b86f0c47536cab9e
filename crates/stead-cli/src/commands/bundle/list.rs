//! `stead bundle list [DIR]`.

use std::path::Path;
use std::time::Duration;

use stead_bundle::Listed;
use stead_model::duration::Short;
use stead_model::{ExitCode, RunStatus};

use crate::args::BundleListArgs;
use crate::commands::bundle::run_directories;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, one_line, table};
use crate::settings::Settings;

pub(crate) fn run(
    args: &BundleListArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directories = match &args.dir {
        Some(dir) => {
            let dir = settings.current_dir.join(dir);
            if !dir.is_dir() {
                return Err(Failure::new(
                    FailureKind::Invalid,
                    format!("{} is not a directory", dir.display()),
                ));
            }
            vec![dir]
        }
        None => run_directories(settings),
    };
    let status = args.status.map(|status| status.as_str());
    let listing = stead_bundle::list(&directories, status, args.limit)
        .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    for problem in listing.problems {
        let warning = Failure::caused_by(FailureKind::Invalid, problem).message();
        output.err.print_line(&format!("warning: {}", one_line(&warning)));
    }
    if args.json {
        output.out.print(&json::document(&listing.bundles));
    } else if listing.bundles.is_empty() {
        output.err.print_line("no bundles");
    } else {
        output.out.print(&to_text(&listing.bundles));
    }
    Ok(ExitCode::Success)
}

fn to_text(bundles: &[Listed]) -> String {
    let header = ["RUN", "KIND", "STATUS", "STARTED", "DURATION", "SEALED"].map(str::to_owned);
    table::to_text(&std::iter::once(header).chain(bundles.iter().map(cells)).collect::<Vec<_>>())
}

/// Whether a run is recorded as going on, and its process is gone: nobody holds its lock.
fn is_lost(bundle: &Listed) -> bool {
    let lock = Path::new(&bundle.path).join(stead_bundle::LOCK);
    bundle.status == RunStatus::Running.as_str()
        && stead_bundle::holder_of(&lock).is_ok_and(|held| held.is_none())
}

fn cells(bundle: &Listed) -> [String; 6] {
    let unknown = || "-".to_owned();
    let seconds = bundle.duration_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    [
        one_line(&bundle.run_id),
        bundle.kind.as_deref().map_or_else(unknown, one_line),
        if is_lost(bundle) { "lost".to_owned() } else { one_line(&bundle.status) },
        // To the second is enough to find a run by.
        bundle
            .started_at
            .map_or_else(unknown, |at| format!("{}Z", at.to_string().split('.').next().unwrap_or_default())),
        seconds.map_or_else(unknown, |duration| Short(duration).to_string()),
        if bundle.sealed { "yes" } else { "no" }.to_owned(),
    ]
}
