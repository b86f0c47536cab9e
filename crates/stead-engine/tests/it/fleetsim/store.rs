//! A store that outlives masters: one lease for who leads, and a number of the leader that every write is compared with.

use std::rc::Rc;

use stead_engine::fleet::cluster::Durable;
use stead_model::fleet::Millis;

#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) durable: Rc<Durable>,
    /// Counts leaders.
    leaders: u64,
    /// Who has the lease, and until when, by the store's clock.
    lease: Option<(usize, Millis)>,
    /// Writes of leaders that lead no more.
    pub(super) refused: u64,
}

impl Store {
    /// Returns who leads now, and its number.
    pub(super) fn holder(&self, now: Millis) -> Option<(usize, u64)> {
        let (index, until) = self.lease?;
        (now < until).then_some((index, self.leaders))
    }

    /// Whether the leader of this number leads now.
    pub(super) fn leads(&self, number: u64, now: Millis) -> bool {
        self.holder(now).is_some_and(|(_, holder)| holder == number)
    }

    /// Gives the lease to a master, and returns its number.
    pub(super) fn take_lease(&mut self, index: usize, until: Millis) -> u64 {
        self.leaders += 1;
        self.lease = Some((index, until));
        self.leaders
    }

    /// Makes the lease last longer, unless it has ended.
    pub(super) fn renew(&mut self, number: u64, now: Millis, until: Millis) -> bool {
        let leads = self.leads(number, now);
        if leads && let Some(lease) = &mut self.lease {
            lease.1 = until;
        }
        leads
    }

    /// Writes everything, and returns what there was before.
    pub(super) fn put(&mut self, durable: Rc<Durable>) -> Rc<Durable> {
        std::mem::replace(&mut self.durable, durable)
    }
}
