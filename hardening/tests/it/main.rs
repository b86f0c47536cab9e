//! The corpus: every kept input is tried, with inputs made from it.

mod corpus;
