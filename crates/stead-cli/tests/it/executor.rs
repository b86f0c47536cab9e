//! Operations on other machines: the executor, what it survives and what it leaves (reach.md, section 3).

mod bringing;
mod contract;
mod direct;
mod faults;
mod networked;
mod over_ssh;
mod protocol;
mod restarting;
mod sessions;
mod sweep;

pub(crate) use direct::stead;
