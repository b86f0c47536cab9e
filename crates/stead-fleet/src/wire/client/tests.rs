//! A client whose masters are away, or say nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use stead_model::fleet::peer::Role;

use super::*;
use crate::identity::{Authority, MemoryLedger};

/// What a made-up master does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Refuse,
    Answer,
    Nothing,
}

/// Connects to made-up masters, and remembers to which.
#[derive(Debug)]
struct Fake {
    masters: Vec<(&'static str, Does)>,
    tried: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct FakeLink {
    does: Does,
    is_open: AtomicBool,
}

#[async_trait]
impl Transport for Fake {
    async fn connect(&self, address: &str, _mode: &Mode) -> Result<Arc<dyn Link>, CallError> {
        self.tried.lock().unwrap().push(address.to_owned());
        match self.masters.iter().find(|(known, _)| *known == address) {
            Some((_, does @ (Does::Answer | Does::Nothing))) => {
                Ok(Arc::new(FakeLink { does: *does, is_open: AtomicBool::new(true) }))
            }
            Some((_, Does::Refuse)) | None => Err(away("refused")),
        }
    }
}

#[async_trait]
impl Link for FakeLink {
    async fn call(&self, _request: Request) -> Result<Answer, CallError> {
        if self.does == Does::Nothing {
            std::future::pending::<()>().await;
        }
        Ok(Answer::Generation(7))
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }
}

async fn fake(masters: &[(&'static str, Does)]) -> (Arc<Fake>, Arc<Client>) {
    let authority = Authority::open(Arc::new(MemoryLedger::default()), "m1").await.unwrap();
    let mut identity = authority.enrol(Role::Publisher, "ci").await.unwrap();
    identity.masters = masters.iter().map(|(address, _)| (*address).to_owned()).collect();
    let transport = Arc::new(Fake { masters: masters.to_vec(), tried: Mutex::default() });
    let client = Client::new(Arc::clone(&transport) as Arc<dyn Transport>, identity).unwrap();
    (transport, client)
}

fn commit() -> CommitId {
    CommitId::parse(&"a".repeat(40)).unwrap()
}

#[tokio::test]
async fn masters_are_tried_in_turn() {
    let (transport, client) = fake(&[("a", Does::Refuse), ("b", Does::Refuse), ("c", Does::Answer)]).await;
    assert_eq!(client.reserve_generation(&commit(), "").await, Ok(7));
    assert_eq!(client.reserve_generation(&commit(), "").await, Ok(7));
    assert_eq!(*transport.tried.lock().unwrap(), ["a", "b", "c"], "the one that answers is kept");
}

#[tokio::test]
async fn a_call_tries_every_master_once_and_the_next_goes_on() {
    let (transport, client) = fake(&[("a", Does::Refuse), ("b", Does::Refuse)]).await;
    for _ in 0..2 {
        assert!(matches!(client.reserve_generation(&commit(), "").await, Err(CallError::Away(_))));
    }
    assert_eq!(*transport.tried.lock().unwrap(), ["a", "b", "a", "b"]);
    let (_, client) = fake(&[("a", Does::Answer)]).await;
    assert!(matches!(client.hello().await, Err(CallError::Away(_))), "an answer to something else is none");
}

/// Section 12: a call that misses its deadline ends the connection.
#[tokio::test]
async fn a_missed_deadline_ends_the_connection() {
    let (transport, client) = fake(&[("a", Does::Nothing), ("b", Does::Answer)]).await;
    let start = Instant::now();
    assert!(matches!(client.reserve_generation(&commit(), "").await, Err(CallError::Away(_))));
    assert!(start.elapsed() >= DEADLINE && start.elapsed() < DEADLINE * 5);
    assert_eq!(client.reserve_generation(&commit(), "").await, Ok(7));
    assert_eq!(*transport.tried.lock().unwrap(), ["a", "b"]);
}

#[test]
fn waits_grow_to_half_a_minute() {
    for (failures, most) in [(1, 250), (2, 500), (7, 16_000), (8, 30_000), (u32::MAX, 30_000)] {
        let waits: Vec<Duration> = (0..200).map(|_| jittered(failures)).collect();
        let longest = waits.iter().max().unwrap();
        assert!(*longest <= Duration::from_millis(most), "{failures}: {longest:?}");
        assert!(*longest > Duration::from_millis(most / 2), "{failures}: {longest:?}");
        assert!(*waits.iter().min().unwrap() < Duration::from_millis(most / 2), "{failures}: full jitter");
    }
}

#[test]
fn every_call_has_its_deadline() {
    let wait = Duration::from_secs(50);
    let worker = WorkerName::parse("w1").unwrap();
    let assignment = Request::Assignment { worker, applied: Applied::default(), wait };
    assert_eq!(assignment.deadline(), Duration::from_secs(60));
    assert_eq!(Request::Snapshot.deadline(), Duration::from_secs(10));
}

/// Sections 12 and 13: what nothing waits long enough, or is large enough, to show.
#[test]
fn times_and_sizes_are_those_of_the_contract() {
    use crate::wire::{IDLE, MAX_CONNECTIONS, MAX_MESSAGE, MAX_SPECS, PUBLISH_DEADLINE};
    let seconds = Duration::from_secs;
    assert_eq!((MAX_WAIT, IDLE, PUBLISH_DEADLINE), (seconds(55), seconds(15), seconds(60)));
    assert_eq!((MAX_MESSAGE, MAX_SPECS, MAX_CONNECTIONS), (67_108_864, 100_000, 20_000));
    assert_eq!(stead_engine::fleet::accept::MOST_SPECS, MAX_SPECS);
    assert_eq!((crate::master::LEASE, crate::master::RENEWAL), (seconds(6), seconds(2)));
    assert_eq!(crate::identity::LIFETIME, seconds(90 * 24 * 3_600));
}
