//! Text files compared line by line.

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use similar::{ChangeTag, TextDiff};

/// Longer files are compared as sets of lines: finding the best diff of them takes too long.
const MOST_LINES: usize = 10_000;
/// Longer diffs are cut: they are for reading.
const LONGEST_DIFF: usize = 64 * 1024;

/// How a text file differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextChange {
    /// The file, such as `client/out.txt`.
    pub path: String,
    /// How many lines came or went.
    pub lines_changed: u64,
    /// The difference in the unified format; null for files of very many lines.
    pub diff: Option<String>,
}

/// Returns how the file `path` differs, lines that match one of `ignored` aside; none if it does not.
pub(crate) fn compare_text(
    path: &str,
    baseline: &str,
    compare: &str,
    ignored: &[Regex],
) -> Option<TextChange> {
    let kept = |text: &'_ str| -> Vec<String> {
        let lines = text.lines().filter(|line| !ignored.iter().any(|regex| regex.is_match(line)));
        lines.map(|line| format!("{line}\n")).collect()
    };
    let (old, new) = (kept(baseline), kept(compare));
    if old == new {
        return None;
    }
    let (lines_changed, diff) = if old.len().max(new.len()) > MOST_LINES {
        (differing(&old, &new), None)
    } else {
        let (old, new) = (old.concat(), new.concat());
        let diff = TextDiff::from_lines(&old, &new);
        let changed = diff.iter_all_changes().filter(|change| change.tag() != ChangeTag::Equal).count();
        let unified = diff.unified_diff().context_radius(3).header("BASE", "NEW").to_string();
        (changed as u64, Some(cut(unified)))
    };
    Some(TextChange { path: path.to_owned(), lines_changed, diff })
}

/// Returns how many lines one side has more often than the other.
fn differing(old: &[String], new: &[String]) -> u64 {
    let mut balance: BTreeMap<&str, i64> = BTreeMap::new();
    for line in new {
        *balance.entry(line).or_default() += 1;
    }
    for line in old {
        *balance.entry(line).or_default() -= 1;
    }
    balance.values().map(|count| count.unsigned_abs()).sum()
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_DIFF {
        let end = (0..=LONGEST_DIFF).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("\n… (cut at 64 KiB)\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_ignored_make_no_difference() {
        let ignored = [Regex::new("^time ").unwrap()];
        assert_eq!(compare_text("a", "time 1\nx\n", "x\ntime 2\n", &ignored), None);
        let change = compare_text("a", "x\ny\n", "x\nz\n", &ignored).unwrap();
        assert_eq!(change.lines_changed, 2);
        let diff = change.diff.unwrap();
        assert!(diff.contains("-y\n") && diff.contains("+z\n") && diff.contains(" x\n"), "{diff}");
    }

    #[test]
    fn very_long_files_are_counted_without_a_diff() {
        let old: String = (0..MOST_LINES + 5).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n7\n", "\nseven\n");
        let change = compare_text("a", &old, &new, &[]).unwrap();
        assert_eq!((change.lines_changed, change.diff), (2, None));
    }

    #[test]
    fn long_diffs_are_cut() {
        let old = "ä".repeat(100_000);
        let change = compare_text("a", &old, "", &[]).unwrap();
        assert!(change.diff.unwrap().ends_with("(cut at 64 KiB)\n"));
    }
}
