//! The stead command.
