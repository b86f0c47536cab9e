//! Who is let in, and what they may do there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use stead_fleet::api::{Applied, CallError, HoldOrder, Master, StatusFilter};
use stead_fleet::events::Events;
use stead_fleet::identity::{Founding, Identity, Ledger, MemoryLedger, MintOrder};
use stead_fleet::wire::{self, Carrier};
use stead_model::WorkerName;
use stead_model::fleet::InstanceKey;
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::Heartbeat;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::small::{Running, client, code, commit, heartbeat, publication};

fn order(role: Role, name: Option<&str>) -> MintOrder {
    MintOrder::new(role, name.map(str::to_owned), Duration::from_secs(3_600))
}

/// Case 17: accepted once; used again, expired, wrong name, flipped byte, wrong authority: distinct codes.
#[tokio::test(flavor = "multi_thread")]
async fn a_joiner_becomes_a_member_once() {
    let running = Running::start().await;
    let masters = ["127.0.0.1:1".to_owned(), running.address.clone()];
    let carrier = Carrier::start().unwrap();
    let mint = async |order| running.authority.mint(&order).await.unwrap();
    let join = async |token: &str, name: &str| wire::join(&*carrier, &masters, token, name).await;

    let token = mint(order(Role::Worker, Some("w1"))).await;
    let identity = join(&token, "w1").await.unwrap();
    assert_eq!(identity.peer().to_string(), format!("stead://{}/worker/w1", running.authority.fleet()));
    let dir = tempfile::tempdir().unwrap();
    identity.save(dir.path()).unwrap();
    let worker = client(Identity::load(dir.path()).unwrap().unwrap());
    assert!(worker.report(heartbeat("w1", 1, 1)).await.is_ok());

    assert_eq!(code(join(&token, "w1").await), "join-used");
    let named = mint(order(Role::Worker, Some("w2"))).await;
    assert_eq!(code(join(&named, "w3").await), "join-name");
    let free = mint(order(Role::Worker, None)).await;
    assert_eq!(code(join(&free, "w1").await), "join-name");
    let old = mint(MintOrder { iat: Some(1_738_800_000), ..order(Role::Worker, None) }).await;
    assert_eq!(code(join(&old, "w4").await), "join-expired");
    let mut flipped = named.clone().into_bytes();
    let last = flipped.len() - 2;
    // Another letter, whichever is there: some bits would make it no letter of a token at all.
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    assert_eq!(code(join(&String::from_utf8(flipped).unwrap(), "w2").await), "join-signature");
    assert_eq!(code(join("sj1.x", "w2").await), "join-malformed");

    let other = Running::start().await;
    let elsewhere = [other.address.clone()];
    let pinned = wire::join(&*carrier, &elsewhere, &named, "w2").await;
    assert_eq!(code(pinned), "join-ca");
    assert!(join(&named, "w2").await.is_ok(), "it was not sent elsewhere, and not used up");
    other.stop().await;
    let nobody = wire::join(&*carrier, &["127.0.0.1:1".to_owned()], &named, "w2").await;
    assert!(matches!(nobody, Err(CallError::Away(_))));
    running.stop().await;
}

/// Case 17, section 12: a certificate speaks for its name, and a role may do what the table says.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_for_its_own_name_and_role() {
    let running = Running::start().await;
    let (name, other) = (WorkerName::parse("w1").unwrap(), WorkerName::parse("w2").unwrap());
    let log = tempfile::tempdir().unwrap();
    running.authority.log_to(Arc::new(Events::open(log.path()).unwrap()));
    let worker = running.client(Role::Worker, "w1").await;
    assert_eq!(code(worker.report(heartbeat("w2", 1, 1)).await), "forbidden");
    let written = std::fs::read_to_string(log.path().join("events-001.jsonl")).unwrap();
    assert!(written.contains("\"ev\":\"refused\"") && written.contains("/worker/w1"), "{written}");
    assert_eq!(code(worker.assignment(&other, Applied::default(), Duration::ZERO).await), "forbidden");
    let web = InstanceKey::parse("web/0").unwrap();
    let hold = HoldOrder::Release { id: "x".to_owned() };
    for (role, allowed) in [
        (Role::Observer, "status explain snapshot"),
        (Role::Worker, "assignment report renew"),
        (Role::Publisher, "reserve publish status explain snapshot renew"),
        (Role::Operator, "status explain snapshot hold mint list revoke"),
        (
            Role::Master,
            "reserve publish assignment report status explain snapshot hold renew mint list revoke",
        ),
    ] {
        let caller = running.client(role, "w1").await;
        let refused = |call: &str, result: Option<CallError>| {
            let is_allowed = allowed.split(' ').any(|word| word == call);
            match result {
                Some(CallError::Refused { code, message }) if code == "forbidden" => {
                    assert!(!is_allowed, "{role} {call}");
                    assert!(message.contains(role.word()), "{message}");
                }
                Some(CallError::Refused { .. }) | None => assert!(is_allowed, "{role} {call}"),
                Some(error @ (CallError::Away(_) | CallError::NotLeader { .. })) => {
                    panic!("{role} {call}: {error}")
                }
            }
        };
        refused("reserve", caller.reserve_generation(&commit('a'), "").await.err());
        refused("publish", caller.publish(publication(1, &["web"]), "").await.err());
        refused("assignment", caller.assignment(&name, Applied::default(), Duration::ZERO).await.err());
        refused("report", caller.report(heartbeat("w1", 1, 1)).await.err());
        refused("status", caller.status(0, Duration::ZERO, &StatusFilter::default()).await.err());
        refused("explain", caller.explain(&web).await.err());
        refused("snapshot", caller.snapshot().await.err());
        refused("hold", caller.set_hold(hold.clone(), "").await.err());
        refused("renew", caller.renew().await.err());
        let lifetime = Duration::from_secs(60);
        refused("mint", caller.mint_join(MintOrder::new(Role::Observer, None, lifetime)).await.err());
        refused("list", caller.enrolments().await.err());
        refused("revoke", caller.revoke("nobody").await.err());
    }
    let operator = running.client(Role::Operator, "ann").await;
    let lifetime = Duration::from_secs(60);
    assert_eq!(code(operator.mint_join(MintOrder::new(Role::Master, None, lifetime)).await), "forbidden");
    let token =
        operator.mint_join(MintOrder::new(Role::Worker, Some("w9".to_owned()), lifetime)).await.unwrap();
    assert!(
        wire::join(&*Carrier::start().unwrap(), std::slice::from_ref(&running.address), &token, "w9")
            .await
            .is_ok()
    );
    running.stop().await;
}

/// Case 17: a revoked certificate is cut off where it is connected, and refused when it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn revocation_cuts_a_live_connection() {
    let running = Running::start().await;
    let worker = running.client(Role::Worker, "w1").await;
    let name = WorkerName::parse("w1").unwrap();
    let operator = running.client(Role::Operator, "ann").await;
    assert!(worker.report(heartbeat("w1", 1, 1)).await.is_ok());
    let start = Instant::now();
    let waiting = worker.assignment(&name, Applied::default(), Duration::from_secs(50));
    let revoke = async {
        while running.master.assignment.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        operator.revoke("w1").await.unwrap()
    };
    let (cut, revoked) = tokio::join!(waiting, revoke);
    assert!(matches!(cut, Err(CallError::Away(_))), "{cut:?}");
    assert!(start.elapsed() < Duration::from_secs(45), "not at the end of the wait");
    assert_eq!((revoked.len(), revoked[0].name.as_deref()), (1, Some("w1")));
    assert_eq!(code(worker.report(heartbeat("w1", 1, 2)).await), "revoked");
    let listed = operator.enrolments().await.unwrap();
    assert!(listed.iter().any(|record| record.name.as_deref() == Some("w1") && record.revoked));
    assert_eq!(running.master.heard.lock().unwrap().len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_next() {
    let running = Running::start().await;
    let worker = running.client(Role::Worker, "w1").await;
    let before = worker.identity().member().serial.clone();
    let renewed = worker.renew().await.unwrap();
    assert_ne!(renewed.member().serial, before);
    let again = client(Identity::clone(&renewed));
    assert!(again.report(heartbeat("w1", 1, 1)).await.is_ok());
    running.stop().await;
}

/// Section 12: of two live processes with one identity the older is told so and changes nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_processes_is_replaced() {
    let running = Running::start().await;
    let identity = running.identity(Role::Worker, "w1").await;
    let (older, newer) = (client(identity.clone()), client(identity));
    let name = WorkerName::parse("w1").unwrap();
    assert!(older.report(heartbeat("w1", 1, 1)).await.is_ok());
    let waiting = older.assignment(&name, Applied::default(), Duration::from_secs(50));
    let speak = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        newer.report(heartbeat("w1", 2, 1)).await.unwrap();
    };
    let (told, ()) = tokio::join!(waiting, speak);
    assert_eq!(code(told), "replaced");
    assert_eq!(code(older.report(heartbeat("w1", 1, 2)).await), "replaced");
    assert_eq!(code(older.assignment(&name, Applied::default(), Duration::ZERO).await), "replaced");
    assert!(newer.report(heartbeat("w1", 2, 2)).await.is_ok());
    let heard: Vec<(u64, u64)> =
        running.master.heard.lock().unwrap().iter().map(|beat| (beat.session, beat.seq)).collect();
    assert_eq!(heard, [(1, 1), (2, 1), (2, 2)]);
    running.stop().await;
}

/// Section 12: a copy of a worker's files counts on from the same number, and is refused all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_with_the_same_number_is_replaced() {
    let running = Running::start().await;
    let identity = running.identity(Role::Worker, "w1").await;
    let (first, copy) = (client(identity.clone()), client(identity));
    let beat = |process: &str, seq| Heartbeat { process: process.to_owned(), ..heartbeat("w1", 4, seq) };
    assert!(first.report(beat("one", 1)).await.is_ok());
    assert_eq!(code(copy.report(beat("two", 1)).await), "replaced");
    assert!(first.report(beat("one", 2)).await.is_ok());
    assert_eq!(
        code(copy.report(Heartbeat { boot_id: "other".to_owned(), ..beat("one", 9) }).await),
        "replaced"
    );
    running.stop().await;
}

/// Sections 12, 13: after records were lost nobody knows whom a certificate or token was given to: neither counts.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_wrote_down_does_not_count() {
    let ledger = Arc::new(MemoryLedger::default());
    let running = Running::with(Arc::clone(&ledger) as Arc<dyn Ledger>, "127.0.0.1:0").await;
    let worker = running.client(Role::Worker, "w1").await;
    let token = running.authority.mint(&order(Role::Worker, Some("w2"))).await.unwrap();
    assert!(worker.report(heartbeat("w1", 1, 1)).await.is_ok());
    let address = running.address.clone();
    running.stop().await;
    // Another ledger with the same authority, and nothing else.
    let nobody = format!(
        r#"{{"fleet":"{}","certificate":"","key":"","join_key":"{}"}}"#,
        "0".repeat(16),
        "cd".repeat(32)
    );
    let founding = ledger.founding(Founding::from_json(&nobody).unwrap()).await.unwrap();
    let rest = MemoryLedger::default();
    rest.founding(founding).await.unwrap();
    let running = Running::with(Arc::new(rest), &address).await;
    let told = worker.report(heartbeat("w1", 1, 2)).await;
    assert!(matches!(told, Err(CallError::Away(_))), "{told:?}");
    let carrier = Carrier::start().unwrap();
    assert_eq!(code(wire::join(&*carrier, &[address], &token, "w2").await), "join-used");
    running.stop().await;
}

/// Section 12: a certificate is renewed once half of its life is over, kept, and shown from then on; without a master the
/// one there is stays, and the next look renews it.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_at_half_of_their_life() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Arc::new(MemoryLedger::default());
    let running = Running::with(Arc::clone(&ledger) as Arc<dyn Ledger>, "127.0.0.1:0").await;
    let worker = running.client(Role::Worker, "w1").await;
    let old = worker.identity().member().clone();
    let half = old.not_before + (old.not_after - old.not_before) / 2;
    assert!(!worker.renew_when_due(dir.path(), half - 1).await);
    assert_eq!(worker.identity().member().serial, old.serial);
    assert!(Identity::load(dir.path()).unwrap().is_none(), "nothing was asked for");

    let address = running.address.clone();
    running.stop().await;
    assert!(!worker.renew_when_due(dir.path(), half).await, "nobody is there");
    assert_eq!(worker.identity().member().serial, old.serial);
    let running = Running::with(ledger, &address).await;
    assert!(worker.renew_when_due(dir.path(), half).await);
    let new = Identity::load(dir.path()).unwrap().unwrap();
    assert!(new.member().serial != old.serial && new.member().peer == old.peer);
    assert_eq!(worker.identity().member().serial, new.member().serial);
    assert!(!worker.renew_when_due(dir.path(), half - 1).await, "it is a young one again");
    assert!(worker.report(heartbeat("w1", 1, 1)).await.is_ok());
    let issued = running.authority.enrolments().await.unwrap();
    let issued = issued.iter().find(|one| one.name.as_deref() == Some("w1")).unwrap();
    assert_eq!(issued.certificates.len(), 2, "both hold: whoever is between the two is not turned away");
    running.stop().await;
}

/// Section 12: who was revoked and joins again begins to count anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_reinstalled_worker_comes_back() {
    let running = Running::start().await;
    let before = running.client(Role::Worker, "w1").await;
    assert!(before.report(heartbeat("w1", 3, 1)).await.is_ok());
    running.authority.revoke("w1").await.unwrap();
    let after = running.client(Role::Worker, "w1").await;
    assert!(after.report(heartbeat("w1", 1, 1)).await.is_ok());
    assert_eq!(code(before.report(heartbeat("w1", 4, 1)).await), "revoked");
    running.stop().await;
}

/// A member of one fleet is nobody in another, whichever side looks.
#[tokio::test(flavor = "multi_thread")]
async fn another_fleets_certificate_is_refused() {
    let (one, two) = (Running::start().await, Running::start().await);
    let mut identity = one.identity(Role::Worker, "w1").await;
    identity.masters = vec![two.address.clone()];
    let stranger = client(identity).report(heartbeat("w1", 1, 1)).await;
    assert!(matches!(stranger, Err(CallError::Away(_))), "{stranger:?}");
    assert!(two.master.heard.lock().unwrap().is_empty());
    one.stop().await;
    two.stop().await;
}

/// Case 17: TLS 1.2 is not spoken.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_tls_is_refused() {
    let running = Running::start().await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(running.authority.certificate().to_vec().into()).unwrap();
    for (version, is_refused) in [(&rustls::version::TLS12, true), (&rustls::version::TLS13, false)] {
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let stream = TcpStream::connect(&running.address).await.unwrap();
        let name = ServerName::try_from("master.stead").unwrap();
        let error = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap_err();
        let error = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).unwrap().clone();
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion);
        // TLS 1.3 gets as far as the certificate, which has no name of a host.
        assert_eq!(error == alert, is_refused, "{error:?}");
    }
    running.stop().await;
}
