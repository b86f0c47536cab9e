//! Guests for virtual machines that tests can afford: a boot sector that is up in half a second, and a Linux that is up
//! in a few.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

/// Sixteen-bit code, loaded at 0x7c00. Says `up` on the first serial port, powers off when the power button is
/// pressed, and after any key on the keyboard says `deaf` and ignores the button.
///
/// ```text
///     cli; ds = 0; say "up"
///     out 0x602, 0x100                 enable the power button
///  l: if in(0x64) & 1 { in 0x60; out 0x602, 0; say "deaf" }
///     if !(in(0x600) & 0x100) goto l
///     say "powering off"; out 0x604, 0x2000
///     stay here
/// ```
const BOOT_SECTOR: [u8; 104] = [
    0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0xba, 0xf8, 0x03, 0xbe, 0x4d, 0x7c, 0xe8, 0x33, 0x00, 0xba, 0x02, 0x06,
    0xb8, 0x00, 0x01, 0xef, 0xe4, 0x64, 0xa8, 0x01, 0x74, 0x0e, 0xe4, 0x60, 0x31, 0xc0, 0xba, 0x02, 0x06,
    0xef, 0xbe, 0x52, 0x7c, 0xe8, 0x18, 0x00, 0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x74, 0xe3, 0xbe,
    0x59, 0x7c, 0xe8, 0x09, 0x00, 0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xeb, 0xfe, 0xba, 0xf8, 0x03,
    0xac, 0x08, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, 0xc3, 0x75, 0x70, 0x0d, 0x0a, 0x00, 0x64, 0x65, 0x61,
    0x66, 0x0d, 0x0a, 0x00, 0x70, 0x6f, 0x77, 0x65, 0x72, 0x69, 0x6e, 0x67, 0x20, 0x6f, 0x66, 0x66, 0x0d,
    0x0a, 0x00,
];

/// Returns a raw disk whose boot sector is a guest.
pub fn boot_disk() -> Vec<u8> {
    let mut disk = vec![0; 1 << 20];
    disk[..BOOT_SECTOR.len()].copy_from_slice(&BOOT_SECTOR);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// A Linux with nothing but busybox.
///
/// Its init mounts the seed and prints `meta-data`, gets the address that the seed gives it, else that of QEMU's own network, answers on port 22 with one
/// line, and does what the kernel's argument `micro=` says: `off` powers off, `panic` panics, anything else waits for
/// the power button. Once the first bytes of a disk are `deaf` it says so, clears them and ignores the button.
#[derive(Clone, Debug)]
pub struct MicroLinux {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initrd: PathBuf,
}

/// In the order in which they are loaded.
const MODULES: [&str; 16] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_mmio",
    "failover",
    "net_failover",
    "virtio_net",
    "virtio_blk",
    "cdrom",
    "isofs",
    "button",
    "evdev",
    "pvpanic",
    "pvpanic-pci",
];

const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
# Which of two modules needs the other differs between kernels: what cannot be loaded at first can the second time.
for pass in 1 2; do
    for module in $(cat /modules/order); do insmod /modules/$module.ko 2>/dev/null; done
done
mkdir -p /seed
for disk in /dev/vd?; do mount -t iso9660 -o ro $disk /seed 2>/dev/null && break; done
sed 's/^/seed: /' /seed/meta-data
ip link set lo up
ip link set eth0 up
address=$(sed -n 's/.*"addresses":\["\([^"]*\)"\].*/\1/p' /seed/network-config 2>/dev/null)
ip address add ${address:-10.0.2.15/24} dev eth0
ip route add default via 10.0.2.2 2>/dev/null
mkdir -p /etc/acpi/PWRF
printf '#!/bin/sh\necho power button >/dev/console\npoweroff -f\n' >/etc/acpi/PWRF/00000080
chmod 755 /etc/acpi/PWRF/00000080
acpid -d -c /etc/acpi &
nc -ll -p 22 -e /bin/echo hello from the micro guest &
nc -ll -p 2222 -e /bin/echo hello from its other port &
echo "micro guest is up, boot $(cat /proc/sys/kernel/random/boot_id)"
case $(cat /proc/cmdline) in
*micro=off*) poweroff -f ;;
*micro=panic*) echo c >/proc/sysrq-trigger ;;
esac
while :; do
    for disk in /dev/vd?; do
        # What was read before is forgotten with the last who has it open.
        if [ "$(head -c 4 $disk 2>/dev/null | tr -d '\000')" = deaf ]; then
            killall acpid
            dd if=/dev/zero of=$disk bs=512 count=1 conv=notrunc 2>/dev/null
            sync
            echo deaf
        fi
    done
    sleep 1
done
"#;

impl MicroLinux {
    /// Returns the guest, made in `directory` from the package of a distribution's kernel that lies in
    /// `DIRECTORY/micro`, or made there before.
    ///
    /// # Errors
    /// What is missing, by the name of its package.
    ///
    /// # Panics
    /// If everything is there and it still cannot be made.
    pub fn build(directory: &Path) -> Result<Self, String> {
        let package = KernelPackage::find(directory)?;
        let place = directory.join("micro");
        // Several tests may want it at once; one makes it.
        let lock = File::create(place.join("lock")).expect("a lock");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
        // Another init or kernel is another guest.
        let made_from = [INIT.as_bytes(), package.deb.as_os_str().as_encoded_bytes()].concat();
        let hash: String =
            Sha256::digest(made_from).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let guest = Self {
            kernel: place.join(format!("vmlinuz-{hash}")),
            initrd: place.join(format!("initrd-{hash}")),
        };
        if !guest.initrd.exists() {
            guest.make(&place, &package).expect("a guest");
        }
        Ok(guest)
    }

    fn make(&self, place: &Path, package: &KernelPackage) -> io::Result<()> {
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "etc", "modules", "proc", "sys"] {
            archive.directory(directory);
        }
        package.unpack(place, &self.kernel, &mut archive)?;
        archive.file("bin/busybox", 0o755, &fs::read(&package.busybox)?);
        archive.file("init", 0o755, INIT.as_bytes());
        // Whole under its name or not there.
        fs::write(place.join("initrd.new"), archive.finish())?;
        fs::rename(place.join("initrd.new"), &self.initrd)
    }
}

/// The package of a distribution's kernel, and the programs that make a system of it.
pub(crate) struct KernelPackage {
    pub(crate) deb: PathBuf,
    pub(crate) busybox: PathBuf,
}

impl KernelPackage {
    /// Finds it in `DIRECTORY/micro`; else says what is missing.
    pub(crate) fn find(directory: &Path) -> Result<Self, String> {
        let place = directory.join("micro");
        let packages =
            fs::read_dir(&place).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
        let mut packages: Vec<PathBuf> = packages.unwrap_or_default();
        packages.retain(|path| path.extension().is_some_and(|ending| ending == "deb"));
        packages.sort();
        let Some(deb) = packages.pop() else {
            return Err(format!(
                "no package linux-image-*-cloud-amd64 in {} (./test downloads it)",
                place.display()
            ));
        };
        let busybox =
            ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
        let Some(busybox) = busybox else {
            return Err("no busybox (package busybox-static)".to_owned());
        };
        if fs::read(busybox).is_ok_and(|program| needs_libraries(&program)) {
            return Err(format!("{} needs libraries (package busybox-static does not)", busybox.display()));
        }
        Ok(Self { deb, busybox: busybox.to_owned() })
    }

    /// Puts the kernel at `kernel` and what it has to load into the archive. Works in `place`.
    pub(crate) fn unpack(&self, place: &Path, kernel: &Path, archive: &mut Archive) -> io::Result<()> {
        let tree = tempfile::tempdir_in(place)?;
        let unpacked = Command::new("dpkg-deb").arg("-x").arg(&self.deb).arg(tree.path()).status()?;
        assert!(unpacked.success(), "dpkg-deb: {unpacked}");
        let files: Vec<PathBuf> = walkdir::WalkDir::new(tree.path())
            .into_iter()
            .flatten()
            .map(walkdir::DirEntry::into_path)
            .collect();
        let named =
            |name: &str| files.iter().find(|path| path.file_name().is_some_and(|found| found == name));
        let found = files
            .iter()
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")));
        fs::copy(found.expect("a kernel in its package"), kernel)?;
        let mut order = Vec::new();
        for module in MODULES {
            // What is built into the kernel has no file.
            if let Some(file) = named(&format!("{module}.ko")) {
                archive.file(&format!("modules/{module}.ko"), 0o644, &fs::read(file)?);
                order.push(module);
            }
        }
        archive.file("modules/order", 0o644, order.join("\n").as_bytes());
        Ok(())
    }
}

/// Whether a program of 64 bits names another one that loads its libraries.
fn needs_libraries(program: &[u8]) -> bool {
    let short = |at: usize| {
        program.get(at..at + 2).map_or(0, |bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let (first, size, count) = (short(32), short(54), short(56));
    (0..count).any(|header| short(first + header * size) == 3)
}

/// A `cpio` archive in the form that kernels unpack.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    files: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// Adds a directory, with those above it.
    pub(crate) fn directory(&mut self, name: &str) {
        if name.is_empty() || self.directories.contains(name) {
            return;
        }
        self.directory(name.rsplit_once('/').map_or("", |(above, _)| above));
        self.add(name, 0o40755, b"");
        self.directories.insert(name.to_owned());
    }

    /// Adds a file, with the directories above it.
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.directory(name.rsplit_once('/').map_or("", |(above, _)| above));
        self.add(name, 0o100000 | mode, content);
    }

    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let size = u32::try_from(content.len()).expect("a small file");
        let name_size = u32::try_from(name.len() + 1).expect("a short name");
        let numbers = [self.files, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for number in numbers {
            self.bytes.extend(format!("{number:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, b"");
        self.bytes
    }
}
