//! Guests of stand-ins that run no machines: sandboxes that read the seed they were given, each behind an address of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stead_drivers::machine::sandbox::{SandboxDriver, SandboxSettings};
use stead_model::machine::{MachineId, OwnerScope};
use stead_runner::machine::MachineDriver;
use stead_testkit::proxmox::{Guests, machine_of_seed};

/// A port of an address that leads to a guest.
struct Door {
    address: String,
    ends: Arc<AtomicBool>,
}

impl Door {
    /// Opens port 22 of a new address of this machine, and leads it to `port`.
    fn open(address: String, port: u16) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let added =
            Command::new("ip").args(["addr", "add", &format!("{address}/32"), "dev", "lo"]).output()?;
        if !added.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&added.stderr).into_owned()));
        }
        let door = Self { address: address.clone(), ends: Arc::clone(&ends) };
        let listener = TcpListener::bind((address.as_str(), 22))?;
        listener.set_nonblocking(true)?;
        std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((client, _)) => lead(client, port),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Ok(door)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        Command::new("ip").args(["addr", "del", &format!("{}/32", self.address), "dev", "lo"]).status().ok();
    }
}

fn lead(client: TcpStream, port: u16) {
    let Ok(guest) = TcpStream::connect(("127.0.0.1", port)) else { return };
    client.set_nonblocking(false).unwrap();
    let pairs = [(client.try_clone().unwrap(), guest.try_clone().unwrap()), (guest, client)];
    for (mut from, mut to) in pairs {
        std::thread::spawn(move || {
            io::copy(&mut from, &mut to).ok();
            to.shutdown(Shutdown::Write).ok();
        });
    }
}

/// Returns a number that seldom anybody else has, in this process or in another.
fn own_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    std::process::id().wrapping_mul(8).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Guests that are sandboxes. They go with it.
pub(super) struct Sandboxes {
    dir: PathBuf,
    /// What their addresses begin with.
    pub(super) network: String,
    up: Mutex<BTreeMap<u32, (MachineId, Option<Door>)>>,
}

impl Sandboxes {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap().keep();
        // Of addresses that no network of this machine has; tests that run at once seldom share one.
        let number = own_number();
        let network = format!("100.{}.{}", 64 + number / 250 % 64, number % 250);
        Self { dir, network, up: Mutex::default() }
    }

    fn driver(&self) -> SandboxDriver {
        SandboxDriver::new(SandboxSettings::new(self.dir.join("guests"), env!("CARGO_BIN_EXE_stead")))
    }
}

/// Runs something to its end, wherever this is called from.
fn wait_for<T: Send>(work: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work)
        };
        scope.spawn(run).join().unwrap()
    })
}

impl Guests for Sandboxes {
    fn boot(&self, vmid: u32, seed: &[u8]) -> Result<String, String> {
        let spec = machine_of_seed(seed, &format!("guests/{vmid}"));
        let driver = self.driver();
        let machine = wait_for(async {
            let made = driver.ensure_created(&spec).await.map_err(|error| error.to_string())?;
            driver.start(&made.machine.id).await.map_err(|error| error.to_string())?;
            loop {
                let seen =
                    driver.inspect(&made.machine.id).await.map_err(|error| error.to_string())?.unwrap();
                if seen.ssh.is_some() {
                    return Ok::<_, String>(seen);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })?;
        let address = format!("{}.{}", self.network, vmid - 99);
        let door =
            Door::open(address.clone(), machine.ssh.unwrap().port).map_err(|error| error.to_string())?;
        self.up.lock().unwrap().insert(vmid, (machine.id, Some(door)));
        Ok(address)
    }

    fn halt(&self, vmid: u32) {
        if let Some((id, door)) = self.up.lock().unwrap().get_mut(&vmid) {
            *door = None;
            wait_for(self.driver().stop(id, Duration::from_secs(5))).unwrap();
        }
    }

    fn remove(&self, vmid: u32) {
        if let Some((id, _)) = self.up.lock().unwrap().remove(&vmid) {
            wait_for(self.driver().destroy(&id)).unwrap();
        }
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        let driver = self.driver();
        wait_for(async {
            for machine in driver.list(&OwnerScope::All).await.unwrap_or_default() {
                driver.destroy(&machine.id).await.ok();
            }
        });
        self.up.lock().unwrap().clear();
        fs::remove_dir_all(&self.dir).ok();
    }
}

/// Whether this process may have addresses of its own; else it is said that it may not.
#[expect(clippy::print_stderr, reason = "a test that is left out is said")]
pub(super) fn has_addresses() -> bool {
    let number = own_number();
    let probe = format!("198.19.{}.{}/32", number / 250 % 250, number % 250 + 1);
    let ip = |verb: &str| Command::new("ip").args(["addr", verb, &probe, "dev", "lo"]).output();
    let works = ip("add").is_ok_and(|output| output.status.success());
    if works {
        ip("del").unwrap();
        return true;
    }
    assert!(std::env::var_os("STEAD_CI").is_none(), "guests need addresses: root, and iproute2");
    eprintln!("skipped: guests need addresses of their own, which takes root and iproute2");
    false
}
