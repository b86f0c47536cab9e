//! The screens as they look at 80 × 24.

use super::*;

/// A run in the middle: the server is ready, the client writes.
fn running() -> (TestScreen, u64) {
    let mut stage = TestScreen::new();
    let key = stage.start();
    stage.happen(key, run_started(RunKind::Run));
    for phase in ["init", "stage", "server_start"] {
        stage.happen(key, phase_started(phase));
        stage.happen(key, phase_ended(phase, Status::Changed, None));
    }
    stage.happen(key, role_started("server", "edge"));
    stage.happen(key, phase_started("server_ready"));
    stage.happen(key, role_ready("server"));
    stage.happen(key, phase_ended("server_ready", Status::Unchanged, None));
    stage.happen(key, role_started("client", "local"));
    stage.happen(key, phase_started("client_done"));
    let intents = stage.happen(key, wrote("client", Stream::Stdout, 0, 1));
    let [Intent::ReadOutput { read, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    let parts = vec![(read.pieces[0].clone(), b"sent 1\nsent 2\nsent 3".to_vec())];
    stage.send(Message::Output { key, reader: read.reader, parts });
    (stage, key)
}

#[test]
fn the_list_of_runs() {
    let mut stage = TestScreen::new();
    let bundles = ["2026-11-15_10-00-00", "2026-11-15_09-00-00"].map(listed).to_vec();
    stage.send(Message::Bundles(Ok(bundles)));
    insta::assert_snapshot!(stage.draw());
}

#[test]
fn the_controller_before_a_run() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    stage.state.controller.form.set_manifest("lab/soak.yaml");
    let intents = stage.press(Key::Char('v'));
    let [Intent::Load { serial, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    stage.send(Message::Loaded { serial: *serial, why: Why::Validate, result: Ok(manifest()) });
    insta::assert_snapshot!(stage.draw());
}

#[test]
fn the_controller_during_a_run() {
    let (stage, _) = running();
    insta::assert_snapshot!(stage.draw());
}

#[test]
fn the_controller_after_a_run() {
    let (mut stage, key) = running();
    stage.happen(key, role_exited("client", Some(42), None));
    stage.happen(key, phase_ended("client_done", Status::Failed, Some("role `client` exited with 42")));
    stage.happen(key, role_stop("server"));
    stage.happen(key, role_exited("server", Some(0), None));
    stage.happen(key, artifact("client", "out/result.json", 2048));
    stage.happen(key, run_ended(RunStatus::Failed));
    let ended = RunEnd {
        bundle: Some("/lab/runs/2026-11-15_10-00-00".into()),
        error: Some("role `client` exited with 42".to_owned()),
        ..RunEnd::default()
    };
    stage.send(Message::RunEnded { key, result: Ok(ended) });
    insta::assert_snapshot!(stage.draw());
}

#[test]
fn the_agent_view() {
    use stead_drivers::agent::{AgentInterface, AgentStatus, Workdir};

    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    stage.press(Key::Tab);
    stage.send(Message::Local(Box::new(AgentStatus {
        version: "0.1.0".to_owned(),
        git_commit: Some("0123abc".to_owned()),
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        hostname: Some("lab".to_owned()),
        workdir: Workdir {
            path: "/home/ann/.cache/stead".to_owned(),
            exists: false,
            writable: true,
            error: None,
        },
        interfaces: vec![AgentInterface {
            name: "eth0".to_owned(),
            addresses: vec!["10.20.0.7".to_owned(), "fd00::7".to_owned()],
            can_bind: true,
        }],
        pcap_capable: false,
        pcap_method: None,
        supported_roles: vec!["service", "task"],
        kits: vec!["cipdip".to_owned()],
    })));
    stage.send(Message::Registry(Ok(vec![Registered {
        name: "edge".to_owned(),
        transport: "ssh://lab@10.20.0.7:2222".to_owned(),
        description: Some("by the pump".to_owned()),
        state: CheckState::Checking,
    }])));
    insta::assert_snapshot!(stage.draw());
}

#[test]
fn the_help_page() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('?'));
    insta::assert_snapshot!(stage.draw());
    stage.press(Key::End);
    assert!(stage.shows("check all, at once"), "{}", stage.draw());
}
