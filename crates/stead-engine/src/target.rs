//! Target expressions: which hosts a task runs on, and in which order.
//!
//! Parsing and resolving are separate: a plan's expressions are checked when it is compiled, the hosts are found when
//! the task starts. Finding them costs as much as there are hosts, once per set in the expression; a name costs a
//! binary search, so that ten thousand names over ten thousand hosts stay cheap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use sha2::{Digest, Sha256};
use stead_model::diagnostic::nearest;
use stead_model::inventory::Inventory;
use stead_model::{HostName, Plan, TransportSpec};

mod glob;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use glob::Glob;

/// A parsed target expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetExpr {
    /// As written; an ad hoc host's masked canonical form.
    text: Box<str>,
    meaning: Meaning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    /// Hosts of the inventory.
    Set(Vec<Element>),
    /// A host that is in no inventory.
    AdHoc(Box<AdHoc>),
}

/// A host that a target itself says how to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdHoc {
    /// What it is called: the canonical form of its transport without scheme and options.
    pub name: HostName,
    /// How it is reached.
    pub transport: TransportSpec,
}

/// One part between commas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    /// Starts with `!`: is taken from the union of the others.
    excluded: bool,
    /// All must hold.
    factors: Vec<Factor>,
    /// One of the set, chosen last.
    any: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Factor {
    negated: bool,
    atom: Atom,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Atom {
    Name(Box<str>),
    All,
    Glob(Glob),
    Label { key: Box<str>, value: Box<str> },
    HasLabel(Box<str>),
}

/// Why a target expression means nothing, or no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is malformed.
    #[error("bad target `{text}` at character {}: {message}", position + 1)]
    Bad {
        /// The expression.
        text: String,
        /// How many characters stand before the problem.
        position: usize,
        /// What is wrong.
        message: String,
    },
    /// It names a host that does not exist.
    #[error("there is no host `{name}`: {help}")]
    UnknownHost {
        /// The name.
        name: String,
        /// The nearest and the candidates.
        help: String,
    },
}

impl TargetError {
    /// Returns the diagnostic code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Bad { .. } => "reach/bad-target",
            Self::UnknownHost { .. } => "reach/unknown-host",
        }
    }
}

/// The hosts targets choose from, by name.
#[derive(Clone, Debug, Default)]
pub struct HostSet {
    // Invariant: sorted by name, no name twice.
    hosts: Vec<(HostName, BTreeMap<String, String>)>,
    /// How those are reached that are not this machine.
    transports: BTreeMap<HostName, TransportSpec>,
}

impl HostSet {
    /// Returns the set of these hosts with their labels; of two with one name the last counts.
    pub fn new(hosts: impl IntoIterator<Item = (HostName, BTreeMap<String, String>)>) -> Self {
        let hosts: BTreeMap<_, _> = hosts.into_iter().collect();
        Self { hosts: hosts.into_iter().collect(), transports: BTreeMap::new() }
    }

    /// Returns how `host` is reached, if it is described.
    pub fn transport(&self, host: &str) -> Option<&TransportSpec> {
        self.position(host).filter(|at| *at < self.hosts.len())?;
        Some(self.transports.get(host).unwrap_or(&TransportSpec::Local))
    }

    /// Returns the labels of `host`; `local` exists even if it is not described.
    pub fn labels(&self, host: &HostName) -> Option<&BTreeMap<String, String>> {
        self.position(host.as_str()).and_then(|at| self.hosts.get(at)).map(|(_, labels)| labels)
    }

    /// Returns how many hosts are described.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether no host is described.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns the described hosts, by name.
    pub fn names(&self) -> impl Iterator<Item = &HostName> {
        self.hosts.iter().map(|(name, _)| name)
    }

    /// Returns where `name` stands; `local` stands behind all others if it is not described.
    fn position(&self, name: &str) -> Option<usize> {
        match self.hosts.binary_search_by(|(host, _)| host.as_str().cmp(name)) {
            Ok(at) => Some(at),
            Err(_) if name == "local" => Some(self.hosts.len()),
            Err(_) => None,
        }
    }

    fn name_at(&self, at: usize) -> HostName {
        self.hosts.get(at).map_or_else(HostName::local, |(name, _)| name.clone())
    }
}

impl TargetExpr {
    /// Returns the expression `text` is, or where and why it is none.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        parse::parse(text)
    }

    /// Returns the host the expression names, if it is just a name.
    pub fn as_name(&self) -> Option<&str> {
        match self.elements() {
            [element] if !element.excluded => element.as_name(),
            _ => None,
        }
    }

    /// Returns the ad hoc host the expression is, if it is one.
    pub fn ad_hoc(&self) -> Option<&AdHoc> {
        match &self.meaning {
            Meaning::Set(_) => None,
            Meaning::AdHoc(host) => Some(host),
        }
    }

    /// Whether the expression means a host that has this name and these labels, whatever others there are.
    pub fn means(&self, host: &HostName, labels: &BTreeMap<String, String>) -> bool {
        let hosts = HostSet::new([(host.clone(), labels.clone())]);
        let mut is_meant = false;
        self.each(&hosts, "", |at| is_meant |= at == 0);
        is_meant && self.ad_hoc().is_none()
    }

    fn elements(&self) -> &[Element] {
        match &self.meaning {
            Meaning::Set(elements) => elements,
            Meaning::AdHoc(_) => &[],
        }
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.elements().iter().flat_map(|element| &element.factors).map(|factor| &factor.atom)
    }

    /// Returns the hosts named outright that do not exist among `hosts`.
    pub fn unknown_hosts(&self, hosts: &HostSet) -> Vec<TargetError> {
        let names = self.atoms().filter_map(|atom| match atom {
            Atom::Name(name) => Some(name),
            Atom::All | Atom::Glob(_) | Atom::Label { .. } | Atom::HasLabel(_) => None,
        });
        names
            .filter(|name| hosts.position(name).is_none())
            .map(|name| TargetError::UnknownHost { name: name.to_string(), help: candidates(name, hosts) })
            .collect()
    }

    /// Returns the labels and globs in the expression that match no host, for warning `reach/no-match`.
    pub fn unmatched(&self, hosts: &HostSet) -> Vec<String> {
        let sets = self.atoms().filter(|atom| !matches!(atom, Atom::Name(_) | Atom::All));
        sets.filter(|atom| !atom.members(hosts).contains(&true)).map(ToString::to_string).collect()
    }

    /// Calls `found` with each host in order, those of sets by name; a host may come more than once.
    fn each(&self, hosts: &HostSet, seed: &str, mut found: impl FnMut(usize)) {
        let elements = self.elements();
        let mut excluded = BTreeSet::new();
        for element in elements.iter().filter(|element| element.excluded) {
            excluded.extend(element.chosen(hosts, seed));
        }
        let mut keep = |at: usize| {
            if !excluded.contains(&at) {
                found(at);
            }
        };
        if elements.iter().all(|element| element.excluded) {
            (0..hosts.len()).for_each(&mut keep);
        }
        for element in elements.iter().filter(|element| !element.excluded) {
            element.chosen(hosts, seed).into_iter().for_each(&mut keep);
        }
    }
}

/// Returns the ad hoc hosts that the targets of a plan name.
pub fn ad_hoc_hosts(plan: &Plan) -> BTreeMap<HostName, TransportSpec> {
    let targets = plan.tasks.iter().flat_map(|task| &task.settings.target);
    // Of many thousand targets next to none is one: those are not parsed for it.
    let maybe = targets.filter(|text| text.contains('@') || text.contains("://"));
    let hosts = maybe.filter_map(|text| match TargetExpr::parse(text).ok()?.meaning {
        Meaning::AdHoc(host) => Some((host.name, host.transport)),
        Meaning::Set(_) => None,
    });
    hosts.collect()
}

/// Returns the nearest host, if one is near, and those there are, at most twenty.
fn candidates(name: &str, hosts: &HostSet) -> String {
    const SHOWN: usize = 20;
    let local = hosts.position("local").filter(|at| *at == hosts.len()).map(|_| "local");
    let known = || hosts.names().map(HostName::as_str).chain(local);
    // A name that differs much in length is not near, and need not be compared.
    let alike =
        known().filter(|known| known.len().abs_diff(name.len()) <= known.len().max(name.len()) / 3 + 1);
    let near = nearest(name, alike).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
    let shown: Vec<&str> = known().take(SHOWN).collect();
    let more = known().count() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{near}known: {}{more}", shown.join(", "))
}

/// Returns the hosts of the union of `exprs` in their order: as listed, sets by name, first occurrence kept.
///
/// `seed` decides `_any`: the run's id and the task's name.
///
/// # Errors
/// Every host that is named and does not exist.
pub fn resolve(exprs: &[TargetExpr], hosts: &HostSet, seed: &str) -> Result<Vec<HostName>, Vec<TargetError>> {
    let mut unknown = Vec::new();
    let mut seen = vec![false; hosts.len() + 1];
    let mut seen_ad_hoc = BTreeSet::new();
    let mut order = Vec::new();
    for expr in exprs {
        let mut take = |at: usize| {
            if !std::mem::replace(&mut seen[at], true) {
                order.push(hosts.name_at(at));
            }
        };
        if let Some(host) = expr.ad_hoc() {
            match hosts.position(host.name.as_str()) {
                Some(at) => take(at),
                None if !seen_ad_hoc.insert(&host.name) => {}
                None => order.push(host.name.clone()),
            }
        } else if let Some(at) = expr.as_name().and_then(|name| hosts.position(name)) {
            take(at);
        } else {
            unknown.extend(expr.unknown_hosts(hosts));
            expr.each(hosts, seed, take);
        }
    }
    if !unknown.is_empty() {
        return Err(unknown);
    }
    Ok(order)
}

/// Returns the host that takes the place of `host`: the next one, by name and around, of the set that `_any` chose it
/// from and that is not taken.
///
/// None if something else than `_any` chose it.
pub fn instead_of(
    exprs: &[TargetExpr],
    hosts: &HostSet,
    host: &HostName,
    is_taken: &dyn Fn(&HostName) -> bool,
) -> Option<HostName> {
    let at = hosts.position(host.as_str())?;
    let elements = || exprs.iter().flat_map(|expr| expr.elements()).filter(|element| !element.excluded);
    let is_meant = |element: &Element| !element.any && element.chosen(hosts, "").contains(&at);
    let is_ad_hoc = |expr: &TargetExpr| expr.ad_hoc().is_some_and(|ad_hoc| ad_hoc.name == *host);
    if elements().any(is_meant) || exprs.iter().any(is_ad_hoc) {
        return None;
    }
    exprs.iter().find_map(|expr| {
        let excluded: BTreeSet<usize> = expr
            .elements()
            .iter()
            .filter(|element| element.excluded)
            .flat_map(|it| it.chosen(hosts, ""))
            .collect();
        let one_of = expr.elements().iter().filter(|element| element.any);
        one_of.map(|element| element.members(hosts)).filter(|members| members[at]).find_map(|members| {
            let around = (at + 1..members.len()).chain(0..at);
            let free = around.filter(|next| members[*next] && !excluded.contains(next));
            free.map(|next| hosts.name_at(next)).find(|next| !is_taken(next))
        })
    })
}

/// Returns one of `members`, by hash of the seed and the set: spread, and the same again.
fn pick(seed: &str, members: &[usize], hosts: &HostSet) -> usize {
    let mut hash = Sha256::new();
    hash.update(seed.as_bytes());
    for at in members {
        hash.update([0]);
        hash.update(hosts.name_at(*at).as_str().as_bytes());
    }
    let digest = hash.finalize();
    let number = digest.iter().take(8).fold(0u64, |number, byte| (number << 8) | u64::from(*byte));
    let count = u64::try_from(members.len()).unwrap_or(u64::MAX);
    members[usize::try_from(number % count).unwrap_or(0)]
}

impl Element {
    /// Returns the host it is, if it is a name.
    fn as_name(&self) -> Option<&str> {
        match &self.factors[..] {
            [Factor { negated: false, atom: Atom::Name(name) }] if !self.any => Some(name),
            _ => None,
        }
    }

    /// Returns where the hosts of the set stand, `_any` decided.
    fn chosen(&self, hosts: &HostSet, seed: &str) -> Vec<usize> {
        if let Some(name) = self.as_name() {
            return hosts.position(name).into_iter().collect();
        }
        let members: Vec<usize> =
            self.members(hosts).iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| at).collect();
        if self.any && !members.is_empty() { vec![pick(seed, &members, hosts)] } else { members }
    }

    /// Returns for each host, `local` last, whether it is in the set.
    fn members(&self, hosts: &HostSet) -> Vec<bool> {
        let mut members: Option<Vec<bool>> = None;
        for factor in &self.factors {
            let mut found = factor.atom.members(hosts);
            if factor.negated {
                found.iter_mut().for_each(|is| *is = !*is);
                // An undescribed `local` is not in the inventory, so it is in no complement.
                found[hosts.len()] = false;
            }
            members = Some(match members {
                Some(before) => before.iter().zip(&found).map(|(a, b)| *a && *b).collect(),
                None => found,
            });
        }
        members.unwrap_or_else(|| Atom::All.members(hosts))
    }
}

impl Atom {
    fn members(&self, hosts: &HostSet) -> Vec<bool> {
        let mut members = vec![false; hosts.len() + 1];
        match self {
            Self::Name(name) => {
                if let Some(at) = hosts.position(name) {
                    members[at] = true;
                }
            }
            Self::All => members[..hosts.len()].fill(true),
            Self::Glob(glob) => {
                for (at, name) in hosts.names().enumerate() {
                    members[at] = glob.matches(name.as_str());
                }
            }
            Self::Label { key, value } => {
                for (at, (_, labels)) in hosts.hosts.iter().enumerate() {
                    members[at] = labels.get(&**key).is_some_and(|label| is_within(label, value));
                }
            }
            Self::HasLabel(key) => {
                for (at, (_, labels)) in hosts.hosts.iter().enumerate() {
                    members[at] = labels.contains_key(&**key);
                }
            }
        }
        members
    }
}

/// Whether `label` equals `wanted`, or is longer by whole segments.
fn is_within(label: &str, wanted: &str) -> bool {
    label.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::All => f.write_str("_all"),
            Self::Glob(glob) => f.write_str(glob.as_str()),
            Self::Label { key, value } => write!(f, "{key}:{value}"),
            Self::HasLabel(key) => write!(f, "{key}:*"),
        }
    }
}

impl fmt::Display for TargetExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl From<&Inventory> for HostSet {
    fn from(inventory: &Inventory) -> Self {
        let mut set =
            Self::new(inventory.hosts.iter().map(|(name, host)| (name.clone(), host.labels.clone())));
        let distant = inventory.hosts.iter().filter(|(_, host)| host.transport != TransportSpec::Local);
        set.transports = distant.map(|(name, host)| (name.clone(), host.transport.clone())).collect();
        set
    }
}
