//! Machines on a bridge of this machine. Needs root and `ip`.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use stead_drivers::machine::cloud_hypervisor::{CloudHypervisorDriver, CloudHypervisorSettings};
use stead_drivers::machine::qemu::{QemuDriver, QemuSettings};
use stead_model::machine::{MachineSpec, Nic};
use stead_model::site::address::Cidr;
use stead_runner::machine::{MachineDriver, MachineError};
use stead_testkit::machine_contract::Yard;

use super::qemu::{greeting, linux};
use super::yard::{Place, Runs, leave_out, node, start};

/// A bridge that goes with the test.
struct Bridge(String);

impl Bridge {
    fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("stt{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let made = Command::new("ip").args(["link", "add", "name", &name, "type", "bridge"]).output();
        if made.is_ok_and(|made| made.status.success()) {
            return Some(Self(name));
        }
        leave_out("no bridge can be made: this needs root and iproute2");
        None
    }

    /// Returns what is plugged into it.
    fn ports(&self) -> Vec<String> {
        let entries = std::fs::read_dir(Path::new("/sys/class/net").join(&self.0).join("brif")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        Command::new("ip").args(["link", "delete", "dev", &self.0]).output().ok();
    }
}

/// Section 9: what is sent to a machine on a bridge arrives there, at the address that its seed told it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_on_a_bridge_is_reached() {
    let Some(bridge) = Bridge::make() else { return };
    let place = Place::new(Runs::Qemu);
    let Some(spec) = linux(&place, "tapped", "") else { return };
    // Nobody else's, whoever tests beside this.
    let id = std::process::id();
    let network = format!("10.{}.{}", 228 + (id >> 8) % 24, id % 256);
    for words in [
        vec!["address", "add", &format!("{network}.1/29"), "dev", &bridge.0],
        vec!["link", "set", &bridge.0, "up"],
    ] {
        assert!(Command::new("ip").args(&words).status().unwrap().success(), "{words:?}");
    }
    let subnet = Some(Cidr::parse(&format!("{network}.0/29")).unwrap());
    let driver =
        QemuDriver::new(QemuSettings { bridge: Some(bridge.0.clone()), subnet, ..place.qemu_settings() });
    let machine = start(&driver, &spec).await;
    let ssh = machine.ssh.clone().unwrap();
    assert_eq!((ssh.host.as_str(), ssh.port), (format!("{network}.2").as_str(), 22));
    place.until_console(&spec.owner, "micro guest is up");
    assert_eq!(greeting(&ssh.host, ssh.port), "hello from the micro guest\n");
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(bridge.ports(), Vec::<String>::new());
    assert_eq!(place.left(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taps_come_and_go_with_the_machine() {
    let Some(bridge) = Bridge::make() else { return };
    for runs in [Runs::Qemu, Runs::CloudHypervisor] {
        let place = Place::new(runs);
        let subnet = Some(Cidr::parse("10.231.7.0/29").unwrap());
        let driver: Box<dyn MachineDriver> = match runs {
            Runs::Qemu => Box::new(QemuDriver::new(QemuSettings {
                bridge: Some(bridge.0.clone()),
                subnet,
                ..place.qemu_settings()
            })),
            Runs::CloudHypervisor | Runs::RealCloudHypervisor => {
                Box::new(CloudHypervisorDriver::new(CloudHypervisorSettings {
                    binary: place.path(runs.word()),
                    bridge: Some(bridge.0.clone()),
                    subnet,
                    ..CloudHypervisorSettings::new(place.root_dir(), place.program())
                }))
            }
        };
        let one = start(&*driver, &place.spec(node("one"))).await;
        let other = start(&*driver, &place.spec(node("other"))).await;
        assert_eq!(
            (&one.addresses[..], &other.addresses[..]),
            (&["10.231.7.2".into()][..], &["10.231.7.3".into()][..])
        );
        assert_eq!(one.ssh.map(|ssh| (ssh.host, ssh.port)), Some(("10.231.7.2".to_owned(), 22)));
        assert_eq!(bridge.ports().len(), 2, "{:?}", bridge.ports());
        driver.stop(&one.id, std::time::Duration::from_millis(10)).await.unwrap();
        assert_eq!(bridge.ports().len(), 1, "a stopped machine has no tap");
        for id in [&one.id, &other.id] {
            driver.destroy(id).await.unwrap();
        }
        assert_eq!(bridge.ports(), Vec::<String>::new());
        let network = "no-such-bridge".to_owned();
        let nic = Nic { network, mac: None, address: None, gateway: None, ports: Vec::new() };
        let spec = MachineSpec { nics: vec![nic], ..place.spec(node("lost")) };
        let made = driver.ensure_created(&spec).await.unwrap();
        let refused = driver.start(&made.machine.id).await;
        assert!(
            matches!(&refused, Err(MachineError::Invalid(why)) if why.contains("no-such-bridge")),
            "{refused:?}"
        );
        driver.destroy(&made.machine.id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new());
    }
}

/// Machines of one name that are kept at two places share the bridge: neither touches what the other has, nor takes its
/// address, and two with one hardware address are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_of_two_places_share_a_bridge() {
    let Some(bridge) = Bridge::make() else { return };
    let (here, there) = (Place::new(Runs::Qemu), Place::new(Runs::Qemu));
    let driver = |place: &Place| {
        QemuDriver::new(QemuSettings {
            bridge: Some(bridge.0.clone()),
            subnet: Some(Cidr::parse("10.231.8.0/29").unwrap()),
            ..place.qemu_settings()
        })
    };
    let (ours, theirs) = (driver(&here), driver(&there));
    let machine = start(&ours, &here.spec(node("one"))).await;
    let ports = bridge.ports();
    let index = || {
        let path = Path::new("/sys/class/net").join(&ports[0]).join("ifindex");
        std::fs::read_to_string(path).unwrap()
    };
    let before = index();

    let twin = theirs.ensure_created(&there.spec(node("one"))).await.unwrap().machine;
    let refused = theirs.start(&twin.id).await;
    assert!(
        matches!(&refused, Err(MachineError::Invalid(why)) if why.contains("hardware address")),
        "{refused:?}"
    );
    theirs.destroy(&twin.id).await.unwrap();
    let other = start(&theirs, &there.spec(node("other"))).await;
    assert_ne!(other.addresses, machine.addresses);
    let given = |address: &str| {
        let address = Some(address.to_owned());
        let nic = Nic { network: bridge.0.clone(), mac: None, address, gateway: None, ports: Vec::new() };
        MachineSpec { nics: vec![nic], ..there.spec(node("given")) }
    };
    let refused = theirs.ensure_created(&given(&format!("{}/29", machine.addresses[0]))).await;
    assert!(matches!(&refused, Err(MachineError::Invalid(why)) if why.contains(&ports[0])), "{refused:?}");
    theirs.destroy(&stead_model::machine::MachineId::new(node("given").uuid())).await.unwrap();
    theirs.destroy(&other.id).await.unwrap();

    assert_eq!(index(), before, "nobody else made it anew");
    assert_eq!(bridge.ports(), ports);
    ours.destroy(&machine.id).await.unwrap();
    assert_eq!(bridge.ports(), Vec::<String>::new());
    assert_eq!([here.left(), there.left()].concat(), Vec::<String>::new());
}
