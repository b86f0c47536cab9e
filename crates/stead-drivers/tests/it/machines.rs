//! Drivers of virtual machines, against what runs them.

mod cloud_hypervisor;
mod proxmox;
mod qemu;
mod taps;
mod yard;
