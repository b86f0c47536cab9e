//! Words that narrow a list.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use super::key::Key;
use super::text_field::TextField;

/// Words that narrow a list: what is shown has all of them somewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    field: TextField,
    is_typing: bool,
}

impl Filter {
    /// Whether keys are text.
    pub(crate) fn is_typing(&self) -> bool {
        self.is_typing
    }

    /// Whether everything fits.
    pub(crate) fn is_empty(&self) -> bool {
        self.field.is_empty()
    }

    /// Returns what was typed.
    pub(crate) fn text(&self) -> String {
        self.field.text()
    }

    /// Returns what was typed before and behind the cursor.
    pub(crate) fn halves(&self) -> (String, String) {
        self.field.halves()
    }

    /// Takes keys as text from here on.
    pub(crate) fn begin(&mut self) {
        self.is_typing = true;
    }

    /// Forgets what was typed; returns whether there was something.
    pub(crate) fn clear(&mut self) -> bool {
        self.is_typing = false;
        let was_there = !self.field.is_empty();
        self.field = TextField::default();
        was_there
    }

    /// Takes a key while text is typed: Enter keeps it, Esc takes it back.
    pub(crate) fn press(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Esc => drop(self.clear()),
            other => self.field.press(other),
        }
    }

    /// Puts in text that was pasted.
    pub(crate) fn paste(&mut self, text: &str) {
        self.field.paste(text);
    }

    /// Returns the words.
    pub(crate) fn words(&self) -> Words {
        Words(self.text().to_lowercase().split_whitespace().map(str::to_owned).collect())
    }
}

/// The words of a filter.
#[derive(Clone, Debug)]
pub(crate) struct Words(Vec<String>);

impl Words {
    /// Whether every word is in one of `texts`.
    pub(crate) fn fit<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let texts: Vec<String> = texts.into_iter().map(str::to_lowercase).collect();
        self.0.iter().all(|word| texts.iter().any(|text| text.contains(word.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_to_be_somewhere() {
        let mut filter = Filter::default();
        filter.begin();
        "Web fail".chars().for_each(|c| filter.press(Key::Char(c)));
        assert!(filter.is_typing());
        let words = filter.words();
        assert!(words.fit(["web-1", "FAILED"]) && !words.fit(["web-1", "success"]));
        filter.press(Key::Enter);
        assert!(!filter.is_typing() && !filter.is_empty());
        filter.begin();
        filter.press(Key::Esc);
        assert!(filter.is_empty() && filter.words().fit(["anything"]) && !filter.clear());
    }
}
