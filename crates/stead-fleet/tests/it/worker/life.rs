//! From an assignment to a machine, and back.

use serde_json::json;
use stead_fleet::api::CallError;
use stead_fleet::events::Ev;
use stead_fleet::worker::{self, WorkerError};
use stead_model::fleet::Code;
use stead_model::fleet::state::InstanceState;

use super::yard::{Yard, assignment, is_alive, kill, vm};

/// Cases 2 and 3, the worker's side: started, ready, told, replaced alone, stopped without residue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_assigned_runs_is_replaced_and_goes() {
    let yard = Yard::new();
    let old = vm("web", json!({"runtime": yard.sleeper("web", "old")}));
    let beside = vm("db", json!({"runtime": yard.sleeper("db", "db")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &old), ("db/0", &beside)]);
    yard.until_ready("web/0", &old).await;
    let seen = yard.until_ready("db/0", &beside).await;
    assert!(seen.uptime_ms >= 2_000 && seen.code.is_none(), "{seen:?}");
    let (first, kept) = (yard.pid("web/0"), yard.pid("db/0"));
    let facts = yard.stage.state().beats.iter().find_map(|beat| beat.facts.clone()).unwrap();
    assert!(facts.capacity.cpu_milli > 0 && facts.drivers.len() == 1, "{facts:?}");

    let new = vm("web", json!({"runtime": yard.sleeper("web", "new")}));
    yard.assign(2, &[("web/0", &new), ("db/0", &beside)]);
    yard.until_ready("web/0", &new).await;
    assert!(!is_alive(first) && is_alive(kept) && yard.pid("db/0") == kept);
    assert_eq!((yard.starts("web"), yard.starts("db").len()), (vec!["old".into(), "new".into()], 1));

    yard.assign(3, &[]);
    yard.until_gone("web/0").await;
    yard.until_gone("db/0").await;
    yard.assert_clean();
    agent.end().await.unwrap();
    // Bits are here before anything stops, and every act has its event.
    let all = [Ev::Fetched, Ev::Started, Ev::Ready, Ev::Fetched, Ev::Stopped, Ev::Started, Ev::Ready];
    assert_eq!(yard.happened("web/0"), [&all[..], &[Ev::Stopped, Ev::Removed]].concat());
}

/// F1: another agent takes over what runs: same processes, nothing started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_agent_adopts_what_runs() {
    let yard = Yard::new();
    let spec = vm("web", json!({"runtime": yard.sleeper("web", "one")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    yard.until_ready("web/0", &spec).await;
    let pid = yard.pid("web/0");
    // Another agent leaves the log of this one alone, a line that is being written included.
    let log = yard.path("state/fleet/events/events-001.jsonl");
    let whole = std::fs::read(&log).unwrap();
    let text = [&whole[..], b"{\"seq\":"].concat();
    std::fs::write(&log, &text).unwrap();
    assert!(matches!(
        worker::run(yard.settings(), yard.stage.clone(), Default::default()).await,
        Err(WorkerError::Locked(_))
    ));
    assert_eq!(std::fs::read(&log).unwrap(), text);
    std::fs::File::options().write(true).open(&log).unwrap().set_len(whole.len() as u64).unwrap();
    agent.end().await.unwrap();
    assert!(is_alive(pid), "an agent that ends leaves machines running");
    let sessions = |yard: &Yard| yard.stage.state().beats.iter().map(|beat| beat.session).max();
    assert_eq!(sessions(&yard), Some(1));

    // Without a master, from what was applied last.
    yard.stage.change(|state| {
        state.is_away = true;
        state.seen.clear();
    });
    let agent = yard.begin();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    yard.stage.change(|state| state.is_away = false);
    yard.until_ready("web/0", &spec).await;
    assert_eq!((yard.pid("web/0"), yard.starts("web").len(), sessions(&yard)), (pid, 1, Some(2)));
    agent.end().await.unwrap();

    worker::stop_all(yard.settings()).await.unwrap();
    assert!(!is_alive(pid) && yard.processes().is_empty());
}

/// F20: what is killed comes back, and says that it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_killed_comes_back() {
    let yard = Yard::new();
    let spec = vm("web", json!({"runtime": yard.sleeper("web", "one")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    yard.until_ready("web/0", &spec).await;
    let pid = yard.pid("web/0");
    kill(pid, "-KILL");
    yard.until("web/0", |seen| seen.code == Some(Code::ProcessGone)).await;
    yard.until("web/0", |seen| seen.ready && seen.attempts == 1).await;
    assert_ne!(yard.pid("web/0"), pid);
    assert_eq!(yard.starts("web").len(), 2);
    // Section 15: what nobody here did is drift, told once.
    let mut happened = yard.happened("web/0");
    happened.retain(|ev| !matches!(ev, Ev::Fetched | Ev::Ready));
    assert_eq!(happened, [Ev::Started, Ev::Drift, Ev::Exited, Ev::Started]);
    yard.assign(2, &[]);
    yard.until_gone("web/0").await;
    yard.assert_clean();
    agent.end().await.unwrap();
}

/// F9, section 13: a master that lost its state names what runs without its spec: it goes on with its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_its_master_does_not_know_goes_on() {
    let yard = Yard::new();
    let spec = vm("web", json!({"runtime": yard.sleeper("web", "one")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    let seen = yard.until_ready("web/0", &spec).await;
    assert_eq!((seen.group.as_ref(), seen.takes), (Some(&spec.group), spec.resources));
    let pid = yard.pid("web/0");
    let mut unknown = assignment(2, &[("web/0", &spec)]);
    unknown.specs.clear();
    unknown.instances[0].spec = u32::MAX;
    unknown.instances[0].frozen = true;
    yard.stage.change(|state| state.assignment = Some(unknown));
    let applied = || yard.stage.state().beats.last().map(|beat| beat.seen_generation);
    let begun = std::time::Instant::now();
    while applied() != Some(2) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it is not applied");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(is_alive(pid) && yard.pid("web/0") == pid);
    // It is looked after as before.
    kill(pid, "-KILL");
    yard.until("web/0", |seen| seen.ready && seen.attempts == 1).await;
    assert_eq!(yard.starts("web").len(), 2);
    yard.assign(3, &[]);
    yard.until_gone("web/0").await;
    agent.end().await.unwrap();
}

/// Section 10: ends by policy; `never` and `on-failure` are obeyed, backoff counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_are_treated_as_policies_say() {
    let yard = Yard::new();
    let ends = |status: u32, policy: &str| {
        vm(
            &format!("{policy}-{status}"),
            json!({"runtime": {"argv": ["/bin/sh", "-c", format!("sleep 0.3; exit {status}")]}, "restart": {"policy": policy}}),
        )
    };
    let (well, badly, never, always) =
        (ends(0, "on-failure"), ends(3, "on-failure"), ends(3, "never"), ends(0, "always"));
    let agent = yard.begin();
    yard.assign(
        1,
        &[
            ("on-failure-0/0", &well),
            ("on-failure-3/0", &badly),
            ("never-3/0", &never),
            ("always-0/0", &always),
        ],
    );
    let exited = |code: Code| {
        move |seen: &stead_model::fleet::state::Seen| {
            seen.code == Some(code) && seen.state == InstanceState::Failed
        }
    };
    let seen = yard.until("on-failure-0/0", exited(Code::Exited)).await;
    assert!(seen.detail.contains("exit status: 0"), "{seen:?}");
    yard.until("never-3/0", exited(Code::Exited)).await;
    yard.until("on-failure-3/0", |seen| seen.attempts >= 2).await;
    yard.until("always-0/0", |seen| seen.attempts >= 2).await;
    for quiet in ["on-failure-0/0", "never-3/0"] {
        assert_eq!(yard.record(quiet).unwrap()["attempts"], 0, "{quiet}");
    }
    yard.assign(2, &[]);
    for key in ["on-failure-0/0", "on-failure-3/0", "never-3/0", "always-0/0"] {
        yard.until_gone(key).await;
    }
    yard.assert_clean();
    agent.end().await.unwrap();
}

/// Section 12: an agent that is told that another took over stops what must not run twice, and changes nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_replaced_fences_and_ends() {
    let yard = Yard::new();
    let only = vm("only", json!({"singleton": true, "runtime": yard.sleeper("only", "only")}));
    let web = vm("web", json!({"runtime": yard.sleeper("web", "web")}));
    yard.stage.change(|state| state.lease = Some(60_000));
    let agent = yard.begin();
    yard.assign(1, &[("only/0", &only), ("web/0", &web)]);
    yard.until_ready("only/0", &only).await;
    yard.until_ready("web/0", &web).await;
    let (fenced, kept) = (yard.pid("only/0"), yard.pid("web/0"));
    let refusal = CallError::Refused { code: "replaced".to_owned(), message: "another session".to_owned() };
    yard.stage.change(|state| state.refusal = Some(refusal));
    assert!(matches!(agent.ended().await, Err(WorkerError::Replaced)));
    assert_eq!((is_alive(fenced), is_alive(kept)), (false, true));
    assert_eq!(yard.happened("only/0").last(), Some(&Ev::Fenced));
    worker::stop_all(yard.settings()).await.unwrap();
    assert_eq!(yard.processes(), Vec::<u32>::new());
}

/// F8: without a master everything goes on from the last assignment, and what is gone comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_master_drift_is_repaired() {
    let yard = Yard::new();
    let spec = vm("web", json!({"runtime": yard.sleeper("web", "one")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &spec)]);
    yard.until_ready("web/0", &spec).await;
    let pid = yard.pid("web/0");
    yard.stage.change(|state| state.is_away = true);
    kill(pid, "-KILL");
    let begun = std::time::Instant::now();
    while yard.starts("web").len() < 2 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it does not come back");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    yard.stage.change(|state| state.is_away = false);
    yard.until("web/0", |seen| seen.ready && seen.attempts == 1).await;
    agent.end().await.unwrap();
}

/// F2: after a reboot everything that was there is started again, and that is nobody's fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_is_no_end_of_instances() {
    let yard = Yard::new();
    let spec = |policy: &str| {
        vm(policy, json!({"runtime": yard.sleeper(policy, "x"), "restart": {"policy": policy}}))
    };
    let (always, never) = (spec("always"), spec("never"));
    let agent = yard.begin();
    yard.assign(1, &[("always/0", &always), ("never/0", &never)]);
    yard.until_ready("always/0", &always).await;
    yard.until_ready("never/0", &never).await;
    agent.end().await.unwrap();
    for pid in yard.processes() {
        kill(pid, "-KILL");
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for key in ["always/0", "never/0"] {
        // As they would lie there from the boot before.
        let record = yard.path("state/fleet/instances").join(key.replace('/', ".")).join("record.json");
        for file in [record, yard.machine(key).join("pid")] {
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.contains(boot.trim()), "{text}");
            std::fs::write(&file, text.replace(boot.trim(), "11111111-1111-1111-1111-111111111111")).unwrap();
        }
    }
    yard.stage.change(|state| state.seen.clear());
    let agent = yard.begin();
    for (key, spec) in [("always/0", &always), ("never/0", &never)] {
        let seen = yard.until_ready(key, spec).await;
        assert_eq!(seen.attempts, 0, "{seen:?}");
    }
    assert_eq!((yard.starts("always").len(), yard.starts("never").len()), (2, 2));
    let drifted = yard.happened("always/0").into_iter().filter(|ev| *ev == Ev::Drift).count();
    assert_eq!(drifted, 1, "{:?}", yard.happened("always/0"));
    agent.end().await.unwrap();
}

/// F21: what does not stop is killed, and nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_stop_is_forced_to() {
    let yard = Yard::new();
    let deaf = "trap '' TERM; sleep 1000 & while :; do wait; done";
    let spec = vm("deaf", json!({"runtime": {"argv": ["/bin/sh", "-c", deaf]}, "stopSeconds": 1}));
    let agent = yard.begin();
    yard.assign(1, &[("deaf/0", &spec)]);
    yard.until_ready("deaf/0", &spec).await;
    let begun = std::time::Instant::now();
    yard.assign(2, &[]);
    yard.until_gone("deaf/0").await;
    assert!(begun.elapsed() > std::time::Duration::from_millis(900), "it had its time");
    yard.assert_clean();
    agent.end().await.unwrap();
}
