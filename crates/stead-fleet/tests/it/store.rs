//! Case 18: one suite on both stores.

use std::sync::Arc;
use std::time::Duration;

use stead_fleet::store::{Change, Committed, Embedded, Etcd, FleetStore, StoreError, Txn};
use stead_testkit::etcd;

mod contract;
mod embedded;

#[tokio::test]
async fn the_embedded_store_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let store = Embedded::open(&dir.path().join("master.db")).unwrap();
    contract::run(Arc::new(store)).await;
}

#[tokio::test]
async fn etcd_keeps_the_contract() {
    let Some(server) = etcd::Server::start() else { return };
    let store = Etcd::new(&[server.address()], "stead/", None).unwrap();
    contract::run(Arc::new(store)).await;
    // What is large is put together by whoever comes next, and nothing of it is seen before.
    let [writer, reader] = [(); 2].map(|()| Etcd::new(&[server.address()], "other/", None).unwrap());
    contract::large_transactions_are_never_seen_in_part(Arc::new(writer), Arc::new(reader)).await;
}

/// Two fleets share a server without seeing each other.
#[tokio::test]
async fn prefixes_keep_fleets_apart() {
    let Some(server) = etcd::Server::start() else { return };
    let [one, two] = ["one/", "two/"].map(|prefix| Etcd::new(&[server.address()], prefix, None).unwrap());
    one.txn(Txn::default().put("meta/fleet", "1")).await.unwrap();
    assert!(two.get("meta/fleet").await.unwrap().is_none());
    assert_eq!(two.range("", None).await.unwrap().entries, []);
}

/// A server that does not answer is told of in time, and the next one is asked.
#[tokio::test]
async fn the_next_server_is_asked() {
    let Some(server) = etcd::Server::start() else { return };
    let gone = format!("127.0.0.1:{}", stead_testkit::sshd::free_port());
    let store = Etcd::new(&[gone.clone(), server.address()], "stead/", None).unwrap();
    assert!(matches!(store.txn(Txn::default().put("a", "1")).await, Ok(Committed::Done(_))));
    let nobody = Etcd::new(&[gone], "stead/", None).unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(60), nobody.get("a")).await.unwrap();
    assert!(matches!(asked, Err(StoreError::Unavailable(_))));
}

/// Returns the next changes of a watch, or fails.
async fn next(watch: &mut Box<dyn stead_fleet::store::Watch>) -> Vec<Change> {
    tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("a change in time").unwrap()
}
