//! Choosing a file: a path that is typed, and what it could become.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use super::key::Key;
use super::text_field::TextField;

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// A directory to look into.
    Directory(String),
    /// A file to choose.
    File(String),
}

impl Entry {
    /// Returns its name, with a `/` if it is a directory.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Directory(name) => format!("{name}/"),
            Self::File(name) => name.clone(),
        }
    }
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Picked {
    /// The choice goes on; the directory that is named now has to be listed.
    Look(String),
    /// The choice goes on.
    Stay,
    /// This path.
    Path(String),
    /// Nothing.
    Closed,
}

/// A choice that goes on.
#[derive(Debug)]
pub(crate) struct Picker {
    /// What is typed.
    pub(crate) text: TextField,
    /// The directory whose entries are known, as it is typed, and the entries.
    listed: Option<(String, Vec<Entry>)>,
    at: usize,
}

impl Picker {
    /// Returns a choice that begins with `text`, and the directory to list.
    pub(crate) fn open(text: &str) -> (Self, String) {
        let picker = Self { text: TextField::new(text), listed: None, at: 0 };
        let (directory, _) = picker.parts();
        (picker, directory)
    }

    /// Takes the entries of a directory, if it is still the one that is typed: answers may overtake each other.
    pub(crate) fn take(&mut self, directory: &str, mut entries: Vec<Entry>) {
        if directory != self.parts().0 {
            return;
        }
        entries.sort();
        self.listed = Some((directory.to_owned(), entries));
        self.at = 0;
    }

    /// Returns the directory and the beginning of a name that are typed.
    fn parts(&self) -> (String, String) {
        let text = self.text.text();
        match text.rfind('/') {
            Some(slash) => (text[..=slash].to_owned(), text[slash + 1..].to_owned()),
            None => (String::new(), text),
        }
    }

    /// Returns what the typed text could become, and which of it is at the cursor.
    pub(crate) fn matches(&self) -> (Vec<&Entry>, usize) {
        let (directory, start) = self.parts();
        let entries = match &self.listed {
            Some((listed, entries)) if *listed == directory => entries.as_slice(),
            Some(_) | None => &[],
        };
        let hidden = |name: &str| name.starts_with('.') && !start.starts_with('.');
        let fits = |entry: &&Entry| match entry {
            Entry::Directory(name) | Entry::File(name) => name.starts_with(&start) && !hidden(name),
        };
        let mut found: Vec<&Entry> = entries.iter().filter(fits).collect();
        // A name that was typed in full is meant, whatever else begins so.
        found.sort_by_key(|entry| **entry != Entry::File(start.clone()));
        let at = self.at.min(found.len().saturating_sub(1));
        (found, at)
    }

    /// Whether the directory that is typed has been listed.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.as_ref().is_some_and(|(listed, _)| *listed == self.parts().0)
    }

    /// Takes a key.
    pub(crate) fn press(&mut self, key: Key) -> Picked {
        match key {
            Key::Esc => Picked::Closed,
            Key::Up => self.step(-1),
            Key::Down => self.step(1),
            Key::PageUp => self.step(-10),
            Key::PageDown => self.step(10),
            Key::Enter | Key::Tab => self.accept(key),
            _ => {
                let before = self.parts().0;
                self.text.press(key);
                self.after_edit(&before)
            }
        }
    }

    /// Takes text that was pasted.
    pub(crate) fn paste(&mut self, text: &str) -> Picked {
        let before = self.parts().0;
        self.text.paste(text);
        self.after_edit(&before)
    }

    fn after_edit(&mut self, before: &str) -> Picked {
        self.at = 0;
        let directory = self.parts().0;
        if directory == before { Picked::Stay } else { Picked::Look(directory) }
    }

    fn step(&mut self, by: isize) -> Picked {
        let (found, at) = self.matches();
        self.at = at.saturating_add_signed(by).min(found.len().saturating_sub(1));
        Picked::Stay
    }

    /// Enter takes the entry at the cursor, or the text where there is none; Tab only completes.
    fn accept(&mut self, key: Key) -> Picked {
        let directory = self.parts().0;
        let (found, at) = self.matches();
        match found.get(at).map(|entry| (*entry).clone()) {
            Some(entry @ Entry::Directory(_)) => {
                self.text = TextField::new(&format!("{directory}{}", entry.name()));
                self.at = 0;
                Picked::Look(self.parts().0)
            }
            Some(entry @ Entry::File(_)) => {
                let path = format!("{directory}{}", entry.name());
                if key == Key::Enter {
                    return Picked::Path(path);
                }
                self.text = TextField::new(&path);
                self.at = 0;
                Picked::Stay
            }
            None if key == Key::Enter => Picked::Path(self.text.text()),
            None => Picked::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        let file = |name: &str| Entry::File(name.to_owned());
        vec![file("b.yaml"), file("a.yaml"), Entry::Directory("lab".to_owned()), file(".hidden.yaml")]
    }

    fn names(picker: &Picker) -> Vec<String> {
        picker.matches().0.iter().map(|entry| entry.name()).collect()
    }

    #[test]
    fn typing_narrows_the_list_and_enter_takes_what_is_at_the_cursor() {
        let (mut picker, directory) = Picker::open("");
        assert_eq!(directory, "");
        picker.take("", entries());
        assert_eq!(names(&picker), ["lab/", "a.yaml", "b.yaml"]);
        picker.press(Key::Down);
        picker.press(Key::Down);
        assert_eq!(picker.press(Key::Enter), Picked::Path("b.yaml".to_owned()));
        picker.press(Key::Char('l'));
        assert_eq!(picker.press(Key::Enter), Picked::Look("lab/".to_owned()));
        assert!(names(&picker).is_empty());
        picker.take("lab/", entries());
        picker.press(Key::Char('a'));
        assert_eq!(picker.press(Key::Tab), Picked::Stay);
        assert_eq!(picker.text.text(), "lab/a.yaml");
        assert_eq!(picker.press(Key::Esc), Picked::Closed);
    }

    #[test]
    fn a_path_that_is_typed_counts_whether_its_directory_is_listed_or_not() {
        let (mut picker, _) = Picker::open("");
        let mut looked = Vec::new();
        for c in "/labs/a.yaml".chars() {
            if let Picked::Look(directory) = picker.press(Key::Char(c)) {
                looked.push(directory);
            }
        }
        assert_eq!(looked, ["/", "/labs/"]);
        assert_eq!(picker.press(Key::Enter), Picked::Path("/labs/a.yaml".to_owned()));
        let mut entries = entries();
        entries.push(Entry::Directory("a.yaml.d".to_owned()));
        picker.take("/labs/", entries.clone());
        assert_eq!(picker.press(Key::Enter), Picked::Path("/labs/a.yaml".to_owned()));
        picker.take("/", entries);
        assert!(picker.is_listed(), "a late answer changes nothing");
    }
}
