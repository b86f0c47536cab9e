//! Arguments of `stead intent`.

use std::time::Duration;

use clap::Args;

use super::value::{self, Sink};

pub(super) const EXAMPLES: &str = "\
Examples:
  stead intent list                                     intents, their parameters and what is set
  stead intent platform-certs CERT_ENV=prod --dry-run   the diff, and the steps that would follow
  stead intent platform-certs CERT_ENV=prod --commit    edit, commit, run the steps";

/// Arguments of `stead intent`.
#[derive(Clone, Debug, Args)]
pub struct IntentArgs {
    /// The intent, or `list`
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its parameters
    #[arg(value_name = "KEY=VALUE")]
    pub params: Vec<String>,
    /// Show the diff and the steps that would follow; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Commit exactly the edited files; nothing is pushed
    #[arg(long)]
    pub commit: bool,
    /// Wait so long for a target another run holds [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub wait_lock: Option<Duration>,
    /// Print one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write the event log here as it happens; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = value::sink, help_heading = "Output")]
    pub events: Option<Sink>,
}

impl IntentArgs {
    /// What is typed in place of a name to see all intents.
    pub const LIST: &'static str = "list";
}
