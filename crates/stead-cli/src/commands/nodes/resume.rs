//! Going on with a run of nodes: what was asked for is asked again, and the run goes on where it stopped.

use std::path::PathBuf;

use clap::ValueEnum as _;
use serde_json::Value;
use stead_engine::compile::nodes::NodesVerb;
use stead_model::ExitCode;
use stead_model::bundle::RunMeta;
use stead_runner::ResumeOptions;

use super::act::Prepared;
use super::{load, verb};
use crate::args::{ManifestArgs, ModeWord, NodesArgs, OnErrorWord, ResumeArgs, SelectArgs, SiteArgs};
use crate::commands::resume::names;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::{Layer, Settings, StateDir};

/// Goes on with the run of nodes recorded in `bundle`.
pub(in crate::commands) fn recorded(
    bundle: PathBuf,
    meta: &RunMeta,
    args: &ResumeArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let (verb, again) = asked(meta, &bundle, args)?;
    // Everything of the run is where the run is.
    let state_dir = bundle.parent().and_then(|runs| runs.parent()).map(PathBuf::from);
    let mut settings = settings.clone();
    if let Some(path) = state_dir {
        settings.state_dir = StateDir { path, layer: Layer::Flag };
    }
    verb::answered(verb, &again, output, |output| {
        let loaded = load::load(verb, &again, &settings)?;
        let mut prepared = Prepared::new(verb, loaded, false, &settings)?;
        prepared.report_dir = meta.plan.vars.get("report_dir").and_then(Value::as_str).map(PathBuf::from);
        let options = ResumeOptions {
            rerun: names(&args.rerun, &prepared.compiled.plan)?,
            assume_done: names(&args.assume_done, &prepared.compiled.plan)?,
            force: args.force,
        };
        let resumed = Some((bundle.clone(), meta.plan.clone(), options));
        let (report, seen) = prepared.run(&again, resumed, &settings, output)?;
        Ok(verb::show(&prepared, &report, &seen, &again, &settings, output))
    })
}

/// Returns what the run was asked for, as if it were typed again.
fn asked(
    meta: &RunMeta,
    bundle: &std::path::Path,
    args: &ResumeArgs,
) -> Result<(NodesVerb, NodesArgs), Failure> {
    let vars = &meta.plan.vars;
    let text = |key: &str| vars.get(key).and_then(Value::as_str).map(str::to_owned);
    let verb = match text("verb").as_deref() {
        Some("create") => NodesVerb::Create,
        Some("destroy") => NodesVerb::Destroy,
        Some("test") => NodesVerb::Test,
        Some("verify") => NodesVerb::Verify,
        Some(_) | None => {
            let message = format!("{} does not say what was done with the nodes", meta.run_id);
            return Err(Failure::new(FailureKind::Verification, message));
        }
    };
    let manifest = text("manifest");
    let own = bundle.join("manifest.yaml");
    let manifest = ManifestArgs {
        // Of a manifest that is no file of the site only the record is left.
        manifest_json: match manifest {
            Some(_) => None,
            None => Some(std::fs::read_to_string(&own).map_err(|error| {
                Failure::new(FailureKind::Verification, format!("cannot read {}: {error}", own.display()))
            })?),
        },
        manifest,
        manifest_file: None,
    };
    let again = NodesArgs {
        manifest,
        host: text("host").unwrap_or_default(),
        select: SelectArgs {
            mode: text("mode").and_then(|word| ModeWord::from_str(&word, false).ok()),
            only: meta.plan.only.clone(),
            depth: vars.get("depth").and_then(Value::as_u64).and_then(|depth| usize::try_from(depth).ok()),
        },
        site: SiteArgs { site: text("site").map(PathBuf::from) },
        dry_run: false,
        yes: !vars.get("only_new").and_then(Value::as_bool).unwrap_or_default(),
        wait_lock: args.wait_lock,
        on_error: text("on_error").and_then(|word| OnErrorWord::from_str(&word, false).ok()),
        self_addr: text("self_addr"),
        skip_preflight: vars.get("skip_preflight").and_then(Value::as_bool).unwrap_or_default(),
        run_id: None,
        output: args.output.clone(),
    };
    Ok((verb, again))
}
