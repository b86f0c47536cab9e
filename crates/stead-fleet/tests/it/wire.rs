//! Calls over real TLS on loopback, to a small master.

mod calls;
mod hostile;
mod members;
mod skew;
mod small;
