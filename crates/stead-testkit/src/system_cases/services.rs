//! Services and units: a stand-in for `systemctl` answers for what runs; what is enabled is the real program's, on files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::{sh, write};
use crate::file_cases::BASE;
use crate::operation_contract::{Case, World};
use crate::stand_in;
use crate::tree::{Depth, snapshot};

/// Makes units, by what they do.
///
/// # Panics
/// If they cannot be written.
pub fn fresh(root: &Path) {
    let units = root.join("etc/systemd/system");
    if units.exists() {
        std::fs::remove_dir_all(&units).unwrap();
    }
    std::fs::create_dir_all(&units).unwrap();
    let unit = |name: &str, does: &str, install: &str| {
        let text = format!("# stand-in: {does}\n[Service]\nExecStart=/bin/true\n{install}");
        write(units.join(name), &text);
    };
    let install = "[Install]\nWantedBy=multi-user.target\n";
    unit("web.service", "reloads", install);
    unit("database.service", "slow", install);
    unit("broken.service", "dies", install);
    unit("stuck.service", "stuck", install);
    unit("deaf.service", "reloads hangs", install);
    unit("static.service", "plain", "");
    std::os::unix::fs::symlink("/dev/null", units.join("masked.service")).unwrap();
    if root == Path::new("/") {
        stand_in::systemd();
        sh(root, "rm -f run/stand-in/*.active run/stand-in/*.log");
    }
}

/// The unit files with their links, and on the whole machine what runs.
fn services(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut state = snapshot(&root.join("etc/systemd/system"), depth);
    if root == Path::new("/") {
        for entry in std::fs::read_dir("/run/stand-in").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let word = std::fs::read_to_string(entry.path()).unwrap();
            // One that does not run is the same whether it ever did or not.
            if name.ends_with(".active") && word.trim() != "inactive" {
                state.insert(name, word);
            }
        }
    }
    state
}

/// Has the stand-in say that a unit is in this state.
///
/// # Panics
/// If there is no stand-in.
pub fn set(unit: &str, word: &str) {
    write(format!("/run/stand-in/{unit}.active"), &format!("{word}\n"));
}

fn enable(root: &Path, verb: &str, unit: &str) {
    sh(root, &format!("/usr/bin/systemctl -q --root=$PWD {verb} {unit}"));
}

const SYSTEM: Case = Case { world: World::System(services), fresh, ..BASE };

/// The cases of `service.*`, then those of `systemd.unit`.
pub const CASES: &[Case] = &[
    Case {
        operation: "service.started",
        name: "two, one of them slow",
        params: || json!({"names": ["web", "database.service"]}),
        half: |_| set("web.service", "active"),
        drifts: &[
            ("stopped", |_| set("web.service", "inactive")),
            ("failed", |_| set("database.service", "failed")),
        ],
        ..SYSTEM
    },
    Case {
        operation: "service.stopped",
        name: "two, one of them unknown",
        params: || json!({"names": ["web", "nobody-knows"]}),
        fresh: |root| {
            fresh(root);
            set("web.service", "active");
        },
        half: |_| set("database.service", "active"),
        drifts: &[("started", |_| set("web.service", "active"))],
        ..SYSTEM
    },
    Case {
        operation: "service.enabled",
        name: "two",
        params: || json!({"names": ["web", "database"]}),
        half: |root| enable(root, "enable", "database.service"),
        drifts: &[("disabled", |root| enable(root, "disable", "web.service"))],
        ..SYSTEM
    },
    Case {
        operation: "service.disabled",
        name: "two, one of them unknown",
        params: || json!({"names": ["web", "nobody-knows"]}),
        fresh: |root| {
            fresh(root);
            enable(root, "enable", "web.service");
        },
        half: |root| enable(root, "enable", "database.service"),
        drifts: &[("enabled", |root| enable(root, "enable", "web.service"))],
        ..SYSTEM
    },
    Case {
        operation: "systemd.unit",
        name: "a unit, enabled and running",
        params: || {
            json!({"name": "new", "content": "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
                "enabled": true, "active": true})
        },
        half: |root| {
            write(root.join("etc/systemd/system/new.service"), "[Service]\nExecStart=/bin/false\n");
        },
        drifts: &[
            ("content", |root| {
                let text = "[Service]\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n";
                write(root.join("etc/systemd/system/new.service"), text);
            }),
            ("enabled", |root| enable(root, "disable", "new.service")),
        ],
        ..SYSTEM
    },
    Case {
        operation: "systemd.unit",
        name: "a drop-in",
        params: || json!({"name": "web.service", "drop_in": "nice", "content": "[Service]\nNice=5\n", "enabled": true}),
        half: |root| {
            std::fs::create_dir(root.join("etc/systemd/system/web.service.d")).unwrap();
            write(root.join("etc/systemd/system/web.service.d/nice.conf"), "[Service]\nNice=4\n");
        },
        drifts: &[("existence", |root| {
            std::fs::remove_dir_all(root.join("etc/systemd/system/web.service.d")).unwrap();
        })],
        kept: |root| std::fs::read_to_string(root.join("etc/systemd/system/web.service")).unwrap(),
        ..SYSTEM
    },
    Case {
        operation: "systemd.unit",
        name: "absent",
        params: || json!({"name": "web", "state": "absent"}),
        fresh: |root| {
            fresh(root);
            enable(root, "enable", "web.service");
        },
        half: |root| enable(root, "disable", "web.service"),
        ..SYSTEM
    },
];
