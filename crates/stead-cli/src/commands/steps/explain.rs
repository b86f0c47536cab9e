//! `stead steps explain KEY`.

use stead_engine::values::Explanation;
use stead_model::{Diagnostics, ExitCode};

use super::load;
use crate::args::StepsExplainArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, visible};
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

/// A value may hold what moves the cursor.
fn to_text(explanation: &Explanation) -> String {
    explanation.text().lines().map(|line| format!("{}\n", visible(line))).collect()
}
