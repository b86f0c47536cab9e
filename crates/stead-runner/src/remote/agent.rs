//! Another machine as an agent: an executor session there, which holds the supervisors of its roles.
//!
//! A connection that is lost is found again within the lease; roles go on meanwhile, and nothing they say is lost or
//! doubled. Longer, and the session stops its roles by itself; their workdirs stay for a resume.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stead_model::event::Stream;
use stead_model::executor::{Reply, Request, RoleRequest};
use stead_model::inventory::Host;
use stead_model::plan::Digest;
use stead_model::report::Warning;
use stead_model::role::{Probe, ProbeAnswer, RoleEvent, RoleOrder, RunWork, SiteAnswer, SiteAsk};
use stead_model::{ErrorClass, HostName, RunId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::agent::{Agent, AgentAbout, Link, RunningRole};
use crate::files::{Content, LocalFiles, Place};
use crate::operation::{Cancel, OpError, Output};
use crate::transport::Source;

use super::Reach;
use super::binary::Binaries;
use super::open::Attached;
use super::pending::Allowed;
use super::pool::{HostPool, PoolSettings};
use super::session::Session;

/// Another machine to run roles on.
#[derive(Clone, Debug)]
pub struct RemoteAgentSettings {
    /// How machines are reached; its lease is the run's.
    pub reach: Reach,
    /// The machine: transport, workdir, account.
    pub host: Host,
    /// What the run calls it.
    pub name: HostName,
    /// The run.
    pub work: RunWork,
    /// Where secrets of the machine are read from.
    pub environment: BTreeMap<String, String>,
    /// What paths in them are relative to.
    pub base_dir: PathBuf,
}

/// Another machine as an agent. One that is dropped without [`Agent::close`] is a driver that was lost: its roles are
/// stopped when the lease ends.
pub struct RemoteAgent {
    about: AgentAbout,
    stead_sha256: String,
    session: Session,
    conversation: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for RemoteAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteAgent").field("about", &self.about).finish_non_exhaustive()
    }
}

impl RemoteAgent {
    /// Connects, brings `stead` there if it is not there, and begins the session of the run.
    ///
    /// # Errors
    /// Class `unreachable` if there is no way there.
    pub async fn connect(settings: RemoteAgentSettings) -> Result<Self, OpError> {
        let RemoteAgentSettings { reach, host, name, work, environment, base_dir } = settings;
        // Runs of one name from two places must not meet in one session.
        let run = RunId::parse(&work.to_string()).map_err(|error| OpError::invalid(error.to_string()))?;
        // What a pool of hosts would tell its dispatcher is told in `about`.
        let (messages, _) = mpsc::channel(1);
        let pool = HostPool::new(PoolSettings {
            binaries: Binaries::new(reach.executable.clone(), reach.binaries.clone()),
            reach,
            run,
            // Roles of several runs may work on one machine.
            lock: None,
            parent: None,
            environment,
            base_dir,
            messages,
        });
        let target = pool.target(&host, &name);
        let attached = target.open(None).await?;
        let about = about(&attached, &name);
        let stead_sha256 = attached.welcome.sha256.clone();
        let mut conversation = JoinSet::new();
        let session = Session::begin(target, attached, &mut conversation);
        Ok(Self { about, stead_sha256, session, conversation: Mutex::new(conversation) })
    }

    async fn ask(&self, request: &Request, allowed: Allowed) -> Result<Reply, OpError> {
        let answered =
            self.session.ask(request, allowed, Output::none(), &Cancel::never(), Duration::ZERO).await;
        match answered.map_err(|lost| lost.error)? {
            Reply::Error { message, class } => {
                Err(OpError::new(class.unwrap_or(ErrorClass::Operation), message))
            }
            reply @ (Reply::Hello(_)
            | Reply::Out { .. }
            | Reply::Result(_)
            | Reply::Want { .. }
            | Reply::Keep(_)
            | Reply::Started { .. }
            | Reply::Done { .. }
            | Reply::Role { .. }
            | Reply::Probe(_)
            | Reply::Site(_)
            | Reply::Lock { .. }
            | Reply::Beat) => Ok(reply),
        }
    }

    /// Asks for something that is answered with a file's hash.
    async fn ask_done(&self, request: &Request, allowed: Allowed) -> Result<Digest, OpError> {
        let reply = self.ask(request, allowed).await?;
        let Reply::Done { sha256, .. } = &reply else { return Err(out_of_turn(&reply)) };
        Digest::parse(sha256).ok_or_else(|| out_of_turn(&reply))
    }
}

fn out_of_turn(reply: &Reply) -> OpError {
    OpError::operation(format!("an answer out of turn: {reply:?}"))
}

fn about(attached: &Attached, name: &HostName) -> AgentAbout {
    let millis = |micros: f64| micros.round() / 1_000.0;
    let noise = (attached.noise > 0).then(|| {
        let text = format!("{name}: its login prints {} bytes before a command begins", attached.noise);
        Warning::new("reach/noise", text)
    });
    AgentAbout {
        os: attached.welcome.os.clone(),
        arch: attached.welcome.arch.clone(),
        host: attached.welcome.host.clone(),
        latency_ms: millis(attached.latency.as_secs_f64() * 1e6),
        clock_offset_ms: millis(attached.clock_offset_micros as f64),
        uploaded: attached.uploaded,
        warnings: noise.into_iter().collect(),
    }
}

/// Returns size and hash of a source, and a file that holds it.
async fn measure(from: Source) -> Result<(Content, Held), OpError> {
    let measuring = tokio::task::spawn_blocking(move || {
        let held = match from {
            Source::File(path) => Held::There(path),
            Source::Bytes(bytes) => {
                let failed = |error: std::io::Error| OpError::io("cannot keep what is to be sent", &error);
                let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
                file.write_all(&bytes).map_err(failed)?;
                Held::Made(file)
            }
        };
        let failed = |error: std::io::Error| {
            OpError::permanent(format!("cannot read {}: {error}", held.path().display()))
        };
        let mut file = File::open(held.path()).map_err(failed)?;
        let content = Content::read(&mut file).map_err(failed)?;
        Ok((content, held))
    });
    measuring.await.unwrap_or_else(|error| Err(OpError::operation(format!("hashing ended early: {error}"))))
}

/// A file of the driver on its way; one that was made for that goes when it is dropped.
enum Held {
    There(PathBuf),
    Made(tempfile::NamedTempFile),
}

impl Held {
    fn path(&self) -> &Path {
        match self {
            Self::There(path) => path,
            Self::Made(file) => file.path(),
        }
    }
}

/// Makes the logs of a role and returns what writes to them; a log that cannot be written is said once, to `warn`.
fn logs(directory: &Path) -> Result<(Output, mpsc::UnboundedReceiver<RoleEvent>), OpError> {
    let make = |name: &str| {
        let path = directory.join(name);
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.map_err(|error| OpError::io(format_args!("cannot make {}", path.display()), &error))
    };
    let files = Mutex::new([Some(make("stdout.log")?), Some(make("stderr.log")?)]);
    let (warn, warnings) = mpsc::unbounded_channel();
    let output = Output::new(move |stream, bytes| {
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        };
        let Some(file) = &mut files[index] else { return };
        if let Err(error) = file.write_all(bytes) {
            files[index] = None;
            let text = format!("a log is not whole: {error}");
            drop(warn.send(RoleEvent::Warning { code: "run/log-incomplete".to_owned(), text }));
        }
    });
    Ok((output, warnings))
}

#[async_trait::async_trait]
impl Agent for RemoteAgent {
    fn about(&self) -> &AgentAbout {
        &self.about
    }

    async fn stead_sha256(&self) -> Result<String, OpError> {
        Ok(self.stead_sha256.clone())
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.session.link()
    }

    async fn ask_site(&self, ask: SiteAsk) -> Result<SiteAnswer, OpError> {
        let reply = self.ask(&Request::Site(ask), Allowed::default()).await?;
        let Reply::Site(answer) = reply else { return Err(out_of_turn(&reply)) };
        Ok(answer)
    }

    async fn put(&self, from: Source, to: &str, mode: Option<u32>) -> Result<Digest, OpError> {
        let (content, held) = measure(from).await?;
        let allowed = Allowed {
            content: BTreeMap::from([(content.sha256.clone(), (held.path().to_owned(), content.size))]),
            keeps: None,
        };
        let Content { size, sha256 } = content;
        let request = Request::Put { path: to.to_owned(), mode, sha256, size };
        let done = self.ask_done(&request, allowed).await;
        drop(held);
        done
    }

    async fn fetch(&self, from: &str, to: &Path) -> Result<Digest, OpError> {
        let to = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
        let text = to.to_str().map(str::to_owned);
        let text = text.ok_or_else(|| OpError::invalid(format!("{} is not text", to.display())))?;
        let files = LocalFiles { base_dir: PathBuf::from("/"), artifacts: None };
        let place = Place { to: Some(text), path: from.to_owned() };
        let allowed = Allowed { content: BTreeMap::new(), keeps: Some((files, place)) };
        self.ask_done(&Request::Get { path: from.to_owned() }, allowed).await
    }

    async fn probe(&self, probe: &Probe) -> Result<ProbeAnswer, OpError> {
        let reply = self.ask(&Request::Probe(probe.clone()), Allowed::default()).await?;
        let Reply::Probe(answer) = reply else { return Err(out_of_turn(&reply)) };
        Ok(answer)
    }

    async fn start(
        &self,
        order: RoleOrder,
        work: &RunWork,
        directory: &Path,
    ) -> Result<RunningRole, OpError> {
        let (output, warnings) = logs(directory)?;
        let request = RoleRequest { order, work: work.clone() };
        Ok(self.session.start_role(request, output)?.with_warnings(warnings))
    }

    async fn close(&self) {
        self.session.bye();
        let mut conversation =
            std::mem::take(&mut *self.conversation.lock().unwrap_or_else(PoisonError::into_inner));
        while conversation.join_next().await.is_some() {}
    }
}
