//! Makes any text safe to show: no escape sequences, no control characters, one line where one is wanted.

use std::borrow::Cow;

/// What stands for a character that must not be shown.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character would move the cursor, ring, or reorder what is shown.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
}

/// Returns how many there are: `1 task`, `2 tasks`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Returns `text` as one line: line breaks become ` | `, tabs spaces, escape sequences go.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    let text = text.trim_end_matches(['\n', '\r']);
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let lines: Vec<String> = text.lines().map(|line| clean(line).into_owned()).collect();
    Cow::Owned(lines.join(" | "))
}

/// Returns one line without its line break, safe to show.
pub(crate) fn clean(line: &str) -> Cow<'_, str> {
    if !line.contains(is_unsafe) {
        return Cow::Borrowed(line);
    }
    let mut shown = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_sequence(&mut chars),
            '\t' | '\r' | '\n' => shown.push(' '),
            c if is_unsafe(c) => shown.push(REPLACEMENT),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Skips the rest of an ANSI escape sequence. Programs colour their output; their words are what matters.
fn skip_sequence(chars: &mut std::str::Chars<'_>) {
    match chars.clone().next() {
        Some('[') => {
            chars.next();
            // Parameters and intermediates, then one final byte.
            skip_while(chars, |c| ('\x20'..='\x3f').contains(&c));
            if chars.clone().next().is_some_and(|c| ('\x40'..='\x7e').contains(&c)) {
                chars.next();
            }
        }
        Some(']') => {
            skip_while(chars, |c| c != '\x07' && c != '\x1b');
            if chars.clone().next() == Some('\x07') {
                chars.next();
            }
        }
        Some('\x20'..='\x7e') => {
            chars.next();
        }
        Some(_) | None => {}
    }
}

fn skip_while(chars: &mut std::str::Chars<'_>, unwanted: impl Fn(char) -> bool) {
    while chars.clone().next().is_some_and(&unwanted) {
        chars.next();
    }
}

/// Returns `line` cut to `columns` characters, its last one `…` if something was cut.
///
/// Counts characters, which is exact for what live lines hold: names are ASCII.
pub(crate) fn fit(line: &str, columns: usize) -> Cow<'_, str> {
    if line.chars().count() <= columns {
        return Cow::Borrowed(line);
    }
    let mut cut: String = line.chars().take(columns.saturating_sub(1)).collect();
    if columns > 0 {
        cut.push('…');
    }
    Cow::Owned(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_and_controls_replaced() {
        assert_eq!(one_line("plain"), "plain");
        assert_eq!(one_line("a\r\nb\n"), "a | b");
        assert_eq!(one_line("bell\x07 nul\0 c1\u{9b}31m"), "bell\u{fffd} nul\u{fffd} c1\u{fffd}31m");
        assert_eq!(one_line("tab\there"), "tab here");
        assert_eq!(one_line("\u{202e}evil"), "\u{fffd}evil");
    }

    #[test]
    fn escape_sequences_go_whole_or_cut() {
        assert_eq!(clean("\x1b[1;31mred\x1b[0m"), "red");
        assert_eq!(clean("\x1b]0;title\x07x"), "x");
        assert_eq!(clean("\x1b]8;;http://e\x1b\\link"), "link");
        for cut in ["\x1b", "\x1b[", "\x1b[31", "\x1b]0;t", "\x1b\x1b[2J"] {
            assert!(!clean(cut).contains('\x1b'), "{cut:?}");
        }
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(fit("abcdef", 6), "abcdef");
        assert_eq!(fit("abcdef", 4), "abc…");
        assert_eq!(fit("abc", 0), "");
    }
}
