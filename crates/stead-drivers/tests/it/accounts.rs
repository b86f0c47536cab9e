//! Users and groups, with the real programs, inside a container and under a root prefix.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use stead_model::ErrorClass;
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::flow::{params_of, run as carry_out};
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::tree::{Depth, snapshot};

use crate::contract::{BASE, passes, sh, write};
use crate::state::{check, operation, run};

const HASH: &str = "$6$salt$hash";

/// The same few accounts, on whichever system.
fn fresh(root: &Path) {
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

/// Every account line by file and name, and the homes. The day of the last password change is left out: it is today's.
fn accounts(root: &Path, depth: Depth) -> BTreeMap<String, String> {
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

fn edit(root: &Path, file: &str, from: &str, to: &str) {
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

pub(crate) const CASES: &[Case] = &[
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

/// Case 17.
#[test]
fn users_and_groups_keep_the_contract() {
    inside(|| passes(CASES));
}

/// Rules of the catalogue: what is refused, and that it says what to do.
#[test]
fn what_would_harm_accounts_is_refused() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        for (name, values, says) in [
            ("user.present", json!({"name": "bob", "uid": 1501}), "`force: true`"),
            ("user.present", json!({"name": "zoe", "uid": 1}), "uid 1 belongs to `daemon`"),
            ("user.present", json!({"name": "zoe", "groups": ["nope"]}), "no group `nope`"),
            ("user.present", json!({"name": "zoe", "group": 7}), "no group with gid 7"),
            ("user.present", json!({"name": "a:b"}), "not a name"),
            ("user.present", json!({"name": "zoe", "comment": "a:b"}), "`comment`"),
            ("user.present", json!({"name": "zoe", "locked": false}), "`password_hash`"),
            ("user.present", json!({"name": "zoe", "password_hash": "hunter2"}), "crypt(3)"),
            ("user.present", json!({"name": "bob", "exclusive_groups": true}), "needs `groups`"),
            ("user.absent", json!({"name": "root"}), "uid 0"),
            ("user.absent", json!({"name": "daemon", "remove_home": true}), "belongs to uid 0"),
            ("group.absent", json!({"name": "bob"}), "primary group of user `bob`"),
            ("group.present", json!({"name": "spare", "gid": 4}), "gid 4 belongs to `adm`"),
        ] {
            let before = accounts(Path::new("/"), Depth::State);
            let predicted = check(&cx, name, values.clone()).unwrap_err();
            let error = run(&cx, name, values).unwrap_err();
            assert!(error.message.contains(says), "{says}: {}", error.message);
            assert!(!error.message.contains("hunter2"));
            assert_eq!(predicted.message, error.message, "the dry run says the same");
            assert_eq!(accounts(Path::new("/"), Depth::State), before);
        }
        let mut child = std::process::Command::new("setpriv")
            .args(["--reuid", "1500", "--regid", "1500", "--clear-groups", "sleep", "60"])
            .spawn()
            .unwrap();
        let busy = loop {
            // The child has another uid only once setpriv has set it.
            match check(&context(Path::new("/")), "user.absent", json!({"name": "bob"})) {
                Err(error) => break error,
                Ok(_) => std::thread::yield_now(),
            }
        };
        assert_eq!(busy.class, ErrorClass::Permanent);
        assert!(busy.message.contains(&child.id().to_string()), "{}", busy.message);
        assert!(run(&cx, "user.absent", json!({"name": "bob", "force": true})).unwrap().changed);
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

/// `password_hash` is in no argument list: the programs started are recorded by a stand-in in front of them.
#[test]
fn a_password_hash_is_in_no_argument_list() {
    inside(|| {
        fresh(Path::new("/"));
        for name in ["useradd", "usermod", "chpasswd"] {
            let path = format!("/usr/local/sbin/{name}");
            write(
                &path,
                &format!("#!/bin/sh\necho {name} \"$@\" >>/tmp/argv\nexec /usr/sbin/{name} \"$@\"\n"),
            );
            sh(Path::new("/"), &format!("chmod +x {path}"));
        }
        let cx = context(Path::new("/"));
        let values = json!({"name": "zoe", "password_hash": HASH});
        let ran = run(&cx, "user.present", values.clone()).unwrap();
        let argv = std::fs::read_to_string("/tmp/argv").unwrap();
        assert!(argv.contains("useradd") && argv.contains("chpasswd") && !argv.contains(HASH), "{argv}");
        assert!(!ran.diff.to_json().to_string().contains(HASH));
        assert!(std::fs::read_to_string("/etc/shadow").unwrap().contains(&format!("zoe:{HASH}:")));
        assert!(!run(&cx, "user.present", values).unwrap().changed);
    });
}

/// Section 7: a busy account database is waited for.
#[test]
fn a_held_account_lock_is_waited_for() {
    inside(|| {
        fresh(Path::new("/"));
        // A live process holds it, as another `useradd` would.
        let mut holder = std::process::Command::new("/bin/sh")
            .args(["-c", "echo $$ >/etc/passwd.lock; sleep 1; rm /etc/passwd.lock"])
            .spawn()
            .unwrap();
        while !Path::new("/etc/passwd.lock").exists() {
            std::thread::yield_now();
        }
        let ran = run(&context(Path::new("/")), "user.present", json!({"name": "zoe"})).unwrap();
        assert!(ran.changed);
        holder.wait().unwrap();
    });
}

/// A dry run: a user made by one task is there for the next, and its id is not known yet.
#[test]
fn a_dry_run_sees_the_users_it_would_make() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        assert!(!check(&cx, "group.present", json!({"name": "ops", "gid": 1700})).unwrap().is_empty());
        let zoe = json!({"name": "zoe", "uid": 1600, "groups": ["ops"]});
        assert!(!check(&cx, "user.present", zoe).unwrap().is_empty());
        assert!(check(&cx, "group.present", json!({"name": "zoe"})).unwrap().is_empty(), "its own group");
        assert!(
            check(&cx, "file.present", json!({"path": "/home/zoe/f", "owner": "zoe", "group": "ops"}))
                .is_ok()
        );
        assert!(!check(&cx, "user.present", json!({"name": "kim"})).unwrap().is_empty());
        let error = check(&cx, "file.present", json!({"path": "/srv/f", "owner": "kim"})).unwrap_err();
        assert!(error.not_known, "{}", error.message);
        assert!(!check(&cx, "user.absent", json!({"name": "bob"})).unwrap().is_empty());
        let error = check(&cx, "file.present", json!({"path": "/srv/f", "owner": "bob"})).unwrap_err();
        assert!(error.message.contains("no user `bob`"), "{}", error.message);
    });
}

/// The inverse of `user.absent` brings the aging back as it was, day of the last change included.
#[test]
fn a_removed_user_comes_back_with_its_aging() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let shadow = || {
            let text = std::fs::read_to_string("/etc/shadow").unwrap();
            text.lines().find(|line| line.starts_with("bob:")).map(str::to_owned)
        };
        let before = shadow();
        let values = params(json!({"name": "bob"}));
        let absent = operation("user.absent");
        let ran = carry_out(absent.as_ref(), &cx, &values).unwrap();
        assert_eq!(shadow(), None);
        let inverse = absent.inverse(&values, &ran.before).unwrap();
        carry_out(operation(inverse.operation.as_str()).as_ref(), &cx, &params_of(&inverse)).unwrap();
        assert_eq!(shadow(), before);
    });
}

/// Case 25: what changed a password is taken back whole, the day on which it was changed last included.
#[test]
fn a_password_that_is_taken_back_was_changed_when_it_was() {
    inside(|| {
        let shadow = || {
            let text = std::fs::read_to_string("/etc/shadow").unwrap();
            text.lines().find(|line| line.starts_with("bob:")).map(str::to_owned)
        };
        for change in [
            json!({"name": "bob", "password_hash": HASH}),
            json!({"name": "bob", "locked": true, "shell": "/bin/false"}),
            json!({"name": "bob", "password_hash": HASH, "uid": 1555, "force": true, "groups": ["spare"]}),
        ] {
            fresh(Path::new("/"));
            edit(Path::new("/"), "shadow", &shadow().unwrap(), "bob:$6$old$hash:19001:2:200:9::21000:");
            let state = || accounts(Path::new("/"), Depth::State);
            let (cx, before) = (context(Path::new("/")), (shadow(), state()));
            let values = params(change.clone());
            let present = operation("user.present");
            let ran = carry_out(present.as_ref(), &cx, &values).unwrap();
            assert_ne!(shadow(), before.0, "{change}");
            let inverse = present.inverse(&values, &ran.before).unwrap();
            carry_out(operation(inverse.operation.as_str()).as_ref(), &cx, &params_of(&inverse)).unwrap();
            assert_eq!((shadow(), state()), before, "{change}");
        }
    });
}
