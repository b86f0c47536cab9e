//! The conversation with one host's executor: many questions at once over one channel, which may be lost and found.
//!
//! One task owns the channel and every question without an answer. It beats every third of the lease, and when the
//! channel is lost it connects anew until the lease ends; one that brings nonsense ends the conversation. The session there has kept what was said meanwhile; here
//! bytes that came already are recognised by their place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::executor::{FrameKind, Holder, Received, Reply, Request, RoleRequest, Welcome, write};
use stead_model::role::StopReason;
use stead_model::tail::last_words;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OnceCell, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::{Link, RunningRole, StopRole};
use crate::operation::{Cancel, OpError, Output, Stop};

use super::open::Attached;
use super::pending::{Allowed, Lost, Pending, send_content};
use super::pool::Target;

/// Content that waits for room on the channel, in pieces of all operations together.
const PIECES: usize = 4;
/// What is written ahead to the channel at most.
const AHEAD: usize = 512 << 10;
/// What stays of the room for frames when there are none: hundreds of sessions may be idle at the same time.
const IDLE: usize = 512;
/// A session hears what arrived when so much did: it keeps a MiB in memory.
const TELL_AFTER: u64 = 256 << 10;
/// Pause between two tries to connect anew.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a session may take to go when the run is over.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long the errors of an executor that sends nonsense are listened to.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What attempts ask of the conversation.
enum Ask {
    Work(u32, Box<Pending>),
    Cancel { id: u32, kill: bool, grace: Duration },
    Stop { id: u32, reason: StopReason, kill: bool },
    Bye,
}

/// A conversation with one host's executor. Dropping it ends the conversation.
pub(crate) struct Session {
    // Not bounded: there is one entry per attempt under way, and those are.
    asks: mpsc::UnboundedSender<Ask>,
    next_id: AtomicU32,
    lock: OnceCell<()>,
    boot_id: String,
    link: watch::Receiver<Link>,
}

/// Tells a role elsewhere to stop.
#[derive(Debug)]
struct StopRemote {
    asks: mpsc::UnboundedSender<Ask>,
    id: u32,
}

impl StopRole for StopRemote {
    fn stop(&self, reason: StopReason, kill: bool) {
        // Without a conversation it is stopped by itself.
        drop(self.asks.send(Ask::Stop { id: self.id, reason, kill }));
    }
}

/// Tells the target to stop what nobody waits for any more.
struct Abandon<'a> {
    asks: &'a mpsc::UnboundedSender<Ask>,
    id: Option<u32>,
}

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            drop(self.asks.send(Ask::Cancel { id, kill: true, grace: Duration::ZERO }));
        }
    }
}

impl Session {
    /// Begins the conversation in a task of `tasks`.
    pub(crate) fn begin(target: Target, attached: Attached, tasks: &mut JoinSet<()>) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        let boot_id = attached.welcome.boot_id.clone();
        let (links, link) = watch::channel(Link::Up);
        let conversation = Conversation::new(target, asked, attached.welcome.clone(), links);
        tasks.spawn(conversation.run(attached));
        Self { asks, next_id: AtomicU32::new(1), lock: OnceCell::new(), boot_id, link }
    }

    /// Returns how it stands with the connection, to be watched.
    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    /// Starts a role; its output goes to `output` as it comes, before the events that tell of it.
    pub(crate) fn start_role(&self, request: RoleRequest, output: Output) -> Result<RunningRole, OpError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        write(&mut frame, id, &Request::Role(Box::new(request)))
            .map_err(|error| OpError::invalid(format!("the role does not fit into a message: {error}")))?;
        let (told, events) = mpsc::unbounded_channel();
        // The answer is the last event.
        let (answer, _) = oneshot::channel();
        let pending = Pending::new(id, frame, output, Allowed::default(), answer).with_events(told);
        self.asks.send(Ask::Work(id, Box::new(pending))).map_err(|_| over().error)?;
        Ok(RunningRole::new(events, Arc::new(StopRemote { asks: self.asks.clone(), id })))
    }

    /// Whether the conversation has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.asks.is_closed()
    }

    /// Returns the boot of the machine that it was begun in; in another boot it is over.
    pub(crate) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Says that the run is over.
    pub(crate) fn bye(&self) {
        drop(self.asks.send(Ask::Bye));
    }

    /// Asks something and waits for its answer. Dropping the future stops it there.
    pub(crate) async fn ask(
        &self,
        message: &Request,
        allowed: Allowed,
        output: Output,
        cancel: &Cancel,
        grace: Duration,
    ) -> Result<Reply, Lost> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        if let Err(error) = write(&mut frame, id, message) {
            let error = OpError::invalid(format!("the operation does not fit into a message: {error}"));
            return Err(Lost { error, begun: false });
        }
        let (answer, mut answered) = oneshot::channel();
        let pending = Pending::new(id, frame, output, allowed, answer);
        self.asks.send(Ask::Work(id, Box::new(pending))).map_err(|_| over())?;
        let mut abandon = Abandon { asks: &self.asks, id: Some(id) };
        let mut asked = Stop::No;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut answered => break answer.unwrap_or_else(|_| Err(over())),
                () = cancel.at_least(Stop::Ask), if asked == Stop::No => {
                    asked = Stop::Ask;
                    drop(self.asks.send(Ask::Cancel { id, kill: false, grace }));
                }
                () = cancel.at_least(Stop::Kill), if asked < Stop::Kill => {
                    asked = Stop::Kill;
                    drop(self.asks.send(Ask::Cancel { id, kill: true, grace }));
                }
            }
        };
        abandon.id = None;
        answer
    }

    /// Takes the target's lock once for this run, however many ask.
    pub(crate) async fn lock(&self, message: &Request, host: &str, cancel: &Cancel) -> Result<(), Lost> {
        let take = || async {
            let answer =
                self.ask(message, Allowed::default(), Output::none(), cancel, Duration::ZERO).await?;
            let held = |holder: Option<Holder>| {
                let by = holder.map_or_else(String::new, |holder| format!(" by {holder}"));
                OpError::new(ErrorClass::Locked, format!("host {host} is locked{by}"))
            };
            match answer {
                Reply::Lock { granted: true, .. } => Ok(()),
                Reply::Lock { holder, .. } => Err(Lost { error: held(holder), begun: false }),
                Reply::Error { message, class } => {
                    let class = class.unwrap_or(ErrorClass::Operation);
                    Err(Lost { error: OpError::new(class, message), begun: false })
                }
                other @ (Reply::Hello(_)
                | Reply::Out { .. }
                | Reply::Result(_)
                | Reply::Want { .. }
                | Reply::Keep(_)
                | Reply::Started { .. }
                | Reply::Done { .. }
                | Reply::Role { .. }
                | Reply::Probe(_)
                | Reply::Site(_)
                | Reply::Beat) => {
                    let error = OpError::operation(format!("an answer out of turn: {other:?}"));
                    Err(Lost { error, begun: false })
                }
            }
        };
        self.lock.get_or_try_init(take).await.copied()
    }
}

fn over() -> Lost {
    let error = OpError::new(ErrorClass::Unreachable, "the connection to the executor was lost");
    Lost { error, begun: false }
}

/// How serving a channel ended.
enum Ended {
    Bye,
    /// The channel is of no use any more; why, if it is known.
    Lost(String),
    /// What answers says what no executor says: it would say it again.
    Nonsense(String),
}

/// Frames for the channel of this number.
type Piece = (u64, Vec<u8>);

struct Conversation {
    target: Target,
    asked: mpsc::UnboundedReceiver<Ask>,
    welcome: Welcome,
    /// Boxed: an empty map keeps room for a few of them, in each of many sessions.
    pending: BTreeMap<u32, Box<Pending>>,
    outbox: Vec<u8>,
    written: usize,
    heard: Instant,
    /// Counts channels, so that content for an earlier one is not sent on.
    generation: u64,
    /// Made with the first content.
    pieces: Option<(mpsc::Sender<Piece>, mpsc::Receiver<Piece>)>,
    senders: JoinSet<()>,
    /// What the session said was wrong with it.
    complaint: Option<String>,
    link: watch::Sender<Link>,
}

impl Conversation {
    fn new(
        target: Target,
        asked: mpsc::UnboundedReceiver<Ask>,
        welcome: Welcome,
        link: watch::Sender<Link>,
    ) -> Self {
        Self {
            target,
            asked,
            welcome,
            pending: BTreeMap::new(),
            outbox: Vec::new(),
            written: 0,
            heard: Instant::now(),
            generation: 0,
            pieces: None,
            senders: JoinSet::new(),
            complaint: None,
            link,
        }
    }

    async fn run(mut self, mut attached: Attached) {
        loop {
            match self.serve(&mut attached).await {
                // What a session does once, if at all, takes no room in the task that waits for it.
                Ended::Bye => return Box::pin(farewell(attached, &self.outbox)).await,
                Ended::Lost(why) => {
                    drop(attached);
                    match Box::pin(self.attach_again(&why)).await {
                        Some(again) => attached = again,
                        None => return,
                    }
                }
                Ended::Nonsense(why) => return self.give_up(&OpError::operation(why)),
            }
        }
    }

    /// Serves one channel until it ends.
    async fn serve(&mut self, attached: &mut Attached) -> Ended {
        let lease = self.target.lease();
        let mut beat = tokio::time::interval_at(Instant::now() + lease / 3, lease / 3);
        let mut buffer = vec![0; 2 << 10];
        let mut errors = [0; 512];
        let mut said = String::new();
        let mut has_errors = true;
        loop {
            // What came with the hello, and what a read brought.
            loop {
                match attached.inbox.next_frame() {
                    Ok(Some(frame)) => match frame.kind {
                        FrameKind::Bytes => {
                            if !self.take_bytes(frame.id, &frame.body) {
                                let why = "the executor sent bytes out of turn";
                                return Ended::Nonsense(
                                    with_last_words(why, &said, &mut attached.running).await,
                                );
                            }
                        }
                        FrameKind::Json => match Reply::read(&frame.body) {
                            Ok(reply) => self.take(frame.id, reply),
                            Err(error) => {
                                self.say(
                                    frame.id,
                                    &Request::Cancel { signal: "KILL".to_owned(), grace_ms: 0 },
                                );
                                self.fail(frame.id, OpError::operation(format!("the executor sent {error}")));
                            }
                        },
                    },
                    Ok(None) => break,
                    Err(error) => {
                        let why = format!("the executor sent a bad frame: {error}");
                        return Ended::Nonsense(with_last_words(&why, &said, &mut attached.running).await);
                    }
                }
            }
            let has_room = self.outbox.len() - self.written < AHEAD;
            let unwritten = self.outbox.get(self.written..).unwrap_or_default();
            let running = &mut attached.running;
            tokio::select! {
                read = running.stdout.read(&mut buffer) => match read {
                    Ok(n) if n > 0 => {
                        self.heard = Instant::now();
                        attached.inbox.push(buffer.get(..n).unwrap_or_default());
                    }
                    Ok(_) => return Ended::Lost(lost(&said, None)),
                    Err(error) => return Ended::Lost(lost(&said, Some(&error))),
                },
                written = write_some(&mut running.stdin, unwritten) => match written {
                    Ok(n) if n > 0 => self.count_written(n),
                    Ok(_) => return Ended::Lost(lost(&said, None)),
                    Err(error) => return Ended::Lost(lost(&said, Some(&error))),
                },
                read = running.stderr.read(&mut errors), if has_errors => match read {
                    Ok(n) if n > 0 => keep_last(&mut said, errors.get(..n).unwrap_or_default()),
                    Ok(_) | Err(_) => has_errors = false,
                },
                ask = self.asked.recv(), if has_room => match ask {
                    Some(Ask::Work(id, pending)) => self.begin(id, pending),
                    Some(Ask::Cancel { id, kill, grace }) => self.cancel(id, kill, grace),
                    Some(Ask::Stop { id, reason, kill }) => self.stop_role(id, reason, kill),
                    Some(Ask::Bye) | None => {
                        self.say(0, &Request::Bye);
                        return Ended::Bye;
                    }
                },
                Some((generation, frames)) = next_piece(&mut self.pieces), if has_room => {
                    if generation == self.generation {
                        self.outbox.extend_from_slice(&frames);
                    }
                }
                Some(_) = self.senders.join_next(), if !self.senders.is_empty() => {}
                _ = beat.tick() => {
                    if self.heard.elapsed() > lease * 2 / 3 {
                        return Ended::Lost("the executor is silent".to_owned());
                    }
                    let received = self.received(true);
                    self.say(0, &Request::Beat { received });
                }
            }
        }
    }

    fn count_written(&mut self, n: usize) {
        self.written += n;
        if self.written == self.outbox.len() {
            self.outbox.clear();
            self.outbox.shrink_to(IDLE);
            self.written = 0;
        }
    }

    fn say(&mut self, id: u32, message: &Request) {
        // Everything said here is short.
        write(&mut self.outbox, id, message).unwrap_or(());
    }

    fn begin(&mut self, id: u32, mut pending: Box<Pending>) {
        self.outbox.extend_from_slice(&pending.message);
        pending.sent = true;
        self.pending.insert(id, pending);
    }

    fn cancel(&mut self, id: u32, kill: bool, grace: Duration) {
        let Some(pending) = self.pending.get(&id) else { return };
        let is_abandoned = pending.answer.is_closed();
        let signal = if kill { "KILL" } else { "TERM" };
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.say(id, &Request::Cancel { signal: signal.to_owned(), grace_ms });
        if is_abandoned {
            self.pending.remove(&id);
            self.say(0, &Request::Ack { id });
        }
    }

    fn stop_role(&mut self, id: u32, reason: StopReason, kill: bool) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let stop = Request::Stop { reason, kill };
        pending.stop = Some(stop.clone());
        self.say(id, &stop);
    }

    /// Returns what has arrived of each output: all of it, or what the session was not told yet.
    fn received(&mut self, only_new: bool) -> Vec<Received> {
        let told = self.pending.values_mut().filter(|pending| !only_new || pending.told != pending.received);
        told.map(|pending| {
            pending.told = pending.received;
            pending.received
        })
        .collect()
    }

    fn take_bytes(&mut self, id: u32, bytes: &[u8]) -> bool {
        // Output of what was abandoned may still be on its way.
        let Some(pending) = self.pending.get_mut(&id) else { return true };
        if !pending.take_bytes(bytes) {
            return false;
        }
        let new = |received: &Received| received.stdout + received.stderr + received.file;
        let done = pending.file_size().and_then(|size| pending.finish_file(size));
        if new(&pending.received) - new(&pending.told) > TELL_AFTER {
            pending.told = pending.received;
            let received = vec![pending.received];
            self.say(0, &Request::Beat { received });
        }
        if let Some(done) = done {
            self.say(id, &done);
        }
        true
    }

    fn take(&mut self, id: u32, reply: Reply) {
        match reply {
            Reply::Out { stream, offset } => {
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.expect(stream, offset);
                }
            }
            Reply::Want { sha256, offset } => self.give_content(id, sha256, offset),
            Reply::Keep(keep) => {
                let done = self.pending.get_mut(&id).and_then(|pending| pending.offer(&keep));
                if let Some(done) = done {
                    self.say(id, &done);
                }
            }
            Reply::Role { number, event } => {
                let is_last =
                    self.pending.get_mut(&id).is_some_and(|pending| pending.take_event(number, event));
                if is_last {
                    self.say(0, &Request::Ack { id });
                    self.pending.remove(&id);
                }
            }
            Reply::Result(_) | Reply::Done { .. } | Reply::Probe(_) | Reply::Site(_) | Reply::Lock { .. } => {
                self.finish(id, reply)
            }
            Reply::Error { message, .. } if id == 0 => self.complaint = Some(message),
            Reply::Error { .. } => self.finish(id, reply),
            Reply::Beat | Reply::Hello(_) | Reply::Started { .. } => {}
        }
    }

    fn finish(&mut self, id: u32, reply: Reply) {
        self.say(0, &Request::Ack { id });
        if let Some(pending) = self.pending.remove(&id) {
            pending.end(Ok(reply));
        }
    }

    fn fail(&mut self, id: u32, error: OpError) {
        if let Some(pending) = self.pending.remove(&id) {
            let begun = pending.sent;
            pending.end(Err(Lost { error, begun }));
        }
    }

    /// Sends content that the operation's parameters name, and no other.
    fn give_content(&mut self, id: u32, sha256: String, offset: u64) {
        let Some(pending) = self.pending.get(&id) else { return };
        let file = pending.allowed.content.get(&sha256).cloned();
        let (to, _) = self.pieces.get_or_insert_with(|| mpsc::channel(PIECES));
        let (generation, to) = (self.generation, to.clone());
        self.senders.spawn_blocking(move || send_content(id, generation, sha256, offset, file, &to));
    }

    /// Connects anew until the lease ends; nothing if that came to nothing, and everyone was told.
    async fn attach_again(&mut self, why: &str) -> Option<Attached> {
        let deadline = self.heard + self.target.lease();
        let mut why = self.complaint.take().unwrap_or_else(|| why.to_owned());
        self.link.send_replace(Link::Lost(why.clone()));
        loop {
            self.generation += 1;
            let received = self.received(false);
            let opened = tokio::time::timeout_at(deadline, self.target.open(Some(received))).await;
            match opened {
                Ok(Ok(attached)) => {
                    self.take_up(&attached.welcome, &why).await;
                    return Some(attached);
                }
                Ok(Err(error)) => {
                    why = error.message.clone();
                    let may_pass = !error.in_vain
                        && matches!(error.class, ErrorClass::Unreachable | ErrorClass::Operation);
                    if !may_pass || Instant::now() + PAUSE >= deadline {
                        break;
                    }
                }
                Err(_) => break,
            }
            tokio::time::sleep(PAUSE).await;
        }
        let message = format!("the executor was lost and not found again within its lease: {why}");
        self.give_up(&OpError::new(ErrorClass::Unreachable, message));
        None
    }

    /// Ends the conversation; everyone who waits is told why.
    fn give_up(&mut self, error: &OpError) {
        // Closed first: whoever asks from now on begins a conversation of their own.
        self.asked.close();
        while let Ok(ask) = self.asked.try_recv() {
            if let Ask::Work(id, pending) = ask {
                self.pending.insert(id, pending);
            }
        }
        self.link.send_replace(Link::Gone(error.message.clone()));
        let ids: Vec<u32> = self.pending.keys().copied().collect();
        for id in ids {
            self.fail(id, error.clone());
        }
    }

    /// Goes on with what the session knows; what it never received is sent again, unless it is another session.
    async fn take_up(&mut self, welcome: &Welcome, why: &str) {
        let is_same = welcome.pid == self.welcome.pid && welcome.boot_id == self.welcome.boot_id;
        self.heard = Instant::now();
        (self.outbox, self.written) = (Vec::new(), 0);
        while self.pieces.as_mut().is_some_and(|pieces| pieces.1.try_recv().is_ok()) {}
        if is_same {
            for (id, pending) in &mut self.pending {
                if !welcome.resumed.contains(id) {
                    self.outbox.extend_from_slice(&pending.message);
                }
                if let Some(stop) = &pending.stop {
                    // It may have been lost with the channel; twice is once. These are short.
                    write(&mut self.outbox, *id, stop).unwrap_or(());
                }
            }
            self.link.send_replace(Link::Up);
            return;
        }
        self.welcome = welcome.clone();
        let message = format!("the executor's session ended: {why}");
        self.link.send_replace(Link::Gone(message.clone()));
        let ids: Vec<u32> = self.pending.keys().copied().collect();
        for id in ids {
            self.fail(id, OpError::new(ErrorClass::Unreachable, message.clone()));
        }
        // The lock was the old session's: the next attempt begins a conversation that takes it anew.
        self.asked.close();
    }
}

fn lost(said: &str, error: Option<&std::io::Error>) -> String {
    match (last_words(said).join("\n").as_str(), error) {
        ("", None) => "the connection ended".to_owned(),
        ("", Some(error)) => format!("the connection failed: {error}"),
        (said, _) => format!("the connection ended: {said}"),
    }
}

/// Returns `why` with the last lines that the executor said of errors, those included that are on their way.
async fn with_last_words(why: &str, said: &str, running: &mut crate::transport::Running) -> String {
    let mut said = said.to_owned();
    // Not in the task of every session that never gets here.
    let mut buffer = vec![0; 4 << 10];
    let rest = async {
        while let Ok(n @ 1..) = running.stderr.read(&mut buffer).await {
            keep_last(&mut said, buffer.get(..n).unwrap_or_default());
        }
    };
    // One that sends nonsense may never end.
    drop(tokio::time::timeout(LAST_WORDS, rest).await);
    match last_words(&said).join("\n") {
        said if said.is_empty() => why.to_owned(),
        said => format!("{why}; it said: {said}"),
    }
}

/// Keeps the end of what was said.
pub(super) fn keep_last(said: &mut String, bytes: &[u8]) {
    const KEPT: usize = 4 << 10;
    said.push_str(&String::from_utf8_lossy(bytes));
    if said.len() > 2 * KEPT {
        let cut = (said.len() - KEPT..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
        said.drain(..cut);
    }
}

/// Sends the last words and waits until the session has gone.
async fn farewell(mut attached: Attached, outbox: &[u8]) {
    let goodbye = async {
        let running = &mut attached.running;
        if let Some(stdin) = &mut running.stdin {
            stdin.write_all(outbox).await?;
            stdin.flush().await?;
        }
        let mut buffer = vec![0; 1024];
        while running.stdout.read(&mut buffer).await? > 0 {}
        Ok::<(), std::io::Error>(())
    };
    // A session that does not go by itself does so at the end of its lease.
    drop(tokio::time::timeout(FAREWELL, goodbye).await);
}

async fn next_piece(pieces: &mut Option<(mpsc::Sender<Piece>, mpsc::Receiver<Piece>)>) -> Option<Piece> {
    match pieces {
        Some((_, pieces)) => pieces.recv().await,
        None => std::future::pending().await,
    }
}

async fn write_some(stdin: &mut Option<crate::transport::Writer>, bytes: &[u8]) -> std::io::Result<usize> {
    match stdin {
        Some(stdin) if !bytes.is_empty() => {
            let written = stdin.write(bytes).await?;
            stdin.flush().await?;
            Ok(written)
        }
        Some(_) => std::future::pending().await,
        None => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Exit, Process, Running, Signal, TransportError};

    struct Gone;

    #[async_trait::async_trait]
    impl Process for Gone {
        async fn signal(&mut self, _: Signal) -> Result<(), TransportError> {
            Ok(())
        }

        async fn wait(&mut self) -> Result<Exit, TransportError> {
            Ok(Exit::Code(1))
        }
    }

    /// Section 3: nonsense is told with the last 20 lines of errors, those included that were heard before.
    #[tokio::test]
    async fn what_an_executor_said_last_is_told_with_its_nonsense() {
        let lines = |numbers: std::ops::Range<u32>| -> String {
            numbers.map(|number| format!("line {number}\n")).collect()
        };
        let running = |stderr: String| Running {
            stdin: None,
            stdout: Box::pin(tokio::io::empty()),
            stderr: Box::pin(std::io::Cursor::new(stderr.into_bytes())),
            process: Box::new(Gone),
        };
        let told = with_last_words("a bad frame", &lines(0..15), &mut running(lines(15..30))).await;
        assert_eq!(told, format!("a bad frame; it said: {}", lines(10..30).trim_end()));
        assert_eq!(with_last_words("a bad frame", "", &mut running(String::new())).await, "a bad frame");
    }
}
