//! One line of ssh_config: a keyword and the words after it.

/// A line with something on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The keyword in lower case.
    pub(super) keyword: String,
    /// What follows it, without the blanks around.
    pub(super) rest: String,
}

impl Line {
    /// Returns nothing for an empty line or a comment.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let text = text.trim_matches([' ', '\t', '\r', '\n', '\u{c}']);
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        let end = text.find([' ', '\t', '=', '"']).unwrap_or(text.len());
        let (keyword, rest) = text.split_at(end);
        let mut rest = rest.trim_start_matches([' ', '\t']);
        // One equals sign may stand between them.
        if let Some(after) = rest.strip_prefix('=') {
            rest = after.trim_start_matches([' ', '\t']);
        }
        Ok(Some(Self { keyword: keyword.to_lowercase(), rest: rest.to_owned() }))
    }

    /// Returns what follows the keyword, as words.
    pub(super) fn words(&self) -> Result<Vec<String>, String> {
        words(&self.rest)
    }
}

/// Splits at blanks outside quotes; a `#` that begins a word begins a comment.
pub(super) fn words(text: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut characters = text.chars().peekable();
    loop {
        while characters.next_if(|c| *c == ' ' || *c == '\t').is_some() {}
        if characters.peek().is_none_or(|c| *c == '#') {
            return Ok(found);
        }
        let mut word = String::new();
        let mut quote = None;
        while let Some(c) = characters.peek().copied() {
            if quote.is_none() && (c == ' ' || c == '\t') {
                break;
            }
            characters.next();
            match c {
                '\\' => {
                    let escaped = characters.next_if(|next| {
                        matches!(next, '\'' | '"' | '\\') || (quote.is_none() && *next == ' ')
                    });
                    word.push(escaped.unwrap_or('\\'));
                }
                '"' | '\'' if quote.is_none() => quote = Some(c),
                c if quote == Some(c) => quote = None,
                c => word.push(c),
            }
        }
        if let Some(quote) = quote {
            return Err(format!("a {quote} is not closed"));
        }
        found.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_and_equals_signs() {
        for (text, keyword, rest) in [
            ("Host a b", "host", "a b"),
            ("  HostName=x ", "hostname", "x"),
            ("Port = 22", "port", "22"),
            ("IdentityFile\t\"a b\"", "identityfile", "\"a b\""),
            ("User==x", "user", "=x"),
        ] {
            let line = Line::parse(text).unwrap().unwrap();
            assert_eq!((line.keyword.as_str(), line.rest.as_str()), (keyword, rest), "{text}");
        }
        assert_eq!(Line::parse("  # a comment").unwrap(), None);
        assert_eq!(Line::parse(" \t").unwrap(), None);
    }

    #[test]
    fn words_quotes_and_comments() {
        for (text, expected) in [
            ("a b", vec!["a", "b"]),
            ("\"a b\" c", vec!["a b", "c"]),
            ("'a \"b' c", vec!["a \"b", "c"]),
            ("a\\ b", vec!["a b"]),
            ("a # rest", vec!["a"]),
            ("a#b", vec!["a#b"]),
            ("", vec![]),
            ("a\"b c\"d", vec!["ab cd"]),
        ] {
            assert_eq!(words(text).unwrap(), expected, "{text}");
        }
        assert!(words("\"open").is_err());
    }
}
