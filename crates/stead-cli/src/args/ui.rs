//! Arguments of `stead ui`.

use clap::Args;

use super::{FleetWayArgs, SiteArgs};

pub(super) const EXAMPLES: &str = "\
Examples:
  stead ui                                 runs of this directory, nodes of its site, the fleet of its state directory
  stead ui --site lab --port 8080          of another site, at a port of your choice
  ssh -L 8080:localhost:8080 box stead ui --port 8080    what is on another machine

It serves this machine alone, until Ctrl-C. The address has a key in it: whoever has the address can look. Nothing can be
changed by it.

Exit codes:
  0 ended by a signal   1 it cannot listen   2 usage   3 no such site";

/// Arguments of `stead ui`.
#[derive(Clone, Debug, Args)]
pub struct UiArgs {
    /// The port [default: any that is free]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Where the fleet is; `--json` prints the address as one document.
    #[command(flatten)]
    pub fleet: FleetWayArgs,
}
