//! `container.*` and `reboot`, inside a container, with stand-ins: nothing restarts, and what a real engine does is in
//! [`crate::podman`].

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::operation::RootSupport;
use stead_model::{Effect, ErrorClass};
use stead_runner::operation::{Cancel, Entry, OpContext, Stop};
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::stand_in;
use stead_testkit::tree::Depth;

use crate::contract::{BASE, passes, sh, write};
use crate::state::{act, check, run};

fn fresh(root: &Path) {
    begin("podman", root);
}

fn begin(engine: &str, root: &Path) {
    stand_in::engine(engine);
    sh(root, &format!("for image in web:1 web:2 broken; do {engine} pull -- $image; done"));
    sh(root, &format!("{engine} create --name other --restart no -- web:1"));
}

/// Returns what an engine shows of a container.
pub(crate) fn shown(engine: &str, name: &str) -> Value {
    let out = Command::new(engine).args(["inspect", "--type", "container", name]).output().unwrap();
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice::<Value>(&out.stdout).unwrap()[0].take()
}

/// Returns every container of an engine: how it was made and whether it runs, and if asked when and as which one.
pub(crate) fn all(engine: &str, depth: Depth) -> BTreeMap<String, String> {
    let out = Command::new(engine).args(["ps", "--all", "--format", "{{.Names}}"]).output().unwrap();
    let names = String::from_utf8(out.stdout).unwrap();
    names.lines().map(|name| (name.to_owned(), in_words(&shown(engine, name), depth))).collect()
}

fn in_words(container: &Value, depth: Depth) -> String {
    let (config, host) = (&container["Config"], &container["HostConfig"]);
    let mut env: Vec<&str> =
        config["Env"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    env.retain(|line| !line.starts_with("HOSTNAME=") && !line.starts_with("HOME="));
    env.sort_unstable();
    let mounts = container["Mounts"].as_array().into_iter().flatten().map(|mount| {
        let name = mount["Name"].as_str().unwrap_or_default();
        let name = if name.len() == 64 { "anonymous" } else { name };
        let source = if mount["Type"] == "bind" { &mount["Source"] } else { &Value::Null };
        json!([name, source, mount["Destination"], mount["RW"]]).to_string()
    });
    let mut mounts: Vec<String> = mounts.collect();
    mounts.sort_unstable();
    let pick = |of: &Value, keys: &[&str]| keys.iter().map(|key| of[*key].clone()).collect::<Vec<_>>();
    let mut host = pick(
        host,
        &[
            "RestartPolicy",
            "PortBindings",
            "NetworkMode",
            "Memory",
            "ShmSize",
            "CapAdd",
            "CapDrop",
            "Tmpfs",
            "Dns",
        ],
    );
    if host[0]["Name"] == "" {
        host[0]["Name"] = "no".into();
    }
    let words = json!([
        pick(container, &["Image", "Path", "Args"]),
        pick(config, &["Image", "Cmd", "User", "WorkingDir", "StopSignal", "Labels"]),
        env,
        host,
        mounts,
        container["State"]["Running"],
    ]);
    match depth {
        Depth::State => words.to_string(),
        Depth::Everything => format!("{words} {} {}", container["Id"], container["State"]["StartedAt"]),
    }
}

/// The containers, as the engine shows them.
fn containers(_: &Path, depth: Depth) -> BTreeMap<String, String> {
    all("podman", depth)
}

/// One that the operation does not name.
fn other(_: &Path) -> String {
    in_words(&shown("podman", "other"), Depth::Everything)
}

fn make(arguments: &str) {
    sh(Path::new("/"), &format!("printf 'A=1\\n' | podman create {arguments}"));
}

const SYSTEM: Case = Case { world: World::System(containers), fresh, kept: other, ..BASE };

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
        ..SYSTEM
    },
    Case {
        operation: "container.present",
        name: "one field, the others taken over",
        params: || json!({"name": "app", "image": "web:2"}),
        fresh: |root| {
            fresh(root);
            make(
                "--name app --restart always --label dev.stead=adopted --label team=db --env-file /dev/stdin --publish 1:2/tcp --volume /srv:/data --network=host --memory=5000 -- web:1 old",
            );
            sh(root, "podman start app");
        },
        half: |root| sh(root, "podman stop app"),
        kept: |_| {
            let app = shown("podman", "app");
            let mounts = app["Mounts"].as_array().unwrap().iter().map(|mount| mount["Name"].to_string());
            let mounts: Vec<String> = mounts.collect();
            format!("{} {:?} {}", app["HostConfig"], mounts, app["Config"]["Cmd"])
        },
        ..SYSTEM
    },
    Case {
        operation: "container.present",
        name: "what the image says too",
        params: || {
            json!({"name": "app", "image": "web:2", "command": ["run"], "env": {"PATH": "/bin", "TERM": "xterm"},
                "volumes": [], "labels": {"maintainer": "us"}})
        },
        half: |_| make("--name app --restart no --label dev.stead=true --env-file /dev/stdin -- web:2 old"),
        drifts: &[("running", |root| sh(root, "podman stop app"))],
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
        ..SYSTEM
    },
];

/// One that runs and was adopted once; whoever has put a stand-in there keeps it.
pub(crate) const REPLACED: &[Case] = &[Case {
    operation: "container.present",
    name: "a replacement",
    params: || json!({"name": "app", "image": "web:2"}),
    fresh: |root| {
        sh(root, "rm -rf /run/engine; podman pull -- web:1; podman pull -- web:2");
        make(
            "--name app --restart no --label dev.stead=adopted --env-file /dev/stdin --network=host -- web:1",
        );
        sh(root, "podman start app");
    },
    kept: BASE.kept,
    ..SYSTEM
}];

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
            ("container.present", json!({"name": "n.stead-old", "image": "web:1"}), "puts aside"),
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
        assert!(shown("podman", "app").to_string().contains("s3cr3t"));
        assert!(!std::fs::read_to_string("/run/engine/calls").unwrap().contains("s3cr3t"));
        assert!(!ran.diff.to_json().to_string().contains("s3cr3t"));
    });
}

/// Section 8: what Stead has no parameter for is taken over with a container; what cannot be is refused, and nothing was done.
#[test]
fn a_container_that_is_adopted_keeps_what_stead_has_no_parameter_for() {
    inside(|| {
        let (root, cx) = (Path::new("/"), context(Path::new("/")));
        for engine in ["podman", "docker"] {
            begin(engine, root);
            sh(
                root,
                &format!(
                    "{engine} create --name app --network=host --user=5 --memory=4096 --entrypoint=/init -- web:1 a"
                ),
            );
            let values = json!({"name": "app", "image": "web:2", "engine": engine, "adopt": true});
            let ran = run(&cx, "container.present", values.clone()).unwrap();
            assert!(ran.changed && ran.applied.notes.is_empty());
            let app = shown(engine, "app");
            let (config, host) = (&app["Config"], &app["HostConfig"]);
            let kept = [&config["User"], &app["Path"], &app["Args"], &host["NetworkMode"], &host["Memory"]];
            assert_eq!(json!(kept), json!(["5", "/init", ["a"], "host", 4096]), "{engine}");
            assert!(!run(&cx, "container.present", values).unwrap().changed, "{engine}");
            let later = json!({"name": "app", "image": "web:1", "engine": engine, "command": ["b"]});
            run(&cx, "container.present", later).unwrap();
            let app = shown(engine, "app");
            assert_eq!(json!([app["Args"], app["HostConfig"]["Memory"]]), json!([["b"], 4096]), "{engine}");
            let gone = run(&cx, "container.absent", json!({"name": "app", "engine": engine})).unwrap();
            let inverse = crate::state::operation("container.absent");
            let values = json!({"name": "app", "engine": engine});
            assert!(
                inverse.inverse(&params(values), &gone.before).is_none(),
                "it cannot be made again as it was"
            );
            sh(root, &format!("{engine} create --name gpu --gpus=all -- web:1; {engine} start gpu"));
            let before = all(engine, Depth::Everything);
            let values = json!({"name": "gpu", "image": "web:2", "engine": engine, "adopt": true});
            let error = run(&cx, "container.present", values).unwrap_err();
            assert_eq!(error.class, ErrorClass::Permanent);
            assert!(error.message.contains("HostConfig.DeviceRequests"), "{}", error.message);
            assert!(error.message.contains("rm --force gpu"), "{}", error.message);
            assert_eq!(all(engine, Depth::Everything), before, "it was not even stopped");
        }
    });
}

/// Section 8: what podman sets by itself, and what docker does not, is told from what somebody asked for.
#[test]
fn variables_of_engines_are_no_difference() {
    inside(|| {
        let (root, cx) = (Path::new("/"), context(Path::new("/")));
        for (engine, differs) in [("podman", false), ("docker", true)] {
            begin(engine, root);
            let values = |env: Value| json!({"name": "app", "image": "web:1", "engine": engine, "env": env});
            assert!(run(&cx, "container.present", values(json!({"A": "1"}))).unwrap().changed);
            assert!(!run(&cx, "container.present", values(json!({"A": "1"}))).unwrap().changed, "{engine}");
            assert!(run(&cx, "container.present", values(json!({"TERM": "dumb"}))).unwrap().changed);
            assert!(!run(&cx, "container.present", values(json!({"TERM": "dumb"}))).unwrap().changed);
            let without = check(&context(root), "container.present", values(json!({}))).unwrap();
            assert_eq!(!without.is_empty(), differs, "{engine}: {:?}", without.fields);
            assert!(run(&cx, "container.present", values(json!({"VERSION": "9"}))).unwrap().changed);
            let without = run(&cx, "container.present", values(json!({}))).unwrap();
            assert!(without.changed, "{engine}: the image's own is back");
            assert!(shown(engine, "app").to_string().contains("VERSION=1"), "{engine}");
        }
    });
}

/// Section 8: somebody else's container with the name of one that was put aside is not taken for a half-made one.
#[test]
fn a_container_that_came_while_another_was_put_aside_is_not_touched() {
    inside(|| {
        let (root, cx) = (Path::new("/"), context(Path::new("/")));
        fresh(root);
        make("--name app.stead-old --restart no --label dev.stead=true -- web:1");
        make("--name app --restart no -- web:1");
        let before = containers(root, Depth::Everything);
        for (name, values) in [
            ("container.present", json!({"name": "app", "image": "web:1", "adopt": true})),
            ("container.absent", json!({"name": "app", "adopt": true})),
        ] {
            let error = run(&cx, name, values).unwrap_err();
            assert!(error.message.contains("remove one of both"), "{}", error.message);
        }
        assert_eq!(containers(root, Depth::Everything), before);
        sh(root, "podman rm --force app");
        let gone = run(&cx, "container.absent", json!({"name": "app"})).unwrap();
        assert!(gone.changed, "what was put aside is the container");
        assert_eq!(containers(root, Depth::State).into_keys().collect::<Vec<_>>(), ["other"]);
    });
}

/// Section 8: an attempt that is to stop in the middle of a replacement brings the old container back first.
#[test]
fn a_replacement_that_is_cancelled_brings_the_old_container_back() {
    inside(|| {
        let root = Path::new("/");
        for verb in ["stop", "rename", "create", "start"] {
            fresh(root);
            make("--name app --restart no --label dev.stead=true --env-file /dev/stdin -- web:1");
            sh(root, "podman start app");
            let before = containers(root, Depth::Everything);
            hang_once(verb);
            let (stopper, cancel) = Cancel::signal();
            let cx = OpContext { cancel, ..context(root) };
            let waiter = std::thread::spawn(move || {
                crate::configured::wait_until("it hangs", || Path::new("/run/hangs").exists());
                stopper.stop(Stop::Ask);
            });
            let error = run(&cx, "container.present", json!({"name": "app", "image": "web:2"})).unwrap_err();
            waiter.join().unwrap();
            assert!(error.message.contains("cancelled"), "{verb}: {}", error.message);
            assert_eq!(containers(root, Depth::Everything), before, "{verb}");
        }
    });
}

/// Puts something before the stand-in that hangs, once, where the new container takes the place of the old one.
fn hang_once(verb: &str) {
    sh(Path::new("/"), "mv /usr/local/sbin/podman /usr/local/sbin/podman.real; rm -f /run/hangs");
    let condition = if verb == "create" { r#""$4" = app"# } else { "true" };
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = {verb} ] && [ {condition} ] && ! [ -e /run/hangs ]; then touch /run/hangs; exec sleep 600; fi\n\
         exec perl /usr/local/sbin/podman.real \"$@\"\n"
    );
    stand_in::program("podman", &script);
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
