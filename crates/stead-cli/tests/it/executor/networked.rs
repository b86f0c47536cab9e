//! Changes of the network behind SSH, in a container: they stay because the driver still reaches the machine, and
//! undo themselves when it does not come back.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use stead_testkit::container::inside;
use stead_testkit::sshd::Sshd;

use super::direct::Place;
use super::over_ssh::{Driver, Site};
use super::protocol::{Wire, end, op};

const FILE: &str = "/etc/network/interfaces.d/stead-stead0";

/// Does what the real one does, and ends the driver first if it is to and an address is added.
const IP: &str = r#"#!/bin/sh
case "$*" in
    *address*replace*) [ -e /run/driver ] && kill -KILL "$(cat /run/driver)" ;;
esac
exec /srv/ip "$@"
"#;

/// Gives the machine an interface of its own; only inside a container.
fn interface() {
    let script =
        "rm -rf /etc/netplan /etc/network; mkdir /etc/network; echo '# mine' >/etc/network/interfaces
        ip link add stead0 type veth peer name stead1; ip link set stead1 up
        real=$(readlink -f \"$(command -v ip)\"); cp \"$real\" /srv/ip; rm \"$real\"
        printf '%s' \"$1\" >\"$real\"; chmod 755 \"$real\"";
    assert!(Command::new("/bin/sh").args(["-ec", script, "sh", IP]).status().unwrap().success());
}

/// Returns the machine with an interface of its own, behind SSH.
fn machine() -> Site {
    interface();
    let site = Site::with(Sshd::start());
    site.plan(
        "  - {name: net, op: network.interface, params: {name: stead0, addresses: [10.9.0.7/24], confirm: 4s}}\n",
    );
    site
}

fn has_address() -> bool {
    let said = Command::new("ip").args(["-4", "-o", "address", "show", "dev", "stead0"]).output().unwrap();
    String::from_utf8_lossy(&said.stdout).contains(" 10.9.0.7/24 ")
}

fn watches() -> usize {
    fs::read_dir("/run/stead/network").map_or(0, |entries| entries.count())
}

/// Section 8: the driver has reached the machine again, so the change stays after the time to confirm it.
#[test]
fn an_address_stays_when_the_driver_reaches_the_machine() {
    inside(|| {
        let site = machine();
        let (code, report) = site.run(&[]);
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(report["tasks"][0]["status"], "changed", "{report:#}");
        Place::until("nobody watches any more", || watches() == 0);
        assert!(has_address() && Path::new(FILE).exists(), "{report:#}");
        let (code, report) = site.run(&[]);
        assert_eq!((code, report["tasks"][0]["status"].as_str()), (0, Some("unchanged")), "{report:#}");
    });
}

/// Section 8: a driver that is lost with the change does not confirm it.
#[test]
fn an_address_goes_again_when_the_driver_does_not_come_back() {
    inside(|| {
        let site = machine();
        // It has to be there before the driver can be ended.
        let (code, report) = site.run(&["--dry-run"]);
        assert_eq!(code, 0, "{report:#}");
        let mut command = site.command(&["plan", "run", "p.yaml", "--run-id", "lost"]);
        let mut driver = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        fs::write("/run/driver", driver.0.id().to_string()).unwrap();
        assert!(!driver.0.wait().unwrap().success(), "it was killed");
        fs::remove_file("/run/driver").unwrap();
        Place::until("the change is made, and watched", || watches() == 1);
        Place::until("the change is undone", || watches() == 0);
        assert!(!has_address() && !Path::new(FILE).exists());
        assert_eq!(fs::read_to_string("/etc/network/interfaces").unwrap(), "# mine\n");
        // Taken up again, it is made and stays.
        let (code, report) = site.report(&["resume", "lost", "--json"]);
        assert_eq!(code, 0, "{report:#}");
        Place::until("nobody watches any more", || watches() == 0);
        assert!(has_address() && Path::new(FILE).exists(), "{report:#}");
    });
}

/// Section 8: what a driver says of an earlier result it may have said before the change, so that confirms nothing.
#[test]
fn only_who_has_heard_of_the_change_confirms_it() {
    inside(|| {
        interface();
        let base = tempfile::tempdir().unwrap();
        let mut wire = Wire::attach(base.path(), "r1");
        wire.hello("r1", &[1], true);
        let address = |confirm: &str| {
            let params = json!({"name": "stead0", "addresses": ["10.9.0.7/24"], "confirm": confirm});
            op("network.interface", params)
        };
        wire.say(3, &op("command.shell", json!({"script": "true"})));
        wire.until_answer(3);
        wire.say(4, &address("3s"));
        wire.until_answer(4);
        wire.say(0, &json!({"m": "ack", "id": 3}));
        Place::until("the change is undone", || watches() == 0);
        assert!(!has_address() && !Path::new(FILE).exists());
        wire.say(0, &json!({"m": "ack", "id": 4}));

        wire.say(5, &address("60s"));
        wire.until_answer(5);
        wire.say(0, &json!({"m": "ack", "id": 5}));
        Place::until("nobody watches any more", || watches() == 0);
        assert!(has_address() && Path::new(FILE).exists());
        end(wire, base.path());
    });
}
