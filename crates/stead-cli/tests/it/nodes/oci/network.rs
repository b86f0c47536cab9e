//! What of a container's network and SSH port a spec may change, with real interfaces and daemons.

use super::*;

/// The file of its network that a spec is in.
const FILE: &str = "/etc/network/interfaces.d/stead-eth0";

impl Harbour {
    /// Runs a line of shell on `edge` as root and returns what it printed.
    #[track_caller]
    fn sh(&self, line: &str) -> String {
        self.on("edge", &["sudo", "-n", "sh", "-c", line])
    }

    /// How many changes of its network `edge` may still undo.
    fn watches(&self) -> usize {
        self.sh("ls /run/stead/network 2>/dev/null | wc -l").parse().unwrap()
    }

    /// Waits until its network is for good what it is. One that nobody confirms is put back after a minute.
    #[track_caller]
    fn settle(&self) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
        while self.watches() > 0 {
            assert!(std::time::Instant::now() < end, "its network is watched for ever");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
}

/// Section 2: a change of the network stays only if somebody reached the node through it: the driver of a node that is pushed to,
/// the server of one that pulls, and on the node whoever says so.
#[test]
fn a_change_of_the_network_stays_once_the_node_is_reached() {
    if is_skipped("runc") {
        return;
    }
    let harbour = Harbour::new("runc", &["name: edge, spec: base"], "");
    harbour.make(&[]);
    // Whatever keeps the network of this machine, the container's is kept by ifupdown.
    harbour.sh(
        "rm -rf /etc/netplan /etc/network; mkdir -p /etc/network; echo '# mine' >/etc/network/interfaces",
    );
    let address = harbour.sh("ip -4 -o address show dev eth0 | awk '{print $4}'");
    let gateway = harbour.sh("ip route show default | awk '{print $3}'");
    let (ip, prefix) = address.split_once('/').unwrap();
    let network = |prefix: &str| {
        let text = format!("{SPEC}network: {{ip: {ip}/{prefix}, gateway: {gateway}}}\n");
        write(&harbour.lab, "specs/base.yaml", &text);
    };
    network(prefix);
    harbour.make(&[]);
    harbour.settle();
    assert!(harbour.sh(&format!("cat {FILE}")).contains(&address), "the driver has reached it");

    harbour.sh(&format!("rm {FILE}"));
    let apply = "/var/lib/stead/bin/*/stead config apply --mode push --events - --spec - </var/lib/stead/config/spec.yaml";
    let said = harbour.sh(apply);
    let applied: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let run = applied["unconfirmed"].as_str().unwrap_or_else(|| panic!("{applied}"));
    let confirm =
        |run: &str| harbour.sh(&format!("/var/lib/stead/bin/*/stead config confirm {run} 2>&1; echo $?"));
    let refused = confirm("another");
    assert!(!refused.ends_with('0'), "{refused}");
    assert_eq!(harbour.sh("ls /run/stead/network/*/pending | wc -l"), "1", "it is not for good yet");
    assert_eq!(confirm(run), "0");
    harbour.settle();
    assert!(harbour.sh(&format!("cat {FILE}")).contains(&address), "it was confirmed");

    network("25");
    harbour.make(&["--mode", "pull"]);
    harbour.settle();
    assert!(
        harbour.sh(&format!("cat {FILE}")).contains(&format!("{ip}/25")),
        "the agent has reached its server"
    );
    harbour.clear();
}

/// Section 5: a posture's SSH port is where the node is reached from then on.
#[test]
fn a_changed_ssh_port_goes_to_state() {
    if is_skipped("runc") {
        return;
    }
    let harbour = Harbour::new("runc", &["name: edge, spec: base"], "");
    harbour.make(&[]);
    assert_eq!(harbour.state()["nodes"]["edge"]["ssh_port"], 22);
    for (mode, port) in [("push", 2222), ("hybrid", 2022)] {
        let posture = LOCAL.replacen("ssh: {", &format!("ssh: {{port: {port}, "), 1);
        write(&harbour.lab, "postures/local.yaml", &posture);
        let made = harbour.make(&["--mode", mode]);
        assert_eq!(made["nodes"][0]["changed"], true, "{made}");
        assert_eq!(harbour.state()["nodes"]["edge"]["ssh_port"], port, "{mode}");
        assert_eq!(harbour.on("edge", &["hostname"]), "edge", "{mode}");
        let again = harbour.make(&["--mode", mode]);
        assert_eq!(again["nodes"][0]["changed"], false, "{again}");
    }
    harbour.clear();
}

/// Section 2: `gateway` and `dns_servers` of the site are for fixed addresses.
#[test]
fn a_fixed_address_has_its_gateway_and_name_servers() {
    if is_skipped("runc") {
        return;
    }
    let harbour = Harbour::new("runc", &["name: edge"], "");
    let host = harbour.lab.read("site-config/hosts/box.yaml");
    let subnet = host.lines().find_map(|line| line.strip_prefix("subnet: ")).unwrap();
    let network = subnet.split_once('/').unwrap().0.rsplit_once('.').unwrap().0;
    let site = SITE.replacen(
        "defaults: {",
        &format!("defaults: {{gateway: {network}.254, dns_servers: [9.9.9.9, 1.1.1.1], "),
        1,
    );
    assert_ne!(site, SITE);
    write(&harbour.lab, "site.yaml", &site);
    harbour.nodes(&[&format!("name: edge, ip: {network}.50/24")], "");
    harbour.make(&[]);
    assert_eq!(harbour.state()["nodes"]["edge"]["ip"], format!("{network}.50"));
    let route = harbour.on("edge", &["ip", "route", "show", "default"]);
    assert!(route.starts_with(&format!("default via {network}.254 ")), "{route}");
    let servers = harbour.on("edge", &["cat", "/etc/resolv.conf"]);
    assert_eq!(servers, "nameserver 9.9.9.9\nnameserver 1.1.1.1");
    harbour.clear();
}
