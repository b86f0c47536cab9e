//! What the directory of a sandbox holds beyond that of any machine.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stead_model::machine::{MachineState, SshDoor};
use stead_runner::machine::SANDBOX_FILE;

use super::faults::Fault;
use super::names::Names;
use super::process::ProcessMark;
use crate::machine::home::{self, Kind, Record, Run, random_hex, read, write};

pub(super) use crate::machine::home::write_text;

const COUNTS: &str = "faults.json";

/// Sandboxes.
pub(super) static KIND: Kind =
    Kind { driver: "sandbox", noun: "sandbox", kept: &[COUNTS], mark: super::MARK };

/// The directory of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Home(home::Home);

/// `sandbox.json`: what the host says of its sandboxes, as it was said last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sheet {
    pub(super) schema: u32,
    pub(super) node: String,
    pub(crate) packages: Names,
    pub(crate) services: Names,
    pub(super) boot_delay_ms: u64,
    pub(super) faults: Vec<Fault>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<PathBuf>,
}

/// `door.json`: where the machine takes logins in this run of its process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Door {
    pub(super) process: ProcessMark,
    pub(super) ssh: SshDoor,
}

impl Deref for Home {
    type Target = home::Home;

    fn deref(&self) -> &home::Home {
        &self.0
    }
}

impl From<&home::Home> for Home {
    fn from(home: &home::Home) -> Self {
        Self(home.clone())
    }
}

impl Home {
    pub(super) fn at(directory: PathBuf) -> Self {
        Self(home::Home::at(&KIND, directory))
    }

    /// The machine's own file system.
    pub(super) fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// Programs that answer for the machine.
    pub(super) fn programs(&self) -> PathBuf {
        self.file("bin")
    }

    pub(super) fn fault_counts(&self) -> PathBuf {
        self.file(COUNTS)
    }

    /// What the host says.
    pub(crate) fn sheet(&self) -> Option<Sheet> {
        read(&self.file(SANDBOX_FILE))
    }

    /// Writes the sheet, unless it says so already: a create that changes nothing waits for no disk.
    pub(super) fn set_sheet(&self, sheet: &Sheet) -> io::Result<()> {
        if self.sheet().as_ref() == Some(sheet) {
            return Ok(());
        }
        write(&self.file(SANDBOX_FILE), sheet)
    }

    pub(super) fn set_door(&self, door: &Door) -> io::Result<()> {
        write(&self.file("door.json"), door)
    }

    /// The machine's own boot.
    pub(super) fn boot_id(&self) -> Option<String> {
        let text = fs::read_to_string(self.file("boot_id")).ok()?;
        Some(text.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Begins another boot.
    pub(super) fn new_boot(&self) -> io::Result<String> {
        let hex = random_hex()?;
        let parts: Vec<&str> =
            [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|range| hex.get(range)).collect();
        let id = parts.join("-");
        write_text(&self.file("boot_id"), &format!("{id}\n"), 0o600)?;
        Ok(id)
    }
}

/// Returns what the live process of a sandbox is doing.
pub(super) fn run(home: &home::Home, _record: &Record, mark: &ProcessMark) -> Run {
    let door: Option<Door> = read(&home.file("door.json")).filter(|door: &Door| door.process == *mark);
    let state = if home.file("stopping").exists() {
        MachineState::Stopping
    } else if door.is_some() {
        MachineState::Running
    } else {
        MachineState::Starting
    };
    let ssh = door.map(|door| door.ssh);
    Run { state, addresses: ssh.iter().map(|ssh| ssh.host.clone()).collect(), ssh }
}
