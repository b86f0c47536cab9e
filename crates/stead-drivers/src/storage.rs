//! What is mounted where: `mount.present`, `mount.absent`.

mod fstab;
mod mount_absent;
mod mount_options;
mod mount_present;
pub(crate) mod mount_table;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(mount_absent::MountAbsent));
    registry.add_operation(Configured(mount_present::MountPresent));
}
