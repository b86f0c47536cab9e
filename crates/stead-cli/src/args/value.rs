//! Values with a grammar of their own: plan sources, sinks, variables, durations.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
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

/// One `--var`.
#[derive(Clone, Debug, PartialEq)]
pub struct VarArg {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: VarValue,
}

/// The value of one `--var`.
#[derive(Clone, Debug, PartialEq)]
pub enum VarValue {
    /// `k=v`: text, to be read as the type of the variable's default.
    Text(String),
    /// `k:=JSON`.
    Json(Value),
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

pub(super) fn var(text: &str) -> Result<VarArg, String> {
    let (head, value) =
        text.split_once('=').ok_or_else(|| "write NAME=VALUE, or NAME:=JSON for a typed value".to_owned())?;
    let (name, value) = match head.strip_suffix(':') {
        Some(name) => {
            let json = serde_json::from_str(value).map_err(|error| {
                format!("the value of `{name}` is not JSON ({error}); write {name}=VALUE for plain text")
            })?;
            (name, VarValue::Json(json))
        }
        None => (head, VarValue::Text(value.to_owned())),
    };
    if name.is_empty() {
        return Err("the name of the variable is empty; write NAME=VALUE".to_owned());
    }
    Ok(VarArg { name: name.to_owned(), value })
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

pub(super) fn run_id(text: &str) -> Result<RunId, String> {
    RunId::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn variables_are_text_or_json() {
        let text =
            |name: &str, value: &str| VarArg { name: name.into(), value: VarValue::Text(value.into()) };
        assert_eq!(var("a=b").unwrap(), text("a", "b"));
        assert_eq!(var("a=").unwrap(), text("a", ""));
        assert_eq!(var("a=b:=c").unwrap(), text("a", "b:=c"));
        assert_eq!(var("a:=[1]").unwrap(), VarArg { name: "a".into(), value: VarValue::Json(json!([1])) });
        for bad in ["a", "=b", ":=1", "a:=", "a:=x"] {
            assert!(var(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn report_files_are_files() {
        assert!(report_file("-").is_err());
        assert!(report_file("").is_err());
        assert_eq!(sink("-").unwrap(), Sink::Stdout);
    }
}
