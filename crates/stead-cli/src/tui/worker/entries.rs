//! Lists a directory for the picker.

use std::fs;

use super::Surroundings;
use crate::settings::Settings;
use crate::tui::picker::Entry;
use crate::tui::state::Message;

/// What a directory is searched for at most: more would not be read by a person.
const MOST_ENTRIES: usize = 10_000;

/// Lists the directories and manifests in a directory; one that cannot be read has none.
pub(super) fn list(work: &Surroundings, directory: String) {
    let place = work.settings.current_dir.join(expand(&directory, &work.settings));
    let entries =
        fs::read_dir(place).into_iter().flatten().flatten().take(MOST_ENTRIES).filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_directory = entry.path().is_dir();
            let is_manifest = name.ends_with(".yaml") || name.ends_with(".yml");
            match (is_directory, is_manifest) {
                (true, _) => Some(Entry::Directory(name)),
                (false, true) => Some(Entry::File(name)),
                (false, false) => None,
            }
        });
    work.send(Message::Entries { entries: entries.collect(), directory });
}

/// Returns the path that `text` means to a shell: `~/` is the user's home.
pub(super) fn expand(text: &str, settings: &Settings) -> String {
    let home =
        settings.environment.get("HOME").and_then(|home| home.to_str()).filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        (Some(_), None) | (None, _) => text.to_owned(),
    }
}
