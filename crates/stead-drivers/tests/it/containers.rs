//! `container.*` and `reboot`, inside a container, with stand-ins: no engine runs in a test, and nothing restarts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::operation::RootSupport;
use stead_model::{Effect, ErrorClass};
use stead_runner::operation::{Entry, OpContext};
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::stand_in;
use stead_testkit::tree::{Depth, snapshot};

use crate::contract::{BASE, passes, sh, write};
use crate::state::{act, check, run};

fn fresh(root: &Path) {
    stand_in::engine("podman");
    sh(root, "podman pull -- web:1; podman pull -- web:2; podman pull -- broken");
    sh(root, "podman create --name other --restart no -- web:1");
}

/// The containers, as the engine keeps them.
fn containers(_: &Path, depth: Depth) -> BTreeMap<String, String> {
    snapshot(Path::new("/run/engine/containers"), depth)
}

fn make(arguments: &str) {
    sh(Path::new("/"), &format!("printf 'A=1\\n' | podman create {arguments}"));
}

const SYSTEM: Case = Case { world: World::System(containers), fresh, ..BASE };

pub(crate) const CASES: &[Case] = &[
    Case {
        operation: "container.present",
        name: "every field",
        params: || {
            json!({"name": "app", "image": "web:2", "command": ["serve", "--x"], "env": {"A": "1", "B": "two words"},
                "ports": ["8080:80", "127.0.0.1:53:53/udp"], "volumes": ["/srv:/data:ro", "cache:/cache"],
                "restart": "on-failure:3", "labels": {"team": "web"}})
        },
        half: |_| {
            make(
                "--name app --restart always --label dev.stead=true --label team=db --env-file /dev/stdin -- web:1 old",
            );
        },
        drifts: &[
            ("running", |root| sh(root, "podman stop app")),
            ("existence", |root| sh(root, "podman rm --force app")),
        ],
        kept: |_| std::fs::read_to_string("/run/engine/containers/other").unwrap(),
        ..SYSTEM
    },
    Case {
        operation: "container.present",
        name: "one field, the others taken over",
        params: || json!({"name": "app", "image": "web:2"}),
        fresh: |root| {
            fresh(root);
            make(
                "--name app --restart always --label dev.stead=true --label team=db --env-file /dev/stdin --publish 1:2/tcp --volume /srv:/data -- web:1 old",
            );
            sh(root, "podman start app");
        },
        half: |root| sh(root, "podman stop app"),
        kept: |_| {
            let text = std::fs::read_to_string("/run/engine/containers/app").unwrap();
            text.split_once(",\"Cmd\"").unwrap().1.to_owned()
        },
        ..SYSTEM
    },
    Case {
        operation: "container.absent",
        name: "one of ours",
        params: || json!({"name": "app"}),
        fresh: |root| {
            fresh(root);
            make("--name app --restart no --label dev.stead=true --publish 1:2/tcp -- web:1 old");
        },
        half: |root| sh(root, "podman start app"),
        drifts: &[("existence", |_| make("--name app --restart no --label dev.stead=true -- web:1"))],
        kept: |_| std::fs::read_to_string("/run/engine/containers/other").unwrap(),
        ..SYSTEM
    },
];

/// Case 17, with a stand-in for podman.
#[test]
fn containers_keep_the_contract() {
    inside(|| passes(CASES));
}

/// What is refused, and that a failed replacement leaves the old container as it was.
#[test]
fn containers_of_others_are_not_touched_and_failures_are_undone() {
    inside(|| {
        let root = Path::new("/");
        let cx = context(root);
        // A real engine, should the machine have one, is hidden behind the stand-in.
        fresh(root);
        let before = containers(root, Depth::State);
        for (name, values, says) in [
            ("container.present", json!({"name": "other", "image": "web:1"}), "`adopt: true`"),
            ("container.absent", json!({"name": "other"}), "`adopt: true`"),
            ("container.present", json!({"name": "n", "image": "missing:1"}), "pull access denied"),
            ("container.present", json!({"name": "n", "image": "web:9", "pull": "never"}), "`pull: never`"),
            ("container.present", json!({"name": "--rm", "image": "web:1"}), "not the name"),
            ("container.present", json!({"name": "n", "image": "web:1", "ports": ["80"]}), "[ADDRESS:]"),
            ("container.present", json!({"name": "n", "image": "web:1", "restart": "x"}), "unless-stopped"),
            ("container.present", json!({"name": "n", "image": "web:1", "env": {"A": "1\n2"}}), "line end"),
        ] {
            let error = run(&cx, name, values).unwrap_err();
            assert!(error.message.contains(says), "{says}: {}", error.message);
            assert_eq!(containers(root, Depth::State), before, "{says}");
        }
        let adopted = json!({"name": "other", "image": "web:1", "adopt": true});
        assert!(run(&cx, "container.present", adopted).unwrap().changed);
        assert!(!run(&cx, "container.present", json!({"name": "other", "image": "web:1"})).unwrap().changed);
        let before = containers(root, Depth::State);
        let error = run(&cx, "container.present", json!({"name": "other", "image": "broken"})).unwrap_err();
        assert!(error.message.contains("ended at once"), "{}", error.message);
        assert_eq!(containers(root, Depth::State), before, "the old one is back, and runs");
        sh(root, "podman pull -- web:1");
        let moved = run(&cx, "container.present", json!({"name": "other", "image": "web:1"})).unwrap();
        assert_eq!(moved.diff.fields[0].name, "image_id", "the name means a newer image now");
    });
}

/// Values of `env` are in no argument list and no diff.
#[test]
fn variables_of_a_container_are_not_shown() {
    inside(|| {
        fresh(Path::new("/"));
        let cx = context(Path::new("/"));
        let values = json!({"name": "app", "image": "web:1", "env": {"TOKEN": "s3cr3t"}});
        let ran = run(&cx, "container.present", values).unwrap();
        assert!(std::fs::read_to_string("/run/engine/containers/app").unwrap().contains("s3cr3t"));
        assert!(!std::fs::read_to_string("/run/engine/calls").unwrap().contains("s3cr3t"));
        assert!(!ran.diff.to_json().to_string().contains("s3cr3t"));
    });
}

/// Without an engine the row is skipped.
#[test]
fn without_an_engine_containers_are_unsupported() {
    inside(|| {
        let cx = context(Path::new("/"));
        if ["/usr/bin/podman", "/usr/bin/docker", "/usr/local/bin/docker"]
            .iter()
            .any(|path| Path::new(path).exists())
        {
            sh(Path::new("/"), "rm -f /usr/bin/podman /usr/bin/docker /usr/local/bin/docker");
        }
        let error = check(&cx, "container.present", json!({"name": "a", "image": "b"})).unwrap_err();
        assert!(error.unsupported, "{}", error.message);
    });
}

/// Case 24: `reboot` on `local` is refused, and its descriptor says what it is.
#[test]
fn a_reboot_of_this_machine_is_refused() {
    let cx = context(Path::new("/"));
    let error = act(&cx, "reboot", json!({})).unwrap_err();
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.message.contains("`local`"), "{}", error.message);
    let registry = stead_drivers::Drivers::standard();
    let descriptor = registry.get("reboot").unwrap().descriptor();
    assert_eq!((descriptor.effect, descriptor.root), (Effect::Command, RootSupport::None));
    assert!(!descriptor.check && !descriptor.undo && descriptor.needs_root);
}

/// Case 24, the part on the target: it answers with its boot first and restarts after the delay, once however often
/// it is asked; another boot is the end of it.
#[test]
fn a_target_answers_before_it_restarts_and_restarts_once() {
    inside(|| {
        stand_in::program("reboot", "#!/bin/sh\necho restarted >>/run/restarted\n");
        stand_in::program("wall", "#!/bin/sh\necho \"$1\" >/run/wall\n");
        let registry = stead_drivers::Drivers::on_target();
        let Some(Entry::Action(reboot)) = registry.get("reboot") else { panic!("no reboot") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let cx = context(Path::new("/"));
        let base = Path::new("/var/lib/stead").to_owned();
        let undo = stead_runner::operation::UndoStore::new([base].into(), cx.run_id.clone().unwrap());
        let cx = OpContext { undo, ..cx };
        let go = |cx: &OpContext, values: Value| runtime.block_on(reboot.run(cx, &params(values))).unwrap();
        let idle = go(&cx, json!({"only_if_exists": "/run/reboot-required"}));
        assert!(!idle.changed && idle.reason.is_some() && idle.restart.is_none());
        write("/run/reboot-required", "");
        let wanted =
            json!({"only_if_exists": "/run/reboot-required", "message": "back soon", "timeout": "2m"});
        let restart = go(&cx, wanted.clone()).restart.unwrap();
        assert!(!Path::new("/run/restarted").exists(), "the answer comes first");
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert_eq!((restart.boot_id.as_str(), restart.timeout_ms), (boot_id.trim(), 121_000));
        assert_eq!(std::fs::read_to_string("/run/wall").unwrap(), "back soon\n");
        let again = go(&cx, wanted.clone()).restart.unwrap();
        assert!(again.boot_id == restart.boot_id && again.timeout_ms <= restart.timeout_ms);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !Path::new("/run/restarted").exists() {
            assert!(Instant::now() < deadline, "it did not restart");
            std::thread::sleep(Duration::from_millis(20));
        }
        write("/run/boot_id", "another-boot\n");
        sh(Path::new("/"), "mount --bind /run/boot_id /proc/sys/kernel/random/boot_id");
        let back = go(&cx, wanted.clone());
        assert_eq!(back.data.unwrap(), json!({"boot_id": "another-boot", "before": boot_id.trim()}));
        assert!(back.changed && back.restart.is_none());
        let next = go(&cx, wanted).restart.unwrap();
        assert_eq!(next.boot_id, "another-boot", "one that was seen to its end is not taken for the next");
        let told = OpContext { restarted: Some("another-boot".to_owned()), ..cx };
        assert!(go(&told, json!({})).restart.is_none(), "what the driver has seen is so");
        let restarts = || std::fs::read_to_string("/run/restarted").unwrap().lines().count();
        while restarts() < 2 {
            assert!(Instant::now() < deadline, "it did not restart again");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(restarts(), 2);
    });
}
