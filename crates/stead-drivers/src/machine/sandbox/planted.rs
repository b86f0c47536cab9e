//! This program, planted in a sandbox from the beginning: nothing is ever uploaded to one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::home::Home;
use crate::disk::body::hash;
use crate::facts::hash_in_path;

/// Where programs are kept below a root, each in a directory that is called as its hash.
const PROGRAMS: &str = "var/lib/stead/bin";

/// Plants `program`: the same file if it can be, else that of a machine beside it, else a copy.
pub(super) fn plant(program: &Path, home: &Home) -> io::Result<()> {
    let place = place(&sha256(program)?);
    let file = home.root().join(&place);
    let directory = file.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    if fs::hard_link(program, &file).is_ok() || link_beside(home, &place).is_some() {
        return Ok(());
    }
    // Whole under its name or not there: a machine beside this one may take it.
    let aside = tempfile::Builder::new().prefix(".tmp-").tempfile_in(directory)?;
    fs::copy(program, aside.path())?;
    aside.persist(&file).map_err(|error| error.error)?;
    Ok(())
}

fn place(sha256: &str) -> PathBuf {
    Path::new(PROGRAMS).join(sha256).join("stead")
}

fn link_beside(home: &Home, place: &Path) -> Option<()> {
    let machines = fs::read_dir(home.directory().parent()?).ok()?;
    let mut others = machines.flatten().map(|entry| Home::at(entry.path()).root().join(place));
    others.find_map(|other| fs::hard_link(other, home.root().join(place)).ok())
}

/// Returns the program that runs in the machine: the one that is asked for, else any that is planted.
pub(super) fn find(home: &Home, wanted: Option<&str>) -> Option<PathBuf> {
    let kept = home.root().join(PROGRAMS);
    let is_hash = |name: &str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(wanted) = wanted.filter(|wanted| is_hash(wanted)) {
        let file = kept.join(wanted).join("stead");
        if file.is_file() {
            return Some(file);
        }
    }
    let mut names: Vec<PathBuf> =
        fs::read_dir(kept).ok()?.flatten().map(|entry| entry.path().join("stead")).collect();
    names.sort();
    names.into_iter().find(|file| file.is_file())
}

/// Returns the hash of a program, found out once per process as long as it stays the same file.
pub(in crate::machine) fn sha256(program: &Path) -> io::Result<String> {
    type Known = BTreeMap<(u64, u64, i64, i64), String>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());

    if let Some(named) = hash_in_path(program) {
        return Ok(named);
    }
    let mut file = File::open(program)?;
    let found = file.metadata()?;
    let mark = (found.dev(), found.ino(), found.mtime(), found.mtime_nsec());
    // Held while it is found out: of many machines that are made at once one reads the file.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sha256) = known.get(&mark) {
        return Ok(sha256.clone());
    }
    let (_, sha256) = hash(&mut file)?;
    known.insert(mark, sha256.clone());
    Ok(sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_planted_under_its_hash_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "program").unwrap();
        let home = Home::at(dir.path().join("machines/one"));
        fs::create_dir_all(home.root()).unwrap();
        assert_eq!(find(&home, None), None);
        plant(&program, &home).unwrap();
        let sha256 = sha256(&program).unwrap();
        let file = home.root().join("var/lib/stead/bin").join(&sha256).join("stead");
        assert_eq!(fs::read_to_string(&file).unwrap(), "program");
        assert_eq!(find(&home, Some(&sha256)), Some(file.clone()));
        assert_eq!(find(&home, Some("../../x")), Some(file.clone()));
        assert_eq!(find(&home, None), Some(file.clone()));

        let beside = Home::at(dir.path().join("machines/two"));
        let place = place(&sha256);
        fs::create_dir_all(beside.root().join(&place).parent().unwrap()).unwrap();
        link_beside(&beside, &place).unwrap();
        assert_eq!(fs::metadata(beside.root().join(&place)).unwrap().nlink(), 3);
    }
}
