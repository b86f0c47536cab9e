//! A template that is a directory, on its way down: one archive, the same bytes for the same tree.
//!
//! What is packed is decided here, name by name: directories, files and symbolic links, of one file system. Devices,
//! sockets and pipes stay behind: every container has its own. Nothing is compressed, so that what is unpacked is no
//! larger than what came.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::machine::SYSTEM_PATH;

/// The most names a tree may have, and the most bytes.
const MOST_NAMES: usize = 2_000_000;
const MOST_BYTES: u64 = 256 << 30;
/// What would make two archives of one tree differ.
const SAME: &str = "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";

/// Packs a tree into an archive in `into`, an empty directory, and returns where that is.
pub(super) async fn pack(tree: &Path, into: &Path) -> io::Result<PathBuf> {
    let (list, archive) = (into.join("names"), into.join("tree.tar"));
    let (from, to) = (tree.to_owned(), list.clone());
    let listing = tokio::task::spawn_blocking(move || {
        let names = names(&from)?;
        let lines = names.iter().flat_map(|name| [name.as_bytes(), &[0]]);
        fs::write(to, lines.collect::<Vec<_>>().concat())
    });
    listing.await.map_err(|_| io::Error::other("it was cut off"))??;
    let mut command = Command::new("tar");
    command.args(["--create", "--format=posix", SAME, "--numeric-owner", "--xattrs", "--no-recursion"]);
    command.arg("--directory").arg(tree).arg("--file").arg(&archive);
    command.args(["--null", "--verbatim-files-from"]).arg("--files-from").arg(&list);
    command.env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C").stdin(Stdio::null());
    let ended = command.kill_on_drop(true).output().await;
    let ended =
        ended.map_err(|error| io::Error::other(format!("`tar` cannot be started: {error} (package tar)")))?;
    if !ended.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
    }
    Ok(archive)
}

/// Returns the names of what is packed of a tree, sorted, each after its directory.
fn names(tree: &Path) -> io::Result<BTreeSet<OsString>> {
    let device = fs::metadata(tree)?.dev();
    let mut names = BTreeSet::from([OsString::from(".")]);
    let mut open = vec![PathBuf::from(".")];
    let mut bytes = 0_u64;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(tree.join(&directory))? {
            let name = directory.join(entry?.file_name());
            let found = fs::symlink_metadata(tree.join(&name))?;
            let kind = found.file_type();
            if !(kind.is_dir() || kind.is_file() || kind.is_symlink()) {
                continue;
            }
            if kind.is_dir() && found.dev() == device {
                open.push(name.clone());
            }
            bytes = bytes.saturating_add(if kind.is_file() { found.len() } else { 0 });
            names.insert(name.into_os_string());
            if names.len() > MOST_NAMES || bytes > MOST_BYTES {
                let most = MOST_BYTES >> 30;
                return Err(io::Error::other(format!("it has more than {MOST_NAMES} names or {most} GiB")));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::disk::body::hash;

    async fn packed(tree: &Path) -> (String, Vec<u8>) {
        let into = tempfile::tempdir().unwrap();
        let archive = pack(tree, into.path()).await.unwrap();
        (hash(&mut File::open(&archive).unwrap()).unwrap().1, fs::read(&archive).unwrap())
    }

    #[tokio::test]
    async fn one_tree_is_one_archive_without_devices() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("etc/deep")).unwrap();
        fs::write(tree.join("etc/hostname"), "crane\n").unwrap();
        fs::hard_link(tree.join("etc/hostname"), tree.join("etc/other")).unwrap();
        fs::write(tree.join("-run me\n"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(tree.join("-run me\n"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("/outside", tree.join("etc/deep/link")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap());
        let pipe = std::process::Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap();
        assert!(pipe.success());

        let (first, bytes) = packed(&tree).await;
        assert_eq!(packed(&tree).await.0, first);
        let mut archive = tar::Archive::new(&*bytes);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let mode = entry.header().mode().unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().entry_type(), mode & 0o7777)
        });
        let entries: Vec<_> = entries.collect();
        let names: Vec<&str> = entries.iter().map(|(name, ..)| name.trim_end_matches('/')).collect();
        assert_eq!(
            names,
            [".", "./-run me\n", "./etc", "./etc/deep", "./etc/deep/link", "./etc/hostname", "./etc/other"]
        );
        assert_eq!(entries[1].2, 0o750);
        assert_eq!(entries[4].1, tar::EntryType::Symlink);
        assert_eq!(entries[6].1, tar::EntryType::Link, "one file stays one");
        fs::write(tree.join("etc/hostname"), "hook\n").unwrap();
        assert_ne!(packed(&tree).await.0, first);
    }

    #[tokio::test]
    async fn what_cannot_be_packed_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let error = pack(&dir.path().join("nowhere"), dir.path()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
