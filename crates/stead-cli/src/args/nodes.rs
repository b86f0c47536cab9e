//! Arguments of commands over a site: `validate`, `token`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use stead_model::site::manifest;
use stead_model::{NodeName, SiteKey};

/// Where the site is.
#[derive(Clone, Debug, Default, Args)]
pub struct SiteArgs {
    /// The site directory [default: $STEAD_SITE, ./site-config, here]
    #[arg(long, value_name = "DIR")]
    pub site: Option<PathBuf>,
}

/// Which manifest: one of the three.
#[derive(Clone, Debug, Default, Args)]
pub struct ManifestArgs {
    /// A manifest of the site
    #[arg(short = 'M', long, value_name = "NAME", group = "manifest_source")]
    pub manifest: Option<String>,
    /// A manifest elsewhere; `-` reads standard input
    #[arg(long, value_name = "FILE", group = "manifest_source")]
    pub manifest_file: Option<PathBuf>,
    /// A manifest as text; `-` reads standard input
    #[arg(long, value_name = "JSON", group = "manifest_source")]
    pub manifest_json: Option<String>,
}

/// Which nodes.
#[derive(Clone, Debug, Default, Args)]
pub struct SelectArgs {
    /// Do as if every node had this mode
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeWord>,
    /// Only these nodes: names and globs, repeated or separated by commas
    #[arg(long, value_name = "NODES")]
    pub only: Vec<String>,
    /// Only levels 1 to N
    #[arg(long, value_name = "N", value_parser = level)]
    pub depth: Option<usize>,
}

/// A mode as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeWord {
    /// The driver does it.
    Push,
    /// The node does it.
    Pull,
    /// The node does it when the driver says so.
    Hybrid,
}

impl From<ModeWord> for manifest::Mode {
    fn from(word: ModeWord) -> Self {
        match word {
            ModeWord::Push => Self::Push,
            ModeWord::Pull => Self::Pull,
            ModeWord::Hybrid => Self::Hybrid,
        }
    }
}

pub(super) const VALIDATE_EXAMPLES: &str = "\
Examples:
  stead validate                              the whole site
  stead validate -M lab                       one manifest and what it refers to
  stead validate -M lab -H local --json       and whether that host can make it

Exit codes:
  0 valid   1 not valid   3 there is no such site, manifest or host";

/// Arguments of `stead validate`.
#[derive(Clone, Debug, Args)]
pub struct ValidateArgs {
    /// Which manifest; none: the whole site.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// The host it is for: NAME or USER@NAME
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Which nodes.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
    /// What verbs that act take, too.
    #[command(flatten)]
    pub act: super::ActFlags,
}

/// What to do with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Print a new token
    #[command(after_long_help = MINT_EXAMPLES)]
    Mint(Box<TokenMintArgs>),
    /// Show what a token says, without a key: it proves nothing
    #[command(after_long_help = INSPECT_EXAMPLES)]
    Inspect(TokenInspectArgs),
    /// Check a token with the keys of the site
    #[command(after_long_help = VERIFY_EXAMPLES)]
    Verify(TokenVerifyArgs),
    /// Make a new key; the old one still verifies for a while
    #[command(after_long_help = ROTATE_EXAMPLES)]
    Rotate(TokenRotateArgs),
    /// Make tokens invalid
    #[command(after_long_help = REVOKE_EXAMPLES)]
    Revoke(TokenRevokeArgs),
}

const MINT_EXAMPLES: &str = "\
Examples:
  stead token mint --node edge --spec base
  stead token mint --node ann@desk --aud operator --ttl 1h";

const INSPECT_EXAMPLES: &str = "\
Examples:
  stead token inspect TOKEN
  stead token inspect - < token.txt           without showing it to other users";

const VERIFY_EXAMPLES: &str = "\
Examples:
  stead token verify TOKEN
  stead token verify TOKEN --node edge --aud spec

Exit codes:
  0 accepted   4 refused, with the code";

const ROTATE_EXAMPLES: &str = "\
Examples:
  stead token rotate                          also makes the first key
  stead token rotate --overlap 1h";

const REVOKE_EXAMPLES: &str = "\
Examples:
  stead token revoke TOKEN
  stead token revoke --node edge              all tokens of a node so far";

/// Arguments of `stead token mint`.
#[derive(Clone, Debug, Args)]
pub struct TokenMintArgs {
    /// The node, or with --aud operator the person
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// The spec; none for operators
    #[arg(long, value_name = "SPEC", value_parser = site_key)]
    pub spec: Option<SiteKey>,
    /// What it may be used for
    #[arg(long, value_name = "AUD", default_value = "node")]
    pub aud: AudienceWord,
    /// How long it lives [default: the site's token_ttl, 7d]
    #[arg(long, value_name = "DURATION", value_parser = lifetime, conflicts_with_all = ["exp", "v1"])]
    pub ttl: Option<Duration>,
    /// Make a token of version 1
    #[arg(long, conflicts_with_all = ["jti", "aud"])]
    pub v1: bool,
    /// When it was made, in seconds since 1970 [default: now]
    #[arg(long, value_name = "T", value_parser = moment)]
    pub iat: Option<i64>,
    /// When it expires, in seconds since 1970
    #[arg(long, value_name = "T", value_parser = moment)]
    pub exp: Option<i64>,
    /// Its id [default: random]
    #[arg(long, value_name = "ID", value_parser = token_id)]
    pub jti: Option<String>,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
}

/// What a token may be used for, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AudienceWord {
    /// A node's spec, artifacts and repositories.
    Spec,
    /// Also its signals, jobs and reports.
    Node,
    /// What operators do.
    Operator,
}

/// Arguments of `stead token inspect`.
#[derive(Clone, Debug, Args)]
pub struct TokenInspectArgs {
    /// The token; `-` reads it from standard input
    pub token: String,
    /// Print one JSON document, also of what is wrong
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead token verify`.
#[derive(Clone, Debug, Args)]
pub struct TokenVerifyArgs {
    /// The token; `-` reads it from standard input
    pub token: String,
    /// It must be this node's
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// It must be good for this
    #[arg(long, value_name = "AUD")]
    pub aud: Option<AudienceWord>,
    /// As if it were this time, in seconds since 1970 [default: now]
    #[arg(long, value_name = "T", value_parser = moment)]
    pub at: Option<i64>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead token rotate`.
#[derive(Clone, Debug, Args)]
pub struct TokenRotateArgs {
    /// How long the old key still verifies
    #[arg(long, value_name = "DURATION", value_parser = lifetime, default_value = "24h")]
    pub overlap: Duration,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead token revoke`.
#[derive(Clone, Debug, Args)]
#[group(id = "revoked", required = true, multiple = false, args = ["token", "jti", "node"])]
pub struct TokenRevokeArgs {
    /// The token; `-` reads it from standard input
    pub token: Option<String>,
    /// A token's id
    #[arg(long, value_name = "ID", value_parser = token_id)]
    pub jti: Option<String>,
    /// A node: all its tokens so far
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node: Option<NodeName>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

fn level(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("levels count from 1".to_owned()),
        Ok(level) => Ok(level),
    }
}

fn moment(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(seconds @ 0..=9_007_199_254_740_992) => Ok(seconds),
        Ok(_) | Err(_) => Err("expected whole seconds since 1970".to_owned()),
    }
}

pub(super) fn lifetime(text: &str) -> Result<Duration, String> {
    stead_model::site::settings::parse_lifetime(text)
}

fn token_id(text: &str) -> Result<String, String> {
    if stead_model::token::is_token_id(text) {
        Ok(text.to_owned())
    } else {
        Err("an id has 1 to 128 visible ASCII characters".to_owned())
    }
}

pub(super) fn site_key(text: &str) -> Result<SiteKey, String> {
    SiteKey::parse(text).map_err(|error| error.to_string())
}

pub(super) fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::parse(text).map_err(|error| error.to_string())
}
