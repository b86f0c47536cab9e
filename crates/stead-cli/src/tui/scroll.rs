//! Which part of something long is on the screen, and lines cut to its width.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use std::cell::Cell;

use unicode_width::UnicodeWidthChar;

use super::key::Key;

/// How far something is scrolled.
///
/// Only drawing knows how long a thing is at today's width, so drawing notes what it showed and how far that can be
/// scrolled; the next key starts from there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scroll {
    at: Cell<usize>,
    most: Cell<usize>,
    page: Cell<usize>,
}

impl Scroll {
    /// Returns the first row to draw of `rows` in a window of `height`, and notes both.
    pub(crate) fn top(&self, rows: usize, height: usize) -> usize {
        self.page.set(height);
        self.most.set(rows.saturating_sub(height));
        self.at.set(self.at.get().min(self.most.get()));
        self.at.get()
    }

    /// Returns the first row to draw so that row `chosen` is in the window: scrolling by hand starts there.
    pub(crate) fn follow(&self, chosen: usize, rows: usize, height: usize) -> usize {
        self.at.set(around(chosen, rows, height));
        self.top(rows, height)
    }

    /// Takes a key that scrolls by pages; returns whether it was one.
    pub(crate) fn page(&mut self, key: Key) -> bool {
        let page = self.page.get().saturating_sub(1).max(1);
        match key {
            Key::PageUp => self.by(-(page as isize)),
            Key::PageDown => self.by(page as isize),
            Key::Home => self.at.set(0),
            Key::End => self.at.set(self.most.get()),
            _ => return false,
        }
        true
    }

    /// Scrolls by some rows.
    pub(crate) fn by(&mut self, rows: isize) {
        self.at.set(self.at.get().saturating_add_signed(rows).min(self.most.get()));
    }
}

/// Returns the first row to draw so that row `chosen` of `rows` is in a window of `height`, near its middle.
pub(crate) fn around(chosen: usize, rows: usize, height: usize) -> usize {
    chosen.saturating_sub(height / 2).min(rows.saturating_sub(height))
}

/// Returns the row that a key moves the cursor to from row `at` of `rows`, a page being `page` rows.
pub(crate) fn moved(at: usize, rows: usize, key: Key, page: usize) -> usize {
    let last = rows.saturating_sub(1);
    match key {
        Key::Up | Key::Char('k') => at.saturating_sub(1),
        Key::Down | Key::Char('j') => at.saturating_add(1).min(last),
        Key::PageUp => at.saturating_sub(page),
        Key::PageDown => at.saturating_add(page).min(last),
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => last,
        _ => at,
    }
}

/// Returns `line` in pieces that are at most `width` columns wide; an empty line is one empty piece.
pub(crate) fn wrap(line: &str, width: usize) -> Vec<&str> {
    let width = width.max(2);
    let (mut pieces, mut start, mut used) = (Vec::new(), 0, 0);
    for (at, c) in line.char_indices() {
        let wide = c.width().unwrap_or(0);
        if used + wide > width {
            pieces.push(&line[start..at]);
            (start, used) = (at, 0);
        }
        used += wide;
    }
    pieces.push(&line[start..]);
    pieces
}

/// Returns `text` in pieces that are at most `width` columns wide, cut between words where that is possible.
pub(crate) fn wrap_words(text: &str, width: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        let first = wrap(rest, width)[0];
        if first.len() == rest.len() {
            pieces.push(rest);
            return pieces;
        }
        // A blank right behind the piece is as good as one in it.
        let whole = rest[first.len()..].starts_with(' ');
        let end =
            if whole { first.len() } else { first.rfind(' ').filter(|end| *end > 0).unwrap_or(first.len()) };
        pieces.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(' ');
    }
}

/// Returns `text` cut to `width` columns, its last one `…` if something was cut.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut used = 0;
    let kept = text.chars().take_while(|c| {
        used += c.width().unwrap_or(0);
        used < width
    });
    let mut cut: String = kept.collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Returns how many columns `text` takes.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrolling_ends_where_the_last_drawing_ended() {
        let mut scroll = Scroll::default();
        assert_eq!(scroll.top(100, 10), 0);
        assert!(scroll.page(Key::PageDown));
        assert_eq!(scroll.top(100, 10), 9);
        assert!(scroll.page(Key::End));
        scroll.by(5);
        assert_eq!(scroll.top(100, 10), 90);
        // The thing got shorter: what was scrolled too far does not have to be scrolled back.
        assert_eq!(scroll.top(20, 10), 10);
        scroll.by(-1);
        assert_eq!(scroll.top(20, 10), 9);
        assert!(!scroll.page(Key::Enter));
    }

    #[test]
    fn the_chosen_row_is_always_in_the_window() {
        for chosen in 0..30 {
            let top = around(chosen, 30, 7);
            assert!((top..top + 7).contains(&chosen), "{chosen}: {top}");
        }
        assert_eq!(around(3, 5, 10), 0);
    }

    #[test]
    fn wide_characters_are_not_cut_in_half() {
        assert_eq!(wrap("abcdef", 4), ["abcd", "ef"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap("日本語", 5), ["日本", "語"]);
        assert_eq!(wrap_words("stopped by a signal", 10), ["stopped by", "a signal"]);
        assert_eq!(wrap_words("a stopped signal", 10), ["a stopped", "signal"]);
        assert_eq!(wrap_words("/a/path/without/blanks", 10), ["/a/path/wi", "thout/blan", "ks"]);
        assert_eq!(wrap_words("  x", 2), [" ", "x"]);
        assert_eq!(wrap_words("", 10), [""]);
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abc", 0), "");
    }
}
