//! `package.*`: packages, by the system's own package manager.
//!
//! One operation, many managers: [`PackageManager`] says what is installed, what could be, what a transaction would
//! do and does it; the operations compare, refuse and undo. Nothing that was not named is ever removed by an
//! installation, and a removal that would take more with it is refused by name, because both are asked of the
//! manager's own simulation first. An index that has to be refreshed to know is refreshed to the side, where the
//! manager can, so that a dry run says what the run will do and still writes nothing.

mod absent;
mod apk;
mod apt;
mod brew;
mod dnf;
mod name;
mod pacman;
mod present;
mod refresh;
mod restored;
mod sandbox;
mod transaction;

use std::collections::BTreeMap;
use std::path::Path;

use stead_model::operation::{ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{OpContext, OpError, Registry};

use crate::disk::Disk;
use crate::machine::sandbox::Sandbox;
use crate::system::has;
use name::Request;
use present::{Installing, Which};
use transaction::{Planned, Transaction};

/// Adds every `package.*` operation.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Installing(Which::Any));
    registry.add_operation(Installing(Which::Newest));
    registry.add_operation(absent::Absent);
    registry.add_operation(restored::Restored);
    registry.add_action(refresh::Refresh);
}

/// What the descriptors share.
const WRITE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &["linux", "macos"],
    root: RootSupport::Full,
    needs_root: true,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[
        ("manager", "The package manager: apt, dnf, apk, pacman, brew or sandbox."),
        ("installed", "The packages that came, by name, with their versions."),
        ("upgraded", "The packages that have another version now, by name, with the version before."),
        ("removed", "The packages that went, by name, with the version they had."),
    ],
};

const NAMES: ParamSpec = ParamSpec::new(
    "names",
    ParamKind::NonEmptyTextList,
    "The packages; `name=version` pins one, the absolute path of a package file (`.deb`) is one too.",
)
.required()
.judged(|value| {
    let file = |path: &std::path::Path| Ok((String::new(), String::new(), path.to_owned()));
    judge_texts(value, |text| name::parse(text, &mut { file }).err().map(|error| error.message))
});

/// As [`NAMES`], where a version means nothing.
const BARE_NAMES: ParamSpec = NAMES.judged(|value| {
    judge_texts(value, |text| {
        let file = |path: &std::path::Path| Ok((String::new(), String::new(), path.to_owned()));
        match name::parse(text, &mut { file }) {
            Err(error) => Some(error.message),
            Ok(request) if request.file.is_none() && request.version.is_some() => {
                Some(format!("`{text}` has a version, which has no meaning here"))
            }
            Ok(_) => None,
        }
    })
});

/// What is installed of one package.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Installed {
    /// Its version; none: it is not installed.
    pub(crate) version: Option<String>,
    /// It is not installed, but its configuration is still there.
    pub(crate) residue: bool,
}

/// The versions of one package that the index has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Available {
    /// The one that would be installed.
    pub(crate) candidate: String,
    /// All that can be asked for.
    pub(crate) versions: Vec<String>,
}

/// A package manager, on the whole machine or a root prefix.
pub(crate) trait PackageManager {
    /// Returns what it is called.
    fn name(&self) -> &'static str;

    /// Returns what is installed of each of `names`; all of them are in the answer.
    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError>;

    /// Returns what the index has of each of `names`; those it does not know are not in the answer.
    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError>;

    /// Returns name and version of a package file.
    fn describe_file(&self, path: &Path) -> Result<(String, String), OpError> {
        Err(OpError::permanent(format!(
            "{} does not install `{}`: name a package",
            self.name(),
            path.display()
        )))
    }

    /// Returns what a transaction would do. Reads only.
    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError>;

    /// Carries a transaction out, waiting while another program holds the manager's lock.
    fn commit(&self, transaction: &Transaction) -> Result<(), OpError>;

    /// Fetches the index anew.
    fn refresh(&self) -> Result<(), OpError>;

    /// Returns this manager with an index fetched anew to the side; none if it can only replace its own.
    fn refreshed_aside(&self) -> Result<Option<Box<dyn PackageManager + '_>>, OpError> {
        Ok(None)
    }

    /// Returns the directories that hold the index, below the root.
    fn index(&self) -> &'static [&'static str];

    /// Whether a version can be asked for.
    fn pins(&self) -> bool {
        true
    }
}

/// Returns the manager of the target.
pub(crate) fn manager<'a>(cx: &'a OpContext) -> Result<Box<dyn PackageManager + 'a>, OpError> {
    if let Some(sandbox) = Sandbox::of(cx) {
        return Ok(Box::new(sandbox::SandboxPackages(sandbox)));
    }
    let disk = Disk::open(cx)?;
    let there = |path: &str| disk.exists(Path::new(path));
    // A root prefix says by its database whose it is; the programs are this machine's.
    if there("/var/lib/dpkg/status")? && has("apt-get") && has("dpkg-query") {
        return Ok(Box::new(apt::Apt::new(cx)?));
    }
    if there("/lib/apk/db/installed")? && has("apk") {
        return Ok(Box::new(apk::Apk { cx }));
    }
    if there("/var/lib/pacman/local")? && has("pacman") {
        return Ok(Box::new(pacman::Pacman { cx }));
    }
    if (there("/var/lib/rpm")? || there("/usr/lib/sysimage/rpm")?) && has("dnf") {
        return Ok(Box::new(dnf::Dnf { cx }));
    }
    if cx.root.is_none() && has("brew") {
        return Ok(Box::new(brew::Brew { cx }));
    }
    Err(OpError::unsupported(
        "this host has no package manager that Stead knows: apt, dnf, apk, pacman or brew, with its database",
    ))
}

/// Refuses to write without root, where the manager needs it.
fn need_root(manager: &dyn PackageManager, operation: &str) -> Result<(), OpError> {
    if matches!(manager.name(), "brew" | "sandbox") { Ok(()) } else { crate::system::need_root(operation) }
}

/// Returns the requests that `names` are.
fn requests(manager: &dyn PackageManager, cx: &OpContext, names: &[String]) -> Result<Vec<Request>, OpError> {
    let disk = Disk::open(cx)?;
    let mut found: Vec<Request> = Vec::new();
    for name in names {
        let request = name::parse(name, &mut |path| {
            let outside = disk.real_path(path)?;
            if !outside.is_file() {
                return Err(OpError::permanent(format!("there is no package file `{}`", path.display())));
            }
            let (package, version) = manager.describe_file(&outside)?;
            Ok((package, version, outside))
        })?;
        if request.version.is_some() && request.file.is_none() && !manager.pins() {
            return Err(OpError::permanent(format!(
                "{} installs the newest version only: `{name}`",
                manager.name()
            )));
        }
        if found.iter().any(|known| known.name == request.name) {
            return Err(OpError::invalid(format!("`{}` is named twice", request.name)));
        }
        found.push(request);
    }
    Ok(found)
}
