//! Where blobs are put: `BASE/sha256/HEX`, below a directory or an address. Each is put whole, and read back before anything
//! is published.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stead_drivers::web::{exchange, put_file};
use stead_model::plan::Digest;
use tempfile::NamedTempFile;

use crate::job::Sink;

/// How long an answer without bits may take.
const ANSWER: Duration = Duration::from_secs(30);

/// How long bits may take.
const TRANSFER: Duration = Duration::from_secs(3600);

/// The most bytes of what does not say how long it is.
const MOST_BYTES: u64 = 64 << 30;

/// How many redirects are followed.
const MOST_REDIRECTS: usize = 5;

/// Where blobs are put.
#[derive(Clone, Debug)]
pub(super) enum Artifacts {
    /// Below a directory.
    Directory(BlobDirectory),
    /// Below an address.
    Web(String),
}

/// The bits of a blob.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a file.
    File(PathBuf),
}

impl Artifacts {
    /// Returns the place that `artifacts` of `publisher.yaml` names.
    pub(super) fn open(base: &str) -> Result<Self, String> {
        if !base.contains("://") {
            return Ok(Self::Directory(BlobDirectory::new(Path::new(base))));
        }
        if is_private(base) {
            return Ok(Self::Web(base.trim_end_matches('/').to_owned()));
        }
        Err(format!("`artifacts` is a directory or an https address, not `{base}`"))
    }

    /// Returns the size of a blob that is there.
    pub(super) async fn size(&self, sha256: Digest) -> io::Result<Option<u64>> {
        match self {
            Self::Directory(blobs) => Ok(blobs.size(sha256)),
            Self::Web(base) => size_at(&place(base, sha256)).await,
        }
    }

    /// Puts a blob.
    pub(super) async fn put(&self, sha256: Digest, content: Content) -> io::Result<()> {
        match self {
            Self::Directory(blobs) => {
                let blobs = blobs.clone();
                blocking(move || match content {
                    Content::Bytes(bytes) => blobs.put(sha256, &mut bytes.as_slice()),
                    Content::File(path) => blobs.put(sha256, &mut File::open(path)?),
                })
                .await
            }
            Self::Web(base) => {
                let url = place(base, sha256);
                let answer = match content {
                    Content::Bytes(bytes) => exchange("PUT", &url, bytes, TRANSFER, &mut |_| Ok(())).await?,
                    Content::File(path) => put_file(&url, &path, TRANSFER).await?,
                };
                match answer.status {
                    200..=299 => Ok(()),
                    status => Err(io::Error::other(format!("PUT: status {status}"))),
                }
            }
        }
    }

    /// Reads a blob back; an error says what is wrong with it.
    pub(super) async fn verify(&self, sha256: Digest, size: u64) -> io::Result<()> {
        match self {
            Self::Directory(blobs) => {
                let blobs = blobs.clone();
                blocking(move || blobs.verify(sha256, size)).await
            }
            Self::Web(base) => {
                let mut hashing = Hashing::new(io::sink());
                fetch(&place(base, sha256), &mut hashing).await?;
                hashing.check(sha256, Some(size)).map(|_| ())
            }
        }
    }
}

fn place(base: &str, sha256: Digest) -> String {
    format!("{base}/sha256/{sha256}")
}

/// Whether nobody on the way can change what is sent to an address.
fn is_private(url: &str) -> bool {
    let here = ["http://127.0.0.1:", "http://[::1]:", "http://localhost:"];
    url.starts_with("https://") || here.iter().any(|here| url.starts_with(here))
}

/// Returns the size of what is at `url`, if its server says it.
pub(super) async fn size_at(url: &str) -> io::Result<Option<u64>> {
    let answer = exchange("HEAD", url, Vec::new(), ANSWER, &mut |_| Ok(())).await?;
    match answer.status {
        200 => Ok(answer.header("content-length").and_then(|length| length.parse().ok())),
        404 | 410 => Ok(None),
        status => Err(io::Error::other(format!("{url}: status {status}"))),
    }
}

/// Gives what is at `url` to `sink`. Redirects are followed, a few.
pub(super) async fn fetch(url: &str, sink: &mut (dyn io::Write + Send)) -> io::Result<()> {
    let mut url = url.to_owned();
    for _ in 0..=MOST_REDIRECTS {
        // What comes with a redirect or an error is not the bits: it is written only once the status is known to be good.
        let head = exchange("HEAD", &url, Vec::new(), ANSWER, &mut |_| Ok(())).await?;
        match (head.status, head.header("location")) {
            (200, _) => {
                let length = head.header("content-length").and_then(|length| length.parse().ok());
                let mut left: u64 = length.unwrap_or(MOST_BYTES);
                let mut take = |bytes: &[u8]| {
                    left = left.checked_sub(bytes.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
                    sink.write_all(bytes)
                };
                let answer = exchange("GET", &url, Vec::new(), TRANSFER, &mut take).await?;
                if answer.status == 200 {
                    return Ok(());
                }
                return Err(io::Error::other(format!("{url}: status {}", answer.status)));
            }
            (301 | 302 | 303 | 307 | 308, Some(next)) if next.contains("://") => url = next.to_owned(),
            (status, _) => return Err(io::Error::other(format!("{url}: status {status}"))),
        }
    }
    Err(io::Error::other(format!("{url}: more than {MOST_REDIRECTS} redirects")))
}

/// Does what waits for disks where that keeps nobody else waiting.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// A directory of blobs.
#[derive(Clone, Debug)]
pub(super) struct BlobDirectory(PathBuf);

impl BlobDirectory {
    /// Returns the blobs of `base`.
    pub(super) fn new(base: &Path) -> Self {
        Self(base.join("sha256"))
    }

    fn path(&self, sha256: Digest) -> PathBuf {
        self.0.join(sha256.to_string())
    }

    /// Returns the size of a blob that is there.
    pub(super) fn size(&self, sha256: Digest) -> Option<u64> {
        fs::metadata(self.path(sha256)).ok().filter(fs::Metadata::is_file).map(|found| found.len())
    }

    /// Puts a blob.
    pub(super) fn put(&self, sha256: Digest, bytes: &mut dyn Read) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let mut file = NamedTempFile::new_in(&self.0)?;
        io::copy(bytes, &mut file)?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(permissions)?;
        file.as_file().sync_all()?;
        file.persist(self.path(sha256)).map_err(|error| error.error)?;
        File::open(&self.0)?.sync_all()
    }

    /// Reads a blob back; an error says what is wrong with it.
    pub(super) fn verify(&self, sha256: Digest, size: u64) -> io::Result<()> {
        let mut hashing = Hashing::new(io::sink());
        io::copy(&mut File::open(self.path(sha256))?, &mut hashing)?;
        hashing.check(sha256, Some(size)).map(|_| ())
    }
}

/// Hashes what passes through.
pub(super) struct Hashing<W> {
    hash: Sha256,
    size: u64,
    inner: W,
}

impl<W: io::Write> Hashing<W> {
    /// Returns one that passes on to `inner`.
    pub(super) fn new(inner: W) -> Self {
        Self { hash: Sha256::new(), size: 0, inner }
    }

    /// Returns where it passed on to, or an error unless what passed through is what was wanted.
    pub(super) fn check(self, sha256: Digest, size: Option<u64>) -> io::Result<W> {
        let (found, length) = (Digest(self.hash.finalize().into()), self.size);
        if found != sha256 {
            return Err(io::Error::other(format!("its SHA-256 is {found}, not {sha256}")));
        }
        match size.filter(|size| *size != length) {
            Some(size) => Err(io::Error::other(format!("it has {length} bytes, not {size}"))),
            None => Ok(self.inner),
        }
    }

    /// Returns how much passed through.
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

impl<W: io::Write> io::Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: io::Write + Send> Sink for Hashing<W> {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_put_whole_and_read_back() {
        let base = tempfile::tempdir().unwrap();
        let blobs = BlobDirectory::new(base.path());
        let hash = Digest::of(b"bits");
        assert_eq!(blobs.size(hash), None);
        assert!(blobs.verify(hash, 4).is_err());
        blobs.put(hash, &mut &b"bits"[..]).unwrap();
        assert_eq!(blobs.size(hash), Some(4));
        blobs.verify(hash, 4).unwrap();
        assert!(blobs.verify(hash, 5).unwrap_err().to_string().contains("4 bytes"));
        fs::write(base.path().join("sha256").join(hash.to_string()), "bats").unwrap();
        assert!(blobs.verify(hash, 4).unwrap_err().to_string().contains("SHA-256"));
    }
}
