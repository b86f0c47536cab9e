//! Arguments of `stead diff …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use globset::Glob;
use regex::Regex;
use stead_bundle::diff::{RoleChoice, Threshold};

use super::DocumentFormat;

/// What to compare.
#[derive(Clone, Debug, Subcommand)]
pub enum DiffCommand {
    /// Compare two runs: captures, outcomes, files and figures; exit 4 if a condition of --fail-on is true
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Box<DiffRunArgs>),
}

const RUN_EXAMPLES: &str = "\
Examples:
  stead diff run baseline.zip last
  stead diff run runs/before runs/after --role all --format markdown -o diff.md
  stead diff run old.pcap new.pcap --fail-on services_added --fail-on 'latency_p95_delta_pct>10'
  stead diff run base last --fail-on 'metric:client/out.json#/rps.delta_pct<-5'
  stead diff run base last --text '*.log' --ignore '^time='

Conditions are NAME (not zero) or NAME OP NUMBER with > >= < <= == !=. Names are the figures of the summary,
latency_{p50,p90,p95,p99,mean,max}_delta_{ms,pct}, and metric:ROLE/FILE#/POINTER.delta or .delta_pct.

Exit codes:
  0 compared   2 usage   3 a side or role is missing   4 a condition is true, or has no value";

/// Arguments of `stead diff run`.
#[derive(Clone, Debug, Args)]
pub struct DiffRunArgs {
    /// What to compare with: a bundle directory, an archive, a run id, `last`, or a pcap or pcapng file
    #[arg(value_name = "BASE")]
    pub base: String,
    /// What to compare, likewise
    #[arg(value_name = "NEW")]
    pub new: String,
    /// How to show it: text, json or markdown
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: DocumentFormat,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write it to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Only what concerns captures
    #[arg(long)]
    pub raw: bool,
    /// Whose captures, or `all` [default: client, else the only role both have]
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub role: Option<RoleChoice>,
    /// Exit 4 if this is true; may be repeated
    #[arg(long, value_name = "EXPR", value_parser = threshold)]
    pub fail_on: Vec<Threshold>,
    /// The interval expected between packets of cyclic data
    #[arg(long, value_name = "MS", default_value = "20", value_parser = above_zero)]
    pub expected_rpi: f64,
    /// How far an interval may be from it
    #[arg(long, value_name = "PCT", default_value = "10", value_parser = not_negative)]
    pub rpi_tolerance: f64,
    /// Leave out latency
    #[arg(long)]
    pub skip_timing: bool,
    /// Leave out intervals of cyclic data
    #[arg(long)]
    pub skip_rpi: bool,
    /// Also take this port for EtherNet/IP; may be repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// Compare files that match line by line; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    pub text: Vec<Glob>,
    /// Leave out lines that match before they are compared; may be repeated
    #[arg(long, value_name = "REGEX", value_parser = regex)]
    pub ignore: Vec<Regex>,
}

fn role(text: &str) -> Result<RoleChoice, String> {
    match text {
        "" => Err("the name of the role is empty".to_owned()),
        "all" => Ok(RoleChoice::All),
        name => Ok(RoleChoice::Named(name.to_owned())),
    }
}

fn threshold(text: &str) -> Result<Threshold, String> {
    Threshold::parse(text).map_err(|error| error.to_string())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn above_zero(text: &str) -> Result<f64, String> {
    number(text).filter(|number| *number > 0.0).ok_or_else(|| "a number above 0".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text).filter(|number| *number >= 0.0).ok_or_else(|| "a number from 0".to_owned())
}

fn glob(text: &str) -> Result<Glob, String> {
    Glob::new(text).map_err(|error| error.to_string())
}

fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}
