//! How runs, plans and problems are shown. Everything here only reads.
//!
//! Live renderers are [`stead_runner::Observer`]s and see nothing but events (and output as it comes); the others
//! turn a finished value, a report or a plan, into text. None of them decides anything about a run.

use std::path::{Path, PathBuf};

mod auto;
pub mod cursor;
pub(crate) mod diff;
pub mod events;
pub(crate) mod full_screen;
pub mod graph;
pub(crate) mod hosts;
pub mod json;
pub mod junit;
mod lines;
mod logs;
pub mod markdown;
pub mod plain;
pub(crate) mod replay;
pub(crate) mod run;
pub mod show;
pub mod steps;
pub mod summary;
pub(crate) mod table;
pub mod terminal;
pub(crate) mod text;

pub(crate) use summary::{WAIT_LOCK, error_code, error_word, lock_hint};

/// What live renderers show beyond the states of tasks.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether the output of tasks is shown, and where it comes from.
    pub streaming: Streaming,
    /// Whether differences are shown.
    pub diff: Differences,
    /// Where bundles are; the run's is found when it starts.
    pub runs_dir: Option<PathBuf>,
    /// The run's bundle, if it is known already (resume).
    pub bundle: Option<PathBuf>,
}

/// Whether the output of tasks is shown as it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// It is not.
    #[default]
    Off,
    /// It is, read from the log files that `log` events name.
    Logs,
    /// It is, as [`stead_runner::Observer::on_output`] brings it.
    Live,
}

/// Whether differences are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Differences {
    /// They are not.
    #[default]
    Hidden,
    /// They are.
    Shown,
}

/// Returns one line of text, safe to show.
pub(crate) fn visible(text: &str) -> String {
    text::clean(text).into_owned()
}

/// Returns a path as people are shown it: relative if it is below `here`, safe, on one line.
pub(crate) fn shown_path(path: &str, here: &Path) -> String {
    let below = Path::new(path).strip_prefix(here).ok().and_then(Path::to_str);
    one_line(below.filter(|below| !below.is_empty()).unwrap_or(path))
}

/// Returns `text` as one line that is safe to show.
pub(crate) fn one_line(text: &str) -> String {
    text::one_line(text).into_owned()
}
