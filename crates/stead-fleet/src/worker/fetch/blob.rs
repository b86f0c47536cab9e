//! Blobs: files by their SHA-256, from a directory or over HTTPS.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use stead_model::fleet::Code;
use stead_model::plan::Digest;
use stead_runner::operation::OpError;

use super::{FetchError, Progress};
use crate::worker::files::ASIDE;

/// How long one blob may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// What is read at once.
const PIECE: usize = 128 << 10;

/// Puts the blob at `place` unless it is there; returns how many bytes came.
pub(super) async fn fetch(
    base: Option<&str>,
    sha256: &Digest,
    size: u64,
    place: &Path,
    progress: &Arc<Progress>,
) -> Result<u64, FetchError> {
    if fs::metadata(place).is_ok_and(|found| found.is_file() && found.len() == size) {
        progress.add(size);
        return Ok(0);
    }
    let Some(base) = base else {
        return Err(FetchError::failed(format!(
            "there is no place to get the blob {sha256} from: set `artifacts` in worker.yaml"
        )));
    };
    let from = format!("{}/sha256/{sha256}", base.trim_end_matches('/'));
    let failed = |error: io::Error| FetchError::failed(format!("{from}: {error}"));
    let mut arriving = Arriving::begin(place, sha256, size, progress).map_err(failed)?;
    if base.starts_with("https://") || base.starts_with("http://") {
        let mut sink =
            |piece: &[u8]| arriving.take(piece).map_err(|error| OpError::operation(error.to_string()));
        let got = stead_drivers::download(&from, PATIENCE, &mut sink).await;
        got.map_err(|error| FetchError::failed(format!("{from}: {}", error.message)))?;
        arriving.finish(&from)
    } else {
        let path = from.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let mut file = File::open(&path)?;
            let mut piece = vec![0; PIECE];
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(arriving),
                    read => arriving.take(piece.get(..read).unwrap_or_default())?,
                }
            }
        });
        let arriving = copied.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)?;
        arriving.finish(&from)
    }
}

/// A blob on its way; dropped before it is whole, nothing stays.
struct Arriving {
    file: tempfile::NamedTempFile,
    place: std::path::PathBuf,
    hasher: Sha256,
    came: u64,
    wanted: Digest,
    size: u64,
    progress: Arc<Progress>,
}

impl Arriving {
    fn begin(place: &Path, sha256: &Digest, size: u64, progress: &Arc<Progress>) -> io::Result<Self> {
        let directory = place.parent().unwrap_or(Path::new("/"));
        let file = tempfile::Builder::new().prefix(ASIDE).tempfile_in(directory)?;
        let (place, wanted, progress) = (place.to_owned(), *sha256, Arc::clone(progress));
        Ok(Self { file, place, hasher: Sha256::new(), came: 0, wanted, size, progress })
    }

    /// Takes a piece; more than was announced is an error at once.
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.came += piece.len() as u64;
        if self.came > self.size {
            return Err(io::Error::other(format!("it is longer than the {} bytes announced", self.size)));
        }
        self.hasher.update(piece);
        self.file.write_all(piece)?;
        self.progress.add(piece.len() as u64);
        Ok(())
    }

    /// Puts it in its place, if it is what was announced.
    fn finish(self, from: &str) -> Result<u64, FetchError> {
        let bytes: [u8; 32] = self.hasher.finalize().into();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.came != self.size || found != self.wanted.to_string() {
            let message = format!(
                "{from}: {} bytes with SHA-256 {found} came, {} bytes with {} were published",
                self.came, self.size, self.wanted
            );
            return Err(FetchError { code: Code::NarMismatch, message });
        }
        let failed = |error: io::Error| FetchError::failed(format!("{from}: {error}"));
        self.file.as_file().sync_all().map_err(failed)?;
        self.file.persist(&self.place).map_err(|error| failed(error.error))?;
        Ok(self.came)
    }
}
