//! The runner end to end, with functional tasks: no driver is needed to see order, failure and resume.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, helpers included")]

mod functions;
mod locking;
mod logs;
mod secrecy;
