//! `stead bundle replay`.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::fixture::{Role, run, write_run};

/// Case 33: the same bytes twice, holding everything every role said.
#[test]
fn a_replay_at_full_speed_is_always_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = write_run(dir.path(), "r1", "failed", &[Role::server(), Role::client()]);
    let replay = |path: &str, more: &[&str]| {
        let words = [&["bundle", "replay", path, "--speed", "max"], more].concat();
        let (code, stdout, stderr) = run(dir.path(), &words);
        assert_eq!(code, 0, "{words:?}: {stderr}");
        stdout
    };
    let shown = replay("./r1", &[]);
    insta::assert_snapshot!("replay_of_a_run", shown);
    assert_eq!(replay("./r1", &[]), shown);
    for name in ["r1.zip", "r1.tar.zst"] {
        assert_eq!(run(dir.path(), &["bundle", "export", "./r1", "-o", name]).0, 0);
        assert_eq!(replay(name, &[]), shown);
    }
    let server = replay("./r1", &["--role", "server"]);
    assert!(server.contains("server | served 2\n") && !server.contains("client"), "{server}");
    let from = replay("./r1", &["--from", "client_start"]);
    assert!(from.starts_with("[start] client_start\n") && !from.contains("server | "), "{from}");

    // What a driver that died did not announce is part of what the role said.
    let mut log = fs::OpenOptions::new().append(true).open(bundle.join("roles/server/stdout.log")).unwrap();
    log.write_all(b"last words").unwrap();
    assert!(replay("./r1", &[]).ends_with("server | last words\n"));
    let mut journal = fs::OpenOptions::new().append(true).open(bundle.join("events.jsonl")).unwrap();
    journal.write_all(b"{\"seq\":99,").unwrap();
    let (code, _, stderr) = run(dir.path(), &["bundle", "replay", "./r1", "--speed", "max"]);
    assert_eq!(code, 0);
    assert!(stderr.contains("warning: 1 lines of the journal"), "{stderr}");
}

#[test]
fn a_replay_keeps_its_tempo() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), "r1", "success", &[Role::client()]);
    // Eight events, each a tenth of a second after the one before.
    let begun = Instant::now();
    assert_eq!(run(dir.path(), &["bundle", "replay", "./r1", "--speed", "2"]).0, 0);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(350), "{took:?}");
}

#[test]
fn wrong_words_are_told_with_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path(), "r1", "success", &[Role::client()]);
    for (words, expected, says) in [
        (["--from", "nowhere"], 2, "it has client_start, init"),
        (["--role", "nobody"], 2, "it has client"),
        (["--speed", "0"], 2, "a number above 0, or max"),
        (["--speed", "fast"], 2, "a number above 0, or max"),
    ] {
        let (code, _, stderr) = run(dir.path(), &[&["bundle", "replay", "./r1"], &words[..]].concat());
        assert_eq!(code, expected, "{words:?}: {stderr}");
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
}
