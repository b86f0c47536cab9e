//! What Stead is tried with beyond its tests, and never ships.
//!
//! | module | what |
//! |---|---|
//! | [`targets`] | every reader of what others wrote, as a function that takes any bytes |
//! | [`corpus`] | inputs that are kept, and inputs made from them |
//! | [`secrets`] | looks for the secrets of tests in whatever tests write |
//! | [`soak`] | runs, kills and cuts for as long as wanted, and compares before with after |
//!
//! `ci/fuzz`, `ci/secrets` and `ci/soak` start the program; `docs/hardening.md` says when.

pub mod command;
pub mod corpus;
pub mod secrets;
pub mod soak;
pub mod targets;
