//! A runtime, an `ip` and a `tar` whose calls fail.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stead_drivers::machine::oci::StorageChoice;
use stead_model::machine::{Boot, MachineId, MachineSpec, MachineState, OwnerScope};
use stead_runner::machine::MachineDriver;
use stead_testkit::machine_contract::Yard;

use super::yard::{Place, is_skipped, node};

/// Makes a runtime that fails once with the word in the file `fail`, and notes that it has.
fn faulty_runtime(dir: &Path) -> String {
    let (program, place) = (dir.join("faulty-runc"), dir.display());
    let script = format!(
        "#!/bin/sh\nfor word; do\n  if test \"$word\" = \"$(cat '{place}/fail' 2>/dev/null)\"; then\n    rm '{place}/fail'\n    echo \"$word on purpose\" | tee -a '{place}/failed' >&2\n    exit 3\n  fi\ndone\nexec runc \"$@\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().to_owned()
}

/// Section 9 of reach: each call of the runtime may fail, and the next attempt does what the one before did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_the_runtime_may_fail_once() {
    if is_skipped("runc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = Place::new(&faulty_runtime(dir.path()));
    let driver = place.containers();
    for verb in ["create", "start", "kill", "delete"] {
        let made = driver.ensure_created(&place.spec(node(verb))).await.unwrap();
        let id = &made.machine.id;
        fs::write(dir.path().join("fail"), verb).unwrap();
        let has_failed = || !dir.path().join("fail").exists();
        let started = driver.start(id).await;
        if let Err(error) = started {
            assert!(has_failed(), "{verb}: {error}");
            let seen = driver.inspect(id).await.unwrap().unwrap();
            assert_eq!(seen.state, MachineState::Failed, "{verb}: {seen:?}");
            driver.start(id).await.unwrap();
        }
        let seen = driver.inspect(id).await.unwrap().unwrap();
        assert_eq!(seen.state, MachineState::Running, "{verb}");
        if let Err(error) = driver.stop(id, Duration::from_secs(20)).await {
            assert!(has_failed(), "{verb}: {error}");
            driver.stop(id, Duration::from_secs(20)).await.unwrap();
        }
        let seen = driver.inspect(id).await.unwrap().unwrap();
        assert_eq!(seen.state, MachineState::Stopped, "{verb}");
        if let Err(error) = driver.destroy(id).await {
            assert!(has_failed(), "{verb}: {error}");
            driver.destroy(id).await.unwrap();
        }
        assert!(has_failed(), "{verb} was never called");
        assert_eq!(place.left(), Vec::<String>::new(), "{verb}");
    }
}

/// Holds the directory of the programs that a test sees in place of the system's.
const APART: &str = "STEAD_TEST_OCI_APART";

/// Runs a test again where the system's first place for programs is a directory with this one in it; returns that directory
/// to the test when it runs there.
fn apart(test: &str, name: &str, script: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(APART) {
        return Some(dir.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let real = places.iter().map(|place| Path::new(place).join(name)).find(|path| path.exists()).unwrap();
    let head = format!("#!/bin/sh\ncd '{}' || exit 9\nreal='{}'\n", dir.path().display(), real.display());
    fs::write(dir.path().join(name), head + script).unwrap();
    fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$1\" /usr/local/sbin && shift && exec \"$@\"").arg("sh").arg(dir.path());
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let ended = command.env(APART, dir.path()).output().unwrap();
    let said = [ended.stdout, ended.stderr].concat();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&said));
    None
}

/// Fails at the call whose number is in the file `fail`.
const COUNTED: &str = "n=$(($(cat count) + 1)); echo $n >count
if test \"$n\" = \"$(cat fail 2>/dev/null)\"; then rm fail; echo on purpose >&2; exit 2; fi
exec \"$real\" \"$@\"
";

/// Section 9 of reach: each call of `ip` may fail. What was made of the network by then goes, and the next attempt does all
/// of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_ip_may_fail_once() {
    if is_skipped("runc") {
        return;
    }
    let Some(dir) = apart("oci::failing::every_call_of_ip_may_fail_once", "ip", COUNTED) else { return };
    let fail_at = |number: u32| {
        fs::write(dir.join("count"), "0").unwrap();
        fs::write(dir.join("fail"), number.to_string()).unwrap();
    };
    let has_failed = || !dir.join("fail").exists();
    let place = Place::new("runc");
    let driver = place.containers();
    let id = driver.ensure_created(&place.spec(node("plugged"))).await.unwrap().machine.id;
    // Each start comes one call further than the one before.
    let mut calls = 0;
    loop {
        calls += 1;
        fail_at(calls);
        let started = driver.start(&id).await;
        let Err(error) = started else { break };
        assert!(has_failed() && error.to_string().contains("on purpose"), "call {calls}: {error}");
        let seen = driver.inspect(&id).await.unwrap().unwrap();
        assert_eq!(seen.state, MachineState::Failed, "call {calls}");
        assert!(!place.has_bridge(), "call {calls}: {error}");
    }
    assert!(!has_failed() && calls > 10, "the call {calls} failed and it came up all the same");
    assert_eq!(driver.inspect(&id).await.unwrap().unwrap().state, MachineState::Running);
    fail_at(1);
    let removed = driver.destroy(&id).await;
    assert!(has_failed(), "nothing was removed by `ip`");
    let error = removed.unwrap_err().to_string();
    assert!(error.contains("`ip link delete") && error.contains("on purpose"), "{error}");
    driver.destroy(&id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Does its work and fails all the same if it has the word in the file `fail`.
const BY_WORD: &str = "for word; do
  if test \"$word\" = \"$(cat fail 2>/dev/null)\"; then
    rm fail; \"$real\" \"$@\"; echo on purpose >&2; exit 2
  fi
done
exec \"$real\" \"$@\"
";

/// Section 9 of reach: each call of `tar` may fail, whatever it did before; the next attempt begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_of_tar_may_fail_once() {
    if is_skipped("runc") {
        return;
    }
    let Some(dir) = apart("oci::failing::every_call_of_tar_may_fail_once", "tar", BY_WORD) else { return };
    let place = Place::new("runc");
    let images = place.path("images");
    let mut packing = Command::new("tar");
    packing.arg("-cf").arg(images.join("packed.tar")).arg("-C").arg(images.join("doomed")).arg(".");
    assert!(packing.status().unwrap().success());
    for (template, storage, words) in [
        ("doomed", StorageChoice::Copy, &["--create", "--extract"][..]),
        ("packed", StorageChoice::Overlay, &["--extract"][..]),
    ] {
        let driver = place.stored(storage);
        let boot = Some(Boot::Template(template.to_owned()));
        let spec = MachineSpec { boot, ..place.spec(node(template)) };
        for word in words {
            fs::write(dir.join("fail"), word).unwrap();
            let error = driver.ensure_created(&spec).await.unwrap_err().to_string();
            assert!(!dir.join("fail").exists() && error.contains("on purpose"), "{template} {word}: {error}");
            let half = driver.list(&OwnerScope::All).await.unwrap();
            assert_eq!(
                half.iter().map(|machine| machine.state).collect::<Vec<_>>(),
                [MachineState::Creating]
            );
        }
        let made = driver.ensure_created(&spec).await.unwrap();
        assert_eq!((made.changed, made.machine.state), (true, MachineState::Stopped));
        // One that stays half made goes as a whole one does.
        let other = MachineSpec { boot: spec.boot.clone(), ..place.spec(node("half")) };
        if template == "doomed" {
            fs::write(dir.join("fail"), "--extract").unwrap();
            driver.ensure_created(&other).await.unwrap_err();
            driver.destroy(&MachineId::new(other.owner.uuid())).await.unwrap();
        }
        driver.destroy(&made.machine.id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new(), "{template}");
    }
}
