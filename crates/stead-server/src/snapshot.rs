//! The site as it was read at one moment: every answer is made from one of these, and a reload replaces it as a whole.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use serde_json::{Value, json};
use stead_drivers::site::{Manifests, load};
use stead_model::node::wire::{WireCode, WireError};
use stead_model::site::ResolvedSpec;
use stead_model::site::settings::Limits;
use stead_model::token::{Claims, LiveRing, RingError, check_spec, verify};
use stead_model::{Diagnostics, NodeName, Site, SiteKey, canonical_json};
use tokio_rustls::TlsAcceptor;

use crate::certificate::{Certificate, CertificateError, Subject};
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
    ring: Mutex<(i64, Arc<Result<LiveRing, RingError>>)>,
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
    /// A repository cannot be cloned.
    #[error(transparent)]
    Repos(#[from] ReposError),
    /// Files that could be used no longer can: what each says is wrong with it.
    #[error("{}", .0.join("; "))]
    Broken(Vec<String>),
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

    /// Reads everything again; what `before` could use must still be usable.
    pub(crate) fn reload(&self, before: &Snapshot) -> Result<Snapshot, SnapshotError> {
        let options = ServerOptions { new_certificate: false, ..self.options.clone() };
        let certificate = Self { options, ..self.clone() }.certificate()?.certificate;
        let snapshot = self.read(certificate)?;
        let known: BTreeSet<&String> = before.broken.iter().map(|(file, _)| file).collect();
        let newly = snapshot.broken.iter().filter(|(file, _)| !known.contains(file));
        let problems: Vec<String> = newly.map(|(_, problem)| problem.clone()).collect();
        if problems.is_empty() { Ok(snapshot) } else { Err(SnapshotError::Broken(problems)) }
    }

    /// Reads the site. A file that cannot be used makes only its own answers fail, but `site.yaml` must hold.
    pub(crate) fn read(&self, certificate: Certificate) -> Result<Snapshot, SnapshotError> {
        let site = load(&self.place.site, &self.place.site, Manifests::All)?.site;
        if site.settings.is_broken() {
            return Err(SnapshotError::Site(site.settings.diagnostics));
        }
        let repos: Vec<(SiteKey, PathBuf)> = site
            .settings
            .value
            .server
            .repos
            .iter()
            .map(|(name, path)| (name.clone(), self.place.site.join(path)))
            .collect();
        let repos = Repos::clone_all(&self.place.repos(self.port), &repos)?;
        let config = certificate.server_config().map_err(SnapshotError::Tls)?;
        let names: Vec<&SiteKey> = site.specs.keys().collect();
        Ok(Snapshot {
            spec_list: json!({"specs": names}).to_string().into(),
            broken: broken(&site),
            site,
            repos,
            certificate,
            tls: TlsAcceptor::from(Arc::new(config)),
            ring: Mutex::new((i64::MIN, Arc::new(Err(RingError::NoKey)))),
            ready: RwLock::default(),
        })
    }
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
        look(format!("specs/{name}"), &entry.diagnostics);
    }
    for (name, entry) in &site.postures {
        look(format!("postures/{name}"), &entry.diagnostics);
    }
    look("names".to_owned(), &site.strays);
    broken
}

impl Snapshot {
    /// Returns what one client may cost.
    pub(crate) fn limits(&self) -> &Limits {
        &self.site.settings.value.server.limits
    }

    /// Returns the keys that are live at `now`, which change only with the seconds.
    pub(crate) fn ring(&self, now: i64) -> Arc<Result<LiveRing, RingError>> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.0 != now {
            *ring = (now, Arc::new(LiveRing::of(&self.site, now)));
        }
        Arc::clone(&ring.1)
    }

    /// Checks 2 to 8 of a token.
    pub(crate) fn verify(&self, token: &str, now: i64) -> Result<Claims, WireError> {
        let ring = self.ring(now);
        let accept_v1 = self.site.settings.value.server.accept_v1;
        verify(token, ring.as_ref().as_ref(), accept_v1, now).map_err(|refusal| {
            // What is wrong with the keys is for the log of the server's operator, not for the world.
            let error = WireError::from(refusal);
            if error.code == WireCode::E500 {
                return WireError::new(error.code, "there is no usable key to check tokens with");
            }
            error
        })
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
    // A table of the kernel, without which the certificate names fewer addresses: clients go by its pin.
    let routes = std::fs::read_to_string("/proc/net/fib_trie").or_else(|_| Ok::<_, io::Error>(String::new()));
    let mut last = None;
    for line in routes.unwrap_or_default().lines() {
        match line.trim_start().strip_prefix("|-- ") {
            Some(address) => last = address.parse::<IpAddr>().ok(),
            None if line.contains("host LOCAL") => addresses.extend(last),
            None => {}
        }
    }
    addresses.sort();
    addresses.dedup();
    addresses.truncate(256);
    addresses
}
