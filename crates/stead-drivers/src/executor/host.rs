//! One host of a run: its operations, what they said, and the connection to its driver, if there is one now.
//!
//! One task owns all of it. Operations tell it of their ends and wishes through events; their output lies in
//! [`Kept`] until there is room on the connection.

mod exec;
mod files;
mod parcels;
mod roles;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use stead_model::executor::{
    FACTS, Frame, FrameBuffer, FrameKind, Hello, Holder, OpRequest, OpResult, Reply, Request, write,
};
use stead_model::role::{RoleEvent, StopReason};
use stead_model::{ErrorClass, OperationName};
use stead_runner::files::Content;
use stead_runner::operation::{OpError, Predicted, Stop};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::machine::sandbox::Sandbox;
use crate::network::watch::{self as network_watch, Made};

use super::greeting::Greeted;
use super::leftovers::{self, Attempt, Inflight};
use super::lock::{Held, Refused};
use super::output::Kept;
use super::server::Shared;
use super::work::{self, Surroundings};

use crate::roles::site::Site;

use exec::ExecWork;
use parcels::{Arriving, Leaving};
use roles::RoleWork;

/// What is written ahead to the connection at most: enough to keep it busy.
const AHEAD: usize = 256 << 10;

/// How long after its grace period work may take to notice that it was stopped.
const PATIENCE: Duration = Duration::from_millis(500);

/// What an operation tells its session.
#[derive(Debug)]
pub(super) enum Event {
    /// It has ended.
    Ended(u32, OpResult),
    /// It needs content of the driver.
    Want { id: u32, content: Content, answer: oneshot::Sender<Result<PathBuf, OpError>> },
    /// It has a file for the driver.
    Keep { id: u32, file: std::fs::File, content: Content, answer: oneshot::Sender<Result<String, OpError>> },
    /// It was waiting for the target's lock.
    Locked(u32, Result<Arc<Held>, Refused>),
    /// A question has its answer.
    Answered(u32, Reply),
    /// A role's supervisor tells something.
    Role(u32, RoleEvent),
    /// A program that was asked to stop has had its time.
    GraceOver(u32),
    /// Nothing more comes of a role.
    RoleOver(u32),
}

/// One operation, from its beginning until its driver has its result.
struct Work {
    /// By which the processes it started are known.
    attempt: Option<Attempt>,
    stop: Arc<watch::Sender<Stop>>,
    output: Kept,
    /// The answer, once there is one, and whether it was written to this connection.
    answer: Option<(Reply, bool)>,
    /// Changes of the network that were made before the answer was given: who has it came through them.
    network: Vec<Made>,
    arriving: Option<Arriving>,
    leaving: Option<Leaving>,
    role: Option<RoleWork>,
    exec: Option<ExecWork>,
}

/// A driver's connection.
pub(super) type Connection = (OwnedReadHalf, OwnedWriteHalf);

/// One host of a run.
pub(super) struct HostSession {
    shared: Arc<Shared>,
    host: String,
    root: Option<PathBuf>,
    lease: Duration,
    connections: mpsc::Receiver<Greeted>,
    connection: Option<Connection>,
    inbox: FrameBuffer,
    outbox: Vec<u8>,
    written: usize,
    works: BTreeMap<u32, Work>,
    /// Where the search for output to send goes on, so that everyone gets a turn.
    turn: u32,
    tasks: JoinSet<()>,
    events: (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
    wake: Arc<Notify>,
    predicted: Predicted,
    inflight: Inflight,
    lock: Option<Arc<Held>>,
    heard: Instant,
    grace: Duration,
    /// Where roles work.
    site: Arc<Site>,
}

/// What follows from what was heard.
enum Next {
    GoOn,
    /// The connection is of no use any more.
    HangUp,
    /// The run is over.
    End,
}

impl HostSession {
    pub(super) fn new(shared: Arc<Shared>, host: String, connections: mpsc::Receiver<Greeted>) -> Self {
        let inflight = Inflight::create(&shared.home);
        let site = shared.site(None);
        Self {
            site,
            shared,
            host,
            root: None,
            lease: stead_model::executor::LEASE,
            connections,
            connection: None,
            inbox: FrameBuffer::default(),
            outbox: Vec::new(),
            written: 0,
            works: BTreeMap::new(),
            turn: 0,
            tasks: JoinSet::new(),
            events: mpsc::unbounded_channel(),
            wake: Arc::default(),
            predicted: Predicted::default(),
            inflight,
            lock: None,
            heard: Instant::now(),
            grace: Duration::ZERO,
        }
    }

    /// Serves the host until its driver says goodbye or is silent for too long. Returns the connection, if there is
    /// one: its end is how the driver learns that all is done.
    pub(super) async fn run(mut self) -> Option<Connection> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            self.pump();
            let (reader, writer) = match &mut self.connection {
                Some((reader, writer)) => (Some(reader), Some(writer)),
                None => (None, None),
            };
            let unwritten = self.outbox.get(self.written..).unwrap_or_default();
            let next = tokio::select! {
                read = read(reader, &mut buffer) => match read {
                    0 => Next::HangUp,
                    n => {
                        self.heard = Instant::now();
                        self.inbox.push(buffer.get(..n).unwrap_or_default());
                        self.take_frames().await
                    }
                },
                written = write_some(writer, unwritten) => match written {
                    0 => Next::HangUp,
                    n => { self.count_written(n); Next::GoOn }
                },
                Some(event) = self.events.1.recv() => { self.take(event); Next::GoOn }
                () = self.wake.notified() => Next::GoOn,
                greeted = self.connections.recv() => match greeted {
                    Some(greeted) => { self.attach(greeted).await; self.take_frames().await }
                    None => Next::End,
                },
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => Next::GoOn,
                () = tokio::time::sleep_until(self.heard + self.lease) => Next::End,
            };
            match next {
                Next::GoOn => {}
                Next::HangUp => self.connection = None,
                Next::End => break,
            }
        }
        self.stop_all().await;
        self.connection
    }

    fn count_written(&mut self, n: usize) {
        self.written += n;
        if self.written == self.outbox.len() {
            self.outbox.clear();
            self.outbox.shrink_to(AHEAD / 4);
            self.written = 0;
        }
    }

    /// Takes up a connection; an earlier one is of no use any more.
    async fn attach(&mut self, greeted: Greeted) {
        let Greeted { hello, stream, inbox } = greeted;
        self.connection = None;
        let Hello { fresh, lease_ms, root, received, workdir, .. } = hello;
        if fresh {
            self.stop_all().await;
            self.predicted = Predicted::default();
            self.site = self.shared.site(workdir.map(PathBuf::from));
        }
        self.lease = Duration::from_millis(lease_ms.clamp(100, 3_600_000));
        self.root = root.map(PathBuf::from);
        self.heard = Instant::now();
        self.inbox = inbox;
        (self.outbox, self.written) = (Vec::new(), 0);
        for (id, work) in &mut self.works {
            let seen = received.iter().find(|seen| seen.id == *id).copied().unwrap_or_default();
            match &mut work.role {
                Some(role) => role.rewind(&seen),
                None => work.output.rewind(seen.stdout, seen.stderr),
            }
            if let Some((_, is_written)) = &mut work.answer {
                *is_written = false;
            }
        }
        let mut welcome = self.shared.welcome.clone();
        welcome.resumed = self.works.keys().copied().collect();
        welcome.time_micros = stead_runner::clock::now().as_micros();
        // A sandbox has boots of its own.
        let sandbox = self.root.as_deref().and_then(Sandbox::with_root);
        if let Some(boot_id) = sandbox.and_then(|sandbox| sandbox.boot_id()) {
            welcome.boot_id = boot_id;
        }
        self.say(0, &Reply::Hello(welcome));
        for (id, work) in &mut self.works {
            let again = [
                work.exec.as_ref().and_then(ExecWork::started),
                work.arriving.as_mut().map(Arriving::ask_again),
                work.leaving.as_mut().map(|leaving| {
                    let seen = received.iter().find(|seen| seen.id == *id).copied().unwrap_or_default();
                    leaving.announce_from(seen.file)
                }),
            ];
            for message in again.into_iter().flatten() {
                // These are short.
                write(&mut self.outbox, *id, &message).unwrap_or(());
            }
        }
        self.connection = Some(stream.into_split());
    }

    fn say(&mut self, id: u32, message: &Reply) {
        if let Err(error) = write(&mut self.outbox, id, message) {
            let message = format!("the answer does not fit into a message: {error}");
            let error = Reply::Error { message, class: Some(ErrorClass::Operation) };
            write(&mut self.outbox, id, &error).unwrap_or(());
        }
    }

    /// Moves output and results to the connection while there is room.
    fn pump(&mut self) {
        if self.connection.is_none() {
            return;
        }
        while self.outbox.len() - self.written < AHEAD {
            let after = self.works.range(self.turn.saturating_add(1)..);
            let ids: Vec<u32> = after.chain(self.works.range(..=self.turn)).map(|(id, _)| *id).collect();
            let Some(id) = ids.into_iter().find(|id| self.send_piece(*id)) else { return };
            self.turn = id;
        }
    }

    /// Sends one piece of what `id` has to say; returns whether there was one.
    fn send_piece(&mut self, id: u32) -> bool {
        let Some(work) = self.works.get_mut(&id) else { return false };
        if let Some((message, bytes)) = work.role.as_mut().and_then(RoleWork::next_piece) {
            self.say(id, &message);
            if let Some(bytes) = bytes {
                Frame::write(&mut self.outbox, FrameKind::Bytes, id, &bytes).unwrap_or(());
            }
            return true;
        }
        if let Some((stream, offset, bytes)) = work.output.next_piece() {
            self.say(id, &Reply::Out { stream, offset });
            Frame::write(&mut self.outbox, FrameKind::Bytes, id, &bytes).unwrap_or(());
            return true;
        }
        if let Some(leaving) = &mut work.leaving {
            match leaving.next_piece() {
                Ok(Some((message, bytes))) => {
                    self.say(id, &message);
                    Frame::write(&mut self.outbox, FrameKind::Bytes, id, &bytes).unwrap_or(());
                    return true;
                }
                Ok(None) => {}
                Err(error) => {
                    let leaving = work.leaving.take();
                    leaving
                        .into_iter()
                        .for_each(|leaving| leaving.end(Err(OpError::io("cannot fetch", &error))));
                }
            }
        }
        if let Some((message, is_written)) = &mut work.answer
            && !*is_written
        {
            *is_written = true;
            let message = message.clone();
            self.say(id, &message);
            return true;
        }
        false
    }

    async fn take_frames(&mut self) -> Next {
        loop {
            let frame = match self.inbox.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Next::GoOn,
                Err(error) => {
                    self.say(0, &Reply::Error { message: format!("a bad frame: {error}"), class: None });
                    return self.hang_up_politely().await;
                }
            };
            match frame.kind {
                FrameKind::Bytes => self.take_bytes(frame.id, &frame.body),
                FrameKind::Json => match Request::read(&frame.body) {
                    Ok(Request::Bye) => return Next::End,
                    Ok(request) => self.answer(frame.id, request),
                    Err(error) => {
                        self.say(frame.id, &Reply::Error { message: error.to_string(), class: None });
                    }
                },
            }
        }
    }

    /// Writes what is to be said before the connection is given up.
    async fn hang_up_politely(&mut self) -> Next {
        if let Some((_, writer)) = &mut self.connection {
            let rest = self.outbox.get(self.written..).unwrap_or_default();
            // A driver that does not listen loses only the reason.
            drop(tokio::time::timeout(Duration::from_secs(1), writer.write_all(rest)).await);
        }
        Next::HangUp
    }

    fn answer(&mut self, id: u32, request: Request) {
        match request {
            Request::Op(op) => self.begin(id, *op),
            Request::Facts { only } => self.begin_facts(id, only),
            Request::Lock { run, wait_ms, driver, user, since, parent } => {
                let holder = Holder { run, driver, user, since };
                self.begin_lock(id, holder, parent, Duration::from_millis(wait_ms));
            }
            Request::Put { path, mode, sha256, size } => {
                self.begin_put(id, path, mode, Content { size, sha256 })
            }
            Request::Get { path } => self.begin_get(id, path),
            Request::Stat { path, hash } => self.begin_stat(id, path, hash),
            Request::Role(role) => self.begin_role(id, *role),
            Request::Stop { reason, kill } => {
                if let Some(role) = self.works.get(&id).and_then(|work| work.role.as_ref()) {
                    role.stop(reason, kill);
                }
            }
            Request::Probe(probe) => self.begin_probe(id, probe),
            Request::Site(ask) => self.begin_site(id, ask),
            Request::Exec(exec) => self.begin_exec(id, *exec),
            // Otherwise bytes follow.
            Request::Stdin { end } => {
                if end {
                    self.end_input(id);
                }
            }
            Request::Cancel { signal, grace_ms } => {
                self.cancel(id, &signal);
                self.kill_after(id, Duration::from_millis(grace_ms));
            }
            Request::Ack { id } => {
                if let Some(Work { answer: Some((_, true)), network, .. }) = self.works.remove(&id) {
                    // One that was undone meanwhile stays undone.
                    for change in network {
                        change.confirm();
                    }
                }
            }
            Request::Beat { received } => {
                for seen in received {
                    match self.works.get_mut(&seen.id) {
                        Some(Work { role: Some(role), .. }) => role.forget(&seen),
                        Some(work) => work.output.forget(seen.stdout, seen.stderr),
                        None => {}
                    }
                }
                self.say(0, &Reply::Beat);
            }
            Request::Blob { sha256, offset, error, .. } => self.take_blob(id, &sha256, offset, error),
            Request::Done { path, error, .. } => {
                let leaving = self.works.get_mut(&id).and_then(|work| work.leaving.take());
                if let Some(leaving) = leaving {
                    let failed = error.map(OpError::operation);
                    leaving.end(failed.map_or_else(|| Ok(path.unwrap_or_default()), Err));
                }
            }
            Request::Hello(_) | Request::Bye => {
                self.say(id, &Reply::Error { message: "hello was said already".to_owned(), class: None });
            }
        }
    }

    fn new_work(&mut self, id: u32, attempt: Option<Attempt>) -> (Arc<watch::Sender<Stop>>, Kept) {
        let stop = Arc::new(watch::Sender::new(Stop::No));
        let spool = self.shared.home.directory.join(format!("output-{id}"));
        let output = Kept::new(spool, Arc::clone(&self.wake));
        let work = Work {
            attempt,
            stop: Arc::clone(&stop),
            output: output.clone(),
            answer: None,
            network: Vec::new(),
            arriving: None,
            leaving: None,
            role: None,
            exec: None,
        };
        self.works.insert(id, work);
        (stop, output)
    }

    fn begin(&mut self, id: u32, request: OpRequest) {
        // Sent again by a driver that could not know whether it had arrived.
        if self.works.contains_key(&id) {
            return;
        }
        let attempt = Attempt::new(&request.env);
        self.inflight.begin(&self.host, id, &attempt);
        self.grace = self.grace.max(Duration::from_millis(request.grace_ms));
        let (stop, output) = self.new_work(id, Some(attempt));
        let around = Surroundings {
            registry: self.shared.registry.clone(),
            run: self.shared.run.clone(),
            directory: self.shared.home.directory.clone(),
            account_home: self.shared.account_home.clone(),
            root: self.root.clone(),
            predicted: self.predicted.clone(),
            events: self.events.0.clone(),
        };
        let events = self.events.0.clone();
        self.tasks.spawn(async move {
            let result = work::carry_out(around, id, request, output, stop).await;
            // A session that has ended needs no results.
            drop(events.send(Event::Ended(id, result)));
        });
    }

    fn begin_facts(&mut self, id: u32, only: Vec<String>) {
        let Ok(operation) = OperationName::parse(FACTS) else { return };
        let mut params = Map::new();
        if !only.is_empty() {
            params.insert("only".to_owned(), only.into());
        }
        let marks = [("STEAD_TASK", "facts"), ("STEAD_HOST", self.host.as_str()), ("STEAD_ATTEMPT", "1")];
        let env = marks.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let request = OpRequest {
            operation,
            params,
            check: false,
            diff: false,
            secrets: Vec::new(),
            env: BTreeMap::from(env),
            timeout_ms: None,
            grace_ms: 0,
            undo: false,
            hidden_env: Vec::new(),
            sources: BTreeMap::new(),
            names: None,
            answers: BTreeMap::new(),
            restarted: None,
        };
        self.begin(id, request);
    }

    fn begin_lock(&mut self, id: u32, holder: Holder, parent: Option<stead_model::RunId>, wait: Duration) {
        if self.works.contains_key(&id) {
            return;
        }
        let (stop, _) = self.new_work(id, None);
        let (shared, events) = (Arc::clone(&self.shared), self.events.0.clone());
        self.tasks.spawn(async move {
            let cancel = stead_runner::operation::Cancel::new(stop.subscribe());
            let taken = tokio::select! {
                taken = shared.lock.take(&holder, parent.as_ref(), wait) => taken,
                () = cancel.at_least(Stop::Ask) => Err(Refused::By(None)),
            };
            drop(events.send(Event::Locked(id, taken)));
        });
    }

    fn cancel(&mut self, id: u32, signal: &str) {
        let Some(work) = self.works.get_mut(&id) else { return };
        let stop = if signal == "KILL" { Stop::Kill } else { Stop::Ask };
        if let Some(role) = &work.role {
            role.stop(StopReason::Cancelled, stop == Stop::Kill);
        }
        work.stop.send_if_modified(|now| {
            let sooner = *now < stop;
            if sooner {
                *now = stop;
            }
            sooner
        });
        work.give_up_parcels();
    }

    /// Kills a program that was asked to stop and has not by then. Operations were told their grace when they began, and
    /// roles have a rule for their end.
    fn kill_after(&mut self, id: u32, grace: Duration) {
        let running = |work: &&Work| work.exec.is_some() && work.answer.is_none();
        let Some(work) = self.works.get(&id).filter(running) else { return };
        let (mut stop, events) = (work.stop.subscribe(), self.events.0.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(grace) => drop(events.send(Event::GraceOver(id))),
                // It is gone with its answer.
                () = async { while stop.changed().await.is_ok() {} } => {}
            }
        });
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::GraceOver(id) => self.cancel(id, "KILL"),
            Event::Ended(id, result) => {
                self.inflight.end(&self.host, id);
                if let Some(work) = self.works.get_mut(&id) {
                    work.network = network_watch::made(&self.shared.run).unwrap_or_default();
                    work.answer = Some((Reply::Result(Box::new(result)), false));
                }
            }
            Event::Locked(id, taken) => {
                let reply = match taken {
                    Ok(held) => {
                        self.lock = Some(held);
                        Reply::Lock { granted: true, holder: None }
                    }
                    Err(Refused::By(holder)) => Reply::Lock { granted: false, holder },
                    Err(Refused::Failed(error)) => Reply::Error {
                        message: format!("cannot take the target's lock: {error}"),
                        class: Some(ErrorClass::Operation),
                    },
                };
                if let Some(work) = self.works.get_mut(&id) {
                    work.answer = Some((reply, false));
                }
            }
            Event::Answered(id, reply) => {
                if let Some(work) = self.works.get_mut(&id) {
                    work.answer = Some((reply, false));
                }
            }
            Event::Role(id, event) => self.take_role_event(id, event),
            Event::RoleOver(id) => self.take_role_over(id),
            Event::Want { id, content, answer } => self.want(id, content, answer),
            Event::Keep { id, file, content, answer } => {
                let Some(work) = self.works.get_mut(&id) else { return };
                let mut leaving = Leaving::new(file, content, answer);
                let message = leaving.announce_from(0);
                work.leaving = Some(leaving);
                if self.connection.is_some() {
                    self.say(id, &message);
                }
            }
        }
    }

    /// Stops everything: asks, waits for the grace period, kills. Nothing is left afterwards.
    async fn stop_all(&mut self) {
        for work in self.works.values_mut().filter(|work| work.answer.is_none()) {
            work.stop.send_replace(Stop::Ask);
            work.role.iter().for_each(RoleWork::close);
            work.give_up_parcels();
        }
        let deadline = Instant::now() + self.grace + PATIENCE;
        while !self.tasks.is_empty() {
            tokio::select! {
                _ = self.tasks.join_next() => {}
                // Operations may ask for files even now; nobody gives them any.
                Some(event) = self.events.1.recv() => drop(event),
                () = tokio::time::sleep_until(deadline) => {
                    self.works.values().for_each(|work| work.kill());
                    self.tasks.abort_all();
                    while self.tasks.join_next().await.is_some() {}
                    self.kill_leftovers().await;
                }
            }
        }
        self.works.clear();
        self.lock = None;
        while self.events.1.try_recv().is_ok() {}
    }
}

impl HostSession {
    /// Kills what work that did not end in time has started, also what left its process group.
    async fn kill_leftovers(&self) {
        let left = self.works.values().filter(|work| work.answer.is_none());
        let attempts: BTreeSet<Attempt> = left.filter_map(|work| work.attempt.clone()).collect();
        let directory = self.shared.home.directory.clone();
        let killing = move || leftovers::end(&directory, &attempts, Duration::ZERO);
        // It returns nothing that could be used here.
        drop(tokio::task::spawn_blocking(killing).await);
    }
}

impl Work {
    fn kill(&self) {
        self.stop.send_replace(Stop::Kill);
    }

    /// Nothing comes for it any more, and nothing goes.
    fn give_up_parcels(&mut self) {
        let cancelled = || OpError::operation("cancelled while a file was on its way");
        if let Some(arriving) = self.arriving.take() {
            arriving.end(Err(cancelled()));
        }
        if let Some(leaving) = self.leaving.take() {
            leaving.end(Err(cancelled()));
        }
    }
}

async fn read(reader: Option<&mut OwnedReadHalf>, buffer: &mut [u8]) -> usize {
    match reader {
        Some(reader) => reader.read(buffer).await.unwrap_or(0),
        None => std::future::pending().await,
    }
}

async fn write_some(writer: Option<&mut OwnedWriteHalf>, bytes: &[u8]) -> usize {
    match writer {
        Some(writer) if !bytes.is_empty() => writer.write(bytes).await.unwrap_or(0),
        Some(_) | None => std::future::pending().await,
    }
}
