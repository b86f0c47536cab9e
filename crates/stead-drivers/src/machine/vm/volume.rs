//! Volumes of virtual machines: files that outlive the machines whose drives they are.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stead_model::machine::DriveFormat;
use stead_runner::machine::MachineError;

use super::image::{self, Format, Image};

/// The ending of what is about to become a volume.
const ASIDE: &str = "new";

/// Returns the file of a volume.
pub fn file(directory: &Path, name: &str, format: DriveFormat) -> PathBuf {
    directory.join(format!("{name}.{}", Format::from(format).word()))
}

/// Makes a volume of at least `size` bytes unless it is there. What is on one of another format goes over to it; one that is
/// smaller is grown, and none is cut. Blocks.
///
/// # Errors
/// If that cannot be done. Called again, it goes on; what was on the volume stays.
pub fn ensure(directory: &Path, name: &str, format: DriveFormat, size: u64) -> Result<(), MachineError> {
    let volume = Image { path: file(directory, name, format), format: format.into() };
    let other = match format {
        DriveFormat::Raw => DriveFormat::Qcow2,
        DriveFormat::Qcow2 => DriveFormat::Raw,
    };
    let other = Image { path: file(directory, name, other), format: other.into() };
    let failed =
        |error: io::Error| MachineError::failed(format!("cannot make {}: {error}", volume.path.display()));
    if !volume.path.exists() {
        let aside = volume.path.with_extension(ASIDE);
        if other.path.exists() {
            image::convert(&other, &aside, volume.format)?;
        } else {
            make(&aside, format, size, failed)?;
        }
        settle(&aside, &volume.path).map_err(failed)?;
    }
    remove_file(&other.path).map_err(failed)?;
    grow(&volume, size, failed)
}

/// Removes a volume in whichever format it is.
///
/// # Errors
/// If a file of it cannot be removed.
pub fn remove(directory: &Path, name: &str) -> io::Result<()> {
    let raw = file(directory, name, DriveFormat::Raw);
    remove_file(&raw.with_extension(ASIDE))?;
    remove_file(&raw)?;
    remove_file(&file(directory, name, DriveFormat::Qcow2))
}

fn make(
    path: &Path,
    format: DriveFormat,
    size: u64,
    failed: impl Fn(io::Error) -> MachineError,
) -> Result<(), MachineError> {
    match format {
        DriveFormat::Raw => {
            let new = File::options().create(true).truncate(true).write(true).mode(0o600).open(path);
            new.and_then(|file| file.set_len(size)).map_err(failed)
        }
        DriveFormat::Qcow2 => image::empty_of(path, size),
    }
}

/// Gives the volume its name, once all of it is on the disk.
fn settle(aside: &Path, path: &Path) -> io::Result<()> {
    let file = File::open(aside)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.sync_all()?;
    fs::rename(aside, path)
}

fn grow(volume: &Image, size: u64, failed: impl Fn(io::Error) -> MachineError) -> Result<(), MachineError> {
    match volume.format {
        Format::Raw => {
            let file = File::options().write(true).open(&volume.path).map_err(&failed)?;
            if file.metadata().map_err(&failed)?.len() < size {
                file.set_len(size).map_err(failed)
            } else {
                Ok(())
            }
        }
        Format::Qcow2 if image::size_of(volume, &volume.path)? < size => image::grow(volume, size),
        Format::Qcow2 => Ok(()),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn size(directory: &Path, format: DriveFormat) -> u64 {
        let image = Image { path: file(directory, "data", format), format: format.into() };
        image::size_of(&image, &image.path).unwrap()
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Section 3 of fleets: a volume has the format of its disk, whatever it had before, and keeps what is on it.
    #[test]
    fn a_volume_has_its_format_and_keeps_what_is_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let ensure = |format, size| ensure(dir.path(), "data", format, size).unwrap();
        ensure(DriveFormat::Raw, MIB);
        let raw = File::options().write(true).open(dir.path().join("data.raw")).unwrap();
        raw.write_all_at(b"kept", 4096).unwrap();
        ensure(DriveFormat::Qcow2, 2 * MIB);
        assert_eq!(
            (files(dir.path()), size(dir.path(), DriveFormat::Qcow2)),
            (vec!["data.qcow2".to_owned()], 2 * MIB)
        );
        assert!(fs::read(dir.path().join("data.qcow2")).unwrap().starts_with(b"QFI\xfb"));
        ensure(DriveFormat::Qcow2, MIB);
        assert_eq!(size(dir.path(), DriveFormat::Qcow2), 2 * MIB, "none is cut");
        // It was cut off while the next one was made.
        fs::write(dir.path().join("data.new"), "a part").unwrap();
        ensure(DriveFormat::Raw, 3 * MIB);
        assert_eq!(
            (files(dir.path()), size(dir.path(), DriveFormat::Raw)),
            (vec!["data.raw".to_owned()], 3 * MIB)
        );
        assert_eq!(fs::read(dir.path().join("data.raw")).unwrap()[4096..4100], *b"kept");
        let mode = fs::metadata(dir.path().join("data.raw")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        remove(dir.path(), "data").unwrap();
        ensure(DriveFormat::Qcow2, MIB);
        assert_eq!(
            (files(dir.path()), size(dir.path(), DriveFormat::Qcow2)),
            (vec!["data.qcow2".to_owned()], MIB)
        );
        remove(dir.path(), "data").unwrap();
        assert_eq!(files(dir.path()), Vec::<String>::new());
    }
}
