//! Programs, addresses and files, as roles and their driver find them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use stead_model::plan::Digest;
use stead_model::role::{FileStat, FoundKind, Program, ProgramQuestion};
use stead_runner::files::Content;
use stead_runner::operation::OpError;

use super::{absolute, cannot, text};
use crate::command::program;
use crate::roles::artifacts;

/// Returns the program that a role would start.
pub(super) fn find_program(question: &ProgramQuestion) -> Result<Program, OpError> {
    let path = question.path.as_ref().map(Into::into).or_else(|| std::env::var_os("PATH"));
    let workdir = absolute(&question.workdir)?;
    let found = program::find_on_path(&question.name, workdir, path.as_deref())
        .map_err(|refused| OpError::permanent(refused.message))?;
    let content = File::open(&found).and_then(|mut file| Content::read(&mut file));
    // A program may be executable and not readable.
    let sha256 = content.ok().map(|content| content.sha256);
    Ok(Program { path: text(&found)?, sha256 })
}

/// An address can be listened on where it is, and only there.
pub(super) fn has_address(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

/// Returns what is at `path`; nothing if nothing is.
pub(super) fn stat(path: &Path, hash: bool) -> Result<Option<FileStat>, OpError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(cannot("look at", path, &error)),
    };
    let kind = if metadata.is_file() {
        FoundKind::File
    } else if metadata.is_dir() {
        FoundKind::Directory
    } else {
        FoundKind::Special
    };
    let sha256 = match hash && kind == FoundKind::File {
        true => {
            let content = File::open(path).and_then(|mut file| Content::read(&mut file));
            Some(content.map_err(|error| cannot("read", path, &error))?.sha256)
        }
        false => None,
    };
    Ok(Some(FileStat {
        kind,
        mode: metadata.mode() & 0o7777,
        bytes: metadata.len(),
        modified: artifacts::timestamp(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)),
        sha256,
    }))
}

/// Opens a file that is to go to the driver; links are not followed.
pub(crate) fn open_for_driver(path: &str) -> Result<File, OpError> {
    let path = absolute(path)?;
    artifacts::open_file(path).map_err(|error| cannot("read", path, &error))
}

/// Puts the content of `from` into the file `to`, with its parents, whole or not at all; returns its hash.
pub(crate) fn install(from: &mut dyn io::Read, to: &str, mode: Option<u32>) -> Result<Digest, OpError> {
    use io::Write as _;
    use sha2::Digest as _;
    let to = absolute(to)?;
    let fail = |error: io::Error| cannot("write", to, &error);
    let (Some(parent), Some(file_name)) = (to.parent(), to.file_name()) else {
        return Err(OpError::invalid(format!("`{}` names no file", to.display())));
    };
    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(fail)?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(file_name);
    let mut builder = tempfile::Builder::new();
    let mut temporary =
        builder.prefix(&prefix).suffix(stead_bundle::ARRIVING).tempfile_in(parent).map_err(fail)?;
    let mut hasher = sha2::Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                let bytes = buffer.get(..n).unwrap_or_default();
                hasher.update(bytes);
                temporary.write_all(bytes).map_err(fail)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(fail(error)),
        }
    }
    let permissions = fs::Permissions::from_mode(mode.unwrap_or(0o644) & 0o7777);
    temporary.as_file().set_permissions(permissions).map_err(fail)?;
    temporary.persist(to).map_err(|error| fail(error.error))?;
    Ok(Digest(hasher.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_the_role_would() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("tool");
        fs::write(&own, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).unwrap();
        let workdir = directory.path().display().to_string();
        let ask = |name: &str, path: Option<&str>| {
            find_program(&ProgramQuestion {
                name: name.to_owned(),
                path: path.map(str::to_owned),
                workdir: workdir.clone(),
            })
        };
        assert_eq!(ask("./tool", None).unwrap().sha256, Some(Digest::of(b"#!/bin/sh\n").to_string()));
        assert_eq!(ask("tool", Some(&workdir)).unwrap().path, own.display().to_string());
        assert!(ask("sh", None).is_ok());
        let missing = ask("sh", Some("/nowhere")).unwrap_err().message;
        assert!(missing.contains("`sh`") && missing.contains("`/nowhere`"), "{missing}");
    }

    #[test]
    fn files_are_installed_whole_with_their_mode() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("a/b/c").display().to_string();
        let digest = install(&mut &b"content"[..], &to, Some(0o755)).unwrap();
        assert_eq!(digest, Digest::of(b"content"));
        let found = stat(Path::new(&to), true).unwrap().unwrap();
        assert_eq!((found.mode, found.bytes, found.sha256), (0o755, 7, Some(digest.to_string())));
        assert_eq!(fs::read_dir(directory.path().join("a/b")).unwrap().count(), 1);
        assert!(install(&mut &b""[..], "relative", None).is_err());
        assert_eq!(stat(&directory.path().join("none"), true).unwrap(), None);
    }

    #[test]
    fn loopback_is_an_own_address_and_a_documentation_one_is_not() {
        assert!(has_address("127.0.0.1".parse().unwrap()));
        assert!(!has_address("192.0.2.1".parse().unwrap()) && !has_address("0.0.0.0".parse().unwrap()));
    }
}
