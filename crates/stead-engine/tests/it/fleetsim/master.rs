//! The master's edge: it feeds the cluster, writes what it says to the store before it answers, and may die at any write.

use stead_engine::fleet::cluster::{Cluster, EventKind, Reply};
use stead_model::fleet::Millis;
use stead_model::fleet::state::{Heartbeat, Outcome};

use super::world::{Message, World};

impl World {
    /// Writes the master's state. It may die before or after; then nothing is answered.
    fn save(&mut self) -> bool {
        let Some(master) = &self.master else { return false };
        if self.dice.one_in(self.odds.crash) {
            self.crash_master();
            return false;
        }
        let master_epoch = master.epoch;
        let durable = master.durable.clone();
        if !self.store.write(master_epoch, &durable) {
            self.master = None;
            return false;
        }
        if self.dice.one_in(self.odds.crash) {
            self.crash_master();
            return false;
        }
        true
    }

    /// The master dies; what it had not written is gone.
    pub(super) fn crash_master(&mut self) {
        self.note("master dies");
        self.master = None;
        self.master_back_at = self.now + 2_000 + self.dice.below(20_000);
    }

    /// Another leader takes over; the old one stands still and goes on later.
    pub(super) fn pause_master(&mut self) {
        if let Some(master) = self.master.take() {
            self.note("master pauses");
            self.paused = Some(master);
            self.master_back_at = self.now + 8_000;
        }
    }

    pub(super) fn act_master(&mut self) {
        if self.master.is_none() && self.now >= self.master_back_at {
            self.store.epoch += 1;
            let durable = self.store.durable.clone();
            self.master = Some(Cluster::resume(durable, self.store.epoch, self.now));
            self.note("master begins");
            // The one that was paused wakes up and finds that it is not the leader any more.
            if let Some(mut old) = self.paused.take() {
                old.tick(self.now);
                assert!(!self.store.write(old.epoch, &old.durable), "deposed-leader-writes-nothing");
            }
        }
        if !self.now.is_multiple_of(1_000) {
            return;
        }
        self.publish();
        let now = self.now;
        if self.master.is_none() {
            return;
        }
        self.remember_available();
        if let Some(master) = &mut self.master {
            master.tick(now);
        }
        if self.save() {
            self.take_events();
        }
    }

    fn take_events(&mut self) {
        let Some(master) = &mut self.master else { return };
        for event in master.take_events() {
            let text = format!("{event:?}");
            if event.ev == EventKind::Moved {
                self.moved += 1;
            }
            self.events.push(event);
            for byte in text.bytes() {
                self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }

    /// The publisher: the newest commit, `fleet` first, tried until it is there.
    fn publish(&mut self) {
        let Some((commit, fleet_done)) = self.publishing else { return };
        let id = self.commits[commit].id.clone();
        let Some(master) = &mut self.master else { return };
        let generation = master.reserve(&id);
        if !self.save() {
            return;
        }
        let message = self.publication(commit, !fleet_done, generation);
        let now = self.now;
        let Some(master) = &mut self.master else { return };
        let verdict = master.publish(&message, now);
        if !self.save() || self.dice.one_in(self.odds.loss) {
            return;
        }
        self.note(&format!("{:?}", verdict.outcome));
        match verdict.outcome {
            Outcome::Accepted | Outcome::Duplicate | Outcome::Held | Outcome::Suspended | Outcome::Stale => {
                self.publishing = (!fleet_done).then_some((commit, true));
            }
            Outcome::Conflict => {}
            Outcome::Invalid => panic!("a good commit is refused: {:?}", verdict.problems),
        }
    }

    pub(super) fn take_heartbeat(&mut self, heartbeat: &Heartbeat, sent_at: Millis) {
        let now = self.now;
        let Some(master) = &mut self.master else { return };
        let reply = master.heartbeat(heartbeat, now);
        let facts_are_new = heartbeat.facts.is_some();
        if facts_are_new && !self.save() {
            return;
        }
        let to = self.workers.iter().position(|worker| worker.name == heartbeat.worker);
        if let Some(to) = to
            && !self.workers[to].is_deaf
        {
            let Reply { lease, needs_full, .. } = reply;
            self.send(Message::Reply { to, sent_at, lease, needs_full });
        }
    }

    pub(super) fn take_question(&mut self, from: usize, generation: u64, revision: u64) {
        let Some(master) = &self.master else { return };
        let name = self.workers[from].name.clone();
        if master.is_current(&name, generation, revision) || self.workers[from].is_deaf {
            return;
        }
        // Only what is stored is handed out: a tick that was not written died with its master.
        if let Some(assignment) = master.assignment(&name) {
            self.send(Message::Answer { to: from, assignment });
        }
    }
}
