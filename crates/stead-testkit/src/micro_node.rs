//! A whole node as a virtual machine that tests can afford: a distribution's kernel, busybox, OpenSSH's daemon and
//! `stead` itself, all in its first file system.
//!
//! It reads the seed that machine drivers write, has packages (by a small `apk`) and services (by a small OpenRC), and
//! runs the agent once it has a bootstrap. What it becomes is in memory: a restart begins anew.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use crate::micro_vm::{Archive, KernelPackage};

/// A kernel, its first file system, and the program inside it.
#[derive(Clone, Debug)]
pub struct MicroNode {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its first file system.
    pub initrd: PathBuf,
    /// `stead` without symbols, as it lies in the guest: whoever drives the guest runs this one, so that nothing has to
    /// be brought there.
    pub program: PathBuf,
}

const SSHD: &str = "/usr/sbin/sshd";
/// Programs of this machine that are in it, with their libraries.
const PROGRAMS: [&str; 9] = [
    SSHD,
    "/lib/x86_64-linux-gnu/security/pam_permit.so",
    "/usr/lib/openssh/sshd-session",
    "/usr/lib/openssh/sshd-auth",
    USERADD,
    "/usr/sbin/usermod",
    "/usr/sbin/groupadd",
    "/usr/bin/getent",
    // Restarts leave the session of who asked for them, which takes more than busybox has.
    "/usr/bin/setsid",
];
const USERADD: &str = "/usr/sbin/useradd";
const INIT: &str = include_str!("micro_node/init.sh");
const APK: &str = include_str!("micro_node/apk.sh");
const RC_SERVICE: &str = include_str!("micro_node/rc-service.sh");
const RC_UPDATE: &str = include_str!("micro_node/rc-update.sh");
const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n";
const GROUPS: &str = "root:x:0:\nnogroup:x:65534:\n";
const SHADOW: &str = "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n";
const LOGIN_DEFS: &str = "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\nUSERGROUPS_ENAB yes\n";
const SSHD_CONFIG: &str = "Include /etc/ssh/sshd_config.d/*.conf\nAuthorizedKeysFile .ssh/authorized_keys /etc/stead/keys/%u\n\
    UsePAM yes\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n";
/// Accounts without a password are no locked ones, as where PAM decides.
const PAM: &str = "account required pam_permit.so\nsession required pam_permit.so\n";
/// There, and to be had.
const PACKAGES: [&str; 4] = ["ca-certificates", "curl", "htop", "sudo"];

impl MicroNode {
    /// Returns the guest with `stead` in it, made below `directory` as [`MicroLinux`](crate::micro_vm::MicroLinux) is,
    /// or made there before.
    ///
    /// # Errors
    /// What is missing, by the name of its package.
    ///
    /// # Panics
    /// If everything is there and it still cannot be made.
    pub fn build(directory: &Path, stead: &Path) -> Result<Self, String> {
        let package = KernelPackage::find(directory)?;
        for (program, package) in
            [(SSHD, "openssh-server"), (USERADD, "passwd"), ("/usr/bin/strip", "binutils")]
        {
            if !Path::new(program).exists() {
                return Err(format!("no {program} (package {package})"));
            }
        }
        let place = directory.join("micro");
        let lock = File::create(place.join("lock")).expect("a lock");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("the lock");
        let built = fs::metadata(stead).expect("a built program");
        let made_from = [
            INIT.as_bytes(),
            APK.as_bytes(),
            RC_SERVICE.as_bytes(),
            RC_UPDATE.as_bytes(),
            include_bytes!("micro_node.rs"),
            package.deb.as_os_str().as_encoded_bytes(),
            format!("{} {} {}", built.ino(), built.mtime_nsec(), built.len()).as_bytes(),
        ]
        .concat();
        let hash: String =
            Sha256::digest(made_from).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        let home = place.join(format!("node-{hash}"));
        let guest =
            Self { kernel: home.join("vmlinuz"), initrd: home.join("initrd"), program: home.join("stead") };
        if !guest.initrd.exists() {
            remove_older(&place);
            fs::create_dir_all(&home).expect("a directory");
            guest.make(&home, &package, stead).expect("a guest");
        }
        Ok(guest)
    }

    fn make(&self, home: &Path, package: &KernelPackage, stead: &Path) -> io::Result<()> {
        let stripped = Command::new("strip").arg("-o").arg(&self.program).arg(stead).status()?;
        assert!(stripped.success(), "strip: {stripped}");
        let mut archive = Archive::default();
        for directory in ["bin", "dev", "modules", "packages", "proc", "root", "run", "sys", "tmp"] {
            archive.directory(directory);
        }
        package.unpack(home, &self.kernel, &mut archive)?;
        archive.file("bin/busybox", 0o755, &fs::read(&package.busybox)?);
        archive.file("init", 0o755, INIT.as_bytes());
        archive.file("usr/bin/apk", 0o755, APK.as_bytes());
        archive.file("usr/bin/rc-service", 0o755, RC_SERVICE.as_bytes());
        archive.file("usr/bin/rc-update", 0o755, RC_UPDATE.as_bytes());
        for name in PACKAGES {
            archive.file(&format!("packages/{name}"), 0o755, b"#!/bin/sh\n");
        }
        archive.file("usr/sbin/visudo", 0o755, b"#!/bin/sh\n");
        archive.file("lib/apk/db/installed", 0o644, b"");
        archive.file("etc/init.d/rpcbind", 0o755, b"#!/bin/sh\nexec sleep 1000000\n");
        archive.file("etc/runlevels/default/rpcbind", 0o755, b"#!/bin/sh\n");
        archive.file("etc/passwd", 0o644, ACCOUNTS.as_bytes());
        archive.file("etc/group", 0o644, GROUPS.as_bytes());
        archive.file("etc/shadow", 0o600, SHADOW.as_bytes());
        archive.file("etc/default/useradd", 0o644, b"SHELL=/bin/sh\n");
        archive.file("etc/login.defs", 0o644, LOGIN_DEFS.as_bytes());
        archive.directory("home");
        archive.file("etc/ssh/sshd_config", 0o600, SSHD_CONFIG.as_bytes());
        archive.directory("etc/ssh/sshd_config.d");
        archive.file("etc/pam.d/sshd", 0o644, PAM.as_bytes());
        archive.directory("etc/sudoers.d");
        archive.file("usr/share/zoneinfo/UTC", 0o644, &utc());
        // Newer daemons have a program for each connection.
        let programs = PROGRAMS.into_iter().filter(|path| Path::new(path).exists());
        let mut programs: Vec<(PathBuf, String)> =
            programs.map(|path| (PathBuf::from(path), path.to_owned())).collect();
        let sha256 = sha256(&self.program)?;
        programs.push((self.program.clone(), format!("/var/lib/stead/bin/{sha256}/stead")));
        let mut libraries = BTreeSet::new();
        for (file, path) in &programs {
            archive.file(path.trim_start_matches('/'), 0o755, &fs::read(file)?);
            libraries.extend(libraries_of(file)?);
        }
        for library in libraries {
            let path = library.display().to_string();
            archive.file(path.trim_start_matches('/'), 0o755, &fs::read(&library)?);
        }
        // Whole under its name or not there.
        fs::write(home.join("initrd.new"), archive.finish())?;
        fs::rename(home.join("initrd.new"), &self.initrd)
    }
}

/// Removes guests with earlier builds of the program.
fn remove_older(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("node-") {
            fs::remove_dir_all(entry.path()).expect("an older guest removed");
        }
    }
}

fn sha256(path: &Path) -> io::Result<String> {
    Ok(Sha256::digest(fs::read(path)?).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the libraries that a program loads, and what loads them.
fn libraries_of(program: &Path) -> io::Result<Vec<PathBuf>> {
    let said = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let words = text.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

/// Returns the smallest time zone: UTC, always.
fn utc() -> Vec<u8> {
    let mut bytes = b"TZif".to_vec();
    bytes.resize(20, 0);
    for count in [0_u32, 0, 0, 0, 1, 4] {
        bytes.extend(count.to_be_bytes());
    }
    bytes.extend([0; 6]);
    bytes.extend(b"UTC\0");
    bytes
}
