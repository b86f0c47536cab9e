//! Nodes that commands without a run of their own are about: `drift`, `exec`.

use std::collections::BTreeSet;
use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesSurroundings, Pairs};
use stead_drivers::site::Manifests;
use stead_drivers::transport::Notices;
use stead_engine::compile::nodes::NodesVerb;
use stead_engine::nodes::{FindHostError, check_known, find_host, means};
use stead_model::{Diagnostics, NodeName};
use stead_runner::Runner;

use super::act::Prepared;
use super::load;
use crate::args::{ManifestArgs, NodesArgs, OutputArgs, PairArgs, SelectArgs, SiteArgs};
use crate::commands::site::{self, SiteDir};
use crate::commands::validate::no_selection;
use crate::failure::{Failure, FailureKind};
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
    if pairs.is_empty() {
        refuse_unknown(args, &directory)?;
    }
    let mut meant = Meant::default();
    // Of one manifest every word has to mean a node; over several each means nodes of some.
    let mut unknown: BTreeSet<&str> = match args.manifest.is_none() {
        true => words(only).collect(),
        false => BTreeSet::new(),
    };
    let (mut names, mut broken) = (BTreeSet::new(), None);
    for (host, name) in pairs {
        let pair = Pair {
            verb,
            args,
            host: user.map_or_else(|| host.clone(), |user| format!("{user}@{host}")),
            manifest: ManifestArgs { manifest: Some(name.clone()), ..ManifestArgs::default() },
        };
        let chosen = match args.manifest.is_some() || only.is_empty() {
            true => Ok(only.to_vec()),
            false => pair.words_of(only, settings),
        };
        let memory = Memory::open(known.state_file(&host, &name), &name, &host);
        let own = memory.map(|memory| memory.look(|state| state.nodes.keys().cloned().collect::<Vec<_>>()));
        names.extend(own.iter().flatten().cloned());
        let level = match chosen {
            Ok(chosen) if chosen.is_empty() && !only.is_empty() => continue,
            Ok(chosen) => {
                unknown.retain(|word| !chosen.iter().any(|own| own == word));
                pair.level(&chosen, settings)
            }
            Err(failure) => Err(failure),
        };
        match level {
            Ok(level) => meant.levels.push((format!("{name} on {host}"), level)),
            Err(failure) if args.manifest.is_some() => return Err(failure),
            Err(failure) => {
                let why = failure.message();
                let why = why.lines().next().unwrap_or_default().to_owned();
                let Ok(own) = own else { return Err(failure) };
                unknown.retain(|word| !own.iter().any(|name| is_meant(word, name)));
                let own = own.into_iter().filter(|name| means(only, name.as_str()));
                meant.undescribed.extend(own.map(|name| (name, why.clone())));
                broken.get_or_insert(failure);
            }
        }
    }
    // Nodes that are there and that their manifest does not have any more are not compared with anything.
    for name in names.iter().filter(|name| unknown.iter().any(|word| is_meant(word, name))) {
        meant.undescribed.push((name.clone(), "no manifest has it any more".to_owned()));
    }
    unknown.retain(|word| !names.iter().any(|name| is_meant(word, name)));
    let Some(word) = unknown.first() else { return Ok(meant) };
    // Whoever cannot be heard of might know it; else it is a name that nobody has.
    match broken {
        Some(failure) => Err(failure),
        None => {
            let checked = check_known(&[(*word).to_owned()], names.iter().map(NodeName::as_str));
            checked.map_err(|error| Failure::invalid(Diagnostics(vec![no_selection(&error)])))?;
            Ok(meant)
        }
    }
}

/// Returns the names and globs that were given; one that is empty, where there is nothing else, means no node.
fn words(only: &[String]) -> impl Iterator<Item = &str> {
    let mut words: Vec<&str> = only.iter().flat_map(|words| words.split(',')).map(str::trim).collect();
    if words.iter().any(|word| !word.is_empty()) {
        words.retain(|word| !word.is_empty());
    }
    words.into_iter()
}

/// Whether a name or glob means the node `name`.
fn is_meant(word: &str, name: &NodeName) -> bool {
    means(&[word.to_owned()], name.as_str())
}

/// One manifest on one host, for a command that means several.
struct Pair<'a> {
    verb: NodesVerb,
    args: &'a PairArgs,
    host: String,
    manifest: ManifestArgs,
}

impl Pair<'_> {
    /// Returns the names and globs of `only` that mean nodes of this pair.
    fn words_of(&self, only: &[String], settings: &Settings) -> Result<Vec<String>, Failure> {
        let select = SelectArgs::default();
        let asked = asked(self.manifest.clone(), self.host.clone(), select, self.args.site.clone());
        let loaded = load::known(self.verb, &asked, settings)?;
        let is_known = |word: &&str| {
            let mut nodes = loaded.forest.nodes.iter();
            loaded.forest.named(word).is_some() || nodes.any(|node| is_meant(word, &node.name))
        };
        Ok(words(only).filter(is_known).map(str::to_owned).collect())
    }

    /// Returns what is known of its nodes.
    fn level(&self, only: &[String], settings: &Settings) -> Result<Arc<NodesSurroundings>, Failure> {
        one(self.verb, self.args, only, self.host.clone(), self.manifest.clone(), settings)
    }
}

/// Refuses the name of a manifest or a host that there is not, and of which nothing is known either.
fn refuse_unknown(args: &PairArgs, directory: &SiteDir) -> Result<(), Failure> {
    if args.manifest.is_none() && args.host.is_none() {
        return Ok(());
    }
    let loaded = site::load(directory, Manifests::None)?;
    if let Some(host) = &args.host
        && let Err(FindHostError::Unknown(problem)) = find_host(&loaded.site, host)
    {
        return Err(Failure::invalid(Diagnostics(vec![*problem])));
    }
    match args.manifest.as_ref().filter(|name| !loaded.manifest_names.contains(name)) {
        Some(name) => {
            let message = format!("there is no manifests/{name}.yaml, and no node of it is known");
            Err(Failure::unknown_name(FailureKind::Invalid, message))
        }
        None => Ok(()),
    }
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
