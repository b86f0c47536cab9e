//! A runtime whose calls fail.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use stead_model::machine::MachineState;
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
