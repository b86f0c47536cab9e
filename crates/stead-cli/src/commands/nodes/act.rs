//! A run of nodes: what its tasks share, its runner, and how it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use stead_drivers::Drivers;
use stead_drivers::nodes::{NodesParts, NodesSurroundings, Preflight, machine_driver, write_test_report};
use stead_drivers::transport::{Notices, Transports};
use stead_engine::compile::CompiledPlan;
use stead_engine::compile::nodes::{Level, NodesVerb, to_plan};
use stead_engine::nodes::find_host;
use stead_engine::nodes::test_report::{Tested, test_report};
use stead_model::bundle::PlanMeta;
use stead_model::event::RunKind;
use stead_model::report::Warning;
use stead_model::site::host::Timeouts;
use stead_model::site::manifest::Mode;
use stead_model::{NodeName, Report};
use stead_runner::machine::MachineDriver;
use stead_runner::{CheckedPlan, Provenance, Runner};

use super::load::{self, Loaded};
use super::seen::Seen;
use super::server::OwnServer;
use crate::args::NodesArgs;
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::{Recorded, Shown};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach;
use crate::render::Differences;
use crate::settings::Settings;

/// A run of nodes that can start.
pub(super) struct Prepared {
    pub(super) verb: NodesVerb,
    pub(super) loaded: Loaded,
    pub(super) compiled: CompiledPlan,
    pub(super) orphans: Vec<NodeName>,
    /// Where reports of tests go; none: `STATE/reports`.
    pub(super) report_dir: Option<PathBuf>,
    drivers: BTreeMap<String, Arc<dyn MachineDriver>>,
    program: PathBuf,
}

impl Prepared {
    /// Returns the run of `verb` over what was loaded.
    pub(super) fn new(verb: NodesVerb, loaded: Loaded, dry_run: bool) -> Result<Self, Failure> {
        let program =
            std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
        let drivers = drivers(&loaded, &program)?;
        let mut orphans = load::orphans(&loaded);
        if verb == NodesVerb::Destroy && !dry_run {
            orphans = labelled(&loaded, &drivers, orphans)?;
        }
        let removed: &[NodeName] = if verb == NodesVerb::Destroy { &orphans } else { &[] };
        let timeouts = |name: &NodeName| timeouts(&loaded, name);
        let served = served(verb, &loaded);
        let level = Level {
            name: &loaded.name,
            on_error: loaded.wishes.on_error.unwrap_or(loaded.manifest.settings.on_error),
            parallel: parallel(&loaded),
            orphans: removed,
            ..Level::new(verb, &loaded.manifest, &timeouts, &served)
        };
        let compiled = to_plan(&level, &loaded.forest, &loaded.rows).map_err(Failure::invalid)?;
        Ok(Self { verb, loaded, compiled, orphans, report_dir: None, drivers, program })
    }

    /// Looks whether everything is there that the nodes need, unless that is not wanted.
    pub(super) fn preflight(&self, settings: &Settings) -> Result<(), Failure> {
        let loaded = &self.loaded;
        if self.verb == NodesVerb::Destroy || loaded.wishes.skip_preflight {
            return Ok(());
        }
        let search_path = settings.environment.get("PATH").map(|path| path.to_string_lossy().into_owned());
        let findings = Preflight {
            site: &loaded.site,
            site_dir: &loaded.directory.path,
            manifest: &loaded.manifest,
            forest: &loaded.forest,
            checked: &loaded.checked,
            selection: &loaded.selection,
            drivers: &self.drivers,
            search_path: search_path.as_deref().unwrap_or_default(),
        }
        .findings();
        match findings.has_errors() {
            true => Err(Failure::of(FailureKind::Work, findings).hint("--skip-preflight tries all the same")),
            false => Ok(()),
        }
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
        let lock = format!("nodes-{}-{}", loaded.host.name, loaded.name);
        let mut runner = runner
            .registry(Drivers::with_nodes(&surroundings))
            .environment(settings.environment.to_map())
            .record_in(&loaded.state_dir)
            .lock_named(&loaded.state_dir, lock)
            .parent_runs(settings.parent_runs.clone())
            .observe(seen.clone());
        runner = self.with_test_report(runner, &seen);
        if let Some(id) = &args.run_id {
            runner = runner.run_id(id.clone());
        }
        for (code, text) in &loaded.notes {
            runner = runner.warn(code.clone(), text.clone());
        }
        if self.verb != NodesVerb::Destroy {
            for orphan in &self.orphans {
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
            let tested =
                Tested { manifest: &manifest, host: &host, mode, nodes: &nodes, checks: &seen.checks() };
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
        add("self_addr", args.self_addr.as_ref().map(|addr| json!(addr)));
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
) -> Result<BTreeMap<String, Arc<dyn MachineDriver>>, Failure> {
    // A sandbox takes the machines made in it along when it ends.
    let parent = std::env::var_os("STEAD_ROOT").map(PathBuf::from);
    let parent = parent.and_then(|root| stead_runner::machine::sandbox_of(&root));
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
    for (name, host) in hosts {
        match machine_driver(&name, &host, &loaded.state_dir, program, parent.clone()) {
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    for driver in drivers.values() {
        let machines =
            runtime.block_on(driver.list(&stead_model::machine::OwnerScope::Exactly(loaded.scope())));
        // A driver that cannot answer says so when the first node is removed.
        let names =
            machines.into_iter().flatten().filter_map(|machine| NodeName::parse(machine.owner.name()).ok());
        all.extend(names.filter(|name| loaded.forest.named(name.as_str()).is_none()));
    }
    Ok(all.into_iter().collect())
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

/// Returns the nodes of this level that need a server: those that fetch their specs.
fn served(verb: NodesVerb, loaded: &Loaded) -> BTreeSet<NodeName> {
    let roots = loaded.forest.roots().filter(|index| loaded.selection.selected[*index]);
    let pulls = roots.filter(|index| loaded.checked.nodes[*index].modes.config != Mode::Push);
    let mut served: BTreeSet<NodeName> = pulls.map(|index| loaded.forest.nodes[index].name.clone()).collect();
    if verb != NodesVerb::Create {
        let fetched = |state: &stead_model::node::NodesState| {
            let of = state.nodes.iter().filter(|(_, entry)| state.server.is_some() || entry.jti.is_some());
            of.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        served.extend(loaded.memory.look(fetched));
    }
    served
}
