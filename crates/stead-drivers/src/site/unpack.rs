//! Unpacks the site that a level above has handed down: exactly its files, for its owner's eyes alone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stead_model::SiteKey;
use stead_model::site::{FileKind, Keyring, Parcel, Site, SiteFile};
use stead_model::token::RingError;

use super::keyring::{KeyringError, change_keyring};

/// The file of public keys of everybody above, beside the site's own files.
pub const AUTHORIZED_KEYS: &str = "authorized_keys";

/// Why a site was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// A file could not be written or removed.
    #[error("failed to write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The keyring could not be changed.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
}

/// Makes `directory` the site of `parcel`. What it had that the parcel has not goes, but for what was revoked here.
pub fn unpack(parcel: &Parcel, directory: &Path) -> Result<(), UnpackError> {
    make_directory(directory)?;
    for kind in FileKind::FOLDERS {
        let folder = directory.join(kind.place());
        remove_others(parcel, kind, &folder)?;
    }
    for (path, content) in &parcel.files {
        if FileKind::of_path(path).is_none_or(|(kind, _)| kind == FileKind::Keyring) {
            continue;
        }
        let path = directory.join(path);
        if let Some(folder) = path.parent() {
            make_directory(folder)?;
        }
        write(&path, content.as_bytes())?;
    }
    let keys: String = parcel.authorized_keys.iter().map(|key| format!("{key}\n")).collect();
    write(&directory.join(AUTHORIZED_KEYS), keys.as_bytes())?;
    let given = parcel.to_site().keyring.value;
    change_keyring(directory, directory, |site| Ok::<_, RingError>(merged(&given, &site.keyring.value)))?;
    Ok(())
}

/// Removes the site in `directory` but for what was revoked there: a token that was refused stays refused.
pub(crate) fn clear(directory: &Path) -> Result<(), UnpackError> {
    let without_keys = |site: &Site| {
        let revoked = site.keyring.value.revoked.clone();
        Ok::<_, RingError>(Keyring { keys: Vec::new(), revoked })
    };
    let (_, kept) = change_keyring(directory, directory, without_keys)?;
    if kept.revoked.is_empty() {
        return fs::remove_dir_all(directory).map_err(failed(directory));
    }
    for entry in fs::read_dir(directory).map_err(failed(directory))?.flatten() {
        let path = entry.path();
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
            Ok(_) if entry.file_name() == FileKind::Keyring.place() => Ok(()),
            Ok(_) => fs::remove_file(&path),
            Err(error) => Err(error),
        };
        removed.map_err(failed(&path))?;
    }
    Ok(())
}

/// Returns the name of the site that was unpacked in `directory`, if one was.
pub(crate) fn unpacked_name(directory: &Path) -> Option<SiteKey> {
    let name = FileKind::Site.place();
    let content = fs::read(directory.join(name)).ok()?;
    let file =
        SiteFile { kind: FileKind::Site, stem: String::new(), name: name.to_owned(), content: Ok(content) };
    let settings = Site::read(vec![file]).settings;
    (!settings.is_broken()).then_some(settings.value.name)
}

/// Returns the public keys of everybody above the site in `directory`; none if nobody handed it down.
pub fn keys_above(directory: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(directory.join(AUTHORIZED_KEYS)) {
        Ok(text) => Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the ring above with what was revoked here as well: a token that was refused stays refused.
fn merged(given: &Keyring, here: &Keyring) -> Keyring {
    let mut merged = given.clone();
    merged.revoked.extend(here.revoked.iter().filter(|own| !given.revoked.contains(own)).cloned());
    merged
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> UnpackError {
    let path = path.to_owned();
    move |source| UnpackError::File { path, source }
}

fn make_directory(path: &Path) -> Result<(), UnpackError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))
}

/// Removes the files of a folder that the parcel does not have.
fn remove_others(parcel: &Parcel, kind: FileKind, folder: &Path) -> Result<(), UnpackError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(folder)(error)),
    };
    for entry in entries {
        let path = entry.map_err(failed(folder))?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if !parcel.files.contains_key(&kind.path_of(stem)) {
            fs::remove_file(&path).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Writes a file of its owner, whole or not at all; the same content again is not written.
fn write(path: &Path, content: &[u8]) -> Result<(), UnpackError> {
    if fs::read(path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory).map_err(failed(path))?;
    file.write_all(content).map_err(failed(path))?;
    file.as_file().sync_all().map_err(failed(path))?;
    file.persist(path).map_err(|error| failed(path)(error.error))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(path))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use stead_model::token::revoke_token;

    use super::super::load::{Manifests, load};
    use super::*;

    fn parcel(files: &[(&str, &str)]) -> Parcel {
        let files: BTreeMap<String, String> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let authorized_keys = vec!["ssh-ed25519 AAAA above".to_owned()];
        Parcel { schema: 1, manifest: SiteKey::parse("m").unwrap(), files, authorized_keys }
    }

    #[test]
    fn the_site_is_exactly_what_was_handed_down() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("delegated/m");
        let ring = format!("keys: [{{key: '{}', use: mint}}]\n", "ab".repeat(32));
        let spec = "schema_version: 1\n";
        unpack(&parcel(&[("specs/a.yaml", spec), ("specs/b.yaml", spec), ("keyring.yaml", &ring)]), &site)
            .unwrap();
        change_keyring(&site, &site, |site| Ok(revoke_token(&site.keyring.value, "gone"))).unwrap();
        let ring = format!("keys: [{{key: '{}', use: mint}}]\n", "cd".repeat(32));
        unpack(&parcel(&[("specs/a.yaml", spec), ("keyring.yaml", &ring)]), &site).unwrap();
        let found = load(&site, &site, Manifests::All).unwrap();
        assert_eq!(found.warnings.to_string(), "");
        assert_eq!(found.site.specs.len(), 1);
        assert_eq!(found.site.keyring.value.keys[0].key.to_hex(), "cd".repeat(32));
        assert_eq!(found.site.keyring.value.revoked.len(), 1, "what was refused stays refused");
        assert_eq!(keys_above(&site).unwrap(), ["ssh-ed25519 AAAA above"]);
        assert_eq!(unpacked_name(&site), None, "nobody said");
        unpack(&parcel(&[("site.yaml", "{\"name\": \"harbour\"}")]), &site).unwrap();
        assert_eq!(unpacked_name(&site), SiteKey::parse("harbour").ok());
        for path in [site.join("keyring.yaml"), site.join("site.yaml"), site.join(AUTHORIZED_KEYS)] {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
        assert_eq!(site.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_was_revoked_outlives_the_site() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("m");
        let ring = format!("keys: [{{key: '{}', use: mint}}]\n", "ab".repeat(32));
        let files = [
            ("site.yaml", "name: harbour\n"),
            ("specs/a.yaml", "schema_version: 1\n"),
            ("keyring.yaml", &ring),
        ];
        unpack(&parcel(&files), &site).unwrap();
        change_keyring(&site, &site, |site| Ok(revoke_token(&site.keyring.value, "gone"))).unwrap();
        clear(&site).unwrap();
        let left = fs::read_dir(&site).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(left, ["keyring.yaml"]);
        let kept = fs::read_to_string(site.join("keyring.yaml")).unwrap();
        assert!(kept.contains("gone") && !kept.contains(&"ab".repeat(32)), "{kept}");
        unpack(&parcel(&files), &site).unwrap();
        let found = load(&site, &site, Manifests::All).unwrap().site.keyring.value;
        assert_eq!((found.keys.len(), found.revoked.len()), (1, 1));
        change_keyring(&site, &site, |_| Ok(Keyring::default())).unwrap();
        clear(&site).unwrap();
        assert!(!site.exists());
    }

    #[test]
    fn nobody_is_above_a_site_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        assert!(keys_above(dir.path()).unwrap().is_empty());
    }
}
