//! Mounts that nobody else sees: they are made in a mount namespace of their own and go with its last process, so that
//! there is nothing to take back.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::UnshareFlags;
use stead_runner::machine::MachineError;

use super::storage::Layers;

/// Where the second sort of control groups is beside the first.
const SECOND_SORT: &str = "/sys/fs/cgroup/unified";

/// Gives the calling thread, and what it starts, mounts of its own.
#[expect(
    deprecated,
    reason = "the other one is unsafe; no descriptor is unshared here, which is what can go wrong"
)]
pub(super) fn go_apart() -> io::Result<()> {
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    // What is unmounted outside is unmounted here too; nothing that is mounted here is seen outside.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    if Path::new(SECOND_SORT).join("cgroup.controllers").exists() {
        match unmount(SECOND_SORT, UnmountFlags::DETACH) {
            // In a user namespace what was mounted outside cannot be unmounted, only covered.
            Err(Errno::INVAL) => mount("stead", SECOND_SORT, "tmpfs", MountFlags::RDONLY, None)?,
            unmounted => unmounted?,
        }
    }
    Ok(())
}

/// Runs `work` on a thread with mounts of its own.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, MachineError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| go_apart().map(|()| work()));
        let done = thread.join().map_err(|_| MachineError::failed("the work was cut off"))?;
        done.map_err(|error| {
            // No waiting and no other try changes who this is.
            if error.kind() == io::ErrorKind::PermissionDenied {
                let why = "only root with CAP_SYS_ADMIN can have mounts of its own, as every container does";
                return MachineError::Unsupported(format!("{why}: {error}"));
            }
            MachineError::Unavailable(format!("this process cannot have mounts of its own: {error}"))
        })
    })
}

/// Mounts an overlay at `place`.
pub(super) fn overlay(layers: &Layers, place: &Path) -> io::Result<()> {
    fs::create_dir_all(place)?;
    // Without what would make renamed directories or several layers depend on each other.
    let options = format!(
        "index=off,{},metacopy=off,lowerdir={},upperdir={},workdir={}",
        // What is removed is noted where an ordinary account may note things; that alone turns redirections off.
        if layers.rootless { "userxattr" } else { "redirect_dir=off" },
        escaped(&layers.lower, true)?,
        escaped(&layers.upper, false)?,
        escaped(&layers.work, false)?
    );
    let options = std::ffi::CString::new(options)?;
    mount("stead", place, "overlay", MountFlags::empty(), options.as_c_str())?;
    Ok(())
}

/// Returns a path as the options of an overlay write it; a list of layers has colons between them.
fn escaped(path: &Path, in_list: bool) -> io::Result<String> {
    let text = path.to_str().ok_or_else(|| io::Error::other(format!("{} is no text", path.display())))?;
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c == ',' || (c == ':' && in_list) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    Ok(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_an_option_is_escaped() {
        assert_eq!(escaped(Path::new("/a,b:c\\d"), true).unwrap(), "/a\\,b\\:c\\\\d");
        assert_eq!(escaped(Path::new("/a:b"), false).unwrap(), "/a:b");
    }
}
