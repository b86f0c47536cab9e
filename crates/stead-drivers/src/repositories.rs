//! Repositories that a level hands down, so that the server of the level below has them for its own nodes: bare clones, all in
//! one archive.
//!
//! ```text
//!  clones of this level ── pack ──▶ repositories-HASH.tar ── brought, then named by an errand ──▶ unpack ── server below
//! ```
//! Only what Git asks for over HTTP is packed, so that no Git is needed below. The same clones give the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use stead_model::SiteKey;
use tar::{EntryType, HeaderMode};

/// The directory of archives in that of a server.
const DIRECTORY: &str = "repositories";
/// The file that names the archive which counts.
const CURRENT: &str = "current";
/// What the directory of a clone has after the name of its repository.
const ENDING: &str = ".git";

/// Returns where archives lie in the directory of a server.
pub fn directory(server: &Path) -> PathBuf {
    server.join(DIRECTORY)
}

/// Returns the archive that was handed down to a server, if one was.
pub fn handed_down(server: &Path) -> Option<PathBuf> {
    let name = fs::read_to_string(directory(server).join(CURRENT)).ok()?;
    Some(directory(server).join(&name)).filter(|_| crate::errand::images::is_plain(&name))
}

/// Has the archive called `name` count for a server from now on, and removes the others; none: nothing is handed down.
pub(crate) fn keep(server: &Path, name: Option<&str>) -> io::Result<()> {
    let directory = directory(server);
    let Some(name) = name else {
        return match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let mut new = tempfile::NamedTempFile::new_in(&directory)?;
    io::Write::write_all(&mut new, name.as_bytes())?;
    new.persist(directory.join(CURRENT)).map_err(|error| error.error)?;
    for entry in fs::read_dir(&directory)?.flatten() {
        if entry.file_name() != name && entry.file_name() != CURRENT {
            // What stays is removed the next time.
            fs::remove_file(entry.path()).ok();
        }
    }
    Ok(())
}

/// Packs bare clones into an archive.
pub fn pack(clones: &BTreeMap<SiteKey, PathBuf>, archive: &Path) -> io::Result<()> {
    let mut builder = tar::Builder::new(File::create(archive)?);
    builder.mode(HeaderMode::Deterministic);
    builder.sparse(false);
    for (name, clone) in clones {
        let to = PathBuf::from(format!("{name}{ENDING}"));
        for file in served(clone)? {
            builder.append_path_with_name(clone.join(&file), to.join(&file))?;
        }
    }
    builder.into_inner()?.sync_all()
}

/// Returns the files of a bare clone that Git asks for, sorted.
fn served(clone: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::from(["HEAD", "info/refs"].map(PathBuf::from));
    let mut open = vec![PathBuf::from("objects")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(clone.join(&directory))? {
            let entry = entry?;
            let name = directory.join(entry.file_name());
            match entry.file_type()? {
                kind if kind.is_dir() => open.push(name),
                kind if kind.is_file() => {
                    files.insert(name);
                }
                _ => {}
            }
        }
    }
    Ok(files)
}

/// Unpacks an archive into a directory, and returns where each clone is.
pub fn unpack(archive: &Path, into: &Path) -> io::Result<BTreeMap<SiteKey, PathBuf>> {
    fs::create_dir_all(into)?;
    let mut clones = BTreeMap::new();
    let mut archive = tar::Archive::new(File::open(archive)?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let first = path.iter().next().and_then(|name| name.to_str()?.strip_suffix(ENDING));
        let name = first.and_then(|name| SiteKey::parse(name).ok());
        let Some(name) = name.filter(|_| entry.header().entry_type() == EntryType::Regular) else {
            return Err(io::Error::other(format!("{} is no file of a repository", path.display())));
        };
        if !entry.unpack_in(into)? {
            return Err(io::Error::other(format!("{} would lie elsewhere", path.display())));
        }
        let place = into.join(format!("{name}{ENDING}"));
        clones.insert(name, place);
    }
    Ok(clones)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clone(directory: &Path) -> PathBuf {
        for (file, text) in [
            ("HEAD", "ref: refs/heads/main\n"),
            ("info/refs", "r"),
            ("config", "secret"),
            ("objects/ab/cd", "o"),
        ] {
            let path = directory.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        directory.to_owned()
    }

    /// Section 6: a level serves the repositories of the level above it, and nothing else of them goes down.
    #[test]
    fn what_is_packed_is_what_git_asks_for_and_the_same_every_time() {
        let dir = tempfile::tempdir().unwrap();
        let name = SiteKey::parse("kit").unwrap();
        let archives = ["one", "two"].map(|place| {
            let clones = BTreeMap::from([(name.clone(), clone(&dir.path().join(place)))]);
            let archive = dir.path().join(format!("{place}.tar"));
            pack(&clones, &archive).unwrap();
            archive
        });
        assert_eq!(fs::read(&archives[0]).unwrap(), fs::read(&archives[1]).unwrap());
        let found = unpack(&archives[0], &dir.path().join("below")).unwrap();
        let clone = &found[&name];
        assert_eq!(fs::read_to_string(clone.join("objects/ab/cd")).unwrap(), "o");
        assert!(
            clone.join("HEAD").exists() && clone.join("info/refs").exists() && !clone.join("config").exists()
        );
    }

    #[test]
    fn only_the_archive_that_counts_stays() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(handed_down(dir.path()), None);
        fs::create_dir(directory(dir.path())).unwrap();
        for name in ["a.tar", "b.tar"] {
            fs::write(directory(dir.path()).join(name), "").unwrap();
        }
        keep(dir.path(), Some("b.tar")).unwrap();
        assert_eq!(handed_down(dir.path()), Some(directory(dir.path()).join("b.tar")));
        assert_eq!(fs::read_dir(directory(dir.path())).unwrap().count(), 2);
        keep(dir.path(), None).unwrap();
        keep(dir.path(), None).unwrap();
        assert_eq!(handed_down(dir.path()), None);
        fs::create_dir(directory(dir.path())).unwrap();
        fs::write(directory(dir.path()).join(CURRENT), "../elsewhere").unwrap();
        assert_eq!(handed_down(dir.path()), None);
    }
}
