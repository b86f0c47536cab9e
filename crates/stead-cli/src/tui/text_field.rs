//! One line of text that a person edits.

use super::key::Key;

/// What fits one field; more is not typed by a person.
const MOST_CHARS: usize = 4096;

/// A text with a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextField {
    chars: Vec<char>,
    // Invariant: at most `chars.len()`.
    cursor: usize,
}

impl TextField {
    /// Returns a field that holds `text`, the cursor at its end.
    pub(crate) fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().take(MOST_CHARS).collect();
        Self { cursor: chars.len(), chars }
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> String {
        self.chars.iter().collect()
    }

    /// Returns the text before and after the cursor.
    pub(crate) fn halves(&self) -> (String, String) {
        let (before, after) = self.chars.split_at(self.cursor);
        (before.iter().collect(), after.iter().collect())
    }

    /// Whether nothing was typed.
    pub(crate) fn is_empty(&self) -> bool {
        self.chars.is_empty()
    }

    /// Takes a key that edits; other keys do nothing.
    pub(crate) fn press(&mut self, key: Key) {
        match key {
            Key::Char(c) => self.insert(c),
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.chars.remove(self.cursor);
            }
            Key::Delete if self.cursor < self.chars.len() => {
                self.chars.remove(self.cursor);
            }
            Key::DeleteLine => {
                self.chars.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.chars.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.chars.len(),
            Key::Enter
            | Key::Esc
            | Key::Tab
            | Key::BackTab
            | Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Backspace
            | Key::Delete
            | Key::Interrupt
            | Key::Redraw => {}
        }
    }

    /// Puts text that was pasted in at the cursor; line breaks and other controls are left out.
    pub(crate) fn paste(&mut self, text: &str) {
        text.chars().for_each(|c| self.insert(c));
    }

    fn insert(&mut self, c: char) {
        if !c.is_control() && self.chars.len() < MOST_CHARS {
            self.chars.insert(self.cursor, c);
            self.cursor += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_edited_at_the_cursor() {
        let mut field = TextField::new("runs");
        field.press(Key::Home);
        field.press(Key::Char('ä'));
        assert_eq!(field.halves(), ("ä".to_owned(), "runs".to_owned()));
        field.press(Key::Delete);
        field.press(Key::End);
        field.press(Key::Backspace);
        assert_eq!(field.text(), "äun");
        field.paste("\nx\x1b[2Jy\n");
        assert_eq!(field.text(), "äunx[2Jy");
        field.press(Key::DeleteLine);
        field.press(Key::Backspace);
        field.press(Key::Left);
        assert!(field.is_empty());
    }
}
