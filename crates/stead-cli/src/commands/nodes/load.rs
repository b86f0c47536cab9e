//! From what was typed to what is meant: the site, the manifest, the host and the nodes. Touches nothing.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesWishes, manifest_digest, state_file};
use stead_drivers::site::Manifests;
use stead_engine::compile::nodes::{NodesPlan, NodesVerb, plan_nodes};
use stead_engine::nodes::{
    Added, Checked, Choice, ChosenHost, FindHostError, ForHost, Forest, SelectError, Selection,
    SelfAddressError, SelfAddressGiven, Verb, check_manifest, find_host, means, select, self_address,
};
use stead_model::site::host::DriverKind;
use stead_model::site::{Entry, Manifest, Site};
use stead_model::{Diagnostic, Diagnostics, NodeName, Severity};

use crate::args::NodesArgs;
use crate::commands::site::{self, SiteDir};
use crate::commands::validate;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// What a command over nodes is about.
pub(super) struct Loaded {
    pub(super) directory: SiteDir,
    pub(super) site: Arc<Site>,
    pub(super) state_dir: PathBuf,
    pub(super) host: ChosenHost,
    /// The manifest's name.
    pub(super) name: String,
    /// Empty where it is missing or broken, and nodes are to go all the same.
    pub(super) manifest: Arc<Manifest>,
    /// Its text, for the record.
    pub(super) text: Vec<u8>,
    pub(super) digest: String,
    pub(super) forest: Arc<Forest>,
    pub(super) checked: Arc<Checked>,
    pub(super) selection: Arc<Selection>,
    pub(super) rows: NodesPlan,
    pub(super) memory: Arc<Memory>,
    pub(super) wishes: NodesWishes,
    /// `--only`.
    pub(super) only: Vec<String>,
    /// What is worth saying.
    pub(super) notes: Vec<(String, String)>,
}

/// Returns what `args` mean for `verb`.
pub(super) fn load(verb: NodesVerb, args: &NodesArgs, settings: &Settings) -> Result<Loaded, Failure> {
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let manifests = args.manifest.manifest.as_deref().map_or(Manifests::None, Manifests::One);
    let loaded = site::load(&directory, manifests)?;
    let host = match find_host(&loaded.site, &args.host) {
        Ok(host) => host,
        Err(FindHostError::Unknown(problem)) => return Err(Failure::invalid(Diagnostics(vec![*problem]))),
        Err(FindHostError::Broken(problems)) => return Err(Failure::invalid(problems)),
    };
    if args.manifest.manifest.is_none() && !validate::has_own(&args.manifest) {
        return Err(Failure::new(FailureKind::Usage, "no manifest is named").hint("name one with -M NAME"));
    }
    let found = validate::find_manifest(&args.manifest, &loaded.site, &loaded.manifest_names, settings);
    let wanted = ForHost { mode: args.select.mode.map(Into::into), host: Some(&host) };
    let mut notes: Vec<(String, String)> = Vec::new();
    let described = found.map(|entry| entry.unwrap_or_default()).and_then(|entry| {
        let mut checked = check_manifest(&loaded.site, &entry, wanted);
        checked.diagnostics.0.extend(loaded.warnings.0.clone());
        if checked.diagnostics.has_errors() {
            return Err(Failure::invalid(checked.diagnostics));
        }
        Ok((entry, checked))
    });
    let (entry, checked, from_state) = match (described, verb, &args.manifest.manifest) {
        (Ok((entry, checked)), _, _) => (entry, checked, false),
        // What is there can go whatever became of the files that describe it.
        (Err(failure), NodesVerb::Destroy, Some(name))
            if is_known(&directory.path, &state_dir, &host, name) =>
        {
            let why = failure.message();
            let first = why.lines().next().unwrap_or_default();
            notes.push((
                "node/undescribed".to_owned(),
                format!("what is known of the nodes is used: {first}"),
            ));
            (Entry::default(), Checked { forest: Some(Forest::default()), ..Checked::default() }, true)
        }
        (Err(failure), _, _) => return Err(failure),
    };
    let own = entry.value.name.as_ref().map(ToString::to_string);
    let name = own.or_else(|| args.manifest.manifest.clone()).unwrap_or_default();
    notes
        .extend(checked.diagnostics.iter().filter(|problem| problem.severity == Severity::Warning).map(note));
    let text = entry.source.as_ref().map(|source| source.text.as_bytes().to_vec()).unwrap_or_default();
    let forest = checked.forest.clone().unwrap_or_default();
    let memory =
        Memory::open(state_file(&state_dir, &host.name, &name), &name, &host.name).map_err(|error| {
            let path = state_file(&state_dir, &host.name, &name);
            Failure::new(FailureKind::Invalid, format!("cannot read {}: {error}", path.display()))
        })?;
    let selection = choose(verb, args, &forest, &memory, from_state, &mut notes)?;
    let rows = plan_nodes(verb, &entry.value, &forest, &checked, &selection);
    let wishes = wishes(args, &loaded.site, &host, &entry.value, &checked, &forest, settings, &mut notes)?;
    Ok(Loaded {
        site: Arc::new(loaded.site),
        directory,
        state_dir,
        host,
        name,
        manifest: Arc::new(entry.value),
        digest: manifest_digest(&text),
        text,
        forest: Arc::new(forest),
        checked: Arc::new(checked),
        selection: Arc::new(selection),
        rows,
        memory: Arc::new(memory),
        wishes,
        only: args.select.only.clone(),
        notes,
    })
}

impl Loaded {
    /// Returns whose the machines of this level are.
    pub(super) fn scope(&self) -> String {
        format!("{}/{}/{}", self.site.settings.value.name, self.name, self.host.name)
    }

    /// Whether nodes that the manifest does not have are meant too.
    pub(super) fn selects_all(&self) -> bool {
        self.only.is_empty()
    }

    /// Whether a node that the manifest does not have is meant.
    pub(super) fn means(&self, name: &NodeName) -> bool {
        means(&self.only, name.as_str())
    }
}

/// Whether a manifest was ever written, something is remembered of its nodes, or machines could carry their label.
fn is_known(site: &Path, state_dir: &Path, host: &ChosenHost, name: &str) -> bool {
    let is_plain = stead_model::SiteKey::parse(name).is_ok();
    let is_written = || site.join("manifests").join(format!("{name}.yaml")).exists();
    let is_remembered = || state_file(state_dir, &host.name, name).exists();
    is_plain && (is_written() || is_remembered() || state_dir.join("machines").exists())
}

fn note(problem: &Diagnostic) -> (String, String) {
    let help = if problem.help.is_empty() { String::new() } else { format!(" ({})", problem.help) };
    (problem.code.to_owned(), format!("{}: {}{help}", problem.place, problem.message))
}

fn choose(
    verb: NodesVerb,
    args: &NodesArgs,
    forest: &Forest,
    memory: &Memory,
    from_state: bool,
    notes: &mut Vec<(String, String)>,
) -> Result<Selection, Failure> {
    let choice = Choice { depth: args.select.depth, only: args.select.only.clone() };
    let selects = match verb {
        NodesVerb::Create | NodesVerb::Test | NodesVerb::Verify => Verb::Make,
        NodesVerb::Destroy => Verb::Remove,
    };
    let exists = |index: usize| {
        let name = &forest.nodes[index].name;
        memory.look(|state| state.nodes.get(name).is_some_and(|entry| entry.machine_id.is_some()))
    };
    let selection = match select(forest, &choice, selects, &exists) {
        Ok(selection) => selection,
        // Names of nodes that nobody describes are looked for among those that are remembered.
        Err(SelectError::NoMatch { .. }) if from_state => {
            Selection { selected: Vec::new(), added: Vec::new() }
        }
        Err(error) => return Err(Failure::caused_by(FailureKind::Invalid, error)),
    };
    for (index, added) in &selection.added {
        let name = &forest.nodes[*index].name;
        let why = match added {
            Added::Ancestor => "a selected node is made in it",
            Added::Descendant => "it is in a selected node",
        };
        notes.push(("node/added".to_owned(), format!("{name} is added: {why}")));
    }
    Ok(selection)
}

/// Returns the nodes of this level that are remembered and that the manifest does not have.
pub(super) fn orphans(loaded: &Loaded) -> Vec<NodeName> {
    loaded.memory.look(|state| {
        let roots = state.nodes.iter().filter(|(_, entry)| entry.parent.is_none());
        let unknown = roots.filter(|(name, _)| loaded.forest.named(name.as_str()).is_none());
        unknown.map(|(name, _)| name.clone()).collect()
    })
}

/// Returns what was asked for, the self address checked.
#[expect(clippy::too_many_arguments)]
fn wishes(
    args: &NodesArgs,
    site: &Site,
    host: &ChosenHost,
    manifest: &Manifest,
    checked: &Checked,
    forest: &Forest,
    settings: &Settings,
    notes: &mut Vec<(String, String)>,
) -> Result<NodesWishes, Failure> {
    let variable =
        |name: &str| settings.environment.get(name).map(|value| value.to_string_lossy().into_owned());
    let environment = variable("STEAD_SELF_ADDR").or_else(|| variable("HOMESTAK_SELF_ADDR"));
    let is_sandbox =
        |index: usize| checked.nodes.get(index).is_none_or(|node| node.driver == Some(DriverKind::Sandbox));
    let all_sandboxes = host.host.driver() == DriverKind::Sandbox && forest.roots().all(is_sandbox);
    let given = SelfAddressGiven {
        server_url: site.settings.value.defaults.server_url.as_deref().filter(|_| manifest.context.is_none()),
        flag: args.self_addr.as_deref(),
        environment: environment.as_deref(),
        host: host.host.self_addr.as_deref(),
        route: if all_sandboxes { None } else { route() },
        all_sandboxes,
    };
    let self_addr = match self_address(&given) {
        Ok(found) => {
            notes.extend(found.notice.map(|notice| ("node/self-address".to_owned(), notice)));
            Some(found.address)
        }
        // Only who has to be told an address needs one.
        Err(SelfAddressError::Unknown) => None,
        Err(
            error @ (SelfAddressError::Empty(_)
            | SelfAddressError::Unreachable(..)
            | SelfAddressError::Malformed(..)),
        ) => {
            return Err(Failure::caused_by(FailureKind::Usage, error));
        }
    };
    Ok(NodesWishes {
        mode: args.select.mode.map(Into::into),
        on_error: args.on_error.map(Into::into),
        self_addr,
        skip_preflight: args.skip_preflight,
    })
}

/// Returns the address of the default route. Sends nothing: a datagram socket only picks its route.
fn route() -> Option<std::net::IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_unspecified())
}
