//! A machine's root: an overlay on its template, or a copy of it where there can be no overlay.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use stead_runner::machine::MachineError;

use super::bundle::VOLUME;
use super::mounts;
use crate::machine::home::{Home, last_lines_of, read, write};
use crate::machine::local::SYSTEM_PATH;

/// What is known of a machine's root.
const FILE: &str = "storage.json";
/// Where the root is, or is mounted.
pub(super) const ROOT: &str = "rootfs";
/// Everything that a machine writes into, beside what is known of it.
pub(super) const TREES: [&str; 4] = [ROOT, "upper", "work", "volume"];

/// What `storage` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageChoice {
    /// An overlay if there can be one, else a copy.
    #[default]
    Auto,
    /// An overlay.
    Overlay,
    /// A copy.
    Copy,
}

impl StorageChoice {
    /// Returns the choice that `word` says.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "overlay" => Some(Self::Overlay),
            "copy" => Some(Self::Copy),
            _ => None,
        }
    }
}

/// The root of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub(super) enum Storage {
    /// An overlay on this tree.
    Overlay {
        /// The tree.
        lower: PathBuf,
        /// Whether it is that of an ordinary account.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        rootless: bool,
    },
    /// A tree of its own.
    Copy {
        /// Why there is no overlay, if one would have been preferred.
        why: Option<String>,
    },
}

/// The parts of an overlay.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) lower: PathBuf,
    pub(super) upper: PathBuf,
    pub(super) work: PathBuf,
    /// Whether it is mounted for an ordinary account.
    pub(super) rootless: bool,
}

impl Storage {
    /// Returns what the machine's root is.
    pub(super) fn of(home: &Home) -> Option<Self> {
        read(&home.file(FILE))
    }

    /// Returns the tree the root stands on, if it is an overlay.
    pub(super) fn lower(&self) -> Option<&Path> {
        match self {
            Self::Overlay { lower, .. } => Some(lower),
            Self::Copy { .. } => None,
        }
    }

    /// Makes the root of a machine from `tree`; that of an ordinary account, if it is `rootless`. `hidden` is left out of a
    /// copy. Blocks.
    pub(super) fn make(
        home: &Home,
        tree: &Path,
        choice: StorageChoice,
        rootless: bool,
        hidden: &[PathBuf],
    ) -> Result<Self, MachineError> {
        let failed = |error: io::Error| home.failed("make", &error);
        for (name, mode) in [(ROOT, 0o755), ("upper", 0o755), ("work", 0o700), ("volume", 0o755)] {
            let place = home.file(name);
            DirBuilder::new().recursive(true).create(&place).map_err(failed)?;
            // Whatever the caller masks: it is the machine's own root.
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        let why = match choice {
            StorageChoice::Copy => None,
            StorageChoice::Auto | StorageChoice::Overlay => {
                let layers = layers(home, tree, rootless);
                let root = home.file(ROOT);
                match mounts::apart(|| mounts::overlay(&layers, &root))? {
                    Ok(()) => {
                        let made = Self::Overlay { lower: tree.to_owned(), rootless };
                        write(&home.file(FILE), &made).map_err(failed)?;
                        return Ok(made);
                    }
                    Err(error) => Some(format!("no overlay on {}: {error}", tree.display())),
                }
            }
        };
        if choice == StorageChoice::Overlay {
            return Err(MachineError::failed(why.unwrap_or_default()));
        }
        copy(tree, &home.file(ROOT), hidden).map_err(failed)?;
        let made = Self::Copy { why };
        write(&home.file(FILE), &made).map_err(failed)?;
        Ok(made)
    }

    /// Mounts the root, for the calling thread and what it starts, and returns where it is.
    pub(super) fn mount(&self, home: &Home) -> io::Result<PathBuf> {
        if let Self::Overlay { lower, rootless } = self {
            mounts::overlay(&layers(home, lower, *rootless), &home.file(ROOT))?;
        }
        Ok(home.file(ROOT))
    }
}

fn layers(home: &Home, lower: &Path, rootless: bool) -> Layers {
    Layers { lower: lower.to_owned(), upper: home.file("upper"), work: home.file("work"), rootless }
}

/// Copies a tree with owners, links and special files; what is mounted in it, or belongs to a running system, stays.
fn copy(from: &Path, to: &Path, hidden: &[PathBuf]) -> io::Result<()> {
    let mut reading = Command::new("tar");
    reading.args(["--create", "--one-file-system", "--numeric-owner", "--xattrs", "--file=-"]);
    let own = ["/proc", "/sys", "/dev", "/run", "/tmp", VOLUME].map(PathBuf::from);
    for place in own.iter().chain(hidden) {
        let Ok(inside) = place.strip_prefix("/") else { continue };
        reading.arg(format!("--exclude=./{}/*", pattern(&inside.display().to_string())));
    }
    reading.arg("--directory").arg(from).arg(".");
    let mut writing = Command::new("tar");
    writing.args(["--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--file=-"]);
    writing.arg("--directory").arg(to);
    // To files: a pipe that nobody reads while the other one works would stop both.
    let (read_said, written_said) = (tempfile::tempfile()?, tempfile::tempfile()?);
    for (command, said) in [(&mut reading, &read_said), (&mut writing, &written_said)] {
        command.env_clear().env("PATH", SYSTEM_PATH).env(super::MARK, to).stderr(said.try_clone()?);
    }
    let mut source = reading.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let Some(stream) = source.stdout.take() else { return Err(io::Error::other("nothing is read")) };
    let written = writing.stdin(stream).stdout(Stdio::null()).status();
    // It has the end of the pipe that would keep the other one waiting.
    drop(writing);
    let read = source.wait()?;
    let written = written?;
    // A file that changes while it is read is no reason to have no machine: that is what 1 means.
    for (ended, worst, said) in [(read, 1, read_said), (written, 0, written_said)] {
        if ended.code().is_none_or(|code| code > worst) {
            let said = last_lines_of(said).join("\n");
            return Err(io::Error::other(format!("copying {}: {said}", from.display())));
        }
    }
    for place in own.iter().filter_map(|place| place.strip_prefix("/").ok()) {
        fs::create_dir_all(to.join(place))?;
    }
    Ok(())
}

/// Returns a path as tar's patterns write it.
fn pattern(path: &str) -> String {
    let mut pattern = String::with_capacity(path.len());
    for c in path.chars() {
        if "*?[]\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_leaves_out_what_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for place in ["etc", "tmp/x", "srv/state/keys", "srv/data"] {
            fs::create_dir_all(from.join(place)).unwrap();
        }
        fs::write(from.join("etc/motd"), "hello").unwrap();
        std::os::unix::fs::symlink("motd", from.join("etc/link")).unwrap();
        fs::create_dir(&to).unwrap();
        copy(&from, &to, &[PathBuf::from("/srv/state")]).unwrap();
        assert_eq!(fs::read_to_string(to.join("etc/link")).unwrap(), "hello");
        assert!(to.join("srv/data").is_dir() && to.join("srv/state").is_dir() && to.join("proc").is_dir());
        assert!(!to.join("srv/state/keys").exists() && !to.join("tmp/x").exists());
        assert!(copy(Path::new("/no/such/place"), &to, &[]).is_err());
    }

    /// Section 9 of reach: where there can be no overlay there is a copy, and why is kept; unless an overlay it has to be.
    #[test]
    fn a_root_is_a_copy_where_there_can_be_no_overlay() {
        if super::super::try_namespaces().is_err() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(&super::super::KIND, dir.path().join("machine"));
        // A tree below what lies over it: no kernel takes that.
        let tree = home.file("upper").join("tree");
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(tree.join("etc/motd"), "hello").unwrap();
        let refused = Storage::make(&home, &tree, StorageChoice::Overlay, false, &[]).unwrap_err();
        assert!(refused.to_string().contains("no overlay on"), "{refused}");
        assert_eq!(Storage::of(&home), None);
        let made = Storage::make(&home, &tree, StorageChoice::Auto, false, &[]).unwrap();
        let Storage::Copy { why: Some(why) } = &made else { panic!("{made:?}") };
        assert!(why.contains("no overlay on"), "{why}");
        assert_eq!(Storage::of(&home), Some(made.clone()));
        assert_eq!(made.mount(&home).unwrap(), home.file(ROOT));
        assert_eq!(fs::read_to_string(home.file(ROOT).join("etc/motd")).unwrap(), "hello");
    }

    /// One complaint per socket, more than a pipe holds.
    #[test]
    fn a_copy_with_much_to_complain_of_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        for number in 0..800 {
            let name = from.join(format!("{number}{}", "x".repeat(200)));
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &name,
                rustix::fs::FileType::Socket,
                rustix::fs::Mode::RWXU,
                0,
            )
            .unwrap();
        }
        fs::write(from.join("zz"), "last").unwrap();
        copy(&from, &to, &[]).unwrap();
        assert_eq!(fs::read_to_string(to.join("zz")).unwrap(), "last");
    }
}
