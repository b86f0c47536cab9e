//! Which host `-H` means, and what an instance inherits.

use stead_model::diagnostic::{Place, suggest};
use stead_model::site::{FileKind, Host, Site};
use stead_model::{Diagnostic, Diagnostics};

use super::problems::candidates;

/// Where a host is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOrigin {
    /// In `nodes/`.
    Instance,
    /// In `hosts/`.
    Host,
    /// Nowhere: it is built in.
    BuiltIn,
}

/// A host that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenHost {
    /// Its name.
    pub name: String,
    /// The user to log in as, if one was given.
    pub user: Option<String>,
    /// Where it is described.
    pub origin: HostOrigin,
    /// What is known of it, inherited fields included.
    pub host: Host,
}

/// Why there is no host to work with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindHostError {
    /// There is none of that name.
    Unknown(Box<Diagnostic>),
    /// Its file, or the one it inherits from, has problems.
    Broken(Diagnostics),
}

/// Returns the host that `text` (`[user@]NAME`) means: of `nodes/`, else of `hosts/`, else the built-in `local`.
pub fn find_host(site: &Site, text: &str) -> Result<ChosenHost, FindHostError> {
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, text),
    };
    let refused = |problem: Diagnostic| Err(FindHostError::Unknown(Box::new(problem)));
    let place = || Place::Named(format!("-H {text}"));
    if user.is_some_and(|user| user.is_empty() || user.contains(char::is_whitespace)) {
        return refused(Diagnostic::error(
            "node/bad-name",
            place(),
            "the user before `@` is empty or no name",
        ));
    }
    let user = user.map(str::to_owned);
    let chosen = |origin, host| Ok(ChosenHost { name: name.to_owned(), user: user.clone(), origin, host });
    if let Some(instance) = site.instances.get(name) {
        if instance.is_broken() {
            return Err(FindHostError::Broken(instance.diagnostics.clone()));
        }
        let mut host = instance.value.clone();
        host.node.get_or_insert_with(|| name.to_owned());
        if let Some(base) = host.host.as_ref().and_then(|base| site.hosts.get(base.value.as_str())) {
            if base.is_broken() {
                return Err(FindHostError::Broken(base.diagnostics.clone()));
            }
            host = inherit(host, &base.value);
        }
        return chosen(HostOrigin::Instance, host);
    }
    if let Some(host) = site.hosts.get(name) {
        if host.is_broken() {
            return Err(FindHostError::Broken(host.diagnostics.clone()));
        }
        return chosen(HostOrigin::Host, host.value.clone());
    }
    if name == "local" {
        return chosen(HostOrigin::BuiltIn, Host::local());
    }
    let known = || site.instances.keys().chain(site.hosts.keys()).map(|key| key.as_str()).chain(["local"]);
    let message = format!(
        "there is no host `{name}`: neither {} nor {}",
        FileKind::Instance.path_of(name),
        FileKind::Host.path_of(name)
    );
    refused(
        Diagnostic::error("node/unknown-fk", place(), message)
            .help(suggest(name, known()))
            .candidates(candidates(name, known())),
    )
}

/// Returns `instance` with what `base` says where the instance is silent.
fn inherit(instance: Host, base: &Host) -> Host {
    let default = Host::default();
    let mut merged = instance;
    macro_rules! fill {
        ($($field:ident),*) => {
            $(if merged.$field.is_none() { merged.$field = base.$field.clone(); })*
        };
    }
    fill!(
        domain,
        address,
        arch,
        self_addr,
        parallel,
        become_user,
        api_endpoint,
        datastore,
        packages,
        services
    );
    if merged.timeouts == default.timeouts {
        merged.timeouts = base.timeouts;
    }
    if merged.access == default.access {
        merged.access = base.access.clone();
    }
    for (key, value) in &base.labels {
        merged.labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in &base.description {
        merged.description.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in &base.driver_settings {
        merged.driver_settings.entry(key.clone()).or_insert_with(|| value.clone());
    }
    merged
}
