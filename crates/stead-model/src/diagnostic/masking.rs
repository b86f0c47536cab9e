//! Keeps secrets out of the lines that problems show.
//!
//! A transport may hold a password, and a file with a problem may not even be YAML. So this looks at the text alone:
//! words that may be transports, and what follows `become_password:` on its line. What is masked by mistake is only
//! harder to read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Diagnostics, Place, Source};
use crate::transport::secret_ranges;

/// Returns the same problems over sources whose secrets are stars.
pub(super) fn mask(mut diagnostics: Diagnostics) -> Diagnostics {
    // By where the text lies in memory: all problems of a file share it.
    let mut masked: BTreeMap<*const u8, Arc<str>> = BTreeMap::new();
    let mut hide = |place: &mut Place| {
        if let Place::Text { source: Source { text, .. }, .. } = place {
            let hidden = masked.entry(text.as_ptr()).or_insert_with(|| mask_text(text).into());
            *text = Arc::clone(hidden);
        }
    };
    for diagnostic in &mut diagnostics.0 {
        hide(&mut diagnostic.place);
        diagnostic.related.iter_mut().for_each(|(place, _)| hide(place));
    }
    diagnostics
}

/// Returns `text` with stars for secrets, every byte at its place.
fn mask_text(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut stars = |range: Range<usize>| bytes[range].iter_mut().for_each(|byte| *byte = b'*');
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        for (at, word) in words(line) {
            secret_ranges(word)
                .into_iter()
                .for_each(|range| stars(start + at + range.start..start + at + range.end));
        }
        if let Some((_, tail)) = line.split_once("become_password:")
            && !tail.trim_start().starts_with(['{', '#'])
        {
            let value = tail.trim();
            let from = start + line.len() - tail.trim_start().len();
            stars(from..from + value.len());
        }
        start += line.len();
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Returns the words of a line that may be transports, with their offsets.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    line.split_inclusive(|c: char| c.is_whitespace() || c == '"' || c == '\'').filter_map(move |piece| {
        let from = at;
        at += piece.len();
        let word = piece.trim_end_matches(|c: char| c.is_whitespace() || "\"'},]".contains(c));
        (word.contains('@') || word.contains("://") || word.contains('?')).then_some((from, word))
    })
}
