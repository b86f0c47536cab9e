//! Which `stead` goes to which kind of machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, Semaphore};

use crate::files::Content;
use crate::operation::OpError;

/// How content is made smaller on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Packing {
    Zstd,
    Gzip,
    None,
}

impl Packing {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::None => "none",
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "zstd" => Self::Zstd,
            "gzip" => Self::Gzip,
            _ => Self::None,
        }
    }
}

/// A program for one kind of machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    pub(crate) sha256: String,
}

/// What is sent of a program at a time.
const PIECE: usize = 64 << 10;

/// The programs a run can bring to targets. Each is read once, and none is held in memory.
#[derive(Debug)]
pub(crate) struct Binaries {
    own: PathBuf,
    directories: Vec<PathBuf>,
    known: Mutex<BTreeMap<PathBuf, Binary>>,
    packed: Mutex<Packed>,
}

/// Programs made smaller, in files without a name.
type Packed = BTreeMap<(PathBuf, Packing), Sendable>;

/// A program as it is sent, to many hosts at once.
#[derive(Clone, Debug)]
pub(crate) struct Sendable {
    file: Arc<File>,
    /// Reading is quick: two at a time keep every host busy, and a thread for each would cost more than the program.
    turns: Arc<Semaphore>,
}

impl Sendable {
    /// Returns the bytes from `offset` on, at most a piece of them; nothing at the end.
    pub(crate) async fn piece(&self, offset: u64) -> io::Result<Vec<u8>> {
        let file = Arc::clone(&self.file);
        let _turn = self.turns.acquire().await.map_err(io::Error::other)?;
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; PIECE];
            let count = file.read_at(&mut piece, offset)?;
            piece.truncate(count);
            Ok(piece)
        });
        read.await.map_err(io::Error::other)?
    }
}

/// Returns what this program's own kind of machine is called.
pub(crate) fn own_arch() -> String {
    let arch = match std::env::consts::ARCH {
        "arm" => "armv7",
        other => other,
    };
    match std::env::consts::OS {
        "linux" => arch.to_owned(),
        "macos" => format!("darwin-{arch}"),
        other => format!("{other}-{arch}"),
    }
}

impl Binaries {
    pub(crate) fn new(own: PathBuf, directories: Vec<PathBuf>) -> Self {
        Self { own, directories, known: Mutex::default(), packed: Mutex::default() }
    }

    /// Returns the program for machines called `arch`.
    pub(crate) async fn for_arch(&self, arch: &str, host: &str) -> Result<Binary, OpError> {
        if arch == own_arch() {
            return self.read(&self.own).await;
        }
        let places: Vec<PathBuf> =
            self.directories.iter().map(|directory| directory.join(arch).join("stead")).collect();
        if let Some(path) = places.iter().find(|path| path.is_file()) {
            return self.read(path).await;
        }
        let version = env!("CARGO_PKG_VERSION");
        let named: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        let named =
            if named.is_empty() { format!("$STEAD_BINARIES/{arch}/stead") } else { named.join(" or ") };
        Err(OpError::permanent(format!(
            "host {host} is {arch}, and this stead is for {}: put stead {version} for {arch} at {named}",
            own_arch()
        )))
    }

    async fn read(&self, path: &Path) -> Result<Binary, OpError> {
        let mut known = self.known.lock().await;
        if let Some(binary) = known.get(path) {
            return Ok(binary.clone());
        }
        let (wanted, place) = (path.to_owned(), path.display().to_string());
        let read = tokio::task::spawn_blocking(move || Content::read(&mut File::open(wanted)?)).await;
        let content = read.map_err(io::Error::other).and_then(|read| read);
        let content = content.map_err(|error| OpError::permanent(format!("cannot read {place}: {error}")))?;
        let binary = Binary { path: path.to_owned(), sha256: content.sha256 };
        known.insert(path.to_owned(), binary.clone());
        Ok(binary)
    }

    /// Returns the program as it is sent, made smaller once for all hosts.
    pub(crate) async fn packed(&self, binary: &Binary, packing: Packing) -> Result<Sendable, OpError> {
        let mut packed = self.packed.lock().await;
        let key = (binary.path.clone(), packing);
        if let Some(sendable) = packed.get(&key) {
            return Ok(sendable.clone());
        }
        let path = binary.path.clone();
        let made = tokio::task::spawn_blocking(move || pack(&path, packing)).await;
        let made = made.map_err(io::Error::other).and_then(|made| made);
        let cannot =
            |error: io::Error| OpError::permanent(format!("cannot read {}: {error}", binary.path.display()));
        let file = Arc::new(made.map_err(cannot)?);
        let sendable = Sendable { file, turns: Arc::new(Semaphore::new(2)) };
        packed.insert(key, sendable.clone());
        Ok(sendable)
    }
}

fn pack(path: &Path, packing: Packing) -> io::Result<File> {
    let mut whole = File::open(path)?;
    match packing {
        Packing::None => Ok(whole),
        Packing::Zstd => {
            let small = tempfile::tempfile()?;
            zstd::stream::copy_encode(whole, &small, 1)?;
            Ok(small)
        }
        Packing::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(tempfile::tempfile()?, flate2::Compression::fast());
            io::copy(&mut whole, &mut encoder)?;
            encoder.finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[tokio::test]
    async fn a_program_is_sent_whole_however_it_is_packed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("stead");
        let content: Vec<u8> =
            (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 25) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let binaries = Binaries::new(path, Vec::new());
        let binary = binaries.for_arch(&own_arch(), "web1").await.unwrap();
        for packing in [Packing::None, Packing::Zstd, Packing::Gzip] {
            let sendable = binaries.packed(&binary, packing).await.unwrap();
            let mut sent = Vec::new();
            loop {
                let piece = sendable.piece(sent.len() as u64).await.unwrap();
                if piece.is_empty() {
                    break;
                }
                sent.extend(piece);
            }
            let whole = match packing {
                Packing::None => sent,
                Packing::Zstd => zstd::stream::decode_all(&*sent).unwrap(),
                Packing::Gzip => {
                    let mut whole = Vec::new();
                    flate2::read::GzDecoder::new(&*sent).read_to_end(&mut whole).unwrap();
                    whole
                }
            };
            assert!(whole == content, "{packing:?}");
        }
    }
}
