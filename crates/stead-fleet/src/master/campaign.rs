//! Who leads: a key that lives as long as its lease, and a number that grows with every leader.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stead_model::fleet::Millis;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Begun, LEASE, RENEWAL, Settings};
use crate::boottime;
use crate::store::{
    Change, Committed, Compare, Entry, FleetStore, LeaseId, Range, Revision, StoreError, Txn,
};

/// Who leads.
pub(super) const LEADER: &str = "meta/leader";

/// Counts leaders.
pub(super) const EPOCH: &str = "meta/epoch";

/// How long is waited before a store that did not answer is asked again.
const BREATHER: Duration = Duration::from_millis(500);

/// Who leads, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaderRecord {
    /// What it is called.
    pub(super) name: String,
    /// Where it is.
    pub(super) address: String,
    /// Counts leaders.
    pub(super) epoch: u64,
}

/// What a campaign tells the owner.
#[derive(Debug)]
pub(super) enum News {
    /// This master leads, and this is what is stored.
    Elected {
        /// As what.
        record: LeaderRecord,
        /// What every write compares.
        fence: Compare,
        /// When the lease was asked for, since boot.
        renewed: Millis,
        /// What is stored.
        entries: Vec<Entry>,
    },
    /// The lease lives on: when that was asked for, since boot.
    Renewed(Millis),
    /// This master leads no more.
    Deposed,
    /// Another one leads, and this is what is stored.
    Following {
        /// Who.
        record: LeaderRecord,
        /// What is stored.
        entries: Vec<Entry>,
    },
    /// What is stored has changed.
    Changed(Vec<Change>),
    /// The store does not answer.
    Away(String),
    /// It does again, this master still leads, and this is what is stored.
    Back(Range),
}

/// One master's part in who leads.
pub(super) struct Campaign {
    name: String,
    address: String,
    store: Arc<dyn FleetStore>,
    news: mpsc::Sender<News>,
    /// Somebody found that the store does not answer.
    nudge: Arc<Notify>,
    begun: Begun,
}

/// How a campaign went.
enum Attempt {
    Won {
        record: LeaderRecord,
        fence: Compare,
        lease: LeaseId,
        renewed: Millis,
    },
    Lost {
        record: LeaderRecord,
    },
    /// Somebody was faster; look again.
    Again,
}

impl Campaign {
    pub(super) fn new(
        settings: &Settings,
        news: mpsc::Sender<News>,
        (nudge, begun): (Arc<Notify>, Begun),
    ) -> Self {
        Self {
            name: settings.name.clone(),
            address: settings.address.clone(),
            store: Arc::clone(&settings.store),
            news,
            nudge,
            begun,
        }
    }

    /// Campaigns until `stop`; then it leads no more.
    pub(super) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let ended = match self.attempt().await {
                // Who leads gives its lease back when it stops.
                Ok(Attempt::Won { record, fence, lease, renewed }) => {
                    self.lead(record, fence, lease, renewed, &stop).await
                }
                Ok(Attempt::Lost { record }) => tokio::select! {
                    ended = self.follow(record) => ended,
                    () = stop.cancelled() => return,
                },
                Ok(Attempt::Again) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                let why = error.to_string();
                // Who starts a master hears of it; later there is only the owner to tell.
                self.begun.tell(Err(error.into()));
                self.tell(News::Away(why)).await;
                tokio::select! {
                    () = sleep(BREATHER) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn tell(&self, news: News) {
        // Without its owner a campaign has nobody to tell; it is about to be stopped.
        self.news.send(news).await.ok();
    }

    async fn attempt(&self) -> Result<Attempt, StoreError> {
        if let Some(entry) = self.store.get(LEADER).await? {
            return Ok(Attempt::Lost { record: serde_json::from_slice(&entry.value).unwrap_or_default() });
        }
        let epoch = self.store.get(EPOCH).await?;
        let last: u64 = epoch
            .as_ref()
            .and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse().ok())
            .unwrap_or(0);
        let record = LeaderRecord { name: self.name.clone(), address: self.address.clone(), epoch: last + 1 };
        let renewed = boottime::now();
        let lease = self.store.lease(LEASE).await?;
        let text = serde_json::to_vec(&record).unwrap_or_default();
        let txn = Txn::default()
            .when(LEADER, 0)
            .when(EPOCH, epoch.map_or(0, |entry| entry.revision))
            .put(EPOCH, record.epoch.to_string())
            .put_with(LEADER, text, lease);
        match self.store.txn(txn).await? {
            Committed::Done(revision) => {
                let fence = Compare { key: LEADER.to_owned(), revision };
                Ok(Attempt::Won { record, fence, lease, renewed })
            }
            Committed::Refused => {
                self.store.revoke(lease).await?;
                Ok(Attempt::Again)
            }
        }
    }

    /// Leads until the lease is gone.
    async fn lead(
        &self,
        record: LeaderRecord,
        fence: Compare,
        lease: LeaseId,
        renewed: Millis,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let entries = self.store.range("", None).await?.entries;
        self.tell(News::Elected { record, fence: fence.clone(), renewed, entries }).await;
        let mut is_away = false;
        loop {
            let pause = if is_away { BREATHER } else { RENEWAL };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.nudge.notified() => is_away = true,
                () = stop.cancelled() => {
                    // Another one need not wait for the lease to end.
                    timeout(RENEWAL, self.store.revoke(lease)).await.ok();
                    return Ok(());
                }
            }
            let asked = boottime::now();
            match self.renew(lease, &fence, is_away).await {
                Ok(None) => self.tell(News::Renewed(asked)).await,
                Ok(Some(range)) => {
                    is_away = false;
                    self.tell(News::Renewed(asked)).await;
                    self.tell(News::Back(range)).await;
                }
                Err(StoreError::LeaseEnded) => {
                    self.tell(News::Deposed).await;
                    return Ok(());
                }
                Err(error) => {
                    is_away = true;
                    self.tell(News::Away(error.to_string())).await;
                }
            }
        }
    }

    /// Renews the lease; returns what is stored if the store was away.
    async fn renew(
        &self,
        lease: LeaseId,
        fence: &Compare,
        was_away: bool,
    ) -> Result<Option<Range>, StoreError> {
        self.store.keepalive(lease).await?;
        if !was_away {
            return Ok(None);
        }
        let range = self.store.range("", None).await?;
        let leads = range.entries.iter().any(|entry| entry.key == LEADER && entry.revision == fence.revision);
        if leads { Ok(Some(range)) } else { Err(StoreError::LeaseEnded) }
    }

    /// Follows until nobody leads.
    async fn follow(&self, record: LeaderRecord) -> Result<(), StoreError> {
        let range = self.store.range("", None).await?;
        if !range.entries.iter().any(|entry| entry.key == LEADER) {
            return Ok(());
        }
        let from: Revision = range.revision + 1;
        self.tell(News::Following { record, entries: range.entries }).await;
        let mut watch = self.store.watch("", from).await?;
        loop {
            let changes = match watch.next().await {
                Ok(changes) => changes,
                Err(StoreError::Compacted) => return Ok(()),
                Err(error) => return Err(error),
            };
            let is_over = changes.iter().any(|change| change.key() == LEADER);
            self.tell(News::Changed(changes)).await;
            if is_over {
                return Ok(());
            }
        }
    }
}
