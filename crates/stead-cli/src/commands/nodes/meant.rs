//! Nodes that commands without a run of their own are about: `drift`, `exec`.

use std::path::Path;
use std::sync::Arc;

use stead_drivers::nodes::NodesSurroundings;
use stead_drivers::transport::Notices;
use stead_engine::compile::nodes::NodesVerb;
use stead_runner::Runner;

use super::act::Prepared;
use super::{load, status};
use crate::args::{ManifestArgs, NodesArgs, OutputArgs, PairArgs, SelectArgs};
use crate::commands::site;
use crate::failure::Failure;
use crate::settings::Settings;

/// Returns what is known of the nodes of every pair of manifest and host that `args` mean.
pub(super) fn surroundings(
    verb: NodesVerb,
    args: &PairArgs,
    only: &[String],
    settings: &Settings,
) -> Result<Vec<Arc<NodesSurroundings>>, Failure> {
    let pairs = match (&args.host, &args.manifest) {
        (Some(host), Some(manifest)) => vec![(host.clone(), manifest.clone())],
        (host, manifest) => {
            let directory = site::find(&args.site, settings)?;
            let state_dir = settings.state_dir.from(&directory.path).path;
            status::pairs(Path::new(&state_dir), host.as_deref(), manifest.as_deref())
        }
    };
    pairs.into_iter().map(|(host, manifest)| one(verb, args, only, host, manifest, settings)).collect()
}

fn one(
    verb: NodesVerb,
    args: &PairArgs,
    only: &[String],
    host: String,
    manifest: String,
    settings: &Settings,
) -> Result<Arc<NodesSurroundings>, Failure> {
    let asked = NodesArgs {
        manifest: ManifestArgs { manifest: Some(manifest), ..ManifestArgs::default() },
        host,
        select: SelectArgs { only: only.to_vec(), ..SelectArgs::default() },
        site: args.site.clone(),
        dry_run: true,
        yes: true,
        on_error: None,
        self_addr: None,
        skip_preflight: true,
        run_id: None,
        output: OutputArgs::default(),
    };
    let loaded = load::load(verb, &asked, settings)?;
    let prepared = Prepared::new(verb, loaded, true)?;
    Ok(prepared.surroundings(&Runner::new(Default::default()), Notices::ignored(), settings))
}
