//! Events from work that outlives a single attempt, such as the roles of a run.

use std::sync::{Arc, OnceLock};

use stead_model::event::EventKind;
use stead_model::report::Warning;
use tokio::sync::mpsc;

use crate::executor::Message;

/// Adds events that decide nothing to a run, in the order they are given. Cheap to clone.
///
/// Connected when the run begins; what is said before that, or after its end, is lost.
#[derive(Clone, Debug, Default)]
pub struct Announcer(Arc<OnceLock<mpsc::Sender<Message>>>);

impl Announcer {
    /// Adds an event; waits while the dispatcher is busy.
    pub async fn say(&self, kind: EventKind) {
        self.send(Message::Note(kind)).await;
    }

    /// Adds a warning.
    pub async fn warn(&self, warning: Warning) {
        let Warning { code, text, role } = warning;
        self.say(EventKind::Warning { code, text, role }).await;
    }

    /// Adds an event that points to output, which observers may want to see.
    pub async fn log(&self, kind: EventKind, bytes: Option<Vec<u8>>) {
        self.send(Message::Log(kind, bytes)).await;
    }

    async fn send(&self, message: Message) {
        if let Some(to) = self.0.get() {
            // Without a dispatcher the run is over: nobody is left to tell.
            drop(to.send(message).await);
        }
    }

    pub(crate) fn connect(&self, to: &mpsc::Sender<Message>) {
        // A runner runs once, so nobody else has connected it.
        drop(self.0.set(to.clone()));
    }
}
