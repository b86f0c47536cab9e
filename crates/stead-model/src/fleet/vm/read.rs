//! Reads VMs from what an evaluator prints and from what travels, every problem at once with VM and field.

use std::collections::BTreeSet;

use super::keys::{
    MOST_CPU, MOST_DISK, MOST_MEMORY, MOST_REPLICAS, MOST_SECONDS, READY_KEYS, RESOURCES_KEYS, RESTART_KEYS,
    ROLLOUT_KEYS, SCHEDULING_KEYS, SPREAD_KEYS, VM_DEFAULTS_KEYS, VM_KEYS, VOLUME_KEYS,
};
use super::read_runtime::{read_runtime, texts};
use super::{
    Amount, Driver, OnLost, Ready, ReadyKind, Resources, Restart, RestartPolicy, Retain, Rollout, Runtime,
    Spread, VmSpec, Volume, rules,
};
use crate::diagnostic::{Diagnostic, Diagnostics, Source};
use crate::fleet::labels::{Labels, Requirement, read_key, read_labels, read_selector};
use crate::id::{GroupName, VmId, WorkerName};
use crate::site::read;
use crate::yaml::{self, Codes, Fields, Node, Value, Walk};

/// What `fleet.yaml` places under every VM that does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmDefaults {
    /// When an ended instance starts again.
    pub restart: Option<Restart>,
    /// How a new spec reaches instances.
    pub rollout: Option<Rollout>,
    /// When an instance is ready.
    pub ready: Option<Ready>,
    /// What happens on a lost worker.
    pub on_lost: Option<OnLost>,
    /// The graceful part of a stop.
    pub stop_seconds: Option<u32>,
    /// What makes and runs it.
    pub driver: Option<Driver>,
}

/// How VMs are read.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    /// The group an evaluator reads them for, which they must not name; none: each says it itself.
    pub group: Option<&'a GroupName>,
    /// What holds where a VM is silent.
    pub defaults: &'a VmDefaults,
    /// The driver where neither VM nor defaults name one.
    pub driver: Option<Driver>,
}

/// Scheduling fields of a VM that something else describes otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// What makes and runs it.
    pub driver: Option<Driver>,
    /// What one instance takes.
    pub resources: Option<Resources>,
    pub(in crate::fleet) common: Common,
}

/// The fields that VMs and entries of `vms` share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::fleet) struct Common {
    labels: Labels,
    selector: Vec<Requirement>,
    spread: Spread,
    pin: Option<WorkerName>,
    priority: i32,
    restart: Option<Restart>,
    ready: Option<Ready>,
    rollout: Option<Rollout>,
    on_lost: Option<OnLost>,
    singleton: bool,
    stop_seconds: Option<u32>,
    volumes: Vec<Volume>,
}

impl Common {
    fn into_spec(self, frame: Frame, defaults: &VmDefaults) -> VmSpec {
        VmSpec {
            id: frame.id,
            group: frame.group,
            replicas: frame.replicas,
            labels: self.labels,
            selector: self.selector,
            spread: self.spread,
            pin: self.pin,
            priority: self.priority,
            resources: frame.resources,
            restart: self.restart.or(defaults.restart).unwrap_or_default(),
            ready: self.ready.or_else(|| defaults.ready.clone()).unwrap_or_default(),
            rollout: self.rollout.or(defaults.rollout).unwrap_or_default(),
            on_lost: self.on_lost.or(defaults.on_lost).unwrap_or_default(),
            singleton: self.singleton,
            stop_seconds: self.stop_seconds.or(defaults.stop_seconds).unwrap_or(30),
            volumes: self.volumes,
            runtime: frame.runtime,
        }
    }
}

/// What is not common to VMs and entries of `vms`.
pub struct Frame {
    /// The VM.
    pub id: VmId,
    /// Its group.
    pub group: GroupName,
    /// How many.
    pub replicas: u32,
    /// How large.
    pub resources: Resources,
    /// What runs.
    pub runtime: Runtime,
}

impl Scheduling {
    /// Returns the VM that these fields, `frame` and `defaults` make.
    pub fn to_spec(&self, frame: Frame, defaults: &VmDefaults) -> VmSpec {
        self.common.clone().into_spec(frame, defaults)
    }
}

/// Returns the VMs of `source`: a map from id to VM, or a list of VMs with `id`; sorted by id.
pub fn read_vms(source: &Source, reading: &Reading<'_>, diagnostics: &mut Diagnostics) -> Vec<VmSpec> {
    let Some(tree) = yaml::read(source, Codes::FLEET, diagnostics) else { return Vec::new() };
    let root = tree.root();
    let mut found: Vec<(VmSpec, Node<'_>)> = Vec::new();
    match root.value() {
        Value::Map(entries) => {
            for (key, value) in entries {
                let vm = read_vm(diagnostics, value, Some(key), reading);
                found.extend(vm.map(|vm| (vm, key)));
            }
        }
        Value::List(items) => {
            for item in items {
                let vm = read_vm(diagnostics, item, None, reading);
                found.extend(vm.map(|vm| (vm, item.get("id").unwrap_or(item))));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) => {
            let message = format!("expected VMs by id, or a list of VMs, found {}", root.describe());
            diagnostics.push(root.bad(message));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
    for pair in found.windows(2) {
        if let [(first, there), (second, here)] = pair
            && first.id == second.id
        {
            let message = format!("VM `{}` is there twice", second.id);
            diagnostics
                .push(here.error("fleet/duplicate-id", message).related(there.place(), "it is also here"));
        }
    }
    found.dedup_by(|(a, _), (b, _)| a.id == b.id);
    found.into_iter().map(|(vm, _)| vm).collect()
}

/// Returns the VMs of a list as it travels: each with its id and group, nothing filled in.
pub fn read_specs(source: &Source, diagnostics: &mut Diagnostics) -> Vec<VmSpec> {
    let reading = Reading { group: None, defaults: &VmDefaults::default(), driver: None };
    read_vms(source, &reading, diagnostics)
}

/// Reads one VM; every problem names it.
fn read_vm(
    diagnostics: &mut Diagnostics,
    node: Node<'_>,
    key: Option<Node<'_>>,
    reading: &Reading<'_>,
) -> Option<VmSpec> {
    let mut own = Diagnostics::default();
    let vm = read_named(&mut Walk::new(&mut own), node, key, reading);
    let written = key.or_else(|| node.get("id")).and_then(Node::as_text).filter(|name| !name.is_empty());
    let is_sound = !own.has_errors();
    for mut problem in own.0 {
        if let Some(name) = written {
            problem = Diagnostic { message: format!("VM `{name}`: {}", problem.message), ..problem };
        }
        diagnostics.push(problem);
    }
    vm.filter(|_| is_sound)
}

fn read_named(
    walk: &mut Walk<'_>,
    node: Node<'_>,
    key: Option<Node<'_>>,
    reading: &Reading<'_>,
) -> Option<VmSpec> {
    let fields = walk.map(node, &VM_KEYS)?;
    let id = read_id(walk, fields, key);
    let group = read_group(walk, fields, reading);
    let replicas = read::number(walk, fields, "replicas", 0..=MOST_REPLICAS);
    let common = read_common(walk, fields);
    let resources = fields.get("resources").and_then(|node| read_resources(walk, node));
    let driver = reading.defaults.driver.or(reading.driver);
    let runtime = fields.get("runtime").and_then(|node| read_runtime(walk, node, driver));
    let frame = Frame {
        id: id?,
        group: group?,
        replicas: replicas.unwrap_or(1),
        resources: resources?,
        runtime: runtime?,
    };
    let vm = common.into_spec(frame, reading.defaults);
    rules::check(walk, fields, &vm);
    Some(vm)
}

fn read_id(walk: &mut Walk<'_>, fields: Fields<'_>, key: Option<Node<'_>>) -> Option<VmId> {
    let inside = fields.get("id");
    let Some(key) = key else {
        if inside.is_none() {
            let problem = fields.node().error("fleet/missing-field", "a VM in a list needs the key `id`");
            walk.report(problem);
        }
        return inside.and_then(|node| walk.id(node));
    };
    let id: VmId = walk.id(key)?;
    if let Some(inside) = inside
        && inside.as_text() != Some(id.as_str())
    {
        let message = format!("`id` is {}, and the VM is called `{id}`", inside.describe());
        walk.report(inside.error("fleet/conflict", message).help("leave it out"));
    }
    Some(id)
}

fn read_group(walk: &mut Walk<'_>, fields: Fields<'_>, reading: &Reading<'_>) -> Option<GroupName> {
    let given = fields.get("group");
    match (reading.group, given) {
        (Some(group), None) => Some(group.clone()),
        (Some(_), Some(node)) => {
            walk.report(
                node.error("fleet/conflict", "the group is set by where the VM is, never by hand")
                    .help("leave it out, and put the VM into `orchestrator.groups.NAME.vms`"),
            );
            None
        }
        (None, None) => Some(GroupName::default_group()),
        (None, Some(node)) => walk.id(node),
    }
}

fn read_common(walk: &mut Walk<'_>, fields: Fields<'_>) -> Common {
    Common {
        labels: fields.get("labels").map(|node| read_labels(walk, node)).unwrap_or_default(),
        selector: fields.get("selector").map(|node| read_selector(walk, node)).unwrap_or_default(),
        spread: fields.get("spread").map(|node| read_spread(walk, node)).unwrap_or_default(),
        pin: fields.get("pin").filter(|node| node.as_text() != Some("")).and_then(|node| walk.id(node)),
        priority: read::number(walk, fields, "priority", -1000..=1000).unwrap_or_default(),
        restart: fields.get("restart").and_then(|node| read_restart(walk, node)),
        ready: fields.get("ready").and_then(|node| read_ready(walk, node)),
        rollout: fields.get("rollout").and_then(|node| read_rollout(walk, node)),
        on_lost: read::word(walk, fields, "onLost", &OnLost::WORDS),
        singleton: read::flag(walk, fields, "singleton").unwrap_or_default(),
        stop_seconds: read::number(walk, fields, "stopSeconds", 0..=MOST_SECONDS),
        volumes: read_volumes(walk, fields),
    }
}

/// Reads an entry of `vms` in `fleet.yaml`.
pub(in crate::fleet) fn read_scheduling(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Scheduling> {
    let fields = walk.map(node, &SCHEDULING_KEYS)?;
    Some(Scheduling {
        driver: read::word(walk, fields, "driver", &Driver::WORDS),
        resources: fields.get("resources").and_then(|node| read_resources(walk, node)),
        common: read_common(walk, fields),
    })
}

/// Reads `defaults` of `fleet.yaml`.
pub(in crate::fleet) fn read_defaults(walk: &mut Walk<'_>, node: Node<'_>) -> VmDefaults {
    let Some(fields) = walk.map(node, &VM_DEFAULTS_KEYS) else { return VmDefaults::default() };
    VmDefaults {
        restart: fields.get("restart").and_then(|node| read_restart(walk, node)),
        rollout: fields.get("rollout").and_then(|node| read_rollout(walk, node)),
        ready: fields.get("ready").and_then(|node| read_ready(walk, node)),
        on_lost: read::word(walk, fields, "onLost", &OnLost::WORDS),
        stop_seconds: read::number(walk, fields, "stopSeconds", 0..=MOST_SECONDS),
        driver: read::word(walk, fields, "driver", &Driver::WORDS),
    }
}

fn read_spread(walk: &mut Walk<'_>, node: Node<'_>) -> Spread {
    let Some(fields) = walk.map(node, &SPREAD_KEYS) else { return Spread::default() };
    let mut not_with = BTreeSet::new();
    if let Some(items) = fields.get("notWith").and_then(|node| walk.list(node, "ids of VMs")) {
        for item in items {
            not_with.extend(walk.id::<VmId>(item));
        }
    }
    Spread {
        key: fields
            .get("key")
            .filter(|node| node.as_text() != Some(""))
            .and_then(|node| read_key(walk, node)),
        max_per_worker: read::number(walk, fields, "maxPerWorker", 0..=MOST_REPLICAS).unwrap_or_default(),
        not_with,
    }
}

pub(super) fn read_resources(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Resources> {
    let fields = walk.map(node, &RESOURCES_KEYS)?;
    let cpu = read::number(walk, fields, "cpuMilli", 1..=MOST_CPU);
    let mem = read::number(walk, fields, "memMiB", 1..=MOST_MEMORY);
    let disk = read::number(walk, fields, "diskMiB", 0..=MOST_DISK).unwrap_or_default();
    Some(Resources { cpu_milli: cpu?, mem_mib: mem?, disk_mib: disk })
}

fn read_restart(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Restart> {
    let fields = walk.map(node, &RESTART_KEYS)?;
    let default = Restart::default();
    let mut seconds =
        |key: &str, default| read::number(walk, fields, key, 1..=MOST_SECONDS).unwrap_or(default);
    let (backoff_seconds, max_backoff_seconds, stable_seconds) = (
        seconds("backoffSeconds", default.backoff_seconds),
        seconds("maxBackoffSeconds", default.max_backoff_seconds),
        seconds("stableSeconds", default.stable_seconds),
    );
    let policy = read::word(walk, fields, "policy", &RestartPolicy::WORDS).unwrap_or_default();
    if backoff_seconds > max_backoff_seconds {
        walk.report(fields.node().error(
            "fleet/out-of-range",
            format!(
                "the first wait of {backoff_seconds} s is longer than the longest, {max_backoff_seconds} s"
            ),
        ));
    }
    Some(Restart { policy, backoff_seconds, max_backoff_seconds, stable_seconds })
}

fn read_ready(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Ready> {
    let fields = walk.map(node, &READY_KEYS)?;
    let default = Ready::default();
    let ready = Ready {
        kind: read::word(walk, fields, "kind", &ReadyKind::WORDS).unwrap_or_default(),
        port: read::number(walk, fields, "port", 1..=65535),
        // The default is nothing that somebody says.
        path: read::text(walk, fields, "path").filter(|path| path != "/"),
        pattern: read::text(walk, fields, "match"),
        argv: fields.get("argv").map(|node| texts(walk, node)).unwrap_or_default(),
        interval_seconds: read::number(walk, fields, "intervalSeconds", 1..=MOST_SECONDS)
            .unwrap_or(default.interval_seconds),
        timeout_seconds: read::number(walk, fields, "timeoutSeconds", 1..=MOST_SECONDS)
            .unwrap_or(default.timeout_seconds),
    };
    rules::check_ready(walk, fields, &ready);
    Some(ready)
}

fn read_rollout(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Rollout> {
    let fields = walk.map(node, &ROLLOUT_KEYS)?;
    let default = Rollout::default();
    let max_unavailable = fields.get("maxUnavailable").and_then(|node| read_amount(walk, node));
    Some(Rollout {
        max_unavailable: max_unavailable.unwrap_or(default.max_unavailable),
        canary: read::number(walk, fields, "canary", 0..=MOST_REPLICAS).unwrap_or(default.canary),
        min_ready_seconds: read::number(walk, fields, "minReadySeconds", 0..=MOST_SECONDS)
            .unwrap_or(default.min_ready_seconds),
        progress_deadline_seconds: read::number(walk, fields, "progressDeadlineSeconds", 1..=MOST_SECONDS)
            .unwrap_or(default.progress_deadline_seconds),
        auto_hold: read::flag(walk, fields, "autoHold").unwrap_or(default.auto_hold),
        pause: read::flag(walk, fields, "pause").unwrap_or(default.pause),
    })
}

fn read_amount(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Amount> {
    let Some(text) = node.as_text() else {
        let count = walk.integer(node, 1..=MOST_REPLICAS)?;
        return u32::try_from(count).ok().map(Amount::Count);
    };
    let percent = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match percent.and_then(|digits| digits.parse::<u32>().ok()) {
        Some(percent @ 0..=100) => Some(Amount::Percent(percent)),
        Some(_) | None => {
            walk.report(
                node.bad(format!("expected a count or a percentage, found {}", node.describe()))
                    .help("write `2` or `\"25%\"`, at most `\"100%\"`"),
            );
            None
        }
    }
}

fn read_volumes(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<Volume> {
    let mut volumes: Vec<Volume> = Vec::new();
    let Some(items) = fields.get("volumes").and_then(|node| walk.list(node, "volumes")) else {
        return volumes;
    };
    for item in items {
        let Some(fields) = walk.map(item, &VOLUME_KEYS) else { continue };
        let name = fields.get("name").and_then(|node| walk.id::<VmId>(node));
        let size_mib = read::number(walk, fields, "sizeMiB", 1..=MOST_DISK);
        let retain = read::word(walk, fields, "retain", &Retain::WORDS).unwrap_or_default();
        let movable = read::flag(walk, fields, "movable").unwrap_or_default();
        let (Some(name), Some(size_mib)) = (name, size_mib) else { continue };
        if volumes.iter().any(|volume| volume.name == name) {
            walk.report(item.error("fleet/duplicate-id", format!("the volume `{name}` is there twice")));
            continue;
        }
        volumes.push(Volume { name, size_mib, retain, movable });
    }
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    volumes
}
