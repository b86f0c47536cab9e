//! `stead drift`: what of the nodes is not as their specs want it any more.

use serde_json::json;
use stead_drivers::nodes::Drifted;
use stead_engine::compile::nodes::NodesVerb;
use stead_model::ExitCode;

use super::document;
use super::meant::{self, Meant};
use crate::args::{DriftArgs, ManifestArgs};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(in crate::commands) fn run(
    args: &DriftArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let found = look(args, settings).map_err(|failure| {
        let (manifest, host) = (args.pair.manifest.as_deref(), args.pair.host.as_deref());
        let told = document::of_failure("drift", manifest, host, false, &failure);
        failure.shown_as(told)
    })?;
    let code = exit_code(&found);
    if args.json {
        output.out.print(&render_json::document(&json!({
            "schema": 1, "exit_code": code, "success": code == ExitCode::Success, "drift": found.drift, "unreachable": found.unreachable,
        })));
    } else {
        for drift in &found.drift {
            let (path, expected, observed) =
                (&drift.drift.path, &drift.drift.expected, &drift.drift.observed);
            output.out.print_line(&format!("{} {path}: is {observed}, should be {expected}", drift.node));
        }
        if code == ExitCode::Success {
            output.out.print_line("nothing is different");
        }
    }
    for (node, why) in &found.reasons {
        output.err.print_line(&format!("{node} was not asked: {why}"));
    }
    Ok(code)
}

fn look(args: &DriftArgs, settings: &Settings) -> Result<Drifted, Failure> {
    let (file, json) = (&args.manifest_file, &args.manifest_json);
    let meant = match &args.pair.host {
        Some(host) if file.is_some() || json.is_some() => {
            let manifest =
                ManifestArgs { manifest: None, manifest_file: file.clone(), manifest_json: json.clone() };
            let level =
                meant::one(NodesVerb::Create, &args.pair, &args.only, host.clone(), manifest, settings)?;
            Meant { levels: vec![(host.clone(), level)], undescribed: Vec::new() }
        }
        Some(_) | None => meant::surroundings(NodesVerb::Create, &args.pair, &args.only, settings)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let mut all = Drifted {
        unreachable: meant.undescribed.iter().map(|(name, _)| name.clone()).collect(),
        reasons: meant.undescribed,
        ..Drifted::default()
    };
    for (_, level) in meant.levels {
        all.take_in(runtime.block_on(level.drifted()));
    }
    Ok(all)
}

/// 4 if something is different, 7 if some could not be asked and nothing is known to be different.
fn exit_code(found: &Drifted) -> ExitCode {
    match (found.drift.is_empty(), found.unreachable.is_empty()) {
        (false, _) => ExitCode::Verification,
        (true, false) => ExitCode::Unreachable,
        (true, true) => ExitCode::Success,
    }
}
