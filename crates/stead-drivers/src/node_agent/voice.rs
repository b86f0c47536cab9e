//! What a job and the server have to say to each other while it runs: what it reads, and what it has written so far.
//!
//! What is told here may be lost: the report of the job's end has everything, and that is kept on the disk.

use std::convert::Infallible;
use std::time::Duration;

use stead_model::node::wire::NodeReport;
use stead_model::{MessageId, NodeName};
use tokio::sync::watch;

use super::jobs;
use crate::server_client::{ClientError, ServerClient};

/// How often the server is asked for what a job reads, and with which pauses.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_secs(1);
/// As long as nothing new is told: what comes meanwhile goes along.
const REST: Duration = Duration::from_millis(100);

/// Speaks with the server for one job.
#[derive(Clone, Debug)]
pub(super) struct Voice {
    pub(super) client: ServerClient,
    pub(super) node: NodeName,
}

impl Voice {
    /// Returns what the job reads. A server that is away for a moment is asked again.
    pub(super) async fn input(&self, job: &MessageId) -> Result<Vec<u8>, ClientError> {
        let mut tries = 1;
        loop {
            match self.client.job_input(&self.node, job).await {
                Err(error) if error.may_pass() && tries < TRIES => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Tells the server what the job has written, whenever that is more. Never ends by itself.
    pub(super) async fn tell(&self, job: &MessageId, mut heard: watch::Receiver<String>) -> Infallible {
        while heard.changed().await.is_ok() {
            let report = NodeReport { stdout: heard.borrow_and_update().clone(), ..jobs::running(job) };
            // The next lines bring these along.
            self.client.report(&self.node, &report).await.ok();
            tokio::time::sleep(REST).await;
        }
        std::future::pending().await
    }
}

/// Whole lines that a job has written.
pub(super) struct Lines(watch::Sender<String>);

impl Lines {
    pub(super) fn channel() -> (Self, watch::Receiver<String>) {
        let (sender, receiver) = watch::channel(String::new());
        (Self(sender), receiver)
    }

    /// Shows the whole lines of what was written: whatever follows, they stay the same.
    pub(super) fn show(&self, written: &[u8]) {
        let end = written.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let whole = String::from_utf8_lossy(written.get(..end).unwrap_or_default());
        self.0.send_if_modified(|shown| {
            let is_more = whole.len() > shown.len();
            if is_more {
                *shown = whole.into_owned();
            }
            is_more
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_are_shown() {
        let (lines, mut heard) = Lines::channel();
        lines.show(b"one");
        assert!(!heard.has_changed().unwrap());
        lines.show(b"one\ntw\xc3");
        assert_eq!(*heard.borrow_and_update(), "one\n");
        lines.show("one\ntw\u{f6}".as_bytes());
        assert!(!heard.has_changed().unwrap());
        lines.show("one\ntw\u{f6}\n".as_bytes());
        assert_eq!(*heard.borrow_and_update(), "one\ntw\u{f6}\n");
    }
}
