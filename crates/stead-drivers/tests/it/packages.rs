//! Packages: apt against a repository of our own, inside a container; the other managers by recorded transcripts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use stead_model::ErrorClass;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::system_cases::packages::{CASES, REPOSITORY, fresh, packages, repository};
use stead_testkit::tree::{Depth, snapshot};

use crate::contract::{in_tmp, passes, sh, write};
use crate::state::{act, check, run};

/// Case 17.
#[test]
fn installing_keeps_the_contract() {
    inside(|| passes(&CASES[..2]));
}

/// Case 17.
#[test]
fn removing_packages_keeps_the_contract() {
    inside(|| passes(&CASES[2..]));
}

fn version(name: &str) -> Option<String> {
    packages(Path::new("/"), Depth::State)
        .get(name)
        .and_then(|row| row.strip_prefix("installed "))
        .map(str::to_owned)
}

/// Case 21: present, pinned, latest, `changed` exact in each, and a local file is a name.
#[test]
fn apt_installs_pins_and_upgrades_exactly() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        let cx = context(root);
        let changed = |name: &str, values: Value| run(&cx, name, values).unwrap().changed;
        assert!(changed("package.present", json!({"names": ["st-app=1.0"]})));
        assert_eq!(
            (version("st-app").as_deref(), version("st-extra")),
            (Some("1.0"), None),
            "recommends: false"
        );
        assert!(!changed("package.present", json!({"names": ["st-app"]})), "any version will do");
        assert!(!changed("package.present", json!({"names": ["st-app=1.0"]})));
        assert!(changed("package.latest", json!({"names": ["st-app"]})));
        assert_eq!(version("st-app").as_deref(), Some("2.0"));
        assert!(!changed("package.latest", json!({"names": ["st-app"]})));
        assert!(changed("package.present", json!({"names": ["st-app=1.0"]})), "a pin goes back too");
        assert!(changed("package.absent", json!({"names": ["st-app"]})));
        assert!(!changed("package.absent", json!({"names": ["st-app"]})));
        assert!(Path::new("/etc/st-app.conf").exists(), "purge: false");
        assert!(
            changed("package.absent", json!({"names": ["st-app"], "purge": true})),
            "its configuration goes"
        );
        assert!(!changed("package.absent", json!({"names": ["st-app"], "purge": true})));
        assert!(changed("package.present", json!({"names": ["st-app"], "recommends": true})));
        assert!(version("st-extra").is_some());
        let file = format!("{REPOSITORY}/st-app_1.0_all.deb");
        assert!(changed("package.present", json!({"names": [file]})), "another version of it is installed");
        assert!(!changed("package.present", json!({"names": [file]})));
        assert_eq!(version("st-app").as_deref(), Some("1.0"));
    });
}

/// Case 21: what would remove others is refused and names them; an unknown package or version is named.
#[test]
fn apt_refuses_by_name() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        let cx = context(root);
        run(&cx, "package.present", json!({"names": ["st-app"]})).unwrap();
        let (before, there) = (packages(root, Depth::State), in_tmp());
        for (name, values, says) in [
            ("package.absent", json!({"names": ["st-lib"]}), "would also remove st-app; `cascade: true`"),
            ("package.present", json!({"names": ["st-foe"]}), "would remove st-app"),
            ("package.present", json!({"names": ["st-none"]}), "no package `st-none`"),
            ("package.present", json!({"names": ["st-none"], "refresh": "never"}), "no package `st-none`"),
            ("package.latest", json!({"names": ["st-none", "st-app"]}), "no package `st-none`"),
            ("package.present", json!({"names": ["st-lib=7"]}), "no version 7 of `st-lib`, only 1.1, 1.0"),
            ("package.present", json!({"names": ["/srv/none.deb"]}), "no package file `/srv/none.deb`"),
            ("package.present", json!({"names": ["/etc/passwd"]}), "dpkg-deb"),
            ("package.present", json!({"names": ["--purge"]}), "`--purge` is not a package"),
            ("package.latest", json!({"names": ["st-app=1.0"]}), "pinned"),
            ("package.present", json!({"names": ["st-app", "st-app=1.0"]}), "named twice"),
        ] {
            let predicted = check(&cx, name, values.clone()).unwrap_err();
            let error = run(&cx, name, values).unwrap_err();
            assert!(error.message.contains(says), "{says}: {}", error.message);
            assert_eq!(predicted.message, error.message, "the dry run says the same");
            assert!(matches!(error.class, ErrorClass::Permanent | ErrorClass::Invalid), "{:?}", error.class);
            assert_eq!(packages(root, Depth::State), before);
        }
        assert_eq!(in_tmp(), there);
    });
}

/// Case 21: `refresh`, and a dry run that needs a newer index writes nothing.
#[test]
fn apt_refreshes_its_index_when_it_has_to() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        let cx = context(root);
        let lists = || snapshot(Path::new("/var/lib/apt/lists"), Depth::Everything);
        assert!(!act(&cx, "package.refresh", json!({})).unwrap().changed, "same bytes");
        repository().add("st-new", "1.0", &["Depends: st-lib"], &[]);
        repository().add("st-lib", "1.2", &[], &[]);
        repository().publish();
        let before = lists();
        let error =
            check(&cx, "package.present", json!({"names": ["st-new"], "refresh": "never"})).unwrap_err();
        assert!(error.message.contains("no package `st-new`"), "{}", error.message);
        let predicted = check(&context(root), "package.present", json!({"names": ["st-new"]})).unwrap();
        assert_eq!(predicted.to_json()["after"], json!({"st-new": "1.0", "st-lib": "1.2"}));
        assert!(
            check(&context(root), "package.latest", json!({"names": ["st-lib"], "refresh": "always"}))
                .is_ok()
        );
        assert_eq!(lists(), before, "a dry run fetched to the side");
        let ran = run(&cx, "package.present", json!({"names": ["st-new"]})).unwrap();
        assert_eq!(ran.diff.to_json(), predicted.to_json());
        assert_ne!(lists(), before);
        repository().add("st-lib", "1.3", &[], &[]);
        repository().publish();
        assert!(
            !run(&cx, "package.latest", json!({"names": ["st-lib"]})).unwrap().changed,
            "the index is old"
        );
        assert!(
            run(&cx, "package.latest", json!({"names": ["st-lib"], "refresh": "always"})).unwrap().changed
        );
        assert_eq!(version("st-lib").as_deref(), Some("1.3"));
        repository().add("st-lib", "1.4", &[], &[]);
        repository().publish();
        let young = act(&cx, "package.refresh", json!({"max_age": "1h"})).unwrap();
        assert!(!young.changed && young.reason.is_some());
        assert!(act(&cx, "package.refresh", json!({"max_age": "0s"})).unwrap().changed);
    });
}

/// Case 21: a held lock is waited for.
#[test]
fn a_held_dpkg_lock_is_waited_for() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        let lock = std::fs::File::create("/var/lib/dpkg/lock-frontend").unwrap();
        rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let free = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1500));
                free.store(true, Ordering::SeqCst);
                drop(lock);
            });
            assert!(run(&context(root), "package.present", json!({"names": ["st-lib"]})).unwrap().changed);
            assert!(free.load(Ordering::SeqCst), "it went on only when the lock was free");
        });
        assert!(version("st-lib").is_some());
    });
}

/// A configuration file that somebody changed is kept over an upgrade.
#[test]
fn a_changed_configuration_file_is_kept() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        let cx = context(root);
        run(&cx, "package.present", json!({"names": ["st-app=1.0"]})).unwrap();
        write("/etc/st-app.conf", "mine\n");
        run(&cx, "package.latest", json!({"names": ["st-app"]})).unwrap();
        assert_eq!(std::fs::read_to_string("/etc/st-app.conf").unwrap(), "mine\n");
    });
}

/// Section 8: after a kill midway a re-run converges. dpkg keeps what it had begun in `updates`.
#[test]
fn an_interrupted_dpkg_is_finished_first() {
    inside(|| {
        let root = Path::new("/");
        fresh(root);
        run(&context(root), "package.present", json!({"names": ["st-lib=1.0"]})).unwrap();
        sh(root, "sed -i 's/^Status: install ok installed/Status: install ok unpacked/' var/lib/dpkg/status");
        sh(root, "cp var/lib/dpkg/status var/lib/dpkg/updates/0001");
        assert!(version("st-lib").is_none());
        assert!(run(&context(root), "package.present", json!({"names": ["st-lib"]})).unwrap().changed);
        assert!(version("st-lib").is_some());
        assert_eq!(std::fs::read_dir("/var/lib/dpkg/updates").unwrap().count(), 0);
    });
}
