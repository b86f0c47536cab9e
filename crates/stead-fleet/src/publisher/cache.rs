//! A binary cache, read back: everything a worker will fetch is there, is what it says, and is signed by somebody trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ed25519_dalek::{Signature as Ed25519Signature, VerifyingKey};
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::nix_signature::{PathFacts, PublicKey, Signature};
use stead_model::plan::Digest;

use super::artifacts::{Hashing, blocking, fetch};
use crate::nix_json::parse_hash;

/// The largest description of a path.
const MOST_NARINFO: u64 = 1 << 20;

/// What a cache says of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NarInfo {
    /// The path and its bits.
    pub(super) facts: PathFacts,
    /// Where its archive is.
    pub(super) url: String,
    /// How the archive is packed.
    pub(super) compression: Compression,
    /// Who signed it.
    pub(super) signatures: Vec<Signature>,
}

/// How an archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// It is not.
    None,
    /// With xz.
    Xz,
    /// With zstd.
    Zstd,
}

impl NarInfo {
    /// Returns what `text` says, or what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let all = |key: &str| {
            let key = format!("{key}:");
            text.lines().filter_map(move |line| line.strip_prefix(&key).map(str::trim)).collect::<Vec<_>>()
        };
        let one = |key: &str| match all(key)[..] {
            [value] => Ok(value),
            [] => Err(format!("no `{key}`")),
            _ => Err(format!("`{key}` twice")),
        };
        let path = one("StorePath")?;
        let path = StorePath::parse(path).ok_or_else(|| format!("`{path}` is no store path"))?;
        let hash = one("NarHash")?;
        let nar_sha256 = parse_hash(hash).ok_or_else(|| format!("`{hash}` is no SHA-256"))?;
        let nar_size = one("NarSize")?.parse().map_err(|_| "`NarSize` is no number".to_owned())?;
        let references: Option<Vec<StorePath>> = one("References")?
            .split_ascii_whitespace()
            .map(|name| StorePath::parse(&format!("/nix/store/{name}")))
            .collect();
        let references = references.ok_or("a reference is no store path")?;
        let compression = match one("Compression").unwrap_or("bzip2") {
            "none" | "" => Compression::None,
            "xz" => Compression::Xz,
            "zstd" => Compression::Zstd,
            other => {
                return Err(format!("archives packed with `{other}` cannot be read; use xz, zstd or none"));
            }
        };
        let url = one("URL")?.to_owned();
        let is_inside = !url.is_empty()
            && !url.starts_with('/')
            && !url.contains("://")
            && url.split('/').all(|part| part != "..");
        if !is_inside {
            return Err(format!("`{url}` leads out of the cache"));
        }
        let signatures: Option<Vec<Signature>> = all("Sig").into_iter().map(Signature::parse).collect();
        let signatures = signatures.ok_or("a signature cannot be read")?;
        let facts = PathFacts { path, nar_sha256, nar_size, references };
        Ok(Self { facts, url, compression, signatures })
    }

    /// Whether one of `keys` signed it.
    pub(super) fn is_signed(&self, keys: &[PublicKey]) -> bool {
        self.signatures.iter().any(|signature| is_signed(&self.facts, signature, keys))
    }
}

/// Whether `signature` is that of one of `keys` over a path with its bits.
pub(super) fn is_signed(facts: &PathFacts, signature: &Signature, keys: &[PublicKey]) -> bool {
    let text = facts.fingerprint();
    keys.iter().filter(|key| key.name == signature.name).any(|key| {
        let Ok(verifying) = VerifyingKey::from_bytes(&key.bytes) else { return false };
        verifying.verify_strict(text.as_bytes(), &Ed25519Signature::from_bytes(&signature.bytes)).is_ok()
    })
}

/// What is wrong with a path of a cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CacheFault {
    /// It is not there.
    #[error("{path} is not in the cache: {why} (missing-dependency)")]
    Missing {
        /// Which.
        path: String,
        /// Why it seems so.
        why: String,
    },
    /// It is not what was built.
    #[error("{path} in the cache is not what was built: {why} (nar-mismatch)")]
    Mismatch {
        /// Which.
        path: String,
        /// What differs.
        why: String,
    },
    /// Nobody trusted signed it.
    #[error("{path} in the cache is signed by {keys} (signature-rejected)")]
    Unsigned {
        /// Which.
        path: String,
        /// Who signed it.
        keys: String,
    },
}

/// What was read back, and how its files were then. Shared by all pipelines of a publisher.
#[derive(Clone, Debug, Default)]
pub(super) struct Verified(Arc<Mutex<BTreeMap<StorePath, Stamp>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    narinfo: Digest,
    size: u64,
    changed: SystemTime,
}

/// A binary cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    place: Place,
    keys: Vec<PublicKey>,
    verified: Verified,
}

/// Where a cache is.
#[derive(Clone, Debug)]
enum Place {
    /// A directory.
    Directory(PathBuf),
    /// An address.
    Web(String),
}

impl Cache {
    /// Returns the cache at `url` whose paths have to be signed by one of `keys`.
    pub(super) fn open(url: &str, keys: Vec<PublicKey>, verified: Verified) -> Result<Self, String> {
        if keys.is_empty() {
            return Err("nobody is trusted to sign what workers fetch: set `nix.secret_key_file` or `nix.public_keys` of publisher.yaml".to_owned());
        }
        let base = url.split('?').next().unwrap_or_default().trim_end_matches('/');
        let place = match base.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => Place::Directory(PathBuf::from(path)),
            Some(("http" | "https", _)) => Place::Web(base.to_owned()),
            Some(_) | None => {
                return Err(format!(
                    "the cache `{url}` cannot be read back; `nix.cache` is `file:///DIRECTORY` or an http address"
                ));
            }
        };
        Ok(Self { place, keys, verified })
    }

    /// Reads everything back.
    pub(super) async fn verify(&self, closure: &BTreeMap<StorePath, PathFacts>) -> Result<(), CacheFault> {
        for (path, built) in closure {
            if let Some(lost) = built.references.iter().find(|reference| !closure.contains_key(reference)) {
                let why = format!("its reference {} was not copied", lost.as_str());
                return Err(CacheFault::Missing { path: path.as_str().to_owned(), why });
            }
            self.verify_path(path, built).await?;
        }
        Ok(())
    }

    async fn verify_path(&self, path: &StorePath, built: &PathFacts) -> Result<(), CacheFault> {
        let name = || path.as_str().to_owned();
        let missing = |error: io::Error| CacheFault::Missing { path: name(), why: error.to_string() };
        let mismatch = |why: String| CacheFault::Mismatch { path: name(), why };
        let hash = path.base_name().split('-').next().unwrap_or_default();
        let text = self.narinfo(&format!("{hash}.narinfo")).await.map_err(missing)?;
        let info = NarInfo::parse(&text).map_err(|why| mismatch(format!("{hash}.narinfo: {why}")))?;
        compare(&info.facts, built).map_err(mismatch)?;
        if !info.is_signed(&self.keys) {
            let mut keys: Vec<&str> = info.signatures.iter().map(|by| by.name.as_str()).collect();
            keys.dedup();
            let untrusted = || format!("{}, who is not trusted", keys.join(", "));
            let keys = if keys.is_empty() { "nobody".to_owned() } else { untrusted() };
            return Err(CacheFault::Unsigned { path: name(), keys });
        }
        let archive = self.archive(&info.url).await.map_err(missing)?;
        let stamp = archive.stamp(&text);
        if stamp.is_some() && self.verified.get(path) == stamp {
            return Ok(());
        }
        let url = info.url.clone();
        let checked = blocking(move || check_archive(File::open(archive.path())?, &info)).await;
        checked.map_err(|error| mismatch(format!("{url}: {error}")))?;
        self.verified.set(path, stamp);
        Ok(())
    }

    async fn narinfo(&self, name: &str) -> io::Result<String> {
        match &self.place {
            Place::Directory(directory) => read_narinfo(&directory.join(name)),
            Place::Web(base) => {
                let mut bytes = Bounded(Vec::new());
                fetch(&format!("{base}/{name}"), &mut bytes).await?;
                String::from_utf8(bytes.0).map_err(io::Error::other)
            }
        }
    }

    /// Returns an archive as a file.
    async fn archive(&self, url: &str) -> io::Result<Archive> {
        match &self.place {
            Place::Directory(directory) => {
                let path = directory.join(url);
                fs::metadata(&path)
                    .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
                Ok(Archive::Kept(path))
            }
            Place::Web(base) => {
                let mut file = tempfile::NamedTempFile::new()?;
                fetch(&format!("{base}/{url}"), &mut file).await?;
                Ok(Archive::Fetched(file))
            }
        }
    }
}

/// An archive as a file.
enum Archive {
    /// That of the cache itself.
    Kept(PathBuf),
    /// One that was fetched for this.
    Fetched(tempfile::NamedTempFile),
}

impl Archive {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Fetched(file) => file.path(),
        }
    }

    /// Returns what changes with it; none: that is not known.
    fn stamp(&self, narinfo: &str) -> Option<Stamp> {
        match self {
            Self::Kept(path) => {
                let found = fs::metadata(path).ok()?;
                let narinfo = Digest::of(narinfo.as_bytes());
                Some(Stamp { narinfo, size: found.len(), changed: found.modified().ok()? })
            }
            Self::Fetched(_) => None,
        }
    }
}

impl Verified {
    fn get(&self, path: &StorePath) -> Option<Stamp> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn set(&self, path: &StorePath, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone(), stamp);
        }
    }
}

/// Keeps a little.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > MOST_NARINFO {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read_narinfo(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let named = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
    File::open(path).and_then(|file| file.take(MOST_NARINFO).read_to_string(&mut text)).map_err(named)?;
    Ok(text)
}

/// Returns how what a cache says differs from what was built.
fn compare(found: &PathFacts, built: &PathFacts) -> Result<(), String> {
    if found.path != built.path {
        return Err(format!("it says it is {}", found.path.as_str()));
    }
    if found.nar_sha256 != built.nar_sha256 {
        return Err(format!("narHash {}, built as {}", found.sri(), built.sri()));
    }
    if found.nar_size != built.nar_size {
        return Err(format!("NarSize {}, built as {}", found.nar_size, built.nar_size));
    }
    let sorted = |facts: &PathFacts| facts.references.iter().cloned().collect::<BTreeSet<_>>();
    if sorted(found) != sorted(built) {
        return Err("its references differ".to_owned());
    }
    Ok(())
}

/// Unpacks an archive and compares its bits. It may not be larger than it says.
fn check_archive(packed: impl Read, info: &NarInfo) -> io::Result<()> {
    let packed = io::BufReader::new(packed);
    let unpacked: Box<dyn Read> = match info.compression {
        Compression::None => Box::new(packed),
        Compression::Xz => Box::new(liblzma::read::XzDecoder::new_multi_decoder(packed)),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
    };
    let mut hashing = Hashing::new(io::sink());
    io::copy(&mut unpacked.take(info.facts.nar_size + 1), &mut hashing)?;
    hashing.check(Digest(info.facts.nar_sha256), Some(info.facts.nar_size)).map(|_| ())
}

/// Returns who may sign: those that are named, and who has the secret key.
pub(super) fn trusted(
    public_keys: &[String],
    secret_key_file: Option<&str>,
) -> Result<Vec<PublicKey>, String> {
    let mut keys: Vec<PublicKey> = public_keys.iter().filter_map(|text| PublicKey::parse(text)).collect();
    if let Some(path) = secret_key_file {
        let text = zeroize::Zeroizing::new(
            fs::read_to_string(path).map_err(|error| format!("`nix.secret_key_file` {path}: {error}"))?,
        );
        // A secret key is 32 secret bytes and the public key.
        let secret = stead_model::fleet::nix_signature::Named::<64>::parse(text.trim());
        let secret = secret
            .ok_or_else(|| format!("`nix.secret_key_file` {path} holds no `NAME:BASE64` of 64 bytes"))?;
        let mut bytes = [0; 32];
        bytes.copy_from_slice(secret.bytes.get(32..).unwrap_or(&[0; 32]));
        keys.push(PublicKey { name: secret.name, bytes });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "lab-1:qLXNZPyiOYzbXmppg7/qZo5FmA7UUQ5X3WTfZeR62Cw=";
    const SIG: &str =
        "lab-1:KLBHcyr4vMS3TaKVz9gNWNdxJXrLWwEOjD4IMeH+3jEzEpSOFbC36AiDkbbq9FWF1iwlhIAae/X5t7T8NoJVDw==";
    const PATH: &str = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";

    fn facts() -> PathFacts {
        PathFacts {
            path: StorePath::parse(PATH).unwrap(),
            nar_sha256: parse_hash("sha256:04zwf782yjwnh3q6hz5izfd6jyip8kgw6g6yj43fiqhbyhdd0dqw").unwrap(),
            nar_size: 120,
            references: vec![],
        }
    }

    /// Case 7: the signature of the vector verifies; each flipped bit of path, hash, size and signature fails.
    #[test]
    fn the_signature_vector_verifies_and_no_flipped_bit_does() {
        let keys = [PublicKey::parse(KEY).unwrap()];
        let signature = Signature::parse(SIG).unwrap();
        assert!(is_signed(&facts(), &signature, &keys));
        for bit in 0..64 * 8 {
            let mut flipped = signature.clone();
            flipped.bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_signed(&facts(), &flipped, &keys), "signature bit {bit}");
        }
        for bit in 0..32 * 8 {
            let mut flipped = facts();
            flipped.nar_sha256[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_signed(&flipped, &signature, &keys), "hash bit {bit}");
        }
        for bit in 0..64 {
            let flipped = PathFacts { nar_size: 120 ^ (1 << bit), ..facts() };
            assert!(!is_signed(&flipped, &signature, &keys), "size bit {bit}");
        }
        let mut paths = 0;
        for bit in 0..PATH.len() * 8 {
            let mut bytes = PATH.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Some(path) = String::from_utf8(bytes).ok().and_then(|path| StorePath::parse(&path)) else {
                continue;
            };
            paths += 1;
            assert!(!is_signed(&PathFacts { path, ..facts() }, &signature, &keys), "path bit {bit}");
        }
        assert!(paths > 50, "only {paths} flipped paths are paths");
        let other = PublicKey { name: "lab-2".to_owned(), ..keys[0].clone() };
        assert!(!is_signed(&facts(), &signature, &[other]), "a key of another name");
        let referring = PathFacts { references: vec![facts().path], ..facts() };
        assert!(!is_signed(&referring, &signature, &keys), "another reference");
    }

    #[test]
    fn narinfos_are_read_whole_or_not() {
        let text = format!(
            "StorePath: {PATH}\nURL: nar/x.nar.xz\nCompression: xz\nFileHash: sha256:1\nFileSize: 1\nNarHash: sha256:04zwf782yjwnh3q6hz5izfd6jyip8kgw6g6yj43fiqhbyhdd0dqw\nNarSize: 120\nReferences: \nSig: {SIG}\n"
        );
        let info = NarInfo::parse(&text).unwrap();
        assert_eq!((&info.facts, info.compression), (&facts(), Compression::Xz));
        assert!(info.is_signed(&[PublicKey::parse(KEY).unwrap()]));
        for (from, to) in [
            ("nar/x", "../x"),
            ("nar/x", "/x"),
            ("nar/x", "https://x"),
            ("Compression: xz", "Compression: lzip"),
            ("NarSize: 120", "NarSize: many"),
            ("NarSize: 120", "NarSize: 120\nNarSize: 121"),
            ("References: ", "References: x"),
            ("sha256:04", "sha256:0"),
            ("Sig: lab", "Sig: :"),
        ] {
            assert!(NarInfo::parse(&text.replacen(from, to, 1)).is_err(), "{to}");
        }
    }

    #[test]
    fn archives_are_unpacked_and_compared() {
        let bits = b"an archive, whatever is in it".repeat(100);
        let mut xz = Vec::new();
        io::copy(&mut liblzma::read::XzEncoder::new(bits.as_slice(), 6), &mut xz).unwrap();
        let zstd = zstd::stream::encode_all(bits.as_slice(), 3).unwrap();
        for (packed, compression) in
            [(bits.clone(), Compression::None), (xz, Compression::Xz), (zstd, Compression::Zstd)]
        {
            let facts = PathFacts { nar_sha256: Digest::of(&bits).0, nar_size: bits.len() as u64, ..facts() };
            let info = NarInfo { facts, url: String::new(), compression, signatures: vec![] };
            check_archive(packed.as_slice(), &info).unwrap();
            let mut longer = info.clone();
            longer.facts.nar_size -= 1;
            assert!(check_archive(packed.as_slice(), &longer).is_err(), "{compression:?}");
            let mut torn = packed.clone();
            torn.truncate(packed.len() / 2);
            assert!(check_archive(torn.as_slice(), &info).is_err(), "{compression:?}");
            let mut flipped = packed.clone();
            flipped[packed.len() / 2] ^= 1;
            assert!(check_archive(flipped.as_slice(), &info).is_err(), "{compression:?}");
        }
    }
}
