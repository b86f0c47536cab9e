//! Images and templates of a hosting node: which it has, and how it comes by those that the level above has.
//!
//! ```text
//!  GET /v1/artifacts/sha256/HEX, part by part ──▶ .stead-FILE.HEX.part ── its hash holds ──▶ FILE
//! ```
//! What is called FILE is whole. A part that was fetched before somebody was interrupted is not fetched again; it counts
//! only with the rest, by the hash of all of it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stead_model::ExitCode;
use stead_model::node::ImageOffered;

use crate::disk::body::hash;
use crate::server_client::{ClientError, ServerClient};

/// What the file of an image or a template may have after its name.
const ENDINGS: [&str; 12] = [
    "", ".qcow2", ".img", ".raw", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".txz", ".tar.bz2",
    ".tar.lz4",
];
/// What a file is called of which not everything is there.
const PARTS: (&str, &str) = (".stead-", ".part");
/// As much is asked for at once.
const PIECE: u64 = 4 << 20;
/// How often a server is asked that is away, and with which pauses.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_secs(1);

/// Why a hosting node does not have what its nodes boot.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It would lie somewhere else than in the directory of images, or could not be told from what does not.
    #[error("`{}` is not the name of a file of images", .0.escape_debug())]
    Name(String),
    /// There is no room for it.
    #[error("{file} needs {wanted} bytes more, and {free} are free in {}", directory.display())]
    Room {
        /// The file.
        file: String,
        /// What is missing of it.
        wanted: u64,
        /// What is free.
        free: u64,
        /// Where.
        directory: PathBuf,
    },
    /// It has another hash.
    #[error("{0} did not arrive whole: its hash is another one")]
    NotWhole(String),
    /// The server does not hand it out.
    #[error("{file} cannot be fetched")]
    Server {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// A file cannot be written.
    #[error("failed to write {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// Returns what a command ends with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Name(_) => ExitCode::Invalid,
            Self::Server { source, .. } => source.exit_code(),
            Self::Room { .. } | Self::NotWhole(_) | Self::File { .. } => ExitCode::Failed,
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::File { path, source }
}

/// Whether a name is that of a file which is the same wherever it lies.
pub(crate) fn is_plain(name: &str) -> bool {
    let fits = |c: char| !c.is_control() && c != '/' && c != '\\';
    name != "host" && !name.is_empty() && !name.starts_with(['.', '-']) && name.chars().all(fits)
}

/// Returns where an image or a template of this name may lie in a directory.
pub(crate) fn places(directory: &Path, name: &str) -> impl Iterator<Item = PathBuf> {
    ENDINGS.iter().map(move |ending| directory.join(format!("{name}{ending}")))
}

/// Returns those of `names` that a directory has neither as a file nor as a directory.
pub fn absent<'a>(directory: &Path, names: &'a [String]) -> Vec<&'a str> {
    let is_there = |name: &str| places(directory, name).any(|place| fs::symlink_metadata(place).is_ok());
    names.iter().map(String::as_str).filter(|name| is_plain(name) && !is_there(name)).collect()
}

/// Fetches files into a directory. What it has under such a name stays as it is.
///
/// # Errors
/// If one of them cannot be fetched whole; what was fetched before it stays.
pub async fn fetch(
    client: &ServerClient,
    directory: &Path,
    files: &[ImageOffered],
) -> Result<(), ImageError> {
    if let Some(bad) = files.iter().find(|file| !is_plain(&file.file)) {
        return Err(ImageError::Name(bad.file.clone()));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
    // Another who fetches into it is waited for: two would write the same part.
    let _held = hold(directory).await.map_err(failed(directory))?;
    remove_others(directory, files);
    for file in files {
        fetch_one(client, directory, file).await?;
    }
    Ok(())
}

async fn hold(directory: &Path) -> io::Result<File> {
    let held = File::open(directory)?;
    let locked = tokio::task::spawn_blocking(move || {
        rustix::fs::flock(&held, FlockOperation::LockExclusive)?;
        Ok(held)
    });
    locked.await.map_err(|_| io::Error::other("it was cut off"))?
}

fn part_of(directory: &Path, file: &ImageOffered) -> PathBuf {
    let (before, after) = PARTS;
    directory.join(format!("{before}{}.{}{after}", file.file, file.sha256))
}

/// Removes parts of what is not wanted any more.
fn remove_others(directory: &Path, files: &[ImageOffered]) {
    let wanted: Vec<PathBuf> = files.iter().map(|file| part_of(directory, file)).collect();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PARTS.0) && name.ends_with(PARTS.1) && !wanted.contains(&entry.path()) {
            // One that stays only takes room.
            fs::remove_file(entry.path()).ok();
        }
    }
}

async fn fetch_one(client: &ServerClient, directory: &Path, wanted: &ImageOffered) -> Result<(), ImageError> {
    let (to, path) = (directory.join(&wanted.file), part_of(directory, wanted));
    if fs::symlink_metadata(&to).is_ok() {
        return Ok(());
    }
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    // A link in its place would lead elsewhere.
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let mut part = options.open(&path).map_err(failed(&path))?;
    for is_last in [false, true] {
        let known = part.metadata().map_err(failed(&path))?.len();
        let known = if known > wanted.size { 0 } else { known };
        part.set_len(known).map_err(failed(&path))?;
        has_room(directory, wanted, known)?;
        complete(client, &mut part, &path, wanted, known).await?;
        if is_whole(&part, wanted).await.map_err(failed(&path))? {
            break;
        }
        part.set_len(0).map_err(failed(&path))?;
        // What was there before may be to blame: without it there is nothing else to try.
        if known == 0 || is_last {
            fs::remove_file(&path).map_err(failed(&path))?;
            return Err(ImageError::NotWhole(wanted.file.clone()));
        }
    }
    part.sync_all().map_err(failed(&path))?;
    // Unlike a rename it replaces nothing.
    match fs::hard_link(&path, &to) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&to)(error)),
        Ok(()) | Err(_) => {}
    }
    fs::remove_file(&path).map_err(failed(&path))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(directory))
}

/// Refuses what there is no room for, before any of it is fetched.
fn has_room(directory: &Path, file: &ImageOffered, known: u64) -> Result<(), ImageError> {
    let wanted = file.size - known;
    let space = rustix::fs::statvfs(directory).map_err(|errno| failed(directory)(errno.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if wanted > free {
        let (file, directory) = (file.file.clone(), directory.to_owned());
        return Err(ImageError::Room { file, wanted, free, directory });
    }
    Ok(())
}

/// Fetches what is missing after the first `known` bytes.
async fn complete(
    client: &ServerClient,
    part: &mut File,
    path: &Path,
    wanted: &ImageOffered,
    mut known: u64,
) -> Result<(), ImageError> {
    part.seek(SeekFrom::Start(known)).map_err(failed(path))?;
    let mut tries = 0;
    while known < wanted.size {
        let end = wanted.size.min(known + PIECE);
        match client.artifact_part(&wanted.sha256, known, end).await {
            Ok(bytes) => {
                part.write_all(&bytes).map_err(failed(path))?;
                known += bytes.len() as u64;
                tries = 0;
            }
            Err(error) if error.may_pass() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(error.retry_after().unwrap_or(PAUSE)).await;
            }
            Err(source) => return Err(ImageError::Server { file: wanted.file.clone(), source }),
        }
    }
    Ok(())
}

async fn is_whole(part: &File, wanted: &ImageOffered) -> io::Result<bool> {
    let mut file = part.try_clone()?;
    let hashed = tokio::task::spawn_blocking(move || {
        file.rewind()?;
        hash(&mut file)
    });
    let (size, sha256) = hashed.await.map_err(|_| io::Error::other("it was cut off"))??;
    Ok(size == wanted.size && sha256 == wanted.sha256.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_have_a_name_of_their_own_are_images() {
        for (name, is_so) in [
            ("debian-12", true),
            ("host", false),
            ("/srv/a.img", false),
            ("../a", false),
            ("a/b", false),
            (".a", false),
            ("-f", false),
            ("a\n", false),
            ("", false),
        ] {
            assert_eq!(is_plain(name), is_so, "{name}");
        }
    }

    #[test]
    fn what_is_there_in_any_form_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("packed.tar.zst"), "").unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let names = ["packed", "tree", "other", "../etc"].map(str::to_owned);
        assert_eq!(absent(dir.path(), &names), ["other"]);
        assert_eq!(absent(&dir.path().join("nowhere"), &names), ["packed", "tree", "other"]);
    }
}
