//! The site as it was read at one moment: every answer is made from one of these, and a reload replaces it as a whole.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use serde_json::{Value, json};
use stead_drivers::repositories::handed_down;
use stead_drivers::site::{Manifests, load};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::site::settings::Limits;
use stead_model::site::{Folder, ResolvedSpec};
use stead_model::token::{Claims, LiveRing, Refusal, RingError, check_spec, verify, verify_again};
use stead_model::{Diagnostics, NodeName, Site, SiteKey, canonical_json};
use tokio_rustls::TlsAcceptor;

use crate::certificate::{Certificate, CertificateError, Subject};
use crate::keys::Keys;
use crate::place::{ServerOptions, ServerPlace};
use crate::repos::{Repos, ReposError};

/// The most resolved specs that are kept ready.
const MOST_READY: usize = 100_000;

/// A resolved spec as it is served.
#[derive(Debug)]
pub(crate) struct ReadySpec {
    /// The body.
    pub(crate) body: Bytes,
    /// Its tag: the digest in quotes.
    pub(crate) etag: String,
}

/// The site as it was read at one moment.
pub(crate) struct Snapshot {
    /// What its files say.
    pub(crate) site: Site,
    /// The body of the list of specs.
    pub(crate) spec_list: Bytes,
    /// Clones of repositories.
    pub(crate) repos: Repos,
    /// The certificate in force.
    pub(crate) certificate: Certificate,
    /// How connections are made.
    pub(crate) tls: TlsAcceptor,
    /// Files that cannot be used, and why.
    pub(crate) broken: Vec<(String, String)>,
    keys: RwLock<Arc<Keys>>,
    ready: RwLock<HashMap<(SiteKey, NodeName), Arc<ReadySpec>>>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The site cannot be read.
    #[error(transparent)]
    Load(#[from] stead_drivers::site::LoadError),
    /// `site.yaml` has problems.
    #[error("{0}")]
    Site(Diagnostics),
    /// The certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
    /// Repositories cannot be cloned.
    #[error("{}", .0.iter().map(said).collect::<Vec<_>>().join("; "))]
    Repos(Vec<ReposError>),
    /// What the level above has handed down cannot be read.
    #[error("failed to read the repositories in {}", path.display())]
    HandedDown {
        /// The archive of them.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Returns what an error and its causes say, in one line.
pub(crate) fn said(error: &impl std::error::Error) -> String {
    let mut messages = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        messages.push(cause.to_string());
        next = cause.source();
    }
    messages.dedup();
    messages.join(": ")
}

/// What a snapshot is made of.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// Where the files are.
    pub(crate) place: ServerPlace,
    /// What the server was started with.
    pub(crate) options: ServerOptions,
    /// Its port.
    pub(crate) port: u16,
    /// Addresses for a new certificate.
    pub(crate) bind: IpAddr,
}

/// What becomes of files that could be used and cannot any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoilt {
    /// Everything stays as it was.
    Refused,
    /// Specs and postures among them stay as they were, and everything else is as it is now.
    Kept,
}

/// A certificate, and the fingerprint of the one it replaces.
pub(crate) struct Chosen {
    pub(crate) certificate: Certificate,
    pub(crate) replaced: Option<String>,
}

impl Sources {
    /// Returns the certificate to serve with; makes one if there is none, or if a new one is wanted.
    pub(crate) fn certificate(&self) -> Result<Chosen, CertificateError> {
        if let Some((certificate, key)) = &self.options.certificate {
            return Ok(Chosen { certificate: Certificate::load(certificate, key)?, replaced: None });
        }
        let directory = self.place.directory();
        let subject = Subject {
            hostname: hostname(),
            addresses: addresses(self.bind),
            now: stead_runner::clock::now(),
        };
        if !self.options.new_certificate {
            let certificate = Certificate::ensure(&directory, &subject)?;
            return Ok(Chosen { certificate, replaced: None });
        }
        let before = Certificate::ensure(&directory, &subject)?;
        let certificate = Certificate::replace(&directory, &subject)?;
        Ok(Chosen { certificate, replaced: Some(before.fingerprint().to_owned()) })
    }

    /// Reads everything again. Returns it with what is wrong with files that `before` could use and that are used as they
    /// were.
    ///
    /// # Errors
    /// Everything that keeps it from being used, of whatever kind.
    pub(crate) fn reload(
        &self,
        before: &Snapshot,
        spoilt: Spoilt,
    ) -> Result<(Snapshot, Vec<String>), Vec<String>> {
        let options = ServerOptions { new_certificate: false, ..self.options.clone() };
        let certificate = Self { options, ..self.clone() }.certificate();
        let mut problems: Vec<String> = certificate.as_ref().err().map(said).into_iter().collect();
        let mut site = match self.load() {
            Ok(site) => site,
            Err(error) => {
                problems.push(said(&error));
                return Err(problems);
            }
        };
        let repos = self.repos(&site);
        problems.extend(repos.as_ref().err().map(said));
        let mut broken = broken(&site);
        let known: BTreeSet<&String> = before.broken.iter().map(|(file, _)| file).collect();
        let newly = broken.iter().filter(|(file, _)| !known.contains(file)).cloned();
        let newly: Vec<(String, String)> = newly.collect();
        let (kept, refused): (Vec<_>, Vec<_>) = newly.into_iter().partition(|(file, _)| match spoilt {
            Spoilt::Refused => false,
            Spoilt::Kept => keep_file(&mut site, &mut broken, file, &before.site),
        });
        problems.extend(refused.into_iter().map(|(_, problem)| problem));
        let (Ok(certificate), Ok(repos), true) = (certificate, repos, problems.is_empty()) else {
            return Err(problems);
        };
        let snapshot = Snapshot::new(site, broken, repos, certificate.certificate);
        let snapshot = snapshot.map_err(|error| vec![said(&error)])?;
        Ok((snapshot, kept.into_iter().map(|(_, problem)| problem).collect()))
    }

    /// Reads the site. A file that cannot be used makes only its own answers fail, but `site.yaml` must hold.
    pub(crate) fn read(&self, certificate: Certificate) -> Result<Snapshot, SnapshotError> {
        let site = self.load()?;
        let repos = self.repos(&site)?;
        let broken = broken(&site);
        Snapshot::new(site, broken, repos, certificate)
    }

    fn load(&self) -> Result<Site, SnapshotError> {
        Ok(load(&self.place.site, &self.place.site, Manifests::All)?.site)
    }

    /// Returns the repositories that `site.yaml` names, if it can be used, or that were handed down.
    fn repos(&self, site: &Site) -> Result<Repos, SnapshotError> {
        if site.settings.is_broken() {
            return Err(SnapshotError::Site(site.settings.diagnostics.clone()));
        }
        let directory = self.place.repos(self.port);
        match handed_down(&self.place.directory()) {
            Some(path) => {
                Repos::unpack(&directory, &path).map_err(|source| SnapshotError::HandedDown { path, source })
            }
            None => clone_named(&directory, &self.place, site),
        }
    }
}

/// Clones the repositories that `site.yaml` names below a directory.
fn clone_named(directory: &Path, place: &ServerPlace, site: &Site) -> Result<Repos, SnapshotError> {
    let named = site.settings.value.server.repos.iter();
    let repos: Vec<(SiteKey, PathBuf)> =
        named.map(|(name, path)| (name.clone(), place.site.join(path))).collect();
    Repos::clone_all(directory, &repos).map_err(SnapshotError::Repos)
}

/// Returns an archive of the repositories that the server of a site serves, for the level below: the one that was handed down,
/// else a new one in `aside`. None: it serves none.
///
/// # Errors
/// If they cannot be read.
pub fn pack_repositories(place: &ServerPlace, aside: &Path) -> Result<Option<PathBuf>, SnapshotError> {
    if let Some(archive) = handed_down(&place.directory()) {
        return Ok(Some(archive));
    }
    let site = load(&place.site, &place.site, Manifests::None)?.site;
    let repos = clone_named(aside, place, &site)?;
    if repos.len() == 0 {
        return Ok(None);
    }
    let path = aside.join("repositories.tar");
    match repos.pack(&path) {
        Ok(()) => Ok(Some(path)),
        Err(source) => Err(SnapshotError::HandedDown { path, source }),
    }
}

const SPECS: &str = "specs";
const POSTURES: &str = "postures";
const MANIFESTS: &str = "manifests";
const STRAYS: &str = "names";

/// Puts back what a file of a folder said before; returns whether it was there.
fn keep<T: Clone>(folder: &mut Folder<T>, name: &str, before: &Folder<T>) -> bool {
    let known = before.iter().find(|(known, _)| known.as_str() == name);
    known.is_some_and(|(name, entry)| folder.insert(name.clone(), entry.clone()).is_some())
}

/// Returns the files that cannot be used, and what is wrong with each.
fn broken(site: &Site) -> Vec<(String, String)> {
    let mut broken = Vec::new();
    let mut look = |file: String, diagnostics: &Diagnostics| {
        if diagnostics.has_errors() {
            broken.push((file, diagnostics.to_string()));
        }
    };
    look("secrets.yaml".to_owned(), &site.secrets.diagnostics);
    look("keyring.yaml".to_owned(), &site.keyring.diagnostics);
    for (name, entry) in &site.specs {
        look(format!("{SPECS}/{name}"), &entry.diagnostics);
    }
    for (name, entry) in &site.postures {
        look(format!("{POSTURES}/{name}"), &entry.diagnostics);
    }
    for (name, entry) in &site.manifests {
        look(format!("{MANIFESTS}/{name}"), &entry.diagnostics);
    }
    look(STRAYS.to_owned(), &site.strays);
    broken
}

/// Uses a `broken` file as it was `before`, if it was there; returns whether others are none the worse for it.
fn keep_file(site: &mut Site, broken: &mut Vec<(String, String)>, file: &str, before: &Site) -> bool {
    let was_there = match file.split_once('/') {
        Some((SPECS, name)) => keep(&mut site.specs, name, &before.specs),
        Some((POSTURES, name)) => keep(&mut site.postures, name, &before.postures),
        Some((MANIFESTS, name)) => keep(&mut site.manifests, name, &before.manifests),
        // Nobody refers to a file without a usable name; everybody needs secrets and keys.
        Some(_) | None => return file == STRAYS,
    };
    if was_there {
        broken.retain(|(broken, _)| broken != file);
    }
    true
}

impl Snapshot {
    fn new(
        site: Site,
        broken: Vec<(String, String)>,
        repos: Repos,
        certificate: Certificate,
    ) -> Result<Self, SnapshotError> {
        let config = certificate.server_config().map_err(SnapshotError::Tls)?;
        let names: Vec<&SiteKey> = site.specs.keys().collect();
        Ok(Self {
            spec_list: json!({"specs": names}).to_string().into(),
            broken,
            keys: RwLock::new(Arc::new(Keys::of(&site))),
            site,
            repos,
            certificate,
            tls: TlsAcceptor::from(Arc::new(config)),
            ready: RwLock::default(),
        })
    }

    /// Returns what one client may cost.
    pub(crate) fn limits(&self) -> &Limits {
        &self.site.settings.value.server.limits
    }

    /// Returns what tokens are checked with.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what tokens are checked with.
    pub(crate) fn set_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Returns the keys that are live at `now`.
    pub(crate) fn ring(&self, now: i64) -> Arc<Result<LiveRing, RingError>> {
        self.keys().ring(now)
    }

    /// Checks 2 to 8 of a token.
    pub(crate) fn verify(&self, token: &str, now: i64) -> Result<Claims, WireError> {
        let ring = self.ring(now);
        let accept_v1 = self.site.settings.value.server.accept_v1;
        verify(token, ring.as_ref().as_ref(), accept_v1, now).map_err(to_wire)
    }

    /// Checks what has held of a token before, and may hold no longer.
    pub(crate) fn verify_again(&self, claims: &Claims, now: i64) -> Result<(), WireError> {
        let ring = self.ring(now);
        let accept_v1 = self.site.settings.value.server.accept_v1;
        verify_again(claims, ring.as_ref().as_ref(), accept_v1, now).map_err(to_wire)
    }

    /// Check 11: returns what the token's node becomes.
    pub(crate) fn spec(&self, claims: &Claims) -> Result<Arc<ReadySpec>, WireError> {
        let key = match (&claims.spec, NodeName::parse(&claims.node)) {
            (Some(spec), Ok(node)) => (spec.clone(), node),
            (None, _) | (_, Err(_)) => {
                return Err(WireError::new(WireCode::E304, "the token is not that of a node"));
            }
        };
        if let Some(ready) = self.ready.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Arc::clone(ready));
        }
        let ready = Arc::new(ready(&check_spec(claims, &self.site)?));
        let mut kept = self.ready.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MOST_READY {
            kept.insert(key, Arc::clone(&ready));
        }
        Ok(ready)
    }
}

/// What is wrong with the keys is for the log of the server's operator, not for the world.
fn to_wire(refusal: Refusal) -> WireError {
    let error = WireError::from(refusal);
    if error.code == WireCode::E500 {
        return WireError::new(error.code, "there is no usable key to check tokens with");
    }
    error
}

fn ready(spec: &ResolvedSpec) -> ReadySpec {
    let digest = spec.digest();
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    if let Value::Object(members) = &mut value {
        members.insert("digest".to_owned(), Value::from(digest.clone()));
    }
    ReadySpec { body: canonical_json::to_string(&value).into(), etag: format!("\"{digest}\"") }
}

/// Returns the name of this machine.
fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the addresses of this machine as far as they are known without asking anybody.
fn addresses(bind: IpAddr) -> Vec<IpAddr> {
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
    if !bind.is_unspecified() {
        addresses.push(bind);
    }
    // Tables of the kernel, without which the certificate names fewer addresses: clients go by its pin.
    let table = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    addresses.extend(own_of_version_4(&table("/proc/net/fib_trie")));
    addresses.extend(own_of_version_6(&table("/proc/net/if_inet6")));
    addresses.sort();
    addresses.dedup();
    addresses.truncate(256);
    addresses
}

/// Returns the addresses of this machine in the kernel's table of routes.
fn own_of_version_4(routes: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in routes.lines() {
        match line.trim_start().strip_prefix("|-- ") {
            Some(address) => last = address.parse::<IpAddr>().ok(),
            None if line.contains("host LOCAL") => found.extend(last),
            None => {}
        }
    }
    found
}

/// Returns the addresses of this machine in the kernel's table of interfaces: each line begins with one, in 32 digits.
fn own_of_version_6(interfaces: &str) -> Vec<IpAddr> {
    let first = interfaces.lines().filter_map(|line| line.split_whitespace().next());
    let numbers =
        first.filter(|word| word.len() == 32).filter_map(|word| u128::from_str_radix(word, 16).ok());
    numbers.map(|number| IpAddr::from(Ipv6Addr::from(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 9: a certificate names the addresses of both versions.
    #[test]
    fn addresses_of_both_versions_are_found() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        assert_eq!(own_of_version_4(routes), ["192.0.2.7".parse::<IpAddr>().unwrap()]);
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n20010db8000000000000000000000007 02 40 00 80     eth0\nnonsense\n";
        assert_eq!(
            own_of_version_6(interfaces),
            ["::1", "2001:db8::7"].map(|address| address.parse::<IpAddr>().unwrap())
        );
        let found = addresses(IpAddr::from([0, 0, 0, 0]));
        let own = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        assert!(own_of_version_6(&own).iter().all(|address| found.contains(address)), "{found:?}");
    }
}
