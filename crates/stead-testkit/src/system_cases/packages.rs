//! Packages: apt against a repository of our own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::json;

use super::{sh, write};
use crate::apt_repository::AptRepository;
use crate::file_cases::BASE;
use crate::operation_contract::{Case, World};
use crate::tree::{Depth, snapshot};

/// Where the packages are.
pub const REPOSITORY: &str = "/var/tmp/repository";

/// Returns the packages of every test, built once per container.
pub fn repository() -> &'static AptRepository {
    static REPOSITORY_OF_ALL: OnceLock<AptRepository> = OnceLock::new();
    REPOSITORY_OF_ALL.get_or_init(|| {
        let repository = AptRepository::create(Path::new(REPOSITORY));
        repository.add("st-lib", "1.0", &[], &[]);
        repository.add("st-lib", "1.1", &[], &[]);
        let fields = ["Depends: st-lib", "Recommends: st-extra"];
        repository.add("st-app", "1.0", &fields, &[("/etc/st-app.conf", "one\n")]);
        repository.add("st-app", "2.0", &fields, &[("/etc/st-app.conf", "two\n")]);
        repository.add("st-extra", "1.0", &[], &[]);
        repository.add("st-foe", "1.0", &["Conflicts: st-app"], &[]);
        repository.publish();
        repository
    })
}

/// Makes an empty package database with a current index, on whichever system.
///
/// # Panics
/// If it cannot be written.
pub fn fresh(root: &Path) {
    let source = repository().source();
    for directory in
        ["etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/log/apt"]
    {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    for directory in
        ["var/cache/apt/archives/partial", "var/lib/dpkg/info", "var/lib/dpkg/updates", "usr/share"]
    {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    sh(
        root,
        "rm -rf etc/apt/sources.list.d/* usr/share/st-* etc/st-* var/lib/dpkg/info/st-* var/lib/apt/extended_states
        rm -rf var/lib/dpkg/diversions* var/lib/dpkg/triggers; : >var/lib/dpkg/status",
    );
    write(root.join("etc/apt/sources.list"), &source);
    // Fetched once per container; the same bytes for every system.
    let lists = Path::new("/var/tmp/lists");
    if !lists.exists() {
        apt(root, "apt-get update");
        sh(root, "cp -a var/lib/apt/lists /var/tmp/lists");
    }
    sh(root, "rm -rf var/lib/apt/lists; cp -a /var/tmp/lists var/lib/apt/lists");
}

/// Runs a program of apt's on the system whose root this is.
///
/// # Panics
/// If it fails.
pub fn apt(root: &Path, line: &str) {
    let mut words = line.split(' ');
    let mut command = std::process::Command::new(words.next().unwrap());
    let root = root.display();
    command.args(["-q", "-o", &format!("Dir={root}")]);
    command.args(["-o", &format!("Dir::State::status={root}/var/lib/dpkg/status")]);
    command.args(["-o", &format!("Dpkg::Options::=--root={root}"), "-o", "APT::Sandbox::User=root"]);
    let out = command.args(words).output().unwrap();
    assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Returns what dpkg knows of the test's packages, and their files.
///
/// # Panics
/// If it cannot be asked.
pub fn packages(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let admin = format!("--admindir={}/var/lib/dpkg", root.display());
    let out = std::process::Command::new("dpkg-query")
        .args([&admin, "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n"])
        .output()
        .unwrap();
    let mut state = BTreeMap::new();
    for line in String::from_utf8(out.stdout).unwrap().lines() {
        let (name, rest) = line.split_once(' ').unwrap();
        if !rest.starts_with("not-installed") {
            state.insert(name.to_owned(), rest.to_owned());
        }
    }
    // dpkg removes directories that it leaves empty.
    for entry in std::fs::read_dir(root.join("usr/share")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("st-") {
            let tree = snapshot(&entry.path(), depth).into_iter();
            state.extend(tree.map(|(path, line)| (format!("{name}/{path}"), line)));
        }
    }
    state
}

const SYSTEM: Case = Case { world: World::System(packages), fresh, ..BASE };

/// The cases of `package.*`: two that install, two that remove.
pub const CASES: &[Case] = &[
    Case {
        operation: "package.present",
        name: "one pinned with what it needs, and a file",
        params: || json!({"names": ["st-app=1.0", "st-extra"]}),
        half: |root| apt(root, "apt-get -y install --no-install-recommends st-app=2.0"),
        drifts: &[("installed", |root| apt(root, "apt-get -y remove st-app"))],
        ..SYSTEM
    },
    Case {
        operation: "package.latest",
        name: "from an older version",
        params: || json!({"names": ["st-app", "st-lib"]}),
        half: |root| apt(root, "apt-get -y install st-lib=1.0"),
        drifts: &[("version", |root| apt(root, "apt-get -y --allow-downgrades install st-lib=1.0"))],
        ..SYSTEM
    },
    Case {
        operation: "package.absent",
        name: "with its configuration, and what needs it",
        params: || json!({"names": ["st-lib"], "purge": true, "cascade": true}),
        fresh: |root| {
            fresh(root);
            apt(root, "apt-get -y install --no-install-recommends st-app=1.0 st-extra");
        },
        half: |root| apt(root, "apt-get -y purge st-app"),
        drifts: &[("installed", |root| apt(root, "apt-get -y install st-lib=1.0"))],
        kept: |root| packages(root, Depth::State).get("st-extra").cloned().unwrap_or_default(),
        ..SYSTEM
    },
    Case {
        operation: "package.restored",
        name: "versions and absence",
        params: || json!({"names": ["st-lib=1.0"], "absent": ["st-extra"], "purge": true}),
        fresh: |root| {
            fresh(root);
            apt(root, "apt-get -y install st-lib=1.1 st-extra");
        },
        half: |root| apt(root, "apt-get -y purge st-extra"),
        drifts: &[("version", |root| apt(root, "apt-get -y install st-lib=1.1"))],
        ..SYSTEM
    },
];
