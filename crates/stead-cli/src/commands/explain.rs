//! `stead explain [CODE]`.

use serde_json::{Value, json};
use stead_model::ExitCode;
use stead_model::explain::{self, Explanation, Family};

use crate::args::ExplainArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json as render_json, table};

const HEAD: &str = "\
# Codes

Every message of Stead that says that something is wrong has a code, such as `error[plan/syntax]`; so has everything in a fleet that is
not converged. `stead explain CODE` prints what is here. This page is made by `stead explain --markdown`.
";

pub(super) fn run(args: &ExplainArgs, output: &Output) -> Result<ExitCode, Failure> {
    let families = match &args.code {
        Some(code) => found(code)?,
        None => explain::families(),
    };
    let text = if args.json {
        to_json(&families)
    } else if args.markdown {
        to_markdown(&families)
    } else if args.code.is_some() {
        families.iter().flat_map(|family| &family.codes).map(to_text).collect::<Vec<_>>().join("\n")
    } else {
        to_list(&families)
    };
    output.out.print(&text);
    Ok(ExitCode::Success)
}

/// Returns the families of codes with those alone that `code` may stand for.
fn found(code: &str) -> Result<Vec<Family>, Failure> {
    let meant = explain::find(code);
    if meant.is_empty() {
        let failure = Failure::unknown_name(FailureKind::Usage, format!("there is no code `{code}`"));
        return Err(match explain::nearest(code).as_slice() {
            [] => failure.hint("`stead explain` lists every code"),
            near => failure
                .hint(format!("did you mean `{}`? `stead explain` lists every code", near.join("`, `"))),
        });
    }
    let mut families = explain::families();
    for family in &mut families {
        family.codes.retain(|known| meant.contains(known));
    }
    families.retain(|family| !family.codes.is_empty());
    Ok(families)
}

/// Returns what a code means and what to do, for people.
pub(crate) fn to_text(known: &Explanation) -> String {
    format!(
        "{}: {}\n\n  {}\n\n  What to do: {}\n",
        known.code,
        known.title,
        sentence(known.meaning),
        sentence(known.advice)
    )
}

/// Returns `text` as a sentence: some are beside their definition, where they are parts of one.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', ')']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

fn to_list(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let rows: Vec<[String; 2]> =
            family.codes.iter().map(|known| [format!("  {}", known.code), known.title.to_owned()]).collect();
        text.push_str(&format!("{}:\n{}\n", family.heading, table::to_text(&rows)));
    }
    text.push_str("`stead explain CODE` says what one means and what to do.\n");
    text
}

fn to_json(families: &[Family]) -> String {
    let codes: Vec<Value> = families
        .iter()
        .flat_map(|family| family.codes.iter().map(move |known| (family.heading, known)))
        .map(|(heading, known)| {
            json!({
                "code": known.code, "family": heading, "title": known.title,
                "meaning": sentence(known.meaning), "advice": sentence(known.advice),
            })
        })
        .collect();
    render_json::document(&json!({"schema": 1, "codes": codes}))
}

fn to_markdown(families: &[Family]) -> String {
    let mut text = HEAD.to_owned();
    for family in families {
        text.push_str(&format!(
            "\n## {}\n\n| code | what it means | what to do |\n|---|---|---|\n",
            family.heading
        ));
        for known in &family.codes {
            let cell = |text: &str| sentence(text).replace('|', "\\|");
            text.push_str(&format!(
                "| `{}` | **{}.** {} | {} |\n",
                known.code,
                known.title,
                cell(known.meaning),
                cell(known.advice)
            ));
        }
    }
    text
}
