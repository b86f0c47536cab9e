//! How fast Stead is: one table, every figure against a limit or a peer measured in the same run.
//!
//! Each sample is taken in a fresh child process of this program (see [`sample`]), so that one case leaves no warm heap,
//! threads or memory peak to the next. The parent takes medians and prints.

mod engine;
mod fleet;
mod growth;
mod interrupt;
mod machines;
mod memory;
mod nodes;
mod reach;
mod runner;
mod runs;
mod sample;
mod server;
mod shape;
mod shell;
mod site;
mod steps;
mod table;
mod targets;
mod terraform;
mod walker;

use std::process::ExitCode;

use sample::Case;
use table::Table;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// A first impression.
    Quick,
    /// Everything.
    Full,
}

impl Effort {
    /// Returns how many samples a median is of.
    fn samples(self) -> usize {
        match self {
            Self::Quick => 3,
            Self::Full => 5,
        }
    }
}

/// Measures a part and adds its lines.
type Measure = fn(Effort, &mut Table);

/// The parts of the table by the name `--only` takes.
const PARTS: [(&str, Measure); 14] = [
    ("engine", engine::measure),
    ("runner", runner::measure),
    ("memory", memory::measure),
    ("shell", shell::measure),
    ("growth", growth::measure),
    ("targets", targets::measure),
    ("terraform", terraform::measure),
    ("steps", steps::measure),
    ("reach", reach::measure),
    ("runs", runs::measure),
    ("server", server::measure),
    ("machines", machines::measure),
    ("nodes", nodes::measure),
    ("fleet", fleet::measure),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(case) = Case::parse(&words) {
        case.take().print();
        return ExitCode::SUCCESS;
    }
    if fleet::wire::is_child(&words) {
        return ExitCode::SUCCESS;
    }
    let mut effort = Effort::Full;
    let mut only = None;
    let mut rest = words.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        match word {
            "--quick" => effort = Effort::Quick,
            "--only" => only = rest.next(),
            _ => return usage(),
        }
    }
    let chosen: Vec<_> = PARTS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    if chosen.is_empty() {
        return usage();
    }
    interrupt::listen();
    let mut table = Table::begin(effort);
    for (_, measure) in chosen {
        measure(effort, &mut table);
    }
    table.end()
}

#[expect(clippy::print_stderr, reason = "a program's usage")]
fn usage() -> ExitCode {
    let parts: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    eprintln!("usage: bench/run [--quick] [--only {}]", parts.join("|"));
    ExitCode::from(2)
}
