//! Arguments of `stead server`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::SiteArgs;

/// What to do with the server of a site.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerCommand {
    /// Start the server, unless it runs already
    #[command(after_long_help = START_EXAMPLES)]
    Start(Box<ServerStartArgs>),
    /// Stop the server
    #[command(after_long_help = STOP_EXAMPLES)]
    Stop(ServerStopArgs),
    /// Show whether the server runs and answers
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(ServerStatusArgs),
}

const START_EXAMPLES: &str = "\
Examples:
  stead server start                        in the background, at the site's port
  stead server start -p 0 --json            at any free port
  stead server start --foreground           for systemd, or to watch it
  stead server start --new-cert             with a new certificate

Exit codes:
  0 it runs   1 it could not be started   3 the site cannot be served";

const STOP_EXAMPLES: &str = "\
Examples:
  stead server stop                         that of the site's port
  stead server stop -p 44444                another one";

const STATUS_EXAMPLES: &str = "\
Examples:
  stead server status
  stead server status --json

Exit codes:
  0 it runs and answers   1 it does not run   7 it runs but does not answer";

/// Arguments of `stead server start`.
#[derive(Clone, Debug, Args)]
pub struct ServerStartArgs {
    /// The port; 0 is any that is free [default: the site's, 44443]
    #[arg(short = 'p', long, value_name = "PORT")]
    pub port: Option<u16>,
    /// The address to listen at [default: the site's, 0.0.0.0]
    #[arg(short = 'b', long, value_name = "ADDR")]
    pub bind: Option<IpAddr>,
    /// A certificate in PEM, instead of the one it makes
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Its private key in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Make a new certificate; nodes that know only the old one have to be told
    #[arg(long, conflicts_with = "cert")]
    pub new_cert: bool,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// Where to log requests [default: STATE/server/server-PORT.log; in the foreground standard error]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Be the process that was started for the background
    #[arg(long, hide = true, requires = "foreground")]
    pub detached: bool,
    /// Be stopped by the run that removes the last node that needs it
    #[arg(long, hide = true, requires = "detached")]
    pub for_run: bool,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead server stop`.
#[derive(Clone, Debug, Args)]
pub struct ServerStopArgs {
    /// The port [default: the site's]
    #[arg(short = 'p', long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead server status`.
#[derive(Clone, Debug, Args)]
pub struct ServerStatusArgs {
    /// The port [default: the site's]
    #[arg(short = 'p', long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}
