//! Machine drivers: what makes machines, starts, stops, finds and removes them.

pub mod sandbox;
