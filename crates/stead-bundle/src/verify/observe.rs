//! What is there: every file with its hash, and the content of those that say something about others.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::Digest as _;
use stead_model::plan::Digest;

use crate::archive::Listing;
use crate::hashes::{PIECE, hash_files};
use crate::layout::{HASHES, RUN_META, SIGNATURE, VERSIONS};
use crate::roles::is_role_meta;
use crate::seal::contents;
use crate::source::{Files, Form, Source, read_held};
use crate::stored::LoadError;

/// Metadata longer than this together is refused rather than read.
const MOST_METADATA: u64 = 64 << 20;

/// A bundle as it was found.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// What is there, and what it is called.
    pub(super) listing: Listing,
    /// The hash of each file; none if nobody asks for it.
    pub(super) hashes: BTreeMap<PathBuf, io::Result<Digest>>,
    /// The content of metadata, hashes and signature.
    pub(super) metadata: Files,
    /// Why the archive could not be read to its end.
    pub(super) damage: Option<String>,
    /// What to call whatever holds the files.
    pub(super) holder: &'static str,
}

impl Observed {
    /// Whether there is nothing that a bundle would have.
    pub(super) fn is_no_bundle(&self) -> bool {
        let is_there = |name: &str| {
            let named = |path: &Path| path == Path::new(name);
            let contents = &self.listing.contents;
            contents.files.iter().chain(&contents.own).any(|(path, _)| named(path))
                || contents.others.iter().any(|path| named(path))
        };
        self.damage.is_none() && !is_there(RUN_META) && !is_there(HASHES)
    }
}

/// Returns what is in `source`. Nothing is hashed if there are no hashes to compare with.
pub(super) fn observe(source: &Source) -> Result<Observed, LoadError> {
    match source.form() {
        Form::Directory => observe_directory(source),
        Form::Archive(_) => observe_archive(source),
    }
}

fn observe_directory(source: &Source) -> Result<Observed, LoadError> {
    let (metadata, mut listing) = source.read_files(&is_metadata)?;
    // Walked again after it was read: what came meanwhile is seen as well.
    listing.contents = contents(source.path())?;
    let mut hashes = BTreeMap::new();
    if metadata.contains_key(Path::new(HASHES)) {
        let files = &listing.contents.files;
        let found = hash_files(source.path(), files);
        hashes = files.iter().map(|(path, _)| path.clone()).zip(found).collect();
    }
    Ok(Observed { listing, hashes, metadata, damage: None, holder: "directory" })
}

/// One pass: an archive's hashes may come after the files they are of.
fn observe_archive(source: &Source) -> Result<Observed, LoadError> {
    let mut observed = Observed { holder: "archive's top folder", ..Observed::default() };
    let mut left = MOST_METADATA;
    let mut buffer = vec![0; PIECE];
    let visited = source.visit(&mut |path, bytes, content| {
        if is_metadata(path) {
            let held = read_held(content, &mut left);
            let hash = held.as_ref().map(|held| Digest::of(held)).map_err(copied);
            observed.hashes.insert(path.to_owned(), hash);
            observed.metadata.insert(path.to_owned(), held);
        } else {
            observed.hashes.insert(path.to_owned(), hash(content, bytes, &mut buffer));
        }
    });
    match visited {
        Ok(listing) => observed.listing = listing,
        Err(LoadError::Damaged { reason, .. }) => observed.damage = Some(reason),
        Err(other) => return Err(other),
    }
    Ok(observed)
}

fn copied(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

fn is_metadata(path: &Path) -> bool {
    let named = [RUN_META, VERSIONS, HASHES, SIGNATURE].iter().any(|name| path == Path::new(name));
    named || is_role_meta(path)
}

/// Returns the hash of `content`, which must have `bytes` bytes.
fn hash(content: &mut dyn Read, bytes: u64, buffer: &mut [u8]) -> io::Result<Digest> {
    let mut hash = sha2::Sha256::new();
    let mut sum = 0;
    loop {
        match content.read(buffer) {
            Ok(0) if sum == bytes => return Ok(Digest(hash.finalize().into())),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                hash.update(&buffer[..len]);
                sum += len as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
