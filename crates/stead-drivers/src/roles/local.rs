//! This machine as an agent: roles are children of supervisors that are children of this process.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::plan::Digest;
use stead_model::role::{
    Probe, ProbeAnswer, RoleOrder, RunWork, SiteAnswer, SiteAsk, StopReason, SupervisorRequest,
};
use stead_runner::agent::{Agent, AgentAbout, Link, RunningRole, StopRole};
use stead_runner::operation::OpError;
use stead_runner::transport::Source;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::JoinSet;

use super::held::{self, Start};
use super::probe;
use super::site::{self, Site};

/// The agent of this machine.
#[derive(Debug)]
pub struct LocalAgent {
    about: AgentAbout,
    executable: PathBuf,
    site: Arc<Site>,
    link: watch::Sender<Link>,
    closing: watch::Sender<bool>,
    roles: Mutex<JoinSet<()>>,
    /// The hash of `executable`, once it is known.
    sha256: OnceCell<String>,
}

impl LocalAgent {
    /// Returns the agent of this machine. `executable` is the `stead` that supervises, `workdirs` are where roles may
    /// work, the first choice first.
    pub fn new(executable: impl Into<PathBuf>, workdirs: Vec<PathBuf>) -> Self {
        let system = rustix::system::uname();
        let about = AgentAbout {
            os: std::env::consts::OS.to_owned(),
            arch: std::env::consts::ARCH.to_owned(),
            host: system.nodename().to_string_lossy().into_owned(),
            latency_ms: 0.0,
            clock_offset_ms: 0.0,
            uploaded: false,
            warnings: Vec::new(),
        };
        Self {
            about,
            executable: executable.into(),
            site: Arc::new(Site::new(workdirs)),
            link: watch::Sender::new(Link::Up),
            closing: watch::Sender::new(false),
            roles: Mutex::default(),
            sha256: OnceCell::new(),
        }
    }
}

/// Does what may take its time on another thread.
async fn away<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpError> + Send + 'static,
) -> Result<T, OpError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(OpError::operation(format!("ended early: {error}"))))
}

#[derive(Debug)]
struct StopLocal(mpsc::UnboundedSender<SupervisorRequest>);

impl StopRole for StopLocal {
    fn stop(&self, reason: StopReason, kill: bool) {
        // One that has ended does not listen.
        drop(self.0.send(SupervisorRequest::Stop { reason, kill }));
    }
}

#[async_trait::async_trait]
impl Agent for LocalAgent {
    fn about(&self) -> &AgentAbout {
        &self.about
    }

    async fn stead_sha256(&self) -> Result<String, OpError> {
        // Found out once, whoever asks meanwhile.
        let found = self.sha256.get_or_try_init(|| {
            let (site, executable) = (Arc::clone(&self.site), self.executable.clone());
            away(move || site.hash_of(&executable))
        });
        found.await.cloned()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    async fn ask_site(&self, ask: SiteAsk) -> Result<SiteAnswer, OpError> {
        let site = Arc::clone(&self.site);
        away(move || site.answer(&ask)).await
    }

    async fn put(&self, from: Source, to: &str, mode: Option<u32>) -> Result<Digest, OpError> {
        let to = to.to_owned();
        away(move || {
            let mut reader: Box<dyn Read> = match &from {
                Source::Bytes(bytes) => Box::new(&**bytes),
                Source::File(path) => Box::new(File::open(path).map_err(|error| {
                    OpError::permanent(format!("cannot read {}: {error}", path.display()))
                })?),
            };
            site::install(&mut reader, &to, mode)
        })
        .await
    }

    async fn fetch(&self, from: &str, to: &Path) -> Result<Digest, OpError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        away(move || {
            let mut file = site::open_for_driver(&from)?;
            let text = to.to_str().map(str::to_owned);
            let text = text.ok_or_else(|| OpError::invalid(format!("{} is not text", to.display())))?;
            site::install(&mut file, &text, None)
        })
        .await
    }

    async fn probe(&self, probe: &Probe) -> Result<ProbeAnswer, OpError> {
        Ok(probe::look(probe).await)
    }

    async fn start(&self, order: RoleOrder, work: &RunWork, logs: &Path) -> Result<RunningRole, OpError> {
        let (site, work, role) = (Arc::clone(&self.site), work.clone(), order.role.clone());
        let control = away(move || site.make_control(&work, &role)).await?;
        let start = Start {
            executable: self.executable.clone(),
            order,
            logs: std::path::absolute(logs).unwrap_or_else(|_| logs.to_owned()),
            note: Some(control.note()),
            plain: None,
        };
        let (told, events) = mpsc::unbounded_channel();
        let (requests, requested) = mpsc::unbounded_channel();
        let (closing, kept) = (self.closing.subscribe(), requests.clone());
        let mut roles = self.roles.lock().unwrap_or_else(PoisonError::into_inner);
        while roles.try_join_next().is_some() {}
        roles.spawn(async move {
            held::hold(start, requested, closing, |event| drop(told.send(event))).await;
            // Kept until here: a role whose handle nobody holds goes on.
            drop(kept);
        });
        Ok(RunningRole::new(events, Arc::new(StopLocal(requests))))
    }

    async fn close(&self) {
        self.closing.send_replace(true);
        let mut roles = std::mem::take(&mut *self.roles.lock().unwrap_or_else(PoisonError::into_inner));
        while roles.join_next().await.is_some() {}
    }
}
