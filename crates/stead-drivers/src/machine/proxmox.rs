//! Machines of a Proxmox VE cluster, virtual machines and containers, by its API.
//!
//! ```text
//!   ProxmoxDriver ── HTTPS, API token ──▶ API ──▶ nodes/NODE/qemu/VMID   clone or import, config, resize, start, …
//!        │                                        nodes/NODE/storage/…   stead-UUID.iso: the seed
//!        └── lock_dir: one lock per machine                              notes: the mark and the record; tag: stead
//! ```
//! Nothing of a machine is kept here: its notes say whose it is, what it was made from and how its runs went, so any driver
//! with a token finds it. Whatever does not carry our mark is looked at and never changed.
//!
//! A call that changes something goes on to its end whoever still waits for it: a request that was sent cannot be taken
//! back, and the next call has to find what it did.

mod api;
mod boot;
mod control;
mod find;
mod form;
mod guest;
mod host_key;
mod lock;
mod make;
mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stead_model::machine::{
    Boot, Machine, MachineExit, MachineId, MachineKind, MachineSpec, Owner, OwnerScope,
};
use stead_model::node::wire::Pins;
use stead_model::site::secrets::Secret;
use stead_runner::machine::{
    Capabilities, Changed, ConsoleStream, Ensured, MachineDriver, MachineError, Stopped,
};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

pub use api::Pace;
use api::{Api, ApiError};
use find::{At, Known};
use form::encode;

use crate::server_client::ClientError;
use crate::server_client::trust::{PinSet, Trust};
use crate::server_client::way::Way;

/// The port of an API whose address names none.
const PORT: u16 = 8006;
/// Disks that are made at once in one storage.
const DISKS: usize = 4;

/// How a virtual machine comes from its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// As a full clone of a template.
    #[default]
    Clone,
    /// By importing a disk image.
    Import,
}

impl Method {
    /// Returns the method that a host's word means.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "clone" => Some(Self::Clone),
            "import" => Some(Self::Import),
            _ => None,
        }
    }
}

/// What a host says of its Proxmox. `Debug` does not show the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxSettings {
    /// Where the API is: `https://HOST:8006`.
    pub endpoint: String,
    /// SHA-256 of the API's certificate; none: this machine's certificates vouch for it.
    pub fingerprint: Option<String>,
    /// What the site calls the token.
    pub token_name: String,
    /// `user@realm!id=value`.
    pub token: Secret,
    /// The node that machines are made on.
    pub node: String,
    /// The storage of disks.
    pub datastore: String,
    /// The storage of seeds, disk images and file trees.
    pub iso_storage: String,
    /// How a virtual machine comes from its image.
    pub method: Method,
    /// Templates by image.
    pub images: BTreeMap<String, u32>,
    /// Numbers that machines may have.
    pub vmids: RangeInclusive<u32>,
    /// The bridge of cards that name none.
    pub bridge: String,
    /// Where drivers of this machine lock what they work on.
    pub lock_dir: PathBuf,
    /// How patient the driver is.
    pub pace: Pace,
}

/// Something that a host says of its Proxmox and that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct BadSetting {
    /// The field of the host.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// Makes and keeps machines of a Proxmox VE cluster.
pub struct ProxmoxDriver {
    cluster: Arc<Cluster>,
    work: Mutex<JoinSet<()>>,
}

/// A cluster, and what is known of it.
struct Cluster {
    settings: ProxmoxSettings,
    api: Api,
    disks: Semaphore,
    /// Names and UUIDs of machines of ours that were seen, by number.
    known: Mutex<BTreeMap<u32, (String, String)>>,
    /// What users should know.
    said: Mutex<Vec<String>>,
}

impl fmt::Debug for ProxmoxDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxmoxDriver").field("settings", &self.cluster.settings).finish_non_exhaustive()
    }
}

impl ProxmoxDriver {
    /// Returns the driver of these settings. Touches nothing yet.
    ///
    /// # Errors
    /// If the address or the fingerprint is none.
    pub fn new(settings: ProxmoxSettings) -> Result<Self, BadSetting> {
        let bad = |key: &'static str| move |error: ClientError| BadSetting { key, why: error.to_string() };
        let trust = match &settings.fingerprint {
            Some(text) => {
                let pins = Pins { fingerprints: vec![text.clone()], spki_pin: String::new() };
                Trust::Pinned(PinSet::parse(&pins).map_err(bad("fingerprint"))?)
            }
            None => Trust::System,
        };
        let endpoint = settings.endpoint.trim_end_matches('/').trim_end_matches("/api2/json");
        let way = Way::tls(endpoint, PORT, trust).map_err(bad("api_endpoint"))?;
        let api = Api::new(way, &settings.token_name, &settings.token, settings.pace);
        let cluster = Cluster {
            settings,
            api,
            disks: Semaphore::new(DISKS),
            known: Mutex::default(),
            said: Mutex::default(),
        };
        Ok(Self { cluster: Arc::new(cluster), work: Mutex::default() })
    }

    /// Does work that goes on to its end whoever still waits for it, as long as this driver is there.
    async fn to_its_end<T, F, W>(&self, work: F) -> Result<T, MachineError>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, MachineError>> + Send,
        F: FnOnce(Arc<Cluster>) -> W + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        let cluster = Arc::clone(&self.cluster);
        {
            let mut all = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while all.try_join_next().is_some() {}
            all.spawn(async move {
                // Nobody may be left to hear it.
                tell.send(work(cluster).await).unwrap_or(());
            });
        }
        told.await.unwrap_or_else(|_| Err(MachineError::failed("the work was stopped")))
    }
}

impl Cluster {
    /// Keeps what users should know.
    fn say(&self, text: Option<String>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).extend(text);
    }

    /// Returns why machines that boot these, and those that are to have these numbers, could not be made.
    async fn missing(&self, boots: &[Boot], numbers: &[(Owner, u32)]) -> Vec<MachineError> {
        let settings = &self.settings;
        let node = encode(&settings.node);
        // Without an answer, or with a token that is refused, nothing else is known.
        if let Err(error) = self.api.look("version").await {
            return vec![error.while_doing(&format!("asking {}", settings.endpoint))];
        }
        let mut found = Vec::new();
        for (what, path) in [
            (format!("the node {}", settings.node), format!("nodes/{node}/qemu")),
            (
                format!("the datastore {}", settings.datastore),
                format!("nodes/{node}/storage/{}/status", encode(&settings.datastore)),
            ),
            (
                format!("the storage {}", settings.iso_storage),
                format!("nodes/{node}/storage/{}/status", encode(&settings.iso_storage)),
            ),
        ] {
            match self.api.look(&path).await {
                Ok(status) if status.get("active").and_then(find::number) == Some(0) => {
                    found.push(MachineError::Invalid(format!("{what} is not active")));
                }
                Ok(_) => {}
                Err(error) => found.push(error.while_doing(&format!("looking at {what}"))),
            }
        }
        if found.is_empty() {
            for boot in boots {
                found.extend(self.find_boot(boot).await.err());
            }
            for (owner, vmid) in numbers {
                found.extend(self.refuse_number(owner, *vmid).await.err());
            }
        }
        found
    }
}

#[async_trait::async_trait]
impl MachineDriver for ProxmoxDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kinds: vec![MachineKind::Vm, MachineKind::Ct],
            hosts: true,
            // The API has terminals, and keeps nothing of what was said there.
            console: false,
            seed: true,
            kernel_boot: false,
            disk_resize: true,
            networks: true,
            needs: Vec::new(),
        }
    }

    fn check_boot(&self, boot: Option<&Boot>) -> Result<(), MachineError> {
        boot::check(boot)
    }

    async fn missing(&self, boots: &[Boot], numbers: &[(Owner, u32)]) -> Vec<MachineError> {
        self.cluster.missing(boots, numbers).await
    }

    fn remark(&self) -> Option<String> {
        let said: Vec<String> =
            std::mem::take(&mut *self.cluster.said.lock().unwrap_or_else(PoisonError::into_inner));
        (!said.is_empty()).then(|| said.join("; "))
    }

    async fn ensure_created(&self, spec: &MachineSpec) -> Result<Ensured, MachineError> {
        let spec = spec.clone();
        self.to_its_end(|cluster| async move { cluster.ensure_created(&spec).await }).await
    }

    async fn start(&self, id: &MachineId) -> Result<Changed, MachineError> {
        let id = id.clone();
        self.to_its_end(|cluster| async move { cluster.start(&id).await }).await
    }

    async fn ssh_moved(&self, id: &MachineId, port: u16) -> Result<Changed, MachineError> {
        let id = id.clone();
        self.to_its_end(move |cluster| async move { cluster.ssh_moved(&id, port).await }).await
    }

    async fn stop(&self, id: &MachineId, grace: Duration) -> Result<Stopped, MachineError> {
        let id = id.clone();
        self.to_its_end(move |cluster| async move { cluster.stop(&id, grace).await }).await
    }

    async fn destroy(&self, id: &MachineId) -> Result<Changed, MachineError> {
        let id = id.clone();
        self.to_its_end(|cluster| async move { cluster.destroy(&id).await }).await
    }

    async fn inspect(&self, id: &MachineId) -> Result<Option<Machine>, MachineError> {
        let known = Known::parse(id)?;
        let failed = |error: ApiError| error.while_doing(&format!("looking at machine {}", known.vmid));
        match self.cluster.at(&known).await.map_err(failed)? {
            At::Ours(found) => self.cluster.machine(&found).await.map_err(failed),
            At::Absent | At::Foreign(_) => Ok(None),
        }
    }

    async fn list(&self, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
        let failed = |error: ApiError| error.while_doing("looking for machines");
        let mut machines = Vec::new();
        for found in self.cluster.all_marked().await.map_err(failed)? {
            if scope.covers(&found.record.spec.owner) {
                machines.extend(self.cluster.machine(&found).await.map_err(failed)?);
            }
        }
        machines.sort_by(|a, b| (&a.owner, a.vmid).cmp(&(&b.owner, b.vmid)));
        Ok(machines)
    }

    async fn console(&self, id: &MachineId, _from: u64) -> Result<ConsoleStream, MachineError> {
        let known = Known::parse(id)?;
        match self.cluster.ours(&known).await? {
            Some(_) => {
                Err(MachineError::Unsupported("Proxmox keeps nothing of what consoles say".to_owned()))
            }
            None => Err(MachineError::NotFound(id.clone())),
        }
    }

    async fn wait(&self, id: &MachineId) -> Result<MachineExit, MachineError> {
        self.cluster.wait(id).await
    }
}
