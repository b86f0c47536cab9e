//! Network cards of virtual machines: what they are plugged into, taps made and removed, addresses and ports that are
//! free.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stead_model::machine::{MachineSpec, Nic, PassedPort};
use stead_model::site::address::Cidr;
use stead_runner::machine::MachineError;

use super::device::{self, DEVICES, Holder, Label, Taken, device_name, refuse_taken};
use crate::machine::home::{Home, read, write};
use crate::machine::local::SYSTEM_PATH;
use crate::machine::oci::MARK;

/// The name of no network: a card that is plugged into it is not there.
const NONE: &str = "none";
/// The name of the network that QEMU itself is.
pub(crate) const USER: &str = "user";
/// Where that network has the machine it runs on.
pub(crate) const USER_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The machine's cards, as they were made.
const CARDS: &str = "cards.json";
/// What `/proc/net/tcp` says of a socket that is listened at.
const LISTENS: &str = "0A";
/// Names of taps that may be there.
const TAPS: &str = "taps.json";

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) wire: Wire,
    pub(crate) mac: String,
    /// With prefix length; none: the network gives one.
    pub(crate) address: Option<String>,
    pub(crate) gateway: Option<String>,
    /// Ports of the machine that are passed on to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<PassedPort>,
}

/// What a card is plugged into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wire {
    /// The network that QEMU itself is.
    User,
    /// A tap on this bridge.
    Tap {
        /// The tap.
        name: String,
        /// The bridge.
        bridge: String,
    },
}

/// What a host says of its networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks<'a> {
    /// What a machine without cards is plugged into.
    pub(crate) default: Option<&'a str>,
    /// Whether QEMU's own network is there.
    pub(crate) has_user: bool,
    /// Whether whoever keeps the machine passes ports on, whatever its cards are plugged into.
    pub(crate) passes_ports: bool,
    /// Addresses of cards on bridges.
    pub(crate) subnet: Option<Cidr>,
}

/// Returns the cards of a machine, with addresses still to be chosen.
pub(crate) fn plan(
    home: &Home,
    spec: &MachineSpec,
    networks: &Networks<'_>,
) -> Result<Vec<Card>, MachineError> {
    let card = |index: usize, nic: &Nic| {
        let Nic { network, mac, address, gateway, ports } = nic;
        let (mac, address) = (mac.as_deref(), address.as_deref());
        let mac = mac.map_or_else(|| spec.owner.mac(index), str::to_ascii_lowercase);
        if !is_mac(&mac) {
            return Err(MachineError::Invalid(format!("`{}` is not a hardware address", mac.escape_debug())));
        }
        if let Some(address) = address {
            Cidr::parse(address).map_err(|error| MachineError::Invalid(error.to_string()))?;
        }
        let network =
            if network.is_empty() { networks.default.unwrap_or_default() } else { network.as_str() };
        let wire = if network == USER {
            if !networks.has_user {
                let why = format!("there is no network `{USER}` here: name a bridge");
                return Err(MachineError::Unsupported(why));
            }
            if address.is_some() {
                let why = format!("the network `{USER}` gives addresses itself: use a bridge for fixed ones");
                return Err(MachineError::Unsupported(why));
            }
            Wire::User
        } else {
            if !is_device(network) {
                let why = format!("`{}` is not a bridge's name", network.escape_debug());
                return Err(MachineError::Invalid(why));
            }
            if !ports.is_empty() && !networks.passes_ports {
                let why = format!("only the network `{USER}` passes ports on");
                return Err(MachineError::Unsupported(why));
            }
            Wire::Tap { name: device_name(home, index), bridge: network.to_owned() }
        };
        let address = address.map(str::to_owned);
        Ok(Card { wire, mac, address, gateway: gateway.clone(), ports: ports.clone() })
    };
    if spec.nics.is_empty() {
        let nic = |network: &str| Nic {
            network: network.to_owned(),
            mac: None,
            address: None,
            gateway: None,
            ports: Vec::new(),
        };
        return networks.default.map(|network| card(0, &nic(network))).into_iter().collect();
    }
    let cards = spec.nics.iter().enumerate().filter(|(_, nic)| nic.network != NONE);
    cards.map(|(index, nic)| card(index, nic)).collect()
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 6
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Whether a network device can be called so.
pub(super) fn is_device(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() < 16 && name != "." && name != ".." && name.chars().all(fits)
}

/// Gives cards on bridges addresses of the subnet that nobody else has, refuses given ones that somebody has, and keeps
/// all of them. Blocks.
pub(crate) fn settle(home: &Home, cards: &mut [Card], subnet: Option<Cidr>) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("make", &error);
    let _one_at_a_time = hold_all(home).map_err(failed)?;
    let mut taken = beside(home);
    for card in cards.iter() {
        if let Wire::Tap { bridge, .. } = &card.wire {
            for (address, holder) in on_bridge(home, bridge, subnet)? {
                taken.entry(address).or_insert(holder);
            }
        }
    }
    for card in cards.iter().filter(|card| matches!(card.wire, Wire::Tap { .. })) {
        let Some(address) = own_address(card) else { continue };
        refuse_taken(address, &taken)?;
        if let Some(subnet) = subnet.filter(|subnet| !subnet.contains(address)) {
            return Err(MachineError::Invalid(format!("the address {address} is not in {subnet}")));
        }
        taken.insert(address, Holder::Machine(home.clone()));
    }
    if let Some(subnet) = subnet {
        for card in cards.iter_mut().filter(|card| matches!(card.wire, Wire::Tap { .. })) {
            if card.address.is_none() {
                let free = free_address(subnet, &taken).ok_or_else(|| {
                    MachineError::failed(format!("{}/{} has no free address", subnet.address, subnet.prefix))
                })?;
                taken.insert(free, Holder::Machine(home.clone()));
                card.address = Some(format!("{free}/{}", subnet.prefix));
            }
            let bridge = || bridge_address(subnet).map(|gateway| gateway.to_string());
            card.gateway = card.gateway.take().or_else(bridge);
        }
    }
    write(&home.file(CARDS), &cards).map_err(failed)
}

/// Returns the machine's cards.
pub(crate) fn cards(home: &Home) -> Vec<Card> {
    read(&home.file(CARDS)).unwrap_or_default()
}

fn own_address(card: &Card) -> Option<IpAddr> {
    Cidr::parse(card.address.as_deref()?).ok().map(|cidr| cidr.address)
}

/// Returns the addresses of the machines beside this one.
fn beside(home: &Home) -> Taken {
    let machines =
        home.directory().parent().and_then(|root| fs::read_dir(root).ok()).into_iter().flatten().flatten();
    let others = machines.map(|entry| entry.path()).filter(|path| path != home.directory());
    let held = |path: std::path::PathBuf| {
        let cards = read::<Vec<Card>>(&path.join(CARDS)).unwrap_or_default();
        let holder = Holder::Machine(Home::at(home.kind(), path));
        cards.into_iter().filter_map(move |card| Some((own_address(&card)?, holder.clone())))
    };
    others.flat_map(held).collect()
}

/// Returns the addresses that a bridge has, will have or leads to.
fn on_bridge(home: &Home, bridge: &str, subnet: Option<Cidr>) -> Result<Taken, MachineError> {
    let itself = || Holder::Bridge(bridge.to_owned());
    let mut taken: Taken =
        subnet.and_then(bridge_address).map(|address| (address, itself())).into_iter().collect();
    if Path::new(DEVICES).join(bridge).exists() {
        let own = addresses_of(&["dev", bridge])?.into_iter().flat_map(|device| device.addresses());
        taken.extend(own.map(|own| (own.address, itself())));
        taken.extend(device::on_bridge(home, bridge));
    }
    Ok(taken)
}

/// What `ip -json address` says of a device, as far as it is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Addressed {
    #[serde(default)]
    pub(crate) ifname: String,
    #[serde(default)]
    addr_info: Vec<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    local: IpAddr,
    prefixlen: u8,
}

impl Addressed {
    /// Returns its addresses.
    pub(crate) fn addresses(&self) -> Vec<Cidr> {
        let cidr = |info: &Address| Cidr { address: info.local, prefix: info.prefixlen };
        self.addr_info.iter().map(cidr).collect()
    }
}

/// Returns the devices of this machine that `which` means, with their IPv4 addresses.
pub(crate) fn addresses_of(which: &[&str]) -> Result<Vec<Addressed>, MachineError> {
    parsed(&ip(&[&["-json", "-4", "address", "show"], which].concat())?)
}

/// Returns what `ip -json` said.
pub(crate) fn parsed<T: DeserializeOwned>(said: &str) -> Result<Vec<T>, MachineError> {
    let text = if said.trim().is_empty() { "[]" } else { said };
    serde_json::from_str(text)
        .map_err(|error| MachineError::failed(format!("`ip` is not understood: {error}")))
}

/// Returns the address of the bridge of a subnet: its first one.
pub(crate) fn bridge_address(subnet: Cidr) -> Option<IpAddr> {
    host(subnet, 1).map(IpAddr::V4)
}

/// Returns the address with this number in a network.
pub(crate) fn host(subnet: Cidr, number: u32) -> Option<Ipv4Addr> {
    let IpAddr::V4(address) = subnet.address else { return None };
    let bits = u32::from(32 - subnet.prefix.min(32));
    let size = 1_u64.checked_shl(bits)?;
    // The last one reaches everybody, the first one nobody.
    if u64::from(number) + 1 >= size {
        return None;
    }
    let base = u64::from(u32::from(address)) / size * size;
    u32::try_from(base + u64::from(number)).ok().map(Ipv4Addr::from)
}

/// Returns the first address that nobody has; the very first is the bridge's.
pub(crate) fn free_address(subnet: Cidr, taken: &Taken) -> Option<IpAddr> {
    (2..65_536)
        .map_while(|number| host(subnet, number))
        .map(IpAddr::V4)
        .find(|address| !taken.contains_key(address))
}

/// Waits for the lock on all machines of this place. Dropping it lets go. Blocks.
pub(crate) fn hold_all(home: &Home) -> io::Result<File> {
    let root = File::open(home.directory().parent().unwrap_or(Path::new("/")))?;
    rustix::fs::flock(&root, FlockOperation::LockExclusive)?;
    Ok(root)
}

/// Returns a port of 127.0.0.1 that is free now: `last` if it still is.
pub(crate) fn free_port(last: Option<u16>) -> io::Result<u16> {
    let bind = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr();
    let bound = match last {
        Some(port) => bind(port).or_else(|_| bind(0)),
        None => bind(0),
    };
    bound.map(|address| address.port())
}

/// Refuses ports of this machine that were given and that somebody has.
pub(crate) fn refuse_taken_ports(cards: &[Card]) -> Result<(), MachineError> {
    for port in cards.iter().flat_map(|card| &card.ports) {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port.host)).map_err(|error| {
            MachineError::Invalid(format!("port {} of this machine cannot be passed on: {error}", port.host))
        })?;
    }
    Ok(())
}

/// Whether somebody listens at this port of 127.0.0.1. Looked up, not tried: who tries has it for a moment.
pub(crate) fn is_listened_to(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let address = u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets());
    let wanted = format!("{address:08X}:{port:04X}");
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        words.get(1) == Some(&wanted.as_str()) && words.get(3) == Some(&LISTENS)
    })
}

/// Makes the taps of the cards. Blocks.
pub(crate) fn make_taps(home: &Home, cards: &[Card]) -> Result<(), MachineError> {
    let taps: Vec<(&str, &str, &Card)> = cards
        .iter()
        .filter_map(|card| match &card.wire {
            Wire::Tap { name, bridge } => Some((name.as_str(), bridge.as_str(), card)),
            Wire::User => None,
        })
        .collect();
    if taps.is_empty() {
        return Ok(());
    }
    for (_, bridge, _) in &taps {
        if !Path::new(DEVICES).join(bridge).join("bridge").is_dir() {
            return Err(MachineError::Invalid(format!("there is no bridge {bridge} on this machine")));
        }
    }
    let _one_at_a_time = device::hold()?;
    for (_, bridge, card) in &taps {
        device::refuse_twin(home, bridge, &card.mac)?;
        if let Some(address) = own_address(card) {
            refuse_taken(address, &device::on_bridge(home, bridge))?;
        }
    }
    let names: Vec<&str> = taps.iter().map(|(name, _, _)| *name).collect();
    // Known before they are there: whoever comes next removes them.
    write(&home.file(TAPS), &names).map_err(|error| home.failed("start", &error))?;
    for (name, bridge, card) in taps {
        device::remove_own(home, name)?;
        let label = Label::new(home, &card.mac, own_address(card)).to_string();
        ip(&["tuntap", "add", "dev", name, "mode", "tap"])?;
        ip(&["link", "set", "dev", name, "alias", &label])?;
        ip(&["link", "set", "dev", name, "master", bridge, "up"])?;
    }
    Ok(())
}

/// Removes the taps that were made for the machine; one that is somebody else's by now stays. Blocks.
pub(crate) fn remove_taps(home: &Home) -> Result<(), MachineError> {
    let names: Vec<String> = read(&home.file(TAPS)).unwrap_or_default();
    for name in &names {
        match device::remove_own(home, name) {
            Ok(()) | Err(MachineError::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if !names.is_empty() {
        fs::remove_file(home.file(TAPS)).map_err(|error| home.failed("clear", &error))?;
    }
    Ok(())
}

/// Runs `ip` and returns what it said.
pub(crate) fn ip(args: &[&str]) -> Result<String, MachineError> {
    let mut command = Command::new("ip");
    command.args(args).stdin(Stdio::null()).env_clear().env("PATH", SYSTEM_PATH);
    // What a machine's own process starts ends with it: nothing is made for a machine that is being removed.
    if let Some(machine) = std::env::var_os(MARK) {
        command.env(MARK, machine);
    }
    let output = command.output().map_err(|error| {
        MachineError::Unavailable(format!("`ip` cannot be started: {error} (package iproute2)"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(MachineError::failed(format!("`ip {}` failed: {said}", args.join(" "))))
}

/// Returns the addresses at which the machine's cards are reached, as far as they are known.
pub(crate) fn addresses(cards: &[Card]) -> Vec<String> {
    let neighbours = fs::read_to_string("/proc/net/arp").unwrap_or_default();
    let known = cards.iter().filter_map(|card| match (&card.wire, own_address(card)) {
        (Wire::User, _) => Some(Ipv4Addr::LOCALHOST.to_string()),
        (Wire::Tap { .. }, Some(address)) => Some(address.to_string()),
        (Wire::Tap { .. }, None) => neighbour(&neighbours, &card.mac),
    });
    known.collect()
}

/// Returns the address that this machine has seen behind a hardware address.
fn neighbour(table: &str, mac: &str) -> Option<String> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_complete = words.get(2).is_some_and(|flags| *flags != "0x0");
        let fits = is_complete && words.get(3).is_some_and(|found| found.eq_ignore_ascii_case(mac));
        fits.then(|| words.first().map(|address| (*address).to_owned())).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stead_model::machine::{MachineKind, Owner};

    use super::*;
    use crate::machine::home::Kind;

    static KIND: Kind = Kind { driver: "test", noun: "machine", kept: &[], mark: "STEAD_TEST_MACHINE" };

    fn spec(nics: Vec<Nic>) -> MachineSpec {
        let owner = Owner::new("lab/harbour/local", "quay").unwrap();
        MachineSpec { nics, ..MachineSpec::new(owner, MachineKind::Vm) }
    }

    #[test]
    fn cards_follow_the_spec_and_the_mark() {
        let home = Home::at(&KIND, "/machines/quay".into());
        let networks = Networks { default: Some(USER), has_user: true, ..Networks::default() };
        let cards = plan(&home, &spec(Vec::new()), &networks).unwrap();
        assert_eq!(cards.len(), 1);
        assert_eq!((&cards[0].wire, cards[0].mac.as_str()), (&Wire::User, "52:54:00:83:99:24"));
        let address = Some("10.1.2.3/24".to_owned());
        let nic = Nic { network: "br0".to_owned(), mac: None, address, gateway: None, ports: Vec::new() };
        let cards = plan(&home, &spec(vec![nic.clone()]), &networks).unwrap();
        assert_eq!(cards[0].wire, Wire::Tap { name: device_name(&home, 0), bridge: "br0".to_owned() });
        assert_eq!(addresses(&cards), ["10.1.2.3"]);
        for (network, mac) in [("a,b", None), ("", None), ("br0", Some("52:54"))] {
            let nic = Nic { network: network.to_owned(), mac: mac.map(str::to_owned), ..nic.clone() };
            assert!(plan(&home, &spec(vec![nic]), &networks).is_err(), "{network} {mac:?}");
        }
        let no_user = Networks { has_user: false, ..networks };
        assert!(plan(&home, &spec(Vec::new()), &no_user).is_err());
    }

    #[test]
    fn addresses_are_free_ones_of_the_subnet() {
        let subnet = Cidr::parse("10.9.0.0/29").unwrap();
        let mut taken = BTreeMap::new();
        let mut found = Vec::new();
        while let Some(address) = free_address(subnet, &taken) {
            taken.insert(address, Holder::Bridge("br0".to_owned()));
            found.push(address.to_string());
        }
        assert_eq!(found, ["10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.5", "10.9.0.6"]);
    }

    /// Given addresses are looked at as closely as chosen ones.
    #[test]
    fn an_address_that_somebody_has_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let card = |address: Option<&str>| Card {
            wire: Wire::Tap { name: "t".to_owned(), bridge: "no-such-bridge".to_owned() },
            mac: "52:54:00:00:00:01".to_owned(),
            address: address.map(str::to_owned),
            gateway: None,
            ports: Vec::new(),
        };
        let settle = |name: &str, address: Option<&str>| {
            let home = Home::at(&KIND, place.path().join(name));
            fs::create_dir_all(home.directory()).unwrap();
            settle(&home, &mut [card(address)], Cidr::parse("10.9.0.0/24").ok())
        };
        settle("one", Some("10.9.0.50/24")).unwrap();
        settle("two", None).unwrap();
        for bad in ["10.9.0.50/24", "10.9.0.2/24", "10.9.0.1/24", "192.168.77.5/24"] {
            let refused = settle("three", Some(bad));
            assert!(matches!(refused, Err(MachineError::Invalid(_))), "{bad}: {refused:?}");
        }
        settle("one", Some("10.9.0.50/24")).unwrap();
    }

    #[test]
    fn ports_that_somebody_has_are_known() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listened_to(port));
        let ports = vec![PassedPort { guest: 80, host: port }];
        let card = Card { wire: Wire::User, mac: String::new(), address: None, gateway: None, ports };
        let refused = refuse_taken_ports(std::slice::from_ref(&card)).unwrap_err().to_string();
        assert!(refused.contains(&port.to_string()), "{refused}");
        drop(listener);
        assert!(!is_listened_to(port));
        refuse_taken_ports(&[card]).unwrap();
    }

    #[test]
    fn a_neighbour_is_known_by_its_hardware_address() {
        let table = "IP address HW type Flags HW address Mask Device\n\
                     10.0.0.7 0x1 0x2 52:54:00:AA:bb:cc * br0\n10.0.0.8 0x1 0x0 52:54:00:00:00:01 * br0\n";
        assert_eq!(neighbour(table, "52:54:00:aa:bb:cc"), Some("10.0.0.7".to_owned()));
        assert_eq!(neighbour(table, "52:54:00:00:00:01"), None);
    }
}
