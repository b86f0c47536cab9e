//! The one spelling of a VM: sorted keys, and nothing that equals its default.

use serde_json::{Map, Value, json};

use super::{
    Amount, Arch, Disk, DiskFormat, DiskSource, Net, NetMode, OnLost, Ready, ReadyKind, Resources, Restart,
    RestartPolicy, Retain, Rollout, Runtime, Spread, VmSpec, Volume,
};
use crate::canonical_json;
use crate::fleet::artifact::Artifact;
use crate::id::GroupName;
use crate::site::read::word_of;

/// An object that leaves out what equals its default.
#[derive(Default)]
pub(in crate::fleet) struct Sparse(Map<String, Value>);

impl Sparse {
    /// Adds a value.
    pub(in crate::fleet) fn always(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// Adds `value` unless it is the `default`.
    pub(in crate::fleet) fn unless<T: PartialEq + Into<Value>>(&mut self, key: &str, value: T, default: T) {
        if value != default {
            self.always(key, value);
        }
    }

    /// Adds a value unless it is empty: a text, list or object without content.
    pub(in crate::fleet) fn full(&mut self, key: &str, value: impl Into<Value>) {
        let value = value.into();
        let is_empty = match &value {
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(entries) => entries.is_empty(),
            Value::Null => true,
            Value::Bool(_) | Value::Number(_) => false,
        };
        if !is_empty {
            self.always(key, value);
        }
    }

    /// Adds the word of `value` unless it is the default.
    pub(in crate::fleet) fn word<T: Copy + PartialEq + Default>(
        &mut self,
        key: &str,
        value: T,
        words: &[(&'static str, T)],
    ) {
        if value != T::default()
            && let Some(word) = word_of(value, words)
        {
            self.always(key, word);
        }
    }

    /// Returns the object.
    pub(in crate::fleet) fn into_json(self) -> Value {
        Value::Object(self.0)
    }
}

impl VmSpec {
    /// Returns the canonical form as a value.
    pub fn to_json(&self) -> Value {
        let mut vm = Sparse::default();
        vm.always("id", self.id.as_str());
        vm.unless("group", self.group.as_str(), GroupName::default_group().as_str());
        vm.unless("replicas", self.replicas, 1);
        vm.full("labels", json!(self.labels));
        let selector: Vec<Value> = self.selector.iter().map(|requirement| requirement.to_json()).collect();
        vm.full("selector", selector);
        vm.full("spread", spread(&self.spread));
        vm.full("pin", self.pin.as_ref().map(|pin| pin.as_str()).unwrap_or_default());
        vm.unless("priority", self.priority, 0);
        vm.full("resources", resources(self.resources));
        vm.full("restart", restart(self.restart));
        vm.full("ready", ready(&self.ready));
        vm.full("rollout", rollout(self.rollout));
        vm.word("onLost", self.on_lost, &OnLost::WORDS);
        vm.unless("singleton", self.singleton, false);
        vm.unless("stopSeconds", self.stop_seconds, 30);
        vm.full("volumes", self.volumes.iter().map(volume).collect::<Vec<_>>());
        vm.always("runtime", runtime(&self.runtime));
        vm.into_json()
    }

    /// Returns the canonical JSON.
    pub fn to_canonical(&self) -> String {
        canonical_json::by_code_points(&self.to_json())
    }

    /// Returns the canonical JSON of what a replacement depends on: resources, runtime, volumes.
    pub fn to_canonical_machine(&self) -> String {
        let mut machine = Sparse::default();
        machine.full("resources", resources(self.resources));
        machine.always("runtime", runtime(&self.runtime));
        machine.full("volumes", self.volumes.iter().map(volume).collect::<Vec<_>>());
        canonical_json::by_code_points(&machine.into_json())
    }
}

fn spread(spread: &Spread) -> Value {
    let mut object = Sparse::default();
    object.full("key", spread.key.as_deref().unwrap_or_default());
    object.unless("maxPerWorker", spread.max_per_worker, 0);
    object.full("notWith", json!(spread.not_with));
    object.into_json()
}

fn resources(resources: Resources) -> Value {
    let mut object = Sparse::default();
    object.always("cpuMilli", resources.cpu_milli);
    object.always("memMiB", resources.mem_mib);
    object.unless("diskMiB", resources.disk_mib, 0);
    object.into_json()
}

/// Returns the canonical form of a restart policy.
pub(in crate::fleet) fn restart(restart: Restart) -> Value {
    let default = Restart::default();
    let mut object = Sparse::default();
    object.word("policy", restart.policy, &RestartPolicy::WORDS);
    object.unless("backoffSeconds", restart.backoff_seconds, default.backoff_seconds);
    object.unless("maxBackoffSeconds", restart.max_backoff_seconds, default.max_backoff_seconds);
    object.unless("stableSeconds", restart.stable_seconds, default.stable_seconds);
    object.into_json()
}

fn ready(ready: &Ready) -> Value {
    let default = Ready::default();
    let mut object = Sparse::default();
    object.word("kind", ready.kind, &ReadyKind::WORDS);
    if let Some(port) = ready.port {
        object.always("port", port);
    }
    object.full("path", ready.path.as_deref().unwrap_or_default());
    object.full("match", ready.pattern.as_deref().unwrap_or_default());
    object.full("argv", json!(ready.argv));
    object.unless("intervalSeconds", ready.interval_seconds, default.interval_seconds);
    object.unless("timeoutSeconds", ready.timeout_seconds, default.timeout_seconds);
    object.into_json()
}

fn rollout(rollout: Rollout) -> Value {
    let default = Rollout::default();
    let mut object = Sparse::default();
    match rollout.max_unavailable {
        Amount::Count(count) => object.unless("maxUnavailable", count, 1),
        Amount::Percent(percent) => object.always("maxUnavailable", format!("{percent}%")),
    }
    object.unless("canary", rollout.canary, default.canary);
    object.unless("minReadySeconds", rollout.min_ready_seconds, default.min_ready_seconds);
    object.unless(
        "progressDeadlineSeconds",
        rollout.progress_deadline_seconds,
        default.progress_deadline_seconds,
    );
    object.unless("autoHold", rollout.auto_hold, default.auto_hold);
    object.unless("pause", rollout.pause, default.pause);
    object.into_json()
}

fn volume(volume: &Volume) -> Value {
    let mut object = Sparse::default();
    object.always("name", volume.name.as_str());
    object.always("sizeMiB", volume.size_mib);
    object.word("retain", volume.retain, &Retain::WORDS);
    object.unless("movable", volume.movable, false);
    object.into_json()
}

fn runtime(runtime: &Runtime) -> Value {
    let mut object = Sparse::default();
    object.always("driver", runtime.driver.word());
    object.word("arch", runtime.arch, &Arch::WORDS);
    for (key, artifact) in [
        ("kernel", &runtime.kernel),
        ("initrd", &runtime.initrd),
        ("firmware", &runtime.firmware),
        ("rootfs", &runtime.rootfs),
        ("config", &runtime.config),
    ] {
        if let Some(artifact) = artifact {
            object.always(key, artifact.to_json());
        }
    }
    object.full("cmdline", runtime.cmdline.as_str());
    object.full("disks", runtime.disks.iter().map(disk).collect::<Vec<_>>());
    object.full("argv", json!(runtime.argv));
    object.full("env", json!(runtime.env));
    object.full("cwd", runtime.cwd.as_deref().unwrap_or_default());
    object.full("nets", runtime.nets.iter().map(net).collect::<Vec<_>>());
    object.unless("vsock", runtime.vsock, false);
    object.full("artifacts", runtime.artifacts.iter().map(Artifact::to_json).collect::<Vec<_>>());
    object.into_json()
}

fn disk(disk: &Disk) -> Value {
    let mut object = Sparse::default();
    match &disk.source {
        DiskSource::Image(image) => object.always("image", image.to_json()),
        DiskSource::Volume(volume) => object.always("volume", volume.as_str()),
    }
    object.unless("readOnly", disk.read_only, false);
    object.word("format", disk.format, &DiskFormat::WORDS);
    object.into_json()
}

fn net(net: &Net) -> Value {
    let mut object = Sparse::default();
    object.word("mode", net.mode, &NetMode::WORDS);
    object.full("bridge", net.bridge.as_deref().unwrap_or_default());
    object.full("mac", net.mac.as_deref().unwrap_or_default());
    let ports: Vec<Value> =
        net.ports.iter().map(|port| json!({"guest": port.guest, "host": port.host})).collect();
    object.full("ports", ports);
    object.into_json()
}
