//! Nodes that commands without a run of their own are about: `drift`, `exec`.

use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesSurroundings, Pairs};
use stead_drivers::transport::Notices;
use stead_engine::compile::nodes::NodesVerb;
use stead_engine::nodes::means;
use stead_model::NodeName;
use stead_runner::Runner;

use super::act::Prepared;
use super::load;
use crate::args::{ManifestArgs, NodesArgs, OutputArgs, PairArgs, SelectArgs, SiteArgs};
use crate::commands::site;
use crate::failure::Failure;
use crate::settings::Settings;

/// What is known of the nodes that a command means.
#[derive(Default)]
pub(super) struct Meant {
    /// By pair of manifest and host: what the pair is called, and its nodes.
    pub(super) levels: Vec<(String, Arc<NodesSurroundings>)>,
    /// Nodes that are remembered and that nobody describes, each with why.
    pub(super) undescribed: Vec<(NodeName, String)>,
}

/// Returns what is known of the nodes of every pair of manifest and host that `args` mean.
///
/// Where all pairs are meant, one that cannot be read leaves the others as they are.
pub(super) fn surroundings(
    verb: NodesVerb,
    args: &PairArgs,
    only: &[String],
    settings: &Settings,
) -> Result<Meant, Failure> {
    let (user, host) = match args.host.as_deref().map(|host| host.rsplit_once('@').ok_or(host)) {
        Some(Ok((user, host))) => (Some(user), Some(host)),
        Some(Err(host)) => (None, Some(host)),
        None => (None, None),
    };
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let known = Pairs::of(&state_dir, &directory.path);
    let pairs = match (host, &args.manifest) {
        (Some(host), Some(manifest)) => vec![(host.to_owned(), manifest.clone())],
        (host, manifest) => known.known(host, manifest.as_deref()),
    };
    let mut meant = Meant::default();
    for (host, name) in pairs {
        let manifest = ManifestArgs { manifest: Some(name.clone()), ..ManifestArgs::default() };
        let asked = user.map_or_else(|| host.clone(), |user| format!("{user}@{host}"));
        match one(verb, args, only, asked, manifest, settings) {
            Ok(level) => meant.levels.push((format!("{name} on {host}"), level)),
            Err(failure) if args.manifest.is_some() => return Err(failure),
            Err(failure) => {
                let why = failure.message();
                let why = why.lines().next().unwrap_or_default().to_owned();
                let memory = Memory::open(known.state_file(&host, &name), &name, &host);
                let names = memory.map(|memory| memory.look(|state| state.nodes.keys().cloned().collect()));
                let names: Vec<NodeName> = names.map_err(|_| failure)?;
                let names = names.into_iter().filter(|name| means(only, name.as_str()));
                meant.undescribed.extend(names.map(|name| (name, why.clone())));
            }
        }
    }
    Ok(meant)
}

/// Returns what is known of the nodes of one manifest on one host.
pub(super) fn one(
    verb: NodesVerb,
    args: &PairArgs,
    only: &[String],
    host: String,
    manifest: ManifestArgs,
    settings: &Settings,
) -> Result<Arc<NodesSurroundings>, Failure> {
    let select = SelectArgs { only: only.to_vec(), ..SelectArgs::default() };
    let asked = asked(manifest, host, select, args.site.clone());
    let loaded = load::known(verb, &asked, settings)?;
    let prepared = Prepared::new(verb, loaded, true, settings)?;
    Ok(prepared.surroundings(&Runner::new(Default::default()), Notices::ignored(), settings))
}

/// Returns the arguments of a command that only looks.
pub(super) fn asked(manifest: ManifestArgs, host: String, select: SelectArgs, site: SiteArgs) -> NodesArgs {
    NodesArgs {
        manifest,
        host,
        select,
        site,
        dry_run: true,
        yes: true,
        wait_lock: None,
        on_error: None,
        self_addr: None,
        skip_preflight: true,
        run_id: None,
        output: OutputArgs::default(),
    }
}
