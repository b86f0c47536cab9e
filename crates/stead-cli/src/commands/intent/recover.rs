//! Saying what became of an intent that a crash cut off.

use std::path::Path;

use stead_drivers::intent::{self, Recovered};
use stead_model::diagnostic::Place;
use stead_model::{Diagnostic, ErrorClass};

use crate::failure::{Failure, FailureKind};

/// Undoes what a dead process left half done, and says so. A dry run only says that it is there.
pub(super) fn recover(state_dir: &Path, root: &Path, dry_run: bool) -> Result<Option<Diagnostic>, Failure> {
    let warning = |message: String| {
        let place = Place::Named(state_dir.display().to_string());
        Diagnostic::warning("intent/cut-off", place, message)
    };
    if dry_run {
        let message = "an intent was cut off half way; the next one that is not a dry run puts it back first";
        return Ok(intent::is_half_done(state_dir).then(|| warning(message.to_owned())));
    }
    match intent::recover(state_dir, root) {
        Ok(recovered) => Ok(recovered.map(|recovered| warning(words(&recovered)))),
        Err(error) => {
            let kind =
                if error.class == ErrorClass::Locked { FailureKind::Locked } else { FailureKind::Work };
            Err(Failure::caused_by(kind, error).hint("nothing else is edited before that"))
        }
    }
}

/// Returns what became of it, in one sentence.
pub(crate) fn words(recovered: &Recovered) -> String {
    let run = recovered.run.as_ref().map(|run| format!(" (run {run})")).unwrap_or_default();
    let what = match (recovered.committed, recovered.put_back.as_slice()) {
        (true, _) => "its files were committed, so it is done".to_owned(),
        (false, []) => "nothing had to be put back".to_owned(),
        (false, files) => format!("{} put back", join(files)),
    };
    let left = match recovered.left.as_slice() {
        [] => String::new(),
        files => format!("; {} changed since and left alone", join(files)),
    };
    format!("the intent `{}`{run} was cut off half way: {what}{left}", recovered.intent)
}

fn join(files: &[String]) -> String {
    let verb = if files.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", files.join(", "))
}
