//! Writes TAR archives compressed with Zstandard: owner 0, moment 0, one frame made by one thread.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write as _};

use tar::{EntryType, Header};
use zstd::stream::write::Encoder;

use super::{copy_exactly, limits};

/// The level of compression. Another one would give other bytes.
const LEVEL: i32 = 3;
const BLOCK: u64 = 512;
/// What the fields for a name hold: the end of a path, and directories before it.
const NAME_LEN: usize = 100;
const PREFIX_LEN: usize = 155;

/// Writes one archive.
pub(crate) struct TarWriter {
    out: Encoder<'static, BufWriter<File>>,
}

impl TarWriter {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let mut out = Encoder::new(BufWriter::with_capacity(limits::PIECE, file), LEVEL)?;
        // A damaged archive is known as such, whatever the damage hits.
        out.include_checksum(true)?;
        Ok(Self { out })
    }

    pub(super) fn add(&mut self, name: &[u8], bytes: u64, content: &mut dyn Read) -> io::Result<()> {
        let mut header = header(EntryType::Regular, bytes);
        if !set_name(&mut header, name) {
            self.add_long_name(name)?;
        }
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        copy_exactly(content, &mut self.out, bytes)?;
        self.pad(bytes)
    }

    pub(super) fn finish(mut self) -> io::Result<File> {
        self.out.write_all(&[0; 2 * BLOCK as usize])?;
        self.out.finish()?.into_inner().map_err(io::IntoInnerError::into_error)
    }

    /// Adds an entry that names the next one, whose own field is too short.
    fn add_long_name(&mut self, name: &[u8]) -> io::Result<()> {
        // The length counts itself.
        let rest = b" path=\n".len() + name.len();
        let digits = |len: usize| len.to_string().len();
        let len = (rest..).find(|len| *len == rest + digits(*len)).unwrap_or(rest);
        let record = [format!("{len} path=").as_bytes(), name, b"\n"].concat();
        let mut header = header(EntryType::XHeader, record.len() as u64);
        set_name(&mut header, b"path");
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(&record)?;
        self.pad(record.len() as u64)
    }

    fn pad(&mut self, len: u64) -> io::Result<()> {
        let missing = (BLOCK - len % BLOCK) % BLOCK;
        let zeros = [0; BLOCK as usize];
        self.out.write_all(&zeros[..usize::try_from(missing).unwrap_or(0)])
    }
}

fn header(kind: EntryType, bytes: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes);
    header
}

/// Puts `name` into `header`; returns whether it fits. If not, the end of it is there.
fn set_name(header: &mut Header, name: &[u8]) -> bool {
    let Some(ustar) = header.as_ustar_mut() else { return false };
    let mut put = |prefix: &[u8], name: &[u8]| {
        ustar.prefix[..prefix.len()].copy_from_slice(prefix);
        ustar.name[..name.len()].copy_from_slice(name);
    };
    if name.len() <= NAME_LEN {
        put(b"", name);
        return true;
    }
    let slashes = name.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let fits = |at: &usize| *at <= PREFIX_LEN && name.len() - at - 1 <= NAME_LEN && at + 1 < name.len();
    match slashes.clone().find(fits) {
        Some(at) => {
            put(&name[..at], &name[at + 1..]);
            true
        }
        None => {
            put(b"", &name[name.len() - NAME_LEN..]);
            false
        }
    }
}
