//! What a machine is given beside its size, as far as its driver can give it.

use stead_model::machine::{MachineKind, MachineSpec};
use stead_model::report::Warning;
use stead_model::site::host::DriverKind;
use stead_runner::machine::MachineDriver;

use super::seed::fixed_address;
use super::{NodeView, NodesSurroundings};

impl NodesSurroundings {
    /// Plugs the machine of `spec` into its network if the driver can; what the driver cannot give is said.
    pub(super) async fn fit_out(
        &self,
        node: &NodeView<'_>,
        host: &str,
        driver: &dyn MachineDriver,
        spec: &mut MachineSpec,
    ) {
        let preset = self.preset_of(node);
        let able = driver.capabilities();
        let mut unapplied: Vec<&str> = Vec::new();
        if able.networks {
            spec.nics.extend(self.card_of(node));
            // A virtual machine on a bridge may be given an address of the host's subnet, which no network told it. One that
            // is told its address, as containers are unless theirs is fixed, has who it was told to ask.
            if fixed_address(node.written, preset).is_some() || spec.kind == MachineKind::Vm {
                spec.name_servers.clone_from(&self.parts.site.settings.value.defaults.dns_servers);
            }
        } else {
            unapplied.extend(fixed_address(node.written, preset).is_some().then_some("ip"));
            unapplied.extend(preset.is_some_and(|preset| preset.bridge.is_some()).then_some("bridge"));
            unapplied.extend(preset.is_some_and(|preset| preset.gateway.is_some()).then_some("gateway"));
        }
        // What is in a container is nobody's to say before it starts.
        if !able.seed || spec.kind == MachineKind::Ct {
            unapplied.extend(preset.is_some_and(|preset| !preset.packages.is_empty()).then_some("packages"));
        }
        // A container has the room of this machine's disk. A sandbox has no size at all, and nobody thinks it has.
        if spec.disk_gb.is_some() && node.known.driver == Some(DriverKind::Oci) {
            unapplied.push("disk");
        }
        if node.written.vmid.is_some() && node.known.driver != Some(DriverKind::Proxmox) {
            unapplied.push("vmid");
        }
        if !unapplied.is_empty() {
            let (name, keys) = (&node.node.name, unapplied.join(", "));
            let text = format!("{name}: what makes machines on {host} cannot apply {keys}");
            self.parts.announcer.warn(Warning::new("node/unapplied-key", text)).await;
        }
    }
}
