//! Sandboxes: the driver, the process behind `stead sandbox`, and plans that are pushed to one.

mod contract;
mod faulty;
mod limited;
mod login;
mod pushing;
mod sweep;
mod yard;
