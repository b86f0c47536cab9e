//! Networks of containers: a bridge per level, a pair of virtual cards per machine, addresses that are free.
//!
//! A level is a /24 of the host's subnet that nothing on this machine has a way to yet and none of the levels above it is, so
//! that a machine in a machine gets another one at any depth: a machine that makes machines is told which those are. Cards
//! go with the network namespace of their machine, and the bridge with the last card on it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use stead_model::site::address::Cidr;
use stead_runner::machine::MachineError;

use super::bundle::VOLUME;
use crate::machine::home::{Home, read, write};
use crate::machine::local::LOOK_AGAIN;
use crate::machine::vm::device::{
    self, DEVICES, Holder, Label, OURS, Taken, alias, device_name, refuse_taken, remove_device, remove_own,
};
use crate::machine::vm::network::{Addressed, Card, Wire, addresses_of, free_address, host, ip, parsed};

/// What of a machine is plugged in where.
const FILE: &str = "network.json";
/// The networks of the levels around a machine that makes machines, its own too; in its volume.
const ABOVE: &str = "networks.json";
/// How long a device may take to go.
const GOING: Duration = Duration::from_secs(5);
/// The size of a level.
const LEVEL: u8 = 24;

/// How a machine is plugged in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plugged {
    /// The bridges.
    bridges: BTreeSet<String>,
    /// Those that are being made for it, as they are called until they are complete.
    #[serde(default)]
    making: BTreeSet<String>,
    /// The ends of its cards that are on them.
    ends: Vec<String>,
    /// Its addresses, in the order of its cards.
    pub(super) addresses: Vec<Ipv4Addr>,
}

impl Plugged {
    fn of(directory: &Path) -> Self {
        read(&directory.join(FILE)).unwrap_or_default()
    }
}

/// Refuses cards that no container can have, or none of an ordinary account if it is `rootless`.
pub(super) fn check(cards: &[Card], rootless: bool) -> Result<(), MachineError> {
    if rootless {
        return check_rootless(cards);
    }
    let given = cards.iter().filter_map(|card| card.address.as_deref());
    match given.filter_map(|address| Cidr::parse(address).ok()).find(|cidr| cidr.address.is_ipv6()) {
        Some(cidr) => Err(MachineError::Unsupported(format!("{cidr}: containers have IPv4 addresses"))),
        None => Ok(()),
    }
}

fn check_rootless(cards: &[Card]) -> Result<(), MachineError> {
    let bridge = cards.iter().find_map(|card| match &card.wire {
        Wire::Tap { bridge, .. } => Some(bridge),
        Wire::User => None,
    });
    if let Some(bridge) = bridge {
        return Err(MachineError::Unsupported(format!(
            "only root plugs containers into a bridge: run stead as root, or leave out the bridge {bridge}"
        )));
    }
    match cards.len() {
        0 | 1 => Ok(()),
        _ => Err(MachineError::Unsupported(
            "a container of an ordinary account has one network card: run stead as root for more".to_owned(),
        )),
    }
}

/// Has a machine without cards reach itself. Blocks.
pub(super) fn raise_loopback(pid: u32) -> Result<(), MachineError> {
    within(pid, || ip(&["link", "set", "dev", "lo", "up"]).map(drop))
}

/// Tells a machine that makes machines which networks the levels around it are: its own bridges', and those above.
pub(super) fn tell_above(volume: &Path, bridges: &[Cidr]) -> io::Result<()> {
    let mut networks = above(Path::new(VOLUME));
    networks.extend(bridges);
    let texts: Vec<String> = networks.iter().map(ToString::to_string).collect();
    write(&volume.join(ABOVE), &texts)
}

/// Returns the networks of the levels around the machine with this volume.
fn above(volume: &Path) -> Vec<Cidr> {
    let texts: Vec<String> = read(&volume.join(ABOVE)).unwrap_or_default();
    texts.iter().filter_map(|text| Cidr::parse(text).ok()).collect()
}

/// Plugs a machine in, whose first process is `pid`, and returns its addresses, each with its bridge's. Blocks.
pub(super) fn plug(
    home: &Home,
    cards: &[Card],
    subnet: Cidr,
    pid: u32,
) -> Result<Vec<(Ipv4Addr, Cidr)>, MachineError> {
    let failed = |error: io::Error| home.failed("plug in", &error);
    let _one_at_a_time = device::hold()?;
    let Plugged { addresses: last, making: half_made, .. } = Plugged::of(home.directory());
    for bridge in &half_made {
        remove_idle(bridge, true)?;
    }
    let bridges: Vec<&str> = cards
        .iter()
        .filter_map(|card| match &card.wire {
            Wire::Tap { bridge, .. } => Some(bridge.as_str()),
            Wire::User => None,
        })
        .collect();
    let mut plugged = Plugged {
        bridges: bridges.iter().map(|bridge| (*bridge).to_owned()).collect(),
        making: (0..bridges.len()).map(|index| aside_name(home, index)).collect(),
        ends: (0..bridges.len()).map(|index| device_name(home, index)).collect(),
        addresses: last.clone(),
    };
    // Known before anything is there: whoever comes next removes it.
    write(&home.file(FILE), &plugged).map_err(failed)?;
    plugged.addresses.clear();
    plugged.making.clear();
    let (mut taken, mut found) = (beside(home), Vec::new());
    for (index, (card, bridge)) in cards.iter().zip(&bridges).enumerate() {
        let gateway = ensure_bridge(bridge, &aside_name(home, index), subnet)?;
        for (address, holder) in device::on_bridge(home, bridge) {
            taken.entry(address).or_insert(holder);
        }
        taken.insert(gateway.address, Holder::Bridge((*bridge).to_owned()));
        device::refuse_twin(home, bridge, &card.mac)?;
        let address = match &card.address {
            Some(given) => fitting(given, gateway, &taken)?,
            None => choose(gateway, last.get(index).copied(), &taken)?,
        };
        let IpAddr::V4(own) = address.address else {
            return Err(MachineError::Unsupported(format!("{address}: containers have IPv4 addresses")));
        };
        taken.insert(address.address, Holder::Machine(home.clone()));
        let end = device_name(home, index);
        remove_own(home, &end)?;
        let inside = format!("eth{index}");
        ip(&[
            "link",
            "add",
            "name",
            &end,
            "type",
            "veth",
            "peer",
            "name",
            &inside,
            "netns",
            &pid.to_string(),
        ])?;
        let label = Label::new(home, &card.mac, Some(address.address)).to_string();
        ip(&["link", "set", "dev", &end, "alias", &label, "master", bridge, "up"])?;
        let way_out = way_out(card, address, gateway.address)?;
        within(pid, || set_up(&inside, &card.mac, address, way_out, index == 0))?;
        plugged.addresses.push(own);
        found.push((own, gateway));
    }
    if bridges.is_empty() {
        raise_loopback(pid)?;
    }
    write(&home.file(FILE), &plugged).map_err(failed)?;
    Ok(found)
}

/// Returns where what a card cannot reach goes: where it was told, else to its bridge.
fn way_out(card: &Card, address: Cidr, bridge: IpAddr) -> Result<IpAddr, MachineError> {
    let Some(given) = &card.gateway else { return Ok(bridge) };
    let gateway = given.parse().ok().filter(|gateway| address.contains(*gateway));
    let why = || format!("the gateway {} is not in the network of {address}", given.escape_debug());
    gateway.ok_or_else(|| MachineError::Invalid(why()))
}

/// Gives a card its addresses, from inside.
fn set_up(card: &str, mac: &str, address: Cidr, gateway: IpAddr, is_first: bool) -> Result<(), MachineError> {
    ip(&["link", "set", "dev", "lo", "up"])?;
    ip(&["link", "set", "dev", card, "address", mac, "up"])?;
    ip(&["address", "add", &address.to_string(), "dev", card])?;
    if is_first && address.contains(gateway) {
        ip(&["route", "add", "default", "via", &gateway.to_string(), "dev", card])?;
    }
    Ok(())
}

/// Takes back what a machine had of networks. Blocks.
pub(super) fn unplug(home: &Home) -> Result<(), MachineError> {
    let plugged = Plugged::of(home.directory());
    if plugged.ends.is_empty() {
        return Ok(());
    }
    let failed = |error: io::Error| home.failed("unplug", &error);
    let _one_at_a_time = device::hold()?;
    for end in &plugged.ends {
        match remove_own(home, end) {
            Ok(()) | Err(MachineError::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    for half_made in &plugged.making {
        remove_idle(half_made, true)?;
    }
    for bridge in &plugged.bridges {
        remove_idle(bridge, false)?;
    }
    // Its addresses stay, so that it may have them again.
    let kept = Plugged { addresses: plugged.addresses, ..Plugged::default() };
    write(&home.file(FILE), &kept).map_err(failed)
}

/// Runs `work` in the network of a process.
fn within<T: Send>(
    pid: u32,
    work: impl FnOnce() -> Result<T, MachineError> + Send,
) -> Result<T, MachineError> {
    let failed = |error: io::Error| {
        MachineError::failed(format!("the network of process {pid} cannot be entered: {error}"))
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(pid).map_err(failed)?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(MachineError::failed("the work was cut off")))
    })
}

/// Puts the calling thread into the network of a process. Sockets that it has stay where they were made.
pub(super) fn enter(pid: u32) -> io::Result<()> {
    let network = File::open(format!("/proc/{pid}/ns/net"))?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Returns what a bridge is called while it is made for a machine.
fn aside_name(home: &Home, index: usize) -> String {
    device_name(home, index).replace('-', "b")
}

/// Removes a bridge that has no card on it and was made here. One that is `half_made` may not say so yet: whoever made it
/// was killed.
fn remove_idle(bridge: &str, half_made: bool) -> Result<(), MachineError> {
    let ends = fs::read_dir(Path::new(DEVICES).join(bridge).join("brif"));
    let (Ok(mut ends), Some(alias)) = (ends, alias(bridge)) else {
        outlast(bridge);
        return Ok(());
    };
    match ends.next().is_none() && (alias == OURS || (alias.is_empty() && half_made)) {
        true => remove_device(bridge),
        false => Ok(()),
    }
}

/// Waits for the end of a device that somebody is removing, such as the `ip` of a driver that was killed meanwhile.
fn outlast(device: &str) {
    let deadline = Instant::now() + GOING;
    while Path::new(DEVICES).join(device).exists() && Instant::now() < deadline {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Returns the addresses of the machines beside this one, also of those that do not run.
fn beside(home: &Home) -> Taken {
    let machines = home.directory().parent().and_then(|root| fs::read_dir(root).ok());
    let others = machines.into_iter().flatten().flatten().map(|entry| entry.path());
    let others = others.filter(|path| path != home.directory());
    let held = |path: std::path::PathBuf| {
        let addresses = Plugged::of(&path).addresses;
        let holder = Holder::Machine(Home::at(home.kind(), path));
        addresses.into_iter().map(move |address| (IpAddr::V4(address), holder.clone()))
    };
    others.flat_map(held).collect()
}

/// Returns a given address, if it is one of the bridge's network that nobody else has.
fn fitting(given: &str, gateway: Cidr, taken: &Taken) -> Result<Cidr, MachineError> {
    let address = Cidr::parse(given).map_err(|error| MachineError::Invalid(error.to_string()))?;
    refuse_taken(address.address, taken)?;
    if !gateway.contains(address.address) {
        let why = format!("the address {address} is not in the network of its bridge, which has {gateway}");
        return Err(MachineError::Invalid(why));
    }
    Ok(address)
}

/// Returns an address beside `gateway`: `last` if it is still free.
fn choose(gateway: Cidr, last: Option<Ipv4Addr>, taken: &Taken) -> Result<Cidr, MachineError> {
    let last = last.map(IpAddr::V4).filter(|last| gateway.contains(*last) && !taken.contains_key(last));
    let free = last.or_else(|| free_address(gateway, taken));
    let address =
        free.ok_or_else(|| MachineError::failed(format!("the network of {gateway} has no free address")))?;
    Ok(Cidr { address, prefix: gateway.prefix })
}

/// What `ip -json route` says, as far as it is read.
#[derive(Debug, Deserialize)]
struct Route {
    dst: String,
}

/// Has a bridge there, and returns its own address. It is made as `aside`: one that has its name is complete, whoever is
/// killed meanwhile.
fn ensure_bridge(bridge: &str, aside: &str, subnet: Cidr) -> Result<Cidr, MachineError> {
    let devices = addresses_of(&[])?;
    if Path::new(DEVICES).join(bridge).exists() {
        if !Path::new(DEVICES).join(bridge).join("bridge").is_dir() {
            return Err(MachineError::Invalid(format!("{bridge} is there and is no bridge")));
        }
        let own: Vec<Cidr> =
            devices.iter().filter(|device| device.ifname == bridge).flat_map(Addressed::addresses).collect();
        let fits = own.iter().find(|own| subnet.contains(own.address));
        if fits.is_some() && !is_up(bridge) && alias(bridge).is_some_and(|alias| alias == OURS) {
            ip(&["link", "set", "dev", bridge, "up"])?;
        }
        return fits.copied().ok_or_else(|| {
            MachineError::Invalid(format!("the bridge {bridge} is there and has no address in {subnet}"))
        });
    }
    let routes: Vec<Route> = parsed(&ip(&["-json", "-4", "route"])?)?;
    let routes = routes.iter().filter_map(|route| {
        Cidr::parse(&route.dst).or_else(|_| Cidr::parse(&format!("{}/32", route.dst))).ok()
    });
    let devices = devices.iter().flat_map(Addressed::addresses);
    let taken: Vec<Cidr> = devices.chain(routes).chain(above(Path::new(VOLUME))).collect();
    let level = free_level(subnet, &taken).ok_or_else(|| {
        MachineError::failed(format!("{subnet} has no network that this machine has no way to yet"))
    })?;
    ip(&["link", "add", "name", aside, "type", "bridge"])?;
    ip(&["link", "set", "dev", aside, "alias", OURS])?;
    ip(&["address", "add", &level.to_string(), "dev", aside])?;
    ip(&["link", "set", "dev", aside, "name", bridge])?;
    ip(&["link", "set", "dev", bridge, "up"])?;
    Ok(level)
}

fn is_up(device: &str) -> bool {
    let flags = fs::read_to_string(Path::new(DEVICES).join(device).join("flags")).unwrap_or_default();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16);
    flags.is_ok_and(|flags| flags & 1 == 1)
}

/// Returns the first network of `subnet` that has nothing in common with those `taken`, by the address of its bridge.
fn free_level(subnet: Cidr, taken: &[Cidr]) -> Option<Cidr> {
    let prefix = subnet.prefix.max(LEVEL);
    let count = 1_u32.checked_shl(u32::from(prefix - subnet.prefix))?;
    let IpAddr::V4(base) = subnet.address else { return None };
    let size = 1_u32.checked_shl(u32::from(32 - prefix))?;
    let mask = u32::MAX.checked_shl(u32::from(32 - subnet.prefix)).unwrap_or(0);
    let levels = (0..count).filter_map(|number| {
        let network = (u32::from(base) & mask).checked_add(number.checked_mul(size)?)?;
        let network = Cidr { address: IpAddr::V4(Ipv4Addr::from(network)), prefix };
        Some(Cidr { address: IpAddr::V4(host(network, 1)?), prefix })
    });
    let meets = |level: &Cidr, other: &Cidr| level.contains(other.address) || other.contains(level.address);
    // The way to everywhere is no way to this network in particular.
    levels
        .into_iter()
        .find(|level| !taken.iter().filter(|other| other.prefix > 0).any(|other| meets(level, other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    #[test]
    fn a_level_is_a_network_that_nothing_leads_to() {
        let subnet = cidr("10.44.0.0/16");
        assert_eq!(
            free_level(subnet, &[cidr("0.0.0.0/0"), cidr("192.168.1.1/24")]),
            Some(cidr("10.44.0.1/24"))
        );
        assert_eq!(free_level(subnet, &[cidr("10.44.0.7/24")]), Some(cidr("10.44.1.1/24")));
        assert_eq!(
            free_level(subnet, &[cidr("10.44.0.0/23"), cidr("10.44.2.9/32")]),
            Some(cidr("10.44.3.1/24"))
        );
        assert_eq!(free_level(subnet, &[cidr("10.0.0.0/8")]), None);
        assert_eq!(free_level(cidr("10.9.8.0/28"), &[]), Some(cidr("10.9.8.1/28")));
    }

    /// Nodes, section 7: each level has a free network, also where the way to one further above is that to everywhere.
    #[test]
    fn a_machine_knows_the_networks_of_the_levels_above() {
        let volume = tempfile::tempdir().unwrap();
        assert_eq!(above(volume.path()), []);
        tell_above(volume.path(), &[cidr("10.44.0.1/24"), cidr("10.44.1.1/24")]).unwrap();
        let told = above(volume.path());
        assert_eq!(free_level(cidr("10.44.0.0/16"), &told), Some(cidr("10.44.2.1/24")));
        // Whatever the machine makes of it.
        fs::write(volume.path().join(ABOVE), "[\"nowhere\", \"10.44.0.7/32\"]").unwrap();
        assert_eq!(above(volume.path()), [cidr("10.44.0.7/32")]);
        fs::write(volume.path().join(ABOVE), "{").unwrap();
        assert_eq!(above(volume.path()), []);
    }

    #[test]
    fn a_machine_keeps_its_address_while_it_is_free() {
        let gateway = cidr("10.44.0.1/24");
        let holder = || Holder::Bridge("stead0".to_owned());
        let mut taken = Taken::from([(gateway.address, holder())]);
        let last = Some(Ipv4Addr::new(10, 44, 0, 9));
        assert_eq!(choose(gateway, last, &taken).unwrap(), cidr("10.44.0.9/24"));
        taken.insert(IpAddr::V4(Ipv4Addr::new(10, 44, 0, 9)), holder());
        assert_eq!(choose(gateway, last, &taken).unwrap(), cidr("10.44.0.2/24"));
        assert_eq!(choose(gateway, Some(Ipv4Addr::new(10, 45, 0, 9)), &taken).unwrap(), cidr("10.44.0.2/24"));
    }

    /// Nodes, section 2: `gateway` is for fixed addresses.
    #[test]
    fn what_is_elsewhere_goes_to_the_given_gateway_else_to_the_bridge() {
        let card = |gateway: Option<&str>| Card {
            wire: Wire::Tap { name: "st0-1".to_owned(), bridge: "stead0".to_owned() },
            mac: String::new(),
            address: None,
            gateway: gateway.map(str::to_owned),
            ports: Vec::new(),
        };
        let (address, bridge) = (cidr("10.44.0.9/24"), cidr("10.44.0.1/24").address);
        assert_eq!(way_out(&card(None), address, bridge), Ok(bridge));
        let other = cidr("10.44.0.254/24").address;
        assert_eq!(way_out(&card(Some("10.44.0.254")), address, bridge), Ok(other));
        for bad in ["10.45.0.1", "nowhere"] {
            let refused = way_out(&card(Some(bad)), address, bridge).unwrap_err().to_string();
            assert!(refused.contains(bad), "{refused}");
        }
    }

    #[test]
    fn a_given_address_is_free_and_in_the_network() {
        let gateway = cidr("10.44.0.1/24");
        let taken = Taken::from([(gateway.address, Holder::Bridge("stead0".to_owned()))]);
        assert_eq!(fitting("10.44.0.50/24", gateway, &taken).unwrap(), cidr("10.44.0.50/24"));
        for (bad, why) in [("10.44.0.1/24", "the bridge stead0 itself"), ("192.168.77.5/24", "10.44.0.1/24")]
        {
            let refused = fitting(bad, gateway, &taken).unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains(bad.split('/').next().unwrap()), "{refused}");
        }
    }
}
