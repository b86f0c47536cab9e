//! The roles of a bundle: their metadata and their files. Reads generously, for showing and comparing.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde_json::Value;

use crate::archive::Listing;
use crate::layout::shown;
use crate::source::{Files, Source};
use crate::stored::LoadError;

/// The directory of roles.
pub(crate) const ROLES: &str = "roles";
/// What a role was and how it ended.
pub(crate) const ROLE_META: &str = "role_meta.json";
/// What a role wrote.
pub(crate) const STREAMS: [&str; 2] = ["stdout.log", "stderr.log"];

/// What one role left.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RoleFiles {
    /// `role_meta.json`; none if it is missing or does not parse.
    pub(crate) meta: Option<Value>,
    /// The lengths of its other files, by their path below its directory.
    pub(crate) files: BTreeMap<String, u64>,
}

impl RoleFiles {
    /// Returns the names of the files that are captures, ascending.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str).filter(|name| is_capture(name))
    }

    /// Returns the names of the files that are not the role's output, ascending.
    pub(crate) fn artifacts(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str).filter(|name| !STREAMS.contains(name))
    }
}

/// Returns whether a file of this name is a capture.
pub(crate) fn is_capture(name: &str) -> bool {
    name.ends_with(".pcap") || name.ends_with(".pcapng")
}

/// Returns the role that the file at `path` of a bundle belongs to, and its path below the role's directory.
pub(crate) fn in_role(path: &Path) -> Option<(&Path, &Path)> {
    let mut parts = path.strip_prefix(ROLES).ok()?.components();
    let Component::Normal(role) = parts.next()? else { return None };
    let name = parts.as_path();
    (!name.as_os_str().is_empty()).then_some((Path::new(role), name))
}

/// Returns whether the file at `path` is metadata of a role.
pub(crate) fn is_role_meta(path: &Path) -> bool {
    in_role(path).is_some_and(|(_, name)| name == Path::new(ROLE_META))
}

/// Returns the roles of `source`; none if it has none. Links are not followed.
pub(crate) fn role_files(source: &Source) -> Result<BTreeMap<String, RoleFiles>, LoadError> {
    let (files, listing) = source.read_files(&is_role_meta)?;
    Ok(roles_of(&files, &listing))
}

/// Returns the roles of a bundle whose metadata is in `files`.
pub(crate) fn roles_of(files: &Files, listing: &Listing) -> BTreeMap<String, RoleFiles> {
    let mut roles: BTreeMap<String, RoleFiles> = BTreeMap::new();
    for (path, bytes) in &listing.contents.files {
        let Some((role, name)) = in_role(path) else { continue };
        let role = roles.entry(shown(role).into_owned()).or_default();
        if name == Path::new(ROLE_META) {
            let read = files.get(path).and_then(|read| read.as_ref().ok());
            role.meta = read.and_then(|bytes| serde_json::from_slice(bytes).ok());
        } else {
            role.files.insert(shown(name).into_owned(), *bytes);
        }
    }
    roles
}
