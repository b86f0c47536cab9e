//! Where a state directory keeps what it knows of nodes, one file per pair of manifest and host, and the server of a site.
//!
//! ```text
//!  STATE/nodes/HOST/MANIFEST/state.json        nodes of the directory's own site
//!  STATE/server                                the server of that site
//!  STATE/nodes/HOST/MANIFEST@SITE/state.json   nodes of a manifest that a level above has handed down, with its site, to
//!  STATE/delegated/SITE/MANIFEST               … this directory
//!  STATE/delegated/SITE/.MANIFEST.server       the server of those nodes
//! ```
//! Several sites may hand manifests of one name to one machine, each with keys of its own. `@` is in no name of a
//! manifest, so none is taken for another's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stead_model::NodeName;
use stead_model::node::NodesState;

use crate::errand::DELEGATED;

/// The pairs of one site in a state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    state_dir: PathBuf,
    handed_down: Option<HandedDown>,
}

/// What a level above has handed down to this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HandedDown {
    site: String,
    manifest: String,
}

impl HandedDown {
    /// Returns what the site in `site_dir` is of what was handed down to `state_dir`, if it is any of that.
    fn of(state_dir: &Path, site_dir: &Path) -> Option<Self> {
        let given = |site: &Path, state: &Path| -> Option<Self> {
            let mut below = site.strip_prefix(state.join(DELEGATED)).ok()?.components();
            let mut next = || below.next()?.as_os_str().to_str();
            let (site, manifest) = (next()?, next().unwrap_or_default());
            // Who only looks has a copy of the site beside it.
            let manifest = manifest.split_once('@').map_or(manifest, |(manifest, _)| manifest);
            Some(Self { site: site.to_owned(), manifest: manifest.to_owned() })
        };
        let real = || given(&site_dir.canonicalize().ok()?, &state_dir.canonicalize().ok()?);
        given(site_dir, state_dir).or_else(real)
    }
}

/// Whether the site in `site_dir` shares this machine with others that may use the same port.
pub fn is_handed_down(state_dir: &Path, site_dir: &Path) -> bool {
    HandedDown::of(state_dir, site_dir).is_some()
}

/// Returns where the server of the site in `site_dir` keeps its files.
pub fn server_directory(state_dir: &Path, site_dir: &Path) -> PathBuf {
    match HandedDown::of(state_dir, site_dir) {
        None => state_dir.join("server"),
        Some(HandedDown { site, manifest }) => handed_down_server(state_dir, &site, &manifest),
    }
}

/// Returns where the server of what `site` has handed down for `manifest` keeps its files.
pub(super) fn handed_down_server(state_dir: &Path, site: &str, manifest: &str) -> PathBuf {
    state_dir.join(DELEGATED).join(site).join(format!(".{manifest}.server"))
}

impl Pairs {
    /// Returns the pairs in `state_dir` of the site in `site_dir`.
    pub fn of(state_dir: &Path, site_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), handed_down: HandedDown::of(state_dir, site_dir) }
    }

    /// Returns where is kept what is known of the nodes of a manifest on a host.
    pub fn state_file(&self, host: &str, manifest: &str) -> PathBuf {
        self.hosts().join(host).join(self.mark(manifest)).join("state.json")
    }

    /// Returns what the lock of a pair is called. A dash of the host's name is written twice, so that no two pairs have one
    /// lock: no manifest's name begins with one.
    pub fn lock(&self, host: &str, manifest: &str) -> String {
        format!("nodes-{}-{}", host.replace('-', "--"), self.mark(manifest))
    }

    /// Returns host and manifest of the pairs of which something is known, sorted; of this host and manifest, if named.
    pub fn known(&self, host: Option<&str>, manifest: Option<&str>) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for on in names(&self.hosts()).into_iter().filter(|name| host.is_none_or(|host| host == name)) {
            let marks = names(&self.hosts().join(&on));
            let manifests = marks.iter().filter_map(|mark| self.manifest(mark));
            let wanted = manifests.filter(|name| manifest.is_none_or(|manifest| manifest == *name));
            let there = wanted.filter(|name| self.state_file(&on, name).is_file());
            found.extend(there.map(|name| (on.clone(), name.to_owned())));
        }
        found
    }

    /// Returns the nodes that fetch from the server of this site, each with the pair it is of, but for those of the pair
    /// that is kept in the file `own`.
    pub fn served_elsewhere(&self, own: &Path) -> BTreeMap<NodeName, String> {
        let manifest = self.handed_down.as_ref().map(|given| given.manifest.as_str());
        let pairs = self.known(None, manifest).into_iter();
        let files = pairs.map(|(host, manifest)| self.state_file(&host, &manifest));
        let others = files.filter(|path| path != own);
        let states = others.filter_map(|path| NodesState::parse(&std::fs::read(path).ok()?).ok());
        let named = |state: NodesState| {
            let pair = format!("{} on {}", state.manifest, state.host);
            state.fetching().into_iter().map(move |name| (name, pair.clone()))
        };
        // Without a server of its own level a pair's nodes fetch from one elsewhere.
        states.filter(|state| state.server.is_some()).flat_map(named).collect()
    }

    fn hosts(&self) -> PathBuf {
        self.state_dir.join("nodes")
    }

    fn mark(&self, manifest: &str) -> String {
        match &self.handed_down {
            None => manifest.to_owned(),
            Some(given) => format!("{manifest}@{}", given.site),
        }
    }

    /// Returns the manifest of this site that a directory is for.
    fn manifest<'m>(&self, mark: &'m str) -> Option<&'m str> {
        match (mark.split_once('@'), &self.handed_down) {
            (None, None) => Some(mark),
            (Some((manifest, of)), Some(given)) if of == given.site => Some(manifest),
            (None | Some(_), _) => None,
        }
    }
}

/// Returns what is in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_were_handed_down_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let own = Pairs::of(state, &state.join("site-config"));
        let [a, b] = ["a", "b"].map(|site| Pairs::of(state, &state.join("delegated").join(site).join("m")));
        assert_eq!(own.state_file("other", "m"), state.join("nodes/other/m/state.json"));
        assert_eq!(a.state_file("other", "m"), state.join("nodes/other/m@a/state.json"));
        assert_eq!(
            [own.lock("other", "m"), b.lock("other", "m")],
            ["nodes-other-m", "nodes-other-m@b"].map(str::to_owned)
        );
        for file in [own.state_file("other", "m"), own.state_file("local", "n"), a.state_file("other", "x")] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "{}").unwrap();
        }
        let pair = |host: &str, manifest: &str| (host.to_owned(), manifest.to_owned());
        assert_eq!(own.known(None, None), [pair("local", "n"), pair("other", "m")]);
        assert_eq!(own.known(Some("other"), None), [pair("other", "m")]);
        assert_eq!(a.known(None, Some("x")), [pair("other", "x")]);
        assert_eq!(a.known(None, Some("m")), []);
        assert_eq!(b.known(None, None), []);
    }

    /// Section 10: other pairs go on.
    #[test]
    fn every_pair_has_a_lock_of_its_own() {
        let pairs = Pairs::of(Path::new("/s"), Path::new("/site"));
        assert_eq!(pairs.lock("local", "b-c"), "nodes-local-b-c");
        let names = ["a", "a-", "a-b", "a--b", "a-b-c", "b", "b-c", "c"];
        let manifests = ["a", "b", "b-c", "b--c", "c", "c-"];
        let all: Vec<String> =
            names.iter().flat_map(|host| manifests.map(|manifest| pairs.lock(host, manifest))).collect();
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
    }

    #[test]
    fn what_was_handed_down_has_a_server_of_its_own() {
        let place = |site: &str| server_directory(Path::new("/s"), Path::new(site));
        assert_eq!(place("/elsewhere"), Path::new("/s/server"));
        assert_eq!(place("/s"), Path::new("/s/server"));
        assert_eq!(place("/s/delegated/a/m"), Path::new("/s/delegated/a/.m.server"));
        assert_eq!(place("/s/delegated/a/n"), Path::new("/s/delegated/a/.n.server"));
        assert_eq!(place("/s/delegated/b/m@run-1"), Path::new("/s/delegated/b/.m.server"));
        assert!(is_handed_down(Path::new("/s"), Path::new("/s/delegated/a/m")));
        assert!(!is_handed_down(Path::new("/s"), Path::new("/s/delegated")));
    }

    /// The same directory may be named by two ways.
    #[test]
    fn links_do_not_hide_where_a_site_is() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir_all(state.join("delegated/a/m")).unwrap();
        std::os::unix::fs::symlink(&state, dir.path().join("link")).unwrap();
        let found = Pairs::of(&state, &dir.path().join("link/delegated/a/m"));
        assert_eq!(found, Pairs::of(&state, &state.join("delegated/a/m")));
    }
}
