//! Arguments of `stead bundle …`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use stead_bundle::ArchiveFormat;

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
    /// Show how a run went: phases, roles, warnings, captures
    #[command(after_long_help = REPORT_EXAMPLES)]
    Report(BundleReportArgs),
    /// Make one archive of a bundle, always the same bytes
    #[command(after_long_help = EXPORT_EXAMPLES)]
    Export(BundleExportArgs),
    /// Show a run again as it went, from its journal and logs
    #[command(after_long_help = REPLAY_EXAMPLES)]
    Replay(BundleReplayArgs),
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

const REPORT_EXAMPLES: &str = "\
Examples:
  stead bundle report last
  stead bundle report last --analyze --port 45000
  stead bundle report trace.pcap --json           one capture alone
  stead bundle report last --format markdown >report.md";

const EXPORT_EXAMPLES: &str = "\
Examples:
  stead bundle export last                        to <run id>.zip, here
  stead bundle export last -o evidence.tar.zst
  stead bundle export last --attest ~/.ssh/ci     and an attestation for tools that gate on results";

const REPLAY_EXAMPLES: &str = "\
Examples:
  stead bundle replay last
  stead bundle replay last --speed 10 --from client_start
  stead bundle replay last --speed max --role server";

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

/// Arguments of `stead bundle report`.
#[derive(Clone, Debug, Args)]
pub struct BundleReportArgs {
    /// A bundle directory, an exported archive, a run id, `last`, or a pcap or pcapng file
    #[arg(value_name = "PATH")]
    pub path: String,
    /// How to show it: text, json or markdown
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: DocumentFormat,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Analyse the captures afresh; nothing is written
    #[arg(long)]
    pub analyze: bool,
    /// Also take this port for EtherNet/IP; may be repeated, implies --analyze
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// How many captures to read at a time [default: one per processor]
    #[arg(long, value_name = "N", value_parser = jobs)]
    pub jobs: Option<usize>,
}

/// Arguments of `stead bundle export`.
#[derive(Clone, Debug, Args)]
pub struct BundleExportArgs {
    /// A bundle directory, an exported archive, a run id or `last`
    #[arg(value_name = "PATH")]
    pub path: String,
    /// Where to write it [default: RUN.FORMAT, here]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// zip or tar.zst [default: as the name of FILE ends, else zip]
    #[arg(long, value_name = "FORMAT", value_parser = archive_format)]
    pub format: Option<ArchiveFormat>,
    /// Write FILE.intoto.json too: what passed, as an in-toto statement signed with this SSH key
    #[arg(long, value_name = "KEY")]
    pub attest: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead bundle replay`.
#[derive(Clone, Debug, Args)]
pub struct BundleReplayArgs {
    /// A bundle directory, an exported archive, a run id or `last`
    #[arg(value_name = "PATH")]
    pub path: String,
    /// How many times faster than it was, or `max`
    #[arg(long, value_name = "N", default_value = "1", value_parser = speed)]
    pub speed: Speed,
    /// Begin where this phase or task began
    #[arg(long, value_name = "PHASE")]
    pub from: Option<String>,
    /// Only what this role did
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Print the events as one JSON document, at once
    #[arg(long)]
    pub json: bool,
}

/// How a document is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// For a terminal.
    #[default]
    Text,
    /// For programs.
    Json,
    /// For a page.
    #[value(alias = "md")]
    Markdown,
}

impl DocumentFormat {
    /// Returns what is wanted by this format and a flag that asks for JSON.
    pub fn or_json(self, json: bool) -> Self {
        if json { Self::Json } else { self }
    }
}

/// How fast a run is shown again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// So many times faster than it was.
    Times(f64),
    /// Without any pause.
    Max,
}

fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    let times = text.parse().ok().filter(|times: &f64| times.is_finite() && *times > 0.0);
    times.map(Speed::Times).ok_or_else(|| "a number above 0, or max".to_owned())
}

fn jobs(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|jobs| *jobs > 0).ok_or_else(|| "a whole number above 0".to_owned())
}

fn archive_format(text: &str) -> Result<ArchiveFormat, String> {
    let found = ArchiveFormat::ALL.into_iter().find(|format| format.as_str() == text);
    found.ok_or_else(|| format!("one of {}", ArchiveFormat::ALL.map(ArchiveFormat::as_str).join(", ")))
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
