//! Steps that ran: the lines they speak, what is recorded of them and what is reported.
//!
//! The catalogue that names them is [`crate::catalogue`]; this is what a run adds.

pub mod lines;
mod meta;
mod report;

pub use meta::{SecretMarks, StepsMeta};
pub use report::{
    CheckCounts, ConfigRow, InputsChange, LeftOutCause, LeftOutRow, NeedsChoice, SelectionRow, StepOutcome,
    StepRow, StepsReport,
};
