//! What is at the places of step files: facts for the compiler, which reads nothing itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use stead_engine::compile::steps::StepFile;

/// How much of a script the kernel looks at to find its interpreter.
const BEGINNING: usize = 256;

/// The places of step files below one root.
pub(crate) struct StepFiles {
    root: PathBuf,
    /// The root without links; none if it is not there.
    real_root: Option<PathBuf>,
    /// Directories that were looked at already, by their path below the root: scripts come in few of them.
    directories: BTreeMap<String, Option<Directory>>,
    /// Interpreters that were looked for already, and whether they are there: scripts share them.
    interpreters: BTreeMap<PathBuf, bool>,
}

/// A directory that is there.
struct Directory {
    /// Without links.
    path: PathBuf,
    is_inside: bool,
}

impl StepFiles {
    /// Returns the places below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        let real_root = root.canonicalize().ok();
        Self { root: root.to_owned(), real_root, directories: BTreeMap::new(), interpreters: BTreeMap::new() }
    }

    /// Returns what is at `path` below the root, links followed. The path is one of a catalogue: without `.` and `..`.
    pub(crate) fn inspect(&mut self, path: &str) -> StepFile {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(Directory { path: directory, is_inside }) = self.directory(directory) else {
            return StepFile::Missing;
        };
        let (mut is_inside, mut real) = (*is_inside, directory.join(name));
        let Ok(mut found) = real.symlink_metadata() else { return StepFile::Missing };
        if found.is_symlink() {
            let Ok(target) = real.canonicalize() else { return StepFile::Missing };
            let Ok(target_found) = target.metadata() else { return StepFile::Missing };
            is_inside = self.has(&target);
            (real, found) = (target, target_found);
        }
        match (is_inside, found.is_file(), found.permissions().mode() & 0o111) {
            (false, _, _) => StepFile::Outside,
            (true, false, _) => StepFile::NotRegular,
            (true, true, 0) => StepFile::NotExecutable,
            (true, true, _) => match beginning(&real) {
                Ok(beginning) => self.judge(&beginning),
                Err(error) => StepFile::Unreadable(error.kind().to_string()),
            },
        }
    }

    /// Returns what a file is that begins so.
    fn judge(&mut self, beginning: &[u8]) -> StepFile {
        if beginning.starts_with(b"\x7fELF") {
            return StepFile::Fine;
        }
        let Some(line) = beginning.strip_prefix(b"#!") else { return StepFile::NotRunnable };
        match interpreter(line) {
            // A relative one is found from where the step runs, which an earlier step may make.
            Some(interpreter) if interpreter.is_absolute() && !self.is_there(interpreter) => {
                StepFile::NoInterpreter(Some(interpreter.display().to_string()))
            }
            Some(_) => StepFile::Fine,
            None => StepFile::NoInterpreter(None),
        }
    }

    fn is_there(&mut self, interpreter: &Path) -> bool {
        if let Some(is_there) = self.interpreters.get(interpreter) {
            return *is_there;
        }
        let is_there = interpreter.is_file();
        self.interpreters.insert(interpreter.to_owned(), is_there);
        is_there
    }

    fn directory(&mut self, path: &str) -> Option<&Directory> {
        if !self.directories.contains_key(path) {
            let real = self.root.join(path).canonicalize().ok();
            let directory = real.map(|path| Directory { is_inside: self.has(&path), path });
            self.directories.insert(path.to_owned(), directory);
        }
        self.directories.get(path)?.as_ref()
    }

    /// Whether a path without links is inside the root.
    fn has(&self, real: &Path) -> bool {
        self.real_root.as_ref().is_some_and(|root| real.starts_with(root))
    }
}

/// Returns the first bytes of a regular file, which gives all that it has of them at once.
fn beginning(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; BEGINNING];
    let length = File::open(file)?.read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Returns the program that the rest of a `#!` line names; nothing if it names none, or one longer than the kernel reads.
fn interpreter(line: &[u8]) -> Option<&Path> {
    let is_whole = line.contains(&b'\n') || line.len() + 2 < BEGINNING;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut words = line.split(is_blank).filter(|word| !word.is_empty());
    let word = words.next()?;
    (is_whole || words.next().is_some()).then(|| Path::new(OsStr::from_bytes(word)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    fn script(root: &Path, name: &str, text: &str, mode: u32) {
        fs::write(root.join(name), text).unwrap();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_interpreter_must_be_there() {
        let root = tempfile::tempdir().unwrap();
        let long = format!("#!/{}\n", "x".repeat(BEGINNING));
        let missing = |interpreter: &str| StepFile::NoInterpreter(Some(interpreter.to_owned()));
        for (text, expected) in [
            ("#!/bin/sh\n", StepFile::Fine),
            ("#! /bin/sh -e", StepFile::Fine),
            ("#!tools/sh\n", StepFile::Fine),
            ("#!/no/such/shell -e\n", missing("/no/such/shell")),
            ("#!/bin/sh\r\n", missing("/bin/sh\r")),
            ("#!/bin\n", missing("/bin")),
            ("#!", StepFile::NoInterpreter(None)),
            ("#! \n/bin/sh", StepFile::NoInterpreter(None)),
            (&long, StepFile::NoInterpreter(None)),
            ("#", StepFile::NotRunnable),
            ("", StepFile::NotRunnable),
            ("\x7fELF", StepFile::Fine),
        ] {
            script(root.path(), "s.sh", text, 0o755);
            assert_eq!(StepFiles::below(root.path()).inspect("s.sh"), expected, "{text:?}");
        }
    }

    #[test]
    fn a_script_that_cannot_be_read_is_told_apart() {
        let root = tempfile::tempdir().unwrap();
        script(root.path(), "s.sh", "#!/bin/sh\n", 0o111);
        let inspect = || {
            // Of this thread only: root reads everything.
            let mut own = capabilities(None).unwrap();
            own.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, own).unwrap();
            StepFiles::below(root.path()).inspect("s.sh")
        };
        let found = std::thread::scope(|scope| scope.spawn(inspect).join().unwrap());
        assert_eq!(found, StepFile::Unreadable("permission denied".to_owned()));
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(root.path().join("sub")).unwrap();
        script(root.path(), "sub/s.sh", "#!/bin/sh\n", 0o755);
        script(other.path(), "s.sh", "#!/bin/sh\n", 0o755);
        let link =
            |target: &Path, name: &str| std::os::unix::fs::symlink(target, root.path().join(name)).unwrap();
        link(Path::new("sub/s.sh"), "in.sh");
        link(&other.path().join("s.sh"), "out.sh");
        link(other.path(), "out");
        link(Path::new("nowhere"), "lost.sh");
        let mut files = StepFiles::below(root.path());
        let expected = [
            ("sub/s.sh", StepFile::Fine),
            ("in.sh", StepFile::Fine),
            ("out.sh", StepFile::Outside),
            ("out/s.sh", StepFile::Outside),
            ("lost.sh", StepFile::Missing),
            ("no/s.sh", StepFile::Missing),
            ("sub", StepFile::NotRegular),
        ];
        for (path, expected) in expected {
            assert_eq!(files.inspect(path), expected, "{path}");
        }
    }
}
