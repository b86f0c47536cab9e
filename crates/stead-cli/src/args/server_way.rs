//! How commands reach a site's server.

use std::path::PathBuf;

use clap::Args;

/// Whom to trust at the other end.
#[derive(Clone, Debug, Default, Args)]
pub struct TrustArgs {
    /// The server's certificate, by its fingerprint AB:CD:…, or its key, sha256:…
    #[arg(long, value_name = "PIN", group = "trust")]
    pub fingerprint: Option<String>,
    /// Certificates that vouch for the server, in place of a pin
    #[arg(long, value_name = "FILE", group = "trust")]
    pub ca_cert: Option<PathBuf>,
    /// Trust whoever answers: others may read the token
    #[arg(long, group = "trust")]
    pub insecure: bool,
}

/// How an operator reaches a server.
#[derive(Clone, Debug, Default, Args)]
pub struct OperatorArgs {
    /// A server elsewhere [default: the one of this site that runs here]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The file with an operator's token for that server; `-` reads standard input [default: $STEAD_TOKEN]
    #[arg(long, value_name = "FILE", requires = "server")]
    pub token_file: Option<PathBuf>,
    /// Whom to trust.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Where the site is.
    #[command(flatten)]
    pub site: super::SiteArgs,
}
