//! Disk images: found by name, their format known, and the disks that are made from them. Made by `qemu-img`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use stead_model::machine::{Drive, DriveAccess, DriveFormat, MachineSpec};
use stead_runner::machine::MachineError;

use crate::machine::home::Home;
use crate::machine::local::SYSTEM_PATH;
use crate::machine::oci::MARK;

const GIB: u64 = 1 << 30;
const PROGRAM: &str = "qemu-img";

/// A disk image and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
}

impl From<&Drive> for Image {
    fn from(drive: &Drive) -> Self {
        Self { path: PathBuf::from(&drive.path), format: drive.format.into() }
    }
}

impl From<DriveFormat> for Format {
    fn from(format: DriveFormat) -> Self {
        match format {
            DriveFormat::Raw => Self::Raw,
            DriveFormat::Qcow2 => Self::Qcow2,
        }
    }
}

/// How a disk is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Qcow2,
}

impl Format {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Finds an image by absolute path, or by name in `image_dir` with or without its usual ending.
pub(super) fn find(image_dir: Option<&Path>, name: &str) -> Result<Image, MachineError> {
    let invalid = |what: String| MachineError::Invalid(what);
    let places: Vec<PathBuf> = if name.starts_with('/') {
        vec![PathBuf::from(name)]
    } else {
        let fits = |c: char| !c.is_control() && c != '/';
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
            return Err(invalid(format!(
                "`{}` is neither an image's name nor its path",
                name.escape_debug()
            )));
        }
        let Some(dir) = image_dir else {
            return Err(invalid(format!("there is no `image_dir` to look for the image {name} in")));
        };
        ["", ".qcow2", ".img", ".raw"].iter().map(|ending| dir.join(format!("{name}{ending}"))).collect()
    };
    let Some(path) = places.iter().find(|path| path.is_file()) else {
        let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        return Err(invalid(format!("there is no image {name}: looked for {}", looked.join(", "))));
    };
    let format =
        format_of(path).map_err(|error| invalid(format!("{} cannot be read: {error}", path.display())))?;
    Ok(Image { path: path.clone(), format })
}

fn format_of(path: &Path) -> io::Result<Format> {
    let mut magic = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(if magic == b"QFI\xfb" { Format::Qcow2 } else { Format::Raw })
}

/// Returns the file of the layer that a machine writes to instead of one of its drives.
pub(crate) fn layer(index: usize) -> String {
    format!("layer-{index}.qcow2")
}

/// Makes the layers of the drives that a machine writes to and keeps to itself. What is read through them is not copied.
pub(in crate::machine) fn layers(spec: &MachineSpec, home: &Home) -> Result<(), MachineError> {
    let drives = spec.drives.iter().enumerate();
    for (index, drive) in drives.filter(|(_, drive)| drive.access == DriveAccess::Private) {
        overlay(&drive.into(), &home.file(&layer(index)), None)?;
    }
    Ok(())
}

/// Makes the first disk as an overlay on `image`, grown to `gigabytes`.
pub(crate) fn overlay(image: &Image, disk: &Path, gigabytes: Option<u64>) -> Result<(), MachineError> {
    let size = grown(image, disk, gigabytes)?;
    // The format of what lies below is never guessed: a guest could have written what looks like another one.
    let mut args: Vec<&OsStr> =
        ["create", "-q", "-f", "qcow2", "-F", image.format.word(), "-b"].map(OsStr::new).into();
    let size = size.to_string();
    args.extend([image.path.as_os_str(), disk.as_os_str(), OsStr::new(&size)]);
    run(disk, &args).map(drop)
}

/// Makes an empty disk.
pub(crate) fn empty(disk: &Path, gigabytes: u64) -> Result<(), MachineError> {
    empty_of(disk, gigabytes.saturating_mul(GIB))
}

/// Makes an empty disk of so many bytes.
pub(super) fn empty_of(disk: &Path, size: u64) -> Result<(), MachineError> {
    let size = size.to_string();
    let mut args: Vec<&OsStr> = ["create", "-q", "-f", "qcow2"].map(OsStr::new).into();
    args.extend([disk.as_os_str(), OsStr::new(&size)]);
    run(disk, &args).map(drop)
}

/// Makes the first disk as a raw copy of `image`, grown to `gigabytes`.
pub(crate) fn raw_copy(image: &Image, disk: &Path, gigabytes: Option<u64>) -> Result<(), MachineError> {
    let failed = |error: io::Error| MachineError::failed(format!("cannot make {}: {error}", disk.display()));
    let size = match image.format {
        Format::Raw => {
            let size = fs::metadata(&image.path).map_err(failed)?.len();
            let size = fits(image, size, gigabytes)?;
            copy(&image.path, disk).map_err(failed)?;
            size
        }
        Format::Qcow2 => {
            let size = grown(image, disk, gigabytes)?;
            convert(image, disk, Format::Raw)?;
            size
        }
    };
    File::options().write(true).open(disk).and_then(|file| file.set_len(size)).map_err(failed)
}

/// Makes a disk with everything that is on `image`, in another format.
pub(super) fn convert(image: &Image, disk: &Path, to: Format) -> Result<(), MachineError> {
    let mut args: Vec<&OsStr> =
        ["convert", "-q", "-f", image.format.word(), "-O", to.word()].map(OsStr::new).into();
    args.extend([image.path.as_os_str(), disk.as_os_str()]);
    run(disk, &args).map(drop)
}

/// Makes a disk that is there larger.
pub(super) fn grow(image: &Image, size: u64) -> Result<(), MachineError> {
    let mut args: Vec<&OsStr> = ["resize", "-q", "-f", image.format.word()].map(OsStr::new).into();
    let size = size.to_string();
    args.extend([image.path.as_os_str(), OsStr::new(&size)]);
    run(&image.path, &args).map(drop)
}

/// Copies a file into one of this account's own, whatever the first one may be used for.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = File::options().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    io::copy(&mut File::open(from)?, &mut copy).map(drop)
}

/// Makes an empty raw disk.
pub(crate) fn raw_empty(disk: &Path, gigabytes: u64) -> Result<(), MachineError> {
    let failed = |error: io::Error| MachineError::failed(format!("cannot make {}: {error}", disk.display()));
    let file = File::options().write(true).create(true).truncate(true).open(disk).map_err(failed)?;
    file.set_len(gigabytes.saturating_mul(GIB)).map_err(failed)
}

/// Returns the size of `disk`, made from `image`.
fn grown(image: &Image, disk: &Path, gigabytes: Option<u64>) -> Result<u64, MachineError> {
    fits(image, size_of(image, disk)?, gigabytes)
}

/// Returns how large `image` is for a machine; asked for `disk`.
pub(super) fn size_of(image: &Image, disk: &Path) -> Result<u64, MachineError> {
    let mut args: Vec<&OsStr> = ["info", "--output=json", "-f", image.format.word()].map(OsStr::new).into();
    args.push(image.path.as_os_str());
    let said = run(disk, &args)?;
    let info: Option<Value> = serde_json::from_slice(&said).ok();
    let size = info.as_ref().and_then(|info| info.get("virtual-size")).and_then(Value::as_u64);
    let unknown =
        || MachineError::failed(format!("{PROGRAM} does not say how large {} is", image.path.display()));
    size.ok_or_else(unknown)
}

fn fits(image: &Image, size: u64, gigabytes: Option<u64>) -> Result<u64, MachineError> {
    let Some(gigabytes) = gigabytes else { return Ok(size) };
    let wanted = gigabytes.saturating_mul(GIB);
    if wanted < size {
        return Err(MachineError::Invalid(format!(
            "a disk of {gigabytes} GB is too small for {}, which has {} bytes",
            image.path.display(),
            size
        )));
    }
    Ok(wanted)
}

/// Runs `qemu-img` for a machine's `disk` and returns what it printed.
fn run(disk: &Path, args: &[&OsStr]) -> Result<Vec<u8>, MachineError> {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::null()).env_clear().env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
    // Known by the machine's directory, it ends with whatever else a killed driver left of it.
    if let Some(machine) = disk.parent() {
        command.env(MARK, machine);
    }
    let output = command.output().map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            MachineError::Unavailable(format!("{PROGRAM} is not installed (package qemu-utils)"))
        } else {
            MachineError::failed(format!("{PROGRAM} cannot be started: {error}"))
        }
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last_lines = stead_model::tail::last_words(&said).into_iter().map(str::to_owned).collect();
    let verb = args.first().map(|verb| verb.to_string_lossy().into_owned()).unwrap_or_default();
    Err(MachineError::Failed { what: format!("{PROGRAM} {verb} failed ({})", output.status), last_lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_name_with_its_format() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("debian.qcow2"), b"QFI\xfb....").unwrap();
        fs::write(dir.path().join("plain.img"), b"x").unwrap();
        let found = find(Some(dir.path()), "debian").unwrap();
        assert_eq!((found.path, found.format), (dir.path().join("debian.qcow2"), Format::Qcow2));
        assert_eq!(find(Some(dir.path()), "plain.img").unwrap().format, Format::Raw);
        let path = dir.path().join("plain.img").display().to_string();
        assert_eq!(find(None, &path).unwrap().format, Format::Raw);
        let missing = find(Some(dir.path()), "fedora").unwrap_err().to_string();
        assert!(missing.contains("fedora.qcow2"), "{missing}");
        for bad in ["", "..", "../debian", "a/b"] {
            assert!(find(Some(dir.path()), bad).is_err(), "{bad}");
        }
    }

    /// An image that nobody may write to, as packages install them.
    #[test]
    fn a_copy_can_be_written_whatever_its_image_is() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (image, disk) = (dir.path().join("image.raw"), dir.path().join("disk.raw"));
        fs::write(&image, b"boot").unwrap();
        fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).unwrap();
        let image = Image { path: image, format: Format::Raw };
        raw_copy(&image, &disk, None).unwrap();
        assert_eq!(fs::read(&disk).unwrap(), b"boot");
        assert_eq!(fs::metadata(&disk).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_disk_is_never_smaller_than_its_image() {
        let image = Image { path: PathBuf::from("/i"), format: Format::Raw };
        assert_eq!(fits(&image, 5, None).unwrap(), 5);
        assert_eq!(fits(&image, GIB, Some(2)).unwrap(), 2 * GIB);
        assert!(fits(&image, GIB + 1, Some(1)).is_err());
    }
}
