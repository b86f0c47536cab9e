//! The driver's own key: what it logs in to its nodes with. Made once per state directory.

use std::io;
use std::path::{Path, PathBuf};

use russh::keys::PrivateKey;

use crate::transport::ssh::server::ServerKey;

/// The key a level logs in to its nodes with. The private half stays in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverKey {
    /// Where the private half is.
    pub file: PathBuf,
    /// The public half, as `authorized_keys` has it.
    pub public: String,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[error("the key {} cannot be used: {why}", file.display())]
pub struct KeyError {
    /// The key's file.
    pub file: PathBuf,
    /// Why.
    pub why: String,
}

impl DriverKey {
    /// Returns the key in `given`, or the one of `state_dir`, which is made if it is not there. Blocks.
    ///
    /// # Errors
    /// If it cannot be read or made.
    pub fn ensure(given: Option<&Path>, state_dir: &Path) -> Result<Self, KeyError> {
        let file = given.map_or_else(|| state_dir.join("ssh/id_ed25519"), Path::to_owned);
        let failed = |why: String| KeyError { file: file.clone(), why };
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && given.is_none() => {
                make(&file).map_err(|error| failed(error.to_string()))?
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        // The public half of a key with a passphrase is readable too: it is what nodes are given.
        let key = PrivateKey::from_openssh(&text).map_err(|error| failed(error.to_string()))?;
        let public = key.public_key().to_openssh().map_err(|error| failed(error.to_string()))?;
        let public = public.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" ");
        Ok(Self { file, public: format!("{public} stead") })
    }
}

/// Makes the key, unless another process made it meanwhile; returns the text of the one that is there.
fn make(file: &Path) -> io::Result<String> {
    use std::io::Write as _;
    use std::os::unix::fs::DirBuilderExt as _;
    let directory = file.parent().ok_or_else(|| io::Error::other("it is in no directory"))?;
    if let Some(above) = directory.parent() {
        std::fs::create_dir_all(above)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let text = ServerKey::generate()?.to_text()?;
    let mut temporary = tempfile::Builder::new().prefix(".key.").tempfile_in(directory)?;
    temporary.write_all(text.as_bytes())?;
    temporary.as_file().sync_all()?;
    match temporary.persist_noclobber(file) {
        Ok(_) => std::fs::File::open(directory)?.sync_all()?,
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.error),
    }
    std::fs::read_to_string(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = DriverKey::ensure(None, &state).unwrap();
        assert_eq!(DriverKey::ensure(None, &state).unwrap(), first);
        assert!(first.public.starts_with("ssh-ed25519 AAAA"), "{}", first.public);
        let mode = std::fs::metadata(&first.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_was_named_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no-key");
        assert!(DriverKey::ensure(Some(&missing), dir.path()).is_err());
        assert!(!missing.exists());
    }
}
