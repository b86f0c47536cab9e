//! Stead's drivers: the local transport and the operations.
