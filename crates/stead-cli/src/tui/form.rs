//! What a run is started with: the fields of the Controller before a run.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use super::key::Key;
use super::picker::Picker;
use super::scroll::Scroll;
use super::text_field::TextField;

/// The limit of a run if nobody says otherwise.
pub(crate) const DEFAULT_TIMEOUT: &str = "5m";

/// A field of the form, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// The manifest's path.
    Manifest,
    /// Where the bundle is made.
    BundleDir,
    /// How long the run may take.
    Timeout,
    /// Whether `r` only shows what would be done.
    DryRun,
    /// Whether the log of the run holds the output of roles.
    Verbose,
}

impl Field {
    /// Every field, in order.
    pub(crate) const ALL: [Self; 5] =
        [Self::Manifest, Self::BundleDir, Self::Timeout, Self::DryRun, Self::Verbose];

    /// Returns what it is called.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Manifest => "Manifest",
            Self::BundleDir => "Bundle directory",
            Self::Timeout => "Timeout",
            Self::DryRun => "Dry run",
            Self::Verbose => "Verbose",
        }
    }
}

/// What a run is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The manifest's path.
    pub(crate) manifest: String,
    /// Where the bundle is made.
    pub(crate) bundle_dir: String,
    /// How long it may take, as it was typed.
    pub(crate) timeout: String,
    /// Whether the log holds the output of roles.
    pub(crate) verbose: bool,
}

/// A role of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoleLine {
    /// Its name.
    pub(crate) name: String,
    /// `service` or `task`.
    pub(crate) kind: String,
    /// The id of its agent.
    pub(crate) agent: String,
    /// How the agent is reached, secrets masked.
    pub(crate) transport: String,
}

/// A manifest that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Its roles, in start order.
    pub(crate) roles: Vec<RoleLine>,
    /// The phases of its run, in plan order.
    pub(crate) phases: Vec<String>,
    /// What was found odd in it.
    pub(crate) warnings: Vec<String>,
}

/// Something that is wrong with what was typed or with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Where, with line and column if there are any; may be empty.
    pub(crate) place: String,
    /// What.
    pub(crate) message: String,
    /// What to do about it; may be empty.
    pub(crate) help: String,
}

/// What stands below the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing is known yet.
    Nothing,
    /// An answer is on its way.
    Waiting,
    /// The roles of the manifest.
    Roles(Manifest),
    /// The manifest is valid, and was asked about.
    Valid(Manifest),
    /// What a run would do.
    DryRun(Vec<String>),
    /// What is wrong.
    Problems(Vec<Problem>),
}

/// How a text field is being edited.
#[derive(Debug)]
pub(crate) enum Editing {
    /// In place, and what it held before.
    InPlace(TextField),
    /// With a list of files below.
    Picker(Picker),
}

/// The form.
#[derive(Debug)]
pub(crate) struct Form {
    manifest: TextField,
    bundle_dir: TextField,
    timeout: TextField,
    dry_run: bool,
    verbose: bool,
    at: usize,
    /// The field at the cursor, while it is edited.
    pub(crate) editing: Option<Editing>,
    /// What stands below the fields.
    pub(crate) answer: Answer,
    /// Which part of it is on the screen.
    pub(crate) scroll: Scroll,
    /// Tells the last question from earlier ones.
    pub(crate) serial: u64,
}

impl Default for Form {
    fn default() -> Self {
        Self {
            manifest: TextField::default(),
            bundle_dir: TextField::new("runs"),
            timeout: TextField::new(DEFAULT_TIMEOUT),
            dry_run: false,
            verbose: false,
            at: 0,
            editing: None,
            answer: Answer::Nothing,
            scroll: Scroll::default(),
            serial: 0,
        }
    }
}

impl Form {
    /// Returns the field at the cursor.
    pub(crate) fn field(&self) -> Field {
        Field::ALL[self.at.min(Field::ALL.len() - 1)]
    }

    /// Moves the cursor.
    pub(crate) fn step(&mut self, by: isize) {
        self.at = self.at.saturating_add_signed(by).min(Field::ALL.len() - 1);
    }

    /// Returns the text of a field that has one.
    pub(crate) fn text(&self, field: Field) -> Option<&TextField> {
        match field {
            Field::Manifest => Some(&self.manifest),
            Field::BundleDir => Some(&self.bundle_dir),
            Field::Timeout => Some(&self.timeout),
            Field::DryRun | Field::Verbose => None,
        }
    }

    /// Returns the text of the field at the cursor, to be edited.
    pub(crate) fn text_mut(&mut self) -> Option<&mut TextField> {
        match self.field() {
            Field::Manifest => Some(&mut self.manifest),
            Field::BundleDir => Some(&mut self.bundle_dir),
            Field::Timeout => Some(&mut self.timeout),
            Field::DryRun | Field::Verbose => None,
        }
    }

    /// Whether a field that is on or off is on.
    pub(crate) fn is_on(&self, field: Field) -> Option<bool> {
        match field {
            Field::DryRun => Some(self.dry_run),
            Field::Verbose => Some(self.verbose),
            Field::Manifest | Field::BundleDir | Field::Timeout => None,
        }
    }

    /// Turns the field at the cursor on or off, if it can be.
    pub(crate) fn toggle(&mut self) {
        match self.field() {
            Field::DryRun => self.dry_run = !self.dry_run,
            Field::Verbose => self.verbose = !self.verbose,
            Field::Manifest | Field::BundleDir | Field::Timeout => {}
        }
    }

    /// Whether `r` only shows what would be done.
    pub(crate) fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns what the fields say.
    pub(crate) fn request(&self) -> Request {
        Request {
            manifest: self.manifest.text(),
            bundle_dir: self.bundle_dir.text(),
            timeout: self.timeout.text(),
            verbose: self.verbose,
        }
    }

    /// Returns the number of a new question, whose answer is awaited.
    pub(crate) fn ask(&mut self) -> u64 {
        self.serial += 1;
        self.answer = Answer::Waiting;
        self.scroll = Scroll::default();
        self.serial
    }

    /// Shows an answer that did not have to be waited for.
    pub(crate) fn say(&mut self, answer: Answer) {
        self.serial += 1;
        self.answer = answer;
        self.scroll = Scroll::default();
    }

    /// Starts to edit the field at the cursor in place.
    pub(crate) fn edit(&mut self) {
        if let Some(text) = self.text_mut() {
            self.editing = Some(Editing::InPlace(text.clone()));
        }
    }

    /// Takes a key while a field is edited in place; returns whether the field has a new text.
    pub(crate) fn press_in_place(&mut self, key: Key) -> bool {
        let before = match self.editing.take() {
            Some(Editing::InPlace(before)) => before,
            other => {
                self.editing = other;
                return false;
            }
        };
        match key {
            Key::Enter | Key::Tab | Key::BackTab | Key::Up | Key::Down => {
                let changed = self.text_mut().is_some_and(|text| text.text() != before.text());
                match key {
                    Key::Up | Key::BackTab => self.step(-1),
                    Key::Down | Key::Tab => self.step(1),
                    _ => {}
                }
                return changed;
            }
            Key::Esc => {
                if let Some(text) = self.text_mut() {
                    *text = before;
                }
                return false;
            }
            _ => {
                if let Some(text) = self.text_mut() {
                    text.press(key);
                }
            }
        }
        self.editing = Some(Editing::InPlace(before));
        false
    }

    /// Sets the manifest's path.
    pub(crate) fn set_manifest(&mut self, path: &str) {
        self.manifest = TextField::new(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_edited_and_escape_takes_it_back() {
        let mut form = Form::default();
        form.step(1);
        form.edit();
        assert!(!form.press_in_place(Key::Char('q')));
        assert!(!form.press_in_place(Key::Esc));
        assert_eq!(form.request().bundle_dir, "runs");
        form.edit();
        form.press_in_place(Key::Char('q'));
        assert!(form.press_in_place(Key::Enter));
        assert_eq!(form.request().bundle_dir, "runsq");
        assert!(form.editing.is_none());
    }

    #[test]
    fn the_fields_have_the_defaults_of_the_command_line() {
        let mut form = Form::default();
        let request = form.request();
        assert_eq!(
            (request.bundle_dir.as_str(), request.timeout.as_str(), request.verbose),
            ("runs", "5m", false)
        );
        form.step(isize::MAX);
        assert_eq!(form.field(), Field::Verbose);
        form.toggle();
        assert!(form.request().verbose && !form.is_dry_run());
        form.step(-1);
        form.toggle();
        assert!(form.is_dry_run());
    }
}
