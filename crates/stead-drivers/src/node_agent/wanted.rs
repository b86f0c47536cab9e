//! What a node is to converge for, kept until it has and its reports are kept: an agent that ends in between goes on.

use std::io;

use serde::{Deserialize, Serialize};
use stead_model::MessageId;

use super::converge::Why;
use super::place::{AGENT, NodeFiles};

/// What was asked for and is not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Asked {
    signals: Vec<MessageId>,
}

fn path() -> String {
    format!("{AGENT}/wanted.json")
}

/// Returns what an agent before this one was told to converge for and did not come to; none if there is nothing.
pub(super) fn left(files: &NodeFiles) -> Option<Vec<MessageId>> {
    files.json::<Asked>(&path()).map(|asked| asked.signals)
}

/// Keeps what is to be converged for: what a task is at, and what comes after it. What the schedule wants comes again by
/// itself.
pub(super) fn keep(files: &NodeFiles, under_way: Option<&Why>, next: Option<&Why>) -> io::Result<()> {
    let told: Vec<&Vec<MessageId>> = [under_way, next]
        .into_iter()
        .flatten()
        .filter_map(|why| match why {
            Why::Told(signals) => Some(signals),
            Why::Schedule => None,
        })
        .collect();
    if told.is_empty() {
        return files.remove(&path());
    }
    let asked = Asked { signals: told.into_iter().flatten().cloned().collect() };
    if files.json::<Asked>(&path()).as_ref() == Some(&asked) {
        return Ok(());
    }
    files.write_json(&path(), &asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_kept_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        assert_eq!(left(&files), None);
        let told = |ids: &[u64]| Why::Told(ids.iter().map(|id| MessageId::signal(*id)).collect());
        keep(&files, None, Some(&told(&[]))).unwrap();
        assert_eq!(left(&files), Some(Vec::new()), "by a request without an id");
        keep(&files, Some(&told(&[1])), Some(&told(&[2, 3]))).unwrap();
        assert_eq!(left(&files), Some([1, 2, 3].map(MessageId::signal).to_vec()));
        keep(&files, Some(&Why::Schedule), Some(&told(&[2]))).unwrap();
        assert_eq!(left(&files), Some(vec![MessageId::signal(2)]));
        keep(&files, None, None).unwrap();
        assert_eq!(left(&files), None);
    }
}
