//! Versions that differ: old workers with a new master, and the reverse.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use stead_fleet::api::{Applied, Master, PipelineReport};
use stead_fleet::identity::{Authority, MemoryLedger, client_config};
use stead_fleet::wire::fleet_capnp::master;
use stead_fleet::wire::fleet_capnp::verdict::Result as Judged;
use stead_fleet::wire::{Hello, PROTO_MAJOR};
use stead_model::base64;
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::{Outcome, Publication};
use stead_model::{GroupName, WorkerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::hostile::{open, speak};
use super::small::{Running, client, code, heartbeat, publication};

async fn say_hello(master: &master::Client, major: u16) -> Result<Hello, String> {
    let mut call = master.hello_request();
    call.get().init_me().set_proto_major(major);
    let answer = call.send().promise.await.map_err(|error| error.extra)?;
    let you = answer.get().unwrap().get_you().unwrap();
    Ok(Hello { proto_major: you.get_proto_major(), ..Hello::new("") })
}

/// Case 24: this version and the one before are spoken; others are refused, naming both, and get nothing done.
#[tokio::test(flavor = "multi_thread")]
async fn versions_too_far_away_are_refused() {
    let running = Running::start().await;
    let identity = running.identity(Role::Worker, "w1").await;
    LocalSet::new()
        .run_until(async {
            for (major, is_spoken) in [
                (PROTO_MAJOR - 1, true),
                (PROTO_MAJOR, true),
                (PROTO_MAJOR + 1, false),
                (PROTO_MAJOR + 2, false),
            ] {
                let stream = open(&running.address, client_config(&identity).unwrap()).await;
                let (master, system) = speak::<master::Client, _>(stream);
                let said = say_hello(&master, major).await;
                let mut call = master.report_observed_request();
                call.get().init_observed().set_worker_id("w1");
                let reported = call.send().promise.await;
                assert_eq!((said.is_ok(), reported.is_ok()), (is_spoken, is_spoken), "{major}");
                if let Err(text) = said {
                    assert!(text.contains("version-unsupported"), "{text}");
                    assert!(
                        text.contains(&format!("version {major} "))
                            && text.contains(&PROTO_MAJOR.to_string())
                    );
                }
                system.abort();
            }
        })
        .await;
    running.stop().await;
}

const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/wire/old-worker.base64");

/// Returns what a worker of minor version 0 wrote: bootstrap, `hello`, `reportObserved` and `getAssignment` for `w1`.
pub(super) fn old_worker() -> Vec<u8> {
    base64::decode(&std::fs::read_to_string(RECORDING).unwrap()).unwrap()
}

#[tokio::test]
#[ignore = "changes the source; what old workers wrote stays as it is"]
async fn records_an_old_worker() {
    LocalSet::new()
        .run_until(async {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            let (master, system) = speak::<master::Client, _>(near);
            let mut hello = master.hello_request();
            hello.get().init_me().set_proto_major(1);
            let mut report = master.report_observed_request();
            let mut observed = report.get().init_observed();
            observed.set_worker_id("w1");
            observed.set_boot_id("boot");
            observed.set_session(4);
            observed.set_seq(2);
            observed.set_full(true);
            let mut instance = observed.init_instances(1).get(0);
            instance.set_key("web/0");
            instance.set_state("running");
            let mut assignment = master.get_assignment_request();
            assignment.get().set_worker_id("w1");
            let calls = (hello.send(), report.send(), assignment.send());
            let mut bytes = Vec::new();
            let mut read = [0; 4_096];
            while let Ok(Ok(count)) =
                tokio::time::timeout(Duration::from_millis(500), far.read(&mut read)).await
            {
                bytes.extend_from_slice(&read[..count]);
            }
            drop(calls);
            system.abort();
            std::fs::write(RECORDING, base64::encode(&bytes)).unwrap();
        })
        .await;
}

/// Case 24: a recording of an old worker does what it did.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_worker_is_served() {
    let running = Running::start().await;
    running.master.publish(publication(1, &["web"]), "").await.unwrap();
    let identity = running.identity(Role::Worker, "w1").await;
    let mut stream = open(&running.address, client_config(&identity).unwrap()).await;
    stream.write_all(&old_worker()).await.unwrap();
    stream.flush().await.unwrap();
    let (mut answers, mut buffer) = (Vec::new(), [0; 4_096]);
    while !String::from_utf8_lossy(&answers).contains("\"driver\":\"sandbox\"") {
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut buffer)).await;
        let count = read.expect("an answer").unwrap();
        assert!(count > 0, "the connection stays");
        answers.extend_from_slice(&buffer[..count]);
    }
    // What it reports and what it asks for are answered in any order.
    let mut heard = Vec::new();
    while heard.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        heard = running.master.heard.lock().unwrap().clone();
    }
    assert_eq!((heard.len(), heard[0].session, heard[0].seq), (1, 4, 2));
    running.stop().await;
}

/// An old master: it knows what a worker needs, and takes one group at a time. What came with it, it does not see.
struct OldMaster {
    major: u16,
    fleet: String,
    /// The groups it was given, and with which generation.
    taken: RefCell<Vec<(String, u64)>>,
}

impl OldMaster {
    fn new(major: u16, authority: &Authority) -> Self {
        Self { major, fleet: authority.fleet().to_owned(), taken: RefCell::default() }
    }
}

/// Speaks as `old` with the next that comes, until that goes.
async fn serve_as(old: Rc<OldMaster>, authority: &Arc<Authority>, listener: &TcpListener) {
    let acceptor = TlsAcceptor::from(Arc::new(authority.server_config().unwrap()));
    let (stream, _) = listener.accept().await.unwrap();
    let (input, output) = tokio::io::split(acceptor.accept(stream).await.unwrap());
    let old: master::Client = capnp_rpc::new_client_from_rc(old);
    let network = twoparty::VatNetwork::new(
        input.compat(),
        tokio_util::compat::TokioAsyncWriteCompatExt::compat_write(output),
        Side::Server,
        Default::default(),
    );
    drop(RpcSystem::new(Box::new(network), Some(old.client)).await);
}

impl master::Server for OldMaster {
    async fn hello(
        self: Rc<Self>,
        _params: master::HelloParams,
        mut results: master::HelloResults,
    ) -> capnp::Result<()> {
        let mut you = results.get().init_you();
        you.set_proto_major(self.major);
        you.set_fleet_id(&self.fleet);
        Ok(())
    }

    async fn publish_desired_state(
        self: Rc<Self>,
        params: master::PublishDesiredStateParams,
        mut results: master::PublishDesiredStateResults,
    ) -> capnp::Result<()> {
        let desired = params.get()?.get_desired()?;
        let (group, generation) = (desired.get_group()?.to_string()?, desired.get_generation());
        let mut verdict = results.get().init_verdict();
        // As if a VM of it were still another group's.
        let is_refused = group == "b" && self.taken.borrow().iter().all(|(taken, _)| taken != "c");
        verdict.set_result(if is_refused { Judged::Invalid } else { Judged::Accepted });
        verdict.set_highest(generation);
        self.taken.borrow_mut().push((group, generation));
        Ok(())
    }

    async fn get_assignment(
        self: Rc<Self>,
        _params: master::GetAssignmentParams,
        mut results: master::GetAssignmentResults,
    ) -> capnp::Result<()> {
        let mut assignment = results.get().init_assignment();
        assignment.set_generation(4);
        let mut specs = assignment.reborrow().init_specs(2);
        specs.set(
            0,
            br#"{"id":"web","resources":{"cpuMilli":1,"memMiB":1},"runtime":{"driver":"sandbox","later":1}}"#,
        );
        specs.set(1, b"\xff not JSON");
        let mut instances = assignment.init_instances(2);
        for at in 0..2 {
            let mut instance = instances.reborrow().get(at);
            instance.set_instance(format!("web/{at}"));
            instance.set_vm_hash("ab".repeat(32));
            instance.set_spec(at);
        }
        Ok(())
    }
}

/// Case 24: a new worker does without what an old master does not know, and leaves alone what it does not understand.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_master_is_done_without() {
    let authority = Authority::open(Arc::new(MemoryLedger::default()), "m1").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut publisher = authority.enrol(Role::Master, "m2").await.unwrap();
    publisher.masters = vec![address];
    LocalSet::new()
        .run_until(async {
            for major in [PROTO_MAJOR, PROTO_MAJOR + 1, PROTO_MAJOR + 2] {
                let caller = client(publisher.clone());
                let old = Rc::new(OldMaster::new(major, &authority));
                let serve = serve_as(old, &authority, &listener);
                let talk = async {
                    if major > PROTO_MAJOR + 1 {
                        assert_eq!(code(caller.hello().await), "version-unsupported");
                        return;
                    }
                    let report = PipelineReport { watcher: Default::default(), groups: vec![] };
                    assert_eq!(caller.report_pipeline(report).await, Ok(()));
                    assert_eq!(code(caller.enrolments().await), "unimplemented");
                    assert_eq!(code(caller.report(heartbeat("w1", 1, 1)).await), "unimplemented");
                    let name = WorkerName::parse("w1").unwrap();
                    let found = caller.assignment(&name, Applied::default(), Duration::ZERO).await;
                    let found = found.unwrap().unwrap();
                    assert_eq!((found.generation, found.specs.len(), found.instances.len()), (4, 0, 2));
                    assert!(found.instances.iter().all(|assigned| assigned.spec == u32::MAX));
                };
                tokio::select! {
                    () = talk => {}
                    () = async { serve.await; std::future::pending().await } => {}
                }
            }
        })
        .await;
}

/// Case 24, section 6: a master of before protocol 1.5 sees one group of those that go together. It is given them one after
/// the other, and each has its own verdict, whatever that of the others.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_master_takes_groups_one_after_the_other() {
    let authority = Authority::open(Arc::new(MemoryLedger::default()), "m1").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut identity = authority.enrol(Role::Publisher, "ci").await.unwrap();
    identity.masters = vec![listener.local_addr().unwrap().to_string()];
    let groups: Vec<Publication> = [("a", "web"), ("b", "db"), ("c", "cache")]
        .map(|(group, id)| Publication { group: GroupName::parse(group).unwrap(), ..publication(7, &[id]) })
        .into();
    LocalSet::new()
        .run_until(async {
            let old = Rc::new(OldMaster::new(PROTO_MAJOR, &authority));
            let publisher = client(identity);
            let talk = async {
                let verdicts = publisher.publish_together(groups.clone(), "ci").await.unwrap();
                let found: Vec<_> = verdicts.iter().map(|one| (one.outcome, one.highest)).collect();
                assert_eq!(found, [(Outcome::Accepted, 7), (Outcome::Invalid, 7), (Outcome::Accepted, 7)]);
            };
            tokio::select! {
                () = talk => {}
                () = async { serve_as(Rc::clone(&old), &authority, &listener).await; std::future::pending().await } => {}
            }
            let taken = old.taken.borrow().clone();
            assert_eq!(taken, [("a".to_owned(), 7), ("b".to_owned(), 7), ("c".to_owned(), 7)], "each once");
        })
        .await;
}
