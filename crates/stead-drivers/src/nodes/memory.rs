//! What is remembered of nodes: one file per manifest and host, replaced whole after each change.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stead_model::NodeName;
use stead_model::node::{NodesState, StateError};
use stead_model::site::manifest::Mode;
use stead_runner::operation::OpError;

use super::reached::node_labels;

/// How names of files begin that are being written, before the process that writes them.
const TEMPORARY: &str = ".state.";

/// Returns how the node called `node` gets its work, if it is remembered under any manifest and host: as its agent
/// was told, which may run what it fetches where the node is configured by push.
pub fn known_mode(state_dir: &Path, node: &NodeName) -> Option<Mode> {
    let modes = states(state_dir).filter_map(|state| {
        let entry = state.nodes.get(node)?;
        Some(entry.told.as_ref().map_or(entry.mode, |told| told.mode))
    });
    // Of several nodes of that name one that has an agent counts: push is the least of them.
    modes.max()
}

/// Returns what targets select the node called `node` by, if it is remembered under any manifest and host. Of several nodes of
/// that name one that has an agent counts.
pub fn known_labels(state_dir: &Path, node: &NodeName) -> BTreeMap<String, String> {
    let known = states(state_dir).filter_map(|state| {
        let entry = state.nodes.get(node)?;
        Some((entry.mode, node_labels(&state, node, entry)))
    });
    known.max_by_key(|(mode, _)| *mode).map(|(_, labels)| labels).unwrap_or_default()
}

/// Returns everything that is remembered, of all manifests and hosts.
fn states(state_dir: &Path) -> impl Iterator<Item = NodesState> {
    let below = |directory: PathBuf| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let manifests = below(state_dir.join("nodes")).into_iter().flat_map(below);
    let states = manifests.filter_map(|manifest| std::fs::read(manifest.join("state.json")).ok());
    states.filter_map(|bytes| NodesState::parse(&bytes).ok())
}

/// What is remembered of nodes, and where it is written down.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    inner: Mutex<Inner>,
    /// Held while the file is written; who waits finds that others wrote for it.
    writing: tokio::sync::Mutex<()>,
    /// Whether a file that is damaged is put aside.
    forgives: bool,
}

#[derive(Debug)]
struct Inner {
    state: NodesState,
    /// What the file holds; none: there is no file.
    written: Option<Arc<[u8]>>,
}

impl Memory {
    /// Returns what the file at `path` remembers; nothing if there is none.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn open(path: PathBuf, manifest: &str, host: &str) -> io::Result<Self> {
        let written = match std::fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let state = match &written {
            Some(bytes) => NodesState::parse(bytes).map_err(io::Error::other)?,
            None => NodesState::new(manifest, host),
        };
        let inner = Mutex::new(Inner { state, written: written.map(Arc::from) });
        Ok(Self { path, inner, writing: tokio::sync::Mutex::new(()), forgives: false })
    }

    /// Whether the file at `path` is there and holds no state.
    pub fn is_damaged(path: &Path) -> bool {
        let bytes = std::fs::read(path);
        bytes.is_ok_and(|bytes| matches!(NodesState::parse(&bytes), Err(StateError::Json(_))))
    }

    /// Returns a memory of nothing, in place of a file at `path` that is damaged. The first run puts that aside.
    pub fn lost(path: PathBuf, manifest: &str, host: &str) -> Self {
        let inner = Mutex::new(Inner { state: NodesState::new(manifest, host), written: None });
        Self { path, inner, writing: tokio::sync::Mutex::new(()), forgives: true }
    }

    /// Returns where it is written down.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again: another run may have written it since.
    pub fn reload(&self) -> io::Result<()> {
        let (manifest, host) = self.look(|state| (state.manifest.clone(), state.host.clone()));
        if self.forgives && Self::is_damaged(&self.path) {
            std::fs::rename(&self.path, self.path.with_extension("json.damaged"))?;
        }
        let fresh = Self::open(self.path.clone(), &manifest, &host)?;
        *self.lock() = fresh.inner.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(())
    }

    /// Looks at what is remembered.
    pub fn look<T>(&self, look: impl FnOnce(&NodesState) -> T) -> T {
        look(&self.lock().state)
    }

    /// Changes what is remembered; [`flush`](Self::flush) writes it down.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut NodesState) -> T) -> T {
        change(&mut self.lock().state)
    }

    /// Writes down what is remembered, unless the file says it already. Without nodes there is no file.
    pub(crate) async fn flush(&self) -> Result<(), OpError> {
        let _writing = self.writing.lock().await;
        let Some(bytes) = self.unwritten() else { return Ok(()) };
        let path = self.path.clone();
        let to_write = bytes.clone();
        let written = tokio::task::spawn_blocking(move || match to_write {
            Some(bytes) => write(&path, &bytes),
            None => remove(&path),
        });
        let written = written.await.unwrap_or_else(|_| Err(io::Error::other("the work was cut off")));
        written.map_err(|error| OpError::io(format_args!("writing {}", self.path.display()), &error))?;
        self.lock().written = bytes;
        Ok(())
    }

    /// Returns what the file should hold, if it does not: bytes, or that it should not be there.
    fn unwritten(&self) -> Option<Option<Arc<[u8]>>> {
        let inner = self.lock();
        let wanted: Option<Arc<[u8]>> = match inner.state.nodes.is_empty() && inner.state.server.is_none() {
            true => None,
            false => Some(inner.state.to_bytes().into()),
        };
        (wanted != inner.written).then_some(wanted)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("it is in no directory"))?;
    std::fs::create_dir_all(directory)?;
    // The name says who writes it.
    let prefix = format!("{TEMPORARY}{}.", std::process::id());
    let mut file = tempfile::Builder::new().prefix(&prefix).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sweep(directory);
    std::fs::File::open(directory)?.sync_all()
}

/// Removes what processes left in `directory` that were killed while they wrote; never what one writes that lives. Best effort:
/// what cannot be removed is in nobody's way.
fn sweep(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer =
            name.to_str().and_then(|name| name.strip_prefix(TEMPORARY)?.split('.').next()?.parse().ok());
        let writer = writer.and_then(rustix::process::Pid::from_raw);
        if writer.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)) {
            drop(std::fs::remove_file(entry.path()));
        }
    }
}

/// Removes the file, and the directories above it that are empty then.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    path.parent().into_iter().for_each(sweep);
    // Others may be using them: then they stay.
    for directory in path.ancestors().skip(1).take(3) {
        if std::fs::remove_dir(directory).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::NodeName;
    use stead_model::node::NodeEntry;
    use stead_model::site::host::DriverKind;
    use stead_model::site::manifest::{Mode, NodeType};

    fn entry() -> NodeEntry {
        NodeEntry::new(NodeType::Vm, DriverKind::Sandbox, Mode::Push)
    }

    #[tokio::test]
    async fn the_file_is_there_while_there_are_nodes_and_is_written_only_when_something_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes/local/lab/state.json");
        let memory = Memory::open(path.clone(), "lab", "local").unwrap();
        memory.flush().await.unwrap();
        assert!(!dir.path().join("nodes").exists());
        let name = NodeName::parse("edge").unwrap();
        memory.change(|state| state.nodes.insert(name.clone(), entry()));
        memory.flush().await.unwrap();
        let before = std::fs::metadata(&path).unwrap();
        memory.flush().await.unwrap();
        let same = std::os::unix::fs::MetadataExt::ino(&before)
            == std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&path).unwrap());
        assert!(same, "nothing differs, so nothing is written");
        let again = Memory::open(path.clone(), "lab", "local").unwrap();
        assert!(again.look(|state| state.nodes.contains_key(&name)));
        again.change(|state| state.nodes.clear());
        again.flush().await.unwrap();
        assert!(!dir.path().join("nodes").exists(), "nothing is left of nothing");
    }
    /// A soak found it: each kill at the wrong moment left a file, and a directory that no destroy took away.
    #[tokio::test]
    async fn what_a_killed_run_was_writing_goes_with_the_next_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodes/local/lab/state.json");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let left = path.with_file_name(format!(".state.{}.abcdef", child.id()));
        let living = path.with_file_name(format!(".state.{}.abcdef", std::process::id()));
        let memory = Memory::open(path.clone(), "lab", "local").unwrap();
        memory.change(|state| state.nodes.insert(NodeName::parse("edge").unwrap(), entry()));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&left, "{").unwrap();
        std::fs::write(&living, "{").unwrap();
        memory.flush().await.unwrap();
        assert!(!left.exists() && living.exists(), "only what nobody writes any more is removed");
        std::fs::remove_file(living).unwrap();
        std::fs::write(&left, "{").unwrap();
        memory.change(|state| state.nodes.clear());
        memory.flush().await.unwrap();
        assert!(!dir.path().join("nodes").exists(), "nothing is left of nothing");
    }
}
