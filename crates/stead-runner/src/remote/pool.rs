//! One session per host and run: opened by the first who needs it, shared by all, closed when the run is over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_model::executor::{OpRequest, Received, Reply, Request, Restart};
use stead_model::inventory::Host;
use stead_model::report::Warning;
use stead_model::transport::TransportSpec;
use stead_model::{ErrorClass, HostName, RunId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::clock;
use crate::executor::Message;
use crate::operate::{Ran, from_result};
use crate::operation::{OpContext, OpError, Stop};
use crate::secrets;
use crate::transport::Transport;

use super::Reach;
use super::bare::{Line, Lines, line};
use super::become_account::Account;
use super::binary::Binaries;
use super::open::{Attached, Opening, unreachable};
use super::pending::{Allowed, Lost};
use super::session::Session;

/// How often a machine that restarts is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What all hosts of a run share.
pub(crate) struct PoolSettings {
    pub(crate) reach: Reach,
    pub(crate) run: RunId,
    pub(crate) binaries: Binaries,
    /// How long the target's lock is waited for; none: it is not taken.
    pub(crate) lock: Option<Duration>,
    pub(crate) parent: Option<RunId>,
    /// Where secrets of hosts are read from.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) base_dir: PathBuf,
    pub(crate) messages: mpsc::Sender<Message>,
}

/// A host, and how it is reached.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) host: HostName,
    record: Host,
    settings: Arc<PoolSettings>,
    line: Arc<Line>,
}

impl Target {
    pub(crate) fn lease(&self) -> Duration {
        self.settings.reach.lease
    }

    fn account(&self) -> Result<Option<Account>, OpError> {
        let Some(to) = self.record.account().cloned() else { return Ok(None) };
        let password = self.record.account_password().map(|source| {
            secrets::read_source(source, &self.settings.environment, &self.settings.base_dir)
                .map_err(|why| OpError::permanent(format!("`become_password`: {why}")))
        });
        Ok(Some(Account { to, password: password.transpose()? }))
    }

    /// Returns the run's connection to the host.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Transport>, OpError> {
        self.line.connect(self).await
    }

    /// Lets go of the run's connection to the host: it is of no use any more.
    pub(crate) async fn hang_up(&self) {
        self.line.forget().await;
    }

    /// Opens a connection.
    pub(super) async fn dial(&self) -> Result<Arc<dyn Transport>, OpError> {
        let connected = self.settings.reach.connect.connect(&self.record.transport).await;
        connected.map_err(|error| unreachable(&error))
    }

    /// Connects and opens the session; `received` is what is known of an earlier connection.
    pub(crate) async fn open(&self, received: Option<Vec<Received>>) -> Result<Attached, OpError> {
        let account = self.account()?;
        if received.is_some() {
            // What was lost may be the channel or all of the connection; a new one is sure.
            self.hang_up().await;
        }
        let transport = self.connect().await?;
        let opening = Opening {
            host: &self.host,
            run: &self.settings.run,
            workdir: self.record.workdir.as_deref(),
            root: self.record.root.as_deref(),
            account: account.as_ref(),
            os: match &self.record.transport {
                TransportSpec::Ssh(ssh) => ssh.os,
                TransportSpec::Local => None,
            },
            binaries: &self.settings.binaries,
            lease: self.lease(),
            received,
        };
        let opened = opening.open(transport).await;
        if opened.as_ref().is_err_and(|error| error.class == ErrorClass::Unreachable) {
            self.hang_up().await;
        }
        opened
    }
}

/// How far a host's session is.
enum Slot {
    Opening(watch::Receiver<Option<Opened>>),
    Open(Arc<Session>),
}

type Opened = Result<Arc<Session>, OpError>;

/// The sessions of a run.
pub(crate) struct HostPool {
    settings: Arc<PoolSettings>,
    slots: Arc<Mutex<BTreeMap<HostName, Slot>>>,
    openings: Mutex<JoinSet<()>>,
    conversations: Arc<Mutex<JoinSet<()>>>,
    lines: Lines,
}

impl HostPool {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self {
            settings: Arc::new(settings),
            slots: Arc::default(),
            openings: Mutex::default(),
            conversations: Arc::default(),
            lines: Lines::default(),
        }
    }

    /// Returns the host with its connection.
    pub(super) fn target(&self, record: &Host, host: &HostName) -> Target {
        Target {
            host: host.clone(),
            record: record.clone(),
            settings: Arc::clone(&self.settings),
            line: line(&self.lines, host),
        }
    }

    /// Whether the host has a session.
    pub(crate) fn has_session(&self, host: &HostName) -> bool {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).contains_key(host)
    }

    /// Carries out an operation on a host; `begun` of the error says whether it may have begun there.
    ///
    /// One that restarts the machine is waited for and run once more when the machine is back.
    pub(crate) async fn operate(
        &self,
        record: &Host,
        cx: &OpContext,
        request: OpRequest,
        allowed: Allowed,
        writes: bool,
    ) -> Result<Result<Ran, OpError>, Lost> {
        let mut request = Box::new(request);
        let ran = self.operate_once(record, cx, request.clone(), allowed, writes).await?;
        let restart = match ran {
            Ok(Ran { restart: Some(restart), failure: None, .. }) => restart,
            ran => return Ok(ran),
        };
        if let Err(error) = self.await_restart(record, cx, &restart).await {
            return Ok(Err(error));
        }
        request.restarted = Some(restart.boot_id);
        self.operate_once(record, cx, request, Allowed::default(), writes).await
    }

    async fn operate_once(
        &self,
        record: &Host,
        cx: &OpContext,
        request: Box<OpRequest>,
        allowed: Allowed,
        writes: bool,
    ) -> Result<Result<Ran, OpError>, Lost> {
        let not_begun = |error: OpError| Lost { error, begun: false };
        let session = self.session(record, &cx.host).await.map_err(not_begun)?;
        if let (true, Some(wait)) = (writes, self.settings.lock) {
            session.lock(&self.lock_message(wait), cx.host.as_str(), &cx.cancel).await?;
        }
        let message = Request::Op(request);
        match session.ask(&message, allowed, cx.output.clone(), &cx.cancel, cx.grace).await? {
            Reply::Result(result) => Ok(from_result(*result)),
            Reply::Error { message, class } => {
                Ok(Err(OpError::new(class.unwrap_or(ErrorClass::Operation), message)))
            }
            other @ (Reply::Hello(_)
            | Reply::Out { .. }
            | Reply::Want { .. }
            | Reply::Keep(_)
            | Reply::Started { .. }
            | Reply::Done { .. }
            | Reply::Role { .. }
            | Reply::Probe(_)
            | Reply::Site(_)
            | Reply::Lock { .. }
            | Reply::Beat) => Ok(Err(OpError::operation(format!("an answer out of turn: {other:?}")))),
        }
    }

    /// Waits until the machine is in another boot and its executor answers.
    async fn await_restart(&self, record: &Host, cx: &OpContext, restart: &Restart) -> Result<(), OpError> {
        let timeout = Duration::from_millis(restart.timeout_ms);
        let deadline = Instant::now() + timeout;
        let target = self.target(record, &cx.host);
        let mut last = "it has not gone down".to_owned();
        loop {
            self.leave_boot(&cx.host, &restart.boot_id);
            target.hang_up().await;
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = cx.cancel.at_least(Stop::Ask) => {
                    return Err(OpError { changed: true, ..OpError::operation("stopped while the machine restarted") });
                }
            }
            let opened = tokio::select! {
                opened = tokio::time::timeout_at(deadline, self.session(record, &cx.host)) => opened,
                // Said above, at the next look.
                () = cx.cancel.at_least(Stop::Ask) => continue,
            };
            match opened {
                Ok(Ok(session)) if session.boot_id() != restart.boot_id => return Ok(()),
                Ok(Ok(_)) => last = format!("it is still in the boot {}", restart.boot_id),
                Ok(Err(error)) => last = error.message,
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                let after = stead_model::duration::to_exact(timeout);
                let message = format!("the machine had not restarted {after} after it was told to: {last}");
                return Err(OpError { changed: true, ..OpError::new(ErrorClass::Timeout, message) });
            }
        }
    }

    /// Lets go of a session in a boot that ends. Whoever still waits for an answer there keeps it until it is lost.
    fn leave_boot(&self, host: &HostName, boot_id: &str) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Slot::Open(session)) = slots.get(host)
            && session.boot_id() == boot_id
        {
            slots.remove(host);
        }
    }

    fn lock_message(&self, wait: Duration) -> Request {
        let reach = &self.settings.reach;
        Request::Lock {
            run: self.settings.run.clone(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            driver: reach.driver.clone(),
            user: reach.user.clone(),
            since: clock::now().to_string(),
            parent: self.settings.parent.clone(),
        }
    }

    /// Returns the host's session, opening it if nobody has.
    async fn session(&self, record: &Host, host: &HostName) -> Opened {
        let mut opening = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            match slots.get(host) {
                Some(Slot::Open(session)) if !session.is_over() => return Ok(Arc::clone(session)),
                Some(Slot::Opening(opening)) => opening.clone(),
                Some(Slot::Open(_)) | None => {
                    let opening = self.begin_opening(self.target(record, host));
                    slots.insert(host.clone(), Slot::Opening(opening.clone()));
                    opening
                }
            }
        };
        let gone = || Err(OpError::new(ErrorClass::Unreachable, "the run is ending"));
        match opening.wait_for(Option::is_some).await {
            Ok(opened) => opened.clone().unwrap_or_else(gone),
            Err(_) => gone(),
        }
    }

    /// Opens a session in a task of its own: one attempt that is cancelled must not take it from the others.
    fn begin_opening(&self, target: Target) -> watch::Receiver<Option<Opened>> {
        let (done, opening) = watch::channel(None);
        let (slots, conversations) = (Arc::clone(&self.slots), Arc::clone(&self.conversations));
        let messages = self.settings.messages.clone();
        let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        while openings.try_join_next().is_some() {}
        openings.spawn(async move {
            let host = target.host.clone();
            let opened = target.open(None).await.map(|attached| {
                warn_of_noise(&attached, &host, &messages);
                let mut tasks = conversations.lock().unwrap_or_else(PoisonError::into_inner);
                while tasks.try_join_next().is_some() {}
                Arc::new(Session::begin(target, attached, &mut tasks))
            });
            let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
            match &opened {
                Ok(session) => slots.insert(host, Slot::Open(Arc::clone(session))),
                // Those who waited share the failure; the next to come tries again.
                Err(_) => slots.remove(&host),
            };
            done.send_replace(Some(opened));
        });
        opening
    }

    /// Says goodbye to every host and waits until their sessions have gone.
    pub(crate) async fn close(&self) {
        self.openings.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        for slot in slots.into_values() {
            if let Slot::Open(session) = slot {
                session.bye();
            }
        }
        let mut conversations =
            std::mem::take(&mut *self.conversations.lock().unwrap_or_else(PoisonError::into_inner));
        while conversations.join_next().await.is_some() {}
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn warn_of_noise(attached: &Attached, host: &HostName, messages: &mpsc::Sender<Message>) {
    if attached.noise > 0 {
        let text = format!("{host}: its login prints {} bytes before a command begins", attached.noise);
        // A dispatcher that is too busy for it has worse things to say.
        drop(messages.try_send(Message::Warning(Warning::new("reach/noise", text))));
    }
}

/// Whether operations on a host are carried out by this very process.
pub(crate) fn is_here(record: &Host) -> bool {
    record.transport == TransportSpec::Local && record.account().is_none()
}
