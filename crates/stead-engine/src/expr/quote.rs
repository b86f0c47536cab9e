//! Shell quoting: the one rule for display, for the `quote` filter and wherever a shell line must be built.

/// Returns `word` so that a shell reads it as exactly this one word.
///
/// Words of `[A-Za-z0-9_@%+=:,./-]+` stand bare, all others in single quotes.
pub fn word(word: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&b);
    if !word.is_empty() && word.bytes().all(bare) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns `argv` as one shell line. A program name with `=` is quoted, lest it be read as an assignment.
pub fn argv<S: AsRef<str>>(argv: &[S]) -> String {
    let mut line = String::new();
    for (i, item) in argv.iter().enumerate() {
        let item = item.as_ref();
        if i > 0 {
            line.push(' ');
        }
        if i == 0 && item.contains('=') && !word(item).starts_with('\'') {
            line.push_str(&format!("'{item}'"));
        } else {
            line.push_str(&word(item));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_by_the_vector_of_the_contract() {
        let line = argv(&["printf", "%s\n", "", "a b", "it's", "$(x)", "~", "-n"]);
        assert_eq!(line, "printf '%s\n' '' 'a b' 'it'\\''s' '$(x)' '~' -n");
        assert_eq!(argv(&["A=b", "C=d"]), "'A=b' C=d");
        assert_eq!(word("ü"), "'ü'");
    }
}
