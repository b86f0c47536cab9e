//! Preflight: what is missing for the nodes to be made, found before anything is.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use stead_engine::nodes::{Checked, ChosenHost, Forest, Selection, find_host};
use stead_model::diagnostic::Place;
use stead_model::machine::{Boot, Owner};
use stead_model::site::address::NodeAddress;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::ManifestNode;
use stead_model::site::{Manifest, Site};
use stead_model::token::LiveRing;
use stead_model::{Diagnostic, Diagnostics, ErrorClass, NodeName};
use stead_runner::clock;
use stead_runner::machine::{MachineDriver, Need};

use super::DriverKey;
use super::make::boot_of;
use super::reach::expand_home;
use crate::command::program;
use crate::facts;
use crate::machine::qemu::open_kvm;
use crate::machine::{SYSTEM_PATH, oci};

/// Diagnostic code: something that nodes need is missing.
const CODE: &str = "node/preflight";
/// Where the kernel has a directory for every ZFS pool.
const POOLS: &str = "/proc/spl/kstat/zfs";

/// Whether everything that is missing is that somebody is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnlyReach {
    /// It is.
    Yes,
    /// There is more.
    No,
}

/// What is looked at.
#[derive(Clone, Copy)]
pub struct Preflight<'a> {
    /// The site.
    pub site: &'a Site,
    /// Where it is.
    pub site_dir: &'a Path,
    /// The manifest.
    pub manifest: &'a Manifest,
    /// Its nodes.
    pub forest: &'a Forest,
    /// What is known of them.
    pub checked: &'a Checked,
    /// Those that are meant.
    pub selection: &'a Selection,
    /// What makes machines, by host.
    pub drivers: &'a BTreeMap<String, Arc<dyn MachineDriver>>,
    /// The host of those that name none.
    pub host: &'a str,
    /// Whose machines they are.
    pub scope: &'a str,
    /// The environment: `HOME`.
    pub environment: &'a BTreeMap<String, String>,
}

impl Preflight<'_> {
    /// Returns everything that is missing. Changes nothing.
    pub fn findings(&self) -> Diagnostics {
        let mut found = Diagnostics::default();
        self.look_at_hosts(&mut found);
        self.look_at_descriptions(&mut found);
        self.look_at_images(&mut found);
        self.look_at_keys(&mut found);
        self.look_at_addresses(&mut found);
        found
    }

    /// Returns what those who make the machines say is missing, and whether that is only that they are not reached.
    /// Changes nothing.
    pub async fn ask_hosts(&self) -> (Diagnostics, OnlyReach) {
        let mut found = Diagnostics::default();
        let mut only = OnlyReach::Yes;
        for (host, driver) in self.drivers {
            let boots = self.boots_on(host, &**driver);
            for error in driver.missing(&boots, &self.numbers_on(host)).await {
                if error.class() != ErrorClass::Unreachable {
                    only = OnlyReach::No;
                }
                found.push(Diagnostic::error(CODE, Place::Named(format!("host {host}")), error.to_string()));
            }
        }
        (found, only)
    }

    /// Returns those who make the machines and are not reached. Changes nothing.
    pub async fn unreached(&self) -> Diagnostics {
        let mut found = Diagnostics::default();
        for (host, driver) in self.drivers {
            let missing = driver.missing(&[], &[]).await.into_iter();
            for error in missing.filter(|error| error.class() == ErrorClass::Unreachable) {
                found.push(Diagnostic::error(CODE, Place::Named(format!("host {host}")), error.to_string()));
            }
        }
        found
    }

    /// Returns what the selected roots on a host boot, each thing once.
    fn boots_on(&self, host: &str, driver: &dyn MachineDriver) -> Vec<Boot> {
        let mut boots: Vec<Boot> = Vec::new();
        for (_, written) in self.roots_on(host) {
            let boot = boot_of(self.site, written, &driver.capabilities().kinds);
            boots.extend(boot.filter(|boot| !boots.contains(boot)));
        }
        boots
    }

    /// Returns the numbers that selected roots on a host are to have.
    fn numbers_on(&self, host: &str) -> Vec<(Owner, u32)> {
        let number = |(name, written): (&NodeName, &ManifestNode)| {
            let owner = Owner::new(self.scope, name.as_str()).ok()?;
            Some((owner, written.vmid.as_ref()?.value))
        };
        self.roots_on(host).filter_map(number).collect()
    }

    /// Returns the selected roots on a host, with what is written of them.
    fn roots_on(&self, host: &str) -> impl Iterator<Item = (&NodeName, &ManifestNode)> {
        let roots =
            self.selected().map(|index| &self.forest.nodes[index]).filter(|node| node.parent.is_none());
        let written = roots.map(|node| (&node.name, &self.manifest.nodes[node.written]));
        written.filter(move |(_, written)| {
            written.host.as_ref().map_or(self.host, |host| host.value.as_str()) == host
        })
    }

    fn selected(&self) -> impl Iterator<Item = usize> {
        self.forest.order().iter().copied().filter(|index| self.selection.selected[*index])
    }

    fn look_at_hosts(&self, found: &mut Diagnostics) {
        for (host, driver) in self.drivers {
            let missing = |what: String| Diagnostic::error(CODE, Place::Named(format!("host {host}")), what);
            for need in driver.capabilities().needs {
                match need {
                    Need::Program(program) if !has_program(&program) => {
                        let help = format!("install it where the system has its programs ({SYSTEM_PATH})");
                        found.push(missing(format!("the program `{program}` is not installed")).help(help));
                    }
                    Need::AnyProgram(programs) if !programs.iter().any(|program| has_program(program)) => {
                        let help = "install one of them, or name another driver";
                        found.push(
                            missing(format!("none of {} is installed", programs.join(", "))).help(help),
                        );
                    }
                    Need::Root if !rustix::process::geteuid().is_root() => {
                        let help =
                            "run stead as root, or name a host whose driver needs none, as `-H local` does";
                        found.push(missing("only root can make machines here".to_owned()).help(help));
                    }
                    Need::Namespaces if rustix::process::geteuid().is_root() => {
                        if let Err(why) = oci::try_namespaces() {
                            found.push(missing(why));
                        }
                    }
                    Need::UserNamespaces => {
                        let lacks = std::env::current_exe().map(|program| oci::lacks(&program));
                        for lack in lacks.unwrap_or_default() {
                            let help = format!("{}; or run stead as root", lack.fix);
                            found.push(missing(lack.what).help(help));
                        }
                    }
                    Need::Kvm(device) => {
                        if let Err(why) = open_kvm(&device) {
                            found.push(missing(format!("the processor cannot run guests: {why}")));
                        }
                    }
                    Need::Program(_) | Need::AnyProgram(_) | Need::Root | Need::Namespaces => {}
                }
            }
        }
    }

    /// What a host is said to have is there, where it is this machine that makes the nodes.
    fn look_at_descriptions(&self, found: &mut Diagnostics) {
        for name in self.drivers.keys() {
            let Ok(ChosenHost { host, .. }) = find_host(self.site, name) else { continue };
            let has = match host.driver() {
                DriverKind::Qemu | DriverKind::CloudHypervisor => facts::interfaces(),
                // It makes its bridge itself.
                DriverKind::Oci => Vec::new(),
                DriverKind::Sandbox | DriverKind::Proxmox | DriverKind::None => continue,
            };
            let mut miss = |what: String| {
                let place = Place::Named(format!("host {name}"));
                let help = "make it, or take it out of the host's file";
                found.push(Diagnostic::error(CODE, place, what).help(help));
            };
            let is_missing = |name: &&str| !has.is_empty() && has.iter().all(|own| own.name != *name);
            for wanted in host.interfaces().filter(is_missing) {
                miss(format!("this machine has no interface `{wanted}`, which the host is said to have"));
            }
            for wanted in host.zfs_pools().filter(|pool| !Path::new(POOLS).join(pool).is_dir()) {
                miss(format!("this machine has no ZFS pool `{wanted}`, which the host is said to have"));
            }
        }
    }

    /// What machines boot is there: each thing that is not is named once.
    fn look_at_images(&self, found: &mut Diagnostics) {
        let mut told = BTreeSet::new();
        for index in self.selected().filter(|index| self.forest.nodes[*index].parent.is_none()) {
            let written = &self.manifest.nodes[self.forest.nodes[index].written];
            let host = written.host.as_ref().map_or(self.host, |host| host.value.as_str());
            let Some(driver) = self.drivers.get(host) else { continue };
            let boot = boot_of(self.site, written, &driver.capabilities().kinds);
            if let Err(error) = driver.check_boot(boot.as_ref()) {
                let message = error.to_string();
                if told.insert((host.to_owned(), message.clone())) {
                    found.push(Diagnostic::error(CODE, Place::Named(format!("host {host}")), message));
                }
            }
        }
    }

    fn look_at_keys(&self, found: &mut Diagnostics) {
        let fetches = |index: &usize| {
            let written = &self.manifest.nodes[self.forest.nodes[*index].written];
            written.spec.is_some() && self.checked.nodes[*index].modes.agent().is_some()
        };
        if let Some(first) = self.selected().find(fetches) {
            let now = clock::now().as_micros().div_euclid(1_000_000);
            let minting = LiveRing::of(self.site, now).and_then(|ring| ring.minting().map(drop));
            if let Err(error) = minting {
                let name = &self.forest.nodes[first].name;
                let message = format!("{name} needs a token: {error}");
                let place = Place::Named("secrets.yaml".to_owned());
                let help = "`stead token rotate` makes a key, or set `auth.signing_key` to 64 hex digits";
                found.push(Diagnostic::error(CODE, place, message).help(help));
            }
        }
        if let Some(file) = &self.site.settings.value.defaults.ssh_key_file
            && let file = self.site_dir.join(expand_home(file, self.environment))
            && let Err(error) = DriverKey::ensure(Some(&file), self.site_dir)
        {
            let place = Place::Named("site.yaml".to_owned());
            found.push(Diagnostic::error(CODE, place, error.to_string()).path("defaults.ssh_key_file"));
        }
    }

    /// A machine with a fixed address has to be told its way out.
    fn look_at_addresses(&self, found: &mut Diagnostics) {
        let plugged = self.drivers.values().any(|driver| driver.capabilities().networks);
        let defaults = &self.site.settings.value.defaults;
        for index in self.selected().filter(|_| plugged) {
            let node = &self.forest.nodes[index];
            let written = &self.manifest.nodes[node.written];
            let preset = written.preset.as_ref().and_then(|preset| self.site.presets.get(&preset.value));
            let preset = preset.map(|entry| &entry.value);
            let address = written.ip.or_else(|| preset.and_then(|preset| preset.ip));
            if !matches!(address, Some(NodeAddress::Static(_))) {
                continue;
            }
            let missing = |what: &str| {
                let message = format!("{} has a fixed address and no {what}", node.name);
                Diagnostic::error(CODE, Place::Named("site.yaml".to_owned()), message)
            };
            if preset.and_then(|preset| preset.gateway).or(defaults.gateway).is_none() {
                found.push(missing("gateway").help("set `defaults.gateway`"));
            }
            if defaults.dns_servers.is_empty() {
                found.push(missing("name servers").help("set `defaults.dns_servers`"));
            }
        }
    }
}

/// Whether drivers find a program: whoever runs them, they look where the system has its own.
fn has_program(program: &str) -> bool {
    program::find(program, Path::new("/"), Some(OsStr::new(SYSTEM_PATH))).is_ok()
}

#[cfg(test)]
mod tests;
