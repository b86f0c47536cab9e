//! Arguments of `stead tui`.

use clap::Args;

pub(super) const KEYS: &str = "\
Examples:
  stead tui                                runs of this directory, and of its site
  stead tui --color never                  without colour

Keys:
  ↑↓ or j k, Enter       choose and open a run: phases, roles and output from its record
  o                      the Orchestration panel; Tab switches between Controller and Agent
  v, d, r                in the Controller: validate, dry run, run
  x                      stop the run as a first SIGINT does; again, as a second one
  ←→, PgUp PgDn, l       choose a role, scroll its output, read the full log
  c, C                   in the Agent view: check one agent of the registry, or all
  Esc, ?, q              back, all keys, quit

It needs a terminal, at least 80 columns and 24 rows for comfort. NO_COLOR and --color are obeyed.

Exit codes:
  0 left with q   2 no terminal   130 left by a signal";

/// Arguments of `stead tui`: there are none of its own.
#[derive(Clone, Debug, Args)]
pub struct TuiArgs {}
