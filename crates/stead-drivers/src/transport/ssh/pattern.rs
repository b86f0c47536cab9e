//! OpenSSH's patterns: `*`, `?`, and lists where `!` takes back.

/// Whether a file's `name` fits `pattern`, as a shell has it: sets of bytes in brackets too.
pub(super) fn names(pattern: &str, name: &str) -> bool {
    fn fits(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) => {
                (0..=name.len()).any(|taken| name.get(taken..).is_some_and(|left| fits(rest, left)))
            }
            (Some((b'?', rest)), Some((_, name))) => fits(rest, name),
            (Some((b'[', rest)), Some((byte, left))) => match set(rest) {
                Some((has, rest)) => has(*byte) && fits(rest, left),
                // Without its end it is a bracket like any other letter.
                None => *byte == b'[' && fits(rest, left),
            },
            (Some((wanted, rest)), Some((byte, name))) => wanted == byte && fits(rest, name),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
    fits(pattern.as_bytes(), name.as_bytes())
}

/// Returns what a set behind its `[` has, and what comes after its `]`; `!` or `^` turns it round.
fn set(pattern: &[u8]) -> Option<(impl Fn(u8) -> bool, &[u8])> {
    let inverted = matches!(pattern.first(), Some(b'!' | b'^'));
    let pattern = pattern.get(usize::from(inverted)..)?;
    // One that stands first is a member.
    let end = pattern.iter().skip(1).position(|byte| *byte == b']')? + 1;
    let (members, rest) = (pattern.get(..end)?, pattern.get(end + 1..)?);
    let has = move |byte: u8| {
        let mut members = members;
        let mut found = false;
        while let Some((first, after)) = members.split_first() {
            let (last, after) = match after {
                [b'-', last, after @ ..] => (last, after),
                _ => (first, after),
            };
            found |= (*first..=*last).contains(&byte);
            members = after;
        }
        found != inverted
    };
    Some((has, rest))
}

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
    fn names_of_files_know_sets() {
        for (pattern, name, expected) in [
            ("[ab].conf", "a.conf", true),
            ("[ab].conf", "c.conf", false),
            ("[0-9]*", "10-web", true),
            ("[!0-9]*", "10-web", false),
            ("[^0-9]*", "web", true),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("[a", "[a", true),
            ("*.d?", "x.d1", true),
            ("*", "", true),
        ] {
            assert_eq!(names(pattern, name), expected, "{pattern} for {name}");
        }
    }

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
