//! Nodes on a Proxmox host: its API is the stand-in of the testkit, and its guests are sandboxes that read the seed they
//! were given, each behind an address of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stead_drivers::machine::sandbox::{SandboxDriver, SandboxSettings};
use stead_model::machine::{MachineId, OwnerScope};
use stead_runner::machine::MachineDriver;
use stead_testkit::proxmox::{self as stand_in, Fault, Guests, Proxmox, Wrong, machine_of_seed};

use super::{KEY, site, write};
use crate::cases_17_32::lab::{Ended, Lab};

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

/// Guests that are sandboxes.
struct Sandboxes {
    dir: PathBuf,
    /// What their addresses begin with.
    network: String,
    up: Mutex<BTreeMap<u32, (MachineId, Option<Door>)>>,
}

impl Sandboxes {
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

/// A site whose host `pve` is a Proxmox.
struct World {
    lab: Lab,
    api: Proxmox,
    guests: Arc<Sandboxes>,
}

/// Whether this process may have addresses of its own; else it is said that it may not.
#[expect(clippy::print_stderr, reason = "a test that is left out is said")]
fn has_addresses() -> bool {
    let number = std::process::id();
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

impl World {
    fn new(nodes: &str) -> Self {
        let dir = tempfile::tempdir().unwrap().keep();
        // Of addresses that no network of this machine has; tests that run at once seldom share one.
        let number = std::process::id();
        let network = format!("100.{}.{}", 64 + number / 250 % 64, number % 250);
        let guests = Arc::new(Sandboxes { dir, network, up: Mutex::default() });
        let api = Proxmox::with_guests(Some(Arc::clone(&guests) as Arc<dyn Guests>));
        let world = Self { lab: site(&[]), api, guests };
        let (key, token) = ("ab".repeat(32), stand_in::TOKEN);
        let secrets = format!(
            "api_tokens: {{lab: '{token}'}}\nssh_keys:\n  ann@desk: {KEY}\nauth: {{signing_key: '{key}'}}\n"
        );
        world.write(
            "site.yaml",
            "server: {port: 0}\ndefaults: {domain: lab.example, packages: [ca-certificates]}\n",
        );
        world.write("secrets.yaml", &secrets);
        world.host(&world.api.endpoint, &world.api.fingerprint);
        world.write("manifests/m.yaml", &format!("schema_version: 2\nname: m\nnodes:\n{nodes}"));
        world
    }

    fn host(&self, endpoint: &str, fingerprint: &str) {
        let host = format!(
            "api_endpoint: {endpoint}\nfingerprint: '{fingerprint}'\napi_token: lab\nnode: pve\ndatastore: fast\n"
        );
        self.write("nodes/pve.yaml", &host);
    }

    fn write(&self, path: &str, text: &str) {
        write(&self.lab, path, text);
    }

    fn verb(&self, verb: &str, more: &[&str]) -> Ended {
        let args = [&[verb, "-M", "m", "-H", "pve", "--json"], more].concat();
        self.lab.run(args)
    }

    #[track_caller]
    fn create(&self, more: &[&str]) -> Value {
        let ended = self.verb("create", more);
        assert_eq!(ended.code, 0, "{} {}", ended.stdout, ended.stderr);
        ended.document()
    }

    fn state(&self) -> PathBuf {
        self.lab.path("state/nodes/pve/m/state.json")
    }

    /// Returns requests that change something and name another machine than the one with the number 100.
    fn changes_of_others(&self) -> Vec<String> {
        let changes = self.api.calls().into_iter().filter(|call| call.method != "GET");
        let others = changes.filter(|call| {
            let is_own = call.path.split('/').any(|part| part == "100")
                || call.fields.contains(&("newid".to_owned(), "100".to_owned()));
            !is_own && !call.path.contains("/upload") && !call.path.contains("iso/stead-")
        });
        others.map(|call| format!("{} {}", call.method, call.path)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let driver = self.guests.driver();
        wait_for(async {
            for machine in driver.list(&OwnerScope::All).await.unwrap_or_default() {
                driver.destroy(&machine.id).await.ok();
            }
        });
        self.guests.up.lock().unwrap().clear();
        self.lab.run(["server", "stop", "--site", "site-config"]);
        fs::remove_dir_all(&self.guests.dir).ok();
    }
}

const EDGE: &str = "- {name: edge, type: vm, spec: base, preset: vm-small, image: debian-12}\n";

/// Case 31: create twice, a lost state, status, exec, drift, destroy; nothing but the node's own machine is changed.
#[test]
fn a_node_on_proxmox_is_made_found_again_and_goes() {
    if !has_addresses() {
        return;
    }
    let world = World::new(EDGE);
    world.api.plant(150, "precious");
    let made = world.create(&[]);
    let node = &made["nodes"][0];
    assert_eq!(
        (&node["status"], &node["changed"], &node["vm_id"]),
        (&json!("completed"), &json!(true), &json!(100))
    );
    assert_eq!(node["ip"], json!(format!("{}.1", world.guests.network)));
    for (key, value) in [("cores", "2"), ("memory", "2048"), ("name", "edge"), ("tags", "golden;stead")] {
        assert_eq!(world.api.config(100, key).as_deref(), Some(value), "{key}");
    }
    assert!(world.api.config(100, "scsi0").unwrap().ends_with("size=10G"));
    let before = fs::read(world.state()).unwrap();
    let again = world.create(&[]);
    assert_eq!(again["nodes"][0]["changed"], json!(false), "{again}");
    assert_eq!(fs::read(world.state()).unwrap(), before);

    fs::remove_file(world.state()).unwrap();
    let adopted = world.create(&[]);
    assert_eq!(adopted["nodes"][0]["vm_id"], json!(100), "{adopted}");
    assert_eq!(world.verb("status", &[]).code, 0);
    let said = world.verb("exec", &["edge", "--", "hostname"]).document();
    assert_eq!(said["results"][0]["stdout"], json!("edge\n"), "{said}");
    assert_eq!(world.verb("drift", &[]).document()["drift"], json!([]));

    let gone = world.verb("destroy", &["--yes"]);
    assert_eq!(gone.code, 0, "{} {}", gone.stdout, gone.stderr);
    assert_eq!(world.api.left(), ["machine 150"]);
    assert_eq!(world.verb("destroy", &["--yes"]).code, 0, "a second time there is nothing to do");
    assert_eq!(world.changes_of_others(), Vec::<String>::new());
    let shown = [made.to_string(), adopted.to_string(), gone.stdout, gone.stderr].concat();
    assert!(!shown.contains("hush"), "the token is shown nowhere");
    assert!(!contains(&world.lab.path("state"), b"hush") && !contains(&world.lab.path("runs"), b"hush"));
}

/// A node that pulls finds its token, its server and its pin in the seed, and needs no SSH.
#[test]
fn a_node_on_proxmox_pulls() {
    if !has_addresses() {
        return;
    }
    let world = World::new(EDGE);
    let pulled = world.create(&["--mode", "pull"]);
    assert_eq!(pulled["nodes"][0]["status"], json!("completed"), "{pulled}");
    assert_eq!(world.verb("status", &["--mode", "pull"]).code, 0);
    assert_eq!(world.verb("destroy", &["--yes"]).code, 0);
    assert_eq!(world.api.left(), Vec::<String>::new());
}

/// Case 31: a token that is refused, an API that does not answer and an image that is not there are found before anything
/// is made; a task that fails names its log; a foreign machine is left alone.
#[test]
fn what_is_missing_on_proxmox_is_found_first() {
    let world = World::new(EDGE);
    world.api.fail(Fault::always("", "", Wrong::Status(401, "invalid token value!".to_owned())));
    let refused = world.verb("create", &[]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    let text = refused.document()["diagnostics"].to_string();
    assert!(
        text.contains("the API token `lab` (root@pam!stead) is refused") && !text.contains("hush"),
        "{text}"
    );
    world.api.heal();

    world.write(
        "manifests/m.yaml",
        &format!("schema_version: 2\nname: m\nnodes:\n{}", EDGE.replace("debian-12", "no")),
    );
    let missing = world.verb("create", &[]);
    assert_eq!(missing.code, 1);
    assert!(missing.document()["diagnostics"].to_string().contains("no template for the image `no`"));
    world.write("manifests/m.yaml", &format!("schema_version: 2\nname: m\nnodes:\n{EDGE}"));
    assert_eq!(world.api.left(), Vec::<String>::new());

    world.host("https://127.0.0.1:1", &world.api.fingerprint);
    let unreached = world.verb("create", &[]);
    assert_eq!(unreached.code, 7, "{}", unreached.stdout);
    world.host(&world.api.endpoint, &world.api.fingerprint);

    world.api.fail(Fault::once(
        "POST",
        "clone",
        Wrong::Task("clone failed: no space left on device".to_owned()),
    ));
    let failed = world.verb("create", &[]);
    assert_eq!(failed.code, 1);
    let error = failed.document()["nodes"][0]["error"].to_string();
    assert!(error.contains("no space left on device") && error.contains("TASK ERROR"), "{error}");

    world.api.plant(100, "edge");
    let foreign = world.verb("create", &[]);
    assert_eq!(foreign.code, 1);
    assert!(
        foreign.document()["nodes"][0]["error"].to_string().contains("does not carry the mark"),
        "{}",
        foreign.stdout
    );
    assert_eq!(world.api.left(), ["machine 100"]);
}

/// Whether a file below `path` has these bytes.
fn contains(path: &Path, bytes: &[u8]) -> bool {
    let Ok(entries) = fs::read_dir(path) else {
        return fs::read(path)
            .is_ok_and(|content| content.windows(bytes.len()).any(|window| window == bytes));
    };
    entries.flatten().any(|entry| contains(&entry.path(), bytes))
}
