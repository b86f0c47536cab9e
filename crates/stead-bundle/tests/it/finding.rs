//! Finding bundles: lists, details, and what a person types.

use std::fs;

use serde_json::json;
use stead_bundle::{Lister, ResolveError, info, list, resolve};

use crate::fixture::{create_with, meta, sealed};

const OLD: &str = "2026-11-15_06-55-12.345-k3f9q2ma";
const NEW: &str = "2026-11-15_06-55-12.346-a3f9q2mb";

fn add(state: &std::path::Path, run_id: &str, started_at: &str) {
    drop(create_with(state, &meta(run_id, started_at)).unwrap());
}

#[test]
fn lists_are_newest_first_filtered_and_limited() {
    let state = tempfile::tempdir().unwrap();
    add(state.path(), "zz-oldest", "2025-01-01T00:00:00Z");
    add(state.path(), OLD, "2026-11-15T06:55:12.345000Z");
    add(state.path(), NEW, "2026-11-15T06:55:12.346000Z");
    sealed(state.path(), "failed-one");
    let runs = state.path().join("runs");
    fs::create_dir(runs.join(".tmp-1-0-x")).unwrap();
    fs::write(runs.join(".tmp-1-0-x/run_meta.json"), "{}").unwrap();
    fs::create_dir(runs.join("no-bundle")).unwrap();
    fs::create_dir(runs.join("broken")).unwrap();
    fs::write(runs.join("broken/run_meta.json"), "{").unwrap();

    let both = [runs.clone(), state.path().join("nowhere"), runs.clone()];
    let all = list(&both, None, None).unwrap();
    let ids: Vec<_> = all.bundles.iter().map(|row| row.run_id.as_str()).collect();
    assert_eq!(ids, [NEW, OLD, "failed-one", "zz-oldest"]);
    assert_eq!(all.problems.len(), 1);
    assert!(all.problems[0].to_string().contains("broken"));

    let running = list(&both, Some("running"), Some(2)).unwrap();
    let ids: Vec<_> = running.bundles.iter().map(|row| row.run_id.as_str()).collect();
    assert_eq!(ids, [NEW, OLD]);
    let failed = list(&both, Some("failed"), None).unwrap();
    let expected = json!([{
        "run_id": "failed-one", "path": runs.join("failed-one"), "kind": "plan", "plan": "web", "status": "failed",
        "started_at": "2026-01-02T03:04:05.678901Z", "duration_seconds": 0.0, "sealed": true,
    }]);
    assert_eq!(serde_json::to_value(&failed.bundles).unwrap(), expected);
}

/// What is sealed is read once, unless it is taken up again; what goes on is read each time.
#[test]
fn lists_that_are_made_again_read_what_has_changed() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    add(state.path(), "r2", "2026-11-15T06:55:12.345000Z");
    let runs = [state.path().join("runs")];
    let mut lister = Lister::default();
    let mut shown = || {
        let listing = lister.list(&runs).unwrap();
        listing.bundles.into_iter().map(|row| (row.run_id, row.status, row.sealed)).collect::<Vec<_>>()
    };
    let row = |id: &str, status: &str, sealed| (id.to_owned(), status.to_owned(), sealed);
    assert_eq!(shown(), [row("r2", "running", false), row("r1", "failed", true)]);
    let told = |file: &std::path::Path, from: &str, to: &str| {
        fs::write(file, fs::read_to_string(file).unwrap().replace(from, to)).unwrap();
    };
    let other = state.path().join("runs/r2/run_meta.json");
    told(&other, "running", "success");
    stead_bundle::unseal(&bundle).unwrap();
    assert_eq!(shown(), [row("r2", "success", false), row("r1", "failed", false)]);
    fs::remove_dir_all(&bundle).unwrap();
    assert_eq!(shown(), [row("r2", "success", false)]);
}

#[test]
fn info_counts_files_and_shows_metadata() {
    let state = tempfile::tempdir().unwrap();
    let bundle = sealed(state.path(), "r1");
    let shown = info(&bundle).unwrap();
    assert_eq!((shown.run_id.as_deref(), shown.sealed, shown.files), (Some("r1"), true, 8));
    assert_eq!(shown.run_meta["plan"], "web");
    assert_eq!(shown.versions["driver_os"], "linux");
    assert!(info(state.path()).is_err());
}

#[test]
fn a_run_is_found_by_id_beginning_random_part_last_and_path() {
    let state = tempfile::tempdir().unwrap();
    let runs = [state.path().join("runs")];
    add(state.path(), "web", "2025-01-01T00:00:00Z");
    add(state.path(), "web-2", "2025-01-02T00:00:00Z");
    add(state.path(), OLD, "2026-11-15T06:55:12.345000Z");
    add(state.path(), NEW, "2026-11-15T06:55:12.346000Z");
    let found = |argument: &str| resolve(argument, &runs).map(|path| path.file_name().unwrap().to_owned());
    for (argument, id) in [
        (OLD, OLD),
        ("2026-11-15_06-55-12.345", OLD),
        ("k3f9q2ma", OLD),
        ("last", NEW),
        ("web", "web"),
        ("web-", "web-2"),
    ] {
        assert_eq!(found(argument).unwrap(), id, "{argument}");
    }
    let path = runs[0].join("web");
    assert_eq!(resolve(path.to_str().unwrap(), &[]).unwrap(), path);

    match found("2026-11") {
        Err(ResolveError::Ambiguous { count: 2, candidates, .. }) => assert_eq!(candidates, [NEW, OLD]),
        other => panic!("{other:?}"),
    }
    for unknown in ["nope", "", "./nope", "..", "3f9q2ma"] {
        match found(unknown) {
            Err(error @ ResolveError::Unknown { .. }) => {
                assert!(error.to_string().contains("web-2"), "{error}")
            }
            other => panic!("{unknown}: {other:?}"),
        }
    }
    // A run with a given id can be the last one too.
    add(state.path(), "a-later-one", "2027-01-01T00:00:00Z");
    assert_eq!(found("last").unwrap(), "a-later-one");
    assert!(matches!(resolve("last", &[]), Err(ResolveError::Unknown { .. })));
}
