//! `stead fleet plan`: what a commit would change, before anybody merges it.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use stead_engine::fleet::plan::Plan;
use stead_fleet::api::Master as _;
use stead_fleet::publisher::{self, Metrics, PlanError, PlanRequest, Planned};
use stead_model::diagnostic::Source;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::state::Snapshot;
use stead_model::{Diagnostics, ExitCode};

use super::{call_failure, file, way};
use crate::args::{FailOn, FleetPlanArgs};
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &FleetPlanArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let what = match (&args.rev, &args.specs) {
        (_, Some(file)) => {
            let path = settings.current_dir.join(file);
            Planned::Specs { name: file.display().to_string(), text: text_of(&path)? }
        }
        (Some(rev), None) => Planned::Revision(rev.clone()),
        (None, None) => return Err(Failure::new(FailureKind::Usage, "give a revision, or --specs")),
    };
    let publisher = publisher::Settings {
        file: publisher_file(args, settings)?,
        directory: way::directory(settings),
        name: "plan".to_owned(),
        commit: None,
        events: None,
        metrics: Arc::new(Metrics::default()),
    };
    let plan = reach::block_on(async {
        let snapshot = snapshot(args, settings).await?;
        let request = PlanRequest {
            what,
            commit: args.commit.clone(),
            group: args.group.clone(),
            build: args.build,
            snapshot,
        };
        publisher::plan(&publisher, request).await.map_err(plan_failure)
    })??;
    if args.way.json {
        output.out.print(&render_json::document(&json!(plan)));
    } else {
        output.out.print(&to_text(&plan));
    }
    let is_hit = args.fail_on.iter().any(|what| match what {
        FailOn::Replace => !plan.replace.is_empty(),
        FailOn::Move => !plan.moves.is_empty(),
        FailOn::Unschedulable => !plan.unschedulable.is_empty(),
        FailOn::Held => plan.held.is_some(),
    });
    Ok(if is_hit { ExitCode::Verification } else { ExitCode::Success })
}

fn plan_failure(error: PlanError) -> Failure {
    let kind = match error.exit_code() {
        2 => FailureKind::Usage,
        3 => FailureKind::Invalid,
        _ => FailureKind::Work,
    };
    let message = error.to_string();
    if let PlanError::Invalid { problems, .. } = &error
        && problems.has_errors()
    {
        return Failure::invalid(problems.clone());
    }
    let is_unknown = matches!(error, PlanError::UnknownGroup { .. });
    let failure = Failure::caused_by(kind, error);
    if is_unknown {
        return failure.code("usage/unknown-name");
    }
    // Git's answer to a name it does not know; the publisher keeps no other trace of it.
    if message.contains("there is no commit `") {
        return Failure { kind: FailureKind::Usage, ..failure }
            .code("usage/unknown-name")
            .hint("name a branch, tag or commit of the repository");
    }
    failure
}

/// Returns the state of the fleet: of the file, else of its master.
async fn snapshot(args: &FleetPlanArgs, settings: &Settings) -> Result<Snapshot, Failure> {
    let (name, text) = match &args.snapshot {
        Some(file) => (file.display().to_string(), text_of(&settings.current_dir.join(file))?),
        None => {
            let master = way::master(&args.way, settings).await?;
            ("the master's snapshot".to_owned(), master.snapshot().await.map_err(call_failure)?.0)
        }
    };
    Snapshot::read(&name, &text).map_err(Failure::invalid)
}

/// Returns what a publisher would be told: its file, else that the repository is here.
fn publisher_file(args: &FleetPlanArgs, settings: &Settings) -> Result<PublisherFile, Failure> {
    let default = way::directory(settings).join("publisher.yaml");
    if args.config.is_some() || default.exists() {
        return file::read(args.config.as_deref(), default, &[], PublisherFile::read);
    }
    let here = json!({"repo": settings.current_dir.display().to_string(), "masters": ["127.0.0.1:1"]});
    let source = Source { name: "here".into(), text: here.to_string().into() };
    let mut diagnostics = Diagnostics::default();
    PublisherFile::read(&source, &mut diagnostics)
        .filter(|_| diagnostics.0.is_empty())
        .ok_or_else(|| Failure::invalid(diagnostics))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path.display(), &error))
}

fn to_text(plan: &Plan) -> String {
    let mut text = String::new();
    for instance in &plan.add {
        let worker = plan.assign.get(instance).map(|worker| format!(" on {worker}")).unwrap_or_default();
        text.push_str(&format!("+ {instance}{worker}\n"));
    }
    for replaced in &plan.replace {
        text.push_str(&format!("~ {} is replaced: {}\n", replaced.instance, replaced.fields.join(", ")));
    }
    for moved in &plan.moves {
        let reason = json!(moved.reason);
        let reason = reason.as_str().unwrap_or_default();
        text.push_str(&format!("> {} from {} to {}: {reason}\n", moved.instance, moved.from, moved.to));
    }
    for instance in &plan.remove {
        text.push_str(&format!("- {instance}\n"));
    }
    for homeless in &plan.unschedulable {
        text.push_str(&format!("! {} has no place: {}\n", homeless.instance, homeless.message));
    }
    if let Some(held) = &plan.held {
        text.push_str(&format!("it would be held: {} ({})\n", held.message, held.code));
    }
    for note in &plan.notes {
        text.push_str(&format!("note: fleet.yaml: {note}\n"));
    }
    text.push_str(&format!("{} unchanged\n", plan.unchanged));
    text
}
