//! What is at the places of step files: facts for the compiler, which reads nothing itself.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use stead_engine::compile::steps::StepFile;

/// Returns what is at `path` below `root`, links followed.
pub(crate) fn inspect(root: &Path, path: &str) -> StepFile {
    let file = root.join(path);
    let Ok(real) = file.canonicalize() else { return StepFile::Missing };
    if !root.canonicalize().is_ok_and(|root| real.starts_with(root)) {
        return StepFile::Outside;
    }
    match real.metadata() {
        Err(_) => StepFile::Missing,
        Ok(found) if !found.is_file() => StepFile::NotRegular,
        Ok(found) if found.permissions().mode() & 0o111 == 0 => StepFile::NotExecutable,
        Ok(_) => match begins_runnable(&real) {
            Ok(true) => StepFile::Fine,
            Ok(false) | Err(_) => StepFile::NotRunnable,
        },
    }
}

/// Whether the kernel can start the file by itself.
fn begins_runnable(file: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    File::open(file)?.take(4).read_to_end(&mut beginning)?;
    Ok(beginning.starts_with(b"#!") || beginning == b"\x7fELF")
}
