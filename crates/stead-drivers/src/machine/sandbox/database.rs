//! What operations see of the sandbox they act in: its packages and services, its boot, and how it is restarted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use stead_runner::machine::sandbox_of;
use stead_runner::operation::{OpContext, OpError};

use super::home::{self, Home, Sheet};

/// The sandbox that an operation acts in.
pub(crate) struct Sandbox {
    home: Home,
    sheet: Sheet,
}

/// What is installed and what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Database {
    /// Versions by name.
    pub(crate) packages: BTreeMap<String, String>,
    /// By name; what is not there neither runs nor starts at boot.
    pub(crate) services: BTreeMap<String, Service>,
}

/// A service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    pub(crate) active: bool,
    pub(crate) enabled: bool,
}

impl Sandbox {
    /// Returns the sandbox that `cx` acts in, if it does.
    pub(crate) fn of(cx: &OpContext) -> Option<Self> {
        Self::with_root(cx.root.as_deref()?)
    }

    /// Returns the sandbox whose root this is.
    pub(crate) fn with_root(root: &Path) -> Option<Self> {
        let home = Home::at(sandbox_of(root)?);
        let sheet = home.sheet()?;
        Some(Self { home, sheet })
    }

    /// Whether there is a package called `name`.
    pub(crate) fn has_package(&self, name: &str) -> bool {
        self.sheet.packages.has(name)
    }

    /// Whether there is a service called `name`.
    pub(crate) fn has_service(&self, name: &str) -> bool {
        self.sheet.services.has(name)
    }

    /// Returns the boot it is in.
    pub(crate) fn boot_id(&self) -> Option<String> {
        self.home.boot_id()
    }

    /// Returns the program that restarts it, and the variable by which that knows which one.
    pub(crate) fn restarter(&self) -> (PathBuf, String) {
        (self.home.programs().join("reboot"), format!("{}={}", super::MARK, self.home.directory().display()))
    }

    /// Takes the lock of its account files; dropping the file lets go.
    pub(crate) fn hold_accounts(&self) -> Result<File, OpError> {
        lock(&self.home, "accounts.lock").map_err(|error| OpError::io("the sandbox's account files", &error))
    }

    /// Returns what is installed and what runs.
    pub(crate) fn read(&self) -> Result<Database, OpError> {
        read(&self.home).map_err(|error| OpError::io("the sandbox's database", &error))
    }

    /// Changes what is installed and what runs, one at a time.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Database)) -> Result<(), OpError> {
        update(&self.home, change).map_err(|error| OpError::io("the sandbox's database", &error))
    }
}

fn read(home: &Home) -> io::Result<Database> {
    match fs::read(home.file("database.json")) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Database::default()),
        Err(error) => Err(error),
    }
}

/// Changes the database under its lock.
pub(super) fn update(home: &Home, change: impl FnOnce(&mut Database)) -> io::Result<()> {
    let _held = lock(home, "database.lock")?;
    let mut database = read(home)?;
    let before = database.clone();
    change(&mut database);
    if database == before {
        return Ok(());
    }
    home::write_text(&home.file("database.json"), &serde_json::to_string(&database)?, 0o600)
}

fn lock(home: &Home, name: &str) -> io::Result<File> {
    let mut options = File::options();
    let lock = options.create(true).truncate(false).write(true).mode(0o600).open(home.file(name))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}
