//! What every agent promises. Each function is one promise, shown on a stage.

use std::time::{Duration, Instant};

use serde_json::json;
use stead_model::plan::Digest;
use stead_model::role::{
    ArtifactQuestion, FoundKind, Probe, ProgramQuestion, RoleEvent, StopReason, StopSignal,
};
use stead_model::run_plan::RoleKind;
use stead_runner::transport::Source;

use super::stage::{Stage, Wish, parent, processes_of, read, wait_for};

/// Argv and environment reach the role byte for byte.
pub(super) async fn words_arrive_as_they_are(stage: &Stage) {
    let odd =
        ["", "a b", "it's", "\"q\"", "$(x)", ";", "#", "~", "*", "-n", "line\nbreak", "ü\u{1F980}", "\\"];
    let script = "printf '%s|' \"$@\"; printf '%s|' \"$ODD\" \"$EMPTY\" \"$0\" \"$STEAD_ROLE\"; pwd";
    let argv: Vec<&str> = ["/bin/sh", "-c", script, "zero"].into_iter().chain(odd).collect();
    let wish = Wish { env: vec![("ODD", odd.concat()), ("EMPTY", String::new())], ..Wish::default() };
    let order = stage.order("words", &argv, wish).await;
    let workdir = order.workdir.clone();
    let mut started = stage.start_order(order).await;
    assert_eq!(started.exit().await.exit_code, Some(0));
    let all: Vec<&str> = odd.into_iter().collect();
    let wanted = format!("{}|{}||zero|words|{workdir}\n", all.join("|"), odd.concat());
    assert_eq!(started.stdout(), wanted);
}

/// Output is kept whole and unchanged, whatever it is; case 19.
pub(super) async fn output_is_kept_unchanged(stage: &Stage) {
    let script = "head -c 10000000 /dev/zero | tr '\\0' x; printf 'a\\000b\\r\\n\\377' >&2; exit 7";
    let (exit, logs) = stage.run("loud", script, Wish::default()).await;
    assert_eq!((exit.exit_code, exit.stdout_bytes, exit.stderr_bytes), (Some(7), 10_000_000, 6));
    let stdout = std::fs::read(logs.join("stdout.log")).unwrap();
    assert!(stdout.len() == 10_000_000 && stdout.iter().all(|byte| *byte == b'x'));
    assert_eq!(std::fs::read(logs.join("stderr.log")).unwrap(), b"a\0b\r\n\xff");
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(logs.join("stdout.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// Secrets are masked, also when they are split over two writes.
pub(super) async fn secrets_are_masked(stage: &Stage) {
    let script = "printf 'x open'; sleep 0.2; printf 'sesame y'; echo \"$TOKEN\" >&2; exit 1";
    let wish = Wish {
        env: vec![("TOKEN", "opensesame".to_owned())],
        secrets: vec!["opensesame".to_owned()],
        ..Wish::default()
    };
    let (exit, logs) = stage.run("secret", script, wish).await;
    assert_eq!(read(&logs, "stdout.log"), "x *** y");
    assert_eq!(read(&logs, "stderr.log"), "***\n");
    assert_eq!(exit.last_stderr, ["***"]);
}

/// How a role ended is told truly.
pub(super) async fn ends_are_told_truly(stage: &Stage) {
    // Long enough that its memory is looked at once it has some.
    let script = "i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i+1)); done; sleep 0.2; exit 42";
    let (exit, _) = stage.run("code", script, Wish::default()).await;
    assert_eq!((exit.exit_code, exit.signal.as_deref(), exit.killed), (Some(42), None, false));
    assert_eq!((exit.last_stderr.len(), exit.last_stderr[0].as_str()), (20, "line 10"));
    // A shell has little; its supervisor has much more.
    assert!((100_000..8_000_000).contains(&exit.max_rss_bytes), "{exit:?}");
    let big = "exec python3 -c 'x = bytearray(150_000_000); x[::4096] = x[::4096]'";
    let (exit, _) = stage.run("big", big, Wish::default()).await;
    assert!(exit.max_rss_bytes > 150_000_000, "{exit:?}");
    let (exit, _) = stage.run("signal", "kill -USR1 $$", Wish::default()).await;
    assert_eq!((exit.exit_code, exit.signal.as_deref()), (None, Some("USR1")));
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let (exit, _) = stage.run("busy", busy, Wish::default()).await;
    assert!(exit.cpu_ms > 0 && exit.duration_ms > 0 && exit.left_processes == 0, "{exit:?}");
}

/// A program that cannot be started is told, and nothing else.
pub(super) async fn what_cannot_start_is_told(stage: &Stage) {
    let order = stage.order("none", &["/no/such/program"], Wish::default()).await;
    let logs = stage.path("bundle/roles/none");
    std::fs::create_dir_all(&logs).unwrap();
    let mut running = stage.agent.start(order, &stage.work, &logs).await.unwrap();
    let Some(RoleEvent::NotStarted { reason }) = super::stage::next(&mut running).await else {
        panic!("it does not start")
    };
    assert!(reason.contains("/no/such/program"), "{reason}");
    assert_eq!(super::stage::next(&mut running).await, None);
}

/// Output is seen while the role runs, and a role that is asked to stop does what it does for that; case 15.
pub(super) async fn a_role_that_is_asked_stops_by_itself(stage: &Stage) {
    let script = "trap 'echo stopping; touch marker; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let mut started = stage.start("polite", script, Wish::default()).await;
    started.says("up").await;
    started.running.stop.stop(StopReason::Done, false);
    let (events, exit) = started.rest().await;
    let stopping = RoleEvent::Stopping { signal: "TERM".to_owned(), reason: StopReason::Done };
    assert_eq!(events, [stopping]);
    assert_eq!((exit.exit_code, exit.killed), (Some(0), false));
    assert_eq!(started.stdout(), "up\nstopping\n");
    let workdir = format!("{}/marker", workdir_of(stage, "polite").await);
    assert!(stage.agent.stat(&workdir, false).await.unwrap().is_some());
    // Again is harmless.
    started.running.stop.stop(StopReason::Done, true);
}

async fn workdir_of(stage: &Stage, role: &str) -> String {
    let left = stage.agent.leftovers(&stage.work).await.unwrap();
    left.roles.into_iter().find(|left| left.role == role).unwrap().workdir.unwrap()
}

/// Another signal can be the one that stops.
pub(super) async fn the_stop_signal_is_the_wanted_one(stage: &Stage) {
    let script = "trap 'echo int; exit 3' INT; trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let wish = Wish { stop: Some((StopSignal::Int, 10)), ..Wish::default() };
    let mut started = stage.start("interrupted", script, wish).await;
    started.says("up").await;
    started.running.stop.stop(StopReason::Duration, false);
    assert_eq!(started.exit().await.exit_code, Some(3));
    assert_eq!(started.stdout(), "up\nint\n");
}

/// One that does not listen is killed after its grace, with everything below it, however it hides; case 15.
pub(super) async fn a_role_that_does_not_listen_is_killed_with_its_tree(stage: &Stage) {
    let script = "trap '' TERM; \
        setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' & \
        (env -i setsid sh -c 'trap \"\" TERM; (while :; do sleep 1; done) & echo $! > double; exit 0' &) ; \
        while [ ! -s double ]; do sleep 0.05; done; echo up $(cat double); while :; do sleep 1; done";
    let mut started = stage.start("deaf", script, Wish::grace(1)).await;
    started.says("up ").await;
    started.logged(|log| log.ends_with(b"\n")).await;
    let hidden: u32 = started.stdout().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(super::stage::is_alive(hidden), "it left its session, its parent and its environment");
    let asked = Instant::now();
    started.running.stop.stop(StopReason::Done, false);
    let (events, exit) = started.rest().await;
    assert!(asked.elapsed() >= Duration::from_secs(1), "the grace is granted");
    assert_eq!((exit.signal.as_deref(), exit.killed), (Some("KILL"), true));
    assert!(
        matches!(&events[..], [RoleEvent::Stopping { .. }, RoleEvent::Warning { code, .. }] if code == "run/role-killed"),
        "{events:?}"
    );
    assert!(!super::stage::is_alive(hidden), "no process of the tree is left");
    assert_eq!(processes_of(&stage.work), []);
}

/// A second request kills at once.
pub(super) async fn killing_does_not_wait_for_the_grace(stage: &Stage) {
    let script = "trap '' TERM; echo up; while :; do sleep 1; done";
    let mut started = stage.start("killed", script, Wish::grace(600)).await;
    started.says("up").await;
    started.running.stop.stop(StopReason::Cancelled, false);
    started.running.stop.stop(StopReason::Cancelled, true);
    let (events, exit) = started.rest().await;
    assert_eq!((exit.signal.as_deref(), exit.killed), (Some("KILL"), true));
    let [RoleEvent::Stopping { .. }, RoleEvent::Warning { code, text }] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(code == "run/role-killed" && text.contains("cut short"), "{text}");
}

/// A service whose first process ends goes on with its daemon, becomes ready by it, and ends with it.
pub(super) async fn a_service_lives_as_long_as_its_daemon(stage: &Stage) {
    let service = |ready| Wish { kind: RoleKind::Service, ..Wish::ready(ready) };
    let daemon = "(setsid sh -c 'sleep 0.5; touch up; echo up; exec sleep 600' &); exit 0";
    for (role, ready) in [
        ("said", json!({"method": "regex", "pattern": "up"})),
        ("looked", json!({"method": "command", "command": ["test", "-e", "up"]})),
    ] {
        let mut started = stage.start(role, daemon, service(ready)).await;
        loop {
            match started.next().await {
                Some(RoleEvent::Ready { .. }) => break,
                Some(RoleEvent::Logged { .. }) => {}
                other => panic!("{role} becomes ready: {other:?}"),
            }
        }
        // Longer than what a task leaves may go on.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(processes_of(&stage.work).len(), 1, "{role}");
        started.running.stop.stop(StopReason::Done, false);
        let (events, exit) = started.rest().await;
        assert!(matches!(&events[..], [RoleEvent::Stopping { .. }]), "{events:?}");
        assert_eq!((exit.exit_code, exit.left_processes, exit.killed), (Some(0), 0, false));
        assert!(exit.duration_ms >= 1_500, "{exit:?}");
        assert_eq!(processes_of(&stage.work), []);
    }
    // A look that takes its time does not keep a role that has ended.
    let ready = json!({"method": "command", "command": ["sleep", "60"], "timeout_seconds": 60});
    let began = Instant::now();
    let script = "(setsid sh -c 'sleep 0.5; echo broken >&2' &); exit 0";
    let mut started = stage.start("fallen", script, service(ready)).await;
    let (events, exit) = started.rest().await;
    let [RoleEvent::NotReady { reason, last_stderr }] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("ended before it was ready") && last_stderr == &["broken"], "{reason}");
    assert!(began.elapsed() < Duration::from_secs(50) && exit.left_processes == 0, "{exit:?}");
}

/// The last line before a long silence is told as well, also when it is the one that shows readiness.
pub(super) async fn growth_before_a_silence_is_told(stage: &Stage) {
    let wish = Wish::ready(json!({"method": "regex", "pattern": "up"}));
    let mut started = stage.start("quiet", "echo up; exec sleep 600", wish).await;
    let (mut is_ready, mut told) = (false, 0);
    while !is_ready || told < 3 {
        match started.next().await {
            Some(RoleEvent::Ready { .. }) => is_ready = true,
            Some(RoleEvent::Logged { stdout_bytes, .. }) => told = stdout_bytes,
            other => panic!("{other:?}"),
        }
    }
    started.running.stop.stop(StopReason::Done, false);
    started.exit().await;
}

/// What a task leaves behind is ended, and said.
pub(super) async fn leftovers_of_a_task_are_ended(stage: &Stage) {
    let script = "sleep 600 & setsid sh -c 'trap \"\" TERM; sleep 600 & touch made; wait; sleep 600' & \
        until [ -e made ]; do sleep 0.05; done; echo done";
    let mut started = stage.start("messy", script, Wish::default()).await;
    let (events, exit) = started.rest().await;
    assert_eq!((exit.exit_code, exit.killed), (Some(0), false));
    assert!(exit.left_processes >= 3, "{exit:?}");
    assert!(exit.duration_ms < 60_000, "{exit:?}");
    assert!(
        matches!(&events[..], [RoleEvent::Warning { code, .. }] if code == "run/left-processes"),
        "{events:?}"
    );
    assert_eq!(processes_of(&stage.work), []);
}

/// Each way to be ready works; case 14.
pub(super) async fn readiness_is_judged(stage: &Stage) {
    let port = stead_testkit::sshd::free_port();
    let serve = format!("exec python3 -m http.server --bind 127.0.0.1 {port}");
    let event = "echo noise; sleep 0.1; echo '{\"event\": \"server_ready\", \"listen\": \"x\", \"key\": \"hidden-key\"}'; sleep 60";
    let slow_file = "sleep 0.2; touch up; sleep 60";
    let line = "echo 'listening on [::1]:80' >&2; sleep 60";
    let cases = [
        ("event", event, json!({"method": "structured_stdout"}), "structured_stdout"),
        ("tcp", &serve, json!({"method": "tcp_connect", "port": port}), "tcp_connect"),
        (
            "fallback",
            &serve,
            json!({"method": "structured_stdout", "port": port, "fallback_after_seconds": 0.1}),
            "tcp_connect",
        ),
        (
            "http",
            &serve,
            json!({"method": "http", "url": format!("http://127.0.0.1:{port}/"), "body_regex": "Directory"}),
            "http",
        ),
        ("file", slow_file, json!({"method": "file", "path": "up"}), "file"),
        ("command", slow_file, json!({"method": "command", "command": ["test", "-e", "up"]}), "command"),
        (
            "line",
            line,
            json!({"method": "regex", "pattern": "listening on (?P<addr>\\S+)", "stream": "stderr"}),
            "regex",
        ),
        ("started", "sleep 60", json!({"method": "none"}), "none"),
    ];
    for (role, script, ready, by) in cases {
        let mut wish = Wish::ready(ready);
        wish.secrets = vec!["hidden-key".to_owned()];
        let mut started = stage.start(role, script, wish).await;
        let values = loop {
            match started.next().await {
                Some(RoleEvent::Ready { by: found, values, .. }) => {
                    assert_eq!(found, by, "{role}");
                    break values;
                }
                Some(RoleEvent::Logged { .. }) => {}
                other => panic!("{role} becomes ready: {other:?}"),
            }
        };
        match role {
            "event" => assert_eq!(json!(values), json!({"listen": "x", "key": "***"})),
            "line" => assert_eq!(json!(values), json!({"addr": "[::1]:80"})),
            _ => assert!(values.is_empty(), "{role}: {values:?}"),
        }
        started.running.stop.stop(StopReason::Done, false);
        started.exit().await;
    }
}

/// Each way to be ready fails when the time is over; case 13, 14.
pub(super) async fn readiness_has_a_time(stage: &Stage) {
    let port = stead_testkit::sshd::free_port();
    let cases = [
        json!({"method": "structured_stdout"}),
        json!({"method": "tcp_connect", "port": port}),
        json!({"method": "http", "url": format!("http://127.0.0.1:{port}/")}),
        json!({"method": "file", "path": "up"}),
        json!({"method": "command", "command": ["false"]}),
        json!({"method": "regex", "pattern": "never"}),
    ];
    // All at once: each has the time that a busy machine needs to say a word.
    let mut all = Vec::new();
    for (number, mut ready) in cases.into_iter().enumerate() {
        ready["timeout_seconds"] = json!(3);
        let method = ready["method"].clone();
        let script = "echo oops >&2; sleep 600";
        all.push((method, stage.start(&format!("late-{number}"), script, Wish::ready(ready)).await));
    }
    for (method, mut started) in all {
        let (reason, last) = loop {
            match started.next().await {
                Some(RoleEvent::NotReady { reason, last_stderr }) => break (reason, last_stderr),
                Some(RoleEvent::Logged { .. }) => {}
                other => panic!("{method}: {other:?}"),
            }
        };
        assert!(reason.contains("within 3s") && last == ["oops"], "{method}: {reason}");
        started.running.stop.stop(StopReason::Failure, false);
        started.exit().await;
    }
}

/// A role that ends before it is ready is told at once, with how it ended; case 13.
pub(super) async fn an_end_before_readiness_is_told_at_once(stage: &Stage) {
    let wish = Wish::ready(json!({"method": "structured_stdout", "timeout_seconds": 30}));
    let script = "setsid sh -c 'trap \"\" TERM; sleep 600' & echo 'no licence' >&2; sleep 0.3; exit 3";
    let mut started = stage.start("short", script, wish).await;
    let (events, exit) = started.rest().await;
    let Some(RoleEvent::NotReady { reason, last_stderr }) = events.first() else { panic!("{events:?}") };
    assert!(reason.contains("exit code 3"), "{reason}");
    assert_eq!(last_stderr, &["no licence"]);
    assert_eq!(exit.exit_code, Some(3));
}

/// An address that answers before the role starts is no sign of the role.
pub(super) async fn an_address_that_is_taken_is_seen(stage: &Stage) {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let order = stage
        .order("taken", &["/bin/sleep", "60"], Wish::ready(json!({"method": "tcp_connect", "port": port})))
        .await;
    let logs = stage.path("bundle/roles/taken");
    std::fs::create_dir_all(&logs).unwrap();
    let mut running = stage.agent.start(order, &stage.work, &logs).await.unwrap();
    let Some(RoleEvent::NotStarted { reason }) = super::stage::next(&mut running).await else {
        panic!("it does not start")
    };
    assert!(reason.contains("already accepts") && reason.contains(&port.to_string()), "{reason}");

    let wish = Wish::ready(json!({"method": "structured_stdout", "port": port, "timeout_seconds": 1}));
    let order = stage.order("spoken-for", &["/bin/sleep", "60"], wish).await;
    let logs = stage.path("bundle/roles/spoken-for");
    std::fs::create_dir_all(&logs).unwrap();
    let mut running = stage.agent.start(order, &stage.work, &logs).await.unwrap();
    let mut seen = Vec::new();
    loop {
        match super::stage::next(&mut running).await.unwrap() {
            RoleEvent::NotReady { .. } => break,
            RoleEvent::Warning { code, .. } => seen.push(code),
            RoleEvent::Ready { by, .. } => panic!("{by} is not this role"),
            RoleEvent::Started { .. }
            | RoleEvent::NotStarted { .. }
            | RoleEvent::Logged { .. }
            | RoleEvent::Stopping { .. }
            | RoleEvent::Exited(_) => {}
        }
    }
    assert_eq!(seen, ["run/fallback-off"]);
    running.stop.stop(StopReason::Failure, true);
}

/// Files go there and come back, programs and addresses are found.
pub(super) async fn files_programs_and_addresses(stage: &Stage) {
    let agent = &stage.agent;
    let workdir = agent.make_workdir(&stage.work, "files").await.unwrap();
    assert!(workdir.ends_with(&format!("/{}/files", stage.work)), "{workdir}");
    let tool = format!("{workdir}/bin/tool");
    let content = b"#!/bin/sh\necho hi\n";
    let source = stage.path("tool");
    std::fs::write(&source, content).unwrap();
    let put = agent.put(Source::File(source), &tool, Some(0o755)).await.unwrap();
    assert_eq!(put, Digest::of(content));
    let bytes: std::sync::Arc<[u8]> = b"profile".as_slice().into();
    let profile = format!("{workdir}/profile.yaml");
    assert_eq!(agent.put(Source::Bytes(bytes), &profile, None).await.unwrap(), Digest::of(b"profile"));
    let empty = agent.put(Source::Bytes(Vec::new().into()), &format!("{workdir}/empty"), None).await.unwrap();
    assert_eq!(empty, Digest::of(b""));
    let stat = agent.stat(&profile, true).await.unwrap().unwrap();
    assert_eq!((stat.kind, stat.bytes, stat.mode), (FoundKind::File, 7, 0o644));
    assert_eq!(stat.sha256, Some(Digest::of(b"profile").to_string()));
    assert_eq!(agent.stat(&format!("{workdir}/none"), true).await.unwrap(), None);

    let ask = |name: &str, path: Option<String>| ProgramQuestion {
        name: name.to_owned(),
        path,
        workdir: workdir.clone(),
    };
    let found = agent.find_program(&ask("bin/tool", None)).await.unwrap();
    assert_eq!((found.path, found.sha256), (tool.clone(), Some(Digest::of(content).to_string())));
    let found = agent.find_program(&ask("tool", Some(format!("{workdir}/bin")))).await.unwrap();
    assert_eq!(found.path, tool);
    let error = agent.find_program(&ask("no-such-tool", None)).await.unwrap_err();
    assert!(error.message.contains("no-such-tool") && error.message.contains("PATH"), "{}", error.message);

    assert!(agent.has_address("127.0.0.1".parse().unwrap()).await.unwrap());
    assert!(!agent.has_address("192.0.2.7".parse().unwrap()).await.unwrap());

    let big: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0] ^ 0x5a).collect();
    agent.put(Source::Bytes(big.clone().into()), &format!("{workdir}/out/big.pcap"), None).await.unwrap();
    let question = ArtifactQuestion {
        workdir: workdir.clone(),
        globs: vec!["*.yaml".to_owned(), "out/*.pcap".to_owned()],
        newer_than: None,
        max_bytes: 1 << 30,
    };
    let found = agent.artifacts(&question).await.unwrap();
    let paths: Vec<_> = found.iter().map(|found| (found.path.as_str(), found.globs[0])).collect();
    assert_eq!(paths, [("out/big.pcap", 1), ("profile.yaml", 0)]);
    let to = stage.path("fetched/big.pcap");
    let digest = agent.fetch(&format!("{workdir}/out/big.pcap"), &to).await.unwrap();
    assert_eq!(digest.to_string(), found[0].sha256);
    assert_eq!(std::fs::read(&to).unwrap(), big);
    let to = stage.path("fetched/empty");
    assert_eq!(agent.fetch(&format!("{workdir}/empty"), &to).await.unwrap(), Digest::of(b""));
    assert_eq!(std::fs::read(&to).unwrap(), b"");
    let missing = agent.fetch(&format!("{workdir}/gone"), &stage.path("fetched/gone")).await;
    assert!(missing.unwrap_err().message.contains("gone"));
    assert!(!stage.path("fetched/gone").exists());

    let look = Probe::File { path: profile, newer_than_micros: None };
    assert!(agent.probe(&look).await.unwrap().ok);
    let error = agent.make_workdir(&stage.work, "../up").await.unwrap_err();
    assert!(error.message.contains("no name of a role"), "{}", error.message);
    let named = stage.path("named/dir").display().to_string();
    agent.ensure_directory(&named).await.unwrap();
    agent.ensure_directory(&named).await.unwrap();
    assert_eq!(agent.stat(&named, false).await.unwrap().unwrap().kind, FoundKind::Directory);
    assert_eq!(agent.stead_sha256().await.unwrap().len(), 64);
}

/// A role that floods its output neither waits for anybody nor loses a byte.
pub(super) async fn a_flood_is_kept_whole(stage: &Stage) {
    let script = "i=0; while [ $i -lt 40 ]; do head -c 1000000 /dev/zero | tr '\\0' y; echo; i=$((i+1)); done; \
        echo the end >&2";
    let (exit, logs) = stage.run("flood", script, Wish::default()).await;
    assert_eq!((exit.exit_code, exit.stdout_bytes), (Some(0), 40_000_040));
    assert_eq!(std::fs::metadata(logs.join("stdout.log")).unwrap().len(), 40_000_040);
    assert_eq!(read(&logs, "stderr.log"), "the end\n");
}

/// When an agent is closed, its roles are stopped by their rule.
pub(super) async fn closing_stops_roles(stage: &Stage) {
    let marker = stage.path("marker");
    let script =
        format!("trap 'touch {}; exit 0' TERM; echo up; while :; do sleep 0.1; done", marker.display());
    let started = stage.start("closed", &script, Wish::default()).await;
    started.says("up").await;
    let supervisor = parent(started.pid);
    stage.agent.close().await;
    wait_for(|| marker.exists()).await;
    wait_for(|| !super::stage::is_alive(supervisor)).await;
    wait_for(|| processes_of(&stage.work).is_empty()).await;
}
