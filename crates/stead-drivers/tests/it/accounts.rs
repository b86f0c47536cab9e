//! Users and groups, with the real programs, inside a container and under a root prefix.

use std::path::Path;

use serde_json::json;
use stead_model::ErrorClass;
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::flow::{params_of, run as carry_out};
use stead_testkit::system_cases::accounts::{CASES, HASH, accounts, edit, fresh};
use stead_testkit::system_cases::configuration::ANN;
use stead_testkit::tree::Depth;

use crate::contract::{passes, sh, write};
use crate::state::{check, operation, run};

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
        let error = check(&cx, "ssh.authorized_key", json!({"user": "kim", "keys": [ANN]})).unwrap_err();
        assert!(error.not_known, "{}", error.message);
        let error = check(&cx, "file.present", json!({"path": "/srv/f", "owner": "kim"})).unwrap_err();
        assert!(error.not_known, "{}", error.message);
        assert!(!check(&cx, "user.absent", json!({"name": "bob"})).unwrap().is_empty());
        let error = check(&cx, "file.present", json!({"path": "/srv/f", "owner": "bob"})).unwrap_err();
        assert!(error.message.contains("no user `bob`"), "{}", error.message);
        let error = check(&cx, "ssh.authorized_key", json!({"user": "bob", "keys": [ANN]})).unwrap_err();
        assert!(error.message.contains("no user `bob`") && !error.not_known, "{}", error.message);
    });
}

/// A dry run: the home of a user it would make is the user's, with the mode that the system gives.
#[test]
fn a_dry_run_sees_the_home_it_would_make() {
    inside(|| {
        for (definition, mode) in [("", "0755"), ("HOME_MODE 0700\n", "0700"), ("HOME_MODE\t0750\n", "0750")]
        {
            fresh(Path::new("/"));
            let definitions = std::fs::read_to_string("/etc/login.defs").unwrap();
            write("/etc/login.defs", &format!("{definitions}{definition}"));
            let user = json!({"name": "zoe", "uid": 1600, "group": "web"});
            let home = json!({"path": "/home/zoe", "owner": "zoe", "group": "web", "mode": mode});
            let dry = context(Path::new("/"));
            assert!(!check(&dry, "user.present", user.clone()).unwrap().is_empty());
            let predicted = check(&dry, "file.directory", home.clone()).unwrap();
            assert!(predicted.is_empty(), "{mode}: {}", predicted.to_json());
            let keys = json!({"user": "zoe", "keys": [ANN]});
            let predicted = check(&dry, "ssh.authorized_key", keys.clone()).unwrap();
            let cx = context(Path::new("/"));
            assert!(run(&cx, "user.present", user).unwrap().changed);
            assert!(!run(&cx, "file.directory", home).unwrap().changed, "{mode}: as predicted");
            let ran = run(&cx, "ssh.authorized_key", keys).unwrap();
            assert_eq!(ran.diff.to_json(), predicted.to_json(), "{mode}");
        }
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
