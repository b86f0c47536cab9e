//! Reads ZIP archives strictly: the directory and the entries must say the same, entries follow each other without
//! overlap or hidden bytes, and every content has the length and checksum it claims.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};

use flate2::Crc;
use flate2::read::DeflateDecoder;

use super::limits::{self, Inflation};
use super::zip_format::{
    CENTRAL, CENTRAL_LEN, DEFLATED, ELSEWHERE, END, END_64, END_64_LEN, END_LEN, FIELD_64, FLAG_DESCRIPTOR,
    FLAG_ENCRYPTED, LOCAL, LOCAL_LEN, LOCATOR_64, LOCATOR_64_LEN, STORED,
};
use super::{ArchiveError, EntryKind, Listing, Placing, Take};

/// The kind of a file, of a directory and of everything in the mode of Unix.
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const KIND: u32 = 0o170_000;
/// What may stand between two entries if lengths follow the content.
const LONGEST_DESCRIPTOR: u64 = 24;

/// Where the directory is.
struct Directory {
    start: u64,
    len: u64,
    entries: u64,
}

/// One entry of the directory.
struct Entry {
    name: Vec<u8>,
    offset: u64,
    compressed: u64,
    bytes: u64,
    crc: u32,
    method: u16,
    flags: u16,
    kind: EntryKind,
}

/// Gives every file of the archive in `file` to `take`, in the order of the archive.
pub(crate) fn read_zip(file: File, take: Take<'_>) -> Result<Listing, ArchiveError> {
    let len = file.metadata().map_err(ArchiveError::Io)?.len();
    let mut file = BufReader::with_capacity(limits::PIECE, file);
    let directory = find_directory(&mut file, len)?;
    let entries = read_directory(&mut file, &directory)?;
    let mut placing = Placing::default();
    let mut inflation = Inflation::of(len);
    let mut at = 0;
    for (index, entry) in entries.iter().enumerate() {
        if entry.offset != at {
            return Err(ArchiveError::damaged("its entries overlap, or have bytes between them"));
        }
        let next = entries.get(index + 1).map_or(directory.start, |next| next.offset);
        let content = read_local(&mut file, entry, next)?;
        at = next;
        inflation.count(entry.bytes)?;
        if let Some(path) = placing.place(&entry.name, entry.kind, entry.bytes)? {
            file.seek(SeekFrom::Start(content)).map_err(ArchiveError::Io)?;
            let mut content = Content::of(&mut file, entry);
            take(&path, entry.bytes, &mut content);
            if let Some(reason) = content.damage {
                return Err(ArchiveError::Damaged(format!("{}: {reason}", path.display())));
            }
        }
    }
    if at != directory.start {
        return Err(ArchiveError::damaged("there are bytes before its directory that belong to no entry"));
    }
    Ok(placing.finish())
}

/// Finds the directory by the end of the file.
fn find_directory(file: &mut BufReader<File>, len: u64) -> Result<Directory, ArchiveError> {
    let tail_len = len.min((END_LEN + usize::from(u16::MAX)) as u64);
    let tail_start = len - tail_len;
    let tail = bytes_at(file, tail_start, tail_len)?;
    let is_end = |at: &usize| {
        let end = &tail[*at..];
        let comment = get16(end, 20).map(usize::from);
        get32(end, 0) == Some(END) && comment == Some(end.len() - END_LEN)
    };
    let last = tail.len().checked_sub(END_LEN);
    let at = last.and_then(|last| (0..=last).rev().find(is_end));
    let cut = || ArchiveError::damaged("it has no end: it was cut off, or something was added behind it");
    let at = at.ok_or_else(cut)?;
    let (end, end_at) = (&tail[at..], tail_start + at as u64);
    let number = |at: usize| get32(end, at).unwrap_or(0);
    if number(4) != 0 {
        return Err(ArchiveError::damaged("it is a part of several"));
    }
    let entries = get16(end, 10).unwrap_or(0);
    let mut directory =
        Directory { start: number(16).into(), len: number(12).into(), entries: entries.into() };
    let mut behind = end_at;
    if entries == u16::MAX || [number(12), number(16)].contains(&ELSEWHERE) {
        (directory, behind) = find_directory_64(file, end_at)?;
    }
    if directory.start.checked_add(directory.len) != Some(behind) {
        return Err(cut());
    }
    Ok(directory)
}

/// Returns the directory of a large archive, and what it must end at.
fn find_directory_64(file: &mut BufReader<File>, end_at: u64) -> Result<(Directory, u64), ArchiveError> {
    let wrong = || ArchiveError::damaged("the end of a large archive is not whole");
    let locator_at = end_at.checked_sub(LOCATOR_64_LEN as u64).ok_or_else(wrong)?;
    let locator = bytes_at(file, locator_at, LOCATOR_64_LEN as u64)?;
    let at = get64(&locator, 8).filter(|_| get32(&locator, 0) == Some(LOCATOR_64)).ok_or_else(wrong)?;
    if at.checked_add(END_64_LEN as u64) != Some(locator_at) {
        return Err(wrong());
    }
    let end = bytes_at(file, at, END_64_LEN as u64)?;
    if get32(&end, 0) != Some(END_64) {
        return Err(wrong());
    }
    let number = |at: usize| get64(&end, at).unwrap_or(0);
    Ok((Directory { start: number(48), len: number(40), entries: number(32) }, at))
}

fn read_directory(file: &mut BufReader<File>, directory: &Directory) -> Result<Vec<Entry>, ArchiveError> {
    if directory.len > limits::NAMES as u64 {
        return Err(ArchiveError::damaged("it has more entries than any bundle"));
    }
    let bytes = bytes_at(file, directory.start, directory.len)?;
    let mut entries = Vec::new();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let wrong = || ArchiveError::damaged("its directory is not whole");
        let (entry, len) = read_central(rest).ok_or_else(wrong)?;
        entries.push(entry);
        rest = &rest[len..];
    }
    if entries.len() as u64 != directory.entries {
        return Err(ArchiveError::damaged("its directory has another number of entries than its end says"));
    }
    Ok(entries)
}

/// Returns the first entry of `bytes` and how long it is.
fn read_central(bytes: &[u8]) -> Option<(Entry, usize)> {
    if get32(bytes, 0)? != CENTRAL {
        return None;
    }
    let [name_len, extra_len, comment_len] =
        [get16(bytes, 28)?, get16(bytes, 30)?, get16(bytes, 32)?].map(usize::from);
    let len = CENTRAL_LEN + name_len + extra_len + comment_len;
    let name = bytes.get(CENTRAL_LEN..CENTRAL_LEN + name_len)?;
    let extra = bytes.get(CENTRAL_LEN + name_len..CENTRAL_LEN + name_len + extra_len)?;
    bytes.get(..len)?;
    let mut numbers = [get32(bytes, 24)?, get32(bytes, 20)?, get32(bytes, 42)?].map(u64::from);
    fill_in(&mut numbers, extra)?;
    let [size, compressed, offset] = numbers;
    // The mode is Unix's only if the archive was made there.
    let mode = if get16(bytes, 4)? >> 8 == 3 { get32(bytes, 38)? >> 16 & KIND } else { 0 };
    let kind = match mode {
        _ if name.ends_with(b"/") => EntryKind::Directory,
        0 | REGULAR => EntryKind::File,
        DIRECTORY => EntryKind::Directory,
        _ => EntryKind::Other,
    };
    let (method, flags, crc) = (get16(bytes, 10)?, get16(bytes, 8)?, get32(bytes, 16)?);
    Some((Entry { name: name.to_vec(), offset, compressed, bytes: size, crc, method, flags, kind }, len))
}

/// Puts the numbers that stand in `extra` in the place of those that only say so.
fn fill_in(numbers: &mut [u64; 3], mut extra: &[u8]) -> Option<()> {
    let elsewhere = |number: &&mut u64| **number == u64::from(ELSEWHERE);
    while let (Some(id), Some(len)) = (get16(extra, 0), get16(extra, 2)) {
        let field = extra.get(4..4 + usize::from(len))?;
        if id == FIELD_64 {
            for (index, number) in numbers.iter_mut().filter(elsewhere).enumerate() {
                *number = get64(field, 8 * index)?;
            }
            return Some(());
        }
        extra = &extra[4 + usize::from(len)..];
    }
    Some(())
}

/// Checks what stands before the content of `entry`, which ends at `next`; returns where the content begins.
fn read_local(file: &mut BufReader<File>, entry: &Entry, next: u64) -> Result<u64, ArchiveError> {
    let shown = String::from_utf8_lossy(&entry.name).into_owned();
    let wrong = |what: &str| ArchiveError::Damaged(format!("{shown}: {what}"));
    let head = bytes_at(file, entry.offset, LOCAL_LEN as u64)?;
    let (name_len, extra_len) = (get16(&head, 26).unwrap_or(0), get16(&head, 28).unwrap_or(0));
    let name = bytes_at(file, entry.offset + LOCAL_LEN as u64, name_len.into())?;
    let same = get32(&head, 0) == Some(LOCAL)
        && name == entry.name
        && get16(&head, 8) == Some(entry.method)
        && get16(&head, 6) == Some(entry.flags);
    if !same {
        return Err(wrong("the directory and the entry do not say the same"));
    }
    if entry.flags & FLAG_ENCRYPTED != 0 {
        return Err(wrong("it is encrypted"));
    }
    if ![STORED, DEFLATED].contains(&entry.method) {
        return Err(wrong("it is neither stored nor deflated"));
    }
    let content = entry.offset + LOCAL_LEN as u64 + u64::from(name_len) + u64::from(extra_len);
    let slack = content.checked_add(entry.compressed).and_then(|end| next.checked_sub(end));
    let allowed = if entry.flags & FLAG_DESCRIPTOR == 0 { 0 } else { LONGEST_DESCRIPTOR };
    if slack.is_none_or(|slack| slack > allowed) {
        return Err(ArchiveError::damaged("its entries overlap, or have bytes between them"));
    }
    Ok(content)
}

/// The content of an entry, checked as it is read.
struct Content<'a> {
    source: Source<'a>,
    left: u64,
    crc: Crc,
    wanted: u32,
    damage: Option<String>,
}

enum Source<'a> {
    Stored(io::Take<&'a mut BufReader<File>>),
    Deflated(Box<DeflateDecoder<io::Take<&'a mut BufReader<File>>>>),
}

impl<'a> Content<'a> {
    fn of(file: &'a mut BufReader<File>, entry: &Entry) -> Self {
        let bytes = file.take(entry.compressed);
        let source = if entry.method == STORED {
            Source::Stored(bytes)
        } else {
            Source::Deflated(Box::new(DeflateDecoder::new(bytes)))
        };
        Self { source, left: entry.bytes, crc: Crc::new(), wanted: entry.crc, damage: None }
    }

    fn fail(&mut self, reason: impl Into<String>) -> io::Error {
        let reason = reason.into();
        self.damage = Some(reason.clone());
        io::Error::new(io::ErrorKind::InvalidData, reason)
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let read = match &mut self.source {
            Source::Stored(source) => source.read(buffer),
            Source::Deflated(source) => source.read(buffer),
        };
        let len = match read {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => return Err(self.fail(format!("its content cannot be read: {error}"))),
        };
        self.crc.update(&buffer[..len]);
        let left = self.left.checked_sub(len as u64);
        match left {
            None => Err(self.fail("its content is longer than the directory says")),
            Some(left) if len == 0 && left > 0 => {
                Err(self.fail("its content is shorter than the directory says"))
            }
            Some(0) if len == 0 && self.crc.sum() != self.wanted => {
                Err(self.fail("its content does not have the checksum of the directory"))
            }
            Some(left) => {
                self.left = left;
                Ok(len)
            }
        }
    }
}

fn bytes_at(file: &mut BufReader<File>, at: u64, len: u64) -> Result<Vec<u8>, ArchiveError> {
    file.seek(SeekFrom::Start(at)).map_err(ArchiveError::Io)?;
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes).map_err(ArchiveError::Io)?;
    if bytes.len() as u64 == len { Ok(bytes) } else { Err(ArchiveError::damaged("it is cut off")) }
}

fn get16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn get32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn get64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}
