//! Repositories and artifacts.

use std::process::Command;

use super::super::site;
use super::wire::Serving;
use crate::cases_17_32::lab::Lab;

/// Runs Git, and returns whether that went well and what it said.
pub(in crate::nodes) fn git(lab: &Lab, directory: &str, args: &[&str]) -> (bool, String) {
    let mut command = Command::new("git");
    command.current_dir(lab.path(directory)).args(args).env("HOME", lab.root());
    command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_SSL_NO_VERIFY", "1").env("GIT_CONFIG_NOSYSTEM", "1");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "ann").env(format!("GIT_{who}_EMAIL"), "ann@desk");
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

/// Case 24: clones with a token in the header or as password, with the branch of what is not committed.
#[test]
fn repositories_are_cloned_with_what_is_not_committed() {
    let lab = site(&[("site.yaml", "server: {repos: {kit: ../kit}}\n")]);
    lab.write("kit/a.txt", "committed\n");
    for args in [&["init", "-q", "-b", "main"][..], &["add", "."], &["commit", "-q", "-m", "first"]] {
        let (ok, said) = git(&lab, "kit", args);
        assert!(ok, "{said}");
    }
    lab.write("kit/a.txt", "changed\n");
    lab.write("kit/new.txt", "new\n");
    let (_, objects) = git(&lab, "kit", &["count-objects", "-v"]);
    let serving = Serving::start(&lab);
    assert_eq!(serving.facts["repos"], 1);
    assert_eq!(git(&lab, "kit", &["count-objects", "-v"]).1, objects, "nothing is written into the source");
    let token = serving.mint(&["--node", "edge", "--spec", "base"]);
    let port = serving.port;
    let url = format!("https://127.0.0.1:{port}/kit.git");
    let header = format!("http.extraHeader=Authorization: Bearer {token}");
    let (ok, said) = git(&lab, "", &["-c", &header, "clone", "-q", "-b", "_working", &url, "one"]);
    assert!(ok, "{said}");
    assert_eq!((lab.read("one/a.txt"), lab.read("one/new.txt")), ("changed\n".into(), "new\n".into()));
    let with_password = format!("https://edge:{token}@127.0.0.1:{port}/kit.git");
    let (ok, said) = git(&lab, "", &["clone", "-q", &with_password, "two"]);
    assert!(ok, "{said}");
    assert_eq!(lab.read("two/a.txt"), "committed\n");
    assert!(!git(&lab, "", &["clone", "-q", &url, "three"]).0);

    let refused = serving.get("/kit.git/info/refs", "");
    assert_eq!((refused.status, refused.code().as_str()), (401, "E300"));
    assert!(refused.header("www-authenticate").starts_with("basic"));
    for path in [
        "/other.git/info/refs",
        "/kit.git/nope",
        "/kit.git/config",
        "/kit.git/",
        "/kit.git/%2e%2e/x",
        "/kit.git/objects/../../x",
        "/kit.git/objects/pack/..%2f..%2fx",
        "/kit.git/hooks/pre-commit",
    ] {
        let reply = serving.get(path, &token);
        assert_eq!((reply.status, reply.code().as_str()), (404, "E200"), "{path}");
    }
    lab.write("kit/a.txt", "later\n");
    serving.reload();
    let (ok, said) = git(&lab, "", &["clone", "-q", "-b", "_working", &with_password, "four"]);
    assert!(ok, "{said}");
    assert_eq!(lab.read("four/a.txt"), "later\n");
}

#[test]
fn artifacts_are_served_by_hash_and_in_parts() {
    let lab = site(&[]);
    lab.write("state/artifacts/image", "0123456789");
    let hash = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
    let serving = Serving::start(&lab);
    let token = serving.mint(&["--node", "edge", "--spec", "base", "--aud", "spec"]);
    let path = format!("/v1/artifacts/sha256/{hash}");
    let whole = serving.get(&path, &token);
    assert_eq!((whole.status, whole.body.as_str()), (200, "0123456789"));
    for (range, status, body, shown) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=-1", 206, "9", "bytes 9-9/10"),
    ] {
        let part = serving.ask_with("GET", &path, &token, &[("Range", range)], "");
        assert_eq!((part.status, part.body.as_str()), (status, body));
        assert_eq!(part.header("content-range"), shown);
    }
    assert_eq!(serving.ask_with("GET", &path, &token, &[("Range", "bytes=10-")], "").status, 416);
    assert_eq!(serving.get(&path, "").code(), "E300");
    let other = format!("/v1/artifacts/sha256/{}", "0".repeat(64));
    assert_eq!(serving.get(&other, &token).code(), "E200");
    assert_eq!(serving.get("/v1/artifacts/sha256/..%2fx", &token).code(), "E100");
}
