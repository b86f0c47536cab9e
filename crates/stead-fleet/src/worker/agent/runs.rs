//! Runs of instances: when they end, whether they are ready, and what there is to tell of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_engine::fleet::reconcile::{LocalState, Reconciled};
use stead_model::fleet::state::{Assignment, Seen};
use stead_model::fleet::vm::{ReadyKind, Resources, VmSpec};
use stead_model::fleet::{Code, InstanceKey};
use stead_model::plan::Digest;

use super::{Agent, Done, Watched, assigned, clock};
use crate::events::Ev;
use crate::worker::files::Cause;
use crate::worker::observe::{Found, Sight};
use crate::worker::ready::{self, Probe, Run, STARTED};
use crate::worker::report::{self, absent};

impl Agent {
    /// Looks after the runs there are: notices their ends, and whether they are ready.
    pub(super) fn watch_runs(&mut self, applied: &Assignment, sight: &Sight) {
        self.watched.retain(|key, _| sight.instances.get(key).is_some_and(is_running));
        for (key, found) in sight.instances.iter().filter(|(_, found)| is_running(found)) {
            if self.busy.contains_key(key) {
                continue;
            }
            let spec = spec_now(applied, found);
            let run = Run::of(&found.record, &spec);
            if self.watched.get(key).is_some_and(|watched| watched.run != run) {
                self.watched.remove(key);
            }
            if !self.watched.contains_key(key) {
                let Some(watched) = self.watch_run(key, found, run.clone()) else { continue };
                self.watched.insert(key.clone(), watched);
            }
            self.probe(key, found, &spec, run);
        }
    }

    pub(super) fn watch_run(&mut self, key: &InstanceKey, found: &Found, run: Run) -> Option<Watched> {
        let driver = Arc::clone(self.hands.machines.get(found.record.driver).ok()?);
        let id = found.machine.as_ref()?.id.clone();
        let ended = key.clone();
        let end = self.work.spawn(async move {
            ready::ended(driver, id).await;
            Done::Ended(ended)
        });
        Some(Watched { run, why_not: Some("it is new".to_owned()), probe: None, end })
    }

    pub(super) fn probe(&mut self, key: &InstanceKey, found: &Found, spec: &Arc<VmSpec>, run: Run) {
        let Some(watched) = self.watched.get_mut(key) else { return };
        match spec.ready.kind {
            ReadyKind::Started => {
                watched.why_not = (found.uptime < STARTED).then(|| "it is new".to_owned());
                if found.uptime < STARTED {
                    let at = clock::now() + (STARTED - found.uptime);
                    self.wake(at);
                }
                return;
            }
            // What a console has shown it has shown.
            ReadyKind::Serial if watched.why_not.is_none() => return,
            ReadyKind::Tcp | ReadyKind::Http | ReadyKind::Serial | ReadyKind::Exec => {}
        }
        if watched.probe.is_some() {
            return;
        }
        let (Some(machine), Ok(driver)) =
            (found.machine.clone(), self.hands.machines.get(found.record.driver))
        else {
            return;
        };
        let probe = Probe {
            driver: Arc::clone(driver),
            kind: found.record.driver,
            root_dir: self.hands.machines.root_dir(found.record.driver).map(ToOwned::to_owned),
            machine,
            console_from: found.record.console_from,
            spec: Arc::clone(spec),
        };
        let (probed, was) = (key.clone(), watched.why_not.clone());
        watched.probe =
            Some(self.work.spawn(async move { Done::Probed(probed, run, probe.until_changed(was).await) }));
    }

    /// Notes what there is to tell.
    pub(super) fn see(&mut self, sight: &Sight, reconciled: &Reconciled, applied: Option<&Assignment>) {
        let assigned: BTreeMap<&InstanceKey, Digest> = applied
            .iter()
            .flat_map(|applied| &applied.instances)
            .map(|assigned| (&assigned.instance, assigned.vm_hash))
            .collect();
        let mut seen = BTreeMap::new();
        self.used = Resources::default();
        for (key, found) in &sight.instances {
            let told = self.see_one(key, found, assigned.contains_key(key), applied.is_some(), reconciled);
            if told.state.is_live() {
                self.used = self.used.plus(found.record.spec.resources);
            }
            // Once in each of its runs, whoever watches it.
            if told.ready
                && !found.record.has_told(Ev::Ready)
                && let Some(record) = self.hands.files.record(key)
            {
                let cause = Cause { ev: Ev::Ready, reason: String::new() };
                self.hands.tell(record, cause).ok();
            }
            seen.insert(key.clone(), told);
        }
        for (key, hash) in assigned {
            if seen.contains_key(key) {
                continue;
            }
            let closure = self.closure(&hash);
            let mut told = absent(key);
            told.state = report::word_of_bits(closure.state);
            told.code = reconciled.codes.get(key).copied();
            told.detail = self.fetch_words(&hash).unwrap_or_default();
            if let Some(busy) = self.busy.get(key) {
                told.state = report::word(busy.state, true);
            }
            if let Some(paused) = self.paused.get(key) {
                (told.code, told.detail) = (Some(paused.code), paused.message.clone());
            }
            seen.insert(key.clone(), told);
        }
        self.figures.saw(seen.values().map(|seen| seen.state));
        self.told.update(seen);
    }

    /// Returns how much of the bits of a spec has come, or why they cannot be had.
    fn fetch_words(&self, hash: &Digest) -> Option<String> {
        let coming = self.progress.get(hash).map(|progress| progress.describe());
        coming.or_else(|| self.fetch_messages.get(hash).cloned())
    }

    pub(super) fn see_one(
        &self,
        key: &InstanceKey,
        found: &Found,
        is_assigned: bool,
        is_known: bool,
        reconciled: &Reconciled,
    ) -> Seen {
        let record = &found.record;
        let state = self.busy.get(key).map_or(found.state, |busy| busy.state);
        let watched = self.watched.get(key).filter(|_| state == LocalState::Running);
        let why_not = watched.and_then(|watched| watched.why_not.clone());
        let is_ready = watched.is_some() && why_not.is_none();
        let mut code = reconciled.codes.get(key).copied();
        let mut detail = detail_of(found);
        if state == LocalState::Running && code.is_none() && !is_ready {
            // What only has to be alive for a moment is on its way up until then.
            let is_new = record.spec.ready.kind == ReadyKind::Started;
            code = Some(if is_new { Code::Starting } else { Code::NotReady });
            detail = why_not.unwrap_or_default();
        }
        if code.is_none() && self.fetcher.is_rooted(&record.vm_hash) == Some(true) {
            code = Some(Code::BuiltLocally);
        }
        let wanted = self.applied.as_ref().and_then(|applied| assigned(applied, key));
        if let Some(words) = wanted.and_then(|wanted| self.fetch_words(&wanted.vm_hash)) {
            detail = words;
        }
        if code == Some(Code::CrashLoop) {
            detail = format!("{} ends, the last: {}", record.attempts, detail_of(found));
        }
        if let Some(paused) = self.paused.get(key) {
            (code, detail) = (Some(paused.code), paused.message.clone());
        }
        Seen {
            key: key.clone(),
            vm_hash: Some(record.vm_hash),
            state: report::word(state, is_assigned || !is_known),
            ready: is_ready,
            uptime_ms: if state == LocalState::Running { found.uptime } else { 0 },
            attempts: record.attempts,
            code,
            detail,
            group: Some(record.group.clone()),
            takes: record.spec.resources,
        }
    }
}

pub(super) fn is_running(found: &Found) -> bool {
    found.state == LocalState::Running
}

/// Returns how an instance ended, or why it could not be started.
pub(super) fn detail_of(found: &Found) -> String {
    if let Some(failure) = &found.record.failure {
        return failure.message.clone();
    }
    match found.state {
        LocalState::Gone { .. } => found
            .machine
            .as_ref()
            .and_then(|machine| machine.exit.as_ref())
            .map(|exit| exit.reason.clone())
            .unwrap_or_default(),
        LocalState::Running
        | LocalState::Starting
        | LocalState::Stopping
        | LocalState::Begun
        | LocalState::Remains => String::new(),
    }
}

/// Returns the spec that an instance runs: as it is assigned now, or as it was when it was made.
pub(super) fn spec_now(applied: &Assignment, found: &Found) -> Arc<VmSpec> {
    let record = &found.record;
    let assigned = assigned(applied, &record.instance).filter(|assigned| assigned.vm_hash == record.vm_hash);
    let spec = assigned.and_then(|assigned| applied.specs.get(assigned.spec as usize));
    Arc::clone(spec.unwrap_or(&record.spec))
}
