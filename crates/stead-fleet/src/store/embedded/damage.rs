//! Where a file is damaged, so that who has to mend it knows.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rusqlite::Connection;

use super::super::StoreError;
use super::{failed, told};

/// What every file of SQLite begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// The length of a file's head.
const HEAD: usize = 100;

/// Refuses a file that cannot be a store: SQLite takes an empty one for a new one.
pub(super) fn check_header(path: &Path) -> Result<(), StoreError> {
    let corrupted = |offset: usize, what: &str| StoreError::Corrupted {
        path: path.to_owned(),
        offset: offset as u64,
        what: what.to_owned(),
    };
    let mut head = Vec::new();
    let file = File::open(path).map_err(failed("open", path))?;
    let length = file.metadata().map_err(failed("read", path))?.len();
    file.take(HEAD as u64).read_to_end(&mut head).map_err(failed("read", path))?;
    if head.len() < HEAD {
        return Err(corrupted(head.len(), "it is cut off"));
    }
    if let Some(at) = head.iter().zip(MAGIC).position(|(found, wanted)| found != wanted) {
        return Err(corrupted(at, "it does not begin as a database does"));
    }
    let page = page_size(&head);
    if !page.is_power_of_two() || page < 512 {
        return Err(corrupted(16, "its page size is none"));
    }
    if !length.is_multiple_of(page) {
        let whole = length - length % page;
        return Err(corrupted(usize::try_from(whole).unwrap_or(usize::MAX), "its last page is cut off"));
    }
    Ok(())
}

fn page_size(head: &[u8]) -> u64 {
    match head.get(16..18) {
        Some([0, 1]) => 65_536,
        Some([high, low]) => u64::from(u16::from_be_bytes([*high, *low])),
        Some(_) | None => 0,
    }
}

/// Walks through the file's pages.
pub(super) fn check_structure(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let said = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match said {
        Ok(said) if said == "ok" => Ok(()),
        Ok(said) => Err(find(path, said)),
        Err(error) => Err(told(path, &error)),
    }
}

/// Returns the damage that SQLite tells of, at the page that it names.
pub(super) fn find(path: &Path, what: String) -> StoreError {
    let lower = what.to_lowercase();
    let number = lower.split("page ").nth(1).and_then(|rest| {
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok())
    });
    let mut head = Vec::new();
    let page = File::open(path).and_then(|file| file.take(HEAD as u64).read_to_end(&mut head));
    let page = page.map_or(0, |_| page_size(&head));
    let offset = number.map_or(0, |number| number.saturating_sub(1) * page);
    StoreError::Corrupted { path: path.to_owned(), offset, what: what.replace('\n', " ") }
}

/// Returns the damage of a row whose checksum is wrong.
pub(super) fn of_row(path: &Path, key: &str) -> StoreError {
    let bytes = std::fs::read(path).unwrap_or_default();
    let at = bytes.windows(key.len().max(1)).position(|window| window == key.as_bytes());
    let what = format!("the value of `{key}` has another checksum");
    StoreError::Corrupted { path: path.to_owned(), offset: at.unwrap_or(0) as u64, what }
}
