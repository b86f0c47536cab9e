//! Values with a grammar of their own: plan sources, sinks, variables, durations.

use std::path::PathBuf;
use std::time::Duration;

use stead_engine::compile::VarFlag;
use stead_model::{RunId, duration};

/// Where a plan is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanSource {
    /// `-`: standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

/// Where a stream of lines goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// `-`: standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

pub(super) fn plan_source(text: &str) -> Result<PlanSource, String> {
    match text {
        "" => Err("the name of the plan file is empty".to_owned()),
        "-" => Ok(PlanSource::Stdin),
        path => Ok(PlanSource::File(path.into())),
    }
}

pub(super) fn sink(text: &str) -> Result<Sink, String> {
    match text {
        "" => Err("the name of the file is empty; use `-` for standard output".to_owned()),
        "-" => Ok(Sink::Stdout),
        path => Ok(Sink::File(path.into())),
    }
}

/// Standard output holds the summary or the JSON document, so a report file must be a file.
pub(super) fn report_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("the name of the file is empty".to_owned()),
        "-" => Err("standard output is taken; name a file".to_owned()),
        path => Ok(path.into()),
    }
}

pub(super) fn var(text: &str) -> Result<VarFlag, String> {
    VarFlag::parse(text).map_err(|error| error.to_string())
}

/// `K=V`; the value may hold anything, the name is judged where it is used.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the name before `=` is empty".to_owned()),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("there is no `=`; write NAME=VALUE".to_owned()),
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

/// A limit of no time would end everything before it began.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a limit of 0 leaves no time; leave the flag out for no limit".to_owned()),
        timeout => Ok(timeout),
    }
}

/// A limit of which `0` is none.
pub(super) fn limit(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

pub(super) fn key(text: &str) -> Result<String, String> {
    match stead_model::plan::is_key(text) {
        true => Ok(text.to_owned()),
        false => Err("a key has 1 to 128 visible characters".to_owned()),
    }
}

pub(super) fn run_id(text: &str) -> Result<RunId, String> {
    RunId::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_files_are_files() {
        assert!(report_file("-").is_err());
        assert!(report_file("").is_err());
        assert_eq!(sink("-").unwrap(), Sink::Stdout);
    }

    #[test]
    fn a_pair_is_cut_at_its_first_equals_sign() {
        assert_eq!(pair("A=b=c").unwrap(), ("A".to_owned(), "b=c".to_owned()));
        assert_eq!(pair("A=").unwrap().1, "");
        assert!(pair("A").is_err() && pair("=x").is_err());
    }
}
