//! A regular expression that a whole value must fit.

use regex::Regex;

/// A regular expression that a whole value must fit.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl Pattern {
    /// Returns the pattern `text` is, or why it is none.
    pub fn parse(text: &str) -> Result<Self, regex::Error> {
        // Alone first: `a)(b` would be balanced by the group around it.
        Regex::new(text)?;
        Ok(Self { text: text.to_owned(), regex: Regex::new(&format!(r"\A(?:{text})\z"))? })
    }

    /// Whether all of `value` fits.
    pub fn fits(&self, value: &str) -> bool {
        self.regex.is_match(value)
    }

    /// Returns the pattern as it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_the_whole_value() {
        let pattern = Pattern::parse("[a-z]+|x1").unwrap();
        assert!(pattern.fits("abc"));
        assert!(pattern.fits("x1"));
        for bad in ["", "abc1", "1abc", "abc\n", "x1x1"] {
            assert!(!pattern.fits(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_must_stand_alone() {
        for bad in ["a)(b", "(", "[a", "*"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }
}
