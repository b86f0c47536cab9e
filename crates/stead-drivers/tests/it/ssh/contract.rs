//! The transport contract, for both transports.

use super::*;
use stead_testkit::transport_contract;

#[tokio::test]
async fn ssh_keeps_the_transport_contract() {
    let server = Sshd::start();
    let directory = tempfile::tempdir().unwrap();
    transport_contract::verify(connect(&server).await, directory.path()).await;
    assert_eq!(server.logins(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_keeps_the_transport_contract() {
    let directory = tempfile::tempdir().unwrap();
    let account = Account::new().set("PATH", "/usr/bin:/bin");
    let local = account.transports().connect(&TransportSpec::Local).await.unwrap();
    transport_contract::verify(local, directory.path()).await;
}
