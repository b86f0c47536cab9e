//! Arguments of `stead doctor`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(super) const EXAMPLES: &str = "\
Examples:
  stead doctor                             this machine
  stead doctor --driver qemu               and whether it has what qemu needs
  stead doctor --target role:web           and whether these hosts can be used

Exit codes:
  0 nothing failed   1 a check failed";

/// Arguments of `stead doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Also check what this machine driver needs
    #[arg(long, value_name = "DRIVER")]
    pub driver: Option<Driver>,
    /// Also connect to these hosts and check them: a target expression
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Inventory file; may be repeated [default: as `stead plan run`]
    #[arg(short = 'i', long = "inventory", value_name = "FILE", requires = "target")]
    pub inventory: Vec<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The machine drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Driver {
    /// Supervised processes with a root of their own.
    Sandbox,
    /// Containers by runc, crun or youki.
    Oci,
    /// Virtual machines by QEMU.
    Qemu,
    /// Virtual machines by Cloud Hypervisor.
    CloudHypervisor,
    /// A Proxmox cluster.
    Proxmox,
}
