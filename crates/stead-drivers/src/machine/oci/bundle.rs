//! The bundle's `config.json`: one machine, as OCI 1.0 describes containers. Pure but for the capabilities held.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use stead_model::machine::MachineSpec;

use crate::machine::local::SYSTEM_PATH;

/// Where everything that is kept over restarts of a machine lies in it: a real directory, never an overlay.
pub(super) const VOLUME: &str = "/var/lib/stead";
/// Where a machine that makes machines finds what its own root stands on.
pub(super) const LOWER: &str = "/run/stead/lower";
/// Who the container belongs to.
const OWNER: &str = "dev.stead.owner";
/// A period of the processors' quota, in microseconds.
const PERIOD: u64 = 100_000;

/// What every machine may do: what package scripts, logins and network settings need. With the kernel's numbers. Not
/// CAP_DAC_READ_SEARCH, with which every file of the file system behind a bind can be opened, and not CAP_LINUX_IMMUTABLE,
/// with which a machine could make files that nobody can remove.
const CAPABILITIES: &[(&str, u32)] = &[
    ("CAP_AUDIT_CONTROL", 30),
    ("CAP_AUDIT_WRITE", 29),
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_FOWNER", 3),
    ("CAP_FSETID", 4),
    ("CAP_IPC_LOCK", 14),
    ("CAP_KILL", 5),
    ("CAP_MKNOD", 27),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_RAW", 13),
    ("CAP_SETFCAP", 31),
    ("CAP_SETGID", 6),
    ("CAP_SETPCAP", 8),
    ("CAP_SETUID", 7),
    ("CAP_SYS_CHROOT", 18),
    ("CAP_SYS_NICE", 23),
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_RESOURCE", 24),
];

/// What a machine that makes machines may do besides: mounts and namespaces.
const HOSTING: &[(&str, u32)] = &[("CAP_SYS_ADMIN", 21)];

/// What a bundle is made of.
#[derive(Clone, Debug)]
pub(super) struct Bundle<'a> {
    /// The machine.
    pub(super) spec: &'a MachineSpec,
    /// The runtime's name for it, and that of its control group.
    pub(super) id: &'a str,
    /// Its directory; `rootfs` and `volume` are in it.
    pub(super) directory: &'a Path,
    /// The variable by which its processes are known.
    pub(super) mark: &'a str,
    /// This program, as it is here.
    pub(super) program: &'a Path,
    /// And as it is in the machine.
    pub(super) program_inside: &'a Path,
    /// What the root stands on, if it is an overlay.
    pub(super) lower: Option<&'a Path>,
    /// Places of this machine that nobody inside sees.
    pub(super) hidden: &'a [PathBuf],
    /// Whether it has a terminal.
    pub(super) terminal: bool,
    /// What this process may do, one bit each.
    pub(super) held: u64,
    /// Whether it is that of an ordinary account, which has no control groups to limit it by.
    pub(super) rootless: bool,
}

impl Bundle<'_> {
    /// Returns `config.json`.
    pub(super) fn config(&self) -> Value {
        let spec = self.spec;
        let hosting: &[(&str, u32)] = if spec.hosts { HOSTING } else { &[] };
        let names: Vec<&str> = CAPABILITIES
            .iter()
            .chain(hosting)
            .filter(|(_, bit)| self.held & (1 << bit) != 0)
            .map(|(name, _)| *name)
            .collect();
        let sets = ["bounding", "effective", "permitted", "inheritable"];
        let capabilities: Map<String, Value> =
            sets.into_iter().map(|set| (set.to_owned(), json!(names))).collect();
        let env = [
            format!("PATH={SYSTEM_PATH}"),
            "HOME=/root".to_owned(),
            "TERM=dumb".to_owned(),
            "container=stead".to_owned(),
            format!("{}={}", self.mark, self.directory.display()),
        ];
        let mut namespaces: Vec<Value> =
            ["pid", "network", "ipc", "uts", "mount"].iter().map(|kind| json!({"type": kind})).collect();
        let mut linux = json!({
            "cgroupsPath": format!("/{}", self.id),
            "resources": self.resources(),
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            // Network settings are the machine's own; the others are this machine's.
            "readonlyPaths": [
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sysrq-trigger",
                "/proc/sys/kernel",
                "/proc/sys/vm",
                "/proc/sys/fs",
                "/proc/sys/dev",
                "/proc/sys/debug"
            ],
        });
        if spec.hosts {
            namespaces.push(json!({"type": "cgroup"}));
        }
        if self.rootless {
            linux["resources"] = json!({});
            linux.as_object_mut().map(|linux| linux.remove("cgroupsPath"));
        }
        linux["namespaces"] = json!(namespaces);
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": self.terminal,
                "user": {"uid": 0, "gid": 0},
                "args": [self.program_inside, "container", "init"],
                "env": env,
                "cwd": "/",
                "capabilities": capabilities,
                "noNewPrivileges": false,
            },
            "root": {"path": "rootfs", "readonly": false},
            "hostname": spec.owner.name(),
            "annotations": {OWNER: spec.owner.to_string()},
            "mounts": self.mounts(),
            "linux": linux,
        })
    }

    fn mounts(&self) -> Vec<Value> {
        let mount = |place: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": place, "type": kind, "source": source, "options": options});
        let bind = |place: &str, source: &Path, options: &[&str]| {
            mount(place, "bind", &source.display().to_string(), options)
        };
        let pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"];
        let mut mounts = vec![
            mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", "tmpfs", &["nosuid", "mode=755", "size=65536k"]),
            mount("/dev/pts", "devpts", "devpts", &pts),
            mount("/dev/shm", "tmpfs", "shm", &["nosuid", "nodev", "mode=1777"]),
            mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
            mount("/run", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=755"]),
            mount("/tmp", "tmpfs", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        ];
        if self.spec.hosts {
            let options = ["nosuid", "noexec", "nodev", "rw"];
            mounts.push(mount("/sys/fs/cgroup", "cgroup", "cgroup", &options));
            mounts.extend(self.lower.map(|lower| bind(LOWER, lower, &["bind", "ro"])));
        }
        let is_covered = |path: &Path| {
            ["/tmp", "/run", "/dev", "/proc", "/sys", VOLUME].iter().any(|above| path.starts_with(above))
        };
        let cover = |path: &Path| {
            mount(&path.display().to_string(), "tmpfs", "tmpfs", &["ro", "size=4k", "mode=700"])
        };
        mounts.extend(self.hidden.iter().filter(|path| !is_covered(path)).map(|path| cover(path)));
        if let Some(lower) = self.lower.filter(|_| self.spec.hosts) {
            // What a machine in it stands on has these places too.
            let below = self.hidden.iter().filter_map(|path| within(path, lower));
            let there = below.filter(|path| lower.join(path).is_dir());
            mounts.extend(there.map(|path| cover(&Path::new(LOWER).join(path))));
        }
        let given = self.spec.mounts.iter();
        mounts.extend(given.map(|(inside, here)| bind(inside, Path::new(here), &["bind", "rw"])));
        mounts.push(bind(VOLUME, &self.directory.join("volume"), &["bind", "rw"]));
        mounts.push(bind(&self.program_inside.display().to_string(), self.program, &["bind", "ro"]));
        mounts
    }

    fn resources(&self) -> Value {
        let mut resources = Map::new();
        if let Some(memory) = self.spec.memory_mb {
            resources.insert("memory".to_owned(), json!({"limit": memory.saturating_mul(1 << 20)}));
        }
        let whole = self.spec.cpus.map(|cpus| u64::from(cpus).saturating_mul(1000));
        if let Some(milli) = self.spec.cpu_milli.or(whole) {
            // The kernel takes no quota below a millisecond.
            let quota = (PERIOD.saturating_mul(milli) / 1000).max(1000);
            resources.insert("cpu".to_owned(), json!({"quota": quota, "period": PERIOD}));
        }
        Value::Object(resources)
    }
}

/// Returns where a hidden place is in the tree that a machine stands on. In a machine that tree is another one's root: it
/// has the places of the machines around it under their own names, and what covers them there does not come along.
fn within<'a>(hidden: &'a Path, lower: &Path) -> Option<&'a Path> {
    let in_root = || hidden.strip_prefix("/").ok().filter(|_| lower == Path::new(LOWER));
    hidden.strip_prefix(lower).ok().or_else(in_root)
}

/// Returns what this process may do, one bit each: root in a container may not do everything.
pub(super) fn held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{MachineKind, Owner};

    /// The private keys of a level are not for whoever is two levels below.
    #[test]
    fn places_are_hidden_however_deep_their_tree_was_handed_on() {
        let hidden = Path::new("/srv/site/.stead");
        assert_eq!(within(hidden, Path::new("/")), Some(Path::new("srv/site/.stead")));
        assert_eq!(within(hidden, Path::new(LOWER)), Some(Path::new("srv/site/.stead")));
        assert_eq!(within(hidden, Path::new("/srv/tree")), None);
    }

    use super::*;

    fn config(hosts: bool, held: u64) -> Value {
        let owner = Owner::new("lab/harbour/local", "quay").unwrap();
        let spec = MachineSpec {
            cpus: Some(2),
            memory_mb: Some(512),
            hosts,
            ..MachineSpec::new(owner, MachineKind::Ct)
        };
        Bundle {
            spec: &spec,
            id: "stead-x",
            directory: Path::new("/m/1"),
            mark: "STEAD_MACHINE",
            program: Path::new("/usr/bin/stead"),
            program_inside: Path::new("/var/lib/stead/bin/ab/stead"),
            lower: Some(Path::new("/")),
            hidden: &[PathBuf::from("/srv/.stead"), PathBuf::from("/tmp/state")],
            terminal: true,
            held,
            rootless: false,
        }
        .config()
    }

    fn destinations(config: &Value) -> Vec<&str> {
        let mounts = config["mounts"].as_array().unwrap();
        mounts.iter().map(|mount| mount["destination"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_bundle_names_its_owner_and_has_the_limits_of_its_preset() {
        let config = config(false, u64::MAX);
        assert_eq!(config["annotations"]["dev.stead.owner"], "lab/harbour/local/quay");
        assert_eq!(config["hostname"], "quay");
        let resources = &config["linux"]["resources"];
        assert_eq!(resources["memory"]["limit"], 512 << 20);
        assert_eq!(resources["cpu"], json!({"quota": 200_000, "period": 100_000}));
        assert_eq!(config["process"]["args"][1], "container");
        let places = destinations(&config);
        assert!(places.contains(&"/srv/.stead") && !places.contains(&"/tmp/state"), "{places:?}");
    }

    #[test]
    fn only_a_machine_that_makes_machines_may_mount_and_sees_its_lower_layer() {
        let may_mount = |config: &Value| {
            let names = config["process"]["capabilities"]["effective"].as_array().unwrap();
            names.contains(&json!("CAP_SYS_ADMIN"))
        };
        let (plain, hosting) = (config(false, u64::MAX), config(true, u64::MAX));
        assert!(!may_mount(&plain) && may_mount(&hosting));
        assert!(!destinations(&plain).contains(&LOWER) && destinations(&hosting).contains(&LOWER));
        assert!(!may_mount(&config(true, !(1 << 21))), "nothing is handed on that is not held");
        let options = |place: &str| {
            let mounts = hosting["mounts"].as_array().unwrap();
            mounts.iter().find(|mount| mount["destination"] == place).unwrap()["options"].clone()
        };
        assert_eq!(options(LOWER), json!(["bind", "ro"]), "what it stands on is not its own");
        assert_eq!(options(VOLUME), json!(["bind", "rw"]));
        assert_eq!(options("/var/lib/stead/bin/ab/stead"), json!(["bind", "ro"]));
    }

    #[test]
    fn a_part_of_a_processor_and_volumes_are_given() {
        let owner = Owner::new("fleet/w1", "web-0").unwrap();
        let spec = MachineSpec {
            cpu_milli: Some(250),
            mounts: [("/volumes/data".to_owned(), "/state/volumes/web.0/data".to_owned())].into(),
            ..MachineSpec::new(owner, MachineKind::Ct)
        };
        let bundle = Bundle {
            spec: &spec,
            id: "stead-x",
            directory: Path::new("/m/1"),
            mark: "STEAD_MACHINE",
            program: Path::new("/usr/bin/stead"),
            program_inside: Path::new("/var/lib/stead/bin/ab/stead"),
            lower: None,
            hidden: &[],
            terminal: true,
            held: 0,
            rootless: false,
        };
        let config = bundle.config();
        assert_eq!(config["linux"]["resources"]["cpu"], json!({"quota": 25_000, "period": 100_000}));
        let mounts = config["mounts"].as_array().unwrap();
        let volume = mounts.iter().find(|mount| mount["destination"] == "/volumes/data").unwrap();
        assert_eq!(volume["source"], "/state/volumes/web.0/data");
        let linux = &Bundle { rootless: true, ..bundle }.config()["linux"];
        assert_eq!((&linux["resources"], &linux["cgroupsPath"]), (&json!({}), &Value::Null));
    }
}
