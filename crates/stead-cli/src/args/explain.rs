//! Arguments of `stead explain`.

use clap::Args;

pub(super) const EXAMPLES: &str = "\
Examples:
  stead explain plan/syntax                what a message with error[plan/syntax] means
  stead explain 5                          what exit code 5 means
  stead explain crash-loop                 what `stead fleet status` says
  stead explain                            every code

Exit codes:
  0 it is explained   2 there is no such code";

/// Arguments of `stead explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// A code of a message, an exit code, or a reason of a status; the words after its slash will do [default: all]
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "markdown")]
    pub json: bool,
    /// Print a page in Markdown
    #[arg(long)]
    pub markdown: bool,
}
