//! A stand-in for the API of Proxmox VE: its answers over TLS, its states, tasks, locks and refusals, and its ways to fail.
//!
//! ```text
//!   driver ── HTTPS ──▶ server: token, request, faults ──▶ calls: what each request does ──▶ world: guests, tasks, volumes
//! ```
//! A guest is nothing but a state and, some time after its start, an address, unless [`Guests`] boots it. Everything that
//! was asked is kept in [`Proxmox::calls`].

mod calls;
mod request;
mod seed;
mod server;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use seed::{file_of_seed, machine_of_seed};
use world::World;

/// The node of the cluster.
pub const NODE: &str = "pve";
/// The token that is accepted.
pub const TOKEN: &str = "root@pam!stead=0b1c2d3e-hush";
/// A template that boots.
pub const TEMPLATE: u32 = 9000;
/// A template whose clones do not start.
pub const DOOMED: u32 = 9001;
/// A disk image that can be imported.
pub const IMAGE: &str = "local:import/debian-12.qcow2";
/// The file tree of a container.
pub const TREE: &str = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst";

/// Boots and ends what guests stand for.
pub trait Guests: Send + Sync {
    /// Boots the guest with the volume of its seed and returns its address, or why it does not boot.
    ///
    /// # Errors
    /// If it does not.
    fn boot(&self, vmid: u32, seed: &[u8]) -> Result<String, String>;

    /// Ends it.
    fn halt(&self, vmid: u32);

    /// Removes everything of it.
    fn remove(&self, vmid: u32);
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The method of the requests it happens to; empty: any.
    pub method: &'static str,
    /// What their paths contain.
    pub path: String,
    /// How many of them are spared first.
    pub after: usize,
    /// How often it happens; 0: always.
    pub times: usize,
    /// What happens.
    pub wrong: Wrong,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is refused with this status and these words.
    Status(u16, String),
    /// It is done, and the connection ends without an answer.
    Lose,
    /// The connection ends, and nothing is done.
    Drop,
    /// The answer takes this long.
    Delay(Duration),
    /// There is no answer before everything works again.
    Hold,
    /// The task it starts fails with this status, and does nothing.
    Task(String),
    /// The task it starts ends well, with warnings.
    Warn,
    /// The number that was found free is taken by somebody else right after.
    Race,
}

impl Fault {
    /// Returns a fault of the first request of `method` whose path contains `path`.
    pub fn once(method: &'static str, path: &str, wrong: Wrong) -> Self {
        Self { method, path: path.to_owned(), after: 0, times: 1, wrong }
    }

    /// Returns a fault of all of them.
    pub fn always(method: &'static str, path: &str, wrong: Wrong) -> Self {
        Self { times: 0, ..Self::once(method, path, wrong) }
    }
}

/// A request, and how it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The method.
    pub method: String,
    /// The path after `/api2/json/`, decoded.
    pub path: String,
    /// Its fields, of the query or of the body.
    pub fields: Vec<(String, String)>,
    /// The status of the answer; 0: there was none.
    pub status: u16,
}

/// The stand-in. Ends when it is dropped.
pub struct Proxmox {
    /// Where it is: `https://127.0.0.1:PORT`.
    pub endpoint: String,
    /// SHA-256 of its certificate, as `AB:CD:…`.
    pub fingerprint: String,
    /// That certificate, for who should trust it: it is for `localhost`, and nobody else vouches for it.
    pub certificate: String,
    world: Arc<Mutex<World>>,
    _server: server::Server,
}

impl Proxmox {
    /// Starts one whose guests are nothing but states.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn start() -> Self {
        Self::with_guests(None)
    }

    /// Starts one whose guests are booted.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn with_guests(guests: Option<Arc<dyn Guests>>) -> Self {
        let world = Arc::new(Mutex::new(World::new(guests)));
        let server = server::Server::start(Arc::clone(&world));
        Self {
            endpoint: format!("https://127.0.0.1:{}", server.port),
            fingerprint: server.fingerprint.clone(),
            certificate: server.certificate.clone(),
            world,
            _server: server,
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.tick();
        world
    }

    /// Makes something go wrong.
    pub fn fail(&self, fault: Fault) {
        self.world().faults.push(fault);
    }

    /// Returns how many faults have not happened yet, or go on.
    pub fn faults(&self) -> usize {
        self.world().faults.len()
    }

    /// Makes everything work again.
    pub fn heal(&self) {
        self.world().faults.clear();
    }

    /// Sets how long tasks take, and guests until their agent answers.
    pub fn set_delays(&self, task: Duration, agent: Duration) {
        let mut world = self.world();
        (world.task_takes, world.agent_takes) = (task, agent);
    }

    /// Returns how many clones were made at once, at most.
    pub fn most_clones(&self) -> usize {
        self.world().most_clones
    }

    /// Returns how many requests were being answered at once, at most.
    pub fn most_requests(&self) -> usize {
        self.world().most_requests
    }

    /// Returns everything that was asked.
    pub fn calls(&self) -> Vec<Call> {
        self.world().calls.clone()
    }

    /// Forgets what was asked.
    pub fn forget_calls(&self) {
        self.world().calls.clear();
    }

    /// Puts a machine of somebody else at a number.
    pub fn plant(&self, vmid: u32, name: &str) {
        self.world().plant(vmid, name);
    }

    /// Removes a machine, whatever it is doing; returns the lines of its configuration.
    pub fn take(&self, vmid: u32) -> Vec<String> {
        self.world().take(vmid)
    }

    /// Returns the numbers of all machines but the templates.
    pub fn vmids(&self) -> Vec<u32> {
        self.world().vmids()
    }

    /// Returns a value of a machine's configuration.
    pub fn config(&self, vmid: u32, key: &str) -> Option<String> {
        self.world().config(vmid, key)
    }

    /// Sets a value of a machine's configuration, as somebody else would.
    pub fn set_config(&self, vmid: u32, key: &str, value: &str) {
        self.world().set_config(vmid, key, value);
    }

    /// Locks a machine for something else; none: unlocks it.
    pub fn lock(&self, vmid: u32, lock: Option<&str>) {
        self.world().lock(vmid, lock);
    }

    /// Whether a machine runs.
    pub fn is_running(&self, vmid: u32) -> bool {
        self.world().is_running(vmid)
    }

    /// Makes a guest ignore being asked to stop.
    pub fn deafen(&self, vmid: u32) {
        self.world().deafen(vmid);
    }

    /// Ends a guest's process, as a crash would.
    pub fn kill(&self, vmid: u32) {
        self.world().kill(vmid);
    }

    /// Returns the content of a volume.
    pub fn volume(&self, volume: &str) -> Option<Vec<u8>> {
        self.world().volumes.get(volume).cloned()
    }

    /// Returns everything that machines left: machines, seeds, and tasks that still run.
    pub fn left(&self) -> Vec<String> {
        self.world().left()
    }
}
