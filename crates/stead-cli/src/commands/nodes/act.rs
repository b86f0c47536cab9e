//! A run of nodes: what its tasks share, its runner, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_drivers::Drivers;
use stead_drivers::nodes::{
    LevelServer, NodesParts, NodesSurroundings, OnlyReach, Pairs, Preflight, is_handed_down, machine_driver,
    server_directory, write_test_report,
};
use stead_drivers::transport::{Notices, Transports};
use stead_engine::compile::CompiledPlan;
use stead_engine::compile::nodes::{Level, NodesVerb, to_plan};
use stead_engine::nodes::find_host;
use stead_engine::nodes::test_report::{Tested, test_report};
use stead_model::bundle::PlanMeta;
use stead_model::diagnostic::Place;
use stead_model::event::RunKind;
use stead_model::report::Warning;
use stead_model::site::host::Timeouts;
use stead_model::{Diagnostic, Diagnostics, NodeName, Report};
use stead_runner::machine::MachineDriver;
use stead_runner::{CheckedPlan, Provenance, Runner};

use super::load::{self, Loaded, RemovedToo, Remover};
use super::seen::Seen;
use super::server::OwnServer;
use crate::args::NodesArgs;
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{Recorded, Shown};
use crate::commands::reach::block_on;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::render::Differences;
use crate::settings::Settings;

/// How long whoever holds a port may take to say so.
const PORT_PATIENCE: Duration = Duration::from_millis(200);
/// How long a server that another run has just started may take to answer.
const SERVER_PATIENCE: Duration = Duration::from_secs(3);

/// A run of nodes that can start.
pub(super) struct Prepared {
    pub(super) verb: NodesVerb,
    pub(super) loaded: Loaded,
    pub(super) compiled: CompiledPlan,
    pub(super) orphans: Vec<NodeName>,
    /// All nodes that are removed although the manifest does not have them, outermost first.
    pub(super) removed_too: Vec<RemovedToo>,
    /// Where reports of tests go; none: `STATE/reports`.
    pub(super) report_dir: Option<PathBuf>,
    drivers: BTreeMap<String, Arc<dyn MachineDriver>>,
    program: PathBuf,
}

impl Prepared {
    /// Returns the run of `verb` over what was loaded.
    pub(super) fn new(
        verb: NodesVerb,
        mut loaded: Loaded,
        dry_run: bool,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
        let drivers = drivers(&loaded, &program, settings)?;
        let mut orphans = load::orphans(&loaded, verb);
        if verb == NodesVerb::Destroy && !(dry_run && loaded.selects_all()) {
            orphans = labelled(&loaded, &drivers, orphans)?;
            // A mistyped name is not a manifest whose nodes have all gone.
            if let Some(failure) = loaded.doubt.take().filter(|_| orphans.is_empty()) {
                return Err(failure);
            }
        }
        let orphans_apart = match verb == NodesVerb::Destroy && !loaded.selects_all() {
            true => loaded.orphans_apart()?,
            false => BTreeMap::new(),
        };
        loaded.wishes.orphans = orphans_apart.keys().cloned().collect();
        let removed_too = match verb == NodesVerb::Destroy {
            true => loaded.removed_too(&orphans),
            false => Vec::new(),
        };
        let removed: &[NodeName] = if verb == NodesVerb::Destroy { &orphans } else { &[] };
        let timeouts = |name: &NodeName| timeouts(&loaded, name);
        let served = served(&loaded);
        let removes = matches!(verb, NodesVerb::Destroy | NodesVerb::Test);
        let hosts = loaded.hosts_of_roots();
        let is_whole_destroy = verb == NodesVerb::Destroy && loaded.selects_all();
        let mut swept = if is_whole_destroy { loaded.swept() } else { BTreeSet::new() };
        let mut swept_nodes = BTreeSet::new();
        for remover in orphans_apart.into_values() {
            match remover {
                Remover::Host(host) => swept.insert(host),
                Remover::Node(node) => swept_nodes.insert(node),
            };
        }
        let swept_timeouts =
            |host: &str| loaded.elsewhere.get(host).map(|chosen| chosen.host.timeouts()).unwrap_or_default();
        let server_place = server_directory(&loaded.state_dir, &loaded.directory.path);
        let level = Level {
            name: &loaded.name,
            on_error: loaded.wishes.on_error.unwrap_or(loaded.manifest.settings.on_error),
            parallel: parallel(&loaded),
            orphans: removed,
            // One that is there may be needed no more, whatever is remembered of who needs it.
            releases: removes && (!served.is_empty() || server_place.exists()),
            hosts: &hosts,
            swept: &swept,
            swept_timeouts: &swept_timeouts,
            swept_nodes: &swept_nodes,
            ..Level::new(verb, &loaded.manifest, &timeouts, &served)
        };
        let compiled = to_plan(&level, &loaded.forest, &loaded.rows).map_err(Failure::invalid)?;
        Ok(Self { verb, loaded, compiled, orphans, removed_too, report_dir: None, drivers, program })
    }

    /// Returns how many nodes are removed.
    pub(super) fn removed(&self) -> usize {
        let selected = self.loaded.forest.nodes.iter().zip(&self.loaded.selection.selected);
        let described = selected.filter(|(node, selected)| **selected && !self.orphans.contains(&node.name));
        described.count() + self.removed_too.len()
    }

    /// Refuses nodes whose names are used by nodes of other pairs that fetch from the same server: tokens, reports and
    /// signals know nodes by their names.
    pub(super) fn refuse_taken(&self) -> Result<(), Failure> {
        let loaded = &self.loaded;
        if !matches!(self.verb, NodesVerb::Create | NodesVerb::Test) {
            return Ok(());
        }
        let elsewhere =
            Pairs::of(&loaded.state_dir, &loaded.directory.path).served_elsewhere(loaded.memory.path());
        let served = served(loaded);
        let taken = served.iter().filter_map(|name| elsewhere.get_key_value(name));
        let problems = taken.map(|(name, pair)| {
            let message = format!("{name} fetches from the site's server already: it is a node of {pair}");
            let place = Place::Named(format!("manifest {}", loaded.name));
            Diagnostic::error("node/conflict", place, message)
                .help("give one of them another name, or configure one of them by push")
        });
        let problems = Diagnostics(problems.collect());
        if problems.0.is_empty() { Ok(()) } else { Err(Failure::invalid(problems)) }
    }

    /// The port of the server that nodes need is free, or a server of this site is there.
    fn look_at_port(&self, findings: &mut Diagnostics) -> Result<(), Failure> {
        let loaded = &self.loaded;
        let settings = &loaded.site.settings.value.server;
        // What was handed down gives way to others.
        let is_fixed = settings.port != 0 && !is_handed_down(&loaded.state_dir, &loaded.directory.path);
        if !is_fixed || served(loaded).is_empty() {
            return Ok(());
        }
        let server = OwnServer::new(loaded, &self.program);
        let bind = if settings.bind.is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { settings.bind };
        let address = SocketAddr::new(bind, settings.port);
        let is_held = || TcpStream::connect_timeout(&address, PORT_PATIENCE).is_ok();
        let is_ours = || -> Result<bool, Failure> { Ok(matches!(block_on(server.find())?, Ok(Some(_)))) };
        let patience = Instant::now() + SERVER_PATIENCE;
        while !is_ours()? && is_held() {
            // One of ours that another run starts answers soon.
            if Instant::now() < patience {
                thread::sleep(PORT_PATIENCE);
                continue;
            }
            let message = format!("port {} at {} is held by another program", settings.port, settings.bind);
            let place = Place::Named("site.yaml".to_owned());
            let help = "end the program that holds it, or set another `server.port`";
            findings.push(Diagnostic::error("node/preflight", place, message).path("server.port").help(help));
            break;
        }
        Ok(())
    }

    /// Looks whether everything is there that the nodes need, unless that is not wanted.
    pub(super) fn preflight(&self, settings: &Settings) -> Result<(), Failure> {
        let loaded = &self.loaded;
        if loaded.wishes.skip_preflight {
            return Ok(());
        }
        let environment = settings.environment.to_map();
        let preflight = Preflight {
            site: &loaded.site,
            site_dir: &loaded.directory.path,
            manifest: &loaded.manifest,
            forest: &loaded.forest,
            checked: &loaded.checked,
            selection: &loaded.selection,
            drivers: &self.drivers,
            host: &loaded.host.name,
            scope: &loaded.scope(),
            environment: &environment,
        };
        if self.verb == NodesVerb::Destroy {
            let unreached = block_on(preflight.unreached())?;
            return match unreached.has_errors() {
                true => Err(Failure::of(FailureKind::Unreachable, unreached)
                    .hint("--skip-preflight tries all the same")),
                false => Ok(()),
            };
        }
        let mut findings = preflight.findings();
        self.look_at_port(&mut findings)?;
        let (asked, only) = block_on(preflight.ask_hosts())?;
        let kind = match only {
            OnlyReach::Yes if !findings.has_errors() => FailureKind::Unreachable,
            OnlyReach::Yes | OnlyReach::No => FailureKind::Work,
        };
        findings.0.extend(asked.0);
        match findings.has_errors() {
            true => Err(Failure::of(kind, findings).hint("--skip-preflight tries all the same")),
            false => Ok(()),
        }
    }

    /// Returns the nodes that are meant and there already: of this level those that have a machine, below it those that
    /// are remembered to have one.
    pub(super) fn already_there(&self) -> Result<Vec<NodeName>, Failure> {
        let loaded = &self.loaded;
        let answers = with_machines(loaded, &self.drivers)?;
        let is_sure = answers.iter().all(Option::is_some);
        let found: BTreeSet<NodeName> = answers.into_iter().flatten().flatten().collect();
        let had_machine = |name: &NodeName| {
            loaded.memory.look(|state| state.nodes.get(name).is_some_and(|entry| entry.machine_id.is_some()))
        };
        let trees = loaded.forest.trees();
        // Who makes a tree on another machine is not asked here.
        let apart = loaded.hosts_of_roots();
        let is_there = |index: &usize| {
            let name = |index: usize| &loaded.forest.nodes[index].name;
            let root = name(trees[*index]);
            let is_known = is_sure && !apart.contains_key(root);
            let has_root = found.contains(root) || (!is_known && had_machine(root));
            has_root && (*index == trees[*index] || had_machine(name(*index)))
        };
        let meant = loaded.forest.order().iter().filter(|index| loaded.selection.selected[**index]);
        Ok(meant
            .filter(|index| is_there(index))
            .map(|index| loaded.forest.nodes[*index].name.clone())
            .collect())
    }

    /// Runs it to its end, or goes on with the run recorded in `resumed`.
    pub(super) fn run(
        &self,
        args: &NodesArgs,
        resumed: Option<(PathBuf, PlanMeta, stead_runner::ResumeOptions)>,
        settings: &Settings,
        output: &Output,
    ) -> Result<(Report, Seen), Failure> {
        let loaded = &self.loaded;
        let seen = Seen::default();
        let runner = Runner::new(Default::default()).kind(RunKind::Nodes);
        let warner = runner.warner();
        let notices = Notices::new(move |notice| warner.warn(notice.code, notice.message));
        let surroundings = self.surroundings(&runner, notices, settings);
        let mut runner = runner
            .registry(Drivers::with_nodes(&surroundings))
            .environment(settings.environment.to_map())
            .record_in(&loaded.state_dir)
            .lock_named(&loaded.state_dir, loaded.lock.clone())
            .parent_runs(settings.parent_runs.clone())
            .observe(seen.clone());
        runner = self.with_test_report(runner, &seen);
        if let Some(id) = &args.run_id {
            runner = runner.run_id(id.clone());
        }
        if let Some(wait) = args.wait_lock {
            runner = runner.wait_lock(wait);
        }
        for note in &loaded.notes {
            runner = runner.warn(note.code, note.text.clone());
        }
        if self.verb != NodesVerb::Destroy {
            for orphan in self.orphans.iter().chain(&load::silent_orphans(loaded)) {
                let text = format!("{orphan} is not in the manifest any more; it is left alone");
                runner = runner.warn("node/orphan", text);
            }
        }
        let recorded = match &resumed {
            Some((bundle, _, _)) => Recorded::In(bundle.clone()),
            None => Recorded::Below(loaded.state_dir.join("runs")),
        };
        let shown = Shown::new(&args.output, Differences::Hidden, recorded, settings, output)?;
        let plan = CheckedPlan::from(self.compiled.clone()).with_base_dir(loaded.directory.path.clone());
        let sources = vec![("manifest.yaml".to_owned(), loaded.text.clone())];
        let report = match resumed {
            None => {
                let meta = self.meta(args, settings);
                let runner = runner.provenance(Provenance { meta, sources, steps: None });
                drive::drive(runner, shown, &[], Person::SaidYes, move |runner| async move {
                    runner.run(plan).await
                })?
            }
            Some((bundle, meta, options)) => {
                let runner = runner.provenance(Provenance { meta, sources, steps: None });
                let act = move |runner: Runner| async move { runner.resume_at(&bundle, plan, options).await };
                let ended = drive::drive(runner, shown, &[], Person::SaidYes, act)?;
                ended.map_err(crate::commands::resume::refused)?
            }
        };
        Ok((report, seen))
    }

    /// Returns what the tasks of the run share.
    pub(super) fn surroundings(
        &self,
        runner: &Runner,
        notices: Notices,
        settings: &Settings,
    ) -> Arc<NodesSurroundings> {
        let loaded = &self.loaded;
        NodesSurroundings::new(NodesParts {
            site: Arc::clone(&loaded.site),
            site_dir: loaded.directory.path.clone(),
            state_dir: loaded.state_dir.clone(),
            host: loaded.host.clone(),
            name: loaded.name.clone(),
            manifest: Arc::clone(&loaded.manifest),
            manifest_digest: loaded.digest.clone(),
            forest: Arc::clone(&loaded.forest),
            checked: Arc::clone(&loaded.checked),
            selection: Arc::clone(&loaded.selection),
            wishes: loaded.wishes.clone(),
            program: self.program.clone(),
            connect: Arc::new(Transports::new(reach::surroundings(settings), notices)),
            announcer: runner.announcer(),
            memory: Arc::clone(&loaded.memory),
            drivers: self.drivers.clone(),
            elsewhere: loaded.elsewhere.clone(),
            server: Some(Arc::new(OwnServer::new(loaded, &self.program))),
            environment: settings.environment.to_map(),
        })
    }

    /// Has the runner write the report of a test, before the bundle is sealed.
    fn with_test_report(&self, runner: Runner, seen: &Seen) -> Runner {
        if self.verb != NodesVerb::Test {
            return runner;
        }
        let loaded = &self.loaded;
        let directory = self.report_dir.clone().unwrap_or_else(|| loaded.state_dir.join("reports"));
        let (manifest, host) = (loaded.name.clone(), loaded.host.name.clone());
        let mode = loaded.wishes.mode.unwrap_or(loaded.manifest.default_mode).word();
        let trees = loaded.forest.trees();
        let order = loaded.forest.order().iter().filter(|index| loaded.selection.selected[**index]);
        let name = |index: usize| loaded.forest.nodes[index].name.clone();
        let nodes: Vec<(NodeName, NodeName)> =
            order.map(|index| (name(*index), name(trees[*index]))).collect();
        let seen = seen.clone();
        runner.complete_report(move |report| {
            let tested = Tested {
                manifest: &manifest,
                host: &host,
                mode,
                nodes: &nodes,
                checks: &seen.checks(),
                lives: &seen.lives(),
            };
            let bundle = report.bundle.as_ref().map(PathBuf::from);
            match write_test_report(&test_report(report, &tested), &directory, bundle.as_deref()) {
                Ok(path) => seen.keep_report(path),
                Err(error) => {
                    let text = format!("the report cannot be written to {}: {error}", directory.display());
                    report.warnings.push(Warning::new("node/report", text));
                }
            }
        })
    }

    /// Returns what is recorded of the request: enough to make it again.
    fn meta(&self, args: &NodesArgs, settings: &Settings) -> PlanMeta {
        let loaded = &self.loaded;
        let mut vars: BTreeMap<String, Value> = BTreeMap::from([
            ("verb".to_owned(), json!(self.verb.word())),
            ("site".to_owned(), json!(loaded.directory.path)),
            ("host".to_owned(), json!(args.host)),
            ("manifest".to_owned(), json!(args.manifest.manifest)),
            ("skip_preflight".to_owned(), json!(args.skip_preflight)),
        ]);
        let mut add = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                vars.insert(key.to_owned(), value);
            }
        };
        add("mode", loaded.wishes.mode.map(|mode| json!(mode.word())));
        add("on_error", loaded.wishes.on_error.map(|wish| json!(wish.word())));
        add("only_new", loaded.wishes.only_new.then_some(json!(true)));
        add("self_addr", args.self_addr.as_ref().map(|addr| json!(addr)));
        add("report_dir", self.report_dir.as_ref().map(|directory| json!(directory)));
        add("depth", args.select.depth.map(|depth| json!(depth)));
        PlanMeta {
            plan: self.compiled.plan.name.to_string(),
            source: Some(loaded.directory.path.display().to_string()),
            argv: settings.argv.clone(),
            vars,
            only: args.select.only.clone(),
            segments: 1,
            ..PlanMeta::default()
        }
    }
}

/// Returns what makes machines, for every host that a node of this level is made on.
fn drivers(
    loaded: &Loaded,
    program: &std::path::Path,
    settings: &Settings,
) -> Result<BTreeMap<String, Arc<dyn MachineDriver>>, Failure> {
    // A sandbox takes the machines made in it along when it ends.
    let parent = stead_runner::machine::sandbox_of(&settings.root());
    let mut hosts = BTreeMap::from([(loaded.host.name.clone(), loaded.host.host.clone())]);
    let written = loaded.manifest.nodes.iter().filter_map(|node| node.host.as_ref());
    let remembered: Vec<String> =
        loaded.memory.look(|state| state.nodes.values().filter_map(|entry| entry.host.clone()).collect());
    for name in written.map(|host| host.value.clone()).chain(remembered) {
        if let Ok(found) = find_host(&loaded.site, &name) {
            hosts.insert(name, found.host);
        }
    }
    let mut made = BTreeMap::new();
    for (name, host) in hosts.into_iter().filter(|(name, _)| !loaded.elsewhere.contains_key(name)) {
        let secrets = &loaded.site.secrets.value;
        match machine_driver(&name, &host, secrets, &loaded.state_dir, program, parent.clone()) {
            Ok(driver) => {
                made.insert(name, driver);
            }
            Err(error) if name == loaded.host.name => {
                return Err(Failure::caused_by(FailureKind::Invalid, error));
            }
            // Whoever is to be made there fails and says so.
            Err(_) => {}
        }
    }
    Ok(made)
}

/// Returns `known` and the nodes whose machines carry this level's label and that the manifest does not have.
fn labelled(
    loaded: &Loaded,
    drivers: &BTreeMap<String, Arc<dyn MachineDriver>>,
    known: Vec<NodeName>,
) -> Result<Vec<NodeName>, Failure> {
    if !loaded.selects_all() {
        return Ok(known.into_iter().filter(|name| loaded.means(name)).collect());
    }
    let mut all: BTreeSet<NodeName> = known.into_iter().collect();
    // A driver that cannot answer says so when the first node is removed.
    let found = with_machines(loaded, drivers)?.into_iter().flatten().flatten();
    all.extend(found.filter(|name| !loaded.has_root(name)));
    Ok(all.into_iter().collect())
}

/// Returns the nodes whose machines carry this level's label, for each driver; none: it cannot say.
fn with_machines(
    loaded: &Loaded,
    drivers: &BTreeMap<String, Arc<dyn MachineDriver>>,
) -> Result<Vec<Option<Vec<NodeName>>>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let scope = stead_model::machine::OwnerScope::Exactly(loaded.scope());
    let names = |driver: &Arc<dyn MachineDriver>| {
        let machines = runtime.block_on(driver.list(&scope)).ok()?.into_iter();
        Some(machines.filter_map(|machine| NodeName::parse(machine.owner.name()).ok()).collect())
    };
    Ok(drivers.values().map(names).collect())
}

fn timeouts(loaded: &Loaded, name: &NodeName) -> Timeouts {
    let node = loaded.forest.named(name.as_str()).and_then(|range| loaded.forest.nodes.get(range.start));
    let written = node.and_then(|node| loaded.manifest.nodes.get(node.written));
    let host = written.and_then(|node| node.host.as_ref());
    let other = host.and_then(|host| find_host(&loaded.site, &host.value).ok());
    other.map_or_else(|| loaded.host.host.timeouts(), |host| host.host.timeouts())
}

fn parallel(loaded: &Loaded) -> u32 {
    match loaded.manifest.settings.parallel {
        0 => loaded.host.host.parallel(),
        given => given,
    }
}

/// Returns the nodes of this level that need a server: those whose agents fetch from it.
fn served(loaded: &Loaded) -> BTreeSet<NodeName> {
    let roots = loaded.forest.roots().filter(|index| loaded.selection.selected[*index]);
    let elsewhere = loaded.hosts_of_roots();
    let here = roots.filter(|index| !elsewhere.contains_key(&loaded.forest.nodes[*index].name));
    let fetching = here.filter(|index| {
        let written = &loaded.manifest.nodes[loaded.forest.nodes[*index].written];
        written.spec.is_some() && loaded.checked.nodes[*index].modes.agent().is_some()
    });
    fetching.map(|index| loaded.forest.nodes[index].name.clone()).collect()
}
