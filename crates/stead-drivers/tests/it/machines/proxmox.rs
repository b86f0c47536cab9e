//! Machines of a Proxmox cluster, against the stand-in for its API.

mod failing;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};
use stead_drivers::machine::proxmox::{Method, Pace, ProxmoxDriver, ProxmoxSettings};
use stead_model::machine::{
    Boot, Machine, MachineId, MachineKind, MachineSpec, MachineState, Nic, Owner, OwnerScope, PlantedFile,
};
use stead_model::site::secrets::Secret;
use stead_runner::machine::{Changed, MachineDriver, MachineError, Stopped};
use stead_testkit::machine_contract::{self, Yard};
use stead_testkit::proxmox::{self as stand_in, Fault, Proxmox, Wrong};

use super::yard::node;

/// Says in which process a driver is: what it does, where and for whom.
const DRIVER: &str = "STEAD_TEST_PROXMOX_DRIVER";
const GRACE: Duration = Duration::from_secs(20);
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB ann@desk";

struct Cluster {
    api: Proxmox,
    dir: tempfile::TempDir,
}

fn settings(endpoint: &str, fingerprint: &str, dir: &Path) -> ProxmoxSettings {
    ProxmoxSettings {
        endpoint: endpoint.to_owned(),
        fingerprint: Some(fingerprint.to_owned()),
        token_name: "lab".to_owned(),
        token: Secret::new(stand_in::TOKEN),
        node: stand_in::NODE.to_owned(),
        datastore: "fast".to_owned(),
        iso_storage: "local".to_owned(),
        method: Method::Clone,
        images: BTreeMap::from([("doomed".to_owned(), stand_in::DOOMED)]),
        vmids: 100..=999_999_999,
        bridge: "vmbr1".to_owned(),
        lock_dir: dir.join("locks"),
        pace: Pace {
            first_look: Duration::from_millis(10),
            busy: Duration::from_secs(10),
            ..Pace::default()
        },
    }
}

impl Cluster {
    fn new() -> Self {
        Self { api: Proxmox::start(), dir: tempfile::tempdir().unwrap() }
    }

    fn settings(&self) -> ProxmoxSettings {
        settings(&self.api.endpoint, &self.api.fingerprint, self.dir.path())
    }

    fn with(&self, change: impl FnOnce(&mut ProxmoxSettings)) -> ProxmoxDriver {
        let mut settings = self.settings();
        change(&mut settings);
        ProxmoxDriver::new(settings).unwrap()
    }

    /// Makes and starts a machine and waits until it is up.
    async fn start(&self, spec: &MachineSpec) -> Machine {
        let driver = self.driver();
        let made = driver.ensure_created(spec).await.unwrap();
        driver.start(&made.machine.id).await.unwrap();
        self.up(&made.machine.id).await
    }

    async fn up(&self, id: &MachineId) -> Machine {
        let end = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            let seen = self.driver().inspect(id).await.unwrap().unwrap();
            if seen.state == MachineState::Running {
                return seen;
            }
            assert!(std::time::Instant::now() < end, "{seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns requests that change something and name none of these numbers.
    fn changes_of_others(&self, own: &[u32]) -> Vec<String> {
        let is_own = |call: &stand_in::Call| {
            let by_number = own.iter().any(|vmid| {
                call.path.split('/').any(|part| part == vmid.to_string())
                    || call.fields.iter().any(|(name, value)| {
                        matches!(name.as_str(), "newid" | "vmid") && *value == vmid.to_string()
                    })
            });
            by_number || call.path.contains("/upload") || call.path.contains("iso/stead-")
        };
        let calls = self.api.calls().into_iter().filter(|call| call.method != "GET" && !is_own(call));
        calls.map(|call| format!("{} {}", call.method, call.path)).collect()
    }
}

fn vm(owner: Owner) -> MachineSpec {
    MachineSpec {
        memory_mb: Some(1024),
        cpus: Some(2),
        disk_gb: Some(4),
        boot: Some(Boot::Image("debian-12".to_owned())),
        authorized_keys: vec![KEY.to_owned()],
        ..MachineSpec::new(owner, MachineKind::Vm)
    }
}

fn ct(owner: Owner) -> MachineSpec {
    MachineSpec {
        boot: Some(Boot::Template("debian-12-standard_12.7-1_amd64".to_owned())),
        user: "root".to_owned(),
        memory_mb: Some(1024),
        authorized_keys: vec![KEY.to_owned()],
        ..MachineSpec::new(owner, MachineKind::Ct)
    }
}

impl Yard for Cluster {
    fn driver(&self) -> Arc<dyn MachineDriver> {
        Arc::new(self.with(|_| {}))
    }

    fn spec(&self, owner: Owner) -> MachineSpec {
        vm(owner)
    }

    fn doomed(&self, owner: Owner) -> MachineSpec {
        MachineSpec { boot: Some(Boot::Image("doomed".to_owned())), ..vm(owner) }
    }

    fn half_make(&self, spec: &MachineSpec) {
        self.api.fail(Fault::always("POST", "upload", Wrong::Status(500, "on purpose".to_owned())));
        let (driver, spec) = (self.driver(), spec.clone());
        let made = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(driver.ensure_created(&spec))
        });
        assert!(made.join().unwrap().is_err());
        self.api.heal();
    }

    fn plant_foreign(&self, spec: &MachineSpec) {
        self.api.plant(100, spec.owner.name());
    }

    fn take_foreign(&self, spec: &MachineSpec) {
        let left = self.api.take(100);
        assert_eq!(left, ["description: precious\n".to_owned(), format!("name: {}", spec.owner.name())]);
    }

    fn deafen(&self, machine: &Machine) {
        self.api.deafen(machine.vmid.unwrap());
    }

    fn kill(&self, machine: &Machine) {
        self.api.kill(machine.vmid.unwrap());
    }

    fn swap_process(&self, _machine: &Machine) {
        unreachable!("its machines are no processes of this machine");
    }

    fn driver_process(&self, verb: &str, owner: &Owner) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["machines::proxmox::a_driver_of_its_own", "--exact", "--test-threads=1"]);
        let order = json!({
            "verb": verb, "owner": owner, "endpoint": self.api.endpoint, "fingerprint": self.api.fingerprint,
            "dir": self.dir.path(),
        });
        command.env(DRIVER, order.to_string()).stderr(Stdio::null());
        command
    }

    fn left(&self) -> Vec<String> {
        self.api.left()
    }
}

/// Is a driver, if this process was started to be one; else it shows nothing.
#[tokio::test]
async fn a_driver_of_its_own() {
    let Some(order) = std::env::var_os(DRIVER) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let owner = Owner::deserialize(&order["owner"]).unwrap();
    let text = |key: &str| order[key].as_str().unwrap();
    let dir = PathBuf::from(text("dir"));
    let driver = ProxmoxDriver::new(settings(text("endpoint"), text("fingerprint"), &dir)).unwrap();
    let scope = OwnerScope::Exactly(owner.scope().to_owned());
    let verb = text("verb");
    if verb == "create" {
        driver.ensure_created(&vm(owner)).await.unwrap();
        return;
    }
    let listed = driver.list(&scope).await.unwrap();
    let id = listed.into_iter().find(|machine| machine.owner == owner).unwrap().id;
    machine_contract::drive(&driver, verb, &id).await;
}

/// Case 26: the contract of machine drivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxmox_keeps_the_machine_contract() {
    machine_contract::verify(&Cluster::new()).await;
}

/// Case 31 of nodes: create twice, destroy; nothing of others is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_a_configured_clone_with_its_mark() {
    let cluster = Cluster::new();
    cluster.api.plant(100, "precious");
    let driver = cluster.driver();
    let owner = node("quay");
    let spec = MachineSpec {
        files: vec![PlantedFile { path: "/etc/x".to_owned(), mode: 0o600, content: b"hush".to_vec() }],
        ..vm(owner.clone())
    };
    let made = driver.ensure_created(&spec).await.unwrap();
    assert!(made.changed);
    assert_eq!(made.machine.vmid, Some(101), "the next free one");
    let again = cluster.driver().ensure_created(&spec).await.unwrap();
    assert_eq!((again.changed, &again.machine), (false, &made.machine));
    let config = |key: &str| cluster.api.config(101, key).unwrap_or_default();
    assert_eq!(config("name"), "quay");
    assert_eq!(config("tags"), "golden;stead");
    assert_eq!((config("cores").as_str(), config("memory").as_str()), ("2", "1024"));
    assert_eq!(config("net0"), format!("virtio={},bridge=vmbr1", owner.mac(0).to_uppercase()));
    assert_eq!((config("ipconfig0").as_str(), config("ciuser").as_str()), ("ip=dhcp", "stead"));
    assert!(config("sshkeys").starts_with("ssh-ed25519%20AAAA"), "{}", config("sshkeys"));
    assert_eq!((config("agent").as_str(), config("scsi0").as_str()), ("1", "fast:vm-101-disk-0,size=4G"));
    let seed = format!("local:iso/stead-{}.iso", owner.uuid());
    assert_eq!(config("ide2"), format!("{seed},media=cdrom"), "in the place of the template's own");
    let bytes = cluster.api.volume(&seed).unwrap();
    assert!(
        bytes.windows(6).any(|window| window == b"cidata")
            && bytes.windows(4).any(|window| window == b"hush")
    );
    let description = config("description");
    assert!(
        description.starts_with(&format!("stead {} lab/test/local/quay\n", owner.uuid())),
        "{description}"
    );
    assert!(!description.contains("hush") && !description.contains("PRIVATE"));
    assert_eq!(driver.destroy(&made.machine.id).await, Ok(Changed::Yes));
    assert_eq!(driver.destroy(&made.machine.id).await, Ok(Changed::No));
    assert_eq!(cluster.left(), ["machine 100"]);
    assert_eq!(cluster.changes_of_others(&[101]), Vec::<String>::new());
}

/// Case 31 of nodes, case 29 of reach: the address is known once the agent answers, however late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_agent_is_waited_for() {
    let cluster = Cluster::new();
    cluster.api.set_delays(Duration::from_millis(5), Duration::from_secs(4));
    let driver = cluster.driver();
    let made = driver.ensure_created(&vm(node("late"))).await.unwrap();
    driver.start(&made.machine.id).await.unwrap();
    let seen = driver.inspect(&made.machine.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.addresses.len(), seen.ssh), (MachineState::Starting, 0, None));
    let seen = cluster.up(&made.machine.id).await;
    let ssh = seen.ssh.unwrap();
    assert_eq!((ssh.host.as_str(), ssh.port), (seen.addresses[0].as_str(), 22));
    assert!(ssh.host.starts_with("10.9.") && ssh.host_key.starts_with("ssh-ed25519 AAAA"), "{ssh:?}");
    driver.destroy(&made.machine.id).await.unwrap();
}

/// Nodes, section 5: a machine is reached where its SSH listens, also by those who drive it next, and only its own notes
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_ssh_port_is_in_the_notes_of_the_machine() {
    let cluster = Cluster::new();
    let made = cluster.start(&vm(node("moved"))).await;
    assert_eq!(made.ssh.clone().unwrap().port, 22);
    let driver = cluster.driver();
    assert_eq!(driver.ssh_moved(&made.id, 22).await, Ok(Changed::No));
    assert_eq!(driver.ssh_moved(&made.id, 2222).await, Ok(Changed::Yes));
    assert_eq!(driver.ssh_moved(&made.id, 2222).await, Ok(Changed::No));
    let seen = cluster.up(&made.id).await;
    assert_eq!((seen.ssh.unwrap().port, seen.spec_hash), (2222, made.spec_hash));
    assert_eq!(cluster.changes_of_others(&[made.vmid.unwrap()]), Vec::<String>::new());
    driver.destroy(&made.id).await.unwrap();
    assert_eq!(driver.ssh_moved(&made.id, 22).await, Err(MachineError::NotFound(made.id)));
}

/// A storage is not asked for more copies at once than it can make: four, whoever wants how many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_disks_are_copied_at_once() {
    let cluster = Cluster::new();
    cluster.api.set_delays(Duration::from_millis(200), Duration::from_millis(5));
    let driver = cluster.driver();
    let mut making = tokio::task::JoinSet::new();
    for number in 0..10 {
        let driver = Arc::clone(&driver);
        making
            .spawn(async move { driver.ensure_created(&vm(node(&format!("many{number}")))).await.unwrap() });
    }
    let made = making.join_all().await;
    assert!((1..=4).contains(&cluster.api.most_clones()), "{}", cluster.api.most_clones());
    cluster.api.set_delays(Duration::from_millis(1), Duration::from_millis(5));
    for ensured in made {
        driver.destroy(&ensured.machine.id).await.unwrap();
    }
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// The daemon behind the API has few workers, which others need too: it is asked sixteen things at once, whoever wants to
/// know how many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_questions_are_asked_at_once() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    let id = driver.ensure_created(&vm(node("asked"))).await.unwrap().machine.id;
    cluster.api.fail(Fault::always("GET", "qemu/100/", Wrong::Hold));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (driver, id) = (Arc::clone(&driver), id.clone());
        asking.spawn(async move { driver.inspect(&id).await.unwrap().unwrap() });
    }
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while cluster.api.most_requests() < 16 {
        assert!(std::time::Instant::now() < end, "{}", cluster.api.most_requests());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Whoever else asks is answered meanwhile, and comes later than all that would have come.
    assert!(cluster.driver().missing(&[], &[]).await.is_empty());
    cluster.api.heal();
    for seen in asking.join_all().await {
        assert_eq!(seen.vmid, Some(100));
    }
    assert_eq!(cluster.api.most_requests(), 17, "sixteen, and one of somebody else");
    driver.destroy(&id).await.unwrap();
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// A number that is asked for is given, or refused if it is another's; a machine keeps the one it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_asked_for_are_given() {
    let cluster = Cluster::new();
    cluster.api.plant(205, "other");
    let driver = cluster.with(|settings| settings.vmids = 200..=299);
    let at = |vmid| MachineSpec { vmid: Some(vmid), ..vm(node("numbered")) };
    match driver.ensure_created(&at(205)).await {
        Err(MachineError::Foreign { what, .. }) => assert_eq!(what, "VM 205 on pve"),
        other => panic!("{other:?}"),
    }
    let outside = driver.ensure_created(&at(300)).await.unwrap_err();
    assert!(outside.to_string().contains("vmid_range"), "{outside}");
    let made = driver.ensure_created(&at(210)).await.unwrap();
    assert_eq!(made.machine.vmid, Some(210));
    match driver.ensure_created(&at(211)).await {
        Err(MachineError::Conflict { changes, .. }) => {
            assert_eq!(changes[0].to_string(), "vmid is 210, not 211");
        }
        other => panic!("{other:?}"),
    }
    let next = driver.ensure_created(&vm(node("next"))).await.unwrap();
    assert_eq!(next.machine.vmid, Some(200), "the first of the range");
    for id in [&made.machine.id, &next.machine.id] {
        driver.destroy(id).await.unwrap();
    }
    assert_eq!(cluster.left(), ["machine 205"]);
}

/// A machine is known by its mark alone: tags and names that look like ours are not ours; a machine renamed by hand is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_mark_makes_a_machine_ours() {
    let cluster = Cluster::new();
    let spec = vm(node("marked"));
    let made = cluster.driver().ensure_created(&spec).await.unwrap();
    cluster.api.plant(150, "lookalike");
    cluster.api.set_config(150, "tags", "stead");
    cluster.api.plant(151, &format!("stead-{}", spec.owner.uuid()));
    cluster.api.set_config(100, "name", "renamed");
    let driver = cluster.driver();
    let listed = driver.list(&OwnerScope::All).await.unwrap();
    assert_eq!(listed.iter().map(|machine| machine.vmid.unwrap()).collect::<Vec<_>>(), [100]);
    assert!(!driver.ensure_created(&spec).await.unwrap().changed, "adopted under its new name");
    // Its number went to another machine of ours: the id does not mean that one.
    let other = MachineId::new(format!("100.{}", node("other").uuid()));
    assert_eq!(driver.inspect(&other).await, Ok(None));
    assert_eq!(driver.destroy(&other).await, Ok(Changed::No));
    // Somebody's notes stay.
    let notes = cluster.api.config(100, "description").unwrap();
    cluster.api.set_config(100, "description", &format!("{notes}ask Ann first\n"));
    driver.start(&made.machine.id).await.unwrap();
    assert!(cluster.api.config(100, "description").unwrap().ends_with("\nask Ann first\n"));
    driver.destroy(&made.machine.id).await.unwrap();
    assert_eq!(cluster.left(), ["machine 150", "machine 151"]);
    assert_eq!(cluster.changes_of_others(&[100]), Vec::<String>::new());
}

/// Two drivers of different machines, which share no lock, make one machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drivers_of_two_machines_make_one() {
    for _ in 0..4 {
        let cluster = Cluster::new();
        cluster.api.set_delays(Duration::from_millis(30), Duration::from_millis(10));
        let one = cluster.driver();
        let far = cluster.with(|settings| settings.lock_dir = cluster.dir.path().join("far"));
        let spec = vm(node("twice"));
        let (a, b) = tokio::join!(one.ensure_created(&spec), far.ensure_created(&spec));
        // One of them may be told that what it made went: the other's stays.
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        let made = one.ensure_created(&spec).await.unwrap();
        assert_eq!(cluster.api.vmids().len(), 1);
        one.destroy(&made.machine.id).await.unwrap();
        assert_eq!(cluster.left(), Vec::<String>::new());
    }
}

/// A disk image is imported where the host says so; what is not there is named with what is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_imported() {
    let cluster = Cluster::new();
    let driver = cluster.with(|settings| settings.method = Method::Import);
    let made = driver.ensure_created(&vm(node("imported"))).await.unwrap();
    assert_eq!(cluster.api.config(100, "scsi0").as_deref(), Some("fast:vm-100-disk-0,size=4G"));
    assert_eq!(cluster.api.config(100, "tags").as_deref(), Some("stead"));
    driver.destroy(&made.machine.id).await.unwrap();
    let fedora = Boot::Image("fedora".to_owned());
    let spec = MachineSpec { boot: Some(fedora.clone()), ..vm(node("other")) };
    let missing = driver.ensure_created(&spec).await.unwrap_err();
    assert!(missing.to_string().contains("there are debian-12.qcow2"), "{missing}");
    let missing = cluster.driver().ensure_created(&spec).await.unwrap_err();
    assert!(missing.to_string().contains("there are doomed, debian-12, doomed"), "{missing}");
    assert_eq!(driver.missing(&[fedora, Boot::Image("debian-12".to_owned())], &[]).await.len(), 1);
    let small = MachineSpec { disk_gb: Some(1), ..vm(node("small")) };
    let refused = driver.ensure_created(&small).await.unwrap_err();
    assert!(refused.to_string().contains("too small"), "{refused}");
    let half_made = driver.list(&OwnerScope::All).await.unwrap();
    driver.destroy(&half_made[0].id).await.unwrap();
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// A fixed address needs no agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_address_is_known_at_once() {
    let cluster = Cluster::new();
    cluster.api.set_delays(Duration::from_millis(5), Duration::from_secs(600));
    let nic = Nic {
        network: "vmbr7".to_owned(),
        mac: None,
        address: Some("10.1.2.3/24".to_owned()),
        gateway: Some("10.1.2.1".to_owned()),
        ports: Vec::new(),
    };
    let spec = MachineSpec { nics: vec![nic.clone()], ..vm(node("fixed")) };
    let machine = cluster.start(&spec).await;
    assert_eq!(machine.addresses, ["10.1.2.3"]);
    assert_eq!(cluster.api.config(100, "ipconfig0").as_deref(), Some("ip=10.1.2.3/24,gw=10.1.2.1"));
    assert!(cluster.api.config(100, "net0").unwrap().ends_with(",bridge=vmbr7"));
    cluster.driver().destroy(&machine.id).await.unwrap();
    let odd = Nic { network: "vmbr7,tag=3".to_owned(), ..nic };
    assert!(
        cluster.driver().ensure_created(&MachineSpec { nics: vec![odd], ..vm(node("odd")) }).await.is_err()
    );
}

/// Containers come from a file tree, have addresses without an agent, and stop and go as virtual machines do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_made_and_go() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    let spec = ct(node("box"));
    let machine = cluster.start(&spec).await;
    assert_eq!(machine.vmid, Some(100));
    assert!(machine.addresses[0].starts_with("10.9."), "{machine:?}");
    let config = |key: &str| cluster.api.config(100, key).unwrap_or_default();
    assert_eq!((config("hostname").as_str(), config("rootfs").as_str()), ("box", "fast:8"));
    assert_eq!(
        config("net0"),
        format!("name=eth0,bridge=vmbr1,hwaddr={},ip=dhcp", node("box").mac(0).to_uppercase())
    );
    assert!(!driver.ensure_created(&spec).await.unwrap().changed);
    assert_eq!(driver.stop(&machine.id, GRACE).await, Ok(Stopped { changed: true, forced: false }));
    assert_eq!(driver.wait(&machine.id).await.unwrap().code, Some(0));
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(cluster.left(), Vec::<String>::new());
    let pulled =
        PlantedFile { path: "/etc/stead/bootstrap.json".to_owned(), mode: 0o600, content: Vec::new() };
    let refused = driver.ensure_created(&MachineSpec { files: vec![pulled], ..ct(node("pulled")) }).await;
    assert!(refused.unwrap_err().to_string().contains("push"));
    let refused = driver.ensure_created(&MachineSpec { user: "ops".to_owned(), ..ct(node("ops")) }).await;
    assert!(refused.unwrap_err().to_string().contains("vm_user"));
}

/// The root of a container has the password whose hash is given, where that is one that Proxmox knows for a hash, and it asks
/// those for names who are given for fixed addresses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_has_its_password_and_its_name_servers() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    let with = |hash: &str| MachineSpec {
        root_password: Some(Secret::new(hash)),
        name_servers: vec![[9, 9, 9, 9].into(), [1, 1, 1, 1].into()],
        ..ct(node("locked"))
    };
    for hash in
        ["plain", "$y$j9T$salt$hash", "$6$rounds=9$salt$hash", "$6$salt$", "6$salt$hash", "$6$sa lt$h"]
    {
        let refused = driver.ensure_created(&with(hash)).await.unwrap_err().to_string();
        assert!(refused.contains("vm_root") && !refused.contains(hash), "{refused}");
    }
    assert_eq!(cluster.left(), Vec::<String>::new());
    let made = driver.ensure_created(&with("$6$salt$hush/hush.")).await.unwrap();
    let made_by = cluster
        .api
        .calls()
        .into_iter()
        .find(|call| call.method == "POST" && call.path.ends_with("/lxc"))
        .unwrap();
    let field = |name: &str| made_by.fields.iter().find(|(found, _)| found == name).unwrap().1.clone();
    assert_eq!(field("password"), "$6$salt$hush/hush.");
    assert_eq!(field("nameserver"), "9.9.9.9 1.1.1.1");
    assert!(!cluster.api.config(100, "description").unwrap().contains("hush"));
    driver.destroy(&made.machine.id).await.unwrap();
}

/// Nodes, section 7: ids are looked at before anything is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_cannot_be_had_are_found_before_anything_is_made() {
    let cluster = Cluster::new();
    let mine = cluster.driver().ensure_created(&vm(node("mine"))).await.unwrap().machine;
    let taken = mine.vmid.unwrap();
    let calls = cluster.api.calls().len();
    let driver = cluster.with(|settings| settings.vmids = 100..=199);
    let numbers = [
        (node("mine"), taken),
        (node("free"), taken + 1),
        (node("second"), taken),
        (node("templated"), stand_in::DOOMED),
        (node("low"), 99),
    ];
    let found = driver.missing(&[], &numbers).await;
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found[0].contains(&format!("VM {taken}")), "{found:#?}");
    let outside = |vmid: u32| format!("vmid {vmid} is not between 100 and 199 (`vmid_range`)");
    assert!(found[1].contains(&outside(stand_in::DOOMED)) && found[2].contains(&outside(99)), "{found:#?}");
    assert!(cluster.api.calls().iter().skip(calls).all(|call| call.method == "GET"));
    cluster.driver().destroy(&mine.id).await.unwrap();
}

/// What somebody else stopped was stopped; what went by itself has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_is_known() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    let machine = cluster.start(&vm(node("ended"))).await;
    cluster.api.kill(100);
    let seen = driver.inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.exit.unwrap().code), (MachineState::Failed, None));
    driver.start(&machine.id).await.unwrap();
    cluster.api.deafen(100);
    let forced = driver.stop(&machine.id, Duration::from_millis(200)).await;
    assert_eq!(forced, Ok(Stopped { changed: true, forced: true }));
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(cluster.left(), Vec::<String>::new());
}
