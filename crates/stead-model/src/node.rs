//! What is known of a node outside its site: what it is told, what it reports, what was observed of it.

pub mod wire;
