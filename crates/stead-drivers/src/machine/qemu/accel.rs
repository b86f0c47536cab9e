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

/// What lets the processor run guests.
pub(crate) const KVM: &str = "/dev/kvm";
/// How long the guest of the probe may take to power off.
const PROBE: Duration = Duration::from_secs(2);
/// Where a disk's boot sector has its mark.
const BOOT_MARK: usize = 510;
/// The smallest disk that firmware boots without a word.
const DISK: usize = 1 << 20;
/// Whether the processor of this machine runs the guest.
const HAS_GUEST: bool = cfg!(target_arch = "x86_64");
/// Sixteen-bit code of the guest: writes "soft off" to the power management port, and waits.
const GUEST: [u8; 10] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd];

/// Returns what guests get on this machine.
pub(super) async fn probe(wanted: Accel, binary: &Path, device: &Path) -> Acceleration {
    match wanted {
        Accel::Kvm => Acceleration { kvm: true, why: None },
        Accel::Tcg => Acceleration { kvm: false, why: None },
        Accel::Auto => found(tried(HAS_GUEST, binary, device).await),
    }
}

fn found(tried: Result<(), String>) -> Acceleration {
    Acceleration { kvm: tried.is_ok(), why: tried.err() }
}

/// Boots a guest to see whether the processor runs it, if there is one for this processor; returns why it may not.
async fn tried(has_guest: bool, binary: &Path, device: &Path) -> Result<(), String> {
    open_kvm(device)?;
    if !has_guest {
        let device = device.display();
        return Err(format!(
            "there is no guest for this processor to try {device} with; `accel: kvm` takes it untried"
        ));
    }
    kvm_works(binary, device).await
}

/// Opens what lets the processor run guests, as who runs them does; returns why that cannot be.
pub(crate) fn open_kvm(device: &Path) -> Result<(), String> {
    let opened = File::options().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| format!("{} cannot be opened: {error}", device.display()))
}

/// Boots a guest that powers off at once; returns why it did not.
pub(crate) async fn kvm_works(binary: &Path, device: &Path) -> Result<(), String> {
    kvm_works_within(PROBE, binary, device).await
}

async fn kvm_works_within(patience: Duration, binary: &Path, device: &Path) -> Result<(), String> {
    open_kvm(device)?;
    if !HAS_GUEST {
        return Ok(());
    }
    let guest = guest().map_err(|error| format!("no guest to try it with: {error}"))?;
    let mut command = tied(binary);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "64"]);
    command.args(["-accel", "kvm", "-drive", "if=virtio,format=raw,readonly=on,file=/dev/stdin"]);
    command.stdin(guest).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(patience, command.status()).await;
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("a guest run by {} ended with {status}", device.display())),
        Ok(Err(error)) => Err(format!("{} cannot be started: {error}", binary.display())),
        Err(_) => {
            let seconds = patience.as_secs_f32();
            Err(format!("a guest run by {} did not get anywhere in {seconds} s", device.display()))
        }
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::PathBuf;

    use super::*;

    /// Longer than any program takes that does what it is to do.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A device that can be opened, and a QEMU that does what it is told.
    fn place(script: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (device, binary) = (dir.path().join("kvm"), dir.path().join("qemu"));
        std::fs::write(&device, "").unwrap();
        std::fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&binary, Permissions::from_mode(0o755)).unwrap();
        (dir, device, binary)
    }

    /// A device that is there says little: a guest decides. It is booted from what comes in, by the processor.
    #[cfg(target_arch = "x86_64")]
    #[tokio::test]
    async fn a_guest_decides_whether_kvm_works() {
        let boots =
            "case \"$*\" in *'-accel kvm'*) ;; *) exit 3 ;; esac; test \"$(wc -c </dev/stdin)\" -eq 1048576";
        for (script, why) in
            [(boots, None), ("kill -ABRT $$", Some("signal: 6")), ("exit 1", Some("exit status: 1"))]
        {
            let (_dir, device, binary) = place(script);
            match (kvm_works_within(PATIENCE, &binary, &device).await, why) {
                (Ok(()), None) => {}
                (Err(said), Some(why)) => {
                    assert!(said.contains(why) && said.contains("a guest run by"), "{said}");
                }
                (ended, _) => panic!("{script}: {ended:?}"),
            }
        }
    }

    /// What was to be tried and does not work is emulated, and why is kept; what was chosen is not tried.
    #[cfg(target_arch = "x86_64")]
    #[tokio::test]
    async fn what_does_not_work_is_emulated() {
        let (dir, device, binary) = place("exit 1");
        let found = probe(Accel::Auto, &binary, &device).await;
        // On a machine that is busy it may take longer than it is given.
        assert!(!found.kvm && found.why.is_some_and(|why| why.contains("a guest run by")));
        let found = probe(Accel::Auto, &binary, &dir.path().join("none")).await;
        assert!(!found.kvm && found.why.is_some_and(|why| why.contains("none cannot be opened")));
        for (chosen, kvm) in [(Accel::Kvm, true), (Accel::Tcg, false)] {
            assert_eq!(probe(chosen, &binary, &device).await, Acceleration { kvm, why: None });
        }
    }

    /// A device that nothing can be tried with is not taken for one that works.
    #[tokio::test]
    async fn what_cannot_be_tried_is_emulated_and_said() {
        let (_dir, device, binary) = place("exit 0");
        let Acceleration { kvm, why } = found(tried(false, &binary, &device).await);
        assert!(!kvm && why.is_some_and(|why| why.contains("no guest for this processor")));
    }

    /// `auto` boots one guest per driver, however many ask, at once or later.
    #[cfg(target_arch = "x86_64")]
    #[tokio::test]
    async fn a_driver_tries_once() {
        use crate::machine::qemu::{QemuDriver, QemuSettings};
        let (dir, device, binary) = place("echo tried >>\"${0%/*}/tries\"; exit 1");
        let settings = QemuSettings { binary, kvm_device: device, ..QemuSettings::new(dir.path(), "stead") };
        let driver = QemuDriver::new(settings);
        let other = driver.clone();
        let (one, two) = tokio::join!(driver.acceleration(), other.acceleration());
        assert_eq!(one, two);
        assert_eq!(driver.acceleration().await, one);
        assert_eq!(std::fs::read_to_string(dir.path().join("tries")).unwrap(), "tried\n");
    }

    /// Reach, section 10: a guest that hangs is given up after two seconds, and killed.
    #[cfg(target_arch = "x86_64")]
    #[tokio::test]
    async fn a_guest_that_hangs_is_given_up() {
        assert_eq!(PROBE, Duration::from_secs(2));
        let (dir, device, binary) = place("echo $$ >\"${0%/*}/pid\"; exec sleep 600");
        let said = kvm_works_within(Duration::from_millis(50), &binary, &device).await.unwrap_err();
        assert!(said.contains("did not get anywhere in 0.05 s"), "{said}");
        let pid = dir.path().join("pid");
        let began = async {
            while !std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        std::fs::remove_file(&pid).ok();
        tokio::select! {
            ended = kvm_works_within(PATIENCE, &binary, &device) => panic!("{ended:?}"),
            () = began => {}
        }
        let stat = format!("/proc/{}/stat", std::fs::read_to_string(&pid).unwrap().trim());
        let is_alive = || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            text.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        tokio::time::timeout(PATIENCE, async {
            while is_alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("it goes on");
    }

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
