//! Writes ZIP archives: deflate, the first moment ZIP knows, no fields but those that large files need.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};

use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use super::zip_format::{
    CENTRAL, DEFLATED, ELSEWHERE, END, END_64, END_64_LEN, FIELD_64, FLAG_UTF8, LOCAL, LOCATOR_64,
};
use super::{copy_exactly, limits};

/// The level of compression. Another one would give other bytes.
const LEVEL: u32 = 6;
/// How much compressed data is written at once.
const BUFFER: usize = 32 << 10;
/// 1980-01-01, 00:00.
const DATE: u16 = 1 << 5 | 1;
/// Readers need this version of the format; the second for large files.
const VERSION: u16 = 20;
const VERSION_64: u16 = 45;
/// Made on Unix, as the mode is.
const UNIX: u16 = 3 << 8;
/// A file that everybody may read.
const MODE: u32 = 0o100_644 << 16;
/// Longer files might not fit 32 bits when compressed badly.
const SURELY_SMALL: u64 = 0xf000_0000;

/// Writes one archive.
pub(crate) struct ZipWriter {
    out: BufWriter<File>,
    /// Kept over all entries: making one costs more than compressing a small file.
    compress: Compress,
    at: u64,
    directory: Vec<u8>,
    entries: u64,
}

/// An entry whose content is written.
struct Entry<'a> {
    name: &'a [u8],
    offset: u64,
    crc: u32,
    compressed: u64,
    bytes: u64,
}

impl ZipWriter {
    pub(super) fn new(file: File) -> Self {
        let out = BufWriter::with_capacity(limits::PIECE, file);
        let compress = Compress::new(Compression::new(LEVEL), false);
        Self { out, compress, at: 0, directory: Vec::new(), entries: 0 }
    }

    pub(super) fn add(&mut self, name: &[u8], bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        let offset = self.at;
        let large = bytes > SURELY_SMALL;
        let mut entry = Entry { name, offset, crc: 0, compressed: 0, bytes: 0 };
        let head = entry.local(large)?;
        self.out.write_all(&head)?;
        self.compress.reset();
        let mut deflate = Deflate::begin(&mut self.out, &mut self.compress);
        copy_exactly(content, &mut deflate, bytes)?;
        (entry.crc, entry.compressed) = deflate.finish()?;
        entry.bytes = bytes;
        let end = offset + head.len() as u64 + entry.compressed;
        // Lengths and checksum are known only now, and readers of a stream want them in front.
        self.out.seek(SeekFrom::Start(offset))?;
        self.out.write_all(&entry.local(large)?)?;
        self.out.seek(SeekFrom::Start(end))?;
        self.at = end;
        self.entries += 1;
        entry.write_central(&mut self.directory)
    }

    pub(super) fn finish(mut self) -> io::Result<File> {
        let (start, len) = (self.at, self.directory.len() as u64);
        self.out.write_all(&self.directory)?;
        let mut end = Vec::new();
        let count = u16::try_from(self.entries).ok().filter(|count| *count < u16::MAX);
        let small = [small(start), small(len)];
        if count.is_none() || small.contains(&ELSEWHERE) {
            put32(&mut end, END_64);
            put64(&mut end, END_64_LEN as u64 - 12);
            put16(&mut end, UNIX | VERSION_64);
            put16(&mut end, VERSION_64);
            end.extend_from_slice(&[0; 8]);
            for number in [self.entries, self.entries, len, start] {
                put64(&mut end, number);
            }
            put32(&mut end, LOCATOR_64);
            put32(&mut end, 0);
            put64(&mut end, start + len);
            put32(&mut end, 1);
        }
        put32(&mut end, END);
        end.extend_from_slice(&[0; 4]);
        let count = count.unwrap_or(u16::MAX);
        put16(&mut end, count);
        put16(&mut end, count);
        put32(&mut end, small[1]);
        put32(&mut end, small[0]);
        put16(&mut end, 0);
        self.out.write_all(&end)?;
        self.out.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Entry<'_> {
    fn flags(&self) -> u16 {
        let text = !self.name.is_ascii() && std::str::from_utf8(self.name).is_ok();
        if text { FLAG_UTF8 } else { 0 }
    }

    fn name_len(&self) -> io::Result<u16> {
        u16::try_from(self.name.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for an archive"))
    }

    /// Returns what stands before the content; `large` decides whether its lengths have 64 bits.
    fn local(&self, large: bool) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        put32(&mut head, LOCAL);
        put16(&mut head, if large { VERSION_64 } else { VERSION });
        put16(&mut head, self.flags());
        put16(&mut head, DEFLATED);
        put16(&mut head, 0);
        put16(&mut head, DATE);
        put32(&mut head, self.crc);
        for len in [self.compressed, self.bytes] {
            put32(&mut head, if large { ELSEWHERE } else { small(len) });
        }
        put16(&mut head, self.name_len()?);
        put16(&mut head, if large { 20 } else { 0 });
        head.extend_from_slice(self.name);
        if large {
            put16(&mut head, FIELD_64);
            put16(&mut head, 16);
            put64(&mut head, self.bytes);
            put64(&mut head, self.compressed);
        }
        Ok(head)
    }

    fn write_central(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let numbers = [self.bytes, self.compressed, self.offset];
        let long: Vec<u64> = numbers.into_iter().filter(|number| small(*number) == ELSEWHERE).collect();
        let version = if long.is_empty() && self.bytes <= SURELY_SMALL { VERSION } else { VERSION_64 };
        put32(out, CENTRAL);
        put16(out, UNIX | version);
        put16(out, version);
        put16(out, self.flags());
        put16(out, DEFLATED);
        put16(out, 0);
        put16(out, DATE);
        put32(out, self.crc);
        put32(out, small(self.compressed));
        put32(out, small(self.bytes));
        put16(out, self.name_len()?);
        put16(out, if long.is_empty() { 0 } else { 4 + 8 * u16::try_from(long.len()).unwrap_or(0) });
        out.extend_from_slice(&[0; 6]);
        put32(out, MODE);
        put32(out, small(self.offset));
        out.extend_from_slice(self.name);
        if !long.is_empty() {
            put16(out, FIELD_64);
            put16(out, 8 * u16::try_from(long.len()).unwrap_or(0));
            for number in long {
                put64(out, number);
            }
        }
        Ok(())
    }
}

/// Returns `number` in 32 bits, or that it stands elsewhere.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(ELSEWHERE)
}

fn put16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Compresses one entry.
struct Deflate<'a> {
    out: &'a mut BufWriter<File>,
    compress: &'a mut Compress,
    buffer: Vec<u8>,
    crc: Crc,
}

impl<'a> Deflate<'a> {
    fn begin(out: &'a mut BufWriter<File>, compress: &'a mut Compress) -> Self {
        Self { out, compress, buffer: vec![0; BUFFER], crc: Crc::new() }
    }

    /// Compresses from `bytes` and writes what comes out; returns how much was taken, and whether it was the end.
    fn step(&mut self, bytes: &[u8], flush: FlushCompress) -> io::Result<(usize, bool)> {
        let (taken, made) = (self.compress.total_in(), self.compress.total_out());
        let status = self.compress.compress(bytes, &mut self.buffer, flush).map_err(io::Error::other)?;
        let made = usize::try_from(self.compress.total_out() - made).unwrap_or(0);
        self.out.write_all(&self.buffer[..made])?;
        let taken = usize::try_from(self.compress.total_in() - taken).unwrap_or(0);
        Ok((taken, status == Status::StreamEnd))
    }

    /// Writes the end; returns checksum and compressed length.
    fn finish(mut self) -> io::Result<(u32, u64)> {
        while !self.step(&[], FlushCompress::Finish)?.1 {}
        Ok((self.crc.sum(), self.compress.total_out()))
    }
}

impl Write for Deflate<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (taken, _) = self.step(rest, FlushCompress::None)?;
            rest = &rest[taken..];
        }
        self.crc.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
