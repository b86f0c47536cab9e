//! Case 10 and sections 6: `finally`, limits of time, rollback.

use super::stage::{Stage, wait_for_end};

fn with_finally(head: &str, tasks: &str) -> Stage {
    Stage::new(&format!(
        "api_version: v1\nname: p\n{head}tasks:\n{tasks}finally:\n  - {{name: last, shell: 'echo \"$STATUS\" >> last', params: {{env: {{STATUS: '{{{{ run.status }}}}'}}}}}}\n"
    ))
}

/// Case 10: `finally` runs after success and after failure, and knows which it was.
#[test]
fn finally_runs_after_success_and_failure() {
    let stage = with_finally("", "  - {name: a, shell: 'true'}\n");
    let outcome = stage.run(&[]).exits(0);
    assert_eq!(outcome.statuses(), "a=changed last=changed");
    assert_eq!(stage.lines("last"), ["success"]);
    assert_eq!(outcome.get("last", "section"), "finally");

    let stage =
        with_finally("", "  - {name: a, shell: 'exit 1'}\n  - {name: b, depends_on: a, shell: 'true'}\n");
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(outcome.statuses(), "a=failed b=not_run last=changed");
    assert_eq!(stage.lines("last"), ["failed"]);
    assert!(outcome.when("task_not_run", "b") < outcome.when("task_ready", "last"));
}

/// Case 10: a plan that takes longer than it may: what runs is cancelled, `finally` runs, exit 8.
#[test]
fn a_plan_timeout_cancels_and_runs_finally() {
    let tasks =
        "  - {name: a, shell: 'echo $$ > pid; exec sleep 60'}\n  - {name: b, depends_on: a, shell: 'true'}\n";
    for (head, args) in
        [("timeout: 3s\n", &[][..]), ("", &["--timeout", "3s"]), ("timeout: 1h\n", &["--timeout", "3s"])]
    {
        let stage = with_finally(head, tasks);
        let outcome = stage.run(args).exits(8);
        assert_eq!(outcome.statuses(), "a=cancelled b=not_run last=changed");
        assert_eq!(outcome.report["status"], "timeout");
        assert_eq!(stage.lines("last"), ["timeout"]);
        wait_for_end(&stage.text("pid").unwrap());
        assert_eq!(outcome.of("cancel_requested")[0]["why"], "timeout");
    }
}

/// Section 6: the plan's limit is for the main part only.
#[test]
fn a_plan_timeout_does_not_count_finally() {
    let stage = Stage::new(
        "{api_version: v1, name: p, timeout: 4s, tasks: [{name: a, exec: ['true']}], finally: [{name: last, exec: [sleep, '5']}]}",
    );
    assert_eq!(stage.run(&[]).exits(0).statuses(), "a=changed last=changed");
}

/// Section 6: `finally` has a limit of its own.
#[test]
fn finally_has_its_own_limit() {
    let stage = Stage::new(
        "api_version: v1
name: p
finally_timeout: 3s
tasks:
  - {name: a, shell: 'true'}
finally:
  - {name: last, shell: 'echo $$ > pid; exec sleep 60'}
  - {name: after, depends_on: last, shell: 'true'}
",
    );
    let outcome = stage.run(&[]);
    assert_eq!(outcome.statuses(), "a=changed last=cancelled after=not_run");
    assert_eq!(outcome.report["status"], "failed");
    outcome.exits(1);
    wait_for_end(&stage.text("pid").unwrap());
}

/// Section 6: a failing `finally` task fails a successful run and stops no other; `stop_all` is refused there.
#[test]
fn a_failure_in_finally_fails_the_run_and_stops_nothing() {
    let plan = |more: &str| {
        format!(
            "api_version: v1
name: p
tasks:
  - {{name: a, shell: 'true'}}
finally:
  - {{name: f, shell: 'exit 1'{more}}}
  - {{name: g, depends_on: f, shell: 'true'}}
  - {{name: h, shell: 'true', when: \"results.a.status == 'changed' and run.status == 'success'\"}}
"
        )
    };
    let stage = Stage::new(&plan(""));
    let outcome = stage.run(&["--parallel", "1"]).exits(1);
    assert_eq!(outcome.statuses(), "a=changed f=failed g=skipped h=changed");
    assert_eq!(outcome.report["status"], "failed");

    let stage = Stage::new(&plan(", on_error: stop_all"));
    let outcome = stage.run(&[]).exits(3);
    assert_eq!(outcome.report["diagnostics"][0]["line"], 6, "{:#}", outcome.report);
}

/// Section 6: undo runs after a failure, dependents first, only for what changed; the report says what became of it.
#[test]
fn a_rollback_undoes_dependents_first() {
    let stage = with_finally(
        "on_failure: rollback\n",
        "  - {name: a, shell: 'true', undo: {op: command.shell, params: {script: 'echo a >> undone'}}}
  - {name: b, depends_on: a, shell: 'true', undo: {op: command.shell, params: {script: 'sleep 0.2; echo b >> undone; exit 1'}}}
  - {name: c, depends_on: b, shell: 'true', undo: {op: command.shell, params: {script: 'sleep 0.2; echo c >> undone'}}}
  - {name: same, shell: 'true', changed_when: 'false', undo: {op: command.shell, params: {script: 'echo same >> undone'}}}
  - {name: no-undo, depends_on: c, shell: 'true'}
  - {name: fails, depends_on: no-undo, shell: 'exit 1', undo: {op: command.shell, params: {script: 'echo fails >> undone'}}}
  - {name: after, depends_on: fails, shell: 'true', undo: {op: command.shell, params: {script: 'echo after >> undone'}}}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(stage.lines("undone"), ["fails", "c", "b", "a"]);
    let rollback = &outcome.report["rollback"];
    assert_eq!(rollback["done"], serde_json::json!(["a", "c", "fails"]));
    assert_eq!(rollback["failed"], serde_json::json!(["b"]));
    assert_eq!(rollback["missing"], serde_json::json!(["no-undo"]));
    assert_eq!((outcome.get("c", "undo"), outcome.get("b", "undo")), ("changed".into(), "failed".into()));
    assert!(outcome.when("undo_finished", "a") < outcome.when("task_ready", "last"), "before finally");
    assert_eq!(stage.lines("last"), ["failed"]);
    // Nothing is left to resume.
    let resumed = stage.resume(&[]);
    assert_eq!(resumed.code, Some(3), "{}", resumed.stderr);
}

/// Section 6: `undo: auto` of file operations gives back the very bytes and modes.
#[test]
fn undo_auto_restores_files_to_the_byte() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
vars: {dir: null}
tasks:
  - {name: replaced, op: file.present, params: {path: '{{ vars.dir }}/replaced', content: new, mode: '0600'}, undo: auto}
  - {name: made, op: file.present, params: {path: '{{ vars.dir }}/made', content: new}, undo: auto}
  - {name: removed, op: file.absent, params: {path: '{{ vars.dir }}/removed'}, undo: auto}
  - {name: line, op: file.line, params: {path: '{{ vars.dir }}/lines', line: more}, undo: auto}
  - {name: link, op: file.symlink, params: {path: '{{ vars.dir }}/link', to: replaced}, undo: auto}
  - {name: place, op: file.directory, params: {path: '{{ vars.dir }}/place'}, undo: auto}
  - {name: fails, depends_on: [replaced, made, removed, line, link, place], shell: 'exit 1'}
",
    );
    std::fs::create_dir(stage.path("d")).unwrap();
    let odd = b"old\xff\0bytes without an end of line";
    for name in ["d/replaced", "d/removed"] {
        std::fs::write(stage.path(name), odd).unwrap();
    }
    stage.write("d/lines", "one\r\ntwo");
    let mode = |name: &str| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(stage.path(name)).unwrap().permissions())
    };
    let (replaced, removed) = (mode("d/replaced"), mode("d/removed"));
    let dir = stage.path("d");
    let outcome = stage.run(&["--var", &format!("dir={}", dir.display())]).exits(1);
    assert_eq!(outcome.report["rollback"]["failed"], serde_json::json!([]), "{:#}", outcome.report);
    assert_eq!(outcome.report["rollback"]["done"].as_array().unwrap().len(), 6);
    assert_eq!(std::fs::read(stage.path("d/replaced")).unwrap(), odd);
    assert_eq!(std::fs::read(stage.path("d/removed")).unwrap(), odd);
    assert_eq!((mode("d/replaced"), mode("d/removed")), (replaced, removed));
    assert_eq!(std::fs::read(stage.path("d/lines")).unwrap(), b"one\r\ntwo");
    let mut left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["lines", "removed", "replaced"]);
}

/// Section 6: an inverse that there is none of is refused when it is journaled, and the rollback does not say `done`.
#[test]
fn what_cannot_be_brought_back_fails_its_undo() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
vars: {dir: null}
tasks:
  - {name: changed, op: git.checkout, undo: auto, params: {repo: '{{ vars.dir }}/repo', path: '{{ vars.dir }}/changed', force: true}}
  - {name: empty, op: git.checkout, undo: auto, params: {repo: '{{ vars.dir }}/repo', path: '{{ vars.dir }}/empty'}}
  - name: both
    undo: auto
    sequence:
      - {name: note, op: file.present, params: {path: '{{ vars.dir }}/note', content: x}}
      - {name: again, op: git.checkout, params: {repo: '{{ vars.dir }}/repo', path: '{{ vars.dir }}/again', force: true}}
  - {name: fails, depends_on: [changed, empty, both], shell: 'exit 1'}
",
    );
    let dir = stage.path("d");
    std::fs::create_dir_all(dir.join("empty")).unwrap();
    let made = std::process::Command::new("/bin/sh")
        .args([
            "-ec",
            "git init -q repo; cd repo; git config user.name t; git config user.email t@example.org
            echo one > f; git add f; git commit -qm one; cd ..
            for clone in changed again; do
              git clone -q repo $clone; (cd $clone; git checkout -q --detach; echo mine > f)
            done",
        ])
        .current_dir(&dir)
        .status();
    assert!(made.unwrap().success());
    let repo = format!("dir={}", dir.display());
    let outcome = stage.run(&["--var", &repo]).exits(1);
    let rollback = &outcome.report["rollback"];
    assert_eq!(rollback["done"], serde_json::json!(["empty"]), "{:#}", outcome.report);
    assert_eq!(rollback["failed"], serde_json::json!(["changed", "both"]), "{:#}", outcome.report);
    let codes: Vec<&serde_json::Value> =
        outcome.report["warnings"].as_array().unwrap().iter().map(|warning| &warning["code"]).collect();
    assert_eq!(codes, ["plan/no-inverse"; 2], "{:#}", outcome.report);
    let error = outcome.of("undo_finished");
    let error = error.iter().find(|event| event["task"] == "changed").unwrap()["error"].as_str().unwrap();
    assert!(error.contains("local: `git.checkout` changed something that nothing can bring back"), "{error}");
    assert_eq!(std::fs::read_dir(dir.join("empty")).unwrap().count(), 0, "it is empty again");
    assert!(!dir.join("note").exists(), "the rest of a task is undone");
}

/// Case 25 of reach: five mixed operations, then a sixth that fails: the tree is as it was, to the byte.
#[test]
fn a_failing_sixth_operation_leaves_the_tree_as_it_was() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
defaults: {target: image}
tasks:
  - {name: motd, op: file.present, params: {path: /etc/motd, content: new, mode: '0600', backup: false}, undo: auto}
  - {name: old, op: file.absent, depends_on: motd, params: {path: /srv/old, recursive: true}, undo: auto}
  - {name: hosts, op: hosts.entry, depends_on: old, params: {address: 10.0.0.7, names: [web]}, undo: auto}
  - {name: zone, op: timezone, depends_on: hosts, params: {zone: Europe/Vienna}, undo: auto}
  - {name: key, op: ssh.authorized_key, depends_on: zone, undo: auto, params: {user: zoe, keys: [
      'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f zoe']}}
  - {name: sixth, op: cron.entry, depends_on: key, params: {name: job, schedule: '{{ run.id }} * * * *', command: 'true'}, undo: auto}
",
    );
    let root = stage.path("image");
    let put = |path: &str, bytes: &[u8]| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let account = rustix::process::geteuid().as_raw();
    put(
        "etc/passwd",
        format!("zoe:x:{account}:{}::/home/zoe:/bin/sh\n", rustix::process::getegid().as_raw()).as_bytes(),
    );
    put("etc/motd", b"old \xff\0 without an end");
    put("etc/hosts", b"127.0.0.1 localhost\r\n10.0.0.8 web # other\r\n");
    put("etc/localtime", b"a copy");
    put("usr/share/zoneinfo/Europe/Vienna", b"TZif");
    put("srv/old/sub/file", b"content");
    put("home/zoe/.profile", b"");
    std::os::unix::fs::symlink("sub/file", root.join("srv/old/link")).unwrap();
    stage.write(
        "inventory.yaml",
        &format!("api_version: v1\nhosts:\n  image: {{transport: local, root: {}}}\n", root.display()),
    );
    let tree = || {
        let script =
            "find . -printf '%y %m %U:%G %p %l\n' | sort; find . -type f -exec sha256sum {} + | sort";
        let out =
            std::process::Command::new("/bin/sh").args(["-c", script]).current_dir(&root).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let before = tree();
    let outcome = stage.run(&[]).exits(1);
    for task in ["motd", "old", "hosts", "zone", "key"] {
        assert_eq!(outcome.get(task, "status"), "changed", "{:#}", outcome.task(task));
    }
    assert_eq!(outcome.get("sixth", "status"), "failed");
    let rollback = &outcome.report["rollback"];
    assert_eq!(rollback["done"], serde_json::json!(["motd", "old", "hosts", "zone", "key"]), "{rollback:#}");
    assert_eq!(tree(), before);
}

/// Sections 6 and 7: a sequence is undone whole, also the parts that an earlier attempt did.
#[test]
fn undo_auto_of_a_retried_sequence_undoes_every_part() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
vars: {dir: null}
tasks:
  - name: seq
    retry: {times: 1000, backoff: {initial: 50ms, max: 50ms}}
    undo: auto
    sequence:
      - {name: one, op: file.present, params: {path: '{{ vars.dir }}/one', content: new}}
      - {name: two, op: file.present, params: {path: '{{ vars.dir }}/sub/two', content: new}}
  - {name: fails, depends_on: seq, shell: 'exit 1'}
",
    );
    stage.write("one", "old");
    let dir = stage.path("p.yaml").parent().unwrap().display().to_string();
    let running = stage.start(&["--var", &format!("dir={dir}")]);
    // The second part fails as long as its directory is missing.
    running.wait_for_event("attempt_failed", Some("seq"));
    std::fs::create_dir(stage.path("sub")).unwrap();
    let outcome = running.finish().exits(1);
    assert!(outcome.task("seq")["attempts"].as_u64().unwrap() > 1);
    assert_eq!(outcome.report["rollback"]["done"], serde_json::json!(["seq"]));
    assert!(!stage.has("sub/two"));
    assert_eq!(stage.text("one").unwrap(), "old");
}

/// Sections 6 and 7: undo runs on the hosts that changed, and on no other.
#[test]
fn undo_runs_only_where_something_changed() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
tasks:
  - name: a
    target: [h1, h2, h3]
    shell: 'true'
    changed_when: \"host.name != 'h2'\"
    undo: {op: command.shell, params: {script: 'echo $STEAD_HOST >> undone'}}
  - {name: fails, depends_on: a, shell: 'exit 1'}
",
    )
    .with_hosts(&["h1", "h2", "h3"]);
    let outcome = stage.run(&[]).exits(1);
    assert_eq!(stage.lines("undone"), ["h1", "h3"]);
    assert_eq!(outcome.about("undo_started", "a")[0]["hosts"], serde_json::json!(["h1", "h3"]));
}

/// Section 6: `keep` is the default, and a cancelled run is not rolled back either.
#[test]
fn without_rollback_changes_are_kept() {
    let stage = Stage::of(
        "  - {name: a, shell: 'true', undo: {op: command.shell, params: {script: 'touch undone'}}}
  - {name: fails, depends_on: a, shell: 'exit 1'}
",
    );
    let outcome = stage.run(&[]).exits(1);
    assert!(!stage.has("undone") && outcome.report["rollback"].is_null());

    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
tasks:
  - {name: a, shell: 'true', undo: {op: command.shell, params: {script: 'touch undone'}}}
  - {name: waits, depends_on: a, shell: 'echo x > started; exec sleep 60'}
",
    );
    let running = stage.start(&[]);
    running.wait_for_file("started");
    running.signal(rustix::process::Signal::INT);
    running.finish().exits(130);
    assert!(!stage.has("undone"));
}

/// Section 6: a plan timeout is rolled back too.
#[test]
fn a_plan_timeout_is_rolled_back() {
    let stage = Stage::new(
        "api_version: v1
name: p
on_failure: rollback
timeout: 4s
tasks:
  - {name: a, shell: 'true', undo: {op: command.shell, params: {script: 'echo a >> undone'}}}
  - {name: waits, depends_on: a, shell: 'exec sleep 60', undo: {op: command.shell, params: {script: 'echo waits >> undone'}}}
",
    );
    let outcome = stage.run(&[]).exits(8);
    assert_eq!(outcome.report["status"], "timeout");
    assert!(stage.lines("undone").contains(&"a".to_owned()));
}

/// Section 6: `undo: auto` is refused for an operation that has no inverse.
#[test]
fn undo_auto_needs_an_inverse() {
    let outcome = Stage::of("  - {name: a, shell: 'true', undo: auto}\n").run(&[]).exits(3);
    assert_eq!(outcome.report["diagnostics"][0]["line"], 4, "{:#}", outcome.report);
}
