//! Exporting: one archive of a sealed bundle, the same bytes for the same bundle.
//!
//! Every file is hashed on its way and compared with `hashes.txt`: an archive of a bundle that was changed is never
//! made. It is written under a temporary name beside its place and renamed.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::Digest as _;
use stead_model::ExitCode;
use stead_model::plan::Digest;

use crate::archive::{ArchiveFormat, Packer};
use crate::directory::{rename_new, sweep};
use crate::error::RecordError;
use crate::hashes::HashLine;
use crate::layout::{HASHES, LOCK, RUN_META, SIGNATURE, TEMPORARY, inside, shown};
use crate::list::parsed;
use crate::lock::{Holder, holder_of};
use crate::source::{Form, Source};
use crate::stored::LoadError;
use crate::verify::{VerifyError, VerifyOptions, verify_source};

/// How the name of an archive ends that is being made.
const EXPORT: &str = "-export";

/// An archive that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where it is.
    pub path: PathBuf,
    /// How many files it has.
    pub files: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// What was given is no bundle, or cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The run still lives.
    #[error("{path} is in progress{}", pid(holder.as_ref()), path = path.display())]
    InProgress {
        /// The bundle.
        path: PathBuf,
        /// Who runs it, if known.
        holder: Option<Holder>,
    },
    /// The bundle has no seal.
    #[error("{path} has no seal: its run did not end, or lost its driver", path = path.display())]
    Unsealed {
        /// The bundle.
        path: PathBuf,
    },
    /// The bundle is not what its hashes say.
    #[error("{path} does not verify: {reason}", path = path.display())]
    Changed {
        /// The bundle.
        path: PathBuf,
        /// The first thing that is wrong.
        reason: String,
    },
    /// The archive would lie in the bundle that it is of.
    #[error("{path} lies in the bundle itself: name a file outside", path = path.display())]
    Inside {
        /// The archive.
        path: PathBuf,
    },
    /// There is a file of that name already.
    #[error("{path} exists already", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The finished archive does not verify, so nothing was replaced by it.
    #[error("the archive {path} does not verify", path = path.display())]
    ArchiveInvalid {
        /// The archive.
        path: PathBuf,
        /// Why, if it could not even be read.
        #[source]
        source: Option<VerifyError>,
    },
    /// Something could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

fn pid(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(": pid {} since {}", holder.pid, holder.since))
}

impl ExportError {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Load(_) | Self::Inside { .. } | Self::Exists { .. } => ExitCode::Invalid,
            Self::InProgress { .. } => ExitCode::Locked,
            Self::Unsealed { .. } | Self::Changed { .. } | Self::ArchiveInvalid { .. } => {
                ExitCode::Verification
            }
            Self::Record(_) => ExitCode::Failed,
        }
    }
}

/// Returns what the archive of the bundle at `bundle` is called if nobody says otherwise: its name with an ending.
pub fn archive_path(bundle: &Path, format: ArchiveFormat) -> PathBuf {
    let mut name = bundle.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(format.as_str());
    bundle.with_file_name(name)
}

/// Writes an archive of the sealed bundle at `bundle`, a directory or another archive, to `out`; an existing file is
/// replaced only if `force` says so.
pub fn export(
    bundle: &Path,
    out: &Path,
    format: ArchiveFormat,
    force: bool,
) -> Result<Exported, ExportError> {
    let source = Source::open(bundle)?;
    if source.form() == Form::Directory
        && let Some(holder) = holder_of(&bundle.join(LOCK))?
    {
        return Err(ExportError::InProgress { path: bundle.to_owned(), holder });
    }
    pack(&source, out, format, force)
}

/// Replaces the sealed bundle directory at `bundle`, whose lock this process holds, by an archive beside it.
pub(crate) fn replace_by_archive(bundle: &Path, format: ArchiveFormat) -> Result<Exported, ExportError> {
    let archive = archive_path(bundle, format);
    let exported = pack(&Source::open(bundle)?, &archive, format, false)?;
    let checked = Source::open(&archive).map_err(VerifyError::from);
    let checked = checked.and_then(|source| verify_source(&source, &VerifyOptions::default()));
    let source = match checked {
        Ok(found) if found.valid => None,
        Ok(_) => Some(None),
        Err(error) => Some(Some(error)),
    };
    if let Some(source) = source {
        drop(fs::remove_file(&archive));
        return Err(ExportError::ArchiveInvalid { path: archive, source });
    }
    // Renamed first: a directory that is half removed must not look like a bundle.
    let gone = temporary_beside(bundle);
    fs::rename(bundle, &gone).map_err(RecordError::of("remove", bundle))?;
    fs::remove_dir_all(&gone).map_err(RecordError::of("remove", &gone))?;
    Ok(exported)
}

/// Returns a name beside `path` that nobody else uses; what a dead process leaves under it is swept away.
fn temporary_beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{TEMPORARY}{}-{number}{EXPORT}", std::process::id()))
}

fn pack(source: &Source, out: &Path, format: ArchiveFormat, force: bool) -> Result<Exported, ExportError> {
    let exists = || ExportError::Exists { path: out.to_owned() };
    if !force && out.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let beside = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let (Ok(bundle), Ok(beside)) = (source.path().canonicalize(), beside.canonicalize())
        && source.form() == Form::Directory
        && beside.starts_with(bundle)
    {
        return Err(ExportError::Inside { path: out.to_owned() });
    }
    let plan = Packing::of(source)?;
    sweep(beside, EXPORT);
    let temporary = temporary_beside(out);
    let written = write(source, &plan, &temporary, format).and_then(|(files, bytes)| {
        let placed = if force { fs::rename(&temporary, out) } else { rename_new(&temporary, out) };
        match placed {
            Ok(()) => Ok(Exported { path: out.to_owned(), files, bytes }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            Err(error) => Err(RecordError::of("write", out)(error).into()),
        }
    });
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}

/// What goes into an archive.
struct Packing {
    /// The one folder at its top.
    top: String,
    /// What `hashes.txt` says of each file.
    hashes: BTreeMap<PathBuf, Digest>,
}

impl Packing {
    fn of(source: &Source) -> Result<Self, ExportError> {
        let path = source.path();
        let changed = |reason: String| ExportError::Changed { path: path.to_owned(), reason };
        let wanted = |path: &Path| [RUN_META, HASHES].iter().any(|name| path == Path::new(name));
        let (files, listing) = source.read_files(&wanted)?;
        if let Some((entry, _, message)) = listing.misplaced.first() {
            return Err(changed(format!("{}: {message}", shown(entry))));
        }
        if let Some(other) = listing.contents.others.first() {
            return Err(changed(format!("{} is neither a file nor a directory", shown(other))));
        }
        let Some(Ok(text)) = files.get(Path::new(HASHES)) else {
            return Err(ExportError::Unsealed { path: path.to_owned() });
        };
        let meta = parsed(source, &files, RUN_META)?;
        let meta = meta.ok_or_else(|| LoadError::NotABundle { path: path.to_owned() })?;
        let top = meta.get("run_id").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
        if top.contains('/') || inside(&top).is_none() {
            return Err(changed(format!("its run_id `{}` is no name of a folder", top.escape_debug())));
        }
        let mut hashes = BTreeMap::new();
        for line in text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n') {
            let line = HashLine::parse(line).map_err(|error| changed(format!("{HASHES}: {error}")))?;
            hashes.insert(line.path, line.digest);
        }
        let files = &listing.contents.files;
        if let Some((extra, _)) = files.iter().find(|(file, _)| !hashes.contains_key(file)) {
            return Err(changed(format!("{} is not listed in {HASHES}", shown(extra))));
        }
        let there: std::collections::BTreeSet<&PathBuf> = files.iter().map(|(file, _)| file).collect();
        if let Some(missing) = hashes.keys().find(|path| !there.contains(path)) {
            return Err(changed(format!("{} is listed in {HASHES} and not there", shown(missing))));
        }
        Ok(Self { top, hashes })
    }
}

/// Writes the archive to `path`; returns how many files it has and how long it is.
fn write(
    source: &Source,
    plan: &Packing,
    path: &Path,
    format: ArchiveFormat,
) -> Result<(u64, u64), ExportError> {
    let failed = RecordError::of("write", path);
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o644).open(path).map_err(&failed)?;
    let mut packer = Packer::begin(file, format).map_err(&failed)?;
    let mut last: Option<Vec<u8>> = None;
    let mut files = 0;
    let mut stopped = None;
    let listing = source.visit(&mut |file, bytes, content| {
        if stopped.is_some() {
            return;
        }
        let name = file.as_os_str().as_bytes();
        if last.as_deref().is_some_and(|last| last >= name) {
            let reason =
                "its entries are not in order of their paths; unpack it and export the directory".to_owned();
            stopped = Some(ExportError::Changed { path: source.path().to_owned(), reason });
            return;
        }
        last = Some(name.to_vec());
        stopped = add(&mut packer, source, plan, file, bytes, content).err();
        files += 1;
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    listing?;
    let file = packer.finish().map_err(&failed)?;
    let bytes = file.metadata().and_then(|found| file.sync_all().map(|()| found.len()));
    Ok((files, bytes.map_err(&failed)?))
}

fn add(
    packer: &mut Packer,
    source: &Source,
    plan: &Packing,
    file: &Path,
    bytes: u64,
    content: &mut dyn Read,
) -> Result<(), ExportError> {
    let name = [plan.top.as_bytes(), b"/", file.as_os_str().as_bytes()].concat();
    let mut hashing = Hashing { content, hash: sha2::Sha256::new() };
    packer.add(&name, bytes, &mut hashing).map_err(RecordError::of("export", &source.path().join(file)))?;
    let own = [HASHES, SIGNATURE].iter().any(|own| file == Path::new(own));
    if own || plan.hashes.get(file) == Some(&Digest(hashing.hash.finalize().into())) {
        return Ok(());
    }
    let reason = format!("{} was changed", shown(file));
    Err(ExportError::Changed { path: source.path().to_owned(), reason })
}

/// Hashes what is read.
struct Hashing<'a> {
    content: &'a mut dyn Read,
    hash: sha2::Sha256,
}

impl Read for Hashing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.content.read(buffer)?;
        self.hash.update(&buffer[..len]);
        Ok(len)
    }
}
