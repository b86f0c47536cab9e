//! How guests are run: by the processor itself, or emulated. A `/dev/kvm` that is there may still hang or abort, so
//! that a guest is booted to see.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::command::program;
use crate::machine::local::SYSTEM_PATH;

/// What a host wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accel {
    /// The processor itself if that works.
    #[default]
    Auto,
    /// The processor itself.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// Returns what a host's word means.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "kvm" => Some(Self::Kvm),
            "tcg" => Some(Self::Tcg),
            _ => None,
        }
    }
}

/// What guests get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceleration {
    /// The processor itself runs them.
    pub kvm: bool,
    /// Why not, if it was to be tried.
    pub why: Option<String>,
}

impl Acceleration {
    /// Returns QEMU's word for it.
    pub fn word(&self) -> &'static str {
        if self.kvm { "kvm" } else { "tcg" }
    }
}

/// How long the guest of the probe may take to power off.
const PROBE: Duration = Duration::from_secs(2);
/// Where a disk's boot sector has its mark.
const BOOT_MARK: usize = 510;
/// The smallest disk that firmware boots without a word.
const DISK: usize = 1 << 20;
/// Sixteen-bit code of the guest: writes "soft off" to the power management port, and waits.
const GUEST: [u8; 10] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd];

/// Returns what guests get on this machine.
pub(super) async fn probe(wanted: Accel, binary: &Path, device: &Path) -> Acceleration {
    match wanted {
        Accel::Kvm => Acceleration { kvm: true, why: None },
        Accel::Tcg => Acceleration { kvm: false, why: None },
        Accel::Auto => match kvm_works(binary, device).await {
            Ok(()) => Acceleration { kvm: true, why: None },
            Err(why) => Acceleration { kvm: false, why: Some(why) },
        },
    }
}

/// Boots a guest that powers off at once; returns why it did not.
pub(crate) async fn kvm_works(binary: &Path, device: &Path) -> Result<(), String> {
    File::options()
        .read(true)
        .write(true)
        .open(device)
        .map_err(|error| format!("{}: {error}", device.display()))?;
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let guest = guest().map_err(|error| format!("no guest to try it with: {error}"))?;
    let mut command = tied(binary);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "64"]);
    command.args(["-accel", "kvm", "-drive", "if=virtio,format=raw,readonly=on,file=/dev/stdin"]);
    command.stdin(guest).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PROBE, command.status()).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("a guest run by {} ended with {status}", device.display())),
        Ok(Err(error)) => Err(format!("{} cannot be started: {error}", binary.display())),
        Err(_) => Err(format!("a guest run by {} did not get anywhere in 2 s", device.display())),
    }
}

/// Returns a command that ends with this process, where there is what ties it: a guest that hangs would outlive a driver
/// that is killed, and nobody would look for it.
fn tied(binary: &Path) -> Command {
    let mut command = match program::find("setpriv", Path::new("/"), Some(OsStr::new(SYSTEM_PATH))) {
        Ok(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
            command
        }
        Err(_) => Command::new(binary),
    };
    command.env_clear().env("PATH", SYSTEM_PATH);
    command
}

/// Returns a disk whose boot sector powers off.
fn guest() -> io::Result<File> {
    let mut disk = vec![0; DISK];
    for (place, byte) in GUEST.into_iter().enumerate().chain([(BOOT_MARK, 0x55), (BOOT_MARK + 1, 0xaa)]) {
        if let Some(at) = disk.get_mut(place) {
            *at = byte;
        }
    }
    let mut file = tempfile::tempfile()?;
    file.write_all(&disk)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn what_is_tied_ends_with_who_started_it() {
        if program::find("setpriv", Path::new("/"), Some(OsStr::new(SYSTEM_PATH))).is_err() {
            return;
        }
        let starter = std::thread::spawn(|| {
            let mut command = tied(Path::new("sleep"));
            let child = command.arg("600").as_std_mut().spawn().unwrap();
            let comm = format!("/proc/{}/comm", child.id());
            while std::fs::read_to_string(&comm).unwrap() != "sleep\n" {
                std::thread::yield_now();
            }
            child
        });
        let ended = starter.join().unwrap().wait().unwrap();
        assert_eq!(ended.signal(), Some(9), "{ended}");
    }
}
