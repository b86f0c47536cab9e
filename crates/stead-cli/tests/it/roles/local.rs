//! The agent of this machine keeps what every agent promises.

use std::sync::Arc;

use serde_json::json;
use stead_model::role::{RoleEvent, StopReason};
use stead_runner::agent::look_before_start;

use super::contract;
use super::stage::{Stage, Wish, next};

macro_rules! promises {
    ($($name:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let stage = Stage::local();
            contract::$name(&stage).await;
            stage.end().await;
            assert_eq!(left(&stage), Vec::<String>::new(), "nothing stays");
        }
    )+};
}

/// Returns what is left where roles worked, but for the hash of the program.
fn left(stage: &Stage) -> Vec<String> {
    let entries = std::fs::read_dir(stage.path("agent")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "program.json").collect()
}

promises!(
    words_arrive_as_they_are,
    output_is_kept_unchanged,
    secrets_are_masked,
    ends_are_told_truly,
    what_cannot_start_is_told,
    a_role_that_is_asked_stops_by_itself,
    the_stop_signal_is_the_wanted_one,
    a_role_that_does_not_listen_is_killed_with_its_tree,
    killing_does_not_wait_for_the_grace,
    a_service_lives_as_long_as_its_daemon,
    growth_before_a_silence_is_told,
    leftovers_of_a_task_are_ended,
    readiness_is_judged,
    readiness_has_a_time,
    an_end_before_readiness_is_told_at_once,
    an_address_that_is_taken_is_seen,
    files_programs_and_addresses,
    a_flood_is_kept_whole,
    closing_stops_roles,
);

/// Variables that `secrets` names are not inherited.
#[tokio::test]
async fn hidden_variables_are_not_inherited() {
    let stage = Stage::local();
    let mut order = stage.order("hidden", &["/bin/sh", "-c", "echo \"${PATH-none}\""], Wish::default()).await;
    order.hidden_env = vec!["PATH".to_owned()];
    let mut started = stage.start_order(order).await;
    started.exit().await;
    // A shell without PATH has one of its own, which it does not inherit.
    assert_ne!(started.stdout().trim(), std::env::vars().find(|(name, _)| name == "PATH").unwrap().1);
    stage.end().await;
}

/// `from: driver`: the supervisor leaves the looking to the driver, and an address that is taken is seen from there.
#[tokio::test]
async fn readiness_can_be_looked_at_from_the_driver() {
    let stage = Stage::local();
    let port = stead_testkit::sshd::free_port();
    let wish = json!({"method": "tcp_connect", "port": port, "from": "driver", "timeout_seconds": 30});
    let serve = format!("sleep 0.3; exec python3 -m http.server --bind 127.0.0.1 {port}");
    let order = stage.order("seen", &["/bin/sh", "-c", &serve], Wish::ready(wish)).await;
    let (mut ready, workdir) = (order.ready.clone().unwrap(), order.workdir.clone());
    assert_eq!(look_before_start(&*stage.agent, &mut ready).await.unwrap(), None);
    let logs = stage.path("bundle/roles/seen");
    std::fs::create_dir_all(&logs).unwrap();
    let running = stage.agent.start(order, &stage.work, &logs).await.unwrap();
    let mut running = running.looked_at_from(Arc::clone(&stage.agent), &ready, &workdir);
    loop {
        match next(&mut running).await {
            Some(RoleEvent::Ready { by, .. }) => break assert_eq!(by, "tcp_connect"),
            Some(RoleEvent::Logged { .. } | RoleEvent::Started { .. }) => {}
            other => panic!("it becomes ready: {other:?}"),
        }
    }
    let taken = look_before_start(&*stage.agent, &mut ready).await.unwrap_err();
    assert!(taken.message.contains("already accepts"), "{}", taken.message);
    running.stop.stop(StopReason::Done, false);
    while next(&mut running).await.is_some_and(|event| !event.is_last()) {}
    stage.end().await;
}
