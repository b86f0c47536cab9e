//! OpenSSH's patterns: `*`, `?`, and lists where `!` takes back.

/// Whether `text` fits `pattern`.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut from) = (0, 0);
    // Where the last star was, and how much it has taken.
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(b'?') => (at, from) = (at + 1, from + 1),
            Some(byte) if text.get(from) == Some(byte) => (at, from) = (at + 1, from + 1),
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    (at, from) = (place + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// Whether `text` fits one of the comma-separated patterns and none of those with `!`.
pub(super) fn list_matches(list: &str, text: &str) -> bool {
    let mut found = false;
    for pattern in list.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(pattern, text) => return false,
            Some(_) => {}
            None => found |= matches(pattern, text),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*.b.*", "a.b.c", true),
            ("a**", "a", true),
            ("?", "", false),
            ("?*", "ab", true),
            ("", "", true),
            ("", "a", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} for {text}");
        }
    }
}
