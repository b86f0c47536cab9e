//! What tokens are checked with. It changes with the rest of the site, and by itself when keys rotate or tokens are
//! revoked: that must count also while another file of the site is broken.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::site::keyring::Keyring;
use stead_model::token::{LiveRing, Revoked, RingError, SigningKey};
use stead_model::{Diagnostics, Site};

type Ring = Arc<Result<LiveRing, RingError>>;

/// The keys of a site as they were read at one moment.
pub(crate) struct Keys {
    keyring: Keyring,
    signing_key: Option<SigningKey>,
    broken: Option<RingError>,
    revoked: Arc<Revoked>,
    /// The keys that are live in one second.
    ring: Mutex<Option<(i64, Ring)>>,
}

impl Keys {
    /// Returns the keys of a site.
    pub(crate) fn of(site: &Site) -> Self {
        let broken = match (site.secrets.is_broken(), site.keyring.is_broken()) {
            (true, _) => Some(RingError::BrokenSecrets),
            (false, true) => Some(RingError::BrokenKeyring),
            (false, false) => None,
        };
        let keyring = site.keyring.value.clone();
        let revoked = Arc::new(Revoked::of(&keyring));
        let signing_key = site.secrets.value.signing_key.clone();
        Self { keyring, signing_key, broken, revoked, ring: Mutex::default() }
    }

    /// Returns what is wrong with the files that keys are in, if something is.
    pub(crate) fn problems(site: &Site) -> Vec<String> {
        let files: [&Diagnostics; 3] =
            [&site.settings.diagnostics, &site.secrets.diagnostics, &site.keyring.diagnostics];
        files.into_iter().filter(|of| of.has_errors()).map(ToString::to_string).collect()
    }

    /// Returns what is revoked.
    pub(crate) fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    /// Returns the keys that are live at `now`, which change only with the seconds.
    pub(crate) fn ring(&self, now: i64) -> Ring {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        match &*ring {
            Some((at, live)) if *at == now => Arc::clone(live),
            Some(_) | None => {
                let live = match &self.broken {
                    Some(broken) => Err(broken.clone()),
                    None => LiveRing::revoking(
                        &self.keyring,
                        self.signing_key.as_ref(),
                        Arc::clone(&self.revoked),
                        now,
                    ),
                };
                let live = Arc::new(live);
                *ring = Some((now, Arc::clone(&live)));
                live
            }
        }
    }
}

/// What shows that a keyring is another one than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Returns the stamp of a site's keyring; none if there is none.
pub(crate) fn stamp(site: &Path) -> Option<Stamp> {
    let known = std::fs::metadata(site.join("keyring.yaml")).ok()?;
    Some(Stamp { inode: known.ino(), size: known.size(), modified: (known.mtime(), known.mtime_nsec()) })
}
