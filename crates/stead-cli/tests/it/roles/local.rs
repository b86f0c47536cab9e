//! The agent of this machine keeps what every agent promises.

use super::contract;
use super::stage::{Stage, Wish};

macro_rules! promises {
    ($($name:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let stage = Stage::local();
            contract::$name(&stage).await;
            stage.end().await;
            assert_eq!(std::fs::read_dir(stage.path("agent")).map_or(0, Iterator::count), 0, "nothing stays");
        }
    )+};
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
