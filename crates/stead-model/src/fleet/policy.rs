//! How a fleet minds its workers: what `policy` of `fleet.yaml` says.

use std::time::Duration;

use super::Millis;
use super::vm::Sparse;
use crate::duration;
use crate::schema::{self, boolean, integer, object};
use crate::site::read;
use crate::yaml::{Fields, Key, Keys, Node, Walk};

/// How a fleet minds its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// When silence means what.
    pub liveness: Liveness,
    /// When so many are silent that it is the network.
    pub brake: Brake,
    /// When a publication stops so much that it waits for approval.
    pub guard: Guard,
    /// Whether higher priority takes the place of lower.
    pub preempt: bool,
    /// Moves per hour for balance.
    pub rebalance: u32,
    /// Whether labels a worker gives itself count.
    pub trust_worker_labels: bool,
    /// Whether one commit may have only one list of specs.
    pub require_same_specs: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            liveness: Liveness::default(),
            brake: Brake { percent: 50, min: 3 },
            guard: Guard { max_stop_percent: 50, min_instances: 10 },
            preempt: false,
            rebalance: 0,
            trust_worker_labels: true,
            require_same_specs: true,
        }
    }
}

/// When silence means what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// How often workers report.
    pub heartbeat: Duration,
    /// Silent for longer: shown.
    pub late: Duration,
    /// Silent for longer: nothing new is placed.
    pub unknown: Duration,
    /// How long a worker may run singletons unheard.
    pub lease: Duration,
    /// Silent for longer: its instances are placed elsewhere.
    pub lost: Duration,
    /// How long between two workers whose instances are placed elsewhere.
    pub move_per_worker: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            heartbeat: seconds(5),
            late: seconds(15),
            unknown: seconds(60),
            lease: seconds(120),
            lost: seconds(300),
            move_per_worker: seconds(10),
        }
    }
}

/// Returns a length of time in milliseconds.
pub fn millis(duration: Duration) -> Millis {
    Millis::try_from(duration.as_millis()).unwrap_or(Millis::MAX)
}

/// When so many workers are silent that nothing is placed elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brake {
    /// Of a hundred enrolled.
    pub percent: u32,
    /// At least so many.
    pub min: u32,
}

/// When a publication stops so much that it waits for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Of a hundred running instances of the group.
    pub max_stop_percent: u32,
    /// Where at least so many run.
    pub min_instances: u32,
}

/// `policy`.
pub const POLICY_KEYS: Keys = Keys {
    what: "`policy`",
    keys: &[
        Key::new("liveness", || object(&LIVENESS_KEYS), "when silence means what"),
        Key::new("brake", || object(&BRAKE_KEYS), "when nothing is placed elsewhere"),
        Key::new("guard", || object(&GUARD_KEYS), "when a publication waits for approval"),
        Key::new("preempt", boolean, "whether higher priority takes places; default `false`"),
        Key::new("rebalance", || integer(0, 10_000), "moves per hour for balance; default 0"),
        Key::new("trustWorkerLabels", boolean, "whether a worker's own labels count; default `true`"),
        Key::new("requireSameSpecs", boolean, "whether a commit has one list of specs; default `true`"),
    ],
    hints: &[],
};

const LIVENESS_KEYS: Keys = Keys {
    what: "`policy.liveness`",
    keys: &[
        Key::new("heartbeat", schema::duration, "how often workers report; default `5s`"),
        Key::new("late", schema::duration, "silent for longer: shown; default `15s`"),
        Key::new("unknown", schema::duration, "silent for longer: gets nothing new; default `60s`"),
        Key::new("lease", schema::duration, "how long singletons run unheard; default `120s`"),
        Key::new("lost", schema::duration, "silent for longer: moved away from; default `300s`"),
        Key::new("movePerWorker", schema::duration, "between two such workers; default `10s`"),
    ],
    hints: &[],
};

const BRAKE_KEYS: Keys = Keys {
    what: "`policy.brake`",
    keys: &[
        Key::new("percent", || integer(1, 100), "of the enrolled workers; default 50"),
        Key::new("min", || integer(1, 10_000), "at least so many; default 3"),
    ],
    hints: &[],
};

const GUARD_KEYS: Keys = Keys {
    what: "`policy.guard`",
    keys: &[
        Key::new("maxStopPercent", || integer(0, 100), "of what runs in the group; default 50"),
        Key::new("minInstances", || integer(0, 1_000_000), "where at least so many run; default 10"),
    ],
    hints: &[],
};

/// Reads `policy`.
pub(super) fn read(walk: &mut Walk<'_>, node: Node<'_>) -> Policy {
    let mut policy = Policy::default();
    let Some(fields) = walk.map(node, &POLICY_KEYS) else { return policy };
    if let Some(given) = read::map(walk, fields, "liveness", &LIVENESS_KEYS) {
        policy.liveness = read_liveness(walk, given);
    }
    if let Some(given) = read::map(walk, fields, "brake", &BRAKE_KEYS) {
        policy.brake.percent = read::number(walk, given, "percent", 1..=100).unwrap_or(policy.brake.percent);
        policy.brake.min = read::number(walk, given, "min", 1..=10_000).unwrap_or(policy.brake.min);
    }
    if let Some(given) = read::map(walk, fields, "guard", &GUARD_KEYS) {
        let guard = &mut policy.guard;
        guard.max_stop_percent =
            read::number(walk, given, "maxStopPercent", 0..=100).unwrap_or(guard.max_stop_percent);
        guard.min_instances =
            read::number(walk, given, "minInstances", 0..=1_000_000).unwrap_or(guard.min_instances);
    }
    policy.preempt = read::flag(walk, fields, "preempt").unwrap_or(policy.preempt);
    policy.rebalance = read::number(walk, fields, "rebalance", 0..=10_000).unwrap_or(policy.rebalance);
    let trust = read::flag(walk, fields, "trustWorkerLabels");
    policy.trust_worker_labels = trust.unwrap_or(policy.trust_worker_labels);
    let same = read::flag(walk, fields, "requireSameSpecs");
    policy.require_same_specs = same.unwrap_or(policy.require_same_specs);
    policy
}

fn read_liveness(walk: &mut Walk<'_>, fields: Fields<'_>) -> Liveness {
    let default = Liveness::default();
    let mut given = |key: &str, default: Duration| {
        fields.get(key).and_then(|node| walk.duration(node)).unwrap_or(default)
    };
    let liveness = Liveness {
        heartbeat: given("heartbeat", default.heartbeat),
        late: given("late", default.late),
        unknown: given("unknown", default.unknown),
        lease: given("lease", default.lease),
        lost: given("lost", default.lost),
        move_per_worker: given("movePerWorker", default.move_per_worker),
    };
    check_order(walk, fields, &liveness);
    liveness
}

/// Reports limits that are not each longer than the one before.
fn check_order(walk: &mut Walk<'_>, fields: Fields<'_>, liveness: &Liveness) {
    let order = [
        ("heartbeat", liveness.heartbeat),
        ("late", liveness.late),
        ("unknown", liveness.unknown),
        ("lease", liveness.lease),
        ("lost", liveness.lost),
    ];
    let mut refuse = |key: &str, message: String| {
        let node = fields.get(key).unwrap_or(fields.node());
        walk.report(node.error("fleet/out-of-range", message));
    };
    if liveness.heartbeat.is_zero() {
        refuse("heartbeat", "`heartbeat` is at least 1ms".to_owned());
    }
    for pair in order.windows(2) {
        if let [(shorter, low), (longer, high)] = pair
            && low >= high
        {
            let (low, high) = (duration::to_exact(*low), duration::to_exact(*high));
            refuse(longer, format!("`{longer}` ({high}) has to be longer than `{shorter}` ({low})"));
        }
    }
    let least = liveness.lease + Duration::from_secs(30);
    if liveness.lost > liveness.lease && liveness.lost < least {
        let message =
            format!("`lost` is at least 30s longer than `lease`: write `{}`", duration::to_exact(least));
        refuse("lost", message);
    }
}

impl Policy {
    /// Returns the canonical form.
    pub fn to_json(&self) -> serde_json::Value {
        let default = Self::default();
        let mut liveness = Sparse::default();
        for (key, value, default) in [
            ("heartbeat", self.liveness.heartbeat, default.liveness.heartbeat),
            ("late", self.liveness.late, default.liveness.late),
            ("unknown", self.liveness.unknown, default.liveness.unknown),
            ("lease", self.liveness.lease, default.liveness.lease),
            ("lost", self.liveness.lost, default.liveness.lost),
            ("movePerWorker", self.liveness.move_per_worker, default.liveness.move_per_worker),
        ] {
            liveness.unless(key, duration::to_exact(value), duration::to_exact(default));
        }
        let mut brake = Sparse::default();
        brake.unless("percent", self.brake.percent, default.brake.percent);
        brake.unless("min", self.brake.min, default.brake.min);
        let mut guard = Sparse::default();
        guard.unless("maxStopPercent", self.guard.max_stop_percent, default.guard.max_stop_percent);
        guard.unless("minInstances", self.guard.min_instances, default.guard.min_instances);
        let mut policy = Sparse::default();
        policy.full("liveness", liveness.into_json());
        policy.full("brake", brake.into_json());
        policy.full("guard", guard.into_json());
        policy.unless("preempt", self.preempt, default.preempt);
        policy.unless("rebalance", self.rebalance, default.rebalance);
        policy.unless("trustWorkerLabels", self.trust_worker_labels, default.trust_worker_labels);
        policy.unless("requireSameSpecs", self.require_same_specs, default.require_same_specs);
        policy.into_json()
    }
}
