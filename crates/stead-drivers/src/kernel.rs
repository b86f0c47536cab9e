//! What the kernel is told: `sysctl.value`, `kernel.module`.

mod module;
pub(crate) mod modules;
pub(crate) mod parameters;
mod sysctl;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(module::Module));
    registry.add_operation(Configured(sysctl::Sysctl));
}
