//! Marks of secrets: by them a resumed run knows that a secret is another one, and nobody else knows anything.
//!
//! A mark is an HMAC of a secret's name and value with a salt of its run. Marks are recorded with the run; their key is a file
//! of the user's own, outside every bundle: whoever has a bundle alone cannot even try guesses.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use stead_model::steps::SecretMarks;

/// The file of the key in the user's state directory.
const FILE: &str = "secret-marks.key";

const KEY_BYTES: usize = 32;
const SALT_BYTES: usize = 16;

/// How much of an HMAC a mark is.
const MARK_BYTES: usize = 16;

/// The key of a user's marks. `Debug` does not show it.
pub struct MarkKey([u8; KEY_BYTES]);

impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey")
    }
}

impl MarkKey {
    /// Returns the key in the user's state directory.
    ///
    /// # Errors
    /// If there is none, or others could have read or made it.
    pub fn find(state: &Path) -> io::Result<Self> {
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let mut file = OpenOptions::new().read(true).custom_flags(no_link).open(state.join(FILE))?;
        let found = file.metadata()?;
        let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
        if !found.is_file() || !is_own || found.len() != KEY_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a key of this user alone"));
        }
        let mut key = [0; KEY_BYTES];
        file.read_exact(&mut key)?;
        Ok(Self(key))
    }

    /// Returns the key in the user's state directory, made if there is none. Those who make one at once get the same.
    ///
    /// # Errors
    /// If it cannot be made, and as [`MarkKey::find`].
    pub fn ensure(state: &Path) -> io::Result<Self> {
        match Self::find(state) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        DirBuilder::new().recursive(true).mode(0o700).create(state)?;
        let fresh = state.join(format!(".{FILE}-{}", hex(&random::<SALT_BYTES>()?)));
        let made = write_new(&fresh, &random::<KEY_BYTES>()?).and_then(|()| {
            // Whole or not at all, and never over the key of another.
            match fs::hard_link(&fresh, state.join(FILE)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        });
        let removed = fs::remove_file(&fresh);
        made.and(removed)?;
        Self::find(state)
    }

    /// Returns marks of `secrets`, names with values, that a new salt makes unlike those of every other run.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn marks<'a>(
        &self,
        secrets: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> io::Result<SecretMarks> {
        let salt = hex(&random::<SALT_BYTES>()?);
        let marks: BTreeMap<String, String> = secrets
            .into_iter()
            .map(|(name, value)| (name.to_owned(), self.mark(&salt, name, value)))
            .collect();
        Ok(SecretMarks { salt, marks })
    }

    /// Returns the names in `secrets` whose value is not the one that was marked.
    pub fn changed<'a>(
        &self,
        marked: &SecretMarks,
        secrets: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Vec<&'a str> {
        let is_other = |(name, value): &(&str, &str)| {
            marked.marks.get(*name).is_some_and(|mark| *mark != self.mark(&marked.salt, name, value))
        };
        secrets.into_iter().filter(is_other).map(|(name, _)| name).collect()
    }

    fn mark(&self, salt: &str, name: &str, value: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length is one");
        // Neither a salt nor a name holds a NUL.
        for part in [salt, "\0", name, "\0", value] {
            mac.update(part.as_bytes());
        }
        hex(mac.finalize().into_bytes().get(..MARK_BYTES).unwrap_or_default())
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_changed_secret_is_known_by_its_mark() {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().join("stead");
        assert!(MarkKey::find(&state).is_err());
        let before = [("A", "first"), ("B", "second"), ("GONE", "x")];
        let marks = MarkKey::ensure(&state).unwrap().marks(before).unwrap();
        let key = MarkKey::ensure(&state).unwrap();
        assert!(key.changed(&marks, before).is_empty());
        assert_eq!(key.changed(&marks, [("A", "first"), ("B", "other"), ("NEW", "y")]), ["B"]);
        let left: Vec<_> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [FILE]);
    }

    #[test]
    fn marks_of_equal_values_are_alike_neither_in_one_run_nor_in_two() {
        let state = tempfile::tempdir().unwrap();
        let key = MarkKey::ensure(state.path()).unwrap();
        let secrets = [("A", "same"), ("B", "same")];
        let (one, two) = (key.marks(secrets).unwrap(), key.marks(secrets).unwrap());
        assert_ne!(one.marks["A"], one.marks["B"]);
        assert_ne!(one.marks["A"], two.marks["A"]);
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        let state = tempfile::tempdir().unwrap();
        MarkKey::ensure(state.path()).unwrap();
        let file = state.path().join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(MarkKey::ensure(state.path()).is_err());
        fs::rename(&file, state.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        assert!(MarkKey::ensure(state.path()).is_err());
    }
}
