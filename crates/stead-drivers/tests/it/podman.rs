//! `container.*` with a real podman, which runs inside a container: what it makes goes with that.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use stead_model::plan::Param;
use stead_testkit::container::inside;
use stead_testkit::context::{context, params};
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::tree::Depth;

use crate::containers::{all, shown};
use crate::contract::{BASE, passes, sh};
use crate::killed::{every_call_may_be_the_last, is_victim};
use crate::state::{operation, run};

/// No control groups, no network and no overlay: what a container in a container may lack.
const SETUP: &str = r#"
mount -t tmpfs none /sys/fs/cgroup
mkdir -p /etc/containers /tmp/image/bin
cat >/etc/containers/containers.conf <<END
[engine]
cgroup_manager = "cgroupfs"
events_backend = "none"
[containers]
cgroups = "disabled"
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
END
cat >/etc/containers/storage.conf <<END
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
END
cp /bin/busybox /tmp/image/bin
for name in sh sleep; do ln -s busybox /tmp/image/bin/$name; done
for version in 1 2; do
    tar -C /tmp/image -c . | podman import --quiet --change "ENV VERSION=$version" --change 'LABEL maintainer=us' \
        --change "CMD [\"sleep\", \"${version}000\"]" --change 'VOLUME /data' --change 'STOPSIGNAL SIGKILL' - web:$version
done
"#;

/// Whether there is a podman; then there are two images, which set everything that an image can.
fn is_ready() -> bool {
    let is_there = crate::configured::has("podman") && crate::configured::has("busybox");
    if is_there && !is_victim() {
        sh(Path::new("/"), SETUP);
    }
    is_there
}

fn fresh(root: &Path) {
    sh(root, "podman rm --all --force >/dev/null; podman create --name other web:1 >/dev/null");
}

fn containers(_: &Path, depth: Depth) -> BTreeMap<String, String> {
    all("podman", depth)
}

/// One that the operation does not name.
fn other(_: &Path) -> String {
    shown("podman", "other").to_string()
}

const SYSTEM: Case = Case { world: World::System(containers), fresh, kept: other, ..BASE };

/// Makes a container as somebody may have who knows more options than Stead.
fn make_with_options(label: &str) {
    let options = "--network host --user 0:5 --workdir /bin --shm-size 1m --cap-add NET_RAW --cap-drop CHOWN \
        --read-only --tmpfs /t --dns 192.0.2.1 --add-host a:192.0.2.2 --stop-timeout 3 --group-add 7 \
        --security-opt no-new-privileges --ulimit nofile=64:128 --ulimit nproc=64:128 --annotation note=this --log-driver none --tty \
        --entrypoint '[\"/bin/busybox\",\"sh\"]' --env A=1 --volume /srv:/srv:ro";
    sh(
        Path::new("/"),
        &format!(
            "podman create --name app {label} {options} web:1 -c 'sleep 900' >/dev/null; podman start app >/dev/null"
        ),
    );
}

/// Returns what the options of [`make_with_options`] have made.
fn made_with_options() -> Value {
    let app = shown("podman", "app");
    let mut host = app["HostConfig"].clone();
    for key in ["Binds", "LogConfig"] {
        host[key] = Value::Null;
    }
    let config = ["User", "WorkingDir", "Cmd", "Entrypoint", "StopTimeout", "StopSignal", "Tty"]
        .map(|key| &app["Config"][key]);
    let volumes = app["Mounts"].as_array().unwrap().iter().map(|mount| json!([mount["Source"], mount["RW"]]));
    let mut volumes: Vec<String> = volumes.map(|volume| volume.to_string()).collect();
    volumes.sort();
    json!([
        host,
        config,
        volumes,
        app["Path"],
        app["Args"],
        app["Config"]["Annotations"]["note"],
        app["HostConfig"]["LogConfig"]["Type"]
    ])
}

const FIELDS: &[Case] = &[
    Case {
        operation: "container.present",
        name: "fields of its own",
        params: || {
            json!({"name": "app", "image": "web:2", "command": ["sleep", "3000"], "env": {"A": "1", "B": "two words"},
                "volumes": ["/srv/:/srv:ro", "cache:/cache"], "restart": "on-failure:3", "labels": {"team": "web"}})
        },
        half: |root| {
            sh(
                root,
                "podman create --name app --restart always --label dev.stead=true --label team=db --env A=2 web:1 sleep 1",
            );
        },
        drifts: &[("running", |root| sh(root, "podman stop app"))],
        ..SYSTEM
    },
    Case {
        operation: "container.absent",
        name: "one of ours",
        params: || json!({"name": "app"}),
        fresh: |root| {
            fresh(root);
            sh(
                root,
                "podman create --name app --label dev.stead=true --env A=1 --volume cache:/cache web:1 sleep 999",
            );
        },
        half: |root| sh(root, "podman start app"),
        ..SYSTEM
    },
];

const OF_THE_IMAGE: &[Case] = &[
    Case {
        operation: "container.present",
        name: "what the image and the engine say too",
        params: || {
            json!({"name": "app", "image": "web:2", "command": ["sleep", "2000"], "env": {"VERSION": "2", "TERM": "xterm"},
                "volumes": [], "labels": {"maintainer": "us"}})
        },
        half: |root| sh(root, "podman create --name app --label dev.stead=true --env A=2 web:2 sleep 1"),
        ..SYSTEM
    },
    Case {
        operation: "container.present",
        name: "nothing but the image",
        params: || json!({"name": "app", "image": "web:2", "env": {}, "command": [], "volumes": [], "labels": {}}),
        half: |root| sh(root, "podman create --name app --label dev.stead=true --env VERSION=9 web:2"),
        ..SYSTEM
    },
];

const TAKEN_OVER: &[Case] = &[Case {
    operation: "container.present",
    name: "another image, the rest taken over",
    params: || json!({"name": "app", "image": "web:2"}),
    fresh: |root| {
        fresh(root);
        make_with_options("--label dev.stead=adopted");
    },
    half: |root| sh(root, "podman stop app"),
    kept: |_| made_with_options().to_string(),
    ..SYSTEM
}];

/// With one option, so that all that is done for a replacement is.
const REPLACED: &[Case] = &[Case {
    fresh: |root| {
        fresh(root);
        sh(
            root,
            "podman create --name app --label dev.stead=adopted --network host --env A=1 web:1; podman start app",
        );
    },
    ..TAKEN_OVER[0]
}];

/// Case 17, with podman itself: fields of its own, and none.
#[test]
fn fields_keep_the_contract() {
    inside(|| {
        if is_ready() {
            passes(FIELDS);
        }
    });
}

/// Section 8: what a container has from its image, and what podman adds, is no difference.
#[test]
fn what_images_and_podman_set_keeps_the_contract() {
    inside(|| {
        if is_ready() {
            passes(OF_THE_IMAGE);
        }
    });
}

/// Section 8: what Stead has no parameter for is taken over.
#[test]
fn what_is_taken_over_keeps_the_contract() {
    inside(|| {
        if is_ready() {
            passes(TAKEN_OVER);
        }
    });
}

/// Section 8: somebody else's container is adopted with all it was made with, or not at all; volumes without a name stay.
#[test]
fn a_container_is_adopted_as_it_is() {
    inside(|| {
        if !is_ready() {
            return;
        }
        let (root, cx) = (Path::new("/"), context(Path::new("/")));
        make_with_options("");
        let before = made_with_options();
        sh(
            root,
            "echo kept >\"$(podman inspect --format '{{range .Mounts}}{{.Source}} {{end}}' app | grep -o '/var[^ ]*')/file\"",
        );
        let values = json!({"name": "app", "image": "web:2", "adopt": true, "env": {"A": "2"}});
        assert!(run(&cx, "container.present", values.clone()).unwrap().changed);
        assert_eq!(made_with_options(), before);
        assert!(!run(&cx, "container.present", values).unwrap().changed);
        sh(root, "podman exec app /bin/busybox grep kept /data/file");
        sh(
            root,
            "podman create --name own --label dev.stead=true web:1; podman start own; podman exec own sh -c 'echo it >/data/file'",
        );
        let gone = run(&cx, "container.absent", json!({"name": "own"})).unwrap();
        let back =
            operation("container.absent").inverse(&params(json!({"name": "own"})), &gone.before).unwrap();
        let values = back.params.into_iter().map(|(name, value)| {
            let Param::Value(value) = value else { panic!("{name} is no plain value") };
            (name, value)
        });
        run(&cx, "container.present", Value::Object(values.collect())).unwrap();
        sh(root, "podman exec own busybox grep it /data/file");
        sh(root, "podman create --name odd --sysctl net.ipv4.ip_forward=1 web:1; podman start odd");
        let before = shown("podman", "odd");
        let error = run(&cx, "container.present", json!({"name": "odd", "image": "web:2", "adopt": true}))
            .unwrap_err();
        assert!(error.message.contains("--sysctl"), "{}", error.message);
        assert_eq!(shown("podman", "odd"), before, "it runs on");
        assert!(
            !all("podman", Depth::State).keys().any(|name| name.contains("stead")),
            "nothing is left aside"
        );
    });
}

/// Section 8: a replacement that is killed is brought to its end by the next run.
#[test]
fn a_killed_replacement_is_finished_by_the_next_run() {
    inside(|| {
        if !is_ready() {
            return;
        }
        every_call_may_be_the_last(
            "podman::a_killed_replacement_is_finished_by_the_next_run",
            REPLACED,
            (&["podman"], "rename|start|stop"),
            &["after"],
        );
    });
}
