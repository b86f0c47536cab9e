//! What runs by itself: `cron.entry`.

mod cron_entry;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(cron_entry::CronEntry));
}
