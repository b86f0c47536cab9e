//! What is mounted at a path of the running system.
//!
//! A mount is not always a whole file system: a directory can be bound to another place, and a file can be the device.
//! The kernel shows neither by the name that a table has for it, so both are looked for.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use super::fstab::unescape;
use super::mount_options::{complete, differ, is_bind, of_mount};
use crate::setup::settle;

/// Where the kernel tells of block devices.
const BLOCKS: &str = "/sys/block";

/// A mount as it is, or as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mount {
    pub(super) device: String,
    pub(super) fstype: String,
    /// None: whatever they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) options: Option<String>,
    /// As the kernel shows them: they say everything.
    #[serde(default)]
    pub(super) complete: bool,
    /// The directory of the file system that is seen here, if it is not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part: Option<String>,
    /// Another place where the same is seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) also_at: Option<String>,
    /// The file that the device is made of, if it goes with the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<String>,
}

impl Mount {
    fn of(value: &Value) -> Option<Self> {
        serde_json::from_value(value.clone()).ok()
    }

    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns the directory that is asked for, if it is one.
    fn bound(&self) -> Option<&str> {
        let options = self.options.as_deref().unwrap_or_default();
        (is_bind(options) || self.fstype == "none").then_some(self.device.as_str())
    }

    /// Returns what a file system is mounted from: a device, or a file.
    fn source(&self) -> &str {
        self.image.as_deref().unwrap_or(&self.device)
    }

    /// Whether the same is seen as `want` asks for.
    fn shows(&self, want: &Self) -> bool {
        if let Some(directory) = want.bound() {
            let own = self.bound().or(self.also_at.as_deref());
            return own.is_some_and(|own| own == directory || is_same_file(own.as_ref(), directory.as_ref()));
        }
        self.part == want.part
            && (self.fstype == want.fstype || want.fstype == "auto")
            && same_device(want.source(), self)
    }
}

/// One line of `/proc/self/mountinfo`.
struct Line {
    /// The file system's number.
    system: String,
    /// What of the file system is mounted.
    root: PathBuf,
    point: PathBuf,
    mount: Mount,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (own, system) = line.split_once(" - ")?;
        let own: Vec<&str> = own.split(' ').collect();
        let &[_, _, number, root, point, own_options, ..] = &own[..] else { return None };
        let &[fstype, device, super_options] = &system.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let root = unescape(root);
        // A subvolume is mounted by its name, as a whole.
        let is_whole =
            root == "/" || super_options.split(',').any(|option| option == format!("subvol={root}"));
        // The file system's own `rw` is not the mount's.
        let mut options = vec![own_options];
        options.extend(super_options.split(',').filter(|option| !matches!(*option, "rw" | "ro" | "")));
        let mount = Mount {
            device: unescape(device),
            fstype: fstype.to_owned(),
            options: Some(complete(&unescape(&options.join(",")))),
            complete: true,
            part: (!is_whole).then(|| root.clone()),
            ..Mount::default()
        };
        let point = PathBuf::from(unescape(point));
        Some(Self { system: number.to_owned(), root: root.into(), point, mount })
    }

    /// Returns where the directory that `other` shows would be seen here, if it is in what this one shows.
    fn place_of(&self, other: &Self) -> Option<PathBuf> {
        let rest = other.root.strip_prefix(&self.root).ok().filter(|_| self.system == other.system)?;
        let place = if rest.as_os_str().is_empty() { self.point.clone() } else { self.point.join(rest) };
        (!place.starts_with(&other.point)).then_some(place)
    }
}

/// Returns what is mounted at `path`, on top if there are several.
pub(crate) fn read(path: &Path) -> Result<Value, OpError> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| OpError::io("/proc/self/mountinfo", &error))?;
    Ok(find(&table, path).map_or(Value::Null, |mount| mount.to_value()))
}

/// Returns the last mount at `path` in the text of `/proc/self/mountinfo`.
fn find(table: &str, path: &Path) -> Option<Mount> {
    let lines: Vec<Line> = table.lines().filter_map(Line::parse).collect();
    let top = lines.iter().rfind(|line| line.point == path)?;
    let mut places = lines.iter().filter_map(|line| line.place_of(top));
    let also_at = places.find(|place| is_same_file(place, path));
    let mut mount =
        Mount { also_at: also_at.and_then(|place| Some(place.to_str()?.to_owned())), ..top.mount.clone() };
    if let Some(file) = LoopFile::of(Path::new(BLOCKS), &mount.device) {
        mount.options = mount.options.map(|options| file.add_to(options));
        mount.image = file.goes.then_some(file.path);
    }
    Some(mount)
}

/// Whether what is mounted is not what is wanted.
pub(crate) fn differs(seen: &Value, want: &Value) -> bool {
    match (Mount::of(seen), Mount::of(want)) {
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
        (Some(seen), Some(want)) => {
            let shown = seen.options.as_deref().unwrap_or_default();
            !seen.shows(&want) || want.options.as_deref().is_some_and(|options| differ(options, shown))
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
        Some(seen) if seen.shows(&want) => {
            // With device and path given, all old options are replaced and the table is not asked.
            let options = if want.bound().is_some() || want.part.is_some() {
                let asked = options.split(',').filter(|option| !matches!(*option, "bind" | "rbind"));
                let before = of_mount(seen.options.as_deref().unwrap_or_default());
                ["remount", "bind", &before].into_iter().chain(asked).collect::<Vec<_>>().join(",")
            } else {
                format!("remount,{options}")
            };
            return settle::checked(cx, "mount", &["-o", &options, "--", &seen.device, target]).map(drop);
        }
        Some(_) => settle::checked(cx, "umount", &["--", target]).map(drop)?,
        None => {}
    }
    if let Some(directory) = want.bound() {
        let options = if is_bind(&options) { options } else { format!("bind,{options}") };
        return settle::checked(cx, "mount", &["-o", &options, "--", directory, target]).map(drop);
    }
    // What was seen comes back from where else it is seen: a new mount of its device may be something else.
    if let Some(place) = &want.also_at {
        let options = format!("bind,{}", of_mount(&options));
        return settle::checked(cx, "mount", &["-o", &options, "--", place, target]).map(drop);
    }
    if let Some(part) = &want.part {
        return Err(OpError::permanent(format!(
            "`{target}` was the directory `{part}` of the file system `{}`, which is seen nowhere else: mount it by hand",
            want.device
        )));
    }
    settle::checked(cx, "mount", &["-t", &want.fstype, "-o", &options, "--", want.source(), target]).map(drop)
}

/// Whether the device of a table is what the kernel shows.
fn same_device(asked: &str, shown: &Mount) -> bool {
    if asked == shown.device || asked == shown.source() {
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
    let device = Path::new(&shown.device);
    match (file.canonicalize(), device.canonicalize()) {
        (Ok(file), _) if file.is_file() => LoopFile::of(Path::new(BLOCKS), &shown.device)
            .is_some_and(|image| is_same_file(&file, image.path.as_ref())),
        (Ok(file), Ok(device)) => file == device || same_node(&file, &device),
        (Ok(_) | Err(_), _) => false,
    }
}

/// The file that a loop device is made of.
#[derive(Debug, PartialEq, Eq)]
struct LoopFile {
    path: String,
    /// Where in the file the device begins.
    offset: u64,
    /// Whether the device goes when it is not mounted any more.
    goes: bool,
}

impl LoopFile {
    /// Returns the file of `device`, if it is a loop device, by what is in the directory `blocks`.
    fn of(blocks: &Path, device: &str) -> Option<Self> {
        let about =
            blocks.join(device.strip_prefix("/dev/").filter(|name| name.starts_with("loop"))?).join("loop");
        let line = |name: &str| Some(std::fs::read_to_string(about.join(name)).ok()?.trim_end().to_owned());
        Some(Self {
            path: line("backing_file")?,
            offset: line("offset").and_then(|text| text.parse().ok()).unwrap_or(0),
            goes: line("autoclear").is_some_and(|text| text == "1"),
        })
    }

    /// Returns `options` with those of the device.
    fn add_to(&self, options: String) -> String {
        if self.offset == 0 { options } else { format!("{options},offset={}", self.offset) }
    }
}

/// Whether two paths are the same file or directory.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    file(one).is_some() && file(one) == file(other)
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
        // A directory of a file system is not the file system.
        let part =
            json!({"device": "tmpfs", "fstype": "tmpfs", "options": "rw", "complete": true, "part": "/a"});
        assert!(differs(&part, &want("tmpfs", "tmpfs", None)) && !differs(&part, &part));
    }

    #[test]
    fn a_directory_is_told_from_its_file_system() {
        let table = "1 0 98:0 / / rw - ext4 /dev/root rw\n\
            2 1 98:0 /srv/a /mnt rw - ext4 /dev/root rw\n\
            3 1 0:9 /@home /home rw - btrfs /dev/b rw,subvolid=5,subvol=/@home\n";
        let line = |number: usize| Line::parse(table.lines().nth(number).unwrap()).unwrap();
        assert_eq!(line(1).mount.part.as_deref(), Some("/srv/a"));
        assert_eq!((line(0).mount.part, line(2).mount.part), (None, None));
        assert_eq!(line(0).place_of(&line(1)), Some("/srv/a".into()));
        assert_eq!(line(1).place_of(&line(0)), None);
        assert_eq!(line(2).place_of(&line(1)), None);
        assert_eq!(line(1).place_of(&line(1)), None, "it is not its own other place");
    }

    #[test]
    fn an_image_is_the_file_its_device_is_made_of() {
        let blocks = tempfile::tempdir().unwrap();
        let about = blocks.path().join("loop7/loop");
        std::fs::create_dir_all(&about).unwrap();
        for (name, text) in [("backing_file", "/srv/a disk\n"), ("offset", "512\n"), ("autoclear", "1\n")] {
            std::fs::write(about.join(name), text).unwrap();
        }
        let file = LoopFile::of(blocks.path(), "/dev/loop7").unwrap();
        assert_eq!(file, LoopFile { path: "/srv/a disk".to_owned(), offset: 512, goes: true });
        assert_eq!(file.add_to("rw".to_owned()), "rw,offset=512");
        for other in ["/dev/loop8", "/dev/sda", "tmpfs", "/dev/loop-control"] {
            assert_eq!(LoopFile::of(blocks.path(), other), None, "{other}");
        }
        // Another file on a loop device is another file system.
        let image = blocks.path().join("image");
        std::fs::write(&image, "").unwrap();
        let shown = Mount { device: "/dev/loop-none".to_owned(), ..Mount::default() };
        assert!(!same_device(image.to_str().unwrap(), &shown));
    }
}
