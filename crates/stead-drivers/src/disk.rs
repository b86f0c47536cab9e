//! Paths of the target, resolved inside the root prefix and seen through what a dry run has predicted.
//!
//! Every file operation finds its files here and nowhere else, so the two promises are kept in one place:
//!
//! * **Nothing leaves the root.** A path is walked one component at a time, each opened below the directory before
//!   it without following links; links are expanded by hand, and neither `..` nor an absolute link gets above the
//!   root. That is what `openat2` with `RESOLVE_IN_ROOT` does; it is walked here because a dry run must also see
//!   links and directories that are only predicted, and because the call is often filtered in containers.
//! * **A dry run sees its own predictions.** The state of a path is what was predicted of it, else what is on disk.

pub(crate) mod base64;
pub(crate) mod body;
pub(crate) mod seen;

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use stead_runner::operation::{OpContext, OpError, Predicted};

use seen::{Kind, Seen};

/// A file that is read whole as text is not larger.
const LARGEST_TEXT: u64 = 16 << 20;
/// As many links as Linux follows in one path.
const MOST_LINKS: u32 = 40;

/// The target's file system.
#[derive(Clone)]
pub(crate) struct Disk {
    root: Arc<OwnedFd>,
    root_path: PathBuf,
    predicted: Predicted,
}

/// Whether a link in the last component is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Last {
    /// The link's target is meant.
    Follow,
    /// The link itself is meant.
    Keep,
}

/// A place in the file system: it may or may not hold something.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The path inside the root, free of links, `.` and `..`.
    pub(crate) path: PathBuf,
    /// The directory that holds it; none if that is not on disk.
    pub(crate) directory: Option<Arc<OwnedFd>>,
    /// Its name there.
    pub(crate) name: OsString,
    /// The directories above it that do not exist, topmost first.
    pub(crate) missing: Vec<PathBuf>,
}

impl Spot {
    /// Returns the place of `name` in the directory `directory`, whose own place this is.
    pub(crate) fn child(&self, name: &OsStr, directory: Option<Arc<OwnedFd>>) -> Self {
        Self { path: self.path.join(name), directory, name: name.to_owned(), missing: self.missing.clone() }
    }

    /// Whether this is the root itself.
    pub(crate) fn is_root(&self) -> bool {
        self.path == Path::new("/")
    }
}

/// Where a walk ended.
enum Walked {
    There(Spot),
    /// Something other than a directory is on the way.
    Blocked(PathBuf),
}

struct Step {
    name: OsString,
    directory: Option<Arc<OwnedFd>>,
    missing: bool,
}

impl Disk {
    /// Opens the target's file system.
    pub(crate) fn open(cx: &OpContext) -> Result<Self, OpError> {
        let root = cx.root.as_deref().unwrap_or(Path::new("/"));
        Ok(Self { predicted: cx.predicted.clone(), ..Self::at(root)? })
    }

    /// Opens the file system below `root_path`, without predictions.
    pub(crate) fn at(root_path: &Path) -> Result<Self, OpError> {
        let root =
            rustix::fs::open(root_path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| {
                    OpError::io(format_args!("root `{}`", root_path.display()), &errno.into())
                })?;
        Ok(Self { root: Arc::new(root), root_path: root_path.to_owned(), predicted: Predicted::default() })
    }

    /// Returns the text of a small file, or nothing if none is there.
    pub(crate) fn text(&self, path: &Path) -> Result<Option<String>, OpError> {
        let spot = self.locate(path, Last::Follow)?;
        let seen = self.see(&spot, seen::Depth::Content)?;
        if seen.kind != Kind::File {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&self.read(&spot, &seen, LARGEST_TEXT)?).into_owned()))
    }

    /// Returns where `path`, absolute inside the root, leads.
    pub(crate) fn locate(&self, path: &Path, last: Last) -> Result<Spot, OpError> {
        match self.walk(path, last)? {
            Walked::There(spot) => Ok(spot),
            Walked::Blocked(at) => Err(OpError::operation(format!("`{}` is not a directory", at.display()))),
        }
    }

    fn walk(&self, path: &Path, last: Last) -> Result<Walked, OpError> {
        let mut todo = components(path);
        let mut stack: Vec<Step> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                stack.pop();
                continue;
            }
            let is_last = todo.is_empty();
            let here =
                stack.last().map_or_else(|| Some(Arc::clone(&self.root)), |step| step.directory.clone());
            let canonical = join(&stack, &name);
            if is_last && last == Last::Keep {
                stack.push(Step { name, directory: None, missing: false });
                break;
            }
            let (kind, to, directory) = self.look(here.as_deref(), &name, &canonical)?;
            match kind {
                Kind::Symlink => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(OpError::operation(format!(
                            "`{}`: too many symbolic links",
                            path.display()
                        )));
                    }
                    if to.is_absolute() {
                        stack.clear();
                    }
                    todo.extend(components(&to));
                }
                Kind::Directory => stack.push(Step { name, directory, missing: false }),
                Kind::Absent => stack.push(Step { name, directory: None, missing: true }),
                Kind::File | Kind::Other | Kind::Unknown if is_last => {
                    stack.push(Step { name, directory: None, missing: false });
                }
                Kind::File | Kind::Other | Kind::Unknown => {
                    return Ok(Walked::Blocked(canonical));
                }
            }
        }
        let Some(end) = stack.pop() else {
            let directory = Some(Arc::clone(&self.root));
            let name = ".".into();
            return Ok(Walked::There(Spot {
                path: PathBuf::from("/"),
                directory,
                name,
                missing: Vec::new(),
            }));
        };
        let directory =
            stack.last().map_or_else(|| Some(Arc::clone(&self.root)), |step| step.directory.clone());
        let path = join(&stack, &end.name);
        let missing = (0..stack.len())
            .filter(|i| stack[*i].missing)
            .map(|i| join(&stack[..i], &stack[i].name))
            .collect();
        Ok(Walked::There(Spot { path, directory, name: end.name, missing }))
    }

    /// Returns what is at a component: its kind, a link's text, a directory's handle.
    fn look(
        &self,
        here: Option<&OwnedFd>,
        name: &OsStr,
        canonical: &Path,
    ) -> Result<(Kind, PathBuf, Option<Arc<OwnedFd>>), OpError> {
        let predicted = self.predicted_at(canonical);
        if let Some(seen) = &predicted
            && seen.kind != Kind::Directory
        {
            return Ok((seen.kind, PathBuf::from(seen.to.clone().unwrap_or_default()), None));
        }
        let fallback = if predicted.is_some() { Kind::Directory } else { Kind::Absent };
        let Some(here) = here else { return Ok((fallback, PathBuf::new(), None)) };
        let says = |errno: Errno| io_error(canonical, "look at", errno);
        let found =
            rustix::fs::openat(here, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let fd = match found {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok((fallback, PathBuf::new(), None)),
            Err(errno) => return Err(says(errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(says)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_dir() {
            return Ok((Kind::Directory, PathBuf::new(), Some(Arc::new(fd))));
        }
        if predicted.is_some() {
            // A predicted directory in place of something that is still there.
            return Ok((Kind::Directory, PathBuf::new(), None));
        }
        if kind.is_symlink() {
            let to = rustix::fs::readlinkat(here, name, Vec::new()).map_err(says)?;
            return Ok((Kind::Symlink, PathBuf::from(OsString::from_vec(to.into_bytes())), None));
        }
        Ok((if kind.is_file() { Kind::File } else { Kind::Other }, PathBuf::new(), None))
    }

    /// Returns what a dry run has predicted of `path`, free of links.
    pub(crate) fn predicted_at(&self, path: &Path) -> Option<Seen> {
        let state = self.predicted.get(&key(path))?;
        serde_json::from_value(state).ok()
    }

    /// Remembers what would be at `path`, free of links.
    pub(crate) fn predict(&self, path: &Path, seen: &Seen) {
        self.predicted.set(key(path), serde_json::to_value(seen).unwrap_or_default());
    }

    /// Remembers that a command would make `path`, whatever it would be.
    pub(crate) fn predict_made(&self, path: &Path) -> Result<(), OpError> {
        let spot = self.locate(path, Last::Follow)?;
        self.predict(&spot.path, &Seen { kind: Kind::Unknown, ..Seen::default() });
        Ok(())
    }

    /// Returns the names predicted directly below `path`, with what would be there.
    pub(crate) fn predicted_below(&self, path: &Path) -> Vec<(OsString, Seen)> {
        let mut prefix = key(path);
        if !prefix.ends_with('/') {
            prefix.push('/');
        }
        let below = self.predicted.starting_with(&prefix).into_iter();
        below
            .filter(|(name, _)| name.len() > prefix.len() && !name[prefix.len()..].contains('/'))
            .filter_map(|(name, state)| {
                Some((name[prefix.len()..].into(), serde_json::from_value(state).ok()?))
            })
            .collect()
    }

    /// Whether something is at `path`; a link counts if its target does.
    pub(crate) fn exists(&self, path: &Path) -> Result<bool, OpError> {
        let Walked::There(spot) = self.walk(path, Last::Follow)? else { return Ok(false) };
        if let Some(seen) = self.predicted_at(&spot.path) {
            return Ok(seen.kind != Kind::Absent);
        }
        let Some(directory) = &spot.directory else { return Ok(false) };
        match rustix::fs::statat(directory, &spot.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(io_error(&spot.path, "look at", errno)),
        }
    }

    /// Returns the path outside the root that `path` inside it leads to, for programs that are not confined.
    pub(crate) fn real_path(&self, path: &Path) -> Result<PathBuf, OpError> {
        Ok(self.outside(&self.locate(path, Last::Follow)?.path))
    }

    /// Returns the path outside the root of `path`, which is free of links.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").unwrap_or(path);
        if inside.as_os_str().is_empty() { self.root_path.clone() } else { self.root_path.join(inside) }
    }
}

fn key(path: &Path) -> String {
    format!("file:{}", path.to_string_lossy())
}

/// Returns the components of `path`, last first; `.` and slashes are gone.
fn components(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    let mut parts: Vec<OsString> = parts.collect();
    parts.reverse();
    parts
}

fn join(stack: &[Step], name: &OsStr) -> PathBuf {
    let mut path = OsString::new();
    for step in stack {
        path.push("/");
        path.push(&step.name);
    }
    path.push("/");
    path.push(name);
    PathBuf::from(path)
}

/// Returns the error of doing something at `path`; a missing privilege says what would give it.
pub(crate) fn io_error(path: &Path, doing: &str, errno: Errno) -> OpError {
    let error = std::io::Error::from(errno);
    match errno {
        Errno::PERM | Errno::ACCESS => OpError::permanent(format!(
            "cannot {doing} `{}`: {error}; another account can, by `become` on the host",
            path.display()
        )),
        _ => OpError::operation(format!("cannot {doing} `{}`: {error}", path.display())),
    }
}
