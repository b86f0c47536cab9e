//! Machine drivers: what makes machines, starts, stops, finds and removes them.
//!
//! ```text
//!   sandbox   oci   qemu   cloud_hypervisor      what is special to each       proxmox: machines that are elsewhere,
//!       └──────┴──┬───┴───────────┘                                                   kept by an API
//!               local                            making, removing, waiting, consoles: what all of them do alike
//!                 │
//!     home   process   tree   console            ROOT/UUID/ with its lock; processes that are known again
//! ```

mod console;
pub mod fence;
mod home;
mod local;
mod process;
mod removal;
mod tree;
mod vm;

pub mod cloud_hypervisor;
pub mod oci;
pub mod proxmox;
pub mod qemu;
pub mod sandbox;

/// A resolved spec that a container becomes at its first boot; guests of virtual machines find it there too.
pub const FIRST_BOOT: &str = "/etc/stead/first-boot.yaml";

pub use console::keep as keep_console;
pub(crate) use local::SYSTEM_PATH;
pub use local::StepWatch;
pub(crate) use process::ProcessMark;
pub use vm::BootSettings;
pub(crate) use vm::network::{USER_GATEWAY, bridge_address};
pub use vm::volume;
