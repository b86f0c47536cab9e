//! `stead config apply -H HOST --spec NAME`: a host of the site that is there already becomes what a spec wants.

use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesParts, NodesSurroundings, NodesWishes, Pairs};
use stead_drivers::site::Manifests;
use stead_drivers::transport::{Notices, Transports};
use stead_engine::nodes::{Checked, ChosenHost, FindHostError, Forest, Selection, find_host};
use stead_model::node::Applied;
use stead_model::site::Manifest;
use stead_model::{Diagnostics, ErrorClass, NodeName};
use stead_runner::Runner;

use super::apply::resolved;
use crate::args::ConfigApplyArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::settings::Settings;

/// Applies the spec on `host`.
pub(super) fn apply(
    args: &ConfigApplyArgs,
    host: &str,
    settings: &Settings,
    output: &Output,
) -> Result<Applied, Failure> {
    let work = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let loaded = site::load(&directory, Manifests::None)?;
    let host: ChosenHost = find_host(&loaded.site, host).map_err(|error| match error {
        FindHostError::Unknown(problem) => Failure::invalid(Diagnostics(vec![*problem])),
        FindHostError::Broken(problems) => Failure::invalid(problems),
    })?;
    let node = match &args.node {
        Some(node) => node.clone(),
        None => NodeName::parse(&host.name).map_err(|error| {
            Failure::caused_by(FailureKind::Invalid, error).hint("say what it is called with --node")
        })?,
    };
    let spec = resolved(&loaded.site, args.spec.as_deref().unwrap_or_default(), &node)?;
    let pairs = Pairs::of(&state_dir, &directory.path);
    let runner = Runner::new(Default::default());
    let err = output.err.clone();
    let notices = Notices::new(move |notice| err.print_line(&notice.message));
    let surroundings = NodesSurroundings::new(NodesParts {
        site: Arc::new(loaded.site),
        site_dir: directory.path.clone(),
        memory: Arc::new(
            Memory::open(pairs.state_file(&host.name, "-"), "-", &host.name)
                .map_err(|error| Failure::new(FailureKind::Work, error.to_string()))?,
        ),
        state_dir,
        host,
        name: String::new(),
        manifest: Arc::new(Manifest::default()),
        manifest_digest: String::new(),
        forest: Arc::new(Forest::default()),
        checked: Arc::new(Checked::default()),
        selection: Arc::new(Selection { selected: Vec::new(), added: Vec::new() }),
        wishes: NodesWishes::default(),
        program: std::env::current_exe().map_err(work)?,
        connect: Arc::new(Transports::new(reach::surroundings(settings), notices)),
        announcer: runner.announcer(),
        drivers: Default::default(),
        elsewhere: Default::default(),
        server: None,
        environment: settings.environment.to_map(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(work)?;
    runtime.block_on(surroundings.set_up_host(&spec, args.dry_run)).map_err(|error| {
        let kind = match error.class {
            ErrorClass::Unreachable => FailureKind::Unreachable,
            ErrorClass::Timeout => FailureKind::TimedOut,
            ErrorClass::Invalid => FailureKind::Invalid,
            ErrorClass::Exit
            | ErrorClass::Operation
            | ErrorClass::Panic
            | ErrorClass::Permanent
            | ErrorClass::Guard
            | ErrorClass::Interrupted
            | ErrorClass::Locked
            | ErrorClass::Journal
            | ErrorClass::Check => FailureKind::Work,
        };
        Failure::new(kind, error.message)
    })
}
