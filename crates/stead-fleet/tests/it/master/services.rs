//! Whole masters: store, authority, wire and page.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stead_fleet::identity::{Identity, MintOrder};
use stead_fleet::service::{MasterOptions, MasterService, OPERATOR, ServiceError};
use stead_fleet::wire::{Carrier, Client};
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::peer::Role;
use stead_model::fleet::services::MasterFile;
use stead_testkit::etcd::Server;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::yard::*;

fn options(directory: &Path, text: &str) -> MasterOptions {
    let mut problems = Diagnostics::default();
    let source = Source { name: "master.yaml".into(), text: text.into() };
    let file = MasterFile::read(&source, &mut problems).unwrap();
    assert!(!problems.has_errors(), "{problems:?}");
    MasterOptions { directory: directory.to_owned(), file, rebuild: false, is_told: false }
}

fn near(name: &str, store: &str) -> String {
    format!("name: {name}\nlisten: 127.0.0.1:0\nobserve: 127.0.0.1:0\n{store}")
}

/// A master that serves.
struct Served {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServiceError>>,
}

impl Served {
    fn start(service: MasterService) -> Self {
        let stop = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
        let task = tokio::spawn(service.serve(stop.clone()));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn operator(directory: &Path) -> Arc<Client> {
    let identity = Identity::load(&directory.join(OPERATOR)).unwrap().unwrap();
    Client::new(Carrier::start().unwrap(), identity).unwrap()
}

/// Case 19, section 13: what a follower answers is what the leader says, with nothing set up for it but `master.yaml`.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_answers_as_the_leader() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let store = format!("store: {{kind: distributed, endpoints: ['{}']}}\n", server.address());
    let places = ["m1", "m2"].map(|name| dir.path().join(name));
    let first = MasterService::start(options(&places[0], &near("m1", &store))).await.unwrap();
    let leader = first.handle();
    let second = MasterService::start(options(&places[1], &near("m2", &store))).await.unwrap();
    let served = [Served::start(first), Served::start(second)];
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*leader).await.unwrap();
    accepted(&*leader, 2, "default", vms("default", &[("web", 2, "")])).await;
    let before = settle(&*leader, &mut workers, is_converged).await;
    let shown = status(&*operator(&places[1])).await;
    assert_eq!((&shown["state"], &shown["leader"]["name"]), (&"converged".into(), &"m1".into()));
    assert_eq!(shown["workers"][0]["state"], before["workers"][0]["state"]);
    let [leads, follows] = served;
    leads.stop().await;
    follows.stop().await;
}

/// Section 13: masters that send others to themselves do not begin.
#[tokio::test]
async fn several_masters_say_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = "name: m1\nlisten: 0.0.0.0:0\nstore: {kind: distributed, endpoints: ['127.0.0.1:1']}\n";
    let refused = MasterService::start(options(dir.path(), file)).await;
    assert!(matches!(refused, Err(ServiceError::Advertise(_))), "{refused:?}");
}

/// Section 15: a client of HTTP, which offers its protocols, sees the page; from elsewhere with a token of an observer.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_speaks_http_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let service = MasterService::start(options(dir.path(), &near("m1", ""))).await.unwrap();
    let (page, authority) = (service.observe, service.authority());
    let order = MintOrder::new(Role::Observer, None, Duration::from_secs(60));
    let token = authority.mint(&order).await.unwrap();
    let worker = MintOrder::new(Role::Worker, None, Duration::from_secs(60));
    let other = authority.mint(&worker).await.unwrap();
    assert_eq!((authority.bearer(&token), authority.bearer("sj1.x")), (Some(Role::Observer), None));
    let served = Served::start(service);
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: `curl` is not installed");
    } else {
        // Under another name than this machine's own a visitor is one from elsewhere.
        for (host, token, code) in [
            ("localhost", "", "200"),
            ("elsewhere", "", "403"),
            ("elsewhere", token.as_str(), "200"),
            ("elsewhere", other.as_str(), "403"),
        ] {
            let url = format!("https://{host}:{}/healthz", page.port());
            let mut curl = tokio::process::Command::new("curl");
            curl.args(["-ks", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "*"]);
            curl.args(["--resolve", &format!("{host}:{}:127.0.0.1", page.port())]);
            curl.args(["-H", &format!("Authorization: Bearer {token}"), &url]);
            let said = curl.output().await.unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), code, "{host}");
        }
    }
    served.stop().await;
}

/// Section 12: a worker that is revoked goes from the status by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_hears_of_revocations() {
    let dir = tempfile::tempdir().unwrap();
    let service = MasterService::start(options(dir.path(), &near("m1", ""))).await.unwrap();
    let (handle, authority) = (service.handle(), service.authority());
    let served = Served::start(service);
    authority.enrol(Role::Worker, "w1").await.unwrap();
    let mut worker = Worker::new("w1");
    worker.session = 9;
    worker.beat(&*handle).await.unwrap();
    authority.revoke("w1").await.unwrap();
    // Joined again, with nothing on its disk: it counts from the beginning, and is heard.
    authority.enrol(Role::Worker, "w1").await.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut again = Worker::new("w1");
    loop {
        again.beat(&*handle).await.unwrap();
        let seen = again.obey(&*handle, Duration::from_millis(20)).await.unwrap();
        if seen || status(&*handle).await["workers"][0]["state"] == "ready" {
            break;
        }
        assert!(Instant::now() < end);
    }
    served.stop().await;
}
