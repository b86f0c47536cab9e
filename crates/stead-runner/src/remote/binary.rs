//! Which `stead` goes to which kind of machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

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

/// The programs a run can bring to targets. Each is read once.
#[derive(Debug)]
pub(crate) struct Binaries {
    own: PathBuf,
    directories: Vec<PathBuf>,
    known: Mutex<BTreeMap<PathBuf, Binary>>,
    packed: Mutex<Packed>,
}

/// Programs made smaller.
type Packed = BTreeMap<(PathBuf, Packing), Arc<Vec<u8>>>;

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

    /// Returns the program's bytes, made smaller; hosts that need it at the same time share them.
    pub(crate) async fn packed(&self, binary: &Binary, packing: Packing) -> Result<Arc<Vec<u8>>, OpError> {
        let mut packed = self.packed.lock().await;
        let key = (binary.path.clone(), packing);
        if let Some(bytes) = packed.get(&key) {
            return Ok(Arc::clone(bytes));
        }
        let path = binary.path.clone();
        let made = tokio::task::spawn_blocking(move || pack(&path, packing)).await;
        let made = made.map_err(io::Error::other).and_then(|made| made);
        let cannot =
            |error: io::Error| OpError::permanent(format!("cannot read {}: {error}", binary.path.display()));
        let bytes = Arc::new(made.map_err(cannot)?);
        packed.insert(key, Arc::clone(&bytes));
        Ok(bytes)
    }
}

fn pack(path: &Path, packing: Packing) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    match packing {
        Packing::None => Ok(bytes),
        Packing::Zstd => zstd::bulk::compress(&bytes, 1),
        Packing::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes)?;
            encoder.finish()
        }
    }
}
