//! Who is admitted, renewed and revoked.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use stead_model::fleet::peer::Role;
use stead_model::token::join;

use super::*;
use crate::store::{Embedded, StoreLedger, begin_anew, keep_authority};

async fn authority() -> Arc<Authority> {
    Authority::open(Arc::new(MemoryLedger::default()), "m1").await.unwrap()
}

fn order(role: Role, name: Option<&str>) -> MintOrder {
    MintOrder::new(role, name.map(str::to_owned), Duration::from_secs(3_600))
}

fn code<T: std::fmt::Debug>(result: Result<T, IdentityError>) -> &'static str {
    result.unwrap_err().code()
}

/// Case 17: minted and accepted once; every other use has its own code.
#[tokio::test]
async fn a_token_admits_once() {
    let authority = authority().await;
    let token = authority.mint(&order(Role::Worker, Some("w1"))).await.unwrap();
    let request = Request::new("w1").unwrap();
    let admitted = authority.join(&token, request.der()).await.unwrap();
    assert_eq!(admitted.peer.to_string(), format!("stead://{}/worker/w1", authority.fleet()));
    let member = Member::read(&admitted.certificate).unwrap();
    assert_eq!(member.peer, admitted.peer);
    assert_eq!(member.not_after - member.not_before, 90 * 24 * 60 * 60 + 300);
    assert!(
        !member.wants_renewal(member.not_before)
            && member.wants_renewal(member.not_before + 45 * 86_400 + 150)
    );
    assert_eq!(code(authority.join(&token, request.der()).await), "join-used");

    let other = Authority::open(Arc::new(MemoryLedger::default()), "m1").await.unwrap();
    assert_eq!(code(other.join(&token, request.der()).await), "join-signature");
    assert_eq!(code(authority.join(&token[1..], request.der()).await), "join-malformed");
    let old = MintOrder { iat: Some(1_738_800_000), ..order(Role::Worker, Some("w2")) };
    let old = authority.mint(&old).await.unwrap();
    assert_eq!(code(authority.join(&old, request.der()).await), "join-expired");
    let named = authority.mint(&order(Role::Worker, Some("w2"))).await.unwrap();
    assert_eq!(code(authority.join(&named, request.der()).await), "join-name");
    assert!(
        authority.join(&named, Request::new("w2").unwrap().der()).await.is_ok(),
        "a refusal uses nothing up"
    );
}

#[tokio::test]
async fn two_joins_at_once_admit_one() {
    let authority = authority().await;
    let token = authority.mint(&order(Role::Worker, Some("w1"))).await.unwrap();
    let (one, two) = (Request::new("w1").unwrap(), Request::new("w1").unwrap());
    let (first, second) = tokio::join!(authority.join(&token, one.der()), authority.join(&token, two.der()));
    assert!(first.is_ok() != second.is_ok());
}

#[tokio::test]
async fn an_unnamed_token_takes_no_name_that_is_taken() {
    let authority = authority().await;
    let join = async |name: &str| {
        let token = authority.mint(&order(Role::Worker, None)).await.unwrap();
        authority.join(&token, Request::new(name).unwrap().der()).await
    };
    assert_eq!(join("w1").await.unwrap().peer.name, "w1");
    assert_eq!(code(join("w1").await), "join-name");
    assert_eq!(code(join("W 1").await), "join-name");
    authority.revoke("w1").await.unwrap();
    assert!(join("w1").await.is_ok(), "what is revoked is free");
}

#[tokio::test]
async fn only_the_key_of_a_request_counts() {
    let authority = authority().await;
    let token = authority.mint(&order(Role::Worker, Some("w1"))).await.unwrap();
    let admitted = authority.join(&token, Request::new("w1").unwrap().der()).await.unwrap();
    let member = Member::read(&admitted.certificate).unwrap();
    let renewed = authority.renew(&member, Request::new("boss").unwrap().der()).await.unwrap();
    let next = Member::read(&renewed.certificate).unwrap();
    assert_eq!((next.peer, next.jti), (member.peer.clone(), member.jti.clone()));
    assert_ne!(next.serial, member.serial);
    for at in [0, 40, 200] {
        let mut csr = Request::new("w1").unwrap().der().to_vec();
        csr[at] ^= 1;
        assert_eq!(code(authority.renew(&member, &csr).await), "bad-request", "{at}");
    }
    assert_eq!(code(authority.renew(&member, &vec![0; 1 << 20]).await), "bad-request");
}

/// Case 17: after revocation neither token nor certificate counts, whatever was renewed meanwhile.
#[tokio::test]
async fn revocation_ends_token_and_certificates() {
    let authority = authority().await;
    let token = authority.mint(&order(Role::Worker, Some("w1"))).await.unwrap();
    let admitted = authority.join(&token, Request::new("w1").unwrap().der()).await.unwrap();
    let member = Member::read(&admitted.certificate).unwrap();
    let next = authority.renew(&member, Request::new("w1").unwrap().der()).await.unwrap();
    let next = Member::read(&next.certificate).unwrap();
    let unused =
        authority.mint(&MintOrder { jti: Some("unused".to_owned()), ..order(Role::Worker, None) }).await;
    assert_eq!(authority.revoke("w1").await.unwrap().len(), 1);
    assert!(authority.is_revoked(&member.serial) && authority.is_revoked(&next.serial));
    assert_eq!(code(authority.renew(&next, Request::new("w1").unwrap().der()).await), "revoked");
    authority.revoke("unused").await.unwrap();
    assert_eq!(code(authority.join(&unused.unwrap(), Request::new("w2").unwrap().der()).await), "join-used");
    assert_eq!(code(authority.revoke("nobody").await), "unknown");
    let listed = authority.enrolments().await.unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|record| record.revoked));
}

#[tokio::test]
async fn masters_of_one_ledger_are_one_authority() {
    let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::default());
    let one = Authority::open(Arc::clone(&ledger), "m1").await.unwrap();
    let two = Authority::open(ledger, "m2").await.unwrap();
    assert_eq!((one.fleet(), one.pin()), (two.fleet(), two.pin()));
    let token = one.mint(&order(Role::Publisher, Some("ci"))).await.unwrap();
    assert_eq!(join::inspect(&token).unwrap().ca, two.pin());
    assert!(two.join(&token, Request::new("ci").unwrap().der()).await.is_ok());
    one.revoke("ci").await.unwrap();
    two.refresh().await.unwrap();
    let serial = &two.enrolments().await.unwrap()[0].certificates[0].serial;
    assert!(two.is_revoked(serial));
    assert!(code(Authority::open(Arc::new(MemoryLedger::default()), "M 1").await) == "bad-name");
}

#[tokio::test]
async fn orders_that_make_no_sense_are_refused() {
    let authority = authority().await;
    for bad in [
        MintOrder { lifetime: Duration::ZERO, ..order(Role::Worker, None) },
        MintOrder { lifetime: Duration::from_secs(1 << 40), ..order(Role::Worker, None) },
        MintOrder { exp: Some(1), ..order(Role::Worker, None) },
        MintOrder { exp: Some(stead_model::token::LATEST), ..order(Role::Worker, None) },
        MintOrder { jti: Some("a/b".to_owned()), ..order(Role::Worker, None) },
        order(Role::Worker, Some("W 1")),
    ] {
        assert_eq!(code(authority.mint(&bad).await), "bad-token", "{bad:?}");
    }
    let named = MintOrder { jti: Some("one".to_owned()), ..order(Role::Worker, None) };
    authority.mint(&named).await.unwrap();
    assert_eq!(code(authority.mint(&named).await), "bad-token");
}

#[tokio::test]
async fn an_identity_is_kept_whole_and_private() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("identity");
    assert!(Identity::load(&place).unwrap().is_none());
    let authority = authority().await;
    let mut identity = authority.enrol(Role::Worker, "w1").await.unwrap();
    identity.masters = vec!["m1:44444".to_owned()];
    identity.save(&place).unwrap();
    identity.save(&place).unwrap();
    let again = Identity::load(&place).unwrap().unwrap();
    assert_eq!((again.peer(), &again.masters), (identity.peer(), &identity.masters));
    assert!(client_config(&again).is_ok());
    let file = place.join("identity.json");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let shown = format!("{again:?} {authority:?}");
    assert!(!shown.contains("key"), "{shown}");
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(code(Identity::load(&place)), "identity");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_in_a_store_outlives_its_master_and_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("master.db");
    let store = Arc::new(Embedded::open(&file).unwrap());
    let ledger = || Arc::new(StoreLedger::new(Arc::clone(&store) as _));
    let one = Authority::open(ledger(), "m1").await.unwrap();
    let two = Authority::open(ledger(), "m2").await.unwrap();
    assert_eq!((one.fleet(), one.pin()), (two.fleet(), two.pin()));
    let token = one.mint(&order(Role::Worker, Some("w1"))).await.unwrap();
    let admitted = two.join(&token, Request::new("w1").unwrap().der()).await.unwrap();
    assert_eq!(code(one.join(&token, Request::new("w1").unwrap().der()).await), "join-used");
    let member = Member::read(&admitted.certificate).unwrap();
    let heard = async {
        let mut revocations = two.revocations();
        while !two.is_revoked(&member.serial) {
            revocations.changed().await.unwrap();
        }
    };
    let revoke = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        one.revoke(&member.jti).await.unwrap();
        std::future::pending::<()>().await;
    };
    let told = async {
        tokio::select! {
            () = heard => {}
            () = two.follow() => {}
            () = revoke => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("the other master is told");
    let (fleet, pin) = (one.fleet().to_owned(), one.pin());
    drop((one, two, store));
    // The store lets go of its file when its thread has ended.
    let mut again = Embedded::open(&file);
    for _ in 0..1200 {
        if again.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        again = Embedded::open(&file);
    }
    let again = Arc::new(StoreLedger::new(Arc::new(again.unwrap())));
    let again = Authority::open(again, "m1").await.unwrap();
    assert_eq!((again.fleet(), again.pin()), (fleet.as_str(), pin));
    assert!(again.is_revoked(&member.serial));
}

/// F9: whoever was admitted comes back to a fleet whose store is gone, whoever was revoked does not; the copy may have been
/// cut off in its last line.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_gone_takes_nobodys_certificate_along() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("master.db");
    let store: Arc<dyn crate::store::FleetStore> = Arc::new(Embedded::open(&file).unwrap());
    let ledger = StoreLedger::copied(Arc::clone(&store), &file).await.unwrap();
    let authority = Authority::open(Arc::new(ledger), "m1").await.unwrap();
    keep_authority(&*store, &file).await.unwrap();
    let mut members = Vec::new();
    for name in ["w1", "w2"] {
        let identity = authority.enrol(Role::Worker, name).await.unwrap();
        members.push(identity.member().clone());
    }
    authority.revoke("w2").await.unwrap();
    let unused = authority.mint(&order(Role::Worker, Some("w3"))).await.unwrap();
    let copy = dir.path().join("master.db.enrolments");
    assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    drop((authority, store));
    for gone in ["master.db", "master.db-wal", "master.db-shm"] {
        std::fs::remove_file(dir.path().join(gone)).ok();
    }
    let mut cut_off = std::fs::read(&copy).unwrap();
    cut_off.extend_from_slice(b"{\"jti\":\"half a rec");
    std::fs::write(&copy, cut_off).unwrap();

    let mut begun = begin_anew(&file).await;
    for _ in 0..1200 {
        // The store lets go of its file when its thread has ended.
        if begun.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        begun = begin_anew(&file).await;
    }
    let (store, names) = begun.unwrap();
    assert_eq!(names, ["w1"]);
    let ledger = StoreLedger::copied(Arc::new(store), &file).await.unwrap();
    let again = Authority::open(Arc::new(ledger), "m1").await.unwrap();
    let [first, second] = &members[..] else { panic!("{members:?}") };
    assert!(again.knows(first) && !again.is_revoked(&first.serial));
    assert!(again.is_revoked(&second.serial));
    assert!(
        again.join(&unused, Request::new("w3").unwrap().der()).await.is_ok(),
        "a token is good once, still"
    );
    assert_eq!(code(again.join(&unused, Request::new("w3").unwrap().der()).await), "join-used");
}

/// Section 12: a master's own certificate is another one once half of its life is over, and not before.
#[tokio::test]
async fn a_master_renews_its_own_certificate_at_half_of_its_life() {
    let authority = authority().await;
    let shown = || authority.own_key().cert.first().unwrap().clone();
    let first = shown();
    let member = Member::read(&first).unwrap();
    let half = member.not_before + (member.not_after - member.not_before) / 2;
    authority.refresh_at(half - 1).await.unwrap();
    assert_eq!(shown(), first);
    authority.refresh_at(half).await.unwrap();
    let second = Member::read(&shown()).unwrap();
    assert!(second.serial != member.serial && second.peer == member.peer);
}
