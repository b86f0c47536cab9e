//! `stead init plan|steps|run`: a first file of each, with what it needs.

use std::path::Path;

use serde_json::json;
use stead_model::starter::{self, StarterFile};
use stead_model::{ExitCode, argv};

use crate::args::{InitPlanArgs, InitRunArgs, InitStepsArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::{json as render_json, one_line};
use crate::settings::Settings;

pub(crate) fn plan(
    args: &InitPlanArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let first = First { files: starter::plan(), file: "plan.yaml", next: &["plan", "run"], flag: None };
    first.begin(&args.directory, args.json, settings, output)
}

pub(crate) fn steps(
    args: &InitStepsArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let (next, flag) = (&["steps", "run"], Some("--dry-run"));
    let first = First { files: starter::steps(), file: "steps.yaml", next, flag };
    first.begin(&args.directory, args.json, settings, output)
}

pub(crate) fn run(args: &InitRunArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let first = First { files: starter::run(), file: "run.yaml", next: &["run", "manifest"], flag: None };
    first.begin(&args.directory, args.json, settings, output)
}

/// What is written, and the command that comes next: `next FILE flag`.
struct First {
    files: Vec<StarterFile>,
    file: &'static str,
    next: &'static [&'static str],
    flag: Option<&'static str>,
}

impl First {
    fn begin(
        &self,
        directory: &Path,
        json: bool,
        settings: &Settings,
        output: &mut Output,
    ) -> Result<ExitCode, Failure> {
        let place = settings.current_dir.join(directory);
        super::write(&place, &self.files, "nothing was written; name another directory")?;
        if json {
            let paths: Vec<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
            let document = json!({"directory": place.display().to_string(), "files": paths});
            output.out.print(&render_json::document(&document));
            return Ok(ExitCode::Success);
        }
        let file = directory.join(self.file).display().to_string();
        let words = ["stead"].iter().chain(self.next).copied().chain([file.as_str()]).chain(self.flag);
        let below = one_line(&directory.display().to_string());
        output.out.print_line(&format!("wrote {} files below {below}", self.files.len()));
        output.err.print_line(&format!("next: {}", one_line(&argv::quote_text(words))));
        Ok(ExitCode::Success)
    }
}
