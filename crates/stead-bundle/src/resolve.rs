//! From what a person types for a run (an id, its beginning, its random part, `last`, a path) to its directory.

use std::path::{Path, PathBuf};

use crate::error::RecordError;
use crate::layout::{RUN_META, shown};
use crate::list::{bundles_in, listed, name_of};

/// How many candidates a message lists.
const CANDIDATES: usize = 10;

/// Why an argument names no run.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// Nothing matches.
    #[error("no run is called `{argument}`{}", known(candidates))]
    Unknown {
        /// What was typed.
        argument: String,
        /// The newest runs there are.
        candidates: Vec<String>,
    },
    /// Several match.
    #[error("`{argument}` names {count} runs{}", known(candidates))]
    Ambiguous {
        /// What was typed.
        argument: String,
        /// How many.
        count: usize,
        /// The newest of them.
        candidates: Vec<String>,
    },
    /// A directory of runs could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
}

fn known(candidates: &[String]) -> String {
    if candidates.is_empty() {
        "; there are no runs".to_owned()
    } else {
        format!("; candidates: {}", candidates.join(", "))
    }
}

/// Returns the directory of the run that `argument` names: an id, a unique beginning of one, its random part,
/// `last`, or a path. `runs` are the directories that hold runs.
pub fn resolve(argument: &str, runs: &[PathBuf]) -> Result<PathBuf, ResolveError> {
    if argument.contains('/') || argument == "." || argument == ".." {
        let path = PathBuf::from(argument);
        if path.join(RUN_META).is_file() {
            return Ok(path);
        }
        return Err(ResolveError::Unknown {
            argument: argument.to_owned(),
            candidates: newest(&bundles_in(runs)?),
        });
    }
    let bundles = bundles_in(runs)?;
    if argument == "last" {
        return last(&bundles)
            .ok_or_else(|| ResolveError::Unknown { argument: argument.to_owned(), candidates: vec![] });
    }
    let pick = |fits: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
        if argument.is_empty() {
            return Vec::new();
        }
        bundles.iter().filter(|path| fits(&name_of(path))).cloned().collect()
    };
    // A whole id wins over ids that begin with it.
    let mut matches = pick(&|id| id == argument);
    if matches.is_empty() {
        matches = pick(&|id| id.starts_with(argument) || random_part(id) == Some(argument));
    }
    match matches.as_slice() {
        [one] => Ok(one.clone()),
        [] if Path::new(argument).join(RUN_META).is_file() => Ok(PathBuf::from(argument)),
        [] => Err(ResolveError::Unknown { argument: argument.to_owned(), candidates: newest(&bundles) }),
        several => {
            let mut names: Vec<_> = several.iter().map(|path| name_of(path)).collect();
            names.sort_unstable();
            // One id in two directories: only paths tell them apart.
            let alike = names.windows(2).any(|pair| pair[0] == pair[1]);
            let candidates = if alike {
                several.iter().take(CANDIDATES).map(|path| shown(path).into_owned()).collect()
            } else {
                newest(several)
            };
            Err(ResolveError::Ambiguous { argument: argument.to_owned(), count: several.len(), candidates })
        }
    }
}

/// Returns the random part of an id that Stead made: `YYYY-MM-DD_HH-MM-SS.mmm-xxxxxxxx`.
fn random_part(id: &str) -> Option<&str> {
    let (time, random) = id.split_at_checked(23)?;
    let shape = "0000-00-00_00-00-00.000".bytes().zip(time.bytes());
    let is_time =
        shape.into_iter().all(|(want, byte)| if want == b'0' { byte.is_ascii_digit() } else { byte == want });
    random.strip_prefix('-').filter(|random| is_time && random.len() == 8)
}

/// Returns the run that started last.
fn last(bundles: &[PathBuf]) -> Option<PathBuf> {
    // Ids that Stead made sort by start: of those only the greatest can be the last one.
    let (made, given): (Vec<_>, Vec<_>) =
        bundles.iter().partition(|path| random_part(&name_of(path)).is_some());
    let greatest = made.into_iter().max_by_key(|path| name_of(path));
    let started = |path: &&PathBuf| (listed(path).ok().and_then(|listed| listed.started_at), name_of(path));
    given.into_iter().chain(greatest).max_by_key(started).cloned()
}

/// Returns the names of the runs whose ids sort last.
fn newest(bundles: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<_> = bundles.iter().map(|path| name_of(path)).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.dedup();
    names.truncate(CANDIDATES);
    names
}
