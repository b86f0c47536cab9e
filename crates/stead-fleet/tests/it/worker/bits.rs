//! Bits: blobs from a directory, paths from caches of a real Nix, kept and dropped.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use stead_model::fleet::services::worker::WorkerNix;
use stead_model::fleet::{Code, VmSpec};
use stead_model::plan::Digest;

use super::yard::{Yard, is_alive, vm};

/// Case 3, F12: blobs are compared before anything uses them; the old instance stays until they are here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blobs_are_compared_and_collected() {
    let mut yard = Yard::new();
    let store = yard.path("artifacts/sha256");
    fs::create_dir_all(&store).unwrap();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    yard.file.keep_previous = 1;
    let version = |yard: &Yard, text: &str| -> (Arc<VmSpec>, Digest) {
        let sha256 = Digest::of(text.as_bytes());
        let blob = json!({"sha256": sha256.to_string(), "size": text.len(), "name": "image"});
        let mut runtime = yard.sleeper("web", text);
        runtime["artifacts"] = json!([blob]);
        (vm("web", json!({"runtime": runtime})), sha256)
    };
    let put = |sha256: &Digest, text: &str| fs::write(store.join(sha256.to_string()), text).unwrap();
    let (first, one) = version(&yard, "one");
    put(&one, "one");
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &first)]);
    yard.until_ready("web/0", &first).await;
    let pid = yard.pid("web/0");

    let (second, two) = version(&yard, "two");
    put(&two, "tw0");
    yard.assign(2, &[("web/0", &second)]);
    let seen = yard.until("web/0", |seen| seen.code == Some(Code::NarMismatch)).await;
    assert!(seen.ready && seen.detail.contains("runtime.artifacts[0]") && is_alive(pid), "{seen:?}");
    put(&two, "longer than announced");
    let seen = yard.until("web/0", |seen| seen.detail.contains("longer")).await;
    assert!(seen.code == Some(Code::FetchFailed) && is_alive(pid), "{seen:?}");
    put(&two, "two");
    yard.until_ready("web/0", &second).await;

    let here = |yard: &Yard| {
        let blobs = fs::read_dir(yard.path("state/fleet/blobs/sha256")).unwrap().flatten();
        let mut names: Vec<String> = blobs.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let sorted = |hashes: &[Digest]| {
        let mut names: Vec<String> = hashes.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(here(&yard), sorted(&[one, two]), "one earlier closure is kept");
    let (third, three) = version(&yard, "three");
    put(&three, "three");
    yard.assign(3, &[("web/0", &third)]);
    yard.until_ready("web/0", &third).await;
    assert_eq!(here(&yard), sorted(&[two, three]));
    // Back to the one before, without download: the store is empty.
    fs::remove_dir_all(&store).unwrap();
    yard.assign(4, &[("web/0", &second)]);
    yard.until_ready("web/0", &second).await;
    assert_eq!(yard.starts("web"), ["one", "two", "three", "two"]);
    agent.end().await.unwrap();
}

/// Section 14: how much has come of what is fetched is told meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_counted_while_they_come() {
    let mut yard = Yard::new();
    let store = yard.path("artifacts/sha256");
    fs::create_dir_all(&store).unwrap();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    let bytes = vec![7; 300_000];
    let sha256 = Digest::of(&bytes);
    let pipe = store.join(sha256.to_string());
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (go_on, waits) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut pipe = fs::File::options().write(true).open(pipe).unwrap();
        pipe.write_all(&bytes[..100_000]).unwrap();
        waits.recv().unwrap();
        pipe.write_all(&bytes[100_000..]).unwrap();
    });
    let mut runtime = yard.sleeper("web", "x");
    runtime["artifacts"] = json!([{"sha256": sha256.to_string(), "size": 300_000, "name": "image"}]);
    let spec = vm("web", json!({"runtime": runtime}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    let seen = yard.until("web/0", |seen| seen.detail == "100000 of 300000 bytes").await;
    assert_eq!(seen.code, Some(Code::Fetching), "{seen:?}");
    go_on.send(()).unwrap();
    writer.join().unwrap();
    yard.until_ready("web/0", &spec).await;
    agent.end().await.unwrap();
}

/// What Nix is told: there is no network, and builders are programs of this machine.
const CONFIG: &str = "experimental-features = nix-command flakes
sandbox = false
substituters =
build-users-group =
sandbox-paths = /bin /lib /lib64 /usr
";

/// A real Nix with a publisher's store, a cache and a key.
struct Lab {
    dir: PathBuf,
    public_key: String,
}

impl Lab {
    fn new(yard: &Yard) -> Self {
        let dir = yard.path("nix");
        fs::create_dir_all(dir.join("home")).unwrap();
        // What Nix remembers of caches goes with the test.
        let program = dir.join("nix");
        let script = format!(
            "#!/bin/sh\nexport HOME='{}' NIX_CONFIG=\"${{NIX_CONFIG-{CONFIG}}}\"\nexec nix \"$@\"\n",
            dir.join("home").display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut lab = Self { dir, public_key: String::new() };
        let secret = lab.nix(&["key", "generate-secret", "--key-name", "lab-1"]);
        fs::write(lab.dir.join("secret"), &secret).unwrap();
        let path = lab.dir.join("secret");
        let converted = Command::new(lab.dir.join("nix"))
            .args(["--extra-experimental-features", "nix-command", "key", "convert-secret-to-public"])
            .stdin(fs::File::open(path).unwrap())
            .output()
            .unwrap();
        lab.public_key = String::from_utf8(converted.stdout).unwrap();
        lab
    }

    fn nix(&self, arguments: &[&str]) -> String {
        let output =
            Command::new(self.dir.join("nix")).args(arguments).env("NIX_CONFIG", CONFIG).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Builds an image that says `text` and refers to another path, copies both to the cache; returns it as an artifact.
    fn publish(&self, cache: &str, text: &str, secret: &str) -> Value {
        let file = self.dir.join("image.nix");
        let expression = format!(
            r#"let dep = derivation {{ name = "dep"; system = "x86_64-linux"; builder = "/bin/sh"; args = ["-c" "echo dep {text} > $out"]; }};
            in derivation {{ name = "vm-web"; system = "x86_64-linux"; builder = "/bin/sh"; args = ["-c" "/bin/mkdir $out; echo {text} ${{dep}} > $out/image"]; }}"#
        );
        fs::write(&file, expression).unwrap();
        let store = self.path("build");
        let built =
            self.nix(&["build", "--store", &store, "--no-link", "--json", "-f", file.to_str().unwrap()]);
        let built: Value = serde_json::from_str(&built).unwrap();
        let path = built[0]["outputs"]["out"].as_str().unwrap().to_owned();
        let info = self.nix(&["path-info", "--store", &store, "--json", &path]);
        let info: Value = serde_json::from_str(&info).unwrap();
        let to = format!("file://{}?secret-key={}", self.path(cache), self.path(secret));
        self.nix(&["copy", "--store", &store, "--to", &to, &path]);
        json!({"storePath": path, "sub": "image", "narHash": info[0]["narHash"]})
    }

    /// Returns the files of a cache that fit.
    fn files(&self, cache: &str, fits: &dyn Fn(&str, &str) -> bool) -> Vec<PathBuf> {
        let directory = self.dir.join(cache);
        let all = walkdir::WalkDir::new(directory).into_iter().flatten().map(|entry| entry.into_path());
        let fits = |path: &PathBuf| {
            let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
            path.is_file() && fits(path.to_str().unwrap(), &text)
        };
        all.filter(fits).collect()
    }

    fn worker(&self, caches: &[&str]) -> WorkerNix {
        WorkerNix {
            binary: self.path("nix"),
            store: self.path("work"),
            caches: caches.iter().map(|cache| format!("file://{}", self.path(cache))).collect(),
            public_keys: vec![self.public_key.clone()],
            local_build: false,
        }
    }

    fn here(&self) -> usize {
        fs::read_dir(self.dir.join("work/nix/store")).map_or(0, |entries| {
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().ends_with("-vm-web")).count()
        })
    }
}

/// Runs what its image says.
fn of_image(image: &Value, yard: &Yard) -> Arc<VmSpec> {
    let path = format!("{}/image", image["storePath"].as_str().unwrap());
    let script = format!("head -n1 \"$0\" >>'{}'; exec sleep 1000", yard.path("web").display());
    vm("web", json!({"runtime": {"argv": ["/bin/sh", "-c", script, path], "artifacts": [image]}}))
}

/// Case 13, F12, F13: untrusted key, corrupted archive, missing dependency: three codes, the old instance lives; the
/// collection of Nix takes neither what runs nor what was before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_trusts_its_own_keys_and_keeps_what_it_may_need() {
    let mut yard = Yard::new();
    let lab = Lab::new(&yard);
    let other = lab.nix(&["key", "generate-secret", "--key-name", "stranger-1"]);
    fs::write(lab.dir.join("other"), other).unwrap();
    yard.file.nix = lab.worker(&["good", "strange", "bad", "lacking"]);
    yard.file.keep_previous = 1;
    let good = lab.publish("good", "first", "secret");
    let agent = yard.begin();
    let first = of_image(&good, &yard);
    yard.assign(1, &[("web/0", &first)]);
    yard.until_ready("web/0", &first).await;
    let pid = yard.pid("web/0");

    let strange = of_image(&lab.publish("strange", "strange", "other"), &yard);
    yard.assign(2, &[("web/0", &strange)]);
    let seen = yard.until("web/0", |seen| seen.code == Some(Code::SignatureRejected)).await;
    assert!(seen.detail.contains("stranger-1") && seen.ready, "{seen:?}");

    let bad = of_image(&lab.publish("bad", "bad", "secret"), &yard);
    for nar in lab.files("bad", &|path, _| path.contains("/nar/")) {
        let mut bytes = fs::read(&nar).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&nar, bytes).unwrap();
    }
    yard.assign(3, &[("web/0", &bad)]);
    let seen = yard.until("web/0", |seen| seen.code == Some(Code::NarMismatch)).await;
    assert!(seen.ready, "{seen:?}");

    let lacking = of_image(&lab.publish("lacking", "lacking", "secret"), &yard);
    for info in lab.files("lacking", &|path, text| path.ends_with(".narinfo") && text.contains("-dep\nURL")) {
        fs::remove_file(info).unwrap();
    }
    yard.assign(4, &[("web/0", &lacking)]);
    let seen = yard.until("web/0", |seen| seen.code == Some(Code::MissingDependency)).await;
    assert!(seen.detail.contains("-dep") && seen.ready && is_alive(pid), "{seen:?}");

    let second = of_image(&lab.publish("good", "second", "secret"), &yard);
    yard.assign(5, &[("web/0", &second)]);
    yard.until_ready("web/0", &second).await;
    let work = lab.path("work");
    lab.nix(&["store", "gc", "--store", &work]);
    assert_eq!(lab.here(), 2, "what runs and the one before");
    let third = of_image(&lab.publish("good", "third", "secret"), &yard);
    yard.assign(6, &[("web/0", &third)]);
    yard.until_ready("web/0", &third).await;
    lab.nix(&["store", "gc", "--store", &work]);
    assert_eq!(lab.here(), 2, "older ones go");
    let said = yard.starts("web");
    assert_eq!(said, ["first", "second", "third"]);
    // Case 3: of a VM that was removed nothing is kept.
    yard.assign(7, &[]);
    yard.until_gone("web/0").await;
    let roots = || fs::read_dir(yard.path("state/fleet/roots")).unwrap().count();
    yard.wait("roots that are gone", || roots() == 0).await;
    lab.nix(&["store", "gc", "--store", &work]);
    assert_eq!(lab.here(), 0);
    agent.end().await.unwrap();
}

/// Section 10: what no cache has is built here where `local_build` says so, from a derivation that a cache has; the bits are
/// compared as if they had come from elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_cache_has_is_built_here_if_that_is_allowed() {
    let mut yard = Yard::new();
    let lab = Lab::new(&yard);
    yard.file.nix = lab.worker(&["cache"]);
    let image = lab.publish("cache", "made here", "secret");
    let path = image["storePath"].as_str().unwrap();
    let build = lab.path("build");
    let derivation = lab.nix(&["path-info", "--store", &build, "--derivation", path]);
    let to = format!("file://{}", lab.path("cache"));
    lab.nix(&["copy", "--derivation", "--store", &build, "--to", &to, derivation.trim()]);
    // What was built is gone from the cache, and what it was built from is not.
    let is_output = |path: &str, text: &str| path.ends_with(".narinfo") && !text.contains(".drv\nURL");
    for info in lab.files("cache", &is_output) {
        let text = fs::read_to_string(&info).unwrap();
        let archive = text.lines().find_map(|line| line.strip_prefix("URL: ")).unwrap();
        fs::remove_file(lab.dir.join("cache").join(archive)).unwrap();
    }
    let spec = of_image(&image, &yard);
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    yard.until("web/0", |seen| seen.code == Some(Code::MissingDependency)).await;
    agent.end().await.unwrap();

    yard.file.nix.local_build = true;
    let agent = yard.begin();
    let seen = yard.until_ready("web/0", &spec).await;
    assert_eq!(seen.code, Some(Code::BuiltLocally), "{seen:?}");
    agent.end().await.unwrap();

    let mut other = image.clone();
    other["narHash"] = json!("sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let agent = yard.begin();
    yard.assign(2, &[("web/0", &of_image(&other, &yard))]);
    yard.until("web/0", |seen| seen.code == Some(Code::NarMismatch)).await;
    agent.end().await.unwrap();
}
