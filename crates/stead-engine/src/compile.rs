//! Compiling: from what a user wrote to a checked plan.

pub mod plans;
pub mod vars;
