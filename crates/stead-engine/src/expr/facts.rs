//! `facts` and `fact`: what is known of hosts, asked for when an expression first reads it.
//!
//! Evaluating does no IO. An expression that reads facts nobody has gathered has no value; it leaves the names of the
//! hosts in its scope, and whoever evaluates it has them gathered and evaluates it again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use minijinja::value::{Enumerator, Object, Value as Inner};
use minijinja::{Error, ErrorKind};
use serde_json::Value;
use stead_model::HostName;
use stead_model::diagnostic::suggest;

use super::bounds::to_inner;

/// The facts of a run's hosts, as far as they are known. What is learned of a host stays for the run.
#[derive(Default)]
pub struct HostFacts {
    hosts: BTreeSet<HostName>,
    known: RwLock<BTreeMap<HostName, Inner>>,
}

impl HostFacts {
    /// Returns the facts of these hosts, of which nothing is known yet.
    pub fn new(hosts: BTreeSet<HostName>) -> Self {
        Self { hosts, known: RwLock::default() }
    }

    /// Takes what was found out about `host`. The first answer counts.
    pub fn learn(&self, host: &HostName, facts: &Value) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(host.clone()).or_insert_with(|| to_inner(facts));
    }

    /// Whether the facts of `host` are known.
    pub fn knows(&self, host: &HostName) -> bool {
        self.get(host).is_some()
    }

    fn get(&self, host: &HostName) -> Option<Inner> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(host).cloned()
    }
}

impl fmt::Debug for HostFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_list().entries(known.keys()).finish()
    }
}

/// The hosts whose facts were read before anybody had gathered them. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted(Arc<Mutex<BTreeSet<HostName>>>);

impl Wanted {
    fn add(&self, host: HostName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host);
    }

    pub(super) fn peek(&self) -> Vec<HostName> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(super) fn take(&self) -> BTreeSet<HostName> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `facts`: by host.
#[derive(Debug)]
pub(super) struct FactsObject {
    pub(super) facts: Arc<HostFacts>,
    pub(super) wanted: Wanted,
}

impl FactsObject {
    /// Returns the facts of `host`, or notes that they are wanted.
    pub(super) fn of(&self, host: &HostName) -> Inner {
        self.facts.get(host).unwrap_or_else(|| {
            self.wanted.add(host.clone());
            let message = format!("the facts of host `{host}` are not gathered");
            Error::new(ErrorKind::InvalidOperation, message).into()
        })
    }
}

impl Object for FactsObject {
    fn get_value(self: &Arc<Self>, key: &Inner) -> Option<Inner> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Inner> {
        let host = HostName::parse(key).ok();
        // A host that no inventory has may still be one that was named by its address.
        let is_there =
            |host: &HostName| self.facts.hosts.contains(host) || self.facts.knows(host) || key.contains('@');
        match host.filter(is_there) {
            Some(host) => Some(self.of(&host)),
            None => {
                let help = suggest(key, self.facts.hosts.iter().map(HostName::as_str));
                let message = format!("`facts` has no host `{key}`; {help}");
                Some(Error::new(ErrorKind::InvalidOperation, message).into())
            }
        }
    }

    /// Lists every host there is: to read them all, all must be gathered.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let hosts = self.facts.hosts.iter();
        hosts.clone().filter(|host| !self.facts.knows(host)).for_each(|host| self.wanted.add(host.clone()));
        Enumerator::Values(hosts.map(|host| Inner::from(host.as_str())).collect())
    }
}
