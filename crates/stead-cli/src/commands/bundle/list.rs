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
                )
                .hint("name a directory that holds runs; without one, those of here are listed"));
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
        if args.status.is_none() {
            output.err.print_line("hint: every run leaves one; `stead init plan hello` writes a first plan");
        }
    } else {
        output.out.print(&to_text(&listing.bundles, table::width_of_stdout()));
    }
    Ok(ExitCode::Success)
}

/// Returns a table; for a terminal that is too narrow without the time, and then with two lines for each run.
fn to_text(bundles: &[Listed], width: Option<usize>) -> String {
    let header = ["RUN", "KIND", "STATUS", "STARTED", "DURATION", "SEALED"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(bundles.iter().map(cells)).collect();
    let whole = table::to_text(&rows);
    if table::fits(&whole, width) {
        return whole;
    }
    // A run is called after the moment it started, unless somebody chose its name.
    let without = |[run, kind, status, _, took, sealed]: [String; 6]| [run, kind, status, took, sealed];
    table::fitting(&rows.into_iter().map(without).collect::<Vec<_>>(), width)
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

#[cfg(test)]
mod tests {
    use stead_model::time::Timestamp;

    use super::*;

    /// Eighty columns are what most terminals begin with.
    #[test]
    fn a_list_fits_its_terminal() {
        let bundles = [Listed {
            run_id: "2026-11-18_10-16-49.466-nb2zpbyp".to_owned(),
            path: "x".to_owned(),
            kind: Some("nodes".to_owned()),
            plan: None,
            status: "cancelled".to_owned(),
            started_at: Some(Timestamp::from_micros(1_794_996_209_466_000)),
            duration_seconds: Some(61.5),
            sealed: true,
        }];
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        let whole = to_text(&bundles, None);
        assert!(widest(&whole) > 80 && whole == to_text(&bundles, Some(120)), "{whole}");
        for (width, lines) in [(80, 2), (40, 4)] {
            let text = to_text(&bundles, Some(width));
            assert!(widest(&text) <= width && text.lines().count() == lines, "{text}");
            for word in ["2026-11-18_10-16-49.466-nb2zpbyp", "nodes", "cancelled", "1m01s", "yes", "SEALED"] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }
}
