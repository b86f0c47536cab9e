//! What differs between what is there and what should be. Pure.

use serde_json::{Value, json};
use similar::TextDiff;
use std::time::Duration;
use stead_runner::operation::{Diff, FieldDiff};

use super::entry::{Record, Want};
use crate::disk::seen::{Kind, Seen};

/// Longer diffs are cut: they are for reading.
const LONGEST_TEXT: usize = 64 << 10;
const CUT: &str = "\n… (cut at 64 KiB)\n";
/// A diff is a courtesy; after this long it may be coarser than it could be.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns the difference of all entries.
pub(crate) fn diff(records: &[Record]) -> Diff {
    let mut all = Vec::new();
    let mut text = String::new();
    for record in records {
        let differing = fields(&record.label, &record.seen, &record.want);
        if text.len() < LONGEST_TEXT && differing.iter().any(|field| is_content(&field.name)) {
            text.push_str(&unified(record));
        }
        all.extend(differing);
    }
    if text.len() > LONGEST_TEXT {
        let room = LONGEST_TEXT - CUT.len();
        let cut = (0..=room).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str(CUT);
    }
    Diff { fields: all, text: (!text.is_empty()).then_some(text) }
}

fn is_content(field: &str) -> bool {
    let name = field.rsplit(": ").next().unwrap_or(field);
    name == "content" || name == "state"
}

/// Returns the fields of one entry that differ.
pub(crate) fn fields(label: &str, seen: &Seen, want: &Want) -> Vec<FieldDiff> {
    let mut fields = Vec::new();
    let mut add = |name: &str, before: Value, after: Value| {
        let name = if label.is_empty() { name.to_owned() } else { format!("{label}: {name}") };
        fields.push(FieldDiff { name, before, after });
    };
    let is_new = seen.kind != want.kind;
    if is_new {
        add("state", seen.kind.as_str().into(), want.kind.as_str().into());
    }
    let old = |value: Value| if is_new { Value::Null } else { value };
    if let Some(body) = &want.body
        && (is_new || seen.body.as_ref() != Some(body))
    {
        let before = seen.body.as_ref().map_or(Value::Null, |body| body.summary());
        add("content", old(before), body.summary());
    }
    if let Some(to) = &want.to
        && (is_new || seen.to.as_ref() != Some(to))
    {
        add("to", old(json!(seen.to)), to.as_str().into());
    }
    if let Some(mode) = want.mode
        && (is_new || seen.mode != mode)
    {
        add("mode", old(octal(seen.mode)), octal(mode));
    }
    if let Some(uid) = want.uid
        && (is_new || seen.uid != uid)
    {
        add("owner", old(seen.uid.into()), uid.into());
    }
    if let Some(gid) = want.gid
        && (is_new || seen.gid != gid)
    {
        add("group", old(seen.gid.into()), gid.into());
    }
    fields
}

fn octal(mode: u32) -> Value {
    format!("{mode:04o}").into()
}

/// Returns a unified diff of the content; nothing for what is not text.
fn unified(record: &Record) -> String {
    let text = |seen: &Seen| match (seen.kind, &seen.body) {
        (Kind::File, Some(body)) => body.text().map(str::to_owned),
        (Kind::File, None) => None,
        (Kind::Absent | Kind::Directory | Kind::Symlink | Kind::Other | Kind::Unknown, _) => {
            Some(String::new())
        }
    };
    let path = record.path.display().to_string();
    let after = record.want.after(&record.seen);
    let (Some(before), Some(wanted)) = (text(&record.seen), text(&after)) else {
        let summary = |seen: &Seen| seen.body.as_ref().map_or(Value::Null, |body| body.summary()).to_string();
        return format!("binary {path}: {} -> {}\n", summary(&record.seen), summary(&after));
    };
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(&before, &wanted);
    let name = |seen: &Seen| if seen.kind == Kind::Absent { "/dev/null".to_owned() } else { path.clone() };
    diff.unified_diff().context_radius(3).header(&name(&record.seen), &name(&after)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn written(text: &str) -> Diff {
        let record = Record {
            label: String::new(),
            path: PathBuf::from("/f"),
            seen: Seen::default(),
            want: Want::new(Kind::File).content(text.as_bytes().to_vec()),
            is_kept: false,
        };
        diff(&[record])
    }

    /// Section 7, rule 5: a diff is at most 64 KiB long and says that it was cut; of what is not text it has sizes and hashes.
    #[test]
    fn a_long_diff_is_cut_and_a_binary_one_is_told_by_hash() {
        let long = written(&"käse\n".repeat(20_000)).text.unwrap();
        assert!(long.len() <= 64 * 1024 && long.len() > 63 * 1024, "{}", long.len());
        assert!(long.ends_with("(cut at 64 KiB)\n") && long.contains("+käse\n"));
        assert!(!written("short\n").text.unwrap().contains("cut"));
        let record = Record {
            want: Want::new(Kind::File).content(vec![0xff, 0, 1]),
            label: String::new(),
            path: PathBuf::from("/f"),
            seen: Seen::default(),
            is_kept: false,
        };
        let binary = diff(&[record]).text.unwrap();
        assert!(binary.starts_with("binary /f: ") && binary.contains("sha256"), "{binary}");
    }
}
