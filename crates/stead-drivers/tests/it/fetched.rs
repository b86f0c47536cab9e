//! Archives and repositories: every format, hostile ones, and what local changes mean.

use std::path::Path;
use std::sync::Arc;

use http_body_util::Full;
use hyper::Response;
use serde_json::json;
use stead_model::ErrorClass;
use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::tree::{Depth, snapshot};

use crate::contract::{make_repository, sh};
use crate::server::{Answer, with_server};
use crate::state::{check, run};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn has(program: &str) -> bool {
    std::process::Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn every_format_unpacks_to_the_same_tree() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("top/sub")).unwrap();
    sh(
        dir.path(),
        "echo content > top/sub/f; printf x > top/x; chmod 755 top/x; ln -s sub/f top/link; tar cf a.tar top; tar czf a.tgz top",
    );
    let mut archives = vec!["a.tar", "a.tgz"];
    for (program, script, name) in [
        ("xz", "tar cJf a.txz top", "a.txz"),
        ("zstd", "tar --zstd -cf a.tzst top", "a.tzst"),
        ("zip", "zip -qry a.zip top", "a.zip"),
    ] {
        if has(program) {
            sh(dir.path(), script);
            archives.push(name);
        }
    }
    let mut trees = Vec::new();
    for archive in archives {
        let out = dir.path().join(format!("out-{archive}"));
        let values = json!({"source": archive, "path": text(&out), "strip": 1});
        assert!(run(&context(dir.path()), "archive.unpacked", values.clone()).unwrap().changed);
        assert!(!run(&context(dir.path()), "archive.unpacked", values).unwrap().changed, "{archive}");
        trees.push(snapshot(&out, Depth::State));
    }
    assert_eq!(trees[0].len(), 5, "{:?}", trees[0]);
    assert!(trees.windows(2).all(|pair| pair[0] == pair[1]), "{trees:#?}");
}

#[test]
fn archives_that_lead_out_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let evil = |name: &str, path: &str, kind: tar::EntryType, link: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(if kind.is_file() { 4 } else { 0 });
        // Set byte for byte: the library would refuse to make such names.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        let mut good = tar::Header::new_gnu();
        good.set_size(4);
        good.set_mode(0o644);
        good.set_path("good").unwrap();
        good.set_cksum();
        let mut builder = tar::Builder::new(std::fs::File::create(dir.path().join(name)).unwrap());
        builder.append(&good, &b"good"[..]).unwrap();
        builder.append(&header, if kind.is_file() { &b"evil"[..] } else { &b""[..] }).unwrap();
        builder.finish().unwrap();
    };
    evil("up.tar", "../evil", tar::EntryType::Regular, "");
    evil("deep.tar", "a/../../evil", tar::EntryType::Regular, "");
    evil("abs.tar", "/tmp/evil", tar::EntryType::Regular, "");
    evil("link.tar", "l", tar::EntryType::Symlink, "../..");
    evil("abslink.tar", "l", tar::EntryType::Symlink, "/etc");
    evil("hard.tar", "l", tar::EntryType::Link, "../x");
    evil("fifo.tar", "p", tar::EntryType::Fifo, "");
    for name in ["up.tar", "deep.tar", "abs.tar", "link.tar", "abslink.tar", "hard.tar", "fifo.tar"] {
        let out = dir.path().join("out");
        let values = json!({"source": name, "path": text(&out)});
        let error = run(&context(dir.path()), "archive.unpacked", values).unwrap_err();
        assert!(error.message.contains("refused") && error.class == ErrorClass::Permanent, "{name}: {error}");
        assert!(!out.exists(), "{name} wrote something");
    }
}

/// A directory that comes with the archive is its owner's too; one that was there stays whose it was.
#[test]
fn the_directory_that_an_archive_makes_is_owned_as_its_files_are() {
    inside(|| {
        use std::os::unix::fs::MetadataExt;
        let base = Path::new("/tmp");
        sh(base, "mkdir -p top there; echo x > top/f; tar cf a.tar -C top f");
        for (out, owner) in [("made", 4242), ("there", 0)] {
            let out = base.join(out);
            let values = json!({"source": "a.tar", "path": text(&out), "owner": 4242});
            assert!(run(&context(base), "archive.unpacked", values.clone()).unwrap().changed);
            assert!(!run(&context(base), "archive.unpacked", values).unwrap().changed);
            let uid = |path: &Path| std::fs::metadata(path).unwrap().uid();
            assert_eq!((uid(&out), uid(&out.join("f"))), (owner, 4242), "{}", out.display());
        }
    });
}

#[test]
fn a_link_on_disk_does_not_lead_an_archive_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("top/conf")).unwrap();
    std::fs::create_dir_all(dir.path().join("outside")).unwrap();
    std::fs::create_dir_all(dir.path().join("out")).unwrap();
    sh(dir.path(), "echo x > top/conf/f; tar cf a.tar -C top conf; ln -s ../outside out/conf");
    let values = json!({"source": "a.tar", "path": text(&dir.path().join("out"))});
    run(&context(dir.path()), "archive.unpacked", values).unwrap_err();
    assert_eq!(snapshot(&dir.path().join("outside"), Depth::State).len(), 1);
}

#[tokio::test]
async fn an_archive_from_an_address_is_fetched_once_and_its_list_repairs_drift() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("top")).unwrap();
    sh(dir.path(), "echo content > top/f; tar czf a.tgz top");
    let bytes = std::fs::read(dir.path().join("a.tgz")).unwrap();
    let sum = std::process::Command::new("sha256sum").arg(dir.path().join("a.tgz")).output().unwrap();
    let sha256 = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let answer: Answer = Arc::new(move |request, _| {
        asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match request.uri().path() {
            "/moved" => Response::builder().status(404).body(Full::from("")).unwrap(),
            _ => Response::new(Full::from(bytes.clone())),
        }
    });
    let base = dir.path().to_owned();
    with_server(answer, |url| async move {
        let blocking = tokio::task::spawn_blocking(move || {
            let asked = || count.load(std::sync::atomic::Ordering::SeqCst);
            let out = base.join("out");
            let values = json!({"url": format!("{url}/a"), "sha256": sha256, "path": text(&out)});
            assert!(!check(&context(&base), "archive.unpacked", values.clone()).unwrap().is_empty());
            assert_eq!(asked(), 0, "check fetched");
            assert!(run(&context(&base), "archive.unpacked", values.clone()).unwrap().changed);
            assert!(!run(&context(&base), "archive.unpacked", values.clone()).unwrap().changed);
            assert_eq!(asked(), 1, "unchanged fetched again");
            std::fs::write(out.join("top/f"), "hand").unwrap();
            assert!(run(&context(&base), "archive.unpacked", values).unwrap().changed);
            assert_eq!(std::fs::read_to_string(out.join("top/f")).unwrap(), "content\n");
            let wrong = json!({"url": format!("{url}/a"), "sha256": "0".repeat(64), "path": text(&out)});
            let error = run(&context(&base), "archive.unpacked", wrong).unwrap_err();
            assert!(error.message.contains("SHA-256"), "{error}");
            let gone = json!({"url": format!("{url}/moved"), "sha256": "0".repeat(64), "path": text(&out)});
            let error = run(&context(&base), "archive.unpacked", gone).unwrap_err();
            assert!(error.message.contains("404"), "{error}");
            assert_eq!(std::fs::read_to_string(out.join("top/f")).unwrap(), "content\n");
            assert!(!base.join(".out.stead-unpack").exists());
            let bare = json!({"url": format!("{url}/a"), "path": text(&out)});
            let error = run(&context(&base), "archive.unpacked", bare).unwrap_err();
            assert_eq!(error.class, ErrorClass::Invalid);
        });
        blocking.await.unwrap();
    })
    .await;
}

#[test]
fn branches_tags_and_commits_are_checked_out_and_branches_move() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("repo");
    make_repository(&repo);
    let cx = context(dir.path());
    let out = dir.path().join("out");
    let read = || std::fs::read_to_string(out.join("f")).unwrap();
    let at = |name: &str| json!({"repo": text(&repo), "path": text(&out), "ref": name});
    assert!(run(&cx, "git.checkout", json!({"repo": text(&repo), "path": text(&out)})).unwrap().changed);
    assert_eq!(read(), "two\n");
    let ran = run(&cx, "git.checkout", at("v1")).unwrap();
    assert_eq!(read(), "one\n");
    let data = ran.applied.data.unwrap();
    assert!(data["before"].is_string() && data["commit"] != data["before"]);
    assert!(!run(&cx, "git.checkout", at("v1")).unwrap().changed);
    assert!(!run(&cx, "git.checkout", at(data["commit"].as_str().unwrap())).unwrap().changed);
    assert!(run(&cx, "git.checkout", at("main")).unwrap().changed);
    sh(&repo, "echo three > f; git commit -qam three");
    assert!(!check(&cx, "git.checkout", at("main")).unwrap().is_empty(), "the tip is asked of the remote");
    let cx = context(dir.path());
    assert!(run(&cx, "git.checkout", at("refs/heads/main")).unwrap().changed);
    assert_eq!(read(), "three\n");
    let error = run(&cx, "git.checkout", at("no-such-branch")).unwrap_err();
    assert!(error.message.contains("no-such-branch"), "{error}");
    let shallow =
        json!({"repo": format!("file://{}", text(&repo)), "path": text(&dir.path().join("s")), "depth": 1});
    run(&cx, "git.checkout", shallow).unwrap();
    sh(&dir.path().join("s"), "test $(git rev-list --count HEAD) = 1");
}

#[test]
fn local_changes_are_an_error_unless_forced_and_untracked_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("repo");
    make_repository(&repo);
    let cx = context(dir.path());
    let out = dir.path().join("out");
    let values = json!({"repo": text(&repo), "path": text(&out), "ref": "main"});
    run(&cx, "git.checkout", values.clone()).unwrap();
    std::fs::write(out.join("f"), "mine").unwrap();
    std::fs::write(out.join("untracked"), "stays").unwrap();
    let error = run(&cx, "git.checkout", values.clone()).unwrap_err();
    assert!(error.message.contains("force") && error.message.contains('f'), "{error}");
    assert_eq!(std::fs::read_to_string(out.join("f")).unwrap(), "mine");
    let mut forced = values;
    forced["force"] = json!(true);
    assert!(run(&cx, "git.checkout", forced.clone()).unwrap().changed);
    assert!(!run(&cx, "git.checkout", forced).unwrap().changed);
    assert_eq!(std::fs::read_to_string(out.join("f")).unwrap(), "two\n");
    assert_eq!(std::fs::read_to_string(out.join("untracked")).unwrap(), "stays");
}

#[test]
fn options_in_disguise_are_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("repo");
    make_repository(&repo);
    let proof = dir.path().join("proof");
    let cx = context(dir.path());
    let out = text(&dir.path().join("out"));
    let touch = format!("--upload-pack=touch {}", text(&proof));
    for values in [
        json!({"repo": touch, "path": out}),
        json!({"repo": text(&repo), "path": out, "ref": touch}),
        json!({"repo": text(&repo), "path": out, "ref": "-f"}),
        json!({"repo": format!("ext::sh -c touch% {}", text(&proof)), "path": out}),
    ] {
        run(&cx, "git.checkout", values).unwrap_err();
        assert!(!proof.exists());
    }
    std::fs::create_dir(dir.path().join("full")).unwrap();
    std::fs::write(dir.path().join("full/f"), "mine").unwrap();
    let values = json!({"repo": text(&repo), "path": text(&dir.path().join("full"))});
    let error = run(&cx, "git.checkout", values).unwrap_err();
    assert!(error.message.contains("neither empty nor a Git checkout"), "{error}");
    // A checkout inside another repository is its own.
    let cx = OpContext { base_dir: repo.clone(), ..cx };
    let values = json!({"repo": text(&repo), "path": text(&repo.join("nested")), "ref": "v1"});
    assert!(run(&cx, "git.checkout", values).unwrap().changed);
    assert_eq!(std::fs::read_to_string(repo.join("f")).unwrap(), "two\n");
}
