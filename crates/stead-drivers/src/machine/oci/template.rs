//! What machines are made from: the running root, a directory, or a tarball that is unpacked once.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Seek};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rustix::fs::FlockOperation;
use stead_model::machine::Boot;
use stead_runner::machine::MachineError;

use super::MARK;
use super::bundle::LOWER;
use crate::disk::body::hash;
use crate::machine::local::SYSTEM_PATH;
use crate::machine::{home, tree};

/// The template that is the running root.
const HOST: &str = "host";
/// Where tarballs are unpacked, beside the machines.
const UNPACKED: &str = ".templates";
/// What a tree that is being unpacked is called.
const ASIDE: &str = ".tmp-";
/// What archives are called.
const ARCHIVES: [&str; 8] = ["tar", "tar.gz", "tgz", "tar.zst", "tar.xz", "txz", "tar.bz2", "tar.lz4"];

/// What a machine is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Template {
    /// The running root.
    Host,
    /// A directory.
    Directory(PathBuf),
    /// An archive.
    Tarball(PathBuf),
}

impl Template {
    /// Returns what the machine is made from.
    pub(super) fn of(boot: Option<&Boot>, image_dir: &Path) -> Result<Self, MachineError> {
        let name = match boot {
            Some(Boot::Template(name) | Boot::Image(name)) => name,
            Some(Boot::Kernel { .. } | Boot::Firmware(_)) => {
                return Err(MachineError::Unsupported(
                    "a container has no kernel of its own to boot".to_owned(),
                ));
            }
            None => {
                let why = "a container needs a `template`: `host`, a directory or a tarball";
                return Err(MachineError::Invalid(why.to_owned()));
            }
        };
        if name == HOST {
            return Ok(Self::Host);
        }
        let plain = |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
        let place = match Path::new(name) {
            path if path.is_absolute() => path.to_owned(),
            path if plain(path) && !name.is_empty() => image_dir.join(path),
            _ => {
                let why = format!("`{}` is not the name of a template", name.escape_debug());
                return Err(MachineError::Invalid(why));
            }
        };
        if place.is_dir() {
            return Ok(Self::Directory(place));
        }
        let named = ARCHIVES.iter().map(|suffix| PathBuf::from(format!("{}.{suffix}", place.display())));
        let found = std::iter::once(place.clone()).chain(named).find(|path| path.is_file());
        found.map(Self::Tarball).ok_or_else(|| {
            MachineError::Invalid(format!(
                "there is no template {}: neither a directory nor an archive (.{})",
                place.display(),
                ARCHIVES.join(", .")
            ))
        })
    }

    /// Returns the tree that the machine's root stands on, unpacked if it is an archive, for an ordinary account if it is
    /// `rootless`. Blocks.
    pub(super) fn tree(&self, root_dir: &Path, rootless: bool) -> Result<PathBuf, MachineError> {
        match self {
            // In a container of ours an overlay would stand on an overlay: what that one stands on is there.
            Self::Host if Path::new(LOWER).is_dir() => Ok(PathBuf::from(LOWER)),
            Self::Host => Ok(PathBuf::from("/")),
            Self::Directory(path) => Ok(path.clone()),
            Self::Tarball(path) => unpack(path, root_dir, rootless),
        }
    }
}

/// Unpacks an archive unless one with this content was unpacked before.
fn unpack(archive: &Path, root_dir: &Path, rootless: bool) -> Result<PathBuf, MachineError> {
    let failed =
        |error: io::Error| MachineError::failed(format!("{} cannot be unpacked: {error}", archive.display()));
    // One file from here on, whatever is called so by the time it is unpacked.
    let mut file = File::open(archive).map_err(failed)?;
    let (_, sha256) = hash(&mut file).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let place = root_dir.join(UNPACKED);
    let tree = place.join(&sha256);
    let held = hold_made(&place).map_err(failed)?;
    if tree.is_dir() {
        return Ok(tree);
    }
    remove_leftovers(&place, &home::remove);
    let aside = tempfile::Builder::new().prefix(ASIDE).tempdir_in(&place).map_err(failed)?;
    let mut command = Command::new("tar");
    // By a name, not as a stream: then it finds out itself how it is packed.
    command.args(["--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--file=/dev/stdin"]);
    if rootless {
        // Only root makes devices; every container has its own.
        command.args(["--exclude=dev/*", "--exclude=./dev/*"]);
    }
    command.arg("--directory").arg(aside.path());
    command.env_clear().env("PATH", SYSTEM_PATH).env(MARK, aside.path()).stdin(file);
    let ended = command.output().map_err(|error| {
        MachineError::Unavailable(format!("`tar` cannot be started: {error} (package tar)"))
    })?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        return Err(failed(io::Error::other(said.trim().to_owned())));
    }
    // A root that others cannot pass is none.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(aside.path(), open).map_err(failed)?;
    // What has the name of its hash is whole, also after a power cut.
    rustix::fs::syncfs(&held).map_err(|errno| failed(errno.into()))?;
    fs::rename(aside.keep(), &tree).map_err(failed)?;
    Ok(tree)
}

/// Makes `place` unless it is there, and holds it. Whoever sweeps may remove it meanwhile: then it is made again.
fn hold_made(place: &Path) -> io::Result<File> {
    let is_in_the_way = || fs::metadata(place).is_ok_and(|found| !found.is_dir());
    loop {
        match DirBuilder::new().recursive(true).mode(0o700).create(place) {
            // It was there, and went before it was seen what it is.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_in_the_way() => continue,
            made => made?,
        }
        let held = match hold(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            held => held?,
        };
        if home::is_same(&held, place) {
            return Ok(held);
        }
    }
}

/// Removes what somebody began to unpack who is gone, and ends what still does; `place` is held.
fn remove_leftovers(place: &Path, remove: &dyn Fn(&Path) -> io::Result<()>) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            tree::kill_leftovers(MARK, &entry.path()).ok();
            remove(&entry.path()).ok();
        }
    }
}

fn hold(place: &Path) -> io::Result<File> {
    let held = File::open(place)?;
    rustix::fs::flock(&held, FlockOperation::LockExclusive)?;
    Ok(held)
}

/// Removes trees that no machine stands on any more, by `remove`. `used` says which are. Blocks.
pub(super) fn sweep(
    root_dir: &Path,
    remove: impl Fn(&Path) -> io::Result<()>,
    used: impl FnOnce() -> BTreeSet<PathBuf>,
) {
    let place = root_dir.join(UNPACKED);
    let Ok(_held) = hold(&place) else { return };
    remove_leftovers(&place, &remove);
    let used = used();
    for entry in fs::read_dir(&place).into_iter().flatten().flatten() {
        if !used.contains(&entry.path()) {
            // Who began to and was killed may have left somebody who still removes it: two at once hinder each other.
            tree::kill_leftovers(MARK, &entry.path()).ok();
            remove(&entry.path()).ok();
        }
    }
    if fs::remove_dir(&place).is_ok() {
        fs::remove_dir(root_dir).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_found_by_name_or_path() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path();
        fs::create_dir(images.join("tree")).unwrap();
        fs::write(images.join("packed.tar.gz"), "").unwrap();
        let of = |name: &str| Template::of(Some(&Boot::Template(name.to_owned())), images);
        assert_eq!(of("host"), Ok(Template::Host));
        assert_eq!(of("tree"), Ok(Template::Directory(images.join("tree"))));
        assert_eq!(of("packed"), Ok(Template::Tarball(images.join("packed.tar.gz"))));
        let path = images.join("packed.tar.gz").display().to_string();
        assert_eq!(of(&path), Ok(Template::Tarball(images.join("packed.tar.gz"))));
        for bad in ["", "../tree", "nothing"] {
            assert!(matches!(of(bad), Err(MachineError::Invalid(_))), "{bad}");
        }
        assert!(Template::of(None, images).is_err());
    }

    #[test]
    fn an_archive_is_unpacked_once_and_goes_with_the_last_who_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("a.tar");
        let mut builder = tar::Builder::new(File::create(&archive).unwrap());
        builder.append_path_with_name("/etc/hostname", "etc/hostname").unwrap();
        builder.into_inner().unwrap();
        let root_dir = dir.path().join("machines");
        let tree = unpack(&archive, &root_dir, false).unwrap();
        assert!(tree.join("etc/hostname").is_file());
        fs::write(tree.join("mark"), "").unwrap();
        assert_eq!(unpack(&archive, &root_dir, false).unwrap(), tree);
        assert!(tree.join("mark").exists(), "not unpacked again");
        sweep(&root_dir, home::remove, || BTreeSet::from([tree.clone()]));
        assert!(tree.exists());
        sweep(&root_dir, home::remove, BTreeSet::new);
        assert!(!root_dir.exists());
        assert!(unpack(Path::new("/etc/hostname"), &root_dir, false).is_err());
        sweep(&root_dir, home::remove, BTreeSet::new);
    }

    /// A driver was killed while its tar was at it.
    #[test]
    fn what_is_still_being_unpacked_for_nobody_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let root_dir = dir.path().canonicalize().unwrap().join("machines");
        let aside = root_dir.join(UNPACKED).join(".tmp-killed");
        fs::create_dir_all(&aside).unwrap();
        let mut left = Command::new("sleep").arg("600").env(MARK, &aside).spawn().unwrap();
        // It is a program before the kernel shows what it was given.
        let given = format!("/proc/{}/environ", left.id());
        while fs::read(&given).unwrap().is_empty() {
            std::thread::yield_now();
        }
        sweep(&root_dir, home::remove, || BTreeSet::from([aside.clone()]));
        let ended = left.try_wait().unwrap();
        left.kill().ok();
        left.wait().unwrap();
        assert!(ended.is_some() && !root_dir.exists());
    }

    /// The last machine of one archive goes while another one is made from another.
    #[test]
    fn a_place_that_is_swept_meanwhile_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("machines").join(UNPACKED);
        // Who waits may do so before or after it goes.
        for _ in 0..200 {
            let sweeping = hold_made(&place).unwrap();
            let held = std::thread::scope(|scope| {
                let (begins, begun) = std::sync::mpsc::channel();
                let place = &place;
                let waiting = scope.spawn(move || {
                    begins.send(()).unwrap();
                    hold_made(place)
                });
                begun.recv().unwrap();
                std::thread::yield_now();
                fs::remove_dir(place).unwrap();
                drop(sweeping);
                waiting.join().unwrap()
            });
            assert!(home::is_same(&held.unwrap(), &place));
        }
    }
}
