//! The roles of a bundle: their metadata and their files. Reads generously, for showing and comparing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::RecordError;
use crate::layout::shown;
use crate::seal::contents;

const ROLES: &str = "roles";
const ROLE_META: &str = "role_meta.json";
const STREAMS: [&str; 2] = ["stdout.log", "stderr.log"];

/// What one role left.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RoleFiles {
    /// `role_meta.json`; none if it is missing or does not parse.
    pub(crate) meta: Option<Value>,
    /// Its other files, by their path below its directory.
    pub(crate) files: BTreeMap<String, RoleFile>,
}

/// A file of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// How long it is.
    pub(crate) bytes: u64,
}

impl RoleFiles {
    /// Returns the names of the files that are captures, ascending.
    pub(crate) fn captures(&self) -> impl Iterator<Item = &str> {
        let names = self.files.keys().map(String::as_str);
        names.filter(|name| name.ends_with(".pcap") || name.ends_with(".pcapng"))
    }

    /// Returns the names of the files that are not the role's output, ascending.
    pub(crate) fn artifacts(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str).filter(|name| !STREAMS.contains(name))
    }
}

/// Returns the roles of the bundle at `bundle`; none if it has none. Links are not followed.
pub(crate) fn role_files(bundle: &Path) -> Result<BTreeMap<String, RoleFiles>, RecordError> {
    let mut roles: BTreeMap<String, RoleFiles> = BTreeMap::new();
    for (relative, bytes) in contents(bundle)?.files {
        let Ok(below) = relative.strip_prefix(ROLES) else { continue };
        let mut parts = below.components();
        let (Some(role), name) = (parts.next(), parts.as_path()) else { continue };
        if name.as_os_str().is_empty() {
            continue;
        }
        let role = roles.entry(shown(role.as_ref()).into_owned()).or_default();
        let path = bundle.join(&relative);
        if name == Path::new(ROLE_META) {
            role.meta = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        } else {
            role.files.insert(shown(name).into_owned(), RoleFile { path, bytes });
        }
    }
    Ok(roles)
}
