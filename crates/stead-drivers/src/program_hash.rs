//! The hash of a program, remembered between runs: reading tens of megabytes again takes longer than a short run.
//!
//! What is remembered holds for one state of one file. The kernel sets the time of a file's last change and nobody else
//! can, so whoever writes to the file or puts another in its place makes the note worthless.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stead_model::plan::Digest;
use stead_runner::clock;
use stead_runner::files::Content;

/// The file of the note.
const NOTE: &str = "program.json";
/// A file that changed this short a time ago may change once more without a new time of change.
const SETTLED_MICROS: i64 = 2_000_000;
/// No note is as long as this.
const LONGEST_NOTE: u64 = 4 << 10;

/// A state of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    modified_nanos: i128,
    changed_nanos: i128,
}

impl FileState {
    fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified_nanos: nanos(found.mtime(), found.mtime_nsec()),
            changed_nanos: nanos(found.ctime(), found.ctime_nsec()),
        })
    }

    fn is_settled(&self) -> bool {
        self.changed_nanos / 1_000 + i128::from(SETTLED_MICROS) < i128::from(clock::now().as_micros())
    }
}

/// What is remembered of a program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    file: FileState,
    sha256: String,
}

/// Returns the SHA-256 of `program`, remembered in the directory `place` or found out and remembered there.
///
/// # Errors
/// If the program cannot be read. A note that cannot be read or written costs only time.
pub(crate) fn of(program: &Path, place: &Path) -> io::Result<String> {
    let mut file = File::open(program)?;
    let state = FileState::of(&file)?;
    let note = place.join(NOTE);
    if let Some(known) = read(&note).filter(|known| known.file == state) {
        return Ok(known.sha256);
    }
    let sha256 = Content::read(&mut file)?.sha256;
    if state.is_settled() && FileState::of(&file)? == state {
        write(place, &note, &Note { file: state, sha256: sha256.clone() }).unwrap_or(());
    }
    Ok(sha256)
}

/// Returns what is remembered, if nobody else can have written it.
fn read(note: &Path) -> Option<Note> {
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).ok()?;
    let file = File::options().read(true).custom_flags(flags).open(note).ok()?;
    let found = file.metadata().ok()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if !found.is_file() || !is_own || found.len() > LONGEST_NOTE {
        return None;
    }
    let known: Note = serde_json::from_reader(BufReader::new(file)).ok()?;
    Digest::parse(&known.sha256).is_some().then_some(known)
}

fn write(place: &Path, note: &Path, known: &Note) -> io::Result<()> {
    // Made for its owner alone, and whole or not at all: several runs may do this at once.
    let temporary = tempfile::Builder::new().prefix(".program").tempfile_in(place)?;
    serde_json::to_writer(temporary.as_file(), known)?;
    temporary.persist(note)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    /// Makes a program whose last change is long ago; only waiting can do that.
    fn settled(path: &Path, content: &str) {
        fs::write(path, content).unwrap();
        while !FileState::of(&File::open(path).unwrap()).unwrap().is_settled() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn forge(place: &Path, change: impl FnOnce(&mut Note)) {
        let mut known = read(&place.join(NOTE)).unwrap();
        change(&mut known);
        fs::write(place.join(NOTE), serde_json::to_vec(&known).unwrap()).unwrap();
    }

    #[test]
    fn a_hash_is_remembered_for_one_state_of_one_file() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        settled(&program, "one");
        let one = Digest::of(b"one").to_string();
        assert_eq!(of(&program, place.path()).unwrap(), one);
        assert_eq!(fs::metadata(place.path().join(NOTE)).unwrap().mode() & 0o777, 0o600);

        // What is remembered is what is told; otherwise it would be of no use.
        let other = Digest::of(b"other").to_string();
        forge(place.path(), |known| known.sha256.clone_from(&other));
        assert_eq!(of(&program, place.path()).unwrap(), other);

        // Another content of the same size and time is another state.
        let modified = fs::metadata(&program).unwrap().modified().unwrap();
        fs::write(&program, "two").unwrap();
        File::options().write(true).open(&program).unwrap().set_modified(modified).unwrap();
        assert_eq!(of(&program, place.path()).unwrap(), Digest::of(b"two").to_string());
        assert_eq!(read(&place.path().join(NOTE)).unwrap().sha256, other, "it changed a moment ago");
    }

    #[test]
    fn a_note_that_others_could_have_written_is_none() {
        let place = tempfile::tempdir().unwrap();
        let (program, note) = (place.path().join("program"), place.path().join(NOTE));
        settled(&program, "one");
        let one = of(&program, place.path()).unwrap();
        forge(place.path(), |known| known.sha256 = Digest::of(b"other").to_string());
        fs::set_permissions(&note, fs::Permissions::from_mode(0o660)).unwrap();
        assert_eq!(of(&program, place.path()).unwrap(), one);
        forge(place.path(), |known| known.sha256 = "no hash".to_owned());
        assert_eq!(of(&program, place.path()).unwrap(), one);
        fs::write(&note, "{").unwrap();
        assert_eq!(of(&program, place.path()).unwrap(), one);
        fs::remove_file(&note).unwrap();
        std::os::unix::fs::symlink(&program, &note).unwrap();
        assert_eq!(of(&program, place.path()).unwrap(), one);
        assert_eq!(of(&program, Path::new("/nowhere")).unwrap(), one, "without a note it takes longer");
    }
}
