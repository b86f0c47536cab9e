//! The Stead library: build and run plans from Rust.
