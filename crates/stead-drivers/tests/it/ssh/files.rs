//! Case 7: files that do not make it leave nothing behind.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use stead_model::ErrorClass;
use stead_runner::transport::{FileMeta, Source};
use stead_testkit::tree::{Depth, snapshot};

/// Waits until `directory` is as `before` again.
async fn until_as_before(directory: &Path, before: &BTreeMap<String, String>) {
    for _ in 0..6000 {
        if snapshot(directory, Depth::State) == *before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(snapshot(directory, Depth::State), *before);
}

async fn until_temporary(directory: &Path) {
    for _ in 0..6000 {
        let entries = std::fs::read_dir(directory).unwrap();
        if entries
            .map(|entry| entry.unwrap().file_name())
            .any(|name| name.to_string_lossy().contains(".stead-"))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the transfer never began");
}

/// A large file whose transfer takes longer than the test needs to stop it.
fn large(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("large");
    std::fs::File::create(&path).unwrap().set_len(24 << 20).unwrap();
    path
}

/// Case 7.
#[tokio::test]
async fn a_put_that_is_dropped_or_loses_its_server_leaves_the_target_as_it_was() {
    let server = Sshd::start();
    let directory = tempfile::tempdir().unwrap();
    let content = large(directory.path());
    let place = server.workdir();
    let target = place.join("file");
    std::fs::write(&target, "before").unwrap();
    let before = snapshot(&place, Depth::State);
    let host = connect(&server).await;
    for way in ["dropped", "lost"] {
        let mut put = host.put(Source::File(content.clone()), &target, FileMeta::default());
        tokio::select! {
            result = &mut put => panic!("{way}: it was done: {result:?}"),
            () = until_temporary(&place) => {}
        }
        if way == "lost" {
            server.drop_connections();
            let error = put.await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Unreachable, "{error}");
        } else {
            drop(put);
        }
        until_as_before(&place, &before).await;
    }
}

/// Case 7.
#[tokio::test]
async fn a_file_that_is_changed_on_the_way_is_removed_and_both_hashes_named() {
    let tools = tempfile::tempdir().unwrap();
    // What carries the bytes on the other side: here it turns every a into b.
    for tool in ["cat", "tee"] {
        let real =
            if tool == "cat" { "exec /usr/bin/tr a b" } else { "/usr/bin/tr a b | /usr/bin/tee \"$2\"" };
        let path = tools.path().join(tool);
        std::fs::write(&path, format!("#!/bin/sh\n{real}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", tools.path().display());
    let server = Sshd::builder().environment("PATH", &path).start();
    let host = connect(&server).await;
    let place = server.workdir();
    for length in [100, 5_000_000] {
        let (sent, found) = (vec![b'a'; length], vec![b'b'; length]);
        let put =
            host.put(Source::Bytes(sent.clone().into()), &place.join("file"), FileMeta::default()).await;
        let error = put.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Operation);
        for content in [&sent, &found] {
            let hash = stead_model::plan::Digest::of(content).to_string();
            assert!(error.message.contains(&hash), "{error}");
        }
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    }
}

/// Case 7.
#[tokio::test]
async fn the_same_file_again_is_not_written() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let target = server.workdir().join("file");
    let put = |content: &'static [u8]| host.put(Source::Bytes(content.into()), &target, FileMeta::default());
    put(b"one").await.unwrap();
    let before = snapshot(&server.workdir(), Depth::Everything);
    put(b"one").await.unwrap();
    assert_eq!(snapshot(&server.workdir(), Depth::Everything), before);
    put(b"two").await.unwrap();
    assert_ne!(snapshot(&server.workdir(), Depth::Everything), before);
}

#[tokio::test]
async fn a_place_that_takes_no_file_is_named() {
    let server = Sshd::start();
    let host = connect(&server).await;
    let error = host
        .put(Source::Bytes(b"x"[..].into()), Path::new("/proc/stead"), FileMeta::default())
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Operation);
    assert!(
        error.message.contains("/proc/stead") && error.message.contains("no file can be made"),
        "{error}"
    );
}
