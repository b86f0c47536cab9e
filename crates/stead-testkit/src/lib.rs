//! What Stead's tests share. Never shipped: only ever a development dependency.

pub mod apt_repository;
pub mod browser;
pub mod captures;
pub mod cloud_hypervisor;
pub mod cloud_init;
pub mod container;
pub mod context;
pub mod etcd;
pub mod file_cases;
pub mod flow;
pub mod machine_contract;
pub mod micro_node;
pub mod micro_vm;
pub mod operation_contract;
pub mod proxmox;
pub mod pty;
pub mod sshd;
pub mod stand_in;
pub mod system_cases;
pub mod transport_contract;
pub mod tree;
