//! From what a site says of a host to what makes machines there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::Value;
use stead_model::site::Host;
use stead_model::site::host::{DriverKind, Fault, FaultPhase, Names};
use stead_runner::machine::MachineDriver;

use crate::machine::sandbox::{self, SandboxDriver, SandboxSettings};

/// Why a host makes no machines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It says so itself.
    #[error("host `{0}` makes no machines: its driver is `none`")]
    MakesNone(String),
    /// This program has no such driver.
    #[error("host `{host}` has the driver `{driver}`, which this program does not have")]
    NotHere {
        /// The host.
        host: String,
        /// Its driver.
        driver: &'static str,
    },
}

/// Returns what makes machines on the host `name`. Touches nothing.
///
/// `parent` is the directory of the sandbox this process runs in, if it does: what is made ends with it.
///
/// # Errors
/// If nothing does.
pub fn machine_driver(
    name: &str,
    host: &Host,
    state_dir: &Path,
    program: &Path,
    parent: Option<PathBuf>,
) -> Result<Arc<dyn MachineDriver>, HostError> {
    let kind = host.driver();
    match kind {
        DriverKind::Sandbox => {
            Ok(Arc::new(SandboxDriver::new(sandbox_settings(host, state_dir, program, parent))))
        }
        DriverKind::None => Err(HostError::MakesNone(name.to_owned())),
        DriverKind::Oci | DriverKind::Qemu | DriverKind::CloudHypervisor | DriverKind::Proxmox => {
            Err(HostError::NotHere { host: name.to_owned(), driver: kind.word() })
        }
    }
}

fn sandbox_settings(
    host: &Host,
    state_dir: &Path,
    program: &Path,
    parent: Option<PathBuf>,
) -> SandboxSettings {
    let root_dir = host.driver_settings.get("root_dir").and_then(Value::as_str);
    let root_dir = root_dir.map_or_else(|| state_dir.join("machines"), |given| state_dir.join(given));
    SandboxSettings {
        packages: names(host.packages.as_ref()),
        services: names(host.services.as_ref()),
        boot_delay: Duration::from_millis(host.boot_delay_ms),
        faults: host.faults.iter().map(fault).collect(),
        parent,
        ..SandboxSettings::new(root_dir, program)
    }
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
