//! What the files of a site say of each other: every name must be that of a file or of a key.

use stead_model::diagnostic::{Place, Span, suggest};
use stead_model::site::{Entry, FileKind, Host, Located, Site, Spec};
use stead_model::{Diagnostic, Diagnostics, SiteKey};

use super::problems::candidates;

/// Where a name is written.
pub(super) struct Written<'a> {
    pub(super) place: Place,
    pub(super) path: String,
    pub(super) name: &'a str,
}

impl Written<'_> {
    fn unknown<'k>(&self, message: String, known: impl Iterator<Item = &'k str> + Clone) -> Diagnostic {
        Diagnostic::error("node/unknown-fk", self.place.clone(), message)
            .path(self.path.clone())
            .help(suggest(self.name, known.clone()))
            .candidates(candidates(self.name, known))
    }

    /// Returns the problem that no file of `kind` has this name.
    pub(super) fn no_file<'k>(
        &self,
        kind: FileKind,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> Diagnostic {
        self.unknown(format!("there is no {}", kind.path_of(self.name)), known)
    }

    fn no_key<'k>(&self, list: &str, known: impl Iterator<Item = &'k str> + Clone) -> Diagnostic {
        self.unknown(
            format!("there is no `{}` in `{list}` of {}", self.name, FileKind::Secrets.place()),
            known,
        )
    }
}

fn written<'a, T>(entry: &Entry<T>, span: Span, path: impl Into<String>, name: &'a str) -> Written<'a> {
    Written { place: entry.place(span), path: path.into(), name }
}

/// Returns the names of a folder's files.
pub(super) fn keys<T>(folder: &std::collections::BTreeMap<SiteKey, T>) -> impl Iterator<Item = &str> + Clone {
    folder.keys().map(SiteKey::as_str)
}

/// Adds what is wrong with a spec beyond its own file.
pub(super) fn check_spec(site: &Site, name: &str, entry: &Entry<Spec>, problems: &mut Diagnostics) {
    let spec = &entry.value;
    let defaults = &site.settings.value.defaults;
    match (&spec.posture, &defaults.posture) {
        (Some(posture), _) => {
            let written = written(entry, posture.span, "access.posture", posture.value.as_str());
            check_posture(site, &written, problems);
        }
        (None, Some(posture)) => {
            let written = written(&site.settings, posture.span, "defaults.posture", posture.value.as_str());
            check_posture(site, &written, problems);
        }
        (None, None) => {
            let posture = defaults.posture();
            let place = Place::Named(FileKind::Spec.path_of(name));
            let written = Written { place, path: "access.posture".to_owned(), name: posture.as_str() };
            check_posture(site, &written, problems);
        }
    }
    // A file of secrets that cannot be read has told so; what it holds is not known.
    if site.secrets.is_broken() {
        return;
    }
    let known = site.secrets.value.ssh_keys.keys().map(String::as_str);
    for (i, user) in spec.users.iter().enumerate() {
        for (j, id) in user.ssh_keys.iter().flatten().enumerate() {
            if !site.secrets.value.ssh_keys.contains_key(&id.value) {
                let path = format!("access.users[{i}].ssh_keys[{j}]");
                problems.push(written(entry, id.span, path, &id.value).no_key("ssh_keys", known.clone()));
            }
        }
    }
}

fn check_posture(site: &Site, written: &Written<'_>, problems: &mut Diagnostics) {
    if !site.postures.contains_key(written.name) {
        problems.push(written.no_file(FileKind::Posture, keys(&site.postures)));
    }
}

/// Adds what is wrong with a host or instance beyond its own file.
pub(super) fn check_host(
    site: &Site,
    kind: FileKind,
    name: &str,
    entry: &Entry<Host>,
    problems: &mut Diagnostics,
) {
    let host = &entry.value;
    if !site.secrets.is_broken() {
        let secrets = &site.secrets.value;
        for (i, id) in host.access.authorized_keys.iter().enumerate() {
            if !secrets.ssh_keys.contains_key(&id.value) {
                let written = written(entry, id.span, format!("access.authorized_keys[{i}]"), &id.value);
                problems.push(written.no_key("ssh_keys", secrets.ssh_keys.keys().map(String::as_str)));
            }
        }
        let token = match &host.api_token {
            Some(token) => Some(written(entry, token.span, "api_token", &token.value)),
            // The token of an instance is called as its file.
            None if kind == FileKind::Instance => {
                let place = Place::Named(kind.path_of(name));
                Some(Written { place, path: "api_token".to_owned(), name })
            }
            None => None,
        };
        if let Some(token) = token.filter(|token| !secrets.api_tokens.contains_key(token.name)) {
            problems.push(token.no_key("api_tokens", secrets.api_tokens.keys().map(String::as_str)));
        }
    }
    if kind != FileKind::Instance {
        return;
    }
    let unknown = |wanted: &Located<String>| !site.hosts.contains_key(wanted.value.as_str());
    if let Some(base) = host.host.as_ref().filter(|base| unknown(base)) {
        problems
            .push(written(entry, base.span, "host", &base.value).no_file(FileKind::Host, keys(&site.hosts)));
    }
    if let Some(parent) =
        host.parent_node.as_ref().filter(|parent| !site.instances.contains_key(&parent.value))
    {
        let written = written(entry, parent.span, "parent_node", parent.value.as_str());
        problems.push(written.no_file(FileKind::Instance, keys(&site.instances)));
    }
}
