//! Mounted file systems, without ever waiting for a machine that serves one.

use std::collections::BTreeMap;
use std::path::Path;

use stead_model::facts::Mount;

use super::files;

/// File systems that hold no files of anybody.
const PSEUDO: [&str; 24] = [
    "autofs",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
    "usbfs",
];

/// File systems of this machine. Only these are asked for their size: another machine's, or a program's, may never
/// answer, and the caller would wait for ever in the kernel.
const LOCAL: [&str; 26] = [
    "bcachefs", "btrfs", "devtmpfs", "ecryptfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs",
    "hfsplus", "iso9660", "jfs", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "squashfs", "tmpfs",
    "udf", "ufs", "vfat", "xfs", "zfs",
];

/// Returns the file systems that hold files, by path.
pub(super) fn read() -> Vec<Mount> {
    let table = files::text("/proc/self/mounts").unwrap_or_default();
    let mut mounts = parse(&table);
    let foreign: Vec<String> =
        mounts.iter().filter(|mount| !is_local(mount)).map(|mount| mount.path.clone()).collect();
    for mount in &mut mounts {
        // The way to a mount leads through those above it.
        if foreign.iter().any(|above| Path::new(&mount.path).starts_with(above)) {
            continue;
        }
        if let Ok(space) = rustix::fs::statvfs(mount.path.as_str()) {
            mount.size_bytes = space.f_blocks.checked_mul(space.f_frsize);
            mount.available_bytes = space.f_bavail.checked_mul(space.f_frsize);
        }
    }
    mounts
}

fn is_local(mount: &Mount) -> bool {
    LOCAL.contains(&mount.fstype.as_str())
}

/// Returns the mounts of a table, by path; of several on one path the last, which hides the others.
fn parse(table: &str) -> Vec<Mount> {
    let mut mounts = BTreeMap::new();
    for line in table.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(path), Some(fstype)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let path = unescape(path);
        if PSEUDO.contains(&fstype) {
            // It hides what is below it all the same.
            mounts.remove(&path);
            continue;
        }
        let mount = Mount {
            path: path.clone(),
            device: unescape(device),
            fstype: fstype.to_owned(),
            size_bytes: None,
            available_bytes: None,
        };
        mounts.insert(path, mount);
    }
    mounts.into_values().collect()
}

/// Returns the text of a field, in which the kernel writes blanks and backslashes as `\040`.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'\\'
            && let [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = tail
        {
            bytes.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_table_is_read_with_its_escapes_and_hidden_mounts() {
        let mounts = parse(
            "proc /proc proc rw 0 0\n/dev/sda1 / ext4 rw 0 0\nfs:/a\\040b /mnt/c\\134d nfs4 rw 0 0\n\
             tmpfs /mnt tmpfs rw 0 0\n/dev/sdb /mnt xfs rw 0 0\nodd\n",
        );
        let found: Vec<(&str, &str, &str)> = mounts
            .iter()
            .map(|mount| (mount.path.as_str(), mount.device.as_str(), mount.fstype.as_str()))
            .collect();
        assert_eq!(
            found,
            [("/", "/dev/sda1", "ext4"), ("/mnt", "/dev/sdb", "xfs"), ("/mnt/c\\d", "fs:/a b", "nfs4")]
        );
    }

    #[test]
    fn what_other_machines_serve_is_not_asked() {
        for (fstype, local) in
            [("ext4", true), ("nfs4", false), ("cifs", false), ("fuse.sshfs", false), ("9p", false)]
        {
            assert_eq!(is_local(&Mount { fstype: fstype.to_owned(), ..Mount::default() }), local, "{fstype}");
        }
    }
}
