//! Hashes of what is wanted: what a replacement depends on, what a group is, what a commit means for it.

use stead_model::GroupName;
use stead_model::fleet::{CommitId, FleetFile, VmSpec};
use stead_model::plan::Digest;

#[cfg(test)]
mod tests;

/// Returns the hash of what a replacement depends on: resources, runtime and volumes, nothing else.
pub fn vm_hash(vm: &VmSpec) -> Digest {
    Digest::of(format!("vm/v1\n{}", vm.to_canonical_machine()).as_bytes())
}

/// Returns the hash of a group's VMs, whatever order they are in.
pub fn specs_hash<'a>(vms: impl IntoIterator<Item = &'a VmSpec>) -> Digest {
    let mut vms: Vec<&VmSpec> = vms.into_iter().collect();
    vms.sort_by(|a, b| a.id.cmp(&b.id));
    let mut text = "specs/v1\n[".to_owned();
    for (index, vm) in vms.into_iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&vm.to_canonical());
    }
    text.push(']');
    Digest::of(text.as_bytes())
}

/// Returns the hash of the group `fleet`.
pub fn policy_hash(fleet: &FleetFile) -> Digest {
    Digest::of(format!("policy/v1\n{}", fleet.to_canonical()).as_bytes())
}

/// Returns the hash of what `commit` means for `group`.
pub fn intent_hash(commit: &CommitId, group: &GroupName, specs_hash: &Digest) -> Digest {
    Digest::of(format!("intent/v1\n{commit}\n{group}\n{specs_hash}").as_bytes())
}
