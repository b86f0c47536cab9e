//! What is particular to single file operations, and what holds under a root prefix.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;
use stead_model::ErrorClass;
use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::tree::{Depth, snapshot};

use crate::contract::sh;
use crate::state::{check, operation, run};

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Case 18 of reach: a number as mode names the trap; a link is refused, with `follow` its target changes.
#[test]
fn links_are_refused_or_followed_and_stay() {
    let descriptor = operation("file.present").descriptor();
    let refusal = descriptor.param("mode").unwrap().kind.refuse(&json!(644)).unwrap();
    assert!(refusal.contains("\"0644\""), "{refusal}");

    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    std::fs::write(dir.path().join("real"), "old").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let error =
        run(&cx, "file.present", json!({"path": path(dir.path(), "link"), "content": "new"})).unwrap_err();
    assert!(error.message.contains("follow"), "{error}");
    assert_eq!(std::fs::read_to_string(dir.path().join("real")).unwrap(), "old");
    let follow = json!({"path": path(dir.path(), "link"), "content": "new", "follow": true});
    assert!(run(&cx, "file.present", follow.clone()).unwrap().changed);
    assert!(dir.path().join("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(dir.path().join("real")).unwrap(), "new");
    assert!(!run(&cx, "file.present", follow).unwrap().changed);
}

/// Case 19 of reach: `validate` and `backup`.
#[test]
fn a_refused_file_leaves_nothing_behind_and_backups_are_one_per_change() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let file = dir.path().join("rules");
    std::fs::write(&file, "good\n").unwrap();
    let before = snapshot(dir.path(), Depth::Everything);
    let rule = |content: &str, backup: bool| {
        json!({"path": path(dir.path(), "rules"), "content": content, "backup": backup,
            "validate": ["/bin/sh", "-c", "grep -q good \"$0\" || { echo syntax error near bad >&2; exit 1; }", "{}"]})
    };
    let error = run(&cx, "file.present", rule("bad\n", true)).unwrap_err();
    assert_eq!(error.class, ErrorClass::Operation);
    assert!(error.message.contains("syntax error near bad") && !error.changed, "{error}");
    let mut after = snapshot(dir.path(), Depth::Everything);
    // The directory itself held a temporary file for a moment.
    assert_eq!((before.len(), after.remove("rules")), (after.len() + 1, before.get("rules").cloned()));

    for (content, copies) in [("good 1\n", 1), ("good 1\n", 1), ("good 2\n", 2)] {
        let ran = run(&cx, "file.present", rule(content, true)).unwrap();
        assert_eq!(names(dir.path()).len(), 1 + copies, "{:?}", names(dir.path()));
        let backup = ran.applied.data.and_then(|data| Some(data["backup"].as_str()?.to_owned()));
        assert_eq!(backup.is_some_and(|backup| Path::new(&backup).exists()), ran.changed);
    }
    let copies: Vec<String> =
        names(dir.path()).into_iter().filter(|name| name.starts_with("rules.stead.")).collect();
    let contents: Vec<String> =
        copies.iter().map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()).collect();
    assert_eq!(contents, ["good\n", "good 1\n"]);
}

/// Case 20 of reach: a lost mark is an error and the file is untouched.
#[test]
fn a_lost_mark_leaves_the_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "a\n# BEGIN stead n\n1\n").unwrap();
    let before = snapshot(dir.path(), Depth::Everything);
    let block = json!({"path": path(dir.path(), "f"), "name": "n", "block": "2"});
    let error = run(&context(dir.path()), "file.block", block).unwrap_err();
    assert!(error.message.contains("# END stead n"), "{error}");
    assert_eq!(snapshot(dir.path(), Depth::Everything), before);
}

/// Case 23 of reach: links and `..` inside a root prefix never touch the outside; users are the prefix's own.
#[test]
fn nothing_leaves_the_root_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().canonicalize().unwrap();
    let root = base.join("root");
    std::fs::create_dir_all(root.join("etc")).unwrap();
    std::fs::create_dir_all(base.join("outside")).unwrap();
    std::fs::write(base.join("outside/passwd"), "secret").unwrap();
    std::fs::write(root.join("etc/passwd"), "inner:x:1234:1234::/:/bin/sh\n").unwrap();
    symlink(base.join("outside/passwd"), root.join("etc/motd")).unwrap();
    symlink("../../outside", root.join("etc/up")).unwrap();
    symlink(base.join("outside"), root.join("etc/abs")).unwrap();
    let outside = snapshot(&base.join("outside"), Depth::Everything);
    let cx = OpContext { root: Some(root.clone()), ..context(&base) };
    let tries = [
        ("file.present", json!({"path": "/etc/motd", "content": "x", "follow": true, "parents": true})),
        ("file.present", json!({"path": "/etc/up/passwd", "content": "x", "parents": true})),
        ("file.present", json!({"path": "/../../outside/passwd", "content": "x", "parents": true})),
        ("file.present", json!({"path": "/etc/abs/passwd", "content": "x", "parents": true})),
        ("file.directory", json!({"path": "/etc/up", "mode": "0777", "follow": true, "recurse": true})),
        ("file.absent", json!({"path": "/etc/up/passwd"})),
        ("file.absent", json!({"path": "/etc/abs/passwd"})),
    ];
    for (name, values) in tries {
        let result = run(&cx, name, values.clone());
        assert_eq!(
            snapshot(&base.join("outside"), Depth::Everything),
            outside,
            "{name} {values}: {result:?}"
        );
    }
    assert_eq!(
        std::fs::read_to_string(root.join("outside/passwd")).ok(),
        None,
        "removed inside, where it was made"
    );

    let owned = json!({"path": "/etc/owned", "owner": "inner"});
    let result = run(&cx, "file.present", owned);
    if rustix::process::geteuid().is_root() {
        result.unwrap();
        assert_eq!(root.join("etc/owned").metadata().unwrap().uid(), 1234);
    }
    let error = run(&cx, "file.present", json!({"path": "/etc/owned", "owner": "daemon"})).unwrap_err();
    assert!(error.message.contains("daemon"), "{error}");
    for path in ["/", "/etc/..", "/../.."] {
        let error = run(&cx, "file.absent", json!({"path": path, "recursive": true})).unwrap_err();
        assert_eq!(error.class, ErrorClass::Invalid, "{path}");
    }
}

/// Section 7, rule 1: a mode that is not specified is kept, also where the system takes bits away with the owner. What
/// is found below a directory loses them, as the diff says.
#[test]
fn a_program_that_changes_hands_keeps_its_mode_where_it_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().mode() & 0o7777;
    let make = |name: &str| {
        std::fs::write(dir.path().join(name), "x").unwrap();
        std::os::unix::fs::chown(dir.path().join(name), Some(7), Some(8)).unwrap();
        std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(0o6755)).unwrap();
    };
    make("f");
    let owner = json!({"path": path(dir.path(), "f"), "owner": 9});
    let ran = run(&cx, "file.present", owner.clone()).unwrap();
    assert_eq!((ran.diff.to_json()["after"].clone(), mode("f")), (json!({"owner": 9}), 0o6755));
    assert!(!run(&cx, "file.present", owner).unwrap().changed);
    std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
    let linked = json!({"path": path(dir.path(), "f"), "content": "y", "owner": 10});
    assert!(run(&cx, "file.present", linked).unwrap().changed);
    assert_eq!((mode("f"), dir.path().join("f").metadata().unwrap().uid()), (0o6755, 10));

    std::fs::create_dir(dir.path().join("d")).unwrap();
    make("d/program");
    let below = json!({"path": path(dir.path(), "d"), "owner": 0, "recurse": true});
    let predicted = check(&cx, "file.directory", below.clone()).unwrap();
    let ran =
        run(&OpContext { predicted: Default::default(), ..cx.clone() }, "file.directory", below).unwrap();
    assert_eq!(ran.diff.to_json(), predicted.to_json());
    assert_eq!(ran.diff.to_json()["after"], json!({"program: owner": 0, "program: mode": "0755"}));
    assert_eq!(mode("d/program"), 0o755);
}

/// Section 8: a template that is longer than one can be is refused, not cut.
#[test]
fn a_template_is_never_cut() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::File::create(dir.path().join("long.j2")).unwrap().set_len((16 << 20) + 1).unwrap();
    let values = json!({"path": path(dir.path(), "f"), "source": "long.j2"});
    let error = run(&context(dir.path()), "file.template", values).unwrap_err();
    assert_eq!(error.class, ErrorClass::Permanent);
    assert!(error.message.contains("16777217 bytes"), "{error}");
    assert_eq!(names(dir.path()), ["long.j2"]);
}

/// Section 7, rule 4: a file that something is mounted on cannot be replaced, so it is written in place.
#[test]
fn a_mounted_file_is_written_in_place_and_this_is_said() {
    inside(|| {
        let dir = tempfile::tempdir().unwrap();
        for name in ["below", "above"] {
            std::fs::write(dir.path().join(name), "longer than new").unwrap();
        }
        sh(dir.path(), "mount --bind above below");
        let values = json!({"path": path(dir.path(), "below"), "content": "new", "mode": "0600"});
        let ran = run(&context(dir.path()), "file.present", values.clone()).unwrap();
        assert!(ran.applied.notes.iter().any(|note| note.contains("mount point")), "{:?}", ran.applied.notes);
        assert_eq!(std::fs::read_to_string(dir.path().join("above")).unwrap(), "new");
        assert!(!run(&context(dir.path()), "file.present", values).unwrap().changed);
        sh(dir.path(), "umount below");
        assert_eq!(std::fs::read_to_string(dir.path().join("below")).unwrap(), "longer than new");
        assert_eq!(names(dir.path()), ["above", "below"]);
    });
}

#[test]
fn a_hard_linked_file_is_written_in_place_and_this_is_said() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "longer than new").unwrap();
    std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
    let values = json!({"path": path(dir.path(), "f"), "content": "new", "mode": "0600"});
    let ran = run(&context(dir.path()), "file.present", values).unwrap();
    assert!(ran.applied.notes[0].contains("hard links"), "{:?}", ran.applied.notes);
    assert_eq!(std::fs::read_to_string(dir.path().join("g")).unwrap(), "new");
    assert_eq!(dir.path().join("g").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(dir.path()), ["f", "g"]);
}

#[test]
fn a_leftover_of_a_killed_run_is_removed_and_a_planted_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".f.stead-tmp"), "half written").unwrap();
    std::fs::write(dir.path().join("victim"), "untouched").unwrap();
    symlink("victim", dir.path().join(".g.stead-tmp")).unwrap();
    for name in ["f", "g"] {
        run(&context(dir.path()), "file.present", json!({"path": path(dir.path(), name), "content": "new"}))
            .unwrap();
    }
    assert_eq!(names(dir.path()), ["f", "g", "victim"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("victim")).unwrap(), "untouched");
}

#[test]
fn extended_attributes_survive_a_replacement() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    std::fs::write(&file, "old").unwrap();
    let set = rustix::fs::setxattr(&file, "user.stead", b"kept", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        // This file system has none to keep.
        return;
    }
    run(&context(dir.path()), "file.present", json!({"path": path(dir.path(), "f"), "content": "new"}))
        .unwrap();
    let mut value = [0; 16];
    let size = rustix::fs::getxattr(&file, "user.stead", &mut value[..]).unwrap();
    assert_eq!(&value[..size], b"kept");
}

/// Case 19: a dry run sees what it has predicted: the same value twice, a line in a new file, a path through a link.
#[test]
fn a_dry_run_sees_its_own_predictions_across_operations() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    let steps = [
        ("file.directory", json!({"path": path(dir.path(), "d")}), true),
        ("file.present", json!({"path": path(dir.path(), "d/f"), "content": "a\n"}), true),
        ("file.present", json!({"path": path(dir.path(), "d/f"), "content": "a\n"}), false),
        ("file.line", json!({"path": path(dir.path(), "d/f"), "line": "a"}), false),
        ("file.line", json!({"path": path(dir.path(), "d/f"), "line": "b"}), true),
        ("file.symlink", json!({"path": path(dir.path(), "l"), "to": "d"}), true),
        ("file.line", json!({"path": path(dir.path(), "l/f"), "line": "b"}), false),
        ("file.absent", json!({"path": path(dir.path(), "d"), "recursive": true}), true),
        ("file.absent", json!({"path": path(dir.path(), "d/f")}), false),
    ];
    for (name, values, changed) in &steps {
        let diff =
            check(&cx, name, values.clone()).unwrap_or_else(|error| panic!("{name} {values}: {error}"));
        assert_eq!(!diff.is_empty(), *changed, "{name} {values}");
    }
    assert!(names(dir.path()).is_empty(), "the dry run wrote");
    let cx = context(dir.path());
    for (name, values, changed) in &steps {
        let ran = run(&cx, name, values.clone()).unwrap_or_else(|error| panic!("{name} {values}: {error}"));
        assert_eq!(ran.changed, *changed, "the run differs from the prediction: {name} {values}");
    }
}

#[test]
fn diffs_show_text_but_not_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    std::fs::write(dir.path().join("f"), "a\nb\n").unwrap();
    let diff =
        check(&cx, "file.present", json!({"path": path(dir.path(), "f"), "content": "a\nc\n"})).unwrap();
    let text = diff.text.unwrap();
    assert!(text.contains("-b\n+c\n") && text.starts_with("--- "), "{text}");
    let diff =
        check(&cx, "file.present", json!({"path": path(dir.path(), "g"), "content_base64": "AP8A"})).unwrap();
    let text = diff.text.unwrap();
    assert!(text.starts_with("binary") && text.contains("sha256") && text.contains("\"size\":3"), "{text}");
    let long = "line\n".repeat(100_000);
    let diff = check(&cx, "file.present", json!({"path": path(dir.path(), "h"), "content": long})).unwrap();
    assert!(diff.text.unwrap().len() < 66_000);
}

#[test]
fn errors_name_what_is_wrong_and_the_way_on() {
    let dir = tempfile::tempdir().unwrap();
    let cx = context(dir.path());
    std::fs::create_dir_all(dir.path().join("full/sub")).unwrap();
    let cases = [
        ("file.present", json!({"path": path(dir.path(), "no/f")}), "parents"),
        ("file.present", json!({"path": path(dir.path(), "full")}), "is a directory"),
        ("file.present", json!({"path": path(dir.path(), "f"), "source": "nope"}), "nope"),
        ("file.present", json!({"path": path(dir.path(), "f"), "owner": "no-such-user"}), "no-such-user"),
        ("file.present", json!({"path": path(dir.path(), "f"), "content_base64": "?"}), "base64"),
        ("file.absent", json!({"path": path(dir.path(), "full")}), "recursive"),
        ("file.line", json!({"path": path(dir.path(), "f"), "line": "x"}), "create"),
        ("file.symlink", json!({"path": path(dir.path(), "full"), "to": "x"}), "force"),
        ("file.symlink", json!({"path": path(dir.path(), "full"), "to": "x", "force": true}), "not empty"),
        (
            "file.template",
            json!({"path": path(dir.path(), "f"), "content": "a\n{{ vars.nope }}"}),
            "<string>:2",
        ),
    ];
    let before: BTreeMap<_, _> = snapshot(dir.path(), Depth::Everything);
    for (name, values, says) in cases {
        let error = run(&cx, name, values.clone()).unwrap_err();
        assert!(error.message.contains(says), "{name} {values}: {error}");
        let checked = check(&cx, name, values).unwrap_err();
        assert_eq!(checked, error, "check and run fail alike");
    }
    assert_eq!(snapshot(dir.path(), Depth::Everything), before);
}

/// A kill at any moment leaves the old or the new file; the next run removes what is left.
#[test]
fn killed_writers_leave_the_old_or_the_new_file() {
    const MARK: &str = "STEAD_TEST_KILLED_WRITER";
    if let Some(dir) = std::env::var_os(MARK) {
        // The child: writes two contents in turn until it is killed.
        let cx = context(Path::new(&dir));
        for i in 0.. {
            let content = ["old", "new"][i % 2].repeat(20_000);
            run(&cx, "file.present", json!({"path": path(Path::new(&dir), "f"), "content": content}))
                .unwrap();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let allowed = ["old".repeat(20_000), "new".repeat(20_000)];
    for round in 0..12 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["file::killed_writers_leave_the_old_or_the_new_file", "--exact"])
            .env(MARK, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !dir.path().join("f").exists() {
            std::thread::yield_now();
        }
        // Another moment each time; which one does not matter, every one must do.
        std::thread::sleep(std::time::Duration::from_micros(20_000 + 700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let content = std::fs::read_to_string(dir.path().join("f")).unwrap();
        assert!(allowed.contains(&content), "neither old nor new: {} bytes", content.len());
    }
    let last = json!({"path": path(dir.path(), "f"), "content": "done"});
    run(&context(dir.path()), "file.present", last).unwrap();
    assert_eq!(names(dir.path()), ["f"], "a leftover stayed");
}

/// Kills a writer at each system call that matters, injected by strace: old or new, and the next run converges.
#[test]
fn a_kill_at_each_system_call_leaves_the_old_or_the_new_file() {
    const MARK: &str = "STEAD_TEST_TRACED_WRITER";
    let content =
        |dir: &Path| json!({"path": path(dir, "f"), "content": "new", "mode": "0600", "backup": true});
    if let Some(dir) = std::env::var_os(MARK) {
        run(&context(Path::new(&dir)), "file.present", content(Path::new(&dir))).unwrap();
        return;
    }
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        assert!(std::env::var_os("STEAD_CI").is_none(), "strace is needed");
        println!("skipped: strace is not installed");
        return;
    }
    let mut killed = 0;
    for call in ["flock", "flistxattr", "fchmod", "fsync", "renameat", "renameat2"] {
        for when in 1..=2 {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("f"), "old").unwrap();
            let status = std::process::Command::new("strace")
                .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")])
                .args(["-e", &format!("inject={call}:signal=KILL:when={when}")])
                .arg(std::env::current_exe().unwrap())
                .args(["file::a_kill_at_each_system_call_leaves_the_old_or_the_new_file", "--exact"])
                .env(MARK, dir.path())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap();
            killed += usize::from(!status.success());
            let left = std::fs::read_to_string(dir.path().join("f")).unwrap();
            assert!(["old", "new"].contains(&left.as_str()), "{call} {when}: {left}");
            run(&context(dir.path()), "file.present", content(dir.path())).unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join("f")).unwrap(), "new");
            let strays = names(dir.path()).into_iter().filter(|name| name.contains("stead-tmp")).count();
            assert_eq!(strays, 0, "{call} {when}: {:?}", names(dir.path()));
        }
    }
    // Where tracing is not permitted nothing is killed, and this would show nothing.
    assert!(killed > 0, "no writer was killed: strace may not trace here");
}
