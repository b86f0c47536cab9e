//! An attempt's output: masked, written to its log files, and announced now and then.
//!
//! Each stream of an attempt is one file, and what is announced of it is contiguous: operations that a closure carries out at
//! the same time share what they write to, and what goes on in a file, in this process or after a crash, goes on there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use stead_bundle::LogFile;
use stead_engine::run::Attempt;
use stead_model::event::{EventKind, Stream};
use stead_model::plan::TaskIndex;
use stead_model::{HostName, TaskName};

use crate::clock;
use crate::operation::Output;
use crate::record::Recording;
use crate::redact::MaskingStream;

use super::{Executor, Message};

/// At most one announcement per stream in this time.
pub(super) const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// The output of one attempt, or of one operation of a closure.
pub(super) struct AttemptOutput {
    executor: Arc<Executor>,
    /// Its own, where the streams are shared: a secret that comes in two pieces may have others' bytes in between.
    masks: Arc<Mutex<[MaskingStream; 2]>>,
    streams: Streams,
}

/// Standard output and standard error.
type Streams = Arc<Mutex<[StreamLog; 2]>>;

/// What closures are writing to: several of their operations may be under way for one attempt on one host.
#[derive(Default)]
pub(crate) struct OpenStreams(Mutex<HashMap<OnHost, Weak<Mutex<[StreamLog; 2]>>>>);

/// The attempt of a task on a host.
type OnHost = (TaskIndex, HostName, u32);

struct StreamLog {
    task: TaskName,
    host: Option<HostName>,
    attempt: u32,
    stream: Stream,
    recording: Option<Arc<Recording>>,
    file: Option<LogFile>,
    /// Where what is announced of the file ends; unknown before it is opened.
    announced: Option<u64>,
    /// Bytes not announced yet: how many, and which if somebody watches.
    unannounced: u64,
    watched: Option<Vec<u8>>,
    last: Option<std::time::Instant>,
    failure: Option<String>,
}

impl AttemptOutput {
    /// Returns the output of an attempt that nobody else writes to.
    pub(super) fn new(executor: &Arc<Executor>, attempt: &Attempt) -> Self {
        Self::to(executor, Arc::new(Mutex::new(streams(executor, attempt))))
    }

    /// Returns the output of an operation that a closure carries out on `host`, perhaps beside others.
    pub(super) fn shared(executor: &Arc<Executor>, attempt: &Attempt, host: &HostName) -> Self {
        let key = (attempt.task, host.clone(), attempt.attempt);
        let mut open = executor.open_streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        let streams = open.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            open.retain(|_, streams| streams.strong_count() > 0);
            let streams = Arc::new(Mutex::new(streams(executor, attempt)));
            open.insert(key, Arc::downgrade(&streams));
            streams
        });
        Self::to(executor, streams)
    }

    fn to(executor: &Arc<Executor>, streams: Streams) -> Self {
        let masks = [executor.redactor.stream(), executor.redactor.stream()];
        Self { executor: Arc::clone(executor), masks: Arc::new(Mutex::new(masks)), streams }
    }

    /// Returns where the operation writes to.
    pub(super) fn sink(&self) -> Output {
        let (masks, streams) = (Arc::clone(&self.masks), Arc::clone(&self.streams));
        let messages = self.executor.messages.clone();
        Output::new(move |stream, bytes| {
            let which = usize::from(stream == Stream::Stderr);
            let mut masks = masks.lock().unwrap_or_else(PoisonError::into_inner);
            let masked = masks[which].push(bytes);
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            let log = &mut streams[which];
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
            let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            for (mask, log) in masks.iter_mut().zip(streams.iter_mut()) {
                log.take(&mask.finish());
                messages.extend(log.announce());
                messages.extend(log.failure.take().map(Message::RecordingFailed));
            }
        }
        for message in messages {
            self.executor.send(message).await;
        }
    }
}

fn streams(executor: &Executor, attempt: &Attempt) -> [StreamLog; 2] {
    let task = &executor.plan.task(attempt.task).name;
    [Stream::Stdout, Stream::Stderr].map(|stream| StreamLog {
        task: task.clone(),
        host: attempt.host.clone(),
        attempt: attempt.attempt,
        stream,
        recording: executor.recording.clone(),
        file: executor.recording.as_ref().map(|recording| {
            recording.directory.log_file(task, attempt.host.as_ref(), attempt.attempt, stream)
        }),
        announced: None,
        unannounced: 0,
        watched: executor.wants_output.then(Vec::new),
        last: None,
        failure: None,
    })
}

impl StreamLog {
    fn take(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        match self.file.as_mut().map(|file| file.write(bytes)) {
            None => self.unannounced += bytes.len() as u64,
            Some(Ok(start)) => {
                let announced = self.announced.unwrap_or_else(|| self.announced_before(start));
                // What a dead driver wrote and did not announce is announced with what comes now.
                self.unannounced = start + bytes.len() as u64 - announced;
                self.announced = Some(announced);
            }
            Some(Err(error)) => {
                self.failure.get_or_insert(error.to_string());
                self.file = None;
                return;
            }
        }
        if let Some(watched) = &mut self.watched {
            watched.extend_from_slice(bytes);
        }
    }

    /// Returns how much is announced of a file in which writing goes on at `start`.
    fn announced_before(&self, start: u64) -> u64 {
        let (Some(recording), Some(file)) = (&self.recording, &self.file) else { return start };
        recording.announced_before(file.relative_path()).unwrap_or(start).min(start)
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
        let (offset, len) = (self.announced.unwrap_or(0), std::mem::take(&mut self.unannounced));
        self.announced = Some(offset + len);
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
            self.announced = Some(offset);
            self.unannounced += len;
            if let (Some(watched), Some(bytes)) = (&mut self.watched, bytes) {
                *watched = bytes;
            }
        }
    }
}
