//! Arguments of `stead tui`.

use std::path::PathBuf;

use clap::Args;

use super::{FleetWayArgs, SiteArgs};

pub(super) const KEYS: &str = "\
Examples:
  stead tui                                runs of this directory, nodes of its site, the fleet of its state directory
  stead tui --site lab                     of another site
  stead tui --masters 10.20.0.7:7700       of the fleet with this master
  stead tui --color never                  without colour

Keys:
  1 2 3 4, Tab           Runs, Nodes, Fleet, Orchestration; Tab and Shift-Tab go to the next and the one before
  ↑↓ or j k, Enter, Esc  choose, open, back
  /                      filter what is listed
  p                      in a run: replay it; Space plays, ←→ one event, + - faster and slower, Home End its ends
  o                      the Orchestration panel; there Tab switches between Controller and Agent
  v, d, r                in the Controller: validate, dry run, run
  x                      stop the run as a first SIGINT does; again, as a second one
  ←→, PgUp PgDn, l       choose a role, scroll its output, read the full log
  c, C                   in the Agent view: check one agent of the registry, or all
  ?, q                   all keys, quit

It needs a terminal, at least 80 columns and 24 rows for comfort. NO_COLOR and --color are obeyed.

Exit codes:
  0 left with q   2 no terminal   3 no such site   130 left by a signal";

/// Arguments of `stead tui`.
#[derive(Clone, Debug, Default, Args)]
pub struct TuiArgs {
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// The fleet's masters [default: those of the state directory]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub masters: Vec<String>,
    /// Where the certificate of whoever asks is [default: STATE/fleet/identity]
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// The file with the token to join the fleet with, if there is no certificate yet
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<PathBuf>,
}

impl TuiArgs {
    /// Returns the way to the fleet.
    pub fn fleet(&self) -> FleetWayArgs {
        let Self { masters, identity, join_file, .. } = self.clone();
        FleetWayArgs { masters, identity, join_file, json: false }
    }
}
