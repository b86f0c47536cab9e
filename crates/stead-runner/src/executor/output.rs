//! An attempt's output: masked, written to its log files, and announced now and then.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_bundle::LogFile;
use stead_engine::run::Attempt;
use stead_model::event::{EventKind, Stream};
use stead_model::{HostName, TaskName};

use crate::clock;
use crate::operation::Output;
use crate::redact::MaskingStream;

use super::{Executor, Message};

/// At most one announcement per stream in this time.
pub(super) const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// The output of one attempt.
pub(super) struct AttemptOutput {
    executor: Arc<Executor>,
    streams: Arc<Mutex<[StreamLog; 2]>>,
}

struct StreamLog {
    task: TaskName,
    host: Option<HostName>,
    attempt: u32,
    stream: Stream,
    mask: MaskingStream,
    file: Option<LogFile>,
    /// Bytes not announced yet: how many, and which if somebody watches.
    unannounced: u64,
    announced: u64,
    watched: Option<Vec<u8>>,
    last: Option<std::time::Instant>,
    failure: Option<String>,
}

impl AttemptOutput {
    pub(super) fn new(executor: &Arc<Executor>, attempt: &Attempt) -> Self {
        let task = &executor.plan.task(attempt.task).name;
        let stream = |stream: Stream| StreamLog {
            task: task.clone(),
            host: attempt.host.clone(),
            attempt: attempt.attempt,
            stream,
            mask: executor.redactor.stream(),
            file: executor.recording.as_ref().map(|recording| {
                recording.directory.log_file(task, attempt.host.as_ref(), attempt.attempt, stream, 0)
            }),
            unannounced: 0,
            announced: 0,
            watched: executor.wants_output.then(Vec::new),
            last: None,
            failure: None,
        };
        Self {
            executor: Arc::clone(executor),
            streams: Arc::new(Mutex::new([stream(Stream::Stdout), stream(Stream::Stderr)])),
        }
    }

    /// Returns where the operation writes to.
    pub(super) fn sink(&self) -> Output {
        let streams = Arc::clone(&self.streams);
        let messages = self.executor.messages.clone();
        Output::new(move |stream, bytes| {
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            let log = &mut streams[usize::from(stream == Stream::Stderr)];
            let masked = log.mask.push(bytes);
            log.take(&masked);
            if let Some(message) = log.due()
                && let Err(error) = messages.try_send(message)
            {
                log.put_back(error.into_inner());
            }
        })
    }

    /// Announces what is due, if the dispatcher has room for it.
    pub(super) fn flush_some(&self) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for log in streams.iter_mut() {
            if let Some(message) = log.due()
                && let Err(error) = self.executor.messages.try_send(message)
            {
                log.put_back(error.into_inner());
            }
        }
    }

    /// Writes and announces all that is left.
    pub(super) async fn finish(self) {
        let mut messages = Vec::new();
        {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            for log in streams.iter_mut() {
                let rest = log.mask.finish();
                log.take(&rest);
                messages.extend(log.announce());
                messages.extend(log.failure.take().map(Message::RecordingFailed));
            }
        }
        for message in messages {
            self.executor.send(message).await;
        }
    }
}

impl StreamLog {
    fn take(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write(bytes)
        {
            self.failure.get_or_insert(error.to_string());
            self.file = None;
            return;
        }
        self.unannounced += bytes.len() as u64;
        if let Some(watched) = &mut self.watched {
            watched.extend_from_slice(bytes);
        }
    }

    fn due(&mut self) -> Option<Message> {
        let now = clock::instant();
        if self.last.is_some_and(|last| now.duration_since(last) < FLUSH_EVERY) {
            return None;
        }
        let message = self.announce()?;
        self.last = Some(now);
        Some(message)
    }

    fn announce(&mut self) -> Option<Message> {
        if self.unannounced == 0 {
            return None;
        }
        let (offset, len) = (self.announced, std::mem::take(&mut self.unannounced));
        self.announced += len;
        let file = self.file.as_ref().map(|file| file.relative_path().to_owned()).unwrap_or_default();
        let kind = EventKind::Log {
            task: self.task.clone(),
            host: self.host.clone(),
            attempt: self.attempt,
            stream: self.stream,
            file,
            offset,
            len,
        };
        Some(Message::Log(kind, self.watched.as_mut().map(std::mem::take)))
    }

    /// Takes back an announcement the dispatcher had no room for.
    fn put_back(&mut self, message: Message) {
        if let Message::Log(EventKind::Log { offset, len, .. }, bytes) = message {
            self.announced = offset;
            self.unannounced += len;
            if let (Some(watched), Some(bytes)) = (&mut self.watched, bytes) {
                *watched = bytes;
            }
        }
    }
}
