//! Changes `keyring.yaml`: one change at a time, whole or not at all, for its owner's eyes alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stead_model::base64::url;
use stead_model::site::{FileKind, Keyring, SiteFile};
use stead_model::token::{RingError, SigningKey};
use stead_model::{Diagnostics, Site};

use super::load::{LoadError, Manifests, load};

/// How long another change is waited for, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Why a keyring was not changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// Somebody else is changing it all the time.
    #[error("{} is being changed by another process", path.display())]
    Locked {
        /// The keyring.
        path: PathBuf,
    },
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The site cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The files of secrets have problems.
    #[error("{0}")]
    Invalid(Diagnostics),
    /// What would be written could not be read again.
    #[error("the changed keyring could not be read again; nothing was written")]
    Unreadable,
    /// The change is not possible.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There is no randomness.
    #[error("the system gives no random bytes")]
    NoRandomness,
}

/// Changes the keyring of the site in `directory` to what `change` makes of it, and returns both.
///
/// A keyring that cannot be read is not replaced. The same keyring again is not written.
pub fn change_keyring(
    directory: &Path,
    shown: &Path,
    change: impl FnOnce(&Site) -> Result<Keyring, RingError>,
) -> Result<(Keyring, Keyring), KeyringError> {
    let path = directory.join(FileKind::Keyring.place());
    let _lock = lock(directory, &path)?;
    let site = load(directory, shown, Manifests::None)?.site;
    let mut broken = site.secrets.diagnostics.clone();
    broken.0.extend(site.keyring.diagnostics.0.clone());
    if broken.has_errors() {
        return Err(KeyringError::Invalid(broken));
    }
    let changed = change(&site)?;
    let before = site.keyring.value;
    if changed != before {
        let text = changed.to_yaml();
        if !reads_as(&text, &changed) {
            return Err(KeyringError::Unreadable);
        }
        write(directory, &path, text.as_bytes())?;
    }
    Ok((before, changed))
}

/// Whether `text` says what `keyring` does: a keyring that cannot be read refuses every token.
fn reads_as(text: &str, keyring: &Keyring) -> bool {
    let file = SiteFile {
        kind: FileKind::Keyring,
        stem: "keyring".to_owned(),
        name: FileKind::Keyring.place().to_owned(),
        content: Ok(text.as_bytes().to_vec()),
    };
    let read = Site::read(vec![file]).keyring;
    !read.is_broken() && read.value == *keyring
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyringError {
    let path = path.to_owned();
    move |source| KeyringError::File { what, path, source }
}

/// Takes the lock, which the kernel frees when the file is closed.
fn lock(directory: &Path, keyring: &Path) -> Result<File, KeyringError> {
    let path = directory.join(".keyring.lock");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(file_error("open lock", &path))?;
    let tries = PATIENCE.as_millis() / POLL.as_millis();
    for _ in 0..tries {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(POLL),
            Err(errno) => return Err(file_error("lock", &path)(errno.into())),
        }
    }
    Err(KeyringError::Locked { path: keyring.to_owned() })
}

/// Writes a file of its owner: to a temporary file, which is renamed when it is on disk.
fn write(directory: &Path, path: &Path, content: &[u8]) -> Result<(), KeyringError> {
    let failed = || file_error("write", path);
    let mut file = tempfile::Builder::new().prefix(".keyring.").tempfile_in(directory).map_err(failed())?;
    file.write_all(content).map_err(failed())?;
    file.as_file().sync_all().map_err(failed())?;
    file.persist(path).map_err(|error| failed()(error.error))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed())
}

/// Returns a new key.
pub fn new_signing_key() -> Result<SigningKey, KeyringError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| KeyringError::NoRandomness)?;
    Ok(SigningKey::from_bytes(bytes))
}

/// Returns an id for a new token.
pub fn new_token_id() -> Result<String, KeyringError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| KeyringError::NoRandomness)?;
    Ok(url::encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use stead_model::token::revoke_token;

    fn revoke(dir: &Path, jti: &str) -> Result<(Keyring, Keyring), KeyringError> {
        change_keyring(dir, dir, |site| Ok(revoke_token(&site.keyring.value, jti)))
    }

    #[test]
    fn a_change_is_whole_private_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        revoke(dir.path(), "a").unwrap();
        let path = dir.path().join("keyring.yaml");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        revoke(dir.path(), "a").unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().modified().unwrap(),
            written,
            "nothing changed, nothing is written"
        );
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".keyring.lock", "keyring.yaml"]);
    }

    #[test]
    fn changes_at_once_are_all_kept() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let path = dir.path();
                scope.spawn(move || revoke(path, &format!("t{i}")).unwrap());
            }
        });
        assert_eq!(revoke(dir.path(), "t0").unwrap().1.revoked.len(), 8);
    }

    #[test]
    fn a_keyring_that_could_not_be_read_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        revoke(dir.path(), "good").unwrap();
        let before = fs::read_to_string(dir.path().join("keyring.yaml")).unwrap();
        for bad in ["\u{7f}", "", " ", "ü", &"a".repeat(129)] {
            assert!(matches!(revoke(dir.path(), bad), Err(KeyringError::Unreadable)), "{bad:?}");
        }
        assert_eq!(fs::read_to_string(dir.path().join("keyring.yaml")).unwrap(), before);
    }

    #[test]
    fn a_broken_keyring_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("keyring.yaml"), "keys: [").unwrap();
        assert!(matches!(revoke(dir.path(), "a"), Err(KeyringError::Invalid(_))));
        assert_eq!(fs::read_to_string(dir.path().join("keyring.yaml")).unwrap(), "keys: [");
    }
}
