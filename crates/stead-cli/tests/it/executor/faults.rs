//! What is lost and found: channels, sessions, drivers. Nothing runs on, nothing is half done, every report is true.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use stead_model::{ErrorClass, ExitCode, Status};

use super::direct::{Place, op, processes_with};

/// A channel that is cut again and again: the command goes on, and every line arrives once.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_channel_loses_and_doubles_no_byte() {
    let place = Place::new();
    place.warm().await;
    let (begun, go) = (place.path("begun"), place.path("go"));
    let script = format!(
        "touch {}; i=0; while [ $i -lt 120 ]; do echo line $i; echo error $i >&2; i=$((i+1)); sleep 0.02; done; \
         until [ -e {} ]; do sleep 0.05; done",
        begun.display(),
        go.display()
    );
    let plan = place.plan(|plan| {
        plan.op("talk", op("command.shell", json!({"script": script}))).on("web1");
    });
    let running = place.runner().run(plan);
    let cuts = std::sync::atomic::AtomicUsize::new(0);
    let cutting = async {
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A cut that found nothing to cut does not count.
        while cuts.load(std::sync::atomic::Ordering::Relaxed) < 4 {
            tokio::time::sleep(Duration::from_millis(600)).await;
            cuts.fetch_add(place.cut().min(1), std::sync::atomic::Ordering::Relaxed);
        }
        fs::write(&go, "").unwrap();
        std::future::pending::<()>().await
    };
    let report = tokio::select! { report = running => report, () = cutting => unreachable!() };
    assert_eq!(report.tasks[0].status, Status::Changed, "{report:#?}");
    let bundle = std::path::PathBuf::from(report.bundle.clone().unwrap());
    for (stream, word) in [("stdout", "line"), ("stderr", "error")] {
        let wanted: String = (0..120).map(|number| format!("{word} {number}\n")).collect();
        let log = fs::read_to_string(bundle.join(format!("logs/talk/web1.1.{stream}"))).unwrap();
        assert_eq!(log, wanted);
        assert_eq!(report.tasks[0].data.as_ref().unwrap()[stream], wanted.as_str());
    }
    assert_eq!(cuts.into_inner(), 4, "what was connected anew was cut again");
    assert_eq!(place.sessions_left(), 0);
}

/// Returns the session's process number, once it runs the command.
fn session_of(place: &Place) -> u32 {
    let run = fs::read_dir(place.base().join("run"))
        .unwrap()
        .flatten()
        .find(|entry| entry.path().is_dir())
        .unwrap();
    let mark = format!("STEAD_EXECUTOR={}", run.path().display());
    let all = processes_with(&mark);
    let is_session = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--session")
    };
    all.into_iter().find(is_session).expect("a session")
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The session is killed under a command: it is said to be interrupted, and its process does not outlive it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_session_leaves_no_process_and_the_command_is_interrupted() {
    let place = Place::new();
    let marker = place.path("pid");
    let script = format!("echo $$ > {}; exec sleep 600", marker.display());
    let plan = place.plan(|plan| {
        plan.op("sleep", op("command.shell", json!({"script": script}))).on("web1");
        plan.op("file", op("file.present", json!({"path": place.target("x"), "content": "x"})))
            .on("web1")
            .on_error(stead_runner::author::OnError::Continue);
    });
    let running = place.runner().run(plan);
    let killing = async {
        while !fs::read_to_string(&marker).is_ok_and(|text| text.ends_with('\n')) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill(session_of(&place));
        std::future::pending::<()>().await
    };
    let report = tokio::select! { report = running => report, () = killing => unreachable!() };
    let row = &report.tasks[0];
    assert_eq!((row.status, row.class), (Status::Failed, Some(ErrorClass::Interrupted)), "{report:#?}");
    assert!(row.error.as_ref().unwrap().contains("session"), "{row:#?}");
    let pid = fs::read_to_string(&marker).unwrap();
    Place::until("the command is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    assert_eq!(place.sessions_left(), 0);
}

/// An idempotent operation is simply done again by a new session.
#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_command_is_tried_again_in_a_new_session() {
    let place = Place::new();
    let (marker, done) = (place.path("pid"), place.path("done"));
    // The first attempt lasts until it is killed.
    let script = format!(
        "echo $$ >> {marker}; [ $(wc -l < {marker}) -gt 1 ] || sleep 600; echo ok > {done}",
        marker = marker.display(),
        done = done.display()
    );
    let plan = place.plan(|plan| {
        plan.op("slow", op("command.shell", json!({"script": script})))
            .on("web1")
            .idempotent()
            .retry(stead_model::plan::Retry::times(2));
    });
    let running = place.runner().run(plan);
    let killing = async {
        while !fs::read_to_string(&marker).is_ok_and(|text| text.ends_with('\n')) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill(session_of(&place));
        std::future::pending::<()>().await
    };
    let report = tokio::select! { report = running => report, () = killing => unreachable!() };
    assert_eq!((report.tasks[0].status, report.tasks[0].attempts), (Status::Changed, 2), "{report:#?}");
    assert!(done.exists());
}

/// The host cannot be reached any more: after the lease that is said, and nothing runs on there.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_stays_away_is_unreachable_when_the_lease_ends() {
    let mut place = Place::new();
    place.lease = Duration::from_secs(6);
    let marker = place.path("pid");
    let script = format!("echo $$ > {}; exec sleep 600", marker.display());
    let plan = place.plan(|plan| {
        plan.grace(Duration::from_millis(200));
        plan.op("sleep", op("command.shell", json!({"script": script}))).on("web1").idempotent();
    });
    let began = Instant::now();
    let running = place.runner().run(plan);
    let cutting = async {
        while !fs::read_to_string(&marker).is_ok_and(|text| text.ends_with('\n')) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        place.world.unreachable.store(true, std::sync::atomic::Ordering::Relaxed);
        place.cut();
        std::future::pending::<()>().await
    };
    let report = tokio::select! { report = running => report, () = cutting => unreachable!() };
    assert_eq!(report.exit_code, ExitCode::Unreachable, "{report:#?}");
    assert!(began.elapsed() < Duration::from_secs(90), "{:?}", began.elapsed());
    let pid = fs::read_to_string(&marker).unwrap();
    Place::until("the command is gone", || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
    Place::until("the session is gone", || place.sessions_left() == 0);
}

/// A command that is stopped takes with it what left its process group.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_there_ends_also_what_left_the_process_group() {
    let place = Place::new();
    place.warm().await;
    let marker = place.path("pid");
    let script = format!("setsid sh -c 'echo $$ > {}; exec sleep 600' & sleep 600", marker.display());
    let plan = place.plan(|plan| {
        plan.grace(Duration::from_millis(300));
        plan.op("sleep", op("command.shell", json!({"script": script})))
            .on("web1")
            .timeout(Duration::from_secs(6));
    });
    let report = place.runner().run(plan).await;
    assert_eq!(report.tasks[0].class, Some(ErrorClass::Timeout), "{report:#?}");
    let pid = fs::read_to_string(&marker).unwrap();
    // Whoever it was left to may take a moment to hear of its end.
    Place::until("it is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

/// The executor knows how long an operation may take: one whose driver is away ends there in time, long before the lease does.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_kept_there_while_the_driver_is_away() {
    let mut place = Place::new();
    place.lease = Duration::from_secs(3600);
    place.warm().await;
    let marker = place.path("pid");
    let script = format!("echo $$ > {}; exec sleep 600", marker.display());
    let plan = place.plan(|plan| {
        plan.grace(Duration::from_millis(200));
        plan.op("sleep", op("command.shell", json!({"script": script})))
            .on("web1")
            .timeout(Duration::from_secs(6));
    });
    let running = place.runner().run(plan);
    let cutting = async {
        let pid = loop {
            match fs::read_to_string(&marker) {
                Ok(text) if text.ends_with('\n') => break text,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        place.world.unreachable.store(true, std::sync::atomic::Ordering::Relaxed);
        place.cut();
        let is_gone = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !is_gone() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Only now the driver comes back, and hears of it.
        place.world.unreachable.store(false, std::sync::atomic::Ordering::Relaxed);
        std::future::pending::<()>().await
    };
    let report = tokio::select! { report = running => report, () = cutting => unreachable!() };
    assert_eq!(report.tasks[0].class, Some(ErrorClass::Timeout), "{report:#?}");
    assert_eq!(place.sessions_left(), 0);
}

/// Case 13.
#[tokio::test(flavor = "multi_thread")]
async fn two_drivers_do_not_write_to_one_target_at_once() {
    let place = Place::new();
    let (marker, go) = (place.path("begun"), place.path("go"));
    let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", marker.display(), go.display());
    let first = place.plan(|plan| {
        plan.op("hold", op("command.shell", json!({"script": script}))).on("web1");
    });
    let write = |name: &str| {
        let path = place.target(name);
        place.plan(|plan| {
            plan.op("write", op("file.present", json!({"path": path, "content": "x"}))).on("web1");
        })
    };
    // Each driver has its own state directory, so only the target's lock is between them.
    let runner = |state: &str| place.runner().record_in(place.path(state));
    let id = stead_model::RunId::parse("the-holder").unwrap();
    let holding = runner("state1").run_id(id).run(first);
    let others = async {
        while !marker.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let refused = runner("state2").run(write("a")).await;
        assert_eq!(refused.exit_code, ExitCode::Locked, "{refused:#?}");
        let error = refused.tasks[0].error.clone().unwrap();
        for wanted in ["web1", "the-holder", "laptop", "ann", "since 2"] {
            assert!(error.contains(wanted), "{error}");
        }
        assert!(!place.path("target/a").exists());
        let waiting = runner("state3").wait_lock(Duration::from_secs(30)).run(write("b"));
        let letting = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::write(&go, "").unwrap();
        };
        let (waited, ()) = tokio::join!(waiting, letting);
        assert_eq!(waited.exit_code, ExitCode::Success, "{waited:#?}");
    };
    let (held, ()) = tokio::join!(holding, others);
    assert_eq!(held.exit_code, ExitCode::Success, "{held:#?}");
    assert!(place.path("target/b").exists());
}

/// Section 3: a frame that is wrong is an error. It would be wrong again, so nobody connects anew to hear it.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_frame_is_an_error_and_is_not_asked_for_again() {
    let mut place = Place::new();
    place.lease = Duration::from_secs(2);
    place.warm().await;
    let file = json!({"path": place.target("f")});
    for (from, operation, params, class) in [
        ("\"result\"", "file.present", file, ErrorClass::Operation),
        // Whether it went on is not known.
        ("\"out\"", "command.shell", json!({"script": "echo hello; sleep 600"}), ErrorClass::Interrupted),
    ] {
        *place.world.nonsense_from.lock().unwrap() = Some(from);
        place.world.started.lock().unwrap().clear();
        let report = place
            .run(|plan| {
                plan.op("x", op(operation, params)).on("web1");
            })
            .await;
        let row = &report.tasks[0];
        assert_eq!(row.class, Some(class), "{row:#?}");
        assert!(row.error.as_ref().unwrap().contains("the executor sent a bad frame"), "{row:#?}");
        assert_eq!(place.world.started.lock().unwrap().len(), 1, "one connection");
        Place::until("what it left is gone", || place.sessions_left() == 0);
    }
}
