//! Roles under their supervisors, on this machine and on another one: what every agent promises, and what happens when
//! somebody in the chain is killed.

mod contract;
mod killed;
mod local;
mod remote;
mod stage;
