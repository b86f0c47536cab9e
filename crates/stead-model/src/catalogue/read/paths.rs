//! Paths of a catalogue: relative to its root, and never out of it.

use std::path::{Component, Path, PathBuf};

use super::Reader;
use crate::catalogue::At;
use crate::yaml::Node;

impl Reader<'_, '_> {
    /// Returns a path that stays below the root, without `.` and `..`.
    pub(super) fn relative(&mut self, node: Node<'_>) -> Option<At<String>> {
        let text = self.walk.full_text(node)?;
        if text.starts_with('/') {
            let problem = node.bad(format!("`{text}` is an absolute path"));
            self.walk.report(problem.help("write it relative to the root of the catalogue"));
            return None;
        }
        self.below_root(node, text)
    }

    /// Returns a path that stays below the root if it is relative.
    pub(super) fn relative_or_absolute(&mut self, node: Node<'_>) -> Option<At<String>> {
        let text = self.walk.full_text(node)?;
        if text.starts_with('/') {
            return Some(At { value: text.to_owned(), place: node.place() });
        }
        self.below_root(node, text)
    }

    fn below_root(&mut self, node: Node<'_>, text: &str) -> Option<At<String>> {
        if text.chars().any(char::is_control) {
            self.walk.report(node.bad("a path cannot hold a control character"));
            return None;
        }
        let path = normal(text);
        if path.is_none() {
            let problem = node.bad(format!("`{text}` does not stay inside the root of the catalogue"));
            self.walk.report(problem.help("move it there, or set `root` to a directory above"));
        }
        path.map(|value| At { value, place: node.place() })
    }
}

/// Returns a relative path without `.` and `..`; nothing if it leaves the directory it starts in, or is that itself.
pub(crate) fn normal(text: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Returns an absolute path without `.` and `..`, by its text alone.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                resolved.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => resolved.push(component),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_their_dots_and_never_leave() {
        assert_eq!(normal("./scripts//a.sh").as_deref(), Some("scripts/a.sh"));
        assert_eq!(normal("a/../b").as_deref(), Some("b"));
        for bad in ["..", "a/../..", "../a", "a/..", ".", ""] {
            assert_eq!(normal(bad), None, "{bad}");
        }
        assert_eq!(resolved(Path::new("/a/b/../c/./d")), Path::new("/a/c/d"));
        assert_eq!(resolved(Path::new("/..")), Path::new("/"));
    }
}
