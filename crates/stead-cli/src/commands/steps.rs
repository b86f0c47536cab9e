//! `stead steps …`: catalogues of scripts, found, configured, planned and run.
//!
//! ```text
//!  find ──▶ load (layers, values, target) ──▶ plan (selection, files, inputs) ──▶ confirm ──▶ act (run, dry run)
//! ```

use stead_model::{Diagnostic, Diagnostics};

use crate::output::{Output, Paint};
use crate::settings::Settings;

pub(super) mod act;
pub(super) mod check;
mod confirm;
pub(super) mod explain;
mod files;
pub(super) mod find;
pub(super) mod history;
pub(super) mod list;
pub(super) mod load;
pub(super) mod plan;
pub(super) mod report;
pub(super) mod resume;
pub(super) mod run;
pub(super) mod target;

/// Shows warnings on standard error.
pub(super) fn tell_warnings(warnings: &[Diagnostic], settings: &Settings, output: &Output) {
    if !warnings.is_empty() {
        let text = Diagnostics(warnings.to_vec()).render(settings.stderr_paint == Paint::Ansi);
        output.err.print(&text.to_string());
    }
}
