//! What holds where a file is silent: every default the contract names.

use serde_json::json;

use super::super::host::{DriverKind, Timeouts};
use super::*;

/// Sections 2 and 9: an empty `site.yaml` says all of this.
#[test]
fn a_silent_site_has_the_promised_settings() {
    for text in ["", "{}", "server: {}\ndefaults: {}\n", "server: {limits: {}}\n"] {
        let read = site(&[(FileKind::Site, "site", text)]);
        assert_eq!(problems(&read), "", "{text}");
        let settings = &read.settings.value;
        let week = std::time::Duration::from_secs(7 * 24 * 3600);
        assert_eq!(settings.server.token_ttl, week, "{text}");
        assert_eq!(settings.defaults.posture(), key("dev"), "{text}");
        assert_eq!(
            settings.to_json(),
            json!({
                "name": "site",
                "server": {
                    "port": 44443, "bind": "0.0.0.0", "public_specs": false, "repos": {}, "accept_v1": true,
                    "token_ttl": crate::duration::to_exact(week),
                    "limits": {"header_seconds": 5, "header_bytes": 16384, "body_seconds": 30, "body_bytes": 1048576,
                        "connections": 20000, "auth_failures_per_minute": 60, "anonymous_per_second": 100,
                        "token_per_second": 0},
                },
                "defaults": {"dns_servers": [], "timezone": "UTC", "vm_user": "stead", "packages": [], "bridge": "vmbr0",
                    "image_release": "latest", "pve_remove_subscription_nag": true},
            }),
            "{text}"
        );
    }
}

/// Section 2: a host that says nothing waits as long and works on as many nodes as promised.
#[test]
fn a_silent_host_has_the_promised_bounds() {
    let hosts = site(&[
        (FileKind::Host, "plain", "{}"),
        (FileKind::Host, "sandbox", "driver: sandbox\n"),
        (FileKind::Host, "oci", "driver: oci\n"),
        (FileKind::Host, "api", "api_endpoint: 'https://h:8006'\ndatastore: d\n"),
        (FileKind::Host, "some", "driver: sandbox\ntimeouts: {ssh: 7}\n"),
    ])
    .hosts;
    let usual = Timeouts { create: 300, address: 300, ssh: 120, config: 600, delegate: 1800, destroy: 300 };
    for (name, driver, parallel) in [
        ("plain", DriverKind::None, 8),
        ("sandbox", DriverKind::Sandbox, 64),
        ("oci", DriverKind::Oci, 8),
        ("api", DriverKind::Proxmox, 8),
    ] {
        let host = &hosts[name].value;
        assert_eq!((host.driver(), host.parallel(), host.timeouts()), (driver, parallel, usual), "{name}");
        assert_eq!(host.access.ssh_port(), 22, "{name}");
    }
    assert_eq!(hosts["some"].value.timeouts(), Timeouts { ssh: 7, ..usual }, "the others stay as they are");
}

/// Sections 2 and 3: what manifests and postures mean that say nothing.
#[test]
fn silent_manifests_and_postures_have_the_promised_settings() {
    for settings in ["", "settings: {}\n"] {
        let read =
            manifest(&format!("schema_version: 2\nname: m\n{settings}nodes: [{{name: a, type: vm}}]\n"));
        let written = read.value.to_json();
        assert_eq!(written["execution"], json!({"default_mode": "push"}));
        assert_eq!(
            written["settings"],
            json!({"verify_ssh": true, "cleanup_on_failure": true, "timeout_buffer": 60, "on_error": "stop",
                "parallel": 0, "delegation": "ssh"})
        );
    }
    let posture = site(&[(FileKind::Posture, "p", "{}")]).postures["p"].value.clone();
    assert_eq!(
        serde_json::to_value(&posture.security).unwrap(),
        json!({"fail2ban": {"enabled": false}, "sudo": {"nopasswd": false},
            "ssh": {"port": 22, "permit_root_login": "prohibit-password", "password_authentication": "no"}})
    );
    assert!(posture.packages.is_empty());
}
