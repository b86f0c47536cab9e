//! Small files, read whole: of the running system, or below the root.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::disk::seen::{Depth, Kind, open_file};
use crate::disk::{Disk, Last};

/// What facts come from is small; of anything larger only the start counts.
const LARGEST: u64 = 1 << 20;

/// Files below the root, as operations see them.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) disk: Disk,
    prefixed: bool,
}

impl Files {
    pub(super) fn new(disk: Disk, prefixed: bool) -> Self {
        Self { disk, prefixed }
    }

    /// Whether there is a root prefix.
    pub(super) fn is_prefixed(&self) -> bool {
        self.prefixed
    }

    /// Returns the text of a file, if it is there and is text.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let spot = self.disk.locate(Path::new(path), Last::Follow).ok()?;
        if let Some(seen) = self.disk.predicted_at(&spot.path) {
            return seen.body?.text().map(str::to_owned);
        }
        let file = open_file(spot.directory.as_deref()?, &spot.name).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut text = String::new();
        file.take(LARGEST).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Returns the text of a symbolic link, if there is one.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let spot = self.disk.locate(Path::new(path), Last::Keep).ok()?;
        self.disk.see(&spot, Depth::Attributes).ok().filter(|seen| seen.kind == Kind::Symlink)?.to
    }

    /// Whether something is at a path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.disk.exists(Path::new(path)).unwrap_or(false)
    }
}

/// Returns the text of a file of the running system, if it is there and is text.
pub(super) fn text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LARGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the first line of a file of the running system, unless it is empty.
pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    first_line(&text(path)?)
}

/// Returns the first line, without white space around it, unless it is empty.
pub(super) fn first_line(text: &str) -> Option<String> {
    text.lines().next().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned)
}
