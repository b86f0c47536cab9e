//! Reads TAR archives compressed with Zstandard, as a stream: whatever a header claims, only names are ever held.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use tar::Archive;
use zstd::stream::read::Decoder;

use super::limits::{self, Inflation};
use super::{ArchiveError, EntryKind, Listing, Placing, Take};

/// Programs fill up the last record with zeros; the largest records are of this size.
const MOST_PADDING: usize = 1 << 20;

/// Gives every file of the archive in `file` to `take`, in the order of the archive.
pub(crate) fn read_tar_zst(file: File, take: Take<'_>) -> Result<Listing, ArchiveError> {
    let len = file.metadata().map_err(ArchiveError::Io)?.len();
    let mut decoder =
        Decoder::with_buffer(BufReader::with_capacity(limits::PIECE, file)).map_err(ArchiveError::Io)?;
    decoder.window_log_max(limits::WINDOW_LOG).map_err(ArchiveError::Io)?;
    // Entries are skipped and read through the same stream: what goes wrong in it is known once, here.
    let stream = Stream { decoder, failed: Rc::default() };
    let failed = Rc::clone(&stream.failed);
    let mut archive = Archive::new(stream);
    let read = read_entries(&mut archive, len, take);
    if let Some(reason) = failed.take() {
        return Err(ArchiveError::Damaged(reason));
    }
    let listing = read?;
    expect_end(archive.into_inner())?;
    Ok(listing)
}

fn read_entries(archive: &mut Archive<Stream>, len: u64, take: Take<'_>) -> Result<Listing, ArchiveError> {
    let damaged = |error: io::Error| ArchiveError::Damaged(error.to_string());
    let mut placing = Placing::default();
    let mut inflation = Inflation::of(len);
    let mut next_name = None;
    // Raw: long names are read here, up to a limit.
    for entry in archive.entries().map_err(damaged)?.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        let bytes = entry.header().entry_size().map_err(damaged)?;
        inflation.count(bytes)?;
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() {
            let name = short(&mut entry, bytes)?;
            next_name = Some(name.strip_suffix(b"\0").unwrap_or(&name).to_vec());
            continue;
        }
        if kind.is_pax_local_extensions() {
            next_name = long_name(&short(&mut entry, bytes)?)?;
            continue;
        }
        if kind.is_pax_global_extensions() || kind.is_gnu_longlink() {
            continue;
        }
        let kind = match (kind.is_file() || kind.is_contiguous(), kind.is_dir()) {
            (true, _) => EntryKind::File,
            (_, true) => EntryKind::Directory,
            (false, false) => EntryKind::Other,
        };
        let name = next_name.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
        if let Some(path) = placing.place(&name, kind, bytes)? {
            take(&path, bytes, &mut entry);
        }
    }
    Ok(placing.finish())
}

/// Returns the content of an entry that names another one.
fn short(entry: &mut impl Read, bytes: u64) -> Result<Vec<u8>, ArchiveError> {
    if bytes > limits::NAME {
        return Err(ArchiveError::damaged("it has a name longer than any file system allows"));
    }
    let mut name = Vec::new();
    entry.read_to_end(&mut name).map_err(|error| ArchiveError::Damaged(error.to_string()))?;
    Ok(name)
}

/// Returns the path in records of the form `<length> <key>=<value>\n`.
fn long_name(mut records: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
    let wrong = || ArchiveError::damaged("it has an extended header that does not parse");
    let mut name = None;
    while !records.is_empty() {
        let blank = records.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let len: usize = std::str::from_utf8(&records[..blank])
            .ok()
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(wrong)?;
        let record = records.get(blank + 1..len).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        match (&record[..equals], &record[equals + 1..]) {
            (b"path", path) => name = Some(path.to_vec()),
            (b"size", _) => {
                return Err(ArchiveError::damaged("it states the length of a file outside of its header"));
            }
            (_, _) => {}
        }
        records = &records[len..];
    }
    Ok(name)
}

/// Reads the rest of the stream, so that its checksum is compared, and refuses what hides there.
fn expect_end(mut stream: Stream) -> Result<(), ArchiveError> {
    let mut buffer = vec![0; limits::PIECE];
    let mut left = MOST_PADDING;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(len) if len <= left && buffer[..len].iter().all(|byte| *byte == 0) => left -= len,
            Ok(_) => return Err(ArchiveError::damaged("there is something behind its last entry")),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ArchiveError::Damaged(error.to_string())),
        }
    }
}

/// What comes out of the compression.
struct Stream {
    decoder: Decoder<'static, BufReader<File>>,
    failed: Rc<RefCell<Option<String>>>,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed.replace(Some(error.to_string()));
            }
        })
    }
}
