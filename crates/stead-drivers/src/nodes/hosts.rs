//! From what a site says of a host to what makes machines there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::Value;
use stead_model::site::Host;
use stead_model::site::address::Cidr;
use stead_model::site::host::{DriverKind, Fault, FaultPhase, Names};
use stead_model::site::secrets::Secrets;
use stead_runner::machine::MachineDriver;

use crate::machine::cloud_hypervisor::{CloudHypervisorDriver, CloudHypervisorSettings};
use crate::machine::oci::{OciDriver, OciSettings, RuntimeChoice, StorageChoice, is_rootless};
use crate::machine::proxmox::{BadSetting, Method, Pace, ProxmoxDriver, ProxmoxSettings};
use crate::machine::qemu::{Accel, Emulated, QemuDriver, QemuSettings};
use crate::machine::sandbox::{self, SandboxDriver, SandboxSettings};
use crate::machine::{BootSettings, USER_GATEWAY, bridge_address};

#[cfg(test)]
mod tests;

/// Where images and templates lie below the state directory, unless the host says otherwise.
pub(super) const IMAGES: &str = "images";
/// The bridge of machines whose host names none.
const BRIDGE: &str = "vmbr0";

/// The numbers that machines of a Proxmox cluster may have.
const FIRST_VMID: u32 = 100;
const LAST_VMID: u32 = 999_999_999;

/// Why a host makes no machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It says so itself.
    #[error("host `{0}` makes no machines: its driver is `none`")]
    MakesNone(String),
    /// What it says cannot be.
    #[error("host `{host}`: `{key}`: {why}")]
    Invalid {
        /// The host.
        host: String,
        /// The field.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

/// Returns what makes machines on the host `name`. Touches nothing.
///
/// `secrets` are those of the site: the tokens of APIs are there.
/// `parent` is the directory of the sandbox this process runs in, if it does: what is made ends with it.
///
/// # Errors
/// If nothing does.
pub fn machine_driver(
    name: &str,
    host: &Host,
    secrets: &Secrets,
    state_dir: &Path,
    program: &Path,
    parent: Option<PathBuf>,
) -> Result<Arc<dyn MachineDriver>, HostError> {
    match host.driver() {
        DriverKind::Sandbox => {
            Ok(Arc::new(SandboxDriver::new(sandbox_settings(host, state_dir, program, parent))))
        }
        DriverKind::Oci => Ok(Arc::new(OciDriver::new(oci_settings(name, host, state_dir, program)?))),
        DriverKind::Qemu => Ok(Arc::new(QemuDriver::new(qemu_settings(host, state_dir, program)))),
        DriverKind::CloudHypervisor => {
            let settings = cloud_hypervisor_settings(host, state_dir, program);
            Ok(Arc::new(CloudHypervisorDriver::new(settings)))
        }
        DriverKind::None => Err(HostError::MakesNone(name.to_owned())),
        DriverKind::Proxmox => {
            let settings = proxmox_settings(name, host, secrets, state_dir)?;
            let driver = ProxmoxDriver::new(settings);
            let invalid =
                |bad: BadSetting| HostError::Invalid { host: name.to_owned(), key: bad.key, why: bad.why };
            Ok(Arc::new(driver.map_err(invalid)?))
        }
    }
}

/// Returns where a host keeps the machines it makes, as far as this machine has them.
pub fn machines_directory(host: &Host, state_dir: &Path) -> PathBuf {
    let given = host.driver_settings.get("root_dir").and_then(Value::as_str);
    given.map_or_else(|| state_dir.join("machines"), |given| state_dir.join(given))
}

fn sandbox_settings(
    host: &Host,
    state_dir: &Path,
    program: &Path,
    parent: Option<PathBuf>,
) -> SandboxSettings {
    SandboxSettings {
        keeps_root_dir: host.driver_settings.contains_key("root_dir"),
        packages: names(host.packages.as_ref()),
        services: names(host.services.as_ref()),
        boot_delay: Duration::from_millis(host.boot_delay_ms),
        faults: host.faults.iter().map(fault).collect(),
        parent,
        ..SandboxSettings::new(machines_directory(host, state_dir), program)
    }
}

fn oci_settings(name: &str, host: &Host, state_dir: &Path, program: &Path) -> Result<OciSettings, HostError> {
    let mut settings = OciSettings::new(machines(state_dir), program);
    settings.image_dir = image_dir(host, state_dir);
    settings.hidden = vec![absolute(state_dir)];
    settings.runtime = text(host, "runtime").map(RuntimeChoice::parse).unwrap_or_default();
    settings.storage = text(host, "storage").and_then(StorageChoice::parse).unwrap_or_default();
    if let Some(bridge) = text(host, "bridge") {
        settings.bridge = bridge.to_owned();
    }
    if let Some(subnet) = subnet(host) {
        if !subnet.address.is_ipv4() || subnet.prefix > 30 {
            let why = format!("{subnet} is no IPv4 network with room for machines");
            return Err(HostError::Invalid { host: name.to_owned(), key: "subnet", why });
        }
        settings.subnet = subnet;
    }
    Ok(settings)
}

/// Returns the one name of a place, whoever names it.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// Returns where the network that machines of this host are plugged into has this machine, as far as the host says it.
pub fn network_side(host: &Host) -> Option<IpAddr> {
    match host.driver() {
        DriverKind::Qemu if !has_taps(host) => Some(USER_GATEWAY.into()),
        DriverKind::Oci if is_rootless() => Some(USER_GATEWAY.into()),
        DriverKind::Qemu | DriverKind::CloudHypervisor => subnet(host).and_then(bridge_address),
        DriverKind::Sandbox | DriverKind::Oci | DriverKind::Proxmox | DriverKind::None => None,
    }
}

fn has_taps(host: &Host) -> bool {
    text(host, "network") == Some("tap")
}

fn qemu_settings(host: &Host, state_dir: &Path, program: &Path) -> QemuSettings {
    let defaults = QemuSettings::new(machines(state_dir), program);
    QemuSettings {
        binary: text(host, "binary").map_or(defaults.binary, PathBuf::from),
        machine: text(host, "machine").and_then(Emulated::parse).unwrap_or_default(),
        accel: text(host, "accel").and_then(Accel::parse).unwrap_or_default(),
        boot: boot_settings(host, state_dir),
        bridge: has_taps(host).then(|| bridge(host)),
        subnet: subnet(host).filter(|_| has_taps(host)),
        ..defaults
    }
}

fn cloud_hypervisor_settings(host: &Host, state_dir: &Path, program: &Path) -> CloudHypervisorSettings {
    let defaults = CloudHypervisorSettings::new(machines(state_dir), program);
    CloudHypervisorSettings {
        binary: text(host, "binary").map_or(defaults.binary, PathBuf::from),
        boot: boot_settings(host, state_dir),
        firmware: place(host, "firmware", state_dir).map(|path| path.display().to_string()),
        bridge: Some(bridge(host)),
        subnet: subnet(host),
        ..defaults
    }
}

fn proxmox_settings(
    name: &str,
    host: &Host,
    secrets: &Secrets,
    state_dir: &Path,
) -> Result<ProxmoxSettings, HostError> {
    let invalid = |key: &'static str, why: &str| {
        Err(HostError::Invalid { host: name.to_owned(), key, why: why.to_owned() })
    };
    let endpoint = match (&host.api_endpoint, &host.address) {
        (Some(endpoint), _) => endpoint.clone(),
        (None, Some(address)) if address.contains(':') => format!("https://[{address}]"),
        (None, Some(address)) => format!("https://{address}"),
        (None, None) => return invalid("api_endpoint", "nothing says where the API is: `https://HOST:8006`"),
    };
    let token_name = host.api_token.as_ref().map_or(name, |token| token.value.as_str());
    let Some(token) = secrets.api_tokens.get(token_name) else {
        return invalid("api_token", &format!("`api_tokens` of secrets.yaml has no `{token_name}`"));
    };
    let Some(datastore) = host.datastore.clone() else {
        return invalid("datastore", "nothing says where disks are kept");
    };
    let setting = |key: &str| host.driver_settings.get(key);
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    let images = setting("images").and_then(Value::as_object).into_iter().flatten();
    let range: Vec<u32> =
        setting("vmid_range").and_then(Value::as_array).into_iter().flatten().filter_map(number).collect();
    Ok(ProxmoxSettings {
        endpoint,
        fingerprint: text(host, "fingerprint").map(str::to_owned),
        token_name: token_name.to_owned(),
        token: token.clone(),
        node: host.node.clone().unwrap_or_else(|| name.to_owned()),
        datastore,
        iso_storage: text(host, "iso_storage").unwrap_or("local").to_owned(),
        method: text(host, "method").and_then(Method::parse).unwrap_or_default(),
        images: images
            .filter_map(|(image, vmid)| Some((image.clone(), number(vmid)?)))
            .collect::<BTreeMap<_, _>>(),
        vmids: match range.as_slice() {
            [low, high] => *low..=*high,
            _ => FIRST_VMID..=LAST_VMID,
        },
        bridge: bridge(host),
        lock_dir: state_dir.join("locks"),
        pace: Pace { busy: patience(host), ..Pace::default() },
    })
}

/// Returns how long one call to an API may wait for others: as long as what makes or removes a machine may take.
fn patience(host: &Host) -> Duration {
    let limits = host.timeouts();
    Duration::from_secs(limits.create.max(limits.destroy).into())
}

fn boot_settings(host: &Host, state_dir: &Path) -> BootSettings {
    let file = |key: &str| place(host, key, state_dir).map(|path| path.display().to_string());
    BootSettings {
        image_dir: Some(image_dir(host, state_dir)),
        kernel: file("kernel"),
        initrd: file("initrd"),
        cmdline: text(host, "cmdline").map(str::to_owned),
    }
}

fn machines(state_dir: &Path) -> PathBuf {
    state_dir.join("machines")
}

fn text<'a>(host: &'a Host, key: &str) -> Option<&'a str> {
    host.driver_settings.get(key).and_then(Value::as_str)
}

/// Returns a path that a host names; a relative one is below the state directory.
fn place(host: &Host, key: &str, state_dir: &Path) -> Option<PathBuf> {
    let given = state_dir.join(text(host, key)?);
    Some(std::path::absolute(&given).unwrap_or(given))
}

/// Returns where a host has its images and templates.
pub(super) fn image_dir(host: &Host, state_dir: &Path) -> PathBuf {
    place(host, "image_dir", state_dir).unwrap_or_else(|| state_dir.join(IMAGES))
}

fn bridge(host: &Host) -> String {
    text(host, "bridge").unwrap_or(BRIDGE).to_owned()
}

fn subnet(host: &Host) -> Option<Cidr> {
    Cidr::parse(text(host, "subnet")?).ok()
}

fn names(written: Option<&Names>) -> sandbox::Names {
    match written {
        None | Some(Names::Any) => sandbox::Names::Any,
        Some(Names::Only(names)) => sandbox::Names::Only(names.iter().cloned().collect()),
    }
}

fn fault(written: &Fault) -> sandbox::Fault {
    sandbox::Fault {
        node: written.node.clone(),
        phase: match written.phase {
            FaultPhase::Create => sandbox::Phase::Create,
            FaultPhase::Boot => sandbox::Phase::Boot,
            FaultPhase::Address => sandbox::Phase::Address,
            FaultPhase::Ssh => sandbox::Phase::Ssh,
            FaultPhase::Config => sandbox::Phase::Config,
            FaultPhase::Report => sandbox::Phase::Report,
            FaultPhase::Destroy => sandbox::Phase::Destroy,
        },
        times: written.times,
        error: written.error.clone(),
        delay_ms: written.delay_ms,
        crash: written.crash,
    }
}
