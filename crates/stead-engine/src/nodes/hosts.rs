//! Which host `-H` means, and what an instance inherits.

use core::net::IpAddr;

use stead_model::diagnostic::{Place, nearest};
use stead_model::site::host::DriverKind;
use stead_model::site::{Entry, FileKind, Host, Located, Site};
use stead_model::{Diagnostic, Diagnostics, Severity};

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

/// Returns the host that `text` means as far as its file could be read: enough to look for what was made there. None:
/// nothing in it says who makes machines.
pub fn host_as_read(site: &Site, text: &str) -> Option<ChosenHost> {
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user.to_owned()), name),
        None => (None, text),
    };
    let entry = site.hosts.get(name)?;
    let (origin, host) = match entry.value.driver() {
        DriverKind::None if name == "local" => (HostOrigin::BuiltIn, Host::local()),
        DriverKind::None => return None,
        DriverKind::Sandbox
        | DriverKind::Oci
        | DriverKind::Qemu
        | DriverKind::CloudHypervisor
        | DriverKind::Proxmox => {
            let mut host = entry.value.clone();
            apply_default_bridge(&site.settings.value.defaults.bridge, &mut host);
            (HostOrigin::Host, host)
        }
    };
    Some(ChosenHost { name: name.to_owned(), user, origin, host })
}

/// Whether machines of `host` are made on another machine than this one, by the stead there.
///
/// A host says where it is by its address. One at the loopback is this machine, unless it says by which port it is
/// reached: then that port leads elsewhere. `is_own` says whether this machine has an address.
pub fn is_elsewhere(host: &Host, is_own: impl FnOnce(IpAddr) -> bool) -> bool {
    let acts_here = match host.driver() {
        DriverKind::Sandbox | DriverKind::Oci | DriverKind::Qemu | DriverKind::CloudHypervisor => true,
        DriverKind::Proxmox | DriverKind::None => false,
    };
    let Some(address) = host.address.as_deref().filter(|_| acts_here) else { return false };
    match address.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => host.access.ssh_port.is_some(),
        Ok(address) => !is_own(address),
        Err(_) if address == "localhost" => host.access.ssh_port.is_some(),
        Err(_) => true,
    }
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
    apply_default_bridge(&site.settings.value.defaults.bridge, &mut host);
    Ok(host)
}

/// Puts machines of a host that names no bridge on the site's; containers have one of their own. The address of the bridge
/// that the host names, or else of the site's, is the host's, if it says no other.
fn apply_default_bridge(default: &str, host: &mut Host) {
    match host.driver() {
        DriverKind::Qemu | DriverKind::CloudHypervisor | DriverKind::Proxmox => {
            host.driver_settings.entry("bridge".to_owned()).or_insert_with(|| default.into());
        }
        DriverKind::Sandbox | DriverKind::Oci | DriverKind::None => {}
    }
    if host.address.is_none() {
        let named = host.driver_settings.get("bridge").and_then(|bridge| bridge.as_str());
        host.address = host.interface_address(named.unwrap_or(default));
    }
}

/// Returns the file that an instance inherits from, if it names one that is there.
pub(super) fn base_of<'s>(site: &'s Site, kind: FileKind, host: &Host) -> Option<&'s Entry<Host>> {
    let base = host.host.as_ref().filter(|_| kind == FileKind::Instance)?;
    site.hosts.get(base.value.as_str())
}

/// Returns the problem that neither an instance nor what it inherits from says where disks are kept.
pub(super) fn missing_datastore(site: &Site, kind: FileKind, entry: &Entry<Host>) -> Option<Diagnostic> {
    if kind != FileKind::Instance || may_say(site, kind, entry, "datastore", |host| host.datastore.is_some())
    {
        return None;
    }
    let message = "a Proxmox instance needs the key `datastore`, of its own or of its host";
    Some(
        Diagnostic::error("node/missing-field", entry.place(references::TOP), message)
            .path("datastore")
            .help("where disks are kept, such as `local-zfs`"),
    )
}

/// Whether a host says something, of its own or by what it inherits from, or could say it if it were read: by `key`.
fn may_say(
    site: &Site,
    kind: FileKind,
    entry: &Entry<Host>,
    key: &str,
    says: impl Fn(&Host) -> bool,
) -> bool {
    let unread = |entry: &Entry<Host>| {
        let mut errors = entry.diagnostics.iter().filter(|problem| problem.severity == Severity::Error);
        errors.any(|problem| match problem.path.strip_prefix(key) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']),
            // A key that is missing keeps no other from being read.
            None => problem.path.is_empty() && problem.code != "node/missing-field",
        })
    };
    let may = |entry: &Entry<Host>| says(&entry.value) || unread(entry);
    let is_instance = kind == FileKind::Instance;
    match (entry.value.host.as_ref().filter(|_| is_instance), base_of(site, kind, &entry.value)) {
        // What is not there may say it.
        (Some(_), None) => true,
        (_, Some(base)) => may(entry) || may(base),
        (None, None) => may(entry),
    }
}

/// Returns the problem that nothing says where the API of a Proxmox host is.
pub(super) fn missing_endpoint(
    site: &Site,
    kind: FileKind,
    name: &str,
    entry: &Entry<Host>,
) -> Option<Diagnostic> {
    let base = base_of(site, kind, &entry.value);
    let mut host = base.map_or_else(|| entry.value.clone(), |base| entry.value.clone().inherit(&base.value));
    apply_default_bridge(&site.settings.value.defaults.bridge, &mut host);
    let inherits_it = |other: &Entry<Host>| other.value.host.as_ref().is_some_and(|host| host.value == name);
    // Those that inherit from it may say it each.
    let is_base = kind == FileKind::Host && site.instances.values().any(inherits_it);
    let is_known = host.api_endpoint.is_some() || host.address.is_some();
    let may_be_known = || {
        let keys = ["api_endpoint", "ip", "network", "driver"];
        keys.iter().any(|key| may_say(site, kind, entry, key, |_| false))
    };
    if host.driver() != DriverKind::Proxmox || is_base || is_known || may_be_known() {
        return None;
    }
    let message = "nothing says where the API is: a Proxmox host needs the key `api_endpoint`, or `ip`";
    Some(
        Diagnostic::error("node/missing-field", entry.place(references::TOP), message)
            .path("api_endpoint")
            .help("write `api_endpoint: https://HOST:8006`"),
    )
}

/// Returns the problem that an instance is in itself, by way of others or not.
pub(super) fn parent_cycle(site: &Site, name: &str, entry: &Entry<Host>) -> Option<Diagnostic> {
    let first = entry.value.parent_node.as_ref()?;
    let mut way = vec![name];
    let mut next = Some(first);
    while let Some(parent) = next {
        way.push(parent.value.as_str());
        if parent.value.as_str() == name {
            let message = format!("`parent_node` leads in a circle: {}", way.join(" -> "));
            let problem = Diagnostic::error("node/cycle", entry.place(first.span), message);
            return Some(problem.path("parent_node"));
        }
        // A circle that this one only leads to is told of those that are in it.
        if way.len() > site.instances.len() + 1 {
            return None;
        }
        next = site.instances.get(&parent.value).and_then(|parent| parent.value.parent_node.as_ref());
    }
    None
}

#[cfg(test)]
mod tests {
    use stead_model::site::host::Access;

    use super::*;

    /// Section 2: the address of a host is `ip`, else that of its bridge without the prefix: of the bridge that it names, of
    /// the one it inherits, else of the site's.
    #[test]
    fn the_address_of_a_host_is_that_of_its_bridge() {
        use crate::nodes::tests::file;
        let interfaces = "network: {interfaces: {vmbr0: {address: 10.0.0.1/24}, br9: {address: 10.9.0.1/16}, \
                          br6: {address: 'fd00::1/64'}, dyn: {address: dhcp}}}\n";
        let address = |site: &str, base: &str, instance: &str| {
            let site = Site::read(vec![
                file(FileKind::Site, "site", site),
                file(FileKind::Host, "h", &format!("{interfaces}{base}")),
                file(FileKind::Instance, "i", &format!("host: h\ndatastore: d\n{instance}")),
            ]);
            let of = |name: &str| find_host(&site, name).unwrap().host.address.unwrap_or_default();
            [of("h"), of("i")]
        };
        for (site, base, instance, expected) in [
            ("", "", "", ["10.0.0.1", "10.0.0.1"]),
            ("defaults: {bridge: br9}\n", "", "", ["10.9.0.1", "10.9.0.1"]),
            ("defaults: {bridge: br9}\n", "bridge: vmbr0\n", "", ["10.0.0.1", "10.0.0.1"]),
            ("", "", "bridge: br6\n", ["10.0.0.1", "fd00::1"]),
            ("", "bridge: br9\n", "bridge: br6\n", ["10.9.0.1", "fd00::1"]),
            ("defaults: {bridge: dyn}\n", "", "bridge: none\n", ["", ""]),
            ("", "ip: 10.1.1.1\n", "ip: 10.2.2.2\nbridge: br9\n", ["10.1.1.1", "10.2.2.2"]),
        ] {
            assert_eq!(address(site, base, instance), expected, "{site}{base}{instance}");
        }
    }

    #[test]
    fn a_host_is_elsewhere_if_its_address_is() {
        let host = |driver, address: Option<&str>, ssh_port| Host {
            driver: Some(driver),
            address: address.map(str::to_owned),
            access: Access { ssh_port, ..Access::default() },
            ..Host::default()
        };
        let own = |address: IpAddr| address.to_string() == "192.0.2.1";
        let elsewhere = |host: &Host| is_elsewhere(host, own);
        assert!(!elsewhere(&host(DriverKind::Sandbox, None, None)));
        assert!(!elsewhere(&host(DriverKind::Sandbox, Some("192.0.2.1"), Some(22))));
        assert!(!elsewhere(&host(DriverKind::Qemu, Some("127.0.0.1"), None)));
        assert!(!elsewhere(&host(DriverKind::Proxmox, Some("192.0.2.9"), None)));
        for driver in [DriverKind::Sandbox, DriverKind::Oci, DriverKind::Qemu, DriverKind::CloudHypervisor] {
            assert!(elsewhere(&host(driver, Some("192.0.2.9"), None)));
            assert!(elsewhere(&host(driver, Some("::1"), Some(2222))));
            assert!(elsewhere(&host(driver, Some("far.example"), None)));
        }
    }
}
