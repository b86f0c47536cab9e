//! Nodes on a Proxmox host: its API is the stand-in of the testkit, and its guests are sandboxes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use stead_testkit::proxmox::{self as stand_in, Fault, Guests, Proxmox, Wrong};

use super::guests::{Sandboxes, has_addresses};
use super::tls::make_certificate;
use super::{KEY, site, write};
use crate::cases_17_32::lab::{Ended, Lab};

/// A site whose host `pve` is a Proxmox.
struct World {
    lab: Lab,
    api: Proxmox,
    guests: Arc<Sandboxes>,
}

impl World {
    fn new(nodes: &str) -> Self {
        let guests = Arc::new(Sandboxes::new());
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
        self.lab.run(["server", "stop", "--site", "site-config"]);
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

/// Section 10 of reach: an API without a fingerprint is one that this machine's certificates vouch for, by its name. Who else
/// answers is sent nothing, and its certificate is shown to who may know it.
#[test]
fn an_api_may_be_known_by_the_certificates_of_this_machine() {
    let world = World::new(&EDGE.replace("debian-12", "no"));
    world.lab.write("vouched.pem", &world.api.certificate);
    make_certificate(&world.lab, "other");
    let create = |endpoint: &str, certificates: &str| -> Ended {
        let host = format!("api_endpoint: {endpoint}\napi_token: lab\nnode: pve\ndatastore: fast\n");
        world.write("nodes/pve.yaml", &host);
        world.api.forget_calls();
        let mut command = world.lab.stead(["create", "-M", "m", "-H", "pve", "--json"]);
        command.env("SSL_CERT_FILE", world.lab.path(certificates)).output().unwrap().into()
    };
    let by_name = world.api.endpoint.replace("127.0.0.1", "localhost");
    let vouched = create(&by_name, "vouched.pem").exits(1).document();
    // It answers: what is found missing is what only it can know.
    assert!(vouched["diagnostics"].to_string().contains("no template for the image `no`"), "{vouched}");
    for (endpoint, certificates) in [(&by_name, "other.pem"), (&world.api.endpoint, "vouched.pem")] {
        let refused = create(endpoint, certificates).exits(7).document();
        let text = refused["diagnostics"].to_string();
        assert!(text.contains("is not trusted and was sent nothing"), "{text}");
        assert!(text.contains(&world.api.fingerprint) && text.contains("`fingerprint`"), "{text}");
        assert_eq!(world.api.calls(), []);
    }
    let nobody = create(&by_name, "nowhere.pem").exits(3).document();
    assert!(nobody.to_string().contains("no certificates that could vouch"), "{nobody}");
}

/// Whether a file below `path` has these bytes.
fn contains(path: &Path, bytes: &[u8]) -> bool {
    let Ok(entries) = fs::read_dir(path) else {
        return fs::read(path)
            .is_ok_and(|content| content.windows(bytes.len()).any(|window| window == bytes));
    };
    entries.flatten().any(|entry| contains(&entry.path(), bytes))
}
