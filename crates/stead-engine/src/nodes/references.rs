//! What the files of a site say of each other: every name must be that of a file or of a key.

use stead_model::diagnostic::{Place, Span};
use stead_model::site::host::DriverKind;
use stead_model::site::{Entry, FileKind, Host, Located, Site, Spec};
use stead_model::{Diagnostic, Diagnostics, SiteKey};

use super::drift::disables_fail2ban;
use super::hosts::{missing_datastore, missing_endpoint, parent_cycle};
use super::problems::Looks;
use crate::target::Glob;

/// Where a file begins: the place of what it does not say.
pub(super) const TOP: Span = Span { start: 0, end: 0, line: 1, column: 1 };

/// Where a name is written.
pub(super) struct Written<'a> {
    pub(super) place: Place,
    pub(super) path: String,
    pub(super) name: &'a str,
}

impl Written<'_> {
    fn unknown(&self, message: String) -> Diagnostic {
        Diagnostic::error("node/unknown-fk", self.place.clone(), message).path(self.path.clone())
    }

    /// Returns the problem that no file of `kind` has this name.
    pub(super) fn no_file<'k>(
        &self,
        kind: FileKind,
        known: impl Iterator<Item = &'k str> + Clone,
        looks: &mut Looks,
    ) -> Diagnostic {
        let problem = self.unknown(format!("there is no {}", kind.path_of(self.name)));
        looks.advise(problem, kind.place(), self.name, known)
    }

    /// Returns the problem that `list` of the secrets has no such key.
    fn no_key<'k>(
        &self,
        list: &'static str,
        known: impl Iterator<Item = &'k str> + Clone,
        looks: &mut Looks,
    ) -> Diagnostic {
        let secrets = FileKind::Secrets.place();
        let problem = self.unknown(format!("there is no `{}` in `{list}` of {secrets}", self.name));
        looks.advise(problem, list, self.name, known)
    }
}

fn written<'a, T>(entry: &Entry<T>, span: Span, path: impl Into<String>, name: &'a str) -> Written<'a> {
    Written { place: entry.place(span), path: path.into(), name }
}

/// Returns the names of a folder's files.
pub(super) fn keys<T>(folder: &std::collections::BTreeMap<SiteKey, T>) -> impl Iterator<Item = &str> + Clone {
    folder.keys().map(SiteKey::as_str)
}

/// Returns the names of all hosts.
pub(super) fn host_names(site: &Site) -> impl Iterator<Item = &str> + Clone {
    keys(&site.instances).chain(keys(&site.hosts)).chain(["local"])
}

/// Adds what is wrong with a spec beyond its own file.
pub(super) fn check_spec(site: &Site, entry: &Entry<Spec>, problems: &mut Diagnostics, looks: &mut Looks) {
    let spec = &entry.value;
    let defaults = &site.settings.value.defaults;
    let default = defaults.posture();
    let posture = match (&spec.posture, &defaults.posture) {
        (Some(posture), _) => written(entry, posture.span, "access.posture", posture.value.as_str()),
        (None, Some(posture)) => {
            written(&site.settings, posture.span, "defaults.posture", posture.value.as_str())
        }
        (None, None) => written(entry, TOP, "access.posture", default.as_str()),
    };
    check_posture(site, &posture, problems, looks);
    let runs = site.postures.get(posture.name).is_some_and(|entry| entry.value.security.fail2ban.enabled);
    if runs && disables_fail2ban(&spec.disable) {
        let message = format!("the posture `{}` runs fail2ban, which the spec disables", posture.name);
        let problem = Diagnostic::error("node/conflict", posture.place.clone(), message);
        let help = "take `fail2ban` out of `platform.services.disable`, or name another posture";
        problems.push(problem.path(posture.path.clone()).help(help));
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
                let written = written(entry, id.span, path, &id.value);
                problems.push(written.no_key("ssh_keys", known.clone(), looks));
            }
        }
    }
}

/// Adds that there is no such posture.
pub(super) fn check_posture(
    site: &Site,
    written: &Written<'_>,
    problems: &mut Diagnostics,
    looks: &mut Looks,
) {
    if !site.postures.contains_key(written.name) {
        problems.push(written.no_file(FileKind::Posture, keys(&site.postures), looks));
    }
}

/// Where a host is described: in a file of its own, or as `hosting` of a node.
pub(super) struct HostAt<'a> {
    pub(super) host: &'a Host,
    /// The place of a span.
    pub(super) place: &'a dyn Fn(Span) -> Place,
    /// What paths begin with.
    pub(super) prefix: String,
    /// What `host` names, if it is more than a word of description.
    pub(super) inherits: bool,
}

/// Adds what is wrong with a file in hosts/ or nodes/ beyond the file.
pub(super) fn check_host(
    site: &Site,
    kind: FileKind,
    name: &str,
    entry: &Entry<Host>,
    problems: &mut Diagnostics,
    looks: &mut Looks,
) {
    let host = &entry.value;
    let is_instance = kind == FileKind::Instance;
    let place = |span: Span| entry.place(span);
    let at = HostAt { host, place: &place, prefix: String::new(), inherits: is_instance };
    check_described(site, &at, problems, looks);
    let inherited = super::hosts::base_of(site, kind, host).and_then(|base| base.value.api_token.as_ref());
    let is_default = host.driver() == DriverKind::Proxmox && host.api_token.is_none() && inherited.is_none();
    if is_default && !entry.is_broken() {
        // The token is called as the file.
        check_token(site, &written(entry, TOP, "api_token", name), problems, looks);
    }
    problems.0.extend(missing_datastore(site, kind, entry));
    problems.0.extend(missing_endpoint(site, kind, name, entry));
    if is_instance {
        problems.0.extend(parent_cycle(site, name, entry));
    }
}

fn check_token(site: &Site, token: &Written<'_>, problems: &mut Diagnostics, looks: &mut Looks) {
    let known = &site.secrets.value.api_tokens;
    if !site.secrets.is_broken() && !known.contains_key(token.name) {
        problems.push(token.no_key("api_tokens", known.keys().map(String::as_str), looks));
    }
}

/// Adds what is wrong with what a host names.
pub(super) fn check_described(site: &Site, at: &HostAt<'_>, problems: &mut Diagnostics, looks: &mut Looks) {
    let host = at.host;
    fn named<'n>(at: &HostAt<'_>, span: Span, path: &str, name: &'n str) -> Written<'n> {
        Written { place: (at.place)(span), path: format!("{}{path}", at.prefix), name }
    }
    let known = &site.secrets.value.ssh_keys;
    for (i, id) in host.access.authorized_keys.iter().flatten().enumerate() {
        if !site.secrets.is_broken() && !known.contains_key(&id.value) {
            let written = named(at, id.span, &format!("access.authorized_keys[{i}]"), &id.value);
            problems.push(written.no_key("ssh_keys", known.keys().map(String::as_str), looks));
        }
    }
    if let Some(token) = &host.api_token {
        check_token(site, &named(at, token.span, "api_token", &token.value), problems, looks);
    }
    for (i, fault) in host.faults.iter().enumerate() {
        if let Err((_, why)) = Glob::parse(&fault.node) {
            let written = named(at, fault.span, &format!("faults[{i}].node"), &fault.node);
            let message = format!("`{}` is no glob over names of nodes: {why}", written.name);
            problems.push(Diagnostic::error("node/bad-name", written.place, message).path(written.path));
        }
    }
    let unknown = |wanted: &&Located<String>| !site.hosts.contains_key(wanted.value.as_str());
    if let Some(base) = host.host.as_ref().filter(|_| at.inherits).filter(unknown) {
        let written = named(at, base.span, "host", &base.value);
        problems.push(written.no_file(FileKind::Host, keys(&site.hosts), looks));
    }
    if let Some(parent) =
        host.parent_node.as_ref().filter(|parent| !site.instances.contains_key(&parent.value))
    {
        let written = named(at, parent.span, "parent_node", parent.value.as_str());
        problems.push(written.no_file(FileKind::Instance, keys(&site.instances), looks));
    }
}
