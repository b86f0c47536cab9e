//! Network devices of this machine that stand for cards of machines: what they are called, the label that says whose
//! they are, and the lock under which they change.
//!
//! Machines of one owner may be kept at several places, which share the bridges: a device is called after the machine's
//! directory, and only one with its label is removed.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use stead_runner::machine::MachineError;

use super::network::{ip, is_device};
use crate::machine::home::{Found, Home, is_same};
use crate::machine::local::LOOK_AGAIN;

/// Network devices of this machine.
pub(crate) const DEVICES: &str = "/sys/class/net";
/// The first word of a label.
pub(crate) const OURS: &str = "stead";
/// Who changes networks of this machine holds this. Only root can: in a directory of everybody, anybody could.
const LOCK: &str = "/run/stead/network.lock";
/// How long others may change networks.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the name of a machine's device. Fifteen characters are all there is room for.
pub(crate) fn device_name(home: &Home, index: usize) -> String {
    let digits: String = place_of(home).chars().take(9).collect();
    format!("st{digits}-{index}")
}

/// Returns what tells a machine's place from others.
fn place_of(home: &Home) -> String {
    let digest = Sha256::digest(home.directory().as_os_str().as_encoded_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// What a device says of the card it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    address: Option<IpAddr>,
    mac: String,
    place: String,
}

impl Label {
    pub(crate) fn new(home: &Home, mac: &str, address: Option<IpAddr>) -> Self {
        Self { address, mac: mac.to_ascii_lowercase(), place: place_of(home) }
    }

    fn parse(alias: &str) -> Option<Self> {
        let mut words = alias.split_ascii_whitespace();
        words.next().filter(|word| *word == OURS)?;
        let address = words.next()?.parse().ok();
        let mut rest = || words.next().unwrap_or_default().to_owned();
        Some(Self { address, mac: rest(), place: rest() })
    }

    fn of(device: &str) -> Option<Self> {
        Self::parse(&alias(device)?)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
        write!(f, "{OURS} {address} {} {}", self.mac, self.place)
    }
}

/// Returns what a device says of itself; none if it is not there.
pub(crate) fn alias(device: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(DEVICES).join(device).join("ifalias")).ok()?;
    Some(text.trim().to_owned())
}

/// Removes a device that was made for the machine, as far as that came; one that is not there is removed.
///
/// # Errors
/// If it says that it is somebody else's; then it is left alone.
pub(crate) fn remove_own(home: &Home, device: &str) -> Result<(), MachineError> {
    let Some(alias) = alias(device) else { return Ok(()) };
    let place = place_of(home);
    // Whoever made it may have been killed before it was labelled, and older labels name no place.
    let is_own = |label: Label| label.place.is_empty() || label.place == place;
    let is_own = alias.is_empty() || Label::parse(&alias).is_some_and(is_own);
    if !is_own {
        let what = format!("the network device {device}");
        return Err(MachineError::Foreign { what, owner: home.directory().display().to_string() });
    }
    remove_device(device)
}

/// Removes a network device; one that is not there is removed.
pub(crate) fn remove_device(name: &str) -> Result<(), MachineError> {
    let is_there = || Path::new(DEVICES).join(name).exists();
    if !is_device(name) || !is_there() {
        return Ok(());
    }
    match ip(&["link", "delete", "dev", name]) {
        // It went with the namespace of its other end meanwhile.
        Err(_) if !is_there() => Ok(()),
        removed => removed.map(drop),
    }
}

/// Addresses, and who has them.
pub(crate) type Taken = BTreeMap<IpAddr, Holder>;

/// Who has an address.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// A machine that is kept beside.
    Machine(Home),
    /// A machine that is kept elsewhere, by its device.
    Device(String),
    /// The bridge itself.
    Bridge(String),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(home) => match home.find() {
                Found::Ours(record) => write!(f, "{}", record.spec.owner),
                Found::Absent | Found::Foreign | Found::Unreadable(_) => f.write_str("another machine"),
            },
            Self::Device(device) => write!(f, "a machine that is kept elsewhere (device {device})"),
            Self::Bridge(bridge) => write!(f, "the bridge {bridge} itself"),
        }
    }
}

/// Refuses an address that somebody has.
pub(crate) fn refuse_taken(address: IpAddr, taken: &Taken) -> Result<(), MachineError> {
    match taken.get(&address) {
        Some(holder) => Err(MachineError::Invalid(format!("the address {address} is taken by {holder}"))),
        None => Ok(()),
    }
}

/// Returns what others have on a bridge.
fn others(home: &Home, bridge: &str) -> Vec<(String, Label)> {
    let place = place_of(home);
    let ports = fs::read_dir(Path::new(DEVICES).join(bridge).join("brif")).into_iter().flatten().flatten();
    let names = ports.filter_map(|port| port.file_name().into_string().ok());
    let labelled = names.filter_map(|name| Label::of(&name).map(|label| (name, label)));
    labelled.filter(|(_, label)| label.place != place).collect()
}

/// Returns the addresses of the machines whose cards are on a bridge, wherever they are kept.
pub(crate) fn on_bridge(home: &Home, bridge: &str) -> Taken {
    let held = |(name, label): (String, Label)| Some((label.address?, Holder::Device(name)));
    others(home, bridge).into_iter().filter_map(held).collect()
}

/// Refuses a hardware address that another machine has on a bridge: neither would be reached.
pub(crate) fn refuse_twin(home: &Home, bridge: &str, mac: &str) -> Result<(), MachineError> {
    let twin = others(home, bridge).into_iter().find(|(_, label)| label.mac.eq_ignore_ascii_case(mac));
    match twin {
        Some((device, _)) => Err(MachineError::Invalid(format!(
            "the hardware address {mac} is on the bridge {bridge} already (device {device}): machines of one name that \
             are kept at two places have one; use another bridge, or give the site another name"
        ))),
        None => Ok(()),
    }
}

/// The right to change networks of this machine. Dropping it lets go, and leaves no file.
pub(crate) struct NetworkLock {
    _file: File,
    path: PathBuf,
}

impl Drop for NetworkLock {
    fn drop(&mut self) {
        // Before it is let go: who has opened it meanwhile sees that it is not the one any more, and makes another.
        fs::remove_file(&self.path).ok();
        if let Some(place) = self.path.parent() {
            // Something else may be in it.
            fs::remove_dir(place).ok();
        }
    }
}

/// Waits until nobody else changes networks of this machine. Blocks.
pub(crate) fn hold() -> Result<NetworkLock, MachineError> {
    hold_at(Path::new(LOCK), PATIENCE)
}

fn hold_at(path: &Path, patience: Duration) -> Result<NetworkLock, MachineError> {
    let failed =
        |error: io::Error| MachineError::failed(format!("{} cannot be held: {error}", path.display()));
    let deadline = Instant::now() + patience;
    loop {
        if let Some(file) = try_hold(path).map_err(failed)? {
            return Ok(NetworkLock { _file: file, path: path.to_owned() });
        }
        if Instant::now() > deadline {
            return Err(MachineError::Timeout(format!(
                "others have changed networks of this machine for {} s ({})",
                patience.as_secs(),
                path.display()
            )));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Takes the lock if it is free, and still the one that others look at.
fn try_hold(path: &Path) -> io::Result<Option<File>> {
    let place = path.parent().unwrap_or(Path::new("/"));
    match DirBuilder::new().recursive(true).mode(0o755).create(place) {
        // It was there, and went before it was seen what it is; what is no directory is told below.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let file = match File::options().create(true).truncate(false).write(true).mode(0o600).open(path) {
        // Who held it last has just removed the place.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(is_same(&file, path).then_some(file)),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::home::Kind;

    static KIND: Kind = Kind { driver: "test", noun: "machine", kept: &[], mark: "STEAD_TEST_MACHINE" };

    #[test]
    fn a_device_is_known_by_its_machines_place() {
        let at = |place: &str| Home::at(&KIND, place.into());
        let (here, there) = (at("/a/machines/1"), at("/b/machines/1"));
        assert_eq!(device_name(&here, 0).len(), 13);
        assert_ne!(device_name(&here, 0), device_name(&there, 0), "one machine's name at two places");
        let label = Label::new(&here, "52:54:00:AA:00:01", "10.0.0.7".parse().ok());
        assert_eq!(Label::parse(&label.to_string()), Some(label.clone()));
        assert_ne!(label.place, place_of(&there));
        let without = Label { address: None, ..label };
        assert_eq!(Label::parse(&without.to_string()), Some(without));
        assert_eq!(Label::parse("uplink of the office"), None);
    }

    /// Section 9: who changes networks leaves neither a lock nor its place, and two never hold it at once.
    #[test]
    fn a_lock_keeps_others_out_and_leaves_nothing() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stead/network.lock");
        let (held, most) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = hold_at(&path, PATIENCE).unwrap();
                        most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
        assert!(!dir.path().join("stead").exists());
        let lock = hold_at(&path, PATIENCE).unwrap();
        let late = hold_at(&path, Duration::ZERO);
        assert!(matches!(late, Err(MachineError::Timeout(_))));
        fs::write(dir.path().join("stead/other"), "").unwrap();
        drop(lock);
        assert!(!path.exists() && dir.path().join("stead/other").exists());
    }
}
