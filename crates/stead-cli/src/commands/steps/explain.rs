//! `stead steps explain KEY`.

use stead_engine::values::Explanation;
use stead_model::{Diagnostics, ExitCode};

use super::load;
use super::table;
use crate::args::StepsExplainArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

pub(crate) fn run(
    args: &StepsExplainArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let configured = load::configure(args.catalogue.as_deref(), &args.values, settings)?;
    super::tell_warnings(&configured.warnings, settings, output);
    let Some(explanation) = configured.values.explain(&args.key) else {
        let problem = configured.values.unknown_key(&args.key);
        return Err(Failure::of(FailureKind::Usage, Diagnostics(vec![problem])));
    };
    match args.json {
        true => output.out.print(&json::document(&explanation)),
        false => output.out.print(&to_text(&explanation)),
    }
    Ok(ExitCode::Success)
}

fn to_text(explanation: &Explanation) -> String {
    let value = explanation
        .value
        .as_deref()
        .map_or_else(|| "has no value".to_owned(), |value| format!("= {}", one_line(value)));
    let from = explanation.winner.as_ref().map_or_else(String::new, |winner| format!("  # {winner}"));
    let header = ["", "LAYER", "STATE", "LINE", "RAW", "VALUE"].map(str::to_owned);
    let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), one_line);
    let rows = explanation.layers.iter().map(|row| {
        [
            if row.wins { "*" } else { "" }.to_owned(),
            one_line(&row.layer),
            row.state.as_str().to_owned(),
            row.line.map_or_else(|| "-".to_owned(), |line| line.to_string()),
            text(&row.raw),
            text(&row.value),
        ]
    });
    let table = table::to_text(std::iter::once(header).chain(rows).collect());
    let mut lines = format!("{} {value}{from}\n{table}", explanation.key);
    for (what, names) in
        [("refers to", &explanation.references), ("referred to by", &explanation.referenced_by)]
    {
        if !names.is_empty() {
            lines.push_str(&format!("{what}: {}\n", names.join(", ")));
        }
    }
    if !explanation.declared {
        lines.push_str("not declared by the catalogue\n");
    }
    lines
}
