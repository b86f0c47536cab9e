//! Arguments of `stead exec`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::InventoryArgs;
use super::value;

pub(super) const EXAMPLES: &str = "\
Examples:
  stead exec role:web -- systemctl is-active nginx
  stead exec web1 'db*' --json -- uname -r
  stead exec ops@10.0.0.9 -- uptime                   a host of no inventory
  stead exec _all --list                              which hosts are meant; reaches none
  stead exec -M lab -H local all -- uptime            nodes, at every level
  stead exec web1 --facts --only os.distribution
  stead exec role:web --op file.present path=/etc/motd content='be nice' --dry-run --diff
  stead exec role:web --op file.line --params '{\"path\": \"/etc/hosts\", \"line\": \"10.0.0.1 a\"}'

Exit codes:
  0 every host succeeded   1 one failed   7 the only failures are hosts that cannot be reached";

const USAGE: &str = "\
stead exec [OPTIONS] <TARGET>... -- <CMD>...
       stead exec [OPTIONS] <TARGET>... --op <NAME> [K=V]... | --facts
       stead exec [OPTIONS] [TARGET]... --list";

/// Arguments of `stead exec`.
///
/// Flags of one way to use it are refused with the others by name: `requires` alone is waived where the required flag
/// is in conflict with what was given.
#[derive(Clone, Debug, Args)]
#[command(override_usage = USAGE, group = ArgGroup::new("what").required(true).args(["command", "op", "facts", "list"]))]
pub struct ExecArgs {
    /// Which hosts: target expressions, such as `role:web,!web3`; several are a union
    #[arg(value_name = "TARGET", required_unless_present = "list")]
    pub target: Vec<String>,
    /// The program and its arguments; no shell is involved
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
    /// Carry out an operation: its name, then its parameters as NAME=VALUE or NAME:=JSON
    #[arg(long, num_args = 1.., value_name = "NAME [K=V]", help_heading = "Instead of a command")]
    pub op: Vec<String>,
    /// The parameters of --op as one JSON object
    #[arg(long, value_name = "JSON", requires = "op", conflicts_with_all = ["command", "facts", "list"], help_heading = "Instead of a command")]
    pub params: Option<String>,
    /// Print what is known of the hosts
    #[arg(long, help_heading = "Instead of a command")]
    pub facts: bool,
    /// With --facts: only this part, such as `os.family`; may be repeated
    #[arg(long, value_name = "PATH", requires = "facts", conflicts_with_all = ["command", "op", "list"], help_heading = "Instead of a command")]
    pub only: Vec<String>,
    /// List the hosts and reach none [default TARGET: _all]
    #[arg(long, help_heading = "Instead of a command")]
    pub list: bool,
    /// Predict what would change; write nothing
    #[arg(long, conflicts_with_all = ["facts", "list"])]
    pub dry_run: bool,
    /// With --op: show what differs
    #[arg(long, requires = "op", conflicts_with_all = ["command", "facts", "list"])]
    pub diff: bool,
    /// With --op: wait so long for targets a run holds [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration, requires = "op", conflicts_with_all = ["command", "facts", "list"])]
    pub wait_lock: Option<Duration>,
    /// Which hosts there are.
    #[command(flatten)]
    pub inventory: InventoryArgs,
    /// Print one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}
