//! A clock that runs while this machine is suspended, for what another machine counts meanwhile: leases.

use stead_model::fleet::Millis;

/// Returns the time since this machine booted, suspends included. Nobody can set it.
pub(crate) fn now() -> Millis {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let millis = since.tv_sec.saturating_mul(1000) + since.tv_nsec / 1_000_000;
    Millis::try_from(millis).unwrap_or_default()
}
