//! What is mounted at a path of the running system.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use super::fstab::unescape;
use super::mount_options::{complete, differ, is_bind};
use crate::setup::settle;

/// A mount as it is, or as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mount {
    pub(super) device: String,
    pub(super) fstype: String,
    /// None: whatever they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) options: Option<String>,
    /// As the kernel shows them: they say everything.
    #[serde(default)]
    pub(super) complete: bool,
}

impl Mount {
    fn of(value: &Value) -> Option<Self> {
        serde_json::from_value(value.clone()).ok()
    }

    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Whether it is the same file system.
    fn is_same_device(&self, other: &Self) -> bool {
        let options = other.options.as_deref().unwrap_or_default();
        let bind = is_bind(options) || other.fstype == "none";
        (bind || self.fstype == other.fstype || other.fstype == "auto")
            && (bind || same_device(&other.device, &self.device))
    }
}

/// Returns what is mounted at `path`, on top if there are several.
pub(crate) fn read(path: &Path) -> Result<Value, OpError> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| OpError::io("/proc/self/mountinfo", &error))?;
    Ok(find(&table, path).map_or(Value::Null, |mount| mount.to_value()))
}

/// Returns the last mount at `path` in the text of `/proc/self/mountinfo`. Pure.
fn find(table: &str, path: &Path) -> Option<Mount> {
    let mount = |line: &str| {
        let (own, system) = line.split_once(" - ")?;
        let own: Vec<&str> = own.split(' ').collect();
        let system: Vec<&str> = system.split(' ').collect();
        let &[fstype, device, super_options] = &system[..] else { return None };
        if Path::new(&unescape(own.get(4)?)) != path {
            return None;
        }
        // The file system's own `rw` is not the mount's.
        let mut options = vec![*own.get(5)?];
        options.extend(super_options.split(',').filter(|option| !matches!(*option, "rw" | "ro" | "")));
        let options = Some(complete(&unescape(&options.join(","))));
        Some(Mount { device: unescape(device), fstype: fstype.to_owned(), options, complete: true })
    };
    table.lines().filter_map(mount).next_back()
}

/// Whether what is mounted is not what is wanted.
pub(crate) fn differs(seen: &Value, want: &Value) -> bool {
    match (Mount::of(seen), Mount::of(want)) {
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
        (Some(seen), Some(want)) => {
            let shown = seen.options.as_deref().unwrap_or_default();
            !seen.is_same_device(&want)
                || want.options.as_deref().is_some_and(|options| differ(options, shown))
        }
    }
}

/// Mounts, mounts anew with other options, or unmounts.
pub(crate) fn set(cx: &OpContext, path: &Path, seen: &Value, want: &Value) -> Result<(), OpError> {
    let target = path.to_str().ok_or_else(|| OpError::permanent("the mount point is not text"))?;
    let (seen, want) = (Mount::of(seen), Mount::of(want));
    let Some(want) = want else {
        return settle::checked(cx, "umount", &["--", target]).map(drop);
    };
    let options = want.options.clone().unwrap_or_else(|| "defaults".to_owned());
    match seen {
        Some(seen) if seen.is_same_device(&want) => {
            // With device and path given, all old options are replaced and the table is not asked.
            let how = if is_bind(&options) { "remount,bind" } else { "remount" };
            let options: Vec<&str> =
                options.split(',').filter(|option| !matches!(*option, "bind" | "rbind")).collect();
            let options = format!("{how},{}", options.join(","));
            return settle::checked(cx, "mount", &["-o", &options, "--", &seen.device, target]).map(drop);
        }
        Some(_) => settle::checked(cx, "umount", &["--", target]).map(drop)?,
        None => {}
    }
    settle::checked(cx, "mount", &["-t", &want.fstype, "-o", &options, "--", &want.device, target]).map(drop)
}

/// Whether the device of a table is what the kernel shows.
fn same_device(asked: &str, shown: &str) -> bool {
    if asked == shown {
        return true;
    }
    let (kind, name) = asked.split_once('=').unwrap_or(("", ""));
    let by = |kind: &str| PathBuf::from(format!("/dev/disk/by-{kind}")).join(name.trim_matches('"'));
    let file = match kind {
        "UUID" => by("uuid"),
        "LABEL" => by("label"),
        "PARTUUID" => by("partuuid"),
        "PARTLABEL" => by("partlabel"),
        _ => PathBuf::from(asked),
    };
    match (file.canonicalize(), Path::new(shown).canonicalize()) {
        (Ok(file), _) if file.is_file() => shown.starts_with("/dev/loop"),
        (Ok(file), Ok(shown)) => file == shown || same_node(&file, &shown),
        (Ok(_) | Err(_), _) => false,
    }
}

/// Whether two device files are the same device.
fn same_node(one: &Path, other: &Path) -> bool {
    let node = |path: &Path| path.metadata().ok().map(|meta| meta.rdev()).filter(|rdev| *rdev != 0);
    node(one).is_some() && node(one) == node(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_topmost_mount_is_found_with_all_its_options() {
        let table = "36 35 98:0 / /mnt\\040a rw,noatime shared:1 - ext4 /dev/root rw,errors=continue\n\
            37 35 0:5 / /mnt\\040a ro,nosuid,relatime - tmpfs none rw,size=1024k\n\
            38 35 0:6 / /mnt rw - tmpfs x rw\n";
        let mount = find(table, Path::new("/mnt a")).unwrap();
        assert_eq!((mount.device.as_str(), mount.fstype.as_str()), ("none", "tmpfs"));
        assert_eq!(mount.options.unwrap(), "ro,nosuid,relatime,size=1024k");
        assert_eq!(find(table, Path::new("/mnt")).unwrap().options.unwrap(), "rw,strictatime");
        assert_eq!(find(table, Path::new("/nope")), None);
    }

    #[test]
    fn another_device_type_or_option_differs() {
        let seen = json!({"device": "tmpfs", "fstype": "tmpfs", "options": "rw,relatime,size=1024k", "complete": true});
        let want = |device: &str, fstype: &str, options: Option<&str>| json!({"device": device, "fstype": fstype, "options": options});
        assert!(!differs(&seen, &want("tmpfs", "tmpfs", None)));
        assert!(!differs(&seen, &want("tmpfs", "tmpfs", Some("size=1m"))));
        assert!(differs(&seen, &want("tmpfs", "tmpfs", Some("size=1m,noexec"))));
        assert!(differs(&seen, &want("other", "tmpfs", None)));
        assert!(differs(&seen, &want("tmpfs", "ramfs", None)));
        assert!(differs(&seen, &Value::Null) && !differs(&Value::Null, &Value::Null));
    }
}
