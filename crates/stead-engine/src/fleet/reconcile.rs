//! What a worker does so that what runs is what is assigned.
//!
//! A pure look at the assignment, at what is observed (processes, sockets, records; never memory) and at what is at hand.
//! It is called on every change and every drift interval, and gives the steps that can be taken *now*, in their order;
//! what has to wait comes with a later look. Bits are fetched and rooted **before** anything old is stopped, and a fetch
//! that fails never stops anything. What does not carry our mark is never touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::VmId;
use stead_model::fleet::state::{Assigned, Assignment};
use stead_model::fleet::vm::{Restart, RestartPolicy};
use stead_model::fleet::{Code, InstanceKey, Millis, VmSpec};
use stead_model::plan::Digest;

#[cfg(test)]
mod tests;

/// How many fetches and starts run at once.
pub const MOST_FETCHES: usize = 4;
/// How many starts run at once.
pub const MOST_STARTS: usize = 8;

/// A machine on this worker, as it is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// What it runs, by its record.
    pub vm_hash: Digest,
    /// Whether it is a singleton, by its record.
    pub is_singleton: bool,
    /// What it is doing.
    pub state: LocalState,
    /// How often it ended since it was last stable, by its record.
    pub attempts: u32,
    /// Not before, by its record.
    pub next_retry: Millis,
    /// Whether it was taken over since the agent began.
    pub is_adopted: bool,
}

/// What a machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalState {
    /// Its process is there: record, pid, start time and the driver agree.
    Running,
    /// It is on its way up.
    Starting,
    /// It is on its way down.
    Stopping,
    /// Its process ended.
    Gone {
        /// How.
        exit: Exit,
        /// How long it had run.
        ran_for: Millis,
        /// Whether the end is in its record already.
        is_counted: bool,
    },
    /// It lives and its record does not know it: whoever started it was ended over it.
    Begun,
    /// Only a record, or leftovers.
    Remains,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Somebody killed it.
    Killed,
    /// By itself, with this status.
    Status(i32),
    /// The driver could not start it and never will.
    Refused,
    /// The driver could not start it this time.
    Failed,
}

/// What a closure at hand is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closure {
    /// How far it is.
    pub state: ClosureState,
    /// How often fetching it failed.
    pub failures: u32,
    /// Not before.
    pub next_retry: Millis,
    /// Why it failed last.
    pub code: Option<Code>,
}

/// How far the bits of a spec are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClosureState {
    /// Not here.
    #[default]
    Absent,
    /// On their way.
    Fetching,
    /// Here, and compared.
    Fetched,
    /// Kept from being collected.
    Rooted,
}

/// Everything a worker knows.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Our machines.
    pub machines: BTreeMap<InstanceKey, Local>,
    /// Machines without our mark, by what they are called.
    pub foreign: BTreeSet<String>,
    /// The bits of specs.
    pub closures: BTreeMap<Digest, Closure>,
    /// Whether there is too little free disk.
    pub is_disk_low: bool,
    /// Until when singletons may run.
    pub lease_until: Millis,
    /// Specs this worker does not understand.
    pub unsupported: BTreeSet<Digest>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Take over a running machine: same process, no restart.
    Adopt(InstanceKey),
    /// Write down that a machine ended, before anything is done about it.
    Count {
        /// Which.
        instance: InstanceKey,
        /// How often it ended since it was last stable.
        attempts: u32,
        /// Not before.
        next_retry: Millis,
    },
    /// Stop a machine that runs, gracefully first.
    Stop {
        /// Which.
        instance: InstanceKey,
        /// Why.
        why: StopReason,
    },
    /// Remove what is left of a machine: socket, tap, layer, record; volumes as their spec says.
    Clean(InstanceKey),
    /// Get the bits of a spec.
    Fetch(Digest),
    /// Keep them from being collected.
    Root(Digest),
    /// Stop the old machine and start the new one, whose bits are here.
    Replace {
        /// Which.
        instance: InstanceKey,
        /// What it runs.
        from: Digest,
        /// What it is to run.
        to: Digest,
    },
    /// Start a machine, whose bits are here.
    Start {
        /// Which.
        instance: InstanceKey,
        /// What it is to run.
        vm_hash: Digest,
    },
}

/// Why a machine is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopReason {
    /// Nobody wants it here.
    NotAssigned,
    /// Nobody was heard in time, and two must never run.
    Fenced,
}

/// What a look gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// The steps that can be taken now, in their order.
    pub steps: Vec<Step>,
    /// What is wrong with instances.
    pub codes: BTreeMap<InstanceKey, Code>,
    /// When to look again for a wait that ends.
    pub wake_at: Option<Millis>,
}

/// Whether an assignment replaces the one that is applied: none that is older does.
pub fn is_newer(applied: &Assignment, incoming: &Assignment) -> bool {
    let order = |assignment: &Assignment| (assignment.epoch, assignment.generation, assignment.revision);
    incoming.epoch >= applied.epoch
        && incoming.generation >= applied.generation
        && order(incoming) > order(applied)
}

/// Returns how long to wait after the end number `attempts`.
pub fn backoff(restart: &Restart, attempts: u32) -> Millis {
    let first = Millis::from(restart.backoff_seconds) * 1000;
    let most = Millis::from(restart.max_backoff_seconds) * 1000;
    first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(most)
}

/// Whether a machine that ended so is started again.
pub fn restarts(policy: RestartPolicy, exit: Exit) -> bool {
    match (policy, exit) {
        (_, Exit::Failed) => true,
        (_, Exit::Refused) | (RestartPolicy::Never, Exit::Killed | Exit::Status(_)) => false,
        (RestartPolicy::OnFailure, Exit::Status(0)) => false,
        (RestartPolicy::Always | RestartPolicy::OnFailure, Exit::Killed | Exit::Status(_)) => true,
    }
}

/// Returns what has to be done though nothing is known of what is assigned: two singletons must never run.
pub fn fence_all(here: &Here, now: Millis) -> Reconciled {
    let mut look = Look::new(here, now);
    for (key, machine) in &here.machines {
        if machine.is_singleton {
            look.keep_fence(key, machine);
        }
    }
    look.done
}

/// What is decided while looking.
struct Look<'a> {
    here: &'a Here,
    now: Millis,
    done: Reconciled,
    fetches: usize,
    starts: usize,
    wanted_closures: BTreeSet<Digest>,
}

/// Returns what can be done now.
pub fn reconcile(assignment: &Assignment, here: &Here, now: Millis) -> Reconciled {
    let mut look = Look::new(here, now);
    let assigned: BTreeMap<&InstanceKey, &Assigned> =
        assignment.instances.iter().map(|assigned| (&assigned.instance, assigned)).collect();
    for (key, machine) in &here.machines {
        if !assigned.contains_key(key) {
            look.dismiss(key, machine);
        }
    }
    for (key, assigned) in assigned {
        match assignment.specs.get(assigned.spec as usize) {
            Some(spec) => look.attend(key, assigned, spec),
            None => look.leave(key),
        }
    }
    look.done.steps.sort_by_key(rank);
    look.done
}

/// Steps that free something come before those that need something.
fn rank(step: &Step) -> u8 {
    match step {
        Step::Adopt(_) => 0,
        Step::Count { .. } => 1,
        Step::Stop { .. } => 2,
        Step::Clean(_) => 3,
        Step::Root(_) => 4,
        Step::Replace { .. } => 5,
        Step::Start { .. } => 6,
        Step::Fetch(_) => 7,
    }
}

impl<'a> Look<'a> {
    fn new(here: &'a Here, now: Millis) -> Self {
        let fetches = here.closures.values().filter(|closure| closure.state == ClosureState::Fetching);
        let starts = here.machines.values().filter(|machine| machine.state == LocalState::Starting);
        Self {
            here,
            now,
            done: Reconciled::default(),
            fetches: fetches.count(),
            starts: starts.count(),
            wanted_closures: BTreeSet::new(),
        }
    }

    fn step(&mut self, step: Step) {
        self.done.steps.push(step);
    }

    fn say(&mut self, key: &InstanceKey, code: Code) {
        self.done.codes.insert(key.clone(), code);
    }

    fn wake(&mut self, at: Millis) {
        let sooner = self.done.wake_at.is_none_or(|wake| at < wake);
        if sooner {
            self.done.wake_at = Some(at);
        }
    }

    /// Removes a machine of ours that nobody wants.
    fn dismiss(&mut self, key: &InstanceKey, machine: &Local) {
        self.say(key, Code::Orphan);
        if machine.is_singleton && !self.keep_fence(key, machine) {
            return;
        }
        match machine.state {
            LocalState::Running | LocalState::Starting | LocalState::Begun => {
                self.step(Step::Stop { instance: key.clone(), why: StopReason::NotAssigned });
            }
            LocalState::Gone { .. } | LocalState::Remains => self.step(Step::Clean(key.clone())),
            LocalState::Stopping => {}
        }
    }

    /// Lets an instance be whose spec did not come along, for this version does not understand it or nobody has it any more:
    /// what runs stays.
    fn leave(&mut self, key: &InstanceKey) {
        self.say(key, Code::SpecUnsupported);
        if let Some(machine) = self.here.machines.get(key).filter(|machine| machine.is_singleton) {
            self.keep_fence(key, machine);
        }
    }

    /// Brings one instance nearer to what is assigned.
    fn attend(&mut self, key: &InstanceKey, assigned: &Assigned, spec: &Arc<VmSpec>) {
        let machine = self.here.machines.get(key);
        let is_singleton = spec.singleton || machine.is_some_and(|machine| machine.is_singleton);
        if is_singleton && self.now >= self.here.lease_until {
            match machine {
                Some(machine) => drop(self.keep_fence(key, machine)),
                None => self.say(key, Code::Fenced),
            }
            return;
        }
        if let Some(machine) = machine
            && machine.state == LocalState::Running
            && !machine.is_adopted
        {
            self.step(Step::Adopt(key.clone()));
        }
        if is_singleton {
            self.wake(self.here.lease_until);
        }
        let stays = assigned.leaving || assigned.frozen;
        match machine {
            // It is only here until its replacement is ready, or stays as it is.
            Some(machine) if stays && machine.vm_hash != assigned.vm_hash => {
                self.keep_alive(key, machine, spec)
            }
            Some(machine) if machine.vm_hash == assigned.vm_hash => self.keep_alive(key, machine, spec),
            Some(machine) => self.replace(key, machine, assigned.vm_hash, spec),
            None if assigned.leaving => {}
            None => self.start(key, assigned.vm_hash),
        }
    }

    /// Whether a singleton may be here; if nobody may know it to be alone, it is stopped, whatever else is done to it.
    fn keep_fence(&mut self, key: &InstanceKey, machine: &Local) -> bool {
        if self.now < self.here.lease_until {
            self.wake(self.here.lease_until);
            return true;
        }
        self.say(key, Code::Fenced);
        match machine.state {
            LocalState::Running | LocalState::Starting | LocalState::Stopping | LocalState::Begun => {
                self.step(Step::Stop { instance: key.clone(), why: StopReason::Fenced });
                false
            }
            LocalState::Gone { .. } | LocalState::Remains => true,
        }
    }

    /// Sees to a machine that runs what it should, or ran it.
    fn keep_alive(&mut self, key: &InstanceKey, machine: &Local, spec: &VmSpec) {
        match machine.state {
            LocalState::Running => {}
            LocalState::Starting => self.say(key, Code::Starting),
            LocalState::Stopping => {}
            LocalState::Begun | LocalState::Remains => self.start(key, machine.vm_hash),
            LocalState::Gone { exit, ran_for, is_counted } => {
                let code = match exit {
                    Exit::Killed => Code::ProcessGone,
                    Exit::Status(_) => Code::Exited,
                    Exit::Refused | Exit::Failed => Code::DriverError,
                };
                let restarts = restarts(spec.restart.policy, exit);
                let has_run = matches!(exit, Exit::Killed | Exit::Status(_));
                let is_looping = restarts && has_run && machine.attempts >= super::rollout::CRASH_LOOP;
                self.say(key, if is_looping { Code::CrashLoop } else { code });
                if !restarts {
                    return;
                }
                if !is_counted {
                    let was_stable = ran_for >= Millis::from(spec.restart.stable_seconds) * 1000;
                    let attempts = if was_stable { 1 } else { machine.attempts.saturating_add(1) };
                    let next_retry = self.now.saturating_add(backoff(&spec.restart, attempts));
                    self.step(Step::Count { instance: key.clone(), attempts, next_retry });
                    self.wake(next_retry);
                } else if self.now >= machine.next_retry {
                    self.start(key, machine.vm_hash);
                } else {
                    self.wake(machine.next_retry);
                }
            }
        }
    }

    /// Exchanges a machine for one of another spec, once its bits are here.
    fn replace(&mut self, key: &InstanceKey, machine: &Local, to: Digest, spec: &VmSpec) {
        if machine.state == LocalState::Stopping {
            return;
        }
        if !self.prepare(key, to) {
            // The old one is looked after until the new one can be had.
            let code = self.done.codes.get(key).copied();
            self.keep_alive(key, machine, spec);
            self.done.codes.extend(code.map(|code| (key.clone(), code)));
            return;
        }
        if self.starts >= MOST_STARTS {
            return;
        }
        self.starts += 1;
        self.step(Step::Replace { instance: key.clone(), from: machine.vm_hash, to });
    }

    /// Starts a machine, once its bits are here.
    fn start(&mut self, key: &InstanceKey, vm_hash: Digest) {
        if !self.prepare(key, vm_hash) || self.starts >= MOST_STARTS {
            return;
        }
        self.starts += 1;
        self.done.codes.entry(key.clone()).or_insert(Code::Starting);
        self.step(Step::Start { instance: key.clone(), vm_hash });
    }

    /// Whether the bits of a spec are here and kept; if not, sees to it.
    fn prepare(&mut self, key: &InstanceKey, vm_hash: Digest) -> bool {
        if self.here.unsupported.contains(&vm_hash) {
            self.say(key, Code::SpecUnsupported);
            return false;
        }
        let closure = self.here.closures.get(&vm_hash).copied().unwrap_or_default();
        let is_first = self.wanted_closures.insert(vm_hash);
        match closure.state {
            ClosureState::Rooted => return true,
            ClosureState::Fetched => {
                if is_first {
                    self.step(Step::Root(vm_hash));
                }
            }
            ClosureState::Fetching => self.say(key, Code::Fetching),
            ClosureState::Absent if self.here.is_disk_low => self.say(key, Code::DiskPressure),
            ClosureState::Absent if self.now < closure.next_retry => {
                self.say(key, closure.code.unwrap_or(Code::FetchFailed));
                self.wake(closure.next_retry);
            }
            ClosureState::Absent => {
                self.say(key, Code::Fetching);
                if is_first && self.fetches < MOST_FETCHES {
                    self.fetches += 1;
                    self.step(Step::Fetch(vm_hash));
                }
            }
        }
        false
    }
}

/// Returns when a fetch that failed so often is tried again.
pub fn fetch_retry_at(failures: u32, now: Millis) -> Millis {
    now.saturating_add(
        Millis::from(5_000_u32).saturating_mul(1 << failures.saturating_sub(1).min(16)).min(300_000),
    )
}

/// Returns the closures that need no longer be kept, oldest first: neither running, nor released, nor among the
/// `keep_previous` that each VM of `here`, assigned or still there, had last. `history` has the closures of each VM, the
/// newest last.
pub fn collectable(
    history: &BTreeMap<VmId, Vec<Digest>>,
    here: &BTreeSet<VmId>,
    in_use: &BTreeSet<Digest>,
    keep_previous: usize,
) -> Vec<Digest> {
    let mut kept: BTreeSet<Digest> = in_use.clone();
    for hashes in history.iter().filter(|(vm, _)| here.contains(*vm)).map(|(_, hashes)| hashes) {
        let earlier = hashes.iter().rev().filter(|hash| !in_use.contains(*hash)).take(keep_previous);
        kept.extend(earlier);
    }
    let mut gone: Vec<Digest> =
        history.values().flatten().filter(|hash| !kept.contains(*hash)).copied().collect();
    gone.sort();
    gone.dedup();
    gone
}
