//! Users and groups, by the real programs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::{sh, write};
use crate::file_cases::BASE;
use crate::operation_contract::{Case, World};
use crate::tree::{Depth, snapshot};

/// A password, hashed.
pub const HASH: &str = "$6$salt$hash";

/// Makes the same few accounts, on whichever system.
///
/// # Panics
/// If they cannot be written.
pub fn fresh(root: &Path) {
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::create_dir_all(root.join("home")).unwrap();
    for name in ["zoe", "bob"] {
        let home = root.join("home").join(name);
        if home.exists() {
            std::fs::remove_dir_all(home).unwrap();
        }
    }
    write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         bob:x:1500:1500:Bob:/home/bob:/bin/bash\n",
    );
    write(
        root.join("etc/group"),
        "root:x:0:\ndaemon:x:1:\nadm:x:4:bob\nweb:x:1400:bob,daemon\nspare:x:1401:\nbob:x:1500:\n",
    );
    write(
        root.join("etc/shadow"),
        "root:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\nbob:$6$old$hash:19000:1:300:14:30:21000:\n",
    );
    write(
        root.join("etc/gshadow"),
        "root:*::\ndaemon:*::\nadm:*::bob\nweb:!::bob,daemon\nspare:!::\nbob:!::\n",
    );
    write(root.join("etc/subuid"), "bob:200000:65536\n");
    write(root.join("etc/subgid"), "bob:300000:65536\n");
    write(root.join("etc/login.defs"), "USERGROUPS_ENAB yes\nUID_MIN 1000\nGID_MIN 1000\nUMASK 022\n");
    std::fs::create_dir_all(root.join("home/bob/notes")).unwrap();
    write(root.join("home/bob/notes/plan"), "mine\n");
    sh(root, "chown -R 1500:1500 home/bob; chmod 0700 home/bob/notes");
}

const FILES: [&str; 6] = ["passwd", "group", "shadow", "gshadow", "subuid", "subgid"];

/// Returns every account line by file and name, and the homes. The day of the last password change is left out: it is
/// today's.
///
/// # Panics
/// If they cannot be read.
pub fn accounts(root: &Path, depth: Depth) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for file in FILES {
        for line in std::fs::read_to_string(root.join("etc").join(file)).unwrap_or_default().lines() {
            let mut fields: Vec<&str> = line.split(':').collect();
            // A password that was just written has today's day; an older day stays or comes back.
            if file == "shadow" && fields.get(2).is_some_and(|day| is_recent(day)) {
                fields[2] = "today";
            }
            let key = format!("{file}:{}", fields[0]);
            let mut members: Vec<&str> = fields.pop().unwrap_or_default().split(',').collect();
            if file.ends_with("group") || file == "gshadow" {
                // Their order means nothing.
                members.sort_unstable();
            }
            state.insert(key, format!("{}:{}", fields.join(":"), members.join(",")));
        }
    }
    // Their lines are compared above; here that nobody wrote them.
    for file in FILES.iter().filter(|_| depth == Depth::Everything) {
        let path = root.join("etc").join(file);
        if path.exists() {
            state.extend(snapshot(&path, depth).into_values().map(|line| ((*file).to_owned(), line)));
        }
    }
    for name in ["zoe", "bob"] {
        if root.join("home").join(name).exists() {
            state.extend(snapshot(&root.join("home").join(name), depth));
        }
    }
    state
}

/// Whether a day, counted from 1970, is today's; a test may begin before midnight.
fn is_recent(day: &str) -> bool {
    let today = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 60 * 60);
    day.parse().is_ok_and(|day: u64| day + 1 >= today)
}

/// Changes a text in an account file.
///
/// # Panics
/// If it is not in it.
pub fn edit(root: &Path, file: &str, from: &str, to: &str) {
    let path = root.join("etc").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from}: {text}");
    write(path, &text.replace(from, to));
}

fn add(root: &Path, file: &str, line: &str) {
    let path = root.join("etc").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    write(path, &format!("{text}{line}\n"));
}

const SYSTEM: Case = Case { world: World::System(accounts), fresh, ..BASE };

/// The cases of `user.*` and `group.*`.
pub const CASES: &[Case] = &[
    Case {
        operation: "user.present",
        name: "every field",
        params: || {
            json!({"name": "zoe", "uid": 1600, "group": "web", "groups": ["adm"], "home": "/home/zoe",
                "shell": "/bin/sh", "comment": "Zoe Z", "password_hash": HASH, "locked": true})
        },
        half: |root| {
            add(root, "passwd", "zoe:x:1600:1401:Zoe:/srv/zoe:/bin/bash");
            add(root, "shadow", "zoe:$6$a$b:19000:0:99999:7:::");
            edit(root, "group", "spare:x:1401:", "spare:x:1401:zoe");
            edit(root, "gshadow", "spare:!::", "spare:!::zoe");
        },
        drifts: &[
            ("group", |root| edit(root, "passwd", "zoe:x:1600:1400", "zoe:x:1600:1401")),
            ("groups", |root| {
                edit(root, "group", "adm:x:4:bob,zoe", "adm:x:4:bob");
                edit(root, "gshadow", "adm:*::bob,zoe", "adm:*::bob");
            }),
            ("home", |root| edit(root, "passwd", ":/home/zoe:", ":/srv/zoe:")),
            ("shell", |root| edit(root, "passwd", "/home/zoe:/bin/sh", "/home/zoe:/bin/false")),
            ("comment", |root| edit(root, "passwd", "Zoe Z", "Hand")),
            ("password_hash", |root| edit(root, "shadow", HASH, "$6$hand$made")),
            ("locked", |root| edit(root, "shadow", "zoe:!", "zoe:")),
        ],
        kept: |root| std::fs::read_to_string(root.join("etc/shadow")).unwrap().lines().take(3).collect(),
        ..SYSTEM
    },
    Case {
        operation: "user.present",
        name: "a new one by its name alone",
        params: || json!({"name": "zoe"}),
        half: |root| add(root, "group", "other:x:1402:"),
        ..SYSTEM
    },
    Case {
        operation: "user.present",
        name: "one field keeps the others",
        params: || json!({"name": "bob", "shell": "/bin/sh", "groups": ["spare"], "create_home": false}),
        half: |root| edit(root, "passwd", "/home/bob:/bin/bash", "/home/bob:/bin/sh"),
        kept: |root| {
            let mut state = accounts(root, Depth::State);
            let line = state.remove("passwd:bob").unwrap();
            let group = state.remove("group:spare").map(|_| state.remove("gshadow:spare"));
            format!("{} {} {state:?}", line.rsplit_once(':').unwrap().0, group.is_some())
        },
        ..SYSTEM
    },
    Case {
        operation: "user.present",
        name: "these groups and no others, another uid by force",
        params: || json!({"name": "bob", "groups": ["spare", "adm"], "exclusive_groups": true, "uid": 1501, "force": true}),
        half: |root| {
            edit(root, "group", "web:x:1400:bob,daemon", "web:x:1400:daemon");
            edit(root, "gshadow", "web:!::bob,daemon", "web:!::daemon");
        },
        drifts: &[("groups", |root| {
            edit(root, "group", "web:x:1400:daemon", "web:x:1400:daemon,bob");
            edit(root, "gshadow", "web:!::daemon", "web:!::daemon,bob");
        })],
        ..SYSTEM
    },
    Case {
        operation: "user.absent",
        name: "with its home",
        params: || json!({"name": "bob", "remove_home": true}),
        half: |root| std::fs::remove_dir_all(root.join("home/bob")).unwrap(),
        drifts: &[("existence", |root| add(root, "passwd", "bob:x:1500:1500:Bob:/home/bob:/bin/bash"))],
        kept: |root| std::fs::read_to_string(root.join("etc/passwd")).unwrap().lines().take(2).collect(),
        ..SYSTEM
    },
    Case {
        operation: "user.restored",
        name: "with aging, subordinate ids and a group of its own",
        params: || {
            json!({"name": "zoe", "uid": 1600, "gid": 1600, "own_group": true, "groups": ["web"], "comment": "Zoe",
                "home": "/home/zoe", "shell": "/bin/sh", "password": "!$6$a$b",
                "aging": ["19001", "2", "200", "9", "", "21000"], "subuids": ["400000-465535"], "subgids": [],
                "entries": {".": {"kind": "directory", "mode": "0750", "uid": 1600, "gid": 1600},
                    "f": {"kind": "file", "mode": "0600", "uid": 1600, "gid": 1600, "text": "t"}}})
        },
        half: |root| add(root, "group", "other:x:1402:"),
        drifts: &[
            ("aging", |root| edit(root, "shadow", ":2:200:9:", ":2:201:9:")),
            ("password", |root| edit(root, "shadow", "zoe:!$6$a$b", "zoe:$6$a$b")),
            ("home", |root| write(root.join("home/zoe/f"), "hand")),
        ],
        ..SYSTEM
    },
    Case {
        operation: "group.present",
        name: "with an id",
        params: || json!({"name": "spare", "gid": 1450, "system": true}),
        fresh: |root| {
            fresh(root);
            edit(root, "group", "spare:x:1401:\n", "");
            edit(root, "gshadow", "spare:!::\n", "");
        },
        half: |root| {
            add(root, "group", "spare:x:1401:bob");
            add(root, "gshadow", "spare:!::bob");
        },
        drifts: &[
            ("gid", |root| edit(root, "group", "spare:x:1450", "spare:x:1460")),
            ("existence", |root| {
                edit(root, "group", "spare:x:1450:\n", "");
                edit(root, "gshadow", "spare:!::\n", "");
            }),
        ],
        kept: |root| std::fs::read_to_string(root.join("etc/group")).unwrap().lines().take(5).collect(),
        ..SYSTEM
    },
    Case {
        operation: "group.absent",
        name: "with members",
        params: || json!({"name": "web"}),
        half: |root| add(root, "group", "other:x:1402:"),
        drifts: &[("existence", |root| add(root, "group", "web:x:1400:"))],
        kept: |root| std::fs::read_to_string(root.join("etc/passwd")).unwrap(),
        ..SYSTEM
    },
    Case {
        operation: "group.restored",
        name: "with members",
        params: || json!({"name": "spare", "gid": 1450, "members": ["bob", "daemon"]}),
        half: |root| {
            edit(root, "group", "spare:x:1401:", "spare:x:1401:bob");
            edit(root, "gshadow", "spare:!::", "spare:!::bob");
        },
        drifts: &[("members", |root| {
            edit(root, "group", "spare:x:1450:bob,daemon", "spare:x:1450:daemon");
            edit(root, "gshadow", "spare:!::bob,daemon", "spare:!::daemon");
        })],
        ..SYSTEM
    },
];
