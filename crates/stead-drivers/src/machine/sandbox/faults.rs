//! Faults on purpose: what goes wrong, where and how often. Counted in the machine's directory, so that a fault that
//! strikes twice does so twice whoever asks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use globset::Glob;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::home::Home;

/// Something that goes wrong on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Glob over the names of machines.
    pub node: String,
    /// When.
    pub phase: Phase,
    /// How often; 0: always.
    #[serde(default)]
    pub times: u32,
    /// What is said to have gone wrong; none: nothing goes wrong, it only takes longer or crashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How much longer it takes.
    #[serde(default)]
    pub delay_ms: u64,
    /// It is cut off in the middle.
    #[serde(default)]
    pub crash: bool,
}

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// While it is made.
    Create,
    /// Before its process lives.
    Boot,
    /// Before its address is known.
    Address,
    /// When somebody connects.
    Ssh,
    /// While it is configured.
    Config,
    /// When it reports.
    Report,
    /// While it is removed.
    Destroy,
}

/// A fault that strikes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struck {
    /// Wait this long first.
    pub delay: Duration,
    /// Then fail with this.
    pub error: Option<String>,
    /// Then stop where you are.
    pub crash: bool,
}

impl Struck {
    /// Returns what is to be said of it; none if it only takes longer.
    pub fn message(&self) -> Option<String> {
        match (&self.error, self.crash) {
            (Some(error), _) => Some(error.clone()),
            (None, true) => Some("crashed on purpose".to_owned()),
            (None, false) => None,
        }
    }
}

/// Returns the first fault of the machine for `phase` that still strikes, and counts it.
pub(super) fn strike(home: &Home, phase: Phase) -> Option<Struck> {
    let sheet = home.sheet()?;
    let fits = |fault: &Fault| {
        let glob = Glob::new(&fault.node).ok().map(|glob| glob.compile_matcher());
        fault.phase == phase && glob.is_some_and(|glob| glob.is_match(&sheet.node))
    };
    let fitting: Vec<(usize, &Fault)> =
        sheet.faults.iter().enumerate().filter(|(_, fault)| fits(fault)).collect();
    if fitting.is_empty() {
        return None;
    }
    let mut options = File::options();
    let mut file = options
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(home.fault_counts())
        .ok()?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let mut counts: BTreeMap<usize, u32> = serde_json::from_str(&text).unwrap_or_default();
    let is_left = |place: usize, fault: &Fault| {
        fault.times == 0 || counts.get(&place).copied().unwrap_or_default() < fault.times
    };
    let (place, fault) = fitting.into_iter().find(|(place, fault)| is_left(*place, fault))?;
    *counts.entry(place).or_default() += 1;
    let text = serde_json::to_string(&counts).ok()?;
    file.set_len(0).ok()?;
    file.rewind().ok()?;
    file.write_all(text.as_bytes()).ok()?;
    Some(Struck {
        delay: Duration::from_millis(fault.delay_ms),
        error: fault.error.clone(),
        crash: fault.crash,
    })
}
