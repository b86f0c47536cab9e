//! Arguments of `stead bundle …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do with bundles.
#[derive(Clone, Debug, Subcommand)]
pub enum BundleCommand {
    /// Check every hash and file of a bundle; exit 4 if something is wrong
    #[command(after_long_help = VERIFY_EXAMPLES)]
    Verify(BundleVerifyArgs),
    /// Show what a bundle holds
    #[command(after_long_help = INFO_EXAMPLES)]
    Info(BundleInfoArgs),
    /// List bundles, newest first
    #[command(after_long_help = LIST_EXAMPLES)]
    List(BundleListArgs),
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  stead bundle verify last
  stead bundle verify runs/2026-11-15_06-55-12.345-k3f9q2ma --json
  stead bundle verify evidence.zip --require-signature --allowed-signers signers";

const INFO_EXAMPLES: &str = "\
Examples:
  stead bundle info last
  stead bundle info last --json | jq .run_meta.status";

const LIST_EXAMPLES: &str = "\
Examples:
  stead bundle list
  stead bundle list .stead/runs --status failed --limit 5";

/// Arguments of `stead bundle verify`.
#[derive(Clone, Debug, Args)]
pub struct BundleVerifyArgs {
    /// A bundle directory, an exported archive, a run id or `last`
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Files that are not listed are a warning, not an error
    #[arg(long)]
    pub allow_extra: bool,
    /// A bundle without signature is an error
    #[arg(long)]
    pub require_signature: bool,
    /// Keys that may have signed, as ssh-keygen's allowed signers file
    #[arg(long, value_name = "FILE")]
    pub allowed_signers: Option<PathBuf>,
}

/// Arguments of `stead bundle info`.
#[derive(Clone, Debug, Args)]
pub struct BundleInfoArgs {
    /// A bundle directory, an exported archive, a run id or `last`
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead bundle list`.
#[derive(Clone, Debug, Args)]
pub struct BundleListArgs {
    /// Where to look [default: runs, and the state directory's runs]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Only runs of this status: running, success, failed, timeout or cancelled
    #[arg(long, value_name = "STATUS", value_parser = run_status)]
    pub status: Option<stead_model::RunStatus>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

fn run_status(text: &str) -> Result<stead_model::RunStatus, String> {
    use stead_model::RunStatus;
    let words = RunStatus::ALL.iter().map(|status| status.as_str());
    RunStatus::ALL
        .iter()
        .find(|status| status.as_str() == text)
        .copied()
        .ok_or_else(|| format!("one of {}", words.collect::<Vec<_>>().join(", ")))
}
