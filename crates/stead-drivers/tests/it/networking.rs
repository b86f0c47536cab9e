//! The operation contract for the network: names, time, interfaces and routes. In a container, on an interface of its
//! own, and under a root prefix there.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use stead_testkit::container::inside;
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::system_cases::configuration::{at, chmod, is_running, put, remove, says, state, text};
use stead_testkit::tree::Depth;

use crate::configuration::passes;
use crate::contract::{BASE, sh};

pub(crate) const CASES: &[Case] = &[
    Case {
        operation: "dns.servers",
        name: "in resolv.conf",
        world: World::System(|root, depth| state(root, depth, &["/etc/resolv.conf"])),
        params: || json!({"servers": ["9.9.9.9", "fd00::1"], "search": ["a.example"]}),
        fresh: |root| {
            remove(root, "/etc/resolv.conf");
            put(root, "/etc/resolv.conf", "# c\nnameserver 1.1.1.1\noptions edns0\n");
        },
        half: |root| put(root, "/etc/resolv.conf", "# c\nnameserver 9.9.9.9\noptions edns0\n"),
        drifts: &[("servers", |root| {
            put(root, "/etc/resolv.conf", "# c\nnameserver 1.1.1.1\noptions edns0\nsearch a.example\n")
        })],
        kept: |root| {
            format!(
                "{} {}",
                text(root, "/etc/resolv.conf").starts_with("# c\n"),
                text(root, "/etc/resolv.conf").contains("options edns0\n")
            )
        },
        ..BASE
    },
    Case {
        operation: "dns.servers",
        name: "by systemd-resolved",
        world: World::System(|root, depth| {
            state(root, depth, &["/etc/resolv.conf", "/etc/systemd/resolved.conf.d"])
        }),
        params: || json!({"servers": ["9.9.9.9"], "interface": "eth0"}),
        fresh: |root| {
            remove(root, "/etc/resolv.conf");
            remove(root, "/etc/systemd/resolved.conf.d");
            std::fs::create_dir_all(at(root, "/etc")).unwrap();
            symlink("../run/systemd/resolve/stub-resolv.conf", at(root, "/etc/resolv.conf")).unwrap();
        },
        half: |root| put(root, "/etc/systemd/resolved.conf.d/60-stead.conf", "[Resolve]\nDNS=1.1.1.1\n"),
        ..BASE
    },
    Case {
        operation: "dns.servers",
        name: "by resolvconf",
        world: World::System(|root, depth| state(root, depth, &["/etc/resolvconf"])),
        params: || json!({"servers": ["9.9.9.9"], "search": []}),
        fresh: |root| {
            remove(root, "/etc/resolv.conf");
            put(root, "/etc/resolv.conf", "");
            put(root, "/etc/resolvconf/resolv.conf.d/head", "# c\nsearch old\nnameserver 1.1.1.1\n");
            stand_in(root, "resolvconf");
        },
        half: |root| put(root, "/etc/resolvconf/resolv.conf.d/head", "# c\nnameserver 1.1.1.1\n"),
        drifts: &[("servers", |root| put(root, "/etc/resolvconf/resolv.conf.d/head", "# c\n"))],
        kept: |root| text(root, "/etc/resolvconf/resolv.conf.d/head").starts_with("# c\n").to_string(),
        ..BASE
    },
    Case {
        operation: "ntp",
        name: "by systemd-timesyncd",
        world: World::System(|root, depth| state(root, depth, &["/etc/systemd/timesyncd.conf.d"])),
        params: || json!({"pools": ["pool.example"]}),
        fresh: |root| {
            remove(root, "/usr/sbin/chronyd");
            put(root, "/usr/lib/systemd/systemd-timesyncd", "");
            remove(root, "/etc/systemd/timesyncd.conf.d");
        },
        half: |root| put(root, "/etc/systemd/timesyncd.conf.d/60-stead.conf", "[Time]\n"),
        ..BASE
    },
    Case {
        operation: "ntp",
        name: "by chrony",
        world: World::System(|root, depth| state(root, depth, &["/etc/chrony"])),
        params: || json!({"servers": ["10.0.0.1"], "pools": ["pool.example"]}),
        fresh: |root| {
            put(root, "/usr/sbin/chronyd", "");
            remove(root, "/etc/chrony");
            put(root, "/etc/chrony/chrony.conf", "# c\npool x iburst");
        },
        half: |root| put(root, "/etc/chrony/conf.d/stead.conf", "server 10.0.0.1 iburst\n"),
        drifts: &[
            ("servers", |root| put(root, "/etc/chrony/conf.d/stead.conf", "")),
            ("directory", |root| put(root, "/etc/chrony/chrony.conf", "# c\npool x iburst")),
        ],
        kept: |root| text(root, "/etc/chrony/chrony.conf").starts_with("# c\npool x iburst").to_string(),
        ..BASE
    },
    Case {
        operation: "network.interface",
        name: "by ifupdown",
        world: World::System(network),
        params: || json!({"name": "stead0", "addresses": ["10.9.0.7/24", "10.9.1.7/24"], "gateway4": "10.9.0.1", "mtu": 1400}),
        fresh: wire,
        half: |root| {
            put(
                root,
                "/etc/network/interfaces.d/stead-stead0",
                "auto stead0\niface stead0 inet static\n    address 10.9.2.7/24\n",
            );
            says(root, "ip link set stead0 up; ip address add 10.9.2.7/24 dev stead0");
        },
        drifts: &[
            ("file", |root| remove(root, "/etc/network/interfaces.d/stead-stead0")),
            ("address or file", |root| {
                if is_running(root) {
                    sh(root, "ip address delete 10.9.1.7/24 dev stead0");
                } else {
                    put(root, "/etc/network/interfaces.d/stead-stead0", "");
                }
            }),
            ("mtu or file", |root| {
                if is_running(root) {
                    sh(root, "ip link set stead0 mtu 1500");
                } else {
                    put(root, "/etc/network/interfaces.d/stead-stead0", "");
                }
            }),
            ("route or source line", |root| {
                if is_running(root) {
                    sh(root, "ip route delete default dev stead0");
                } else {
                    put(root, "/etc/network/interfaces", "# c\n");
                }
            }),
        ],
        kept: |root| text(root, "/etc/network/interfaces").starts_with("# c\n").to_string(),
        ..BASE
    },
    Case {
        operation: "network.interface",
        name: "by netplan",
        world: World::System(network),
        params: || json!({"name": "stead0", "addresses": ["10.9.0.7/24"], "dns": ["1.1.1.1"]}),
        fresh: |root| {
            wire(root);
            stand_in(root, "netplan");
            put(root, "/etc/netplan/01-other.yaml", "network: {version: 2}\n");
        },
        half: |root| {
            let old = "network:\n  version: 2\n  ethernets:\n    \"stead0\":\n      addresses:\n        - \"10.9.2.7/24\"\n";
            put(root, "/etc/netplan/90-stead-stead0.yaml", old);
            says(root, "ip link set stead0 up; ip address add 10.9.2.7/24 dev stead0");
        },
        drifts: &[
            ("mode", |root| chmod(root, "/etc/netplan/90-stead-stead0.yaml", 0o644)),
            ("address or file", |root| {
                if is_running(root) {
                    sh(root, "ip address delete 10.9.0.7/24 dev stead0");
                } else {
                    remove(root, "/etc/netplan/90-stead-stead0.yaml");
                }
            }),
        ],
        kept: |root| text(root, "/etc/netplan/01-other.yaml"),
        ..BASE
    },
    Case {
        operation: "network.interface",
        name: "given up",
        world: World::System(network),
        params: || json!({"name": "stead0", "state": "absent"}),
        fresh: |root| {
            wire(root);
            put(
                root,
                "/etc/network/interfaces.d/stead-stead0",
                "auto stead0\niface stead0 inet static\n    address 10.9.2.7/24\n",
            );
            says(
                root,
                "ip link set stead0 up; ip address add 10.9.2.7/24 dev stead0; ip address add 10.9.3.7/24 dev stead0",
            );
        },
        ..BASE
    },
    Case {
        operation: "network.route",
        name: "by ifupdown",
        world: World::System(network),
        params: || json!({"to": "10.8.0.0/16", "via": "10.9.0.1", "interface": "stead0", "metric": 5}),
        fresh: |root| {
            wire(root);
            says(root, "ip link set stead0 up; ip address add 10.9.0.7/24 dev stead0");
        },
        half: |root| {
            says(root, "ip route add 10.8.0.0/16 via 10.9.0.2 dev stead0 metric 5");
            put(root, "/etc/network/interfaces", "# c\nsource /etc/network/interfaces.d/*\n");
        },
        drifts: &[("route or file", |root| {
            if is_running(root) {
                sh(root, "ip route delete 10.8.0.0/16");
            } else {
                remove(root, "/etc/network/interfaces.d");
            }
        })],
        ..BASE
    },
];

fn network(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut found = state(root, depth, &["/etc/network", "/etc/netplan"]);
    let link = says(
        root,
        "ip -4 -o address show dev stead0 | sort -k4; ip -o link show dev stead0 | grep -o -e 'mtu [0-9]*' -e ',UP'; ip -4 route",
    );
    found.insert("running".to_owned(), link);
    found
}

/// A program that needs more than a container has: it is found, and does nothing.
fn stand_in(root: &Path, name: &str) {
    let path = format!("/usr/local/sbin/{name}");
    put(root, &path, "#!/bin/sh\n");
    chmod(root, &path, 0o755);
}

/// A wire with one end here, and a machine that keeps its network by ifupdown.
fn wire(root: &Path) {
    says(root, "ip link delete stead0; ip link add stead0 type veth peer name stead1; ip link set stead1 up");
    remove(root, "/etc/netplan");
    remove(root, "/etc/network");
    put(root, "/etc/network/interfaces", "# c\n");
}

/// Case 17 of reach.
#[test]
fn the_network_keeps_the_contract() {
    inside(|| passes(CASES));
}
