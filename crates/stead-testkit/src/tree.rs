//! A directory tree as data, to prove that something was, or was not, written.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How much of a tree is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Kind, content, mode and owner: the state.
    State,
    /// Also modification time and inode: nothing was written at all.
    Everything,
}

/// Returns every path below `root`, with what is there, in words.
///
/// # Panics
/// If the tree cannot be read.
pub fn snapshot(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root).sort_by_file_name() {
        let entry = entry.expect("the tree can be walked");
        let metadata = entry.path().symlink_metadata().expect("it is there");
        let content = if metadata.is_symlink() {
            format!("-> {}", std::fs::read_link(entry.path()).expect("a link").display())
        } else if metadata.is_file() {
            let bytes = std::fs::read(entry.path()).expect("a readable file");
            String::from_utf8_lossy(&bytes).escape_debug().to_string()
        } else {
            "directory".to_owned()
        };
        let mut line = format!("{:06o} {}:{} {content}", metadata.mode(), metadata.uid(), metadata.gid());
        if depth == Depth::Everything {
            line.push_str(&format!(
                " mtime {}.{} inode {}",
                metadata.mtime(),
                metadata.mtime_nsec(),
                metadata.ino()
            ));
        }
        let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
        found.insert(path.display().to_string(), line);
    }
    found
}

/// Returns how two snapshots differ, one line per path.
pub fn difference(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let paths: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differing = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
    differing
        .map(|path| {
            let side = |tree: &BTreeMap<String, String>| {
                tree.get(path).cloned().unwrap_or_else(|| "nothing".to_owned())
            };
            format!("{path}: {} became {}", side(before), side(after))
        })
        .collect()
}
