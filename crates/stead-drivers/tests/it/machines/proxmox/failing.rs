//! An API that refuses, is locked, loses what it answers, or does not answer at all.

use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::machine::OwnerScope;
use stead_model::site::secrets::Secret;
use stead_runner::machine::{Changed, MachineDriver, MachineError, Stopped};
use stead_testkit::machine_contract::Yard;
use stead_testkit::proxmox::{Fault, Wrong};

use super::super::yard::node;
use super::{Cluster, GRACE, vm};

/// Case 31 of nodes, case 29 of reach: a number that somebody else took meanwhile is given up for the next, ten times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_taken_meanwhile_is_given_up() {
    let cluster = Cluster::new();
    cluster.api.fail(Fault { after: 1, times: 2, ..Fault::once("GET", "nextid", Wrong::Race) });
    let made = cluster.driver().ensure_created(&vm(node("raced"))).await.unwrap();
    assert!(made.machine.vmid > Some(100), "{made:?}");
    assert_eq!(cluster.api.config(100, "name").as_deref(), Some("faster"));
    assert_eq!(cluster.changes_of_others(&cluster.api.vmids()), Vec::<String>::new());
    cluster.driver().destroy(&made.machine.id).await.unwrap();
    assert!(cluster.api.vmids().iter().all(|vmid| cluster.api.config(*vmid, "name").unwrap() == "faster"));
    cluster.api.fail(Fault::always("GET", "nextid", Wrong::Race));
    let failed = cluster.driver().ensure_created(&vm(node("raced"))).await.unwrap_err();
    assert!(failed.to_string().contains("10 numbers were taken by others"), "{failed}");
}

/// Case 29 of reach: a lock is waited for; one that stays is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_waited_for() {
    let cluster = Cluster::new();
    let busy = "can't lock file '/var/lock/pve-manager/pve-storage-fast' - got timeout";
    cluster.api.fail(Fault::once("POST", "clone", Wrong::Task(format!("clone failed: {busy}"))));
    cluster.api.fail(Fault::once("PUT", "config", Wrong::Status(500, busy.to_owned())));
    let made = cluster.driver().ensure_created(&vm(node("locked"))).await.unwrap();
    cluster.api.lock(100, Some("backup"));
    let impatient = cluster.with(|settings| settings.pace.busy = Duration::from_millis(200));
    match impatient.start(&made.machine.id).await {
        Err(error @ MachineError::Timeout(_)) => {
            assert!(error.to_string().contains("locked (backup)"), "{error}")
        }
        other => panic!("{other:?}"),
    }
    let (driver, id) = (cluster.driver(), made.machine.id.clone());
    let (started, ()) = tokio::join!(driver.start(&id), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster.api.lock(100, None);
    });
    assert_eq!(started, Ok(Changed::Yes));
    cluster.driver().destroy(&made.machine.id).await.unwrap();
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// Case 31 of nodes, case 29 of reach: a task that fails is told with the end of its log, and leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_task_is_told_with_its_log() {
    let cluster = Cluster::new();
    cluster.api.fail(Fault::once("POST", "clone", Wrong::Task("clone failed: no space left".to_owned())));
    match cluster.driver().ensure_created(&vm(node("full"))).await {
        Err(error @ MachineError::Failed { .. }) => {
            let text = error.to_string();
            assert!(text.contains("no space left") && text.contains("TASK ERROR"), "{text}");
            assert_eq!(error.class(), ErrorClass::Operation);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.left(), Vec::<String>::new());
    cluster.api.fail(Fault::once("POST", "clone", Wrong::Warn));
    let driver = cluster.driver();
    let made = driver.ensure_created(&vm(node("warned"))).await.unwrap();
    assert!(driver.remark().unwrap().contains("WARNINGS: 1"), "warnings are success, and said");
    driver.destroy(&made.machine.id).await.unwrap();
}

/// Case 31 of nodes, case 29 of reach: who may not is told which token and which privilege, never the token's value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_the_token_and_the_privilege() {
    let cluster = Cluster::new();
    let spec = vm(node("refused"));
    let wrong = cluster.with(|settings| settings.token = Secret::new("root@pam!stead=wrong-hush"));
    let refused = wrong.ensure_created(&spec).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("`lab` (root@pam!stead)") && !text.contains("hush"), "{text}");
    assert_eq!(refused.class(), ErrorClass::Permanent);
    assert!(!format!("{wrong:?}").contains("hush"));
    assert_eq!(wrong.missing(&[], &[]).await.len(), 1);
    let words = "Permission check failed (/vms/9000, VM.Clone)";
    cluster.api.fail(Fault::once("POST", "clone", Wrong::Status(403, words.to_owned())));
    let refused = cluster.driver().ensure_created(&spec).await.unwrap_err();
    assert!(refused.to_string().contains(words), "{refused}");
    assert_eq!(cluster.left(), Vec::<String>::new());
}

/// Case 29 of reach: a node that is not reached is unavailable, once that has lasted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_reached_is_unavailable() {
    let cluster = Cluster::new();
    let made = cluster.driver().ensure_created(&vm(node("far"))).await.unwrap();
    cluster.api.fail(Fault {
        times: 3,
        ..Fault::once("", "", Wrong::Status(596, "Connection timed out".to_owned()))
    });
    assert!(cluster.driver().inspect(&made.machine.id).await.unwrap().is_some(), "it passes");
    cluster.api.fail(Fault::always("", "", Wrong::Status(595, "No route to host".to_owned())));
    let impatient = cluster.with(|settings| settings.pace.busy = Duration::from_millis(100));
    let failed = impatient.inspect(&made.machine.id).await.unwrap_err();
    assert_eq!(failed.class(), ErrorClass::Unreachable, "{failed}");
    cluster.api.heal();
    let nowhere = cluster.with(|settings| {
        settings.pace.busy = Duration::from_millis(100);
        settings.endpoint = "https://127.0.0.1:1".to_owned();
    });
    assert_eq!(nowhere.list(&OwnerScope::All).await.unwrap_err().class(), ErrorClass::Unreachable);
    let another = cluster.with(|settings| settings.fingerprint = Some(vec!["AB"; 32].join(":")));
    cluster.api.forget_calls();
    let untrusted = another.list(&OwnerScope::All).await.unwrap_err();
    assert!(untrusted.to_string().contains(&cluster.api.fingerprint), "{untrusted}");
    assert_eq!(cluster.api.calls(), [], "nothing was sent to it");
}

/// Returns requests that fail in turn, of those that a machine takes where nothing fails: every one that changes something,
/// and of those that only ask every eighth.
async fn in_turn(cluster: &Cluster) -> Vec<(&'static str, usize)> {
    let driver = cluster.driver();
    let made = driver.ensure_created(&vm(node("clean"))).await.unwrap();
    driver.start(&made.machine.id).await.unwrap();
    driver.stop(&made.machine.id, GRACE).await.unwrap();
    driver.destroy(&made.machine.id).await.unwrap();
    let calls = cluster.api.calls();
    let count = |method: &str| calls.iter().filter(|call| call.method == method).count();
    let changes = ["POST", "PUT", "DELETE"].into_iter();
    let changes = changes.flat_map(|method| (0..count(method)).map(move |at| (method, at)));
    let found: Vec<_> = changes.chain((0..count("GET")).step_by(8).map(|at| ("GET", at))).collect();
    assert!(["POST", "PUT", "DELETE", "GET"].iter().all(|method| found.contains(&(method, 0))), "{found:?}");
    found
}

/// Ends what fails, and says so if nothing did. How often a task is looked at depends on how long it takes.
fn healed(cluster: &Cluster, method: &str, said: &str) {
    assert!(method == "GET" || cluster.api.faults() == 0, "nothing happened: {said}");
    cluster.api.heal();
}

/// Each request fails in turn, in each way: what was asked for is there in the end, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_may_be_lost() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    for (method, at) in in_turn(&cluster).await {
        for wrong in [Wrong::Lose, Wrong::Drop, Wrong::Status(596, "Connection timed out".to_owned())] {
            let is_new = match wrong {
                Wrong::Lose => method != "GET",
                Wrong::Status(..) => method == "POST",
                Wrong::Drop | Wrong::Delay(_) | Wrong::Hold | Wrong::Task(_) | Wrong::Warn | Wrong::Race => {
                    true
                }
            };
            if !is_new {
                continue;
            }
            let said = format!("{wrong:?} at {method} {at}");
            cluster.api.fail(Fault { after: at, ..Fault::once(method, "", wrong) });
            let made = driver.ensure_created(&vm(node("lossy"))).await.expect(&said);
            driver.start(&made.machine.id).await.expect(&said);
            assert_eq!(cluster.api.vmids().len(), 1, "{said}");
            let stopped = driver.stop(&made.machine.id, GRACE).await.expect(&said);
            assert_eq!(stopped, Stopped { changed: true, forced: false }, "{said}");
            driver.destroy(&made.machine.id).await.expect(&said);
            assert_eq!(cluster.left(), Vec::<String>::new(), "{said}");
            healed(&cluster, method, &said);
        }
    }
}

/// Each request is refused in turn: the next call goes on from there, and nothing is left in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_may_be_refused() {
    let cluster = Cluster::new();
    let driver = cluster.driver();
    for (method, at) in in_turn(&cluster).await {
        let wrong = Wrong::Status(500, "on purpose".to_owned());
        cluster.api.fail(Fault { after: at, ..Fault::once(method, "", wrong) });
        let spec = vm(node("refused"));
        let made = match driver.ensure_created(&spec).await {
            Ok(made) => made,
            Err(_) => driver.ensure_created(&spec).await.unwrap(),
        };
        let id = &made.machine.id;
        if driver.start(id).await.is_err() {
            driver.start(id).await.unwrap();
        }
        if driver.stop(id, GRACE).await.is_err() {
            driver.stop(id, GRACE).await.unwrap();
        }
        assert!(!cluster.api.is_running(made.machine.vmid.unwrap()), "at {method} {at}");
        if driver.destroy(id).await.is_err() {
            driver.destroy(id).await.unwrap();
        }
        assert_eq!(cluster.left(), Vec::<String>::new(), "at {method} {at}");
        healed(&cluster, method, &format!("at {method} {at}"));
    }
}
