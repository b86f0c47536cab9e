//! The runner end to end, with functional tasks: no driver is needed to see order, failure and resume.

mod functions;
mod locking;
mod secrecy;
