//! Which host `-H` means, and what an instance inherits.

use stead_model::diagnostic::{Place, nearest};
use stead_model::site::host::DriverKind;
use stead_model::site::{Entry, FileKind, Host, Located, Site};
use stead_model::{Diagnostic, Diagnostics};

use super::references;

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
    for (kind, origin, folder) in [
        (FileKind::Instance, HostOrigin::Instance, &site.instances),
        (FileKind::Host, HostOrigin::Host, &site.hosts),
    ] {
        if let Some(entry) = folder.get(name) {
            let host = complete(site, kind, name, entry).map_err(FindHostError::Broken)?;
            return chosen(origin, host);
        }
    }
    if name == "local" {
        return chosen(HostOrigin::BuiltIn, Host::local());
    }
    let mut known: Vec<&str> = references::host_names(site).collect();
    known.sort_unstable();
    known.dedup();
    let message = format!(
        "there is no host `{name}`: neither {} nor {}; there are {}",
        FileKind::Instance.path_of(name),
        FileKind::Host.path_of(name),
        known.join(", ")
    );
    let help = match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "write a file for it, or choose one of those there are".to_owned(),
    };
    let known = known.into_iter().map(str::to_owned).collect();
    refused(Diagnostic::error("node/unknown-fk", place(), message).help(help).candidates(known))
}

/// Returns the host that `entry` describes: with what it inherits, and what its name stands for.
fn complete(site: &Site, kind: FileKind, name: &str, entry: &Entry<Host>) -> Result<Host, Diagnostics> {
    if entry.is_broken() {
        return Err(entry.diagnostics.clone());
    }
    let mut host = entry.value.clone();
    if let Some(base) = base_of(site, kind, &entry.value) {
        if base.is_broken() {
            return Err(base.diagnostics.clone());
        }
        host = host.inherit(&base.value);
    }
    if let Some(problem) = missing_datastore(site, kind, entry) {
        return Err(Diagnostics(vec![problem]));
    }
    if host.driver() == DriverKind::Proxmox {
        host.node.get_or_insert_with(|| name.to_owned());
        host.api_token.get_or_insert_with(|| Located { value: name.to_owned(), span: references::TOP });
    }
    Ok(host)
}

/// Returns the file that an instance inherits from, if it names one that is there.
pub(super) fn base_of<'s>(site: &'s Site, kind: FileKind, host: &Host) -> Option<&'s Entry<Host>> {
    let base = host.host.as_ref().filter(|_| kind == FileKind::Instance)?;
    site.hosts.get(base.value.as_str())
}

/// Returns the problem that neither an instance nor what it inherits from says where disks are kept.
pub(super) fn missing_datastore(site: &Site, kind: FileKind, entry: &Entry<Host>) -> Option<Diagnostic> {
    let host = &entry.value;
    if kind != FileKind::Instance || entry.is_broken() || host.datastore.is_some() {
        return None;
    }
    match (&host.host, base_of(site, kind, host)) {
        // What is not there, or cannot be read, may say it.
        (Some(_), None) => return None,
        (_, Some(base)) if base.is_broken() || base.value.datastore.is_some() => return None,
        (_, Some(_)) | (None, None) => {}
    }
    let message = "a Proxmox instance needs the key `datastore`, of its own or of its host";
    Some(
        Diagnostic::error("node/missing-field", entry.place(references::TOP), message)
            .path("datastore")
            .help("where disks are kept, such as `local-zfs`"),
    )
}
