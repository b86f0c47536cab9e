//! `stead intent list`.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use stead_drivers::intent;
use stead_engine::compile::intents::{self, Current};
use stead_model::ExitCode;
use stead_model::catalogue::{Catalogue, Intent};

use crate::args::IntentArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

#[derive(Serialize)]
struct Document {
    schema: u32,
    intents: Vec<IntentRow>,
}

/// One intent.
#[derive(Serialize)]
struct IntentRow {
    name: String,
    catalogue: String,
    doc: Option<String>,
    params: Vec<ParamRow>,
    files: Vec<FileRow>,
    then: Option<Vec<String>>,
    /// A map of parameters, or `mixed`, or `unknown`.
    current: Value,
}

#[derive(Serialize)]
struct ParamRow {
    name: String,
    #[serde(rename = "enum")]
    allowed: Vec<String>,
    default: Option<String>,
    doc: Option<String>,
}

#[derive(Serialize)]
struct FileRow {
    file: String,
    path: String,
    value: Option<Value>,
}

pub(super) fn run(args: &IntentArgs, settings: &Settings, output: &Output) -> Result<ExitCode, Failure> {
    if args.dry_run || args.commit || args.events.is_some() || !args.params.is_empty() {
        let message = "`stead intent list` takes no parameters and no flag but --json";
        return Err(Failure::new(FailureKind::Usage, message));
    }
    let catalogues = super::catalogues(settings)?;
    let of_catalogue = |catalogue: &Catalogue| -> Vec<IntentRow> {
        catalogue.intents.iter().map(|(name, intent)| row(name, intent, catalogue)).collect()
    };
    let mut intents: Vec<IntentRow> =
        catalogues.iter().flat_map(|(_, catalogue)| of_catalogue(catalogue)).collect();
    intents.sort_by(|a, b| a.name.cmp(&b.name));
    if args.json {
        output.out.print(&json::document(&Document { schema: 1, intents }));
    } else {
        output.out.print(&to_text(&intents));
    }
    Ok(ExitCode::Success)
}

fn row(name: &str, intent: &Intent, catalogue: &Catalogue) -> IntentRow {
    let found: Vec<Option<Value>> = intent
        .edits
        .iter()
        .map(|edit| {
            intent::current(&catalogue.root, &edit.file.value, &edit.spot()).ok().map(|found| found.value)
        })
        .collect();
    let current = match intents::current(intent, &found) {
        Current::Choice(choice) => serde_json::json!(choice),
        Current::Mixed => "mixed".into(),
        Current::Unknown => "unknown".into(),
    };
    let param = |(name, param): (&String, &stead_model::catalogue::IntentParam)| ParamRow {
        name: name.clone(),
        allowed: param.allowed.clone(),
        default: param.default.clone(),
        doc: param.doc.clone(),
    };
    let files = intent.edits.iter().zip(&found).map(|(edit, value)| FileRow {
        file: edit.file.value.clone(),
        path: edit.path.value.to_string(),
        value: value.clone(),
    });
    IntentRow {
        name: name.to_owned(),
        catalogue: catalogue.name.to_string(),
        doc: intent.doc.clone(),
        params: intent.params.iter().map(param).collect(),
        files: files.collect(),
        then: intent.then.as_ref().map(|then| then.only.iter().map(|token| token.value.clone()).collect()),
        current,
    }
}

fn to_text(intents: &[IntentRow]) -> String {
    let mut text = String::new();
    let mut say =
        |line: String| writeln!(text, "{}", one_line(&line)).expect("writing to memory does not fail");
    for intent in intents {
        let doc = intent.doc.as_ref().map(|doc| format!("  {doc}")).unwrap_or_default();
        say(format!("{}{doc}", intent.name));
        for param in &intent.params {
            let default =
                param.default.as_ref().map(|value| format!(" (default {value})")).unwrap_or_default();
            let doc = param.doc.as_ref().map(|doc| format!("  {doc}")).unwrap_or_default();
            say(format!("  {}={}{default}{doc}", param.name, param.allowed.join("|")));
        }
        for file in &intent.files {
            let value = file.value.as_ref().map_or_else(|| "?".to_owned(), Value::to_string);
            say(format!("  {} {}: {value}", file.file, file.path));
        }
        let current = match intent.current.as_object() {
            Some(choice) => {
                let pair =
                    |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
                choice.iter().map(pair).collect::<Vec<_>>().join(" ")
            }
            None => intent.current.as_str().unwrap_or_default().to_owned(),
        };
        say(format!("  current: {current}"));
    }
    if intents.is_empty() {
        say("There are no intents.".to_owned());
    }
    text
}
