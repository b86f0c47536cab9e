//! Processors, memory, block devices, time since boot: of the running system.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use stead_model::facts::{Cpu, Disk, Memory};

use super::files;

/// The first processor's entry is shorter than this. Reading all of them asks every processor for its clock.
const CPUINFO_START: u64 = 4 << 10;

pub(super) fn cpu() -> Cpu {
    let mut start = Vec::new();
    let info = File::open("/proc/cpuinfo").ok();
    // Whatever was read counts; a cut character at the end is of no entry that is looked at.
    let read = info.and_then(|file| file.take(CPUINFO_START).read_to_end(&mut start).ok());
    let text = read.map(|_| String::from_utf8_lossy(&start).into_owned()).unwrap_or_default();
    let online = files::line("/sys/devices/system/cpu/online");
    Cpu {
        count: online
            .and_then(|list| count(&list))
            .or_else(|| std::thread::available_parallelism().ok().map(|count| count.get() as u64)),
        model: ["model name", "Model", "cpu model", "uarch", "cpu"]
            .iter()
            .find_map(|key| value_of(&text, key)),
    }
}

/// Returns how many numbers a list such as `0-3,8` has.
fn count(list: &str) -> Option<u64> {
    list.split(',').try_fold(0u64, |sum, part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u64, u64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        sum.checked_add(to.checked_sub(from)?.checked_add(1)?)
    })
}

fn value_of(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key && !value.trim().is_empty()).then(|| value.trim().to_owned())
    })
}

pub(super) fn memory() -> Memory {
    let text = files::text("/proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| {
        let kibibytes: u64 = value_of(&text, key)?.strip_suffix("kB")?.trim().parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    Memory {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        swap_total_bytes: bytes("SwapTotal"),
    }
}

pub(super) fn uptime() -> Option<u64> {
    let line = files::line("/proc/uptime")?;
    line.split(['.', ' ']).next()?.parse().ok()
}

/// Returns the block devices that hold something, by name.
pub(super) fn disks() -> Vec<Disk> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut disks: Vec<Disk> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            disk(&entry.path(), name.replace('!', "/"))
        })
        .collect();
    disks.sort_by(|one, other| one.name.cmp(&other.name));
    disks
}

/// Returns the device described in `directory`; one without content (an empty loop, a RAM disk) is none.
fn disk(directory: &Path, name: String) -> Option<Disk> {
    let sectors: u64 = files::line(directory.join("size"))?.parse().ok()?;
    if sectors == 0 || name.starts_with("ram") {
        return None;
    }
    // The kernel counts in 512 bytes, whatever the device does.
    let size_bytes = sectors.checked_mul(512)?;
    let rotational = files::line(directory.join("queue/rotational")).map(|flag| flag == "1");
    let kind = kind(&name, files::line(directory.join("dm/uuid")).as_deref());
    Some(Disk { name, size_bytes, rotational, kind: kind.to_owned() })
}

fn kind(name: &str, mapper: Option<&str>) -> &'static str {
    match mapper.map(|uuid| uuid.split('-').next().unwrap_or_default()) {
        Some("LVM") => return "lvm",
        Some("CRYPT") => return "crypt",
        Some("mpath") => return "multipath",
        Some(_) => return "dm",
        None => {}
    }
    let is = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if is("loop") {
        "loop"
    } else if is("sr") {
        "rom"
    } else if is("md") || name.starts_with("md_") {
        "raid"
    } else if is("dm-") {
        "dm"
    } else {
        "disk"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, number) in
            [("0", Some(1)), ("0-3", Some(4)), ("0-3,8,10-11", Some(7)), ("", None), ("3-1", None)]
        {
            assert_eq!(count(list), number, "{list}");
        }
    }

    #[test]
    fn devices_have_the_kinds_people_know() {
        for (name, mapper, expected) in [
            ("sda", None, "disk"),
            ("nvme0n1", None, "disk"),
            ("loop7", None, "loop"),
            ("sr0", None, "rom"),
            ("md127", None, "raid"),
            ("dm-0", Some("LVM-abc"), "lvm"),
            ("dm-1", Some("CRYPT-LUKS2-x"), "crypt"),
            ("dm-2", Some("mpath-3"), "multipath"),
            ("dm-3", Some("odd"), "dm"),
        ] {
            assert_eq!(kind(name, mapper), expected, "{name}");
        }
    }
}
