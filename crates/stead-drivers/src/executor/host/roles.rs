//! Roles of a session: their supervisors are held here, their events kept until the driver has them, their logs read
//! from the disk as the connection takes them. A driver that is slow or away costs no memory and no byte.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_model::ErrorClass;
use stead_model::executor::{PIECE, Pipe, Received, Reply, RoleRequest};
use stead_model::role::{RoleEvent, RoleExit, StopReason, SupervisorRequest};
use tokio::sync::{mpsc, watch};

use crate::roles::held::{self, Start};

use super::{Event, HostSession};

/// One role, from its start until its driver knows how it ended.
pub(super) struct RoleWork {
    requests: mpsc::UnboundedSender<SupervisorRequest>,
    closing: watch::Sender<bool>,
    events: VecDeque<(u64, RoleEvent)>,
    /// The number of the last event there was, and of the last that was written to this connection.
    last: u64,
    sent: u64,
    logs: [Tail; 2],
}

/// A log that grows, on its way to the driver.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// How much there is, as the supervisor says.
    known: u64,
    sent: u64,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None, known: 0, sent: 0 }
    }

    fn next_piece(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let left = usize::try_from(self.known.saturating_sub(self.sent)).unwrap_or(usize::MAX).min(PIECE);
        if left == 0 {
            return Ok(None);
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        let mut bytes = vec![0; left];
        file.read_exact_at(&mut bytes, self.sent)?;
        let offset = self.sent;
        self.sent += left as u64;
        Ok(Some((offset, bytes)))
    }
}

impl RoleWork {
    fn new(
        requests: mpsc::UnboundedSender<SupervisorRequest>,
        closing: watch::Sender<bool>,
        logs: &Path,
    ) -> Self {
        let logs = ["stdout.log", "stderr.log"].map(|name| Tail::new(logs.join(name)));
        Self { requests, closing, events: VecDeque::new(), last: 0, sent: 0, logs }
    }

    /// Stops the role by its rule and hears no more requests.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(super) fn stop(&self, reason: StopReason, kill: bool) {
        // One that has ended needs nothing.
        drop(self.requests.send(SupervisorRequest::Stop { reason, kill }));
    }

    /// Begins again after what has arrived: the connection is another.
    pub(super) fn rewind(&mut self, seen: &Received) {
        self.forget(seen);
        self.sent = seen.events;
        for (tail, seen) in self.logs.iter_mut().zip([seen.stdout, seen.stderr]) {
            tail.sent = seen.min(tail.known);
        }
    }

    /// Forgets what has arrived.
    pub(super) fn forget(&mut self, seen: &Received) {
        while self.events.front().is_some_and(|(number, _)| *number <= seen.events) {
            self.events.pop_front();
        }
    }

    /// Takes note of how far the logs are.
    pub(super) fn note_growth(&mut self, stdout_bytes: u64, stderr_bytes: u64) {
        (self.logs[0].known, self.logs[1].known) = (stdout_bytes, stderr_bytes);
    }

    /// Takes an event that is not the last.
    fn push(&mut self, event: RoleEvent) {
        if let RoleEvent::Logged { stdout_bytes, stderr_bytes } = &event {
            self.note_growth(*stdout_bytes, *stderr_bytes);
        }
        // How far the logs are is told once it is so, and only the newest of it: nothing waits behind it.
        let is_stale = |(number, event): &(u64, RoleEvent)| {
            *number > self.sent && matches!(event, RoleEvent::Logged { .. })
        };
        if self.events.back().is_some_and(is_stale) {
            self.events.pop_back();
            self.last -= 1;
        }
        self.last += 1;
        self.events.push_back((self.last, event));
    }

    /// Returns the next thing to be sent: events before output, except those that tell of output.
    pub(super) fn next_piece(&mut self) -> Option<(Reply, Option<Vec<u8>>)> {
        let next = self.events.iter().find(|(number, _)| *number > self.sent).cloned();
        if let Some((number, event)) = &next
            && !matches!(event, RoleEvent::Logged { .. })
        {
            self.sent = *number;
            return Some((Reply::Role { number: *number, event: event.clone() }, None));
        }
        for (tail, stream) in self.logs.iter_mut().zip([Pipe::Stdout, Pipe::Stderr]) {
            match tail.next_piece() {
                Ok(Some((offset, bytes))) => return Some((Reply::Out { stream, offset }, Some(bytes))),
                Ok(None) => {}
                // It cannot be read any more: what is there is all that comes.
                Err(_) => tail.known = tail.sent,
            }
        }
        let (number, event) = next?;
        self.sent = number;
        Some((Reply::Role { number, event }, None))
    }

    /// Returns the last word on the role, to be sent after all its output.
    fn end(&mut self, event: RoleEvent) -> Reply {
        if let RoleEvent::Exited(RoleExit { stdout_bytes, stderr_bytes, .. }) = &event {
            self.note_growth(*stdout_bytes, *stderr_bytes);
        }
        self.last += 1;
        Reply::Role { number: self.last, event }
    }
}

impl HostSession {
    /// Starts a role under a supervisor.
    pub(super) fn begin_role(&mut self, id: u32, request: RoleRequest) {
        // Sent again by a driver that could not know whether it had arrived.
        if self.works.contains_key(&id) {
            return;
        }
        let RoleRequest { order, work } = request;
        self.new_work(id, None);
        let started = self.site.make_control(&work, &order.role).and_then(|control| {
            let executable = std::env::current_exe();
            let executable = executable
                .map_err(|error| stead_runner::operation::OpError::io("cannot find this program", &error))?;
            Ok((executable, control))
        });
        let (executable, control) = match started {
            Ok(started) => started,
            Err(error) => {
                return self.take(Event::Answered(
                    id,
                    Reply::Error { message: error.message, class: Some(error.class) },
                ));
            }
        };
        let note = Some(control.note());
        self.hold(id, Start { executable, order, note, logs: control.directory, plain: None });
    }

    /// Holds the supervisor of a role, or of a program in its place.
    pub(super) fn hold(&mut self, id: u32, start: Start) {
        let grace = std::time::Duration::from_secs(u64::from(start.order.stop.grace_seconds) + 2);
        self.grace = self.grace.max(grace);
        let (requests, requested) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(false);
        let role = RoleWork::new(requests, closing, &start.logs);
        if let Some(work) = self.works.get_mut(&id) {
            work.role = Some(role);
        }
        let events = self.events.0.clone();
        self.tasks.spawn(async move {
            let told = events.clone();
            held::hold(start, requested, closed, |event| drop(told.send(Event::Role(id, event)))).await;
            drop(events.send(Event::RoleOver(id)));
        });
    }

    pub(super) fn take_role_event(&mut self, id: u32, event: RoleEvent) {
        let Some(work) = self.works.get_mut(&id) else { return };
        let Some(role) = &mut work.role else { return };
        if work.exec.is_some() {
            return self.take_exec_event(id, event);
        }
        match event.is_last() {
            true => work.answer = Some((role.end(event), false)),
            false => role.push(event),
        }
    }

    /// Nothing more comes of a role; without a last word its supervisor was killed.
    pub(super) fn take_role_over(&mut self, id: u32) {
        let Some(work) = self.works.get_mut(&id) else { return };
        if work.answer.is_none() {
            let message = "the role's supervisor was killed; what it had started was ended".to_owned();
            work.answer = Some((Reply::Error { message, class: Some(ErrorClass::Operation) }, false));
        }
    }

    /// Answers what takes a while on a thread of its own.
    pub(super) fn answer_away(
        &mut self,
        id: u32,
        work: impl FnOnce() -> Result<Reply, stead_runner::operation::OpError> + Send + 'static,
    ) {
        if self.works.contains_key(&id) {
            return;
        }
        self.new_work(id, None);
        let events = self.events.0.clone();
        self.tasks.spawn_blocking(move || {
            let reply = work()
                .unwrap_or_else(|error| Reply::Error { message: error.message, class: Some(error.class) });
            drop(events.send(Event::Answered(id, reply)));
        });
    }

    /// Looks once.
    pub(super) fn begin_probe(&mut self, id: u32, probe: stead_model::role::Probe) {
        if self.works.contains_key(&id) {
            return;
        }
        self.new_work(id, None);
        let events = self.events.0.clone();
        self.tasks.spawn(async move {
            let answer = crate::roles::probe::look(&probe).await;
            drop(events.send(Event::Answered(id, Reply::Probe(answer))));
        });
    }

    /// Answers a question about the place where roles run.
    pub(super) fn begin_site(&mut self, id: u32, ask: stead_model::role::SiteAsk) {
        let site = Arc::clone(&self.site);
        self.answer_away(id, move || site.answer(&ask).map(Reply::Site));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(directory: &Path) -> RoleWork {
        let (requests, _) = mpsc::unbounded_channel();
        RoleWork::new(requests, watch::Sender::new(false), directory)
    }

    fn logged(bytes: u64) -> RoleEvent {
        RoleEvent::Logged { stdout_bytes: bytes, stderr_bytes: 0 }
    }

    fn warning(text: &str) -> RoleEvent {
        RoleEvent::Warning { code: "x".to_owned(), text: text.to_owned() }
    }

    fn all(role: &mut RoleWork) -> Vec<String> {
        let mut said = Vec::new();
        while let Some((reply, bytes)) = role.next_piece() {
            said.push(match (reply, bytes) {
                (Reply::Out { offset, .. }, Some(bytes)) => format!("{offset}:{}", bytes.len()),
                (Reply::Role { number, event: RoleEvent::Logged { stdout_bytes, .. } }, None) => {
                    format!("#{number} {stdout_bytes}")
                }
                (Reply::Role { number, .. }, None) => format!("#{number}"),
                other => panic!("{other:?}"),
            });
        }
        said
    }

    #[test]
    fn output_comes_before_the_word_on_it_and_other_events_before_output() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("stdout.log"), vec![b'x'; 100_000]).unwrap();
        let mut role = role(directory.path());
        role.push(logged(10));
        role.push(logged(70_000));
        role.push(warning("a"));
        role.push(logged(100_000));
        assert_eq!(all(&mut role), ["#1", "0:65536", "65536:34464", "#2 100000"]);
        role.push(warning("b"));
        assert_eq!(all(&mut role), ["#3"]);
    }

    #[test]
    fn a_new_connection_gets_what_the_old_one_did_not_bring() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("stdout.log"), vec![b'x'; 1_000]).unwrap();
        let mut role = role(directory.path());
        role.push(warning("a"));
        role.push(logged(1_000));
        assert_eq!(all(&mut role), ["#1", "0:1000", "#2 1000"]);
        role.rewind(&Received { events: 1, stdout: 400, ..Received::default() });
        assert_eq!(all(&mut role), ["400:600", "#2 1000"]);
        role.rewind(&Received { events: 2, stdout: 1_000, ..Received::default() });
        assert_eq!(all(&mut role), Vec::<String>::new());
        assert!(role.events.is_empty(), "what has arrived is forgotten");
    }
}
