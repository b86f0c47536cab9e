//! Files of the driver, from a target: the lists came with the operation, content is asked for by hash.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use stead_model::executor::{SourceEntry, SourceTree};
use stead_runner::files::{Content, DriverFiles, Exclude, Place};
use stead_runner::operation::OpError;
use tokio::sync::{mpsc, oneshot};

use super::host::Event;

/// The driver's files that one operation may use.
#[derive(Debug)]
pub(super) struct RemoteFiles {
    id: u32,
    sources: BTreeMap<String, Result<Arc<SourceTree>, String>>,
    events: mpsc::UnboundedSender<Event>,
}

impl RemoteFiles {
    pub(super) fn new(
        id: u32,
        sources: BTreeMap<String, Result<SourceTree, String>>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Self {
        Self {
            id,
            sources: sources.into_iter().map(|(name, tree)| (name, tree.map(Arc::new))).collect(),
            events,
        }
    }
}

/// Asks the session and waits for its answer. Call it on threads that may wait.
pub(super) fn ask<T>(
    events: &mpsc::UnboundedSender<Event>,
    question: impl FnOnce(oneshot::Sender<Result<T, OpError>>) -> Event,
) -> Result<T, OpError> {
    let (answer, answered) = oneshot::channel();
    let gone = || OpError::operation("the executor's session ended");
    events.send(question(answer)).map_err(|_| gone())?;
    answered.blocking_recv().unwrap_or_else(|_| Err(gone()))
}

impl DriverFiles for RemoteFiles {
    // What is left out was left out when the list was made.
    fn tree(&self, source: &str, _exclude: &Exclude) -> Result<Arc<SourceTree>, OpError> {
        match self.sources.get(source) {
            Some(Ok(tree)) => Ok(Arc::clone(tree)),
            Some(Err(error)) => Err(OpError::permanent(error.clone())),
            None => Err(OpError::permanent(format!("the driver sent nothing for source `{source}`"))),
        }
    }

    fn content(&self, _source: &str, entry: &SourceEntry) -> Result<PathBuf, OpError> {
        let content = Content { size: entry.size, sha256: entry.sha256.clone() };
        ask(&self.events, |answer| Event::Want { id: self.id, content, answer })
    }

    fn keep(&self, _place: &Place, file: &mut File, content: &Content) -> Result<String, OpError> {
        let file = file.try_clone().map_err(|error| OpError::io("cannot fetch", &error))?;
        ask(&self.events, |answer| Event::Keep { id: self.id, file, content: content.clone(), answer })
    }
}
