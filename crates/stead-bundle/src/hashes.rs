//! The lines of `hashes.txt`, as GNU `sha256sum` writes and checks them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::Digest as _;
use stead_model::plan::Digest;

use crate::layout::inside;

/// How much is read at once: large enough to keep the hash busy, small enough for any machine.
pub(crate) const PIECE: usize = 256 << 10;
/// Fewer files than this are hashed without starting threads.
const WORTH_A_THREAD: usize = 32;

/// One line of `hashes.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashLine {
    /// The file, relative to the bundle.
    pub path: PathBuf,
    /// Its hash.
    pub digest: Digest,
}

/// Why a line of `hashes.txt` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashLineError {
    /// Not 64 hex digits, two spaces and a path.
    #[error("the line is not 64 hex digits, two spaces and a path")]
    Malformed,
    /// The path is absolute or has `..`.
    #[error("the path leads out of the bundle")]
    Outside,
}

impl HashLine {
    /// Appends the line, newline included.
    pub fn write(&self, out: &mut Vec<u8>) {
        let path = self.path.as_os_str().as_bytes();
        let escaped = path.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
        if escaped {
            out.push(b'\\');
        }
        out.extend_from_slice(self.digest.to_string().as_bytes());
        out.extend_from_slice(b"  ");
        for byte in path {
            match byte {
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                other => out.push(*other),
            }
        }
        out.push(b'\n');
    }

    /// Returns what a line without its newline says. CIPDIP's bundles have `sha256:` before the digits.
    pub fn parse(line: &[u8]) -> Result<Self, HashLineError> {
        let (escaped, line) = line.strip_prefix(b"\\").map_or((false, line), |rest| (true, rest));
        let line = line.strip_prefix(b"sha256:").unwrap_or(line);
        let (digits, path) = line.split_at_checked(64).ok_or(HashLineError::Malformed)?;
        let digest =
            std::str::from_utf8(digits).ok().and_then(|digits| Digest::parse(&digits.to_ascii_lowercase()));
        let digest = digest.ok_or(HashLineError::Malformed)?;
        let path =
            path.strip_prefix(b"  ").or_else(|| path.strip_prefix(b" *")).ok_or(HashLineError::Malformed)?;
        let path = if escaped { unescape(path).ok_or(HashLineError::Malformed)? } else { path.to_vec() };
        if path.is_empty() {
            return Err(HashLineError::Malformed);
        }
        let path = PathBuf::from(OsStr::from_bytes(&path));
        // The spelling must be the plain one: `a//b` and `./a` would be other names of one file.
        let plain: PathBuf = path.components().collect();
        let same = plain.as_os_str() == path.as_os_str();
        if same && path.to_str().map_or_else(|| is_inside(&path), |text| inside(text).is_some()) {
            Ok(Self { path, digest })
        } else {
            Err(HashLineError::Outside)
        }
    }
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|component| matches!(component, std::path::Component::Normal(_)))
}

fn unescape(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            other => *other,
        });
    }
    Some(out)
}

/// Returns the hash of the file at `path`, read piece by piece through `buffer`.
pub fn hash_file(path: &Path, buffer: &mut [u8]) -> io::Result<Digest> {
    let mut file = File::open(path)?;
    let mut hash = sha2::Sha256::new();
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(Digest(hash.finalize().into())),
            Ok(len) => hash.update(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the hashes of files below `root`, in their order; on every core if there are enough of them.
pub(crate) fn hash_files(root: &Path, files: &[(PathBuf, u64)]) -> Vec<io::Result<Digest>> {
    let bytes: u64 = files.iter().map(|(_, len)| len).sum();
    let worth = files.len() >= WORTH_A_THREAD || (files.len() > 1 && bytes >= 8 * PIECE as u64);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if worth { cores.min(files.len()) } else { 1 };
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(files.len()));
    let work = || {
        let mut buffer = vec![0; PIECE];
        let mut mine = Vec::new();
        while let Some((index, (path, _))) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            files.get(index).map(|file| (index, file))
        } {
            mine.push((index, hash_file(&root.join(path), &mut buffer)));
        }
        results.lock().unwrap_or_else(PoisonError::into_inner).append(&mut mine);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip_with_gnu_escapes() {
        for path in ["a", "a/b c", "back\\slash", "new\nline", "cr\r", "\\\n", "p[eu]/x"] {
            let line = HashLine { path: PathBuf::from(path), digest: Digest::of(path.as_bytes()) };
            let mut text = Vec::new();
            line.write(&mut text);
            assert_eq!(text.pop(), Some(b'\n'));
            assert!(!text.contains(&b'\n'));
            assert_eq!(HashLine::parse(&text), Ok(line), "{path:?}");
        }
    }

    #[test]
    fn lines_that_lead_out_or_make_no_sense_are_refused() {
        let digits = "0".repeat(64);
        for path in ["/etc/passwd", "../x", "a/../../x", ".", "./a", "a//b", "a/"] {
            assert_eq!(
                HashLine::parse(format!("{digits}  {path}").as_bytes()),
                Err(HashLineError::Outside),
                "{path}"
            );
        }
        for line in
            ["", "x", &digits, &format!("{digits}  "), &format!("{digits} a"), &format!("\\{digits}  a\\q")]
        {
            assert_eq!(HashLine::parse(line.as_bytes()), Err(HashLineError::Malformed), "{line}");
        }
        assert!(HashLine::parse(format!("sha256:{digits}  a").as_bytes()).is_ok());
    }
}
