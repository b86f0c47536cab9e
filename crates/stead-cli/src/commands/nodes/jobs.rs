//! Where jobs of nodes are that ask another server than that of this level.

use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesSurroundings, Pairs};
use stead_engine::compile::nodes::NodesVerb;
use stead_model::node::{JobAnswer, JobAsked, JobRefusal, JobWish};
use stead_model::site::manifest::Mode;
use stead_model::{ErrorClass, NodeName, SiteKey};
use stead_runner::operation::OpError;

use super::meant::{self, Meant};
use crate::args::PairArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// What is said to somebody whose name for a node or server is several.
const SAY_WHICH: &str = "say which with -M and -H";

/// Which server a node asks.
pub(in crate::commands) enum Place {
    /// That of this level.
    Own,
    /// One below.
    Below(Below),
    /// None: it has no agent.
    Nowhere,
}

/// A server of a level below.
#[derive(Clone)]
pub(in crate::commands) struct Below {
    level: Arc<NodesSurroundings>,
    /// The way to it.
    pub(in crate::commands) path: Vec<SiteKey>,
}

impl Below {
    /// Asks it, and returns what it answers; a refusal is a failure.
    pub(in crate::commands) async fn ask(&self, wish: JobWish) -> Result<JobAnswer, Failure> {
        let asked = JobAsked { path: self.path.clone(), by_job: self.level.tells_by_job(), by: who(), wish };
        match self.level.ask_jobs(&asked).await {
            Ok(JobAnswer::Refused(refusal)) => Err(self.refused(refusal)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(failure(&error)),
        }
    }

    fn refused(&self, refusal: JobRefusal) -> Failure {
        let kind = FailureKind::of(refusal.exit_code);
        let failure = Failure::new(kind, format!("{self}: {}", refusal.message)).code(refusal.code);
        if kind == FailureKind::Unreachable {
            return failure.hint("`stead create` starts what should run there");
        }
        failure
    }
}

impl std::fmt::Display for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps: Vec<&str> = self.path.iter().map(SiteKey::as_str).collect();
        f.write_str(&steps.join("/"))
    }
}

/// Returns who asks, for the audit log of a server that knows the accounts of its own machine only.
fn who() -> String {
    let host = rustix::system::uname();
    format!("uid:{}@{}", rustix::process::geteuid().as_raw(), host.nodename().to_string_lossy())
}

/// Returns the failure of a question that had no answer.
pub(in crate::commands) fn failure(error: &OpError) -> Failure {
    let kind = if matches!(error.class, ErrorClass::Unreachable | ErrorClass::Timeout) {
        FailureKind::Unreachable
    } else if error.class == ErrorClass::Invalid {
        FailureKind::Invalid
    } else {
        FailureKind::Work
    };
    Failure::new(kind, error.message.clone())
}

/// Returns which server a node asks. One that is not remembered asks that of this level.
pub(in crate::commands) fn of_node(
    pair: &PairArgs,
    node: &NodeName,
    settings: &Settings,
) -> Result<Place, Failure> {
    if !may_be_below(pair, node, settings)? {
        return Ok(Place::Own);
    }
    let Meant { levels, undescribed } = meant::surroundings(NodesVerb::Destroy, pair, &[], settings)?;
    let mut found: Vec<(String, Below, bool)> = Vec::new();
    for (name, level) in levels {
        let Some(path) = level.server_path(node) else { continue };
        let has_agent = level.run_mode(node).is_some_and(|mode| mode != Mode::Push);
        found.push((name, Below { level, path }, has_agent));
    }
    if found.is_empty()
        && let Some((_, why)) = undescribed.iter().find(|(name, _)| name == node)
    {
        return Err(Failure::new(FailureKind::Invalid, format!("`{node}` is not found: {why}")));
    }
    if !found.iter().any(|(_, _, has_agent)| *has_agent) {
        return Ok(Place::Nowhere);
    }
    found.retain(|(_, _, has_agent)| *has_agent);
    if found.iter().all(|(_, below, _)| below.path.is_empty()) {
        return Ok(Place::Own);
    }
    let names: Vec<String> = found.iter().map(|(name, ..)| name.clone()).collect();
    match (found.pop(), found.is_empty()) {
        (Some((_, below, _)), true) => Ok(Place::Below(below)),
        (Some(_) | None, _) => {
            let message = format!("`{node}` is a node of {}", names.join(" and of "));
            Err(Failure::new(FailureKind::Invalid, message).hint(SAY_WHICH))
        }
    }
}

/// Whether a node may be remembered that asks another server than that of this level; nothing else is looked at.
fn may_be_below(pair: &PairArgs, node: &NodeName, settings: &Settings) -> Result<bool, Failure> {
    let directory = site::find(&pair.site, settings)?;
    let pairs = Pairs::of(&settings.state_dir.from(&directory.path).path, &directory.path);
    let host = pair.host.as_deref().map(|host| host.rsplit_once('@').map_or(host, |(_, host)| host));
    let known = pairs.known(host, pair.manifest.as_deref()).into_iter();
    let mut states = known.filter_map(|(host, manifest)| {
        let memory = Memory::open(pairs.state_file(&host, &manifest), &manifest, &host).ok()?;
        Some((host, memory.look(Clone::clone)))
    });
    Ok(states.any(|(host, state)| {
        let root = state.root_of(node).and_then(|root| state.nodes.get(root));
        let is_elsewhere = root.is_some_and(|root| root.host.as_deref().unwrap_or(&host) != "local");
        is_elsewhere || state.nodes.get(node).is_some_and(|entry| entry.parent.is_some())
    }))
}

/// Returns the server at the end of a way.
pub(in crate::commands) fn of_path(
    pair: &PairArgs,
    path: &[SiteKey],
    settings: &Settings,
) -> Result<Below, Failure> {
    let shown = path.first().map(SiteKey::as_str).unwrap_or_default();
    let levels = meant::surroundings(NodesVerb::Destroy, pair, &[], settings)?.levels.into_iter();
    let is_known = |level: &Arc<NodesSurroundings>| path.first().is_some_and(|step| level.knows_step(step));
    let mut found: Vec<_> = levels.filter(|(_, level)| is_known(level)).collect();
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    match (found.pop(), found.is_empty()) {
        (Some((_, level)), true) => Ok(Below { level, path: path.to_vec() }),
        (Some(_), false) => {
            let message = format!("`{shown}` is of {}", names.join(" and of "));
            Err(Failure::new(FailureKind::Invalid, message).hint(SAY_WHICH))
        }
        (None, _) => {
            let message = format!("no node or host `{shown}` is known that has nodes in it");
            Err(Failure::unknown_name(FailureKind::Usage, message))
        }
    }
}

/// Returns all servers below, and whether nodes ask that of this level.
pub(in crate::commands) fn all(pair: &PairArgs, settings: &Settings) -> Result<(Vec<Below>, bool), Failure> {
    let levels = meant::surroundings(NodesVerb::Destroy, pair, &[], settings)?.levels;
    let (mut found, mut has_own) = (Vec::new(), false);
    for (_, level) in levels {
        for path in level.server_paths() {
            match path.is_empty() {
                true => has_own = true,
                false => found.push(Below { level: Arc::clone(&level), path }),
            }
        }
    }
    Ok((found, has_own))
}

/// Returns the part of an answer that a level above asks for, as it came from below.
pub(in crate::commands) fn hand_on(
    pair: &PairArgs,
    asked: &JobAsked,
    from: u64,
    settings: &Settings,
) -> Result<String, Failure> {
    let below = of_path(pair, &asked.path, settings)?;
    let part = crate::commands::reach::block_on(below.level.ask_job_part(asked, from))?;
    part.map_err(|error| failure(&error))
}
