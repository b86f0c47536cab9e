//! Commands as lists of words, and the one way to write such a list as a line.

/// Returns `argv` as a line that a POSIX shell splits into exactly these words again.
///
/// For display, and where a shell line must be built. Bytes that are not text are kept; a NUL cannot be in a word.
pub fn quote<Word: AsRef<[u8]>>(argv: impl IntoIterator<Item = Word>) -> Vec<u8> {
    let mut line = Vec::new();
    for (index, word) in argv.into_iter().enumerate() {
        if index > 0 {
            line.push(b' ');
        }
        let word = word.as_ref();
        // A first word with `=` would be an assignment.
        let stands_bare = |byte: &u8| {
            byte.is_ascii_alphanumeric() || b"_@%+:,./-".contains(byte) || (*byte == b'=' && index > 0)
        };
        if !word.is_empty() && word.iter().all(stands_bare) {
            line.extend_from_slice(word);
            continue;
        }
        line.push(b'\'');
        for byte in word {
            match byte {
                b'\'' => line.extend_from_slice(br"'\''"),
                byte => line.push(*byte),
            }
        }
        line.push(b'\'');
    }
    line
}

/// Returns [`quote`] of words that are text, as text.
pub fn quote_text<Word: AsRef<str>>(argv: impl IntoIterator<Item = Word>) -> String {
    let words: Vec<Word> = argv.into_iter().collect();
    let line = quote(words.iter().map(|word| word.as_ref().as_bytes()));
    String::from_utf8_lossy(&line).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The contract's vector.
    #[test]
    fn words_are_quoted_as_the_contract_says() {
        let argv = ["printf", "%s\n", "", "a b", "it's", "$(x)", "~", "-n"];
        assert_eq!(quote_text(argv), "printf '%s\n' '' 'a b' 'it'\\''s' '$(x)' '~' -n");
    }

    #[test]
    fn an_assignment_is_quoted_only_in_front() {
        assert_eq!(quote_text(["A=b", "A=b"]), "'A=b' A=b");
    }

    proptest! {
        /// Undoing the quotes by a shell's rules gives the words back.
        #[test]
        fn a_shell_splits_the_line_into_the_same_words(
            argv in prop::collection::vec(prop::collection::vec(1u8.., 0..6), 1..5),
        ) {
            let line = quote(&argv);
            prop_assert_eq!(split(&line), argv);
        }
    }

    /// Splits as a POSIX shell does, as far as blanks, single quotes and backslashes go.
    fn split(line: &[u8]) -> Vec<Vec<u8>> {
        let (mut words, mut word, mut quoted, mut open) = (Vec::new(), Vec::new(), false, false);
        let mut bytes = line.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'\'' => (quoted, open) = (!quoted, true),
                b'\\' if !quoted => word.extend(bytes.next()),
                b' ' if !quoted => {
                    words.push(std::mem::take(&mut word));
                    open = false;
                }
                byte => {
                    word.push(*byte);
                    open = true;
                }
            }
        }
        if open || !word.is_empty() {
            words.push(word);
        }
        words
    }
}
