//! Network changes on a real interface: undone by themselves unless confirmed, and what the real programs make of
//! the files.

use std::path::Path;

use serde_json::{Value, json};
use stead_model::{ErrorClass, RunId};
use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::system_cases::configuration::put;
use stead_testkit::tree::{Depth, snapshot};

use crate::configured::{has, said, wait_until};
use crate::contract::sh;
use crate::state::{check, run};

const FILE: &str = "/etc/network/interfaces.d/stead-stead0";
const WATCHES: &str = "/run/stead/network";

fn wire() {
    let root = Path::new("/");
    sh(
        root,
        "rm -rf /etc/netplan /etc/network; ip link add stead0 type veth peer name stead1; ip link set stead1 up",
    );
    put(root, "/etc/network/interfaces", "# mine\n");
}

fn address(text: &str, confirm: &str) -> Value {
    json!({"name": "stead0", "addresses": [text], "confirm": confirm})
}

fn has_address(text: &str) -> bool {
    said("ip -4 -o address show dev stead0").contains(&format!(" {text} "))
}

fn watches() -> usize {
    std::fs::read_dir(WATCHES).map_or(0, |entries| entries.count())
}

/// Section 8 of reach: a change that nobody confirms is undone: files, made directories and the running interface.
#[test]
fn an_unconfirmed_change_undoes_itself() {
    inside(|| {
        wire();
        stead_drivers::leave_network_changes_to_driver();
        let etc = || snapshot(Path::new("/etc/network"), Depth::State);
        let before = etc();
        let cx = context(Path::new("/"));
        let ran = run(&cx, "network.interface", address("10.9.0.7/24", "2s")).unwrap();
        assert!(ran.applied.notes.iter().any(|note| note.contains("unless the driver")), "{:?}", ran.applied);
        assert!(has_address("10.9.0.7/24") && Path::new(FILE).exists() && watches() == 1);
        wait_until("the change is undone", || watches() == 0);
        assert!(!has_address("10.9.0.7/24"));
        assert_eq!(etc(), before);
        assert!(said("ip -o link show dev stead0").contains("state DOWN"), "it was down before");
        assert!(!check(&cx, "network.interface", address("10.9.0.7/24", "2s")).unwrap().is_empty());
    });
}

/// Section 8 of reach: a change that the driver confirms stays; another run's confirmation is not taken for it.
#[test]
fn a_confirmed_change_stays() {
    inside(|| {
        wire();
        stead_drivers::leave_network_changes_to_driver();
        let cx = context(Path::new("/"));
        run(&cx, "network.interface", address("10.9.0.7/24", "3s")).unwrap();
        assert_eq!(stead_drivers::confirm_network_changes(&RunId::parse("another").unwrap()).unwrap(), 0);
        assert_eq!(stead_drivers::confirm_network_changes(cx.run_id.as_ref().unwrap()).unwrap(), 1);
        wait_until("the watch ends", || watches() == 0);
        assert!(has_address("10.9.0.7/24") && Path::new(FILE).exists());
        assert!(!run(&cx, "network.interface", address("10.9.0.7/24", "3s")).unwrap().changed);
        // The address it gave before goes with the file that said so; a foreign one stays.
        sh(Path::new("/"), "ip address add 10.9.9.9/24 dev stead0");
        run(&cx, "network.interface", address("10.9.0.8/24", "60s")).unwrap();
        assert!(has_address("10.9.0.8/24") && has_address("10.9.9.9/24") && !has_address("10.9.0.7/24"));
        assert_eq!(stead_drivers::confirm_network_changes(cx.run_id.as_ref().unwrap()).unwrap(), 1);
        wait_until("the watch ends", || watches() == 0);
    });
}

/// A default route outlives the address it is reached by, whether that is replaced or put back.
#[test]
fn the_default_route_outlives_its_address() {
    inside(|| {
        wire();
        let cx = context(Path::new("/"));
        let with_prefix = |text: &str, confirm: &str| json!({"name": "stead0", "addresses": [text], "gateway4": "10.9.0.1", "confirm": confirm});
        let has_route = || said("ip route").contains("default via 10.9.0.1 dev stead0");
        run(&cx, "network.interface", with_prefix("10.9.0.7/24", "60s")).unwrap();
        wait_until("the watch ends", || watches() == 0);
        run(&cx, "network.interface", with_prefix("10.9.0.7/25", "60s")).unwrap();
        assert!(has_address("10.9.0.7/25") && !has_address("10.9.0.7/24") && has_route());
        wait_until("the watch ends", || watches() == 0);
        assert!(!run(&cx, "network.interface", with_prefix("10.9.0.7/25", "60s")).unwrap().changed);

        stead_drivers::leave_network_changes_to_driver();
        // Long enough for a slow machine to make the change whole before it is undone.
        assert!(run(&cx, "network.interface", with_prefix("10.9.0.8/26", "10s")).unwrap().changed);
        wait_until("the change is undone", || watches() == 0);
        assert!(
            has_address("10.9.0.7/25") && !has_address("10.9.0.8/26") && has_route(),
            "{}",
            said("ip route")
        );
    });
}

/// On this machine the operation confirms by itself, once everything holds; a change that fails midway is undone at once.
#[test]
fn a_change_on_this_machine_is_confirmed_or_undone_at_once() {
    inside(|| {
        wire();
        let cx = context(Path::new("/"));
        let before = snapshot(Path::new("/etc/network"), Depth::State);
        // No network of the interface has this gateway: the kernel refuses the last step.
        let bad =
            json!({"name": "stead0", "addresses": ["10.9.0.7/24"], "gateway4": "10.77.0.1", "mtu": 1400});
        let error = run(&cx, "network.interface", bad).unwrap_err();
        assert!(error.message.contains("route"), "{error}");
        assert!(!has_address("10.9.0.7/24"));
        assert_eq!(snapshot(Path::new("/etc/network"), Depth::State), before);
        assert!(said("ip -o link show dev stead0").contains("mtu 1500"));
        assert_eq!(watches(), 0);

        run(&cx, "network.interface", address("10.9.0.7/24", "1s")).unwrap();
        wait_until("the watch ends", || watches() == 0);
        assert!(has_address("10.9.0.7/24"), "confirmed");
        let error = run(&cx, "network.interface", json!({"name": "stead9", "mtu": 1400})).unwrap_err();
        assert!(error.message.contains("stead9") && error.message.contains("stead0"), "{error}");
    });
}

/// Section 8 of reach: removing the default route in use is refused, by route and by interface.
#[test]
fn the_default_route_in_use_is_not_removed() {
    inside(|| {
        wire();
        let cx = context(Path::new("/"));
        let with_gateway = json!({"name": "stead0", "addresses": ["10.9.0.7/24"], "gateway4": "10.9.0.1"});
        run(&cx, "network.interface", with_gateway).unwrap();
        let refused = [
            ("network.route", json!({"to": "default", "via": "10.9.0.1", "state": "absent"})),
            ("network.interface", json!({"name": "stead0", "state": "absent"})),
            ("network.interface", address("10.9.0.7/24", "60s")),
        ];
        for (operation, values) in refused {
            let error = run(&cx, operation, values.clone()).unwrap_err();
            assert!(error.message.contains("default route in use"), "{operation} {values}: {error}");
            assert_eq!(error.class, ErrorClass::Permanent);
        }
        assert!(said("ip route").contains("default via 10.9.0.1") && has_address("10.9.0.7/24"));
        // With a better one it is not the one in use.
        sh(Path::new("/"), "ip route replace default via 10.9.0.1 dev stead0 metric 50; ip route delete default via 10.9.0.1 dev stead0 metric 0
            ip address add 10.9.5.7/24 dev stead0; ip route add default via 10.9.5.1 dev stead0 metric 5");
        let worse = json!({"to": "default", "via": "10.9.0.1", "interface": "stead0", "metric": 50, "state": "absent"});
        assert!(run(&cx, "network.route", worse).unwrap().changed);
        assert!(
            said("ip route").contains("default via 10.9.5.1")
                && !said("ip route").contains("default via 10.9.0.1")
        );
        wait_until("the watch ends", || watches() == 0);
    });
}

/// An interface that somebody else's file configures is left to it.
#[test]
fn a_foreign_stanza_is_not_doubled() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    put(&root, "/etc/network/interfaces", "auto eth0\niface eth0 inet dhcp\n");
    let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
    let error = run(&cx, "network.interface", json!({"name": "eth0", "mtu": 1400})).unwrap_err();
    assert!(error.message.contains("iface eth0"), "{error}");
    assert!(run(&cx, "network.interface", json!({"name": "eth1", "mtu": 1400})).unwrap().changed);
    let cx = OpContext { root: Some(dir.path().to_owned()), ..context(dir.path()) };
    let error = run(&cx, "network.interface", json!({"name": "eth1", "mtu": 1400})).unwrap_err();
    assert!(error.unsupported && error.message.contains("netplan"), "{error}");
}

/// The real programs read what is written: `netplan generate` and `ifquery`.
#[test]
fn the_network_files_are_understood() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let interface = json!({"name": "eth0", "dhcp4": false, "dhcp6": true, "addresses": ["10.0.0.7/24", "10.0.1.7/24", "fd00::7/64"],
        "gateway4": "10.0.0.1", "gateway6": "fd00::1", "dns": ["1.1.1.1", "fd00::53"], "mtu": 1400, "mac": "52:54:00:aa:00:01"});
    let routes = [
        json!({"to": "10.8.0.0/16", "via": "10.0.0.2", "interface": "eth0", "metric": 7}),
        json!({"to": "fd08::/48", "via": "fd00::2", "interface": "eth0"}),
    ];
    if has("netplan") {
        put(&root, "/etc/netplan/01-other.yaml", "network: {version: 2}\n");
        let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
        run(&cx, "network.interface", interface.clone()).unwrap();
        for route in &routes {
            run(&cx, "network.route", route.clone()).unwrap();
        }
        run(
            &cx,
            "dns.servers",
            json!({"servers": ["9.9.9.9"], "search": ["a.example"], "interface": "eth0"}),
        )
        .unwrap();
        sh(&root, "chmod 600 etc/netplan/*; netplan generate --root-dir .");
        let made = std::fs::read_to_string(root.join("run/systemd/network/10-netplan-eth0.network")).unwrap();
        for line in [
            "Address=10.0.0.7/24",
            "Address=fd00::7/64",
            "DHCP=ipv6",
            "Gateway=10.0.0.1",
            "Gateway=fd00::1",
            "DNS=1.1.1.1",
            "DNS=9.9.9.9",
            "Domains=a.example",
            "MACAddress=52:54:00:aa:00:01",
            "Destination=10.8.0.0/16",
            "Metric=7",
            "Destination=fd08::/48",
        ] {
            assert!(made.lines().any(|found| found == line), "{line} is not in\n{made}");
        }
    }
    if has("ifquery") {
        let root = dir.path().join("other");
        put(&root, "/etc/network/interfaces", "");
        let cx = OpContext { root: Some(root.clone()), ..context(dir.path()) };
        run(&cx, "network.interface", interface).unwrap();
        for route in routes {
            run(&cx, "network.route", route).unwrap();
        }
        let main = std::fs::read_to_string(root.join("etc/network/interfaces")).unwrap();
        assert_eq!(main, "source /etc/network/interfaces.d/*\n");
        sh(&root, "cat etc/network/interfaces.d/* > all; ifquery --interfaces all eth0 > said");
        let told = std::fs::read_to_string(root.join("said")).unwrap();
        for line in [
            "address: 10.0.0.7",
            "address: 10.0.1.7",
            "address: fd00::7",
            "gateway: 10.0.0.1",
            "mtu: 1400",
            "up: ip -4 route replace 10.8.0.0/16 via 10.0.0.2 dev eth0 metric 7",
        ] {
            assert!(told.lines().any(|found| found == line), "{line} is not in\n{told}");
        }
    }
}
