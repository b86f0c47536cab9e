//! What each driver can make: types of machines, machines in machines, and what they boot.

use stead_model::site::Host;
use stead_model::site::host::DriverKind;
use stead_model::site::manifest::{ManifestNode, NodeType};

/// Returns the types of machines a driver makes.
pub const fn types(driver: DriverKind) -> &'static [NodeType] {
    match driver {
        DriverKind::Sandbox | DriverKind::Proxmox => &[NodeType::Vm, NodeType::Ct, NodeType::Pve],
        DriverKind::Oci => &[NodeType::Ct, NodeType::Pve],
        DriverKind::Qemu | DriverKind::CloudHypervisor => &[NodeType::Vm, NodeType::Pve],
        DriverKind::None => &[],
    }
}

/// Whether a machine of this type that `driver` made can make machines itself.
pub fn hosts(driver: DriverKind, kind: NodeType) -> bool {
    match driver {
        DriverKind::Sandbox | DriverKind::Oci | DriverKind::Qemu | DriverKind::CloudHypervisor => true,
        DriverKind::Proxmox => kind != NodeType::Ct,
        DriverKind::None => false,
    }
}

/// Returns the key that has to say what a node boots, if nothing does and the driver boots something.
pub fn missing_image(
    driver: DriverKind,
    host: Option<&Host>,
    kind: NodeType,
    node: &ManifestNode,
    default_image: Option<&str>,
) -> Option<&'static str> {
    let image = node.image.is_some() || default_image.is_some();
    let boots_kernel = host.is_some_and(|host| host.driver_settings.contains_key("kernel"));
    match (driver, kind) {
        (DriverKind::Sandbox | DriverKind::None, _) => None,
        (DriverKind::Oci, _) => (node.template.is_none() && node.image.is_none()).then_some("template"),
        (DriverKind::Qemu | DriverKind::CloudHypervisor, _) => (!image && !boots_kernel).then_some("image"),
        (DriverKind::Proxmox, NodeType::Ct) => node.template.is_none().then_some("template"),
        (DriverKind::Proxmox, NodeType::Vm | NodeType::Pve) => (!image).then_some("image"),
    }
}
