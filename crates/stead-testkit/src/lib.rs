//! What Stead's tests share. Never shipped: only ever a development dependency.

pub mod context;
