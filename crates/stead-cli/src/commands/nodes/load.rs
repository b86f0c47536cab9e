//! From what was typed to what is meant: the site, the manifest, the host and the nodes. Touches nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_drivers::nodes::{Memory, NodesWishes, Pairs, machines_directory, manifest_digest, network_side};
use stead_drivers::site::{Manifests, TRACKED_SECRETS};
use stead_engine::compile::nodes::{NodesPlan, NodesVerb, plan_nodes};
use stead_engine::nodes::{
    Added, Checked, Choice, ChosenHost, FindHostError, ForHost, Forest, SelectError, Selection,
    SelfAddressError, SelfAddressGiven, Verb, check_manifest, find_host, host_as_read, is_elsewhere, means,
    select, self_address,
};
use stead_model::node::NodeStatus;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::Mode;
use stead_model::site::{Entry, Host, Manifest, Site};
use stead_model::{Diagnostic, Diagnostics, NodeName, Severity};

use super::only_looks;
use crate::args::NodesArgs;
use crate::commands::site::{self, SiteDir};
use crate::commands::{manifest, validate};
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Who removes a node that the manifest does not have and that this level did not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remover {
    /// The node of this level that it is in.
    Node(NodeName),
    /// The other machine that made it.
    Host(String),
}

/// A node that is removed although the manifest does not have it, or not where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemovedToo {
    pub(super) name: NodeName,
    /// What the tasks are called of whom its removal is a part: its own name, or that of who has it removed.
    pub(super) whom: String,
    /// Where it is removed: `local`, or the way there.
    pub(super) at: String,
    pub(super) mode: Mode,
    pub(super) parent: Option<NodeName>,
    pub(super) depth: usize,
}

/// What is said before anything is done.
pub(super) struct Note {
    pub(super) code: &'static str,
    pub(super) text: String,
    /// The problem in a file that it is about.
    pub(super) problem: Option<Diagnostic>,
}

impl Note {
    fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), problem: None }
    }

    fn of(problem: &Diagnostic) -> Self {
        let help = if problem.help.is_empty() { String::new() } else { format!(" ({})", problem.help) };
        let text = format!("{}: {}{help}", problem.place, problem.message);
        Self { code: problem.code, text, problem: Some(problem.clone()) }
    }
}

/// What a command over nodes is about.
pub(super) struct Loaded {
    pub(super) directory: SiteDir,
    pub(super) site: Arc<Site>,
    pub(super) state_dir: PathBuf,
    pub(super) host: ChosenHost,
    /// The manifest's name.
    pub(super) name: String,
    /// What one run at a time holds of these nodes.
    pub(super) lock: String,
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
    /// Hosts that are other machines, by name.
    pub(super) elsewhere: BTreeMap<String, ChosenHost>,
    pub(super) wishes: NodesWishes,
    /// `--only`.
    pub(super) only: Vec<String>,
    /// Why nothing is to be removed, unless machines carry the label of a manifest that nobody knows.
    pub(super) doubt: Option<Failure>,
    /// What is worth saying.
    pub(super) notes: Vec<Note>,
}

/// Returns what `args` mean for `verb`, which acts.
pub(super) fn load(verb: NodesVerb, args: &NodesArgs, settings: &Settings) -> Result<Loaded, Failure> {
    let mut loaded = known(verb, args, settings)?;
    match verb {
        NodesVerb::Create | NodesVerb::Test | NodesVerb::Verify => loaded.find_self_addr(args, settings)?,
        NodesVerb::Destroy => only_looks::check_self_addr(args.self_addr.as_deref())?,
    }
    Ok(loaded)
}

/// Returns what `args` mean for `verb`; nobody is told how this machine is reached.
pub(super) fn known(verb: NodesVerb, args: &NodesArgs, settings: &Settings) -> Result<Loaded, Failure> {
    let directory = site::find(&args.site, settings)?;
    let state_dir = settings.state_dir.from(&directory.path).path;
    let manifests = args.manifest.manifest.as_deref().map_or(Manifests::None, Manifests::One);
    let loaded = site::load(&directory, manifests)?;
    let pairs = Pairs::of(&state_dir, &directory.path);
    let mut notes: Vec<Note> = Vec::new();
    let host = match find_host(&loaded.site, &args.host) {
        Ok(host) => host,
        Err(FindHostError::Unknown(problem)) => return Err(Failure::invalid(Diagnostics(vec![*problem]))),
        Err(FindHostError::Broken(problems)) => {
            // What was made there can go, as long as it can be found.
            let read = host_as_read(&loaded.site, &args.host).filter(|_| verb == NodesVerb::Destroy);
            let Some(host) = read else { return Err(Failure::invalid(problems)) };
            notes.extend(problems.iter().map(Note::of));
            host
        }
    };
    if args.manifest.manifest.is_none() && !manifest::has_own(&args.manifest) {
        let hint = match loaded.manifest_names.as_slice() {
            [] => "name one with -M NAME".to_owned(),
            names => format!("name one with -M NAME; the site has {}", names.join(", ")),
        };
        return Err(Failure::new(FailureKind::Usage, "no manifest is named").hint(hint));
    }
    let found = manifest::find(&args.manifest, &loaded.site, &loaded.manifest_names, settings);
    let wanted = ForHost { mode: args.select.mode.map(Into::into), host: Some(&host) };
    let described = found.map(|entry| entry.unwrap_or_default()).and_then(|entry| {
        let mut checked = check_manifest(&loaded.site, &entry, wanted);
        let odd = loaded.warnings.iter().filter(|odd| odd.code != TRACKED_SECRETS);
        checked.diagnostics.0.extend(odd.cloned());
        if checked.diagnostics.has_errors() {
            return Err(Failure::invalid(checked.diagnostics));
        }
        Ok((entry, checked))
    });
    let mut doubt = None;
    let (entry, checked, from_state) = match (described, verb, &args.manifest.manifest) {
        (Ok((entry, checked)), _, _) => (entry, checked, false),
        // What is there can go whatever became of the files that describe it.
        (Err(failure), NodesVerb::Destroy, Some(name))
            if may_be_known(&directory.path, &state_dir, &pairs, &host, name) =>
        {
            let why = failure.message();
            let first = why.lines().next().unwrap_or_default();
            let text = format!("what is known of the nodes is used: {first}");
            notes.push(Note::new("node/undescribed", text));
            doubt = Some(failure).filter(|_| !is_known(&directory.path, &pairs, &host, name));
            (Entry::default(), Checked { forest: Some(Forest::default()), ..Checked::default() }, true)
        }
        (Err(failure), _, _) => return Err(failure),
    };
    let own = entry.value.name.as_ref().map(ToString::to_string);
    let name = own.or_else(|| args.manifest.manifest.clone()).unwrap_or_default();
    // What is odd about a manifest was told by the level that has all of it.
    if entry.value.context.is_none() {
        let odd = checked.diagnostics.iter().filter(|problem| problem.severity == Severity::Warning);
        notes.extend(odd.map(Note::of));
    }
    let text = entry.source.as_ref().map(|source| source.text.as_bytes().to_vec()).unwrap_or_default();
    let forest = checked.forest.clone().unwrap_or_default();
    let path = pairs.state_file(&host.name, &name);
    let memory = match remembered(&path, &name, &host.name) {
        Ok(memory) => memory,
        Err(failure) if verb == NodesVerb::Destroy && Memory::is_damaged(&path) => {
            let text = format!("{}; it is put aside, and nodes are found by their labels", failure.message());
            notes.push(Note::new("node/damaged-state", text));
            Memory::lost(path, &name, &host.name)
        }
        Err(failure) => return Err(failure),
    };
    let selection = choose(verb, args, &forest, &memory, from_state, &mut notes)?;
    let elsewhere = elsewhere(&loaded.site, &host, &entry.value, &memory);
    let is_ready = |index: usize| {
        let name = &forest.nodes[index].name;
        memory.look(|state| state.nodes.get(name).is_some_and(|entry| entry.status == NodeStatus::Completed))
    };
    let rows = plan_nodes(verb, &entry.value, &forest, &checked, &selection, &is_ready);
    let wishes = NodesWishes {
        mode: args.select.mode.map(Into::into),
        on_error: args.on_error.map(Into::into),
        self_addr: None,
        skip_preflight: args.skip_preflight,
        only_new: verb == NodesVerb::Test && !args.yes,
        orphans: Vec::new(),
    };
    Ok(Loaded {
        site: Arc::new(loaded.site),
        directory,
        lock: pairs.lock(&host.name, &name),
        state_dir,
        host,
        name,
        digest: manifest_digest(&entry.value),
        manifest: Arc::new(entry.value),
        text,
        forest: Arc::new(forest),
        checked: Arc::new(checked),
        selection: Arc::new(selection),
        rows,
        memory: Arc::new(memory),
        elsewhere,
        wishes,
        only: args.select.only.clone(),
        doubt,
        notes,
    })
}

/// Returns what is remembered of the nodes of a pair.
pub(super) fn remembered(path: &Path, manifest: &str, host: &str) -> Result<Memory, Failure> {
    Memory::open(path.to_owned(), manifest, host).map_err(|error| {
        let help = "if it is damaged, remove it: nodes are found again by their labels";
        Failure::unreadable(path.display(), &error).hint(help)
    })
}

impl Loaded {
    /// Finds the address that nodes are told, and checks it.
    fn find_self_addr(&mut self, args: &NodesArgs, settings: &Settings) -> Result<(), Failure> {
        let variable =
            |name: &str| settings.environment.get(name).map(|value| value.to_string_lossy().into_owned());
        let environment = ["STEAD_SELF_ADDR", "HOMESTAK_SELF_ADDR"]
            .into_iter()
            .find_map(|name| Some((name, variable(name)?)));
        let host = &self.host.host;
        // Who is made on another machine is told by that.
        let (is_elsewhere, apart) = (self.elsewhere.contains_key(&self.host.name), self.hosts_of_roots());
        let here = self.forest.roots().filter(|index| !apart.contains_key(&self.forest.nodes[*index].name));
        let here: Vec<usize> = here.collect();
        let are_made_by = |driver: DriverKind| {
            let mut known = here.iter().filter_map(|index| self.checked.nodes.get(*index));
            known.all(|node| node.driver == Some(driver))
        };
        let all_sandboxes = !here.is_empty() && are_made_by(DriverKind::Sandbox);
        let defaults = &self.site.settings.value.defaults;
        let given = SelfAddressGiven {
            server_url: defaults.server_url.as_deref().filter(|_| self.manifest.context.is_none()),
            flag: args.self_addr.as_deref(),
            environment: environment.as_ref().map(|(name, text)| (*name, text.as_str())),
            host: host.self_addr.as_deref().filter(|_| !is_elsewhere),
            network: network_side(host).filter(|_| !is_elsewhere && are_made_by(host.driver())),
            route: if all_sandboxes { None } else { route() },
            all_sandboxes,
        };
        self.wishes.self_addr = match self_address(&given) {
            Ok(found) => {
                self.notes.extend(found.notice.map(|notice| Note::new("node/self-address", notice)));
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
        Ok(())
    }

    /// Returns whose the machines of this level are.
    pub(super) fn scope(&self) -> String {
        format!("{}/{}/{}", self.site.settings.value.name, self.name, self.host.name)
    }

    /// Returns the machine that makes the tree of a root, for those that are not made by this one.
    pub(super) fn hosts_of_roots(&self) -> BTreeMap<NodeName, String> {
        let roots = self.forest.roots().filter_map(|index| {
            let node = &self.forest.nodes[index];
            let written = self.manifest.nodes.get(node.written)?.host.as_ref().map(|host| host.value.clone());
            let known = self.memory.look(|state| state.nodes.get(&node.name).cloned());
            // Where it is counts, not where it would be made now.
            let host = match known.filter(|entry| entry.machine_id.is_some()) {
                Some(entry) => entry.host,
                None => written,
            };
            let host = host.unwrap_or_else(|| self.host.name.clone());
            self.elsewhere.contains_key(&host).then(|| (node.name.clone(), host))
        });
        roots.collect()
    }

    /// Returns the other machines on which nodes may be that the manifest does not have.
    pub(super) fn swept(&self) -> BTreeSet<String> {
        let own = Some(self.host.name.clone());
        let known = self
            .memory
            .look(|state| state.nodes.values().filter_map(|entry| entry.host.clone()).collect::<Vec<_>>());
        own.into_iter().chain(known).filter(|host| self.elsewhere.contains_key(host)).collect()
    }

    /// Returns the nodes that `--only` means, that the manifest does not have and that this level did not make, each with
    /// who removes it. One that goes with the node it is in is not among them.
    pub(super) fn orphans_apart(&self) -> Result<BTreeMap<NodeName, Remover>, Failure> {
        let is_selected = |range: std::ops::Range<usize>| {
            range.into_iter().all(|index| self.selection.selected.get(index) == Some(&true))
        };
        self.memory.look(|state| {
            let mut found = BTreeMap::new();
            let unknown = state.nodes.keys().filter(|name| self.forest.named(name.as_str()).is_none());
            for name in unknown.filter(|name| self.means(name)) {
                let Some(root) = state.root_of(name) else { continue };
                let host = state.nodes.get(root).and_then(|entry| entry.host.as_ref());
                let host = host.unwrap_or(&self.host.name);
                let in_manifest = self.forest.named(root.as_str());
                let remover = match (self.elsewhere.contains_key(host), in_manifest) {
                    (true, _) => Remover::Host(host.clone()),
                    (false, _) if root == name => continue,
                    (false, None) if self.means(root) => continue,
                    (false, Some(range)) if is_selected(range.clone()) => continue,
                    (false, Some(_)) => Remover::Node(root.clone()),
                    (false, None) => {
                        let message = format!("{name} is in {root}, which the manifest does not have either");
                        let failure = Failure::new(FailureKind::Invalid, message);
                        return Err(failure.hint(format!("it goes with it: --only {root}")));
                    }
                };
                found.insert(name.clone(), remover);
            }
            Ok(found)
        })
    }

    /// Returns the nodes that are removed although the manifest does not have them where they are, outermost first: the
    /// `orphans` of this level, what is in nodes that go, and what others are asked to remove.
    pub(super) fn removed_too(&self, orphans: &[NodeName]) -> Vec<RemovedToo> {
        let orphans: BTreeSet<&NodeName> = orphans.iter().collect();
        let goes = |name: &NodeName| match self.forest.named(name.as_str()) {
            _ if orphans.contains(name) => true,
            Some(mut range) => range.all(|index| self.selection.selected.get(index) == Some(&true)),
            None => self.selects_all() || self.means(name),
        };
        self.memory.look(|state| {
            let of = |name: &NodeName| {
                let way = state.way_to(name);
                let root = way.first().unwrap_or(&name);
                let entry = state.nodes.get(*root);
                let host = entry.and_then(|entry| entry.host.as_ref()).unwrap_or(&self.host.name);
                let is_elsewhere = self.elsewhere.contains_key(host);
                let whom = match (is_elsewhere, *root == name || goes(root)) {
                    (true, _) => format!("host_{host}"),
                    (false, true) => root.to_string(),
                    (false, false) => format!("{root}.children"),
                };
                let above = way.iter().map(|name| name.as_str());
                let path: Vec<&str> =
                    is_elsewhere.then_some(host.as_str()).into_iter().chain(above).collect();
                RemovedToo {
                    name: name.clone(),
                    whom,
                    at: if path.is_empty() { "local".to_owned() } else { path.join("/") },
                    mode: state.nodes.get(name).map_or(Mode::Push, |entry| entry.mode),
                    parent: way.last().map(|parent| (*parent).clone()),
                    depth: way.len(),
                }
            };
            let unknown = state.nodes.keys().filter(|name| self.forest.named(name.as_str()).is_none());
            let unknown = unknown.filter(|name| !orphans.contains(name));
            let gone = unknown.filter(|name| goes(name) || state.way_to(name).into_iter().any(goes));
            let mut found: Vec<RemovedToo> = gone.chain(orphans.iter().copied()).map(of).collect();
            found.sort_by_key(|removed| removed.depth);
            found
        })
    }

    /// Whether the manifest has this node, and in no other.
    pub(super) fn has_root(&self, name: &NodeName) -> bool {
        let mut named = self.forest.named(name.as_str()).into_iter().flatten();
        named.any(|index| self.forest.nodes[index].parent.is_none())
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

/// Whether a manifest was ever written, or something is remembered of its nodes.
fn is_known(site: &Path, pairs: &Pairs, host: &ChosenHost, name: &str) -> bool {
    let is_written = || site.join("manifests").join(format!("{name}.yaml")).exists();
    is_written() || pairs.state_file(&host.name, name).exists()
}

/// Whether a manifest is known, or machines could carry the label of its nodes.
fn may_be_known(site: &Path, state_dir: &Path, pairs: &Pairs, host: &ChosenHost, name: &str) -> bool {
    let is_plain = stead_model::SiteKey::parse(name).is_ok();
    is_plain && (is_known(site, pairs, host, name) || machines_directory(&host.host, state_dir).exists())
}

fn choose(
    verb: NodesVerb,
    args: &NodesArgs,
    forest: &Forest,
    memory: &Memory,
    from_state: bool,
    notes: &mut Vec<Note>,
) -> Result<Selection, Failure> {
    let mut choice = Choice { depth: args.select.depth, only: args.select.only.clone() };
    let selects = match verb {
        NodesVerb::Create | NodesVerb::Test | NodesVerb::Verify => Verb::Make,
        NodesVerb::Destroy => Verb::Remove,
    };
    let exists = |index: usize| {
        let name = &forest.nodes[index].name;
        memory.look(|state| state.nodes.get(name).is_some_and(|entry| entry.machine_id.is_some()))
    };
    if verb == NodesVerb::Destroy && names_orphans(&mut choice, forest, memory) {
        return Ok(Selection { selected: vec![false; forest.nodes.len()], added: Vec::new() });
    }
    let selection = match select(forest, &choice, selects, &exists) {
        Ok(selection) => selection,
        // Names of nodes that nobody describes are looked for among those that are remembered.
        Err(SelectError::NoMatch { .. }) if from_state => {
            Selection { selected: Vec::new(), added: Vec::new() }
        }
        Err(error) => return Err(Failure::invalid(Diagnostics(vec![validate::no_selection(&error)]))),
    };
    for (index, added) in &selection.added {
        let name = &forest.nodes[*index].name;
        let why = match added {
            Added::Ancestor => "a selected node is made in it",
            Added::Descendant => "it is in a selected node",
        };
        notes.push(Note::new("node/added", format!("{name} is added: {why}")));
    }
    Ok(selection)
}

/// Takes the words out of `choice` that name only nodes which are remembered and which the manifest does not have.
/// Returns whether there were such words and no others.
fn names_orphans(choice: &mut Choice, forest: &Forest, memory: &Memory) -> bool {
    let words = choice.only.iter().flat_map(|words| words.split(',')).map(str::trim);
    let words = words.filter(|word| !word.is_empty()).map(str::to_owned);
    let is_orphan = |word: &String| {
        let word = std::slice::from_ref(word);
        let is_named = |name: &NodeName| means(word, name.as_str());
        let is_known = memory.look(|state| state.nodes.keys().any(is_named));
        is_known && forest.named(&word[0]).is_none() && !forest.nodes.iter().any(|node| is_named(&node.name))
    };
    let (orphans, others): (Vec<String>, Vec<String>) = words.partition(is_orphan);
    if orphans.is_empty() {
        return false;
    }
    let is_all = others.is_empty();
    choice.only = others;
    is_all
}

/// Returns the nodes of this level that are remembered and that the manifest does not have. Who is removed is removed
/// where it is: a root that the manifest has in another node by now is among them then.
pub(super) fn orphans(loaded: &Loaded, verb: NodesVerb) -> Vec<NodeName> {
    let is_known = |name: &NodeName| match verb {
        NodesVerb::Destroy => loaded.has_root(name),
        NodesVerb::Create | NodesVerb::Test | NodesVerb::Verify => {
            loaded.forest.named(name.as_str()).is_some()
        }
    };
    loaded.memory.look(|state| {
        let roots = state.nodes.iter().filter(|(_, entry)| entry.parent.is_none());
        let here = roots.filter(|(_, entry)| {
            let host = entry.host.as_ref().unwrap_or(&loaded.host.name);
            !loaded.elsewhere.contains_key(host)
        });
        here.filter(|(name, _)| !is_known(name)).map(|(name, _)| name.clone()).collect()
    })
}

/// Returns the nodes that others have made for this level, that are remembered, that the manifest does not have, and of which
/// nobody else will say so, because who made them has nothing to make now.
pub(super) fn silent_orphans(loaded: &Loaded) -> Vec<NodeName> {
    let trees = loaded.forest.trees();
    let hosts = loaded.hosts_of_roots();
    let (mut nodes, mut machines) = (BTreeSet::new(), BTreeSet::new());
    for (index, _) in loaded.selection.selected.iter().enumerate().filter(|(_, selected)| **selected) {
        let root = &loaded.forest.nodes[trees[index]].name;
        match hosts.get(root) {
            Some(host) => {
                machines.insert(host);
            }
            None if trees[index] != index => {
                nodes.insert(root);
            }
            None => {}
        }
    }
    loaded.memory.look(|state| {
        let is_silent = |name: &NodeName| {
            let Some(root) = state.root_of(name) else { return true };
            let host = state.nodes.get(root).and_then(|entry| entry.host.as_ref());
            let host = host.unwrap_or(&loaded.host.name);
            match loaded.elsewhere.contains_key(host) {
                true => !machines.contains(host),
                false => root != name && !nodes.contains(root),
            }
        };
        let unknown = state.nodes.keys().filter(|name| loaded.forest.named(name.as_str()).is_none());
        unknown.filter(|name| is_silent(name)).cloned().collect()
    })
}

/// Returns the hosts that are other machines, of all that nodes of this level are or were made on.
fn elsewhere(
    site: &Site,
    host: &ChosenHost,
    manifest: &Manifest,
    memory: &Memory,
) -> BTreeMap<String, ChosenHost> {
    // Who is asked by a level above is the machine it means.
    if manifest.context.is_some() {
        return BTreeMap::new();
    }
    let written = manifest.nodes.iter().filter_map(|node| Some(node.host.as_ref()?.value.clone()));
    let remembered: Vec<String> =
        memory.look(|state| state.nodes.values().filter_map(|entry| entry.host.clone()).collect());
    let named = written.chain(remembered).filter_map(|name| find_host(site, &name).ok());
    let all = named.chain([host.clone()]);
    all.filter(|host| is_other_machine(&host.host)).map(|host| (host.name.clone(), host)).collect()
}

/// Whether what makes machines on `host` does so on another machine. Only an own address can be bound.
pub(super) fn is_other_machine(host: &Host) -> bool {
    is_elsewhere(host, |address| UdpSocket::bind((address, 0)).is_ok())
}

/// Returns the address of the default route. Sends nothing: a datagram socket only picks its route.
fn route() -> Option<std::net::IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_unspecified())
}
