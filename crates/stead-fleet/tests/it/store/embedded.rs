//! What only a file can suffer.

use std::fs;
use std::path::Path;

use super::*;

async fn filled(path: &Path) {
    let store = Embedded::open(path).unwrap();
    for at in 0..200 {
        let txn = Txn::default().put(
            &format!("place/web/{at}"),
            format!("{{\"worker\":\"w{at}\",\"x\":\"{}\"}}", "y".repeat(200)),
        );
        store.txn(txn).await.unwrap();
    }
    drop(store);
}

/// Section 13: a second process is told that the first has it; here the second is this one again.
#[tokio::test]
async fn a_second_master_is_locked_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let first = Embedded::open(&path).unwrap();
    let Err(StoreError::Locked { pid, .. }) = Embedded::open(&path) else { panic!("it was let in") };
    assert_eq!(pid, Some(std::process::id()));
    drop(first);
    Embedded::open(&path).unwrap();
}

#[tokio::test]
async fn what_was_stored_is_there_again_and_leases_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let store = Embedded::open(&path).unwrap();
    let lease = store.lease(Duration::from_secs(60)).await.unwrap();
    store.txn(Txn::default().put("a", "1").put_with("meta/leader", "me", lease)).await.unwrap();
    let before = store.range("", None).await.unwrap().revision;
    drop(store);
    let store = Embedded::open(&path).unwrap();
    assert_eq!(store.get("a").await.unwrap().unwrap().value, b"1");
    assert!(store.get("meta/leader").await.unwrap().is_none(), "who held it is gone");
    assert!(store.range("", None).await.unwrap().revision > before);
}

/// Section 13: damage is told of with file and offset, and never becomes an empty store.
#[tokio::test]
async fn a_damaged_file_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    filled(&path).await;
    let whole = fs::read(&path).unwrap();
    assert!(whole.len() > 20_000);
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).unwrap();
        for rest in ["master.db-wal", "master.db-shm"] {
            fs::remove_file(dir.path().join(rest)).ok();
        }
        match Embedded::open(&path) {
            Err(StoreError::Corrupted { path: named, offset, .. }) => {
                assert_eq!(named, path, "{what}");
                assert!(offset <= bytes.len() as u64, "{what}: {offset}");
                offset
            }
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: it was opened"),
        }
    };
    assert_eq!(refused(b"", "empty"), 0);
    assert_eq!(refused(&whole[..50], "cut in its head"), 50);
    assert_eq!(refused(b"not a database at all, but long enough to be one if it were: 0123456789 0123456789 0123456789 0123456789", "text"), 0);
    refused(&whole[..whole.len() - 100], "cut in a page");
    refused(&whole[..4096 * 2], "cut between pages");
    let mut scribbled = whole.clone();
    scribbled[4096 * 3..4096 * 3 + 200].fill(0xff);
    let offset = refused(&scribbled, "a page scribbled on");
    assert!(offset <= 4096 * 4, "{offset}");
}

/// A flipped byte of a value, which SQLite itself does not see.
#[tokio::test]
async fn a_flipped_byte_of_a_value_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    filled(&path).await;
    let mut bytes = fs::read(&path).unwrap();
    // Everywhere, for pages also hold what was there before.
    let places: Vec<usize> = bytes
        .windows(8)
        .enumerate()
        .filter(|(_, window)| *window == b"\"x\":\"yyy")
        .map(|(at, _)| at)
        .collect();
    assert!(places.len() >= 200);
    places.into_iter().for_each(|at| bytes[at + 6] = b'z');
    fs::write(&path, bytes).unwrap();
    let store = Embedded::open(&path).unwrap();
    let Err(StoreError::Corrupted { what, .. }) = store.range("", None).await else { panic!("it was read") };
    assert!(what.contains("place/web/"), "{what}");
}

#[tokio::test]
async fn a_missing_file_is_no_new_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    filled(&path).await;
    fs::remove_file(&path).unwrap();
    assert!(matches!(Embedded::open(&path), Err(StoreError::Lost { .. })));
    let (store, moved) = Embedded::replace(&path, |_, _| Ok(vec![])).unwrap();
    assert!(moved.is_none() && store.range("", None).await.unwrap().entries.is_empty());
}

/// F9: what can be read of a broken file is saved, and the file stays beside the new one.
#[tokio::test]
async fn a_broken_file_is_put_aside_and_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let store = Embedded::open(&path).unwrap();
    store.txn(Txn::default().put("meta/ca", "the CA").put("place/web/0", "x")).await.unwrap();
    drop(store);
    let (store, moved) = Embedded::replace(&path, |_, _| Ok(vec![])).unwrap();
    let moved = moved.unwrap();
    assert!(moved.exists() && store.get("meta/ca").await.unwrap().is_none());
    let saved = Embedded::salvage(&moved, "meta/");
    assert_eq!(
        saved.iter().map(|entry| (entry.key.as_str(), entry.value.as_slice())).collect::<Vec<_>>(),
        [("meta/ca", &b"the CA"[..])]
    );
    fs::write(&moved, "garbage").unwrap();
    assert_eq!(Embedded::salvage(&moved, "meta/"), []);
}
