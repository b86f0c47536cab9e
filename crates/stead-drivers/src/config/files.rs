//! The files that say what a node was told to become and what it became. Old or new, never a part; what is the same
//! is not written again.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use stead_model::node::{ConfigComplete, ConfigFailed, NodeState, path, spec_file};
use stead_model::site::ResolvedSpec;

/// The most of a file that is read.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// Where agents before Stead kept theirs, below a node's root and below a home. They are only read.
const OLDER: [&str; 2] = ["usr/local/etc/homestak/state", "etc/state"];

/// The files of the node below a root.
#[derive(Clone, Debug)]
pub struct ConfigFiles {
    root: PathBuf,
    /// Where those of the config phase are, if not where they belong.
    kept_in: Option<PathBuf>,
}

impl ConfigFiles {
    /// Returns the files of the node below `root`; `/` for this machine.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned(), kept_in: None }
    }

    /// Returns these files with those of the config phase in another directory.
    pub fn kept_in(self, directory: PathBuf) -> Self {
        Self { kept_in: Some(directory), ..self }
    }

    /// Returns where `path` of the node is.
    pub fn place(&self, path: &str) -> PathBuf {
        if let (Some(directory), Some(name)) = (&self.kept_in, path.strip_prefix(path::CONFIG)) {
            return directory.join(name.trim_start_matches('/'));
        }
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the spec in force, if there is one that can be read.
    pub fn spec(&self) -> Option<ResolvedSpec> {
        self.places(path::SPEC).find_map(|place| {
            let bytes = read(&place).ok()??;
            spec_file::read(&place.display().to_string(), bytes).ok()
        })
    }

    /// Returns where the file at `path` is looked for: in its place, then where older programs kept it.
    fn places(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        let name = Path::new(path).file_name().unwrap_or_default().to_owned();
        let older = [Some(self.root.join(OLDER[0])), std::env::home_dir().map(|home| home.join(OLDER[1]))];
        let older = older.into_iter().flatten().map(move |directory| directory.join(&name));
        std::iter::once(self.place(path)).chain(older)
    }

    /// Returns the marker of the spec in force, if there is one.
    pub fn complete(&self) -> Option<ConfigComplete> {
        self.places(path::COMPLETE).find_map(|place| serde_json::from_slice(&read(&place).ok()??).ok())
    }

    /// Returns the marker that this program wrote, if there is one.
    pub(super) fn own_complete(&self) -> Option<ConfigComplete> {
        self.json(path::COMPLETE)
    }

    /// Returns the marker of the last failure, if it stands.
    pub fn failed(&self) -> Option<ConfigFailed> {
        self.json(path::FAILED)
    }

    /// Returns what was observed last.
    pub fn state(&self) -> Option<NodeState> {
        self.json(path::OBSERVED)
    }

    pub(super) fn json<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let bytes = read(&self.place(path)).ok()??;
        serde_json::from_slice(&bytes).ok()
    }

    /// Puts `spec` in force; the one before, if it was another, is kept beside it.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn put_spec(&self, spec: &ResolvedSpec) -> io::Result<()> {
        let text = spec_file::to_yaml(spec);
        let place = self.place(path::SPEC);
        match read(&place)? {
            Some(old) if old == text.as_bytes() => Ok(()),
            Some(old) => {
                self.put(path::PREVIOUS_SPEC, &old)?;
                self.put(path::SPEC, text.as_bytes())
            }
            None => self.put(path::SPEC, text.as_bytes()),
        }
    }

    /// Writes what is observed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn put_state(&self, state: &NodeState) -> io::Result<()> {
        self.put(path::OBSERVED, format!("{}\n", state.to_canonical_json()).as_bytes())
    }

    /// Writes that the node is what its spec wants, and takes away that it was not.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn put_complete(&self, marker: &ConfigComplete) -> io::Result<()> {
        self.put(path::COMPLETE, to_json(marker)?.as_bytes())?;
        self.forget(path::FAILED)
    }

    /// Writes that the node is not what its spec wants: no marker stands beside it that says otherwise of that spec.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn put_failed(&self, marker: &ConfigFailed) -> io::Result<()> {
        if self
            .own_complete()
            .is_some_and(|complete| Some(&complete.spec_digest) == marker.spec_digest.as_ref())
        {
            self.forget(path::COMPLETE)?;
        }
        self.put(path::FAILED, to_json(marker)?.as_bytes())
    }

    /// Removes the marker of a failure.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn forget_failure(&self) -> io::Result<()> {
        self.forget(path::FAILED)
    }

    fn forget(&self, path: &str) -> io::Result<()> {
        match fs::remove_file(self.place(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn put(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let place = self.place(path);
        if read(&place)?.is_some_and(|old| old == content) {
            return Ok(());
        }
        let directory = place.parent().unwrap_or(&self.root);
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let mut builder = tempfile::Builder::new();
        let mut file =
            builder.prefix(".tmp-").permissions(fs::Permissions::from_mode(0o644)).tempfile_in(directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(&place).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    }
}

fn to_json(value: &impl Serialize) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Returns the bytes of a file; none if there is no such file.
fn read(place: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(place) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
