//! The contract of machine drivers, for containers, by every runtime that is here.

use stead_testkit::machine_contract;

use super::yard::{Place, is_absent, is_skipped};

/// Case 26: the contract of machine drivers, by runc.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_by_runc_keep_the_machine_contract() {
    if !is_skipped("runc") {
        machine_contract::verify(&Place::new("runc")).await;
    }
}

/// Case 26: the contract of machine drivers, by crun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_by_crun_keep_the_machine_contract() {
    if !is_skipped("crun") {
        machine_contract::verify(&Place::new("crun")).await;
    }
}

/// Case 26: the contract of machine drivers, by youki, where somebody installed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_by_youki_keep_the_machine_contract() {
    if !is_absent("youki") {
        machine_contract::verify(&Place::new("youki")).await;
    }
}
