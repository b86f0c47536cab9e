//! What belongs to the installation: distribution, names, managers, time zone.

use std::collections::BTreeMap;
use std::path::Path;

use stead_model::facts::{Os, OsFamily, PackageManager, ServiceManager};

use super::files::{self, Files};

/// Returns the operating system as its own description has it.
pub(super) fn read(files: &Files) -> Os {
    if cfg!(target_os = "macos") && !files.is_prefixed() {
        return Os { family: OsFamily::Darwin, distribution: Some("macos".to_owned()), ..Os::default() };
    }
    let text = files.text("/etc/os-release").or_else(|| files.text("/usr/lib/os-release"));
    parse(&text.unwrap_or_default())
}

fn parse(text: &str) -> Os {
    let mut values = assignments(text);
    let mut take = |name: &str| values.remove(name).filter(|value| !value.is_empty());
    let distribution = take("ID");
    let version = take("VERSION_ID");
    let number = version.as_deref().and_then(|version| version.split('.').next());
    let like = take("ID_LIKE").unwrap_or_default();
    Os {
        family: OsFamily::of(distribution.as_deref().unwrap_or_default(), &like),
        major: number.and_then(|number| number.parse().ok()),
        codename: take("VERSION_CODENAME"),
        name: take("PRETTY_NAME").or_else(|| take("NAME")),
        distribution,
        version,
    }
}

/// Returns the assignments of a file in the shell's notation, the last of each name.
fn assignments(text: &str) -> BTreeMap<&str, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name, unquote(value))).collect()
}

fn unquote(value: &str) -> String {
    let inside = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(text) = inside('\'') {
        return text.to_owned();
    }
    let text = inside('"').unwrap_or(value);
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

/// Returns the name of an architecture as binaries are called.
pub(crate) fn arch(machine: String) -> String {
    match machine.as_str() {
        "arm64" => "aarch64".to_owned(),
        "amd64" => "x86_64".to_owned(),
        arm if arm.starts_with("armv7") || arm == "armv8l" => "armv7".to_owned(),
        _ => machine,
    }
}

/// Returns the name the installation gives its machine.
pub(super) fn hostname(files: &Files) -> Option<String> {
    let text = files.text("/etc/hostname")?;
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned)
}

/// Returns the running system's name with its domain, without asking anybody: from the name itself or `/etc/hosts`.
pub(super) fn fqdn(hostname: &str) -> Option<String> {
    if hostname.contains('.') {
        return Some(hostname.to_owned());
    }
    fqdn_in(&files::text("/etc/hosts")?, hostname)
}

fn fqdn_in(hosts: &str, hostname: &str) -> Option<String> {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut names = lines.map(|line| line.split_ascii_whitespace().skip(1).collect::<Vec<_>>());
    let own = names.find(|names| names.contains(&hostname))?;
    // The first name of a line is the canonical one.
    own.first().filter(|name| name.contains('.')).map(|name| (*name).to_owned())
}

/// Returns the id of the installation.
pub(super) fn machine_id(files: &Files) -> Option<String> {
    let read = |path: &str| files::first_line(&files.text(path)?);
    read("/etc/machine-id")
        .or_else(|| read("/var/lib/dbus/machine-id"))
        .filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns the name of the time zone: what `/etc/localtime` points at, else what `/etc/timezone` says.
pub(super) fn timezone(files: &Files) -> Option<String> {
    let linked = files.link("/etc/localtime");
    let zone = linked.as_deref().and_then(|to| to.split_once("zoneinfo/")).map(|(_, zone)| zone);
    let zone = zone.map(|zone| zone.trim_start_matches("posix/").trim_start_matches("right/"));
    zone.filter(|zone| !zone.is_empty())
        .map(str::to_owned)
        .or_else(|| files::first_line(&files.text("/etc/timezone")?))
}

/// Where package managers are, in the order of how much their presence says.
const PACKAGE_MANAGERS: [(PackageManager, OsFamily, &[&str]); 6] = [
    (PackageManager::Apt, OsFamily::Debian, &["/usr/bin/apt-get"]),
    (PackageManager::Dnf, OsFamily::Redhat, &["/usr/bin/dnf", "/usr/bin/dnf5", "/usr/bin/microdnf"]),
    (PackageManager::Apk, OsFamily::Alpine, &["/sbin/apk", "/usr/bin/apk"]),
    (PackageManager::Pacman, OsFamily::Arch, &["/usr/bin/pacman"]),
    (PackageManager::Zypper, OsFamily::Suse, &["/usr/bin/zypper"]),
    (
        PackageManager::Brew,
        OsFamily::Darwin,
        &["/opt/homebrew/bin/brew", "/usr/local/bin/brew", "/home/linuxbrew/.linuxbrew/bin/brew"],
    ),
];

/// Returns what installs packages: the family's own manager if it is there, else the first that is.
pub(super) fn package_manager(files: &Files, family: OsFamily) -> PackageManager {
    let is_there = |programs: &[&str]| programs.iter().any(|program| files.exists(program));
    let own = PACKAGE_MANAGERS.iter().filter(|(_, of, _)| *of == family);
    let others = PACKAGE_MANAGERS.iter().filter(|(_, of, _)| *of != family);
    own.chain(others)
        .find(|(.., programs)| is_there(programs))
        .map_or(PackageManager::None, |(manager, ..)| *manager)
}

/// Returns what starts services on the running system.
pub(super) fn service_manager() -> ServiceManager {
    if cfg!(target_os = "macos") {
        return ServiceManager::Launchd;
    }
    // The directory is systemd's own sign that it has booted the system; inside a container it may be the host's.
    let is_init = files::line("/proc/1/comm").is_none_or(|comm| comm == "systemd" || comm == "init");
    if is_init && Path::new("/run/systemd/system").is_dir() {
        ServiceManager::Systemd
    } else if Path::new("/run/openrc").is_dir() {
        ServiceManager::Openrc
    } else {
        ServiceManager::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_os_release_is_read_as_a_shell_would() {
        let os = parse(
            "# comment\nID=rocky\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=\"9.4\"\nNAME='Rocky Linux'\n\
             PRETTY_NAME=\"Rocky \\\"Blue\\\" \\$9\"\nVERSION_CODENAME=\n",
        );
        assert_eq!(os.family, OsFamily::Redhat);
        assert_eq!(os.distribution.as_deref(), Some("rocky"));
        assert_eq!((os.version.as_deref(), os.major), (Some("9.4"), Some(9)));
        assert_eq!(os.name.as_deref(), Some("Rocky \"Blue\" $9"));
        assert_eq!(os.codename, None);
        assert_eq!(parse(""), Os::default());
    }

    #[test]
    fn a_full_name_is_the_canonical_one_of_its_line() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 web1.example.org web1 # us\n10.0.0.1 db1\n";
        assert_eq!(fqdn_in(hosts, "web1").as_deref(), Some("web1.example.org"));
        assert_eq!(fqdn_in(hosts, "db1"), None);
        assert_eq!(fqdn_in(hosts, "us"), None);
        assert_eq!(fqdn("a.b").as_deref(), Some("a.b"));
    }

    #[test]
    fn architectures_have_the_names_of_binaries() {
        for (machine, name) in [
            ("x86_64", "x86_64"),
            ("arm64", "aarch64"),
            ("armv7l", "armv7"),
            ("riscv64", "riscv64"),
            ("s390x", "s390x"),
        ] {
            assert_eq!(arch(machine.to_owned()), name);
        }
    }
}
