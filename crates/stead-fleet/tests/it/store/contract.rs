//! What every store does.

use super::*;

fn done(committed: Committed) -> i64 {
    match committed {
        Committed::Done(revision) => revision,
        Committed::Refused => panic!("it was refused"),
    }
}

async fn put(store: &dyn FleetStore, key: &str, value: &str) -> i64 {
    done(store.txn(Txn::default().put(key, value)).await.unwrap())
}

async fn value(store: &dyn FleetStore, key: &str) -> Option<String> {
    store.get(key).await.unwrap().map(|entry| String::from_utf8(entry.value).unwrap())
}

pub(super) async fn run(store: Arc<dyn FleetStore>) {
    keys_and_ranges(&*store).await;
    transactions_compare(&*store).await;
    large_transactions_are_whole(&*store).await;
    watches_tell_everything_in_order(&store).await;
    leases_end(&*store).await;
    compaction_forgets(&*store).await;
    what_does_not_fit_is_refused(&*store).await;
    writers_do_not_overwrite_each_other(&store).await;
    snapshots_are_files(&*store).await;
}

async fn keys_and_ranges(store: &dyn FleetStore) {
    assert!(store.get("a/1").await.unwrap().is_none());
    let first = put(store, "a/1", "one").await;
    let second = put(store, "a/2", "two").await;
    put(store, "b/1", "other").await;
    assert!(second > first);
    let entry = store.get("a/1").await.unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.revision), (&b"one"[..], first));
    let range = store.range("a/", None).await.unwrap();
    let keys: Vec<&str> = range.entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["a/1", "a/2"]);
    assert!(range.revision > second);
    // As it was.
    let third = done(store.txn(Txn::default().put("a/1", "new").delete("a/2")).await.unwrap());
    let then = store.range("a/", Some(second)).await.unwrap();
    let values: Vec<&[u8]> = then.entries.iter().map(|entry| entry.value.as_slice()).collect();
    assert_eq!((values, then.revision), (vec![&b"one"[..], b"two"], second));
    let now = store.range("a/", Some(third)).await.unwrap();
    assert_eq!(now.entries.len(), 1);
    assert_eq!(value(store, "a/1").await.as_deref(), Some("new"));
    assert_eq!(store.range("none/", None).await.unwrap().entries, []);
    assert_eq!(store.range("", None).await.unwrap().entries.len(), 2);
}

async fn transactions_compare(store: &dyn FleetStore) {
    let revision = put(store, "c/fence", "x").await;
    let refused = store.txn(Txn::default().when("c/fence", revision - 1).put("c/a", "1")).await.unwrap();
    assert_eq!(refused, Committed::Refused);
    assert_eq!(value(store, "c/a").await, None);
    done(store.txn(Txn::default().when("c/fence", revision).when("c/a", 0).put("c/a", "1")).await.unwrap());
    // A key that is there is not absent, and one that was rewritten is not what it was.
    let again = store.txn(Txn::default().when("c/a", 0).put("c/a", "2")).await.unwrap();
    assert_eq!(again, Committed::Refused);
    put(store, "c/fence", "x").await;
    let late = Txn::default().when("c/fence", revision).put("c/a", "3").delete("c/fence");
    assert_eq!(store.txn(late).await.unwrap(), Committed::Refused);
    assert_eq!(value(store, "c/a").await.as_deref(), Some("1"));
    // What is not there can be removed; and then it is absent again.
    done(store.txn(Txn::default().delete("c/a").delete("c/none")).await.unwrap());
    done(store.txn(Txn::default().when("c/a", 0).put("c/a", "4")).await.unwrap());
}

/// Returns a transaction larger than one of etcd's: many keys, and much in them.
fn large(prefix: &str, count: usize, value: &str) -> Txn {
    let padding = "x".repeat(2_000);
    (0..count)
        .fold(Txn::default(), |txn, at| txn.put(&format!("{prefix}{at:05}"), format!("{value} {padding}")))
}

async fn large_transactions_are_whole(store: &dyn FleetStore) {
    let fence = put(store, "d/fence", "x").await;
    let refused = large("d/many/", 2_000, "never").when("d/fence", fence - 1);
    assert_eq!(store.txn(refused).await.unwrap(), Committed::Refused);
    assert_eq!(store.range("d/many/", None).await.unwrap().entries, []);
    done(store.txn(large("d/many/", 2_000, "a").when("d/fence", fence)).await.unwrap());
    let range = store.range("d/many/", None).await.unwrap();
    assert_eq!(range.entries.len(), 2_000);
    assert!(range.entries.is_sorted_by(|a, b| a.key < b.key));
    // A part goes, a part is written again, and one large value is there.
    let mut txn = large("d/many/", 1_000, "b").put("d/value", "v".repeat(1 << 20));
    txn.deletes = (1_000..2_000).map(|at| format!("d/many/{at:05}")).collect();
    done(store.txn(txn).await.unwrap());
    let range = store.range("d/many/", None).await.unwrap();
    assert_eq!(range.entries.len(), 1_000);
    assert!(range.entries.iter().all(|entry| entry.value.starts_with(b"b ")));
    assert_eq!(value(store, "d/value").await.unwrap().len(), 1 << 20);
}

async fn watches_tell_everything_in_order(store: &Arc<dyn FleetStore>) {
    let first = put(&**store, "w/a", "1").await;
    put(&**store, "v/a", "1").await;
    let mut watch = store.watch("w/", first).await.unwrap();
    let told = next(&mut watch).await;
    assert_eq!((told.len(), told[0].key(), told[0].revision()), (1, "w/a", first));
    // What comes while nobody asks is not lost, and one transaction is told of at once.
    done(store.txn(Txn::default().put("w/b", "1").put("w/c", "1").delete("w/a")).await.unwrap());
    put(&**store, "v/a", "2").await;
    put(&**store, "w/b", "2").await;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let batch = next(&mut watch).await;
        seen.extend(batch.iter().map(|change| match change {
            Change::Put(entry) => format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)),
            Change::Deleted { key, .. } => format!("-{key}"),
        }));
    }
    assert_eq!(seen[..3].iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    assert!(seen[..3].contains(&"-w/a".to_owned()) && seen[..3].contains(&"w/c=1".to_owned()));
    assert_eq!(seen[3], "w/b=2");
    // A waiting watch hears at once.
    let writer = Arc::clone(store);
    let (told, ()) = tokio::join!(next(&mut watch), async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        put(&*writer, "w/d", "1").await;
    });
    assert_eq!(told[0].key(), "w/d");
    // A large transaction is told of as one.
    done(store.txn(large("w/many/", 500, "a")).await.unwrap());
    assert_eq!(next(&mut watch).await.len(), 500);
}

async fn leases_end(store: &dyn FleetStore) {
    let kept = store.lease(Duration::from_secs(6)).await.unwrap();
    let left = store.lease(Duration::from_secs(6)).await.unwrap();
    done(
        store.txn(Txn::default().put_with("l/kept", "1", kept).put_with("l/left", "1", left)).await.unwrap(),
    );
    let from = store.range("", None).await.unwrap().revision + 1;
    let mut watch = store.watch("l/", from).await.unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let gone = loop {
        assert!(std::time::Instant::now() < end, "a lease that nobody keeps ends");
        store.keepalive(kept).await.unwrap();
        if let Ok(told) = tokio::time::timeout(Duration::from_millis(500), watch.next()).await {
            break told.unwrap();
        }
    };
    assert!(matches!(&gone[..], [Change::Deleted { key, .. }] if key == "l/left"), "{gone:?}");
    assert_eq!(value(store, "l/left").await, None);
    assert_eq!(value(store, "l/kept").await.as_deref(), Some("1"));
    assert!(matches!(store.keepalive(left).await, Err(StoreError::LeaseEnded)));
    let late = store.txn(Txn::default().put_with("l/late", "1", left)).await;
    assert!(matches!(late, Err(StoreError::LeaseEnded)), "{late:?}");
    store.revoke(kept).await.unwrap();
    assert_eq!(value(store, "l/kept").await, None);
    // A key that was written again without its lease stays.
    let lease = store.lease(Duration::from_secs(60)).await.unwrap();
    done(store.txn(Txn::default().put_with("l/again", "1", lease)).await.unwrap());
    put(store, "l/again", "2").await;
    store.revoke(lease).await.unwrap();
    assert_eq!(value(store, "l/again").await.as_deref(), Some("2"));
}

async fn compaction_forgets(store: &dyn FleetStore) {
    let first = put(store, "k/a", "1").await;
    put(store, "k/a", "2").await;
    let last = put(store, "k/a", "3").await;
    store.compact(last).await.unwrap();
    assert!(matches!(store.range("k/", Some(first)).await, Err(StoreError::Compacted)));
    assert_eq!(store.range("k/", Some(last)).await.unwrap().entries.len(), 1);
    assert_eq!(value(store, "k/a").await.as_deref(), Some("3"));
    let mut watch = store.watch("k/", first).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.unwrap();
    assert!(matches!(told, Err(StoreError::Compacted)), "{told:?}");
    store.compact(last).await.unwrap();
}

async fn what_does_not_fit_is_refused(store: &dyn FleetStore) {
    for txn in [
        Txn::default().put("", "1"),
        Txn::default().put("a b", "1"),
        Txn::default().put("käse", "1"),
        Txn::default().put(&"k".repeat(513), "1"),
        Txn::default().put("big", vec![0; (1 << 20) + 1]),
        Txn::default().put("twice", "1").put("twice", "2"),
        Txn::default().put("both", "1").delete("both"),
    ] {
        assert!(matches!(store.txn(txn).await, Err(StoreError::Unfit { .. })));
    }
}

/// Many who raise one number by comparing lose none.
async fn writers_do_not_overwrite_each_other(store: &Arc<dyn FleetStore>) {
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = Arc::clone(store);
        writers.spawn(async move {
            for _ in 0..10 {
                loop {
                    let entry = store.get("n/count").await.unwrap();
                    let (count, revision) = entry.map_or((0, 0), |entry| {
                        (String::from_utf8(entry.value).unwrap().parse::<u32>().unwrap(), entry.revision)
                    });
                    let txn =
                        Txn::default().when("n/count", revision).put("n/count", (count + 1).to_string());
                    if store.txn(txn).await.unwrap() != Committed::Refused {
                        break;
                    }
                }
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    assert_eq!(value(&**store, "n/count").await.as_deref(), Some("40"));
}

async fn snapshots_are_files(store: &dyn FleetStore) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("snapshot");
    store.snapshot(&file).await.unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > 1_000);
}

/// A reader sees a large transaction whole or not at all, whenever it looks.
pub(super) async fn large_transactions_are_never_seen_in_part(
    writer: Arc<dyn FleetStore>,
    reader: Arc<dyn FleetStore>,
) {
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let looks = std::cell::Cell::new(0);
    let reading = async {
        while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
            let range = reader.range("many/", None).await.unwrap();
            let values: std::collections::BTreeSet<&[u8]> = range
                .entries
                .iter()
                .map(|entry| entry.value.split(|byte| *byte == b' ').next().unwrap())
                .collect();
            assert!(values.len() <= 1, "a mix of {values:?}");
            assert!(matches!(range.entries.len(), 0 | 600), "{} keys", range.entries.len());
            looks.set(looks.get() + 1);
        }
    };
    let writing = async {
        let mut round = 0;
        // Until somebody has looked often enough, however slow that is.
        while round < 5 || looks.get() <= 5 {
            done(writer.txn(large("many/", 600, &round.to_string())).await.unwrap());
            round += 1;
        }
        stop.send(()).unwrap();
    };
    tokio::join!(reading, writing);
}
