//! The keys of VMs.

use serde_json::{Value, json};

use super::{Arch, DiskFormat, Driver, NetMode, OnLost, ReadyKind, RestartPolicy, Retain};
use crate::fleet::artifact::artifact_schema;
use crate::fleet::labels::{labels_schema, selector_schema};
use crate::schema::{boolean, full_text, integer, object, text, words};
use crate::yaml::{Key, Keys};

/// The most seconds of any wait: a day.
pub(super) const MOST_SECONDS: i64 = 86_400;
/// The most instances of a VM.
pub(super) const MOST_REPLICAS: i64 = 10_000;
/// The most thousandths of a processor.
pub(super) const MOST_CPU: i64 = 1_024_000;
/// The most memory, and the most disk, in MiB.
pub(super) const MOST_MEMORY: i64 = 16_777_216;
pub(super) const MOST_DISK: i64 = 1 << 40;

const LABELS: Key = Key::new("labels", labels_schema, "its own labels; at most 64");
const SELECTOR: Key = Key::new("selector", selector_schema, "what has to hold of a worker's labels");
const SPREAD: Key = Key::new("spread", || object(&SPREAD_KEYS), "how instances are spread");
const PIN: Key = Key::new("pin", text, "the only worker it may run on");
const PRIORITY: Key = Key::new("priority", || integer(-1000, 1000), "higher comes first; default 0");
const RESTART: Key = Key::new("restart", || object(&RESTART_KEYS), "when an ended instance starts again");
const READY: Key = Key::new("ready", || object(&READY_KEYS), "when an instance is ready");
const ROLLOUT: Key = Key::new("rollout", || object(&ROLLOUT_KEYS), "how a new spec reaches instances");
const ON_LOST: Key =
    Key::new("onLost", || words(&OnLost::WORDS), "what happens on a lost worker; default `move`");
const SINGLETON: Key = Key::new("singleton", boolean, "whether two must never run at once; default `false`");
const STOP_SECONDS: Key =
    Key::new("stopSeconds", || integer(0, MOST_SECONDS), "the graceful part of a stop; default 30");
const VOLUMES: Key = Key::new(
    "volumes",
    || json!({"type": "array", "items": object(&VOLUME_KEYS)}),
    "volumes of each instance, local to a worker",
);
const DRIVER: Key = Key::new("driver", || words(&Driver::WORDS), "what makes and runs it");
const RESOURCES: Key = Key::new("resources", || object(&RESOURCES_KEYS), "what one instance takes");

/// The keys of a VM.
pub const VM_KEYS: Keys = Keys {
    what: "a VM",
    keys: &[
        Key::new("id", id_schema, "what it is called: a DNS label"),
        Key::new("group", id_schema, "set by the evaluator"),
        Key::new("replicas", || integer(0, MOST_REPLICAS), "how many instances; default 1"),
        LABELS,
        SELECTOR,
        SPREAD,
        PIN,
        PRIORITY,
        RESOURCES.required(),
        RESTART,
        READY,
        ROLLOUT,
        ON_LOST,
        SINGLETON,
        STOP_SECONDS,
        VOLUMES,
        Key::new("runtime", || object(&RUNTIME_KEYS), "what runs").required(),
    ],
    hints: &[("name", "id"), ("count", "replicas"), ("nodeSelector", "selector"), ("on_lost", "onLost")],
};

/// What `fleet.yaml` may say of a node that a manifest describes.
pub const SCHEDULING_KEYS: Keys = Keys {
    what: "an entry of `vms`",
    keys: &[
        DRIVER,
        LABELS,
        SELECTOR,
        SPREAD,
        PIN,
        PRIORITY,
        RESOURCES,
        RESTART,
        READY,
        ROLLOUT,
        ON_LOST,
        SINGLETON,
        STOP_SECONDS,
        VOLUMES,
    ],
    hints: &[("replicas", "count of the node in its manifest"), ("on_lost", "onLost")],
};

/// What `fleet.yaml` places under every VM.
pub(in crate::fleet) const VM_DEFAULTS_KEYS: Keys = Keys {
    what: "`defaults`",
    keys: &[RESTART, ROLLOUT, READY, ON_LOST, STOP_SECONDS, DRIVER],
    hints: &[("on_lost", "onLost")],
};

fn id_schema() -> Value {
    json!({"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"})
}

fn texts() -> Value {
    json!({"type": "array", "items": text()})
}

fn seconds() -> Value {
    integer(1, MOST_SECONDS)
}

pub(super) const SPREAD_KEYS: Keys = Keys {
    what: "`spread`",
    keys: &[
        Key::new("key", full_text, "the label of workers over whose values they are spread"),
        Key::new("maxPerWorker", || integer(0, MOST_REPLICAS), "0: no limit"),
        Key::new("notWith", || json!({"type": "array", "items": id_schema()}), "VMs on no worker of its own"),
    ],
    hints: &[("label", "key"), ("max_per_worker", "maxPerWorker")],
};

pub(super) const RESOURCES_KEYS: Keys = Keys {
    what: "`resources`",
    keys: &[
        Key::new("cpuMilli", || integer(1, MOST_CPU), "thousandths of a processor").required(),
        Key::new("memMiB", || integer(1, MOST_MEMORY), "memory in MiB").required(),
        Key::new("diskMiB", || integer(0, MOST_DISK), "disk in MiB; default 0"),
    ],
    hints: &[("cpu", "cpuMilli"), ("memory", "memMiB"), ("mem", "memMiB"), ("disk", "diskMiB")],
};

pub(super) const RESTART_KEYS: Keys = Keys {
    what: "`restart`",
    keys: &[
        Key::new("policy", || words(&RestartPolicy::WORDS), "default `always`"),
        Key::new("backoffSeconds", seconds, "the first wait; default 10"),
        Key::new("maxBackoffSeconds", seconds, "the longest wait; default 300"),
        Key::new("stableSeconds", seconds, "how long until waits begin anew; default 600"),
    ],
    hints: &[("backoff", "backoffSeconds")],
};

pub(super) const READY_KEYS: Keys = Keys {
    what: "`ready`",
    keys: &[
        Key::new("kind", || words(&ReadyKind::WORDS), "default `started`: alive for 2 s"),
        Key::new("port", || integer(1, 65535), "of `tcp` and `http`"),
        Key::new("path", full_text, "of `http`; default `/`"),
        Key::new("match", full_text, "of `serial`: what the console has to show"),
        Key::new("argv", texts, "of `exec`"),
        Key::new("intervalSeconds", seconds, "how often; default 2"),
        Key::new("timeoutSeconds", seconds, "how long one look may take; default 60"),
    ],
    hints: &[("command", "argv"), ("pattern", "match")],
};

pub(super) const ROLLOUT_KEYS: Keys = Keys {
    what: "`rollout`",
    keys: &[
        Key::new("maxUnavailable", amount_schema, "a count or `N%`; default 1"),
        Key::new("canary", || integer(0, MOST_REPLICAS), "how many go first, alone; default 0"),
        Key::new("minReadySeconds", || integer(0, MOST_SECONDS), "default 10"),
        Key::new("progressDeadlineSeconds", seconds, "default 600"),
        Key::new("autoHold", boolean, "whether trouble stops the rollout; default `true`"),
        Key::new("pause", boolean, "whether nothing is released; default `false`"),
    ],
    hints: &[("paused", "pause")],
};

fn amount_schema() -> Value {
    let percent = json!({"type": "string", "pattern": "^([0-9]|[1-9][0-9]|100)%$"});
    json!({"anyOf": [integer(1, MOST_REPLICAS), percent]})
}

pub(super) const VOLUME_KEYS: Keys = Keys {
    what: "a volume",
    keys: &[
        Key::new("name", id_schema, "a DNS label").required(),
        Key::new("sizeMiB", || integer(1, MOST_DISK), "its size in MiB").required(),
        Key::new("retain", || words(&Retain::WORDS), "what happens when its instance goes; default `keep`"),
        Key::new("movable", boolean, "whether its instance may go where it starts empty; default `false`"),
    ],
    hints: &[("size", "sizeMiB")],
};

pub(super) const RUNTIME_KEYS: Keys = Keys {
    what: "`runtime`",
    keys: &[
        DRIVER,
        Key::new("arch", || words(&Arch::WORDS), "default `x86_64`"),
        Key::new("kernel", artifact_schema, "what boots"),
        Key::new("initrd", artifact_schema, "the first file system"),
        Key::new("firmware", artifact_schema, "what boots, where the disk has the kernel"),
        Key::new("cmdline", text, "the kernel's arguments"),
        Key::new("disks", || json!({"type": "array", "items": object(&DISK_KEYS)}), "its disks"),
        Key::new("rootfs", artifact_schema, "the file tree of a container"),
        Key::new("argv", texts, "what is executed"),
        Key::new("env", || json!({"type": "object", "additionalProperties": text()}), "its environment"),
        Key::new("cwd", full_text, "its directory"),
        Key::new("nets", || json!({"type": "array", "items": object(&NET_KEYS)}), "its network cards"),
        Key::new("vsock", boolean, "whether it has a socket to its host; default `false`"),
        Key::new("config", artifact_schema, "the resolved spec that is applied at first boot"),
        Key::new("artifacts", || json!({"type": "array", "items": artifact_schema()}), "what else it needs"),
    ],
    hints: &[("command", "argv"), ("environment", "env"), ("image", "disks: [{image: …}]")],
};

pub(super) const DISK_KEYS: Keys = Keys {
    what: "a disk",
    keys: &[
        Key::new("image", artifact_schema, "what is on it; what is written goes with the instance"),
        Key::new("volume", id_schema, "a volume of this VM"),
        Key::new("readOnly", boolean, "default `false`"),
        Key::new("format", || words(&DiskFormat::WORDS), "default `raw`"),
    ],
    hints: &[("readonly", "readOnly"), ("path", "image")],
};

pub(super) const NET_KEYS: Keys = Keys {
    what: "a network card",
    keys: &[
        Key::new("mode", || words(&NetMode::WORDS), "default `user`"),
        Key::new("bridge", full_text, "of `tap`"),
        Key::new("mac", mac_schema, "default from the instance's name"),
        Key::new("ports", || json!({"type": "array", "items": object(&PORT_KEYS)}), "of `user`"),
    ],
    hints: &[],
};

fn mac_schema() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{2}(:[0-9a-f]{2}){5}$"})
}

pub(super) const PORT_KEYS: Keys = Keys {
    what: "a port",
    keys: &[
        Key::new("guest", || integer(1, 65535), "in the guest").required(),
        Key::new("host", || integer(1, 65535), "on the worker").required(),
    ],
    hints: &[],
};
