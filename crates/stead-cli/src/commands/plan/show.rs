//! `stead plan show FILE`.

use stead_model::{Diagnostics, ExitCode};

use crate::args::PlanShowArgs;
use crate::commands::plan::source;
use crate::failure::Failure;
use crate::output::{Output, Paint};
use crate::render::show;
use crate::settings::Settings;

pub(crate) fn run(
    args: &PlanShowArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    // Read with the plan, so that a bad inventory or limit is noticed before a run.
    let base_dir = source::base_dir(&args.file, settings);
    let inventory = source::inventory(&args.inventory, &base_dir, settings)?.inventory;
    let loaded = source::load(&args.file, &(&args.vars).into(), Some(&inventory), settings)?;
    source::limit(&args.inventory, &inventory)?.say(output);
    let compiled = loaded.compiled;
    if !compiled.warnings.is_empty() {
        let warnings = Diagnostics(compiled.warnings.clone());
        output.err.print(&warnings.render(settings.stderr_paint == Paint::Ansi));
    }
    let levels = compiled.graph.levels();
    let text = if args.json {
        show::to_json(&compiled.plan, compiled.hash, levels)
    } else {
        show::to_text(&compiled.plan, levels)
    };
    output.out.print(&text);
    Ok(ExitCode::Success)
}
