//! Plans that administer a whole system, run by the program inside a container.

use serde_json::Value;
use stead_testkit::container::Container;
use stead_testkit::stand_in;

const STEAD: &str = env!("CARGO_BIN_EXE_stead");

/// Writes a plan into the container and runs it, as root or as another account; returns exit code and report.
fn run(container: &Container, plan: &str, account: &[&str]) -> (i32, Value) {
    run_with(container, plan, account, &[])
}

/// As [`run`], with more options.
fn run_with(container: &Container, plan: &str, account: &[&str], more: &[&str]) -> (i32, Value) {
    container.sh(&format!(
        "mkdir -p /srv/plan; cat >/srv/plan/plan.yaml <<'END'\n{plan}END\nchmod -R a+rwX /srv/plan"
    ));
    let script = "cd /srv/plan; export HOME=/srv/plan; exec \"$@\"";
    let mut argv = vec!["/bin/sh", "-c", script, "sh"];
    argv.extend(account);
    argv.extend([STEAD, "plan", "run", "plan.yaml", "--json", "--yes"]);
    argv.extend(more);
    let out = container.run(&argv);
    let report = serde_json::from_slice(&out.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
    });
    (out.status.code().unwrap_or(-1), report)
}

fn task<'a>(report: &'a Value, name: &str) -> &'a Value {
    let tasks = report["tasks"].as_array().unwrap();
    tasks.iter().find(|task| task["name"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

/// Case 25 of reach: five mixed operations and a failing sixth; everything is as it was.
#[test]
fn a_rollback_takes_back_users_packages_and_files() {
    let Some(container) = Container::start() else { return };
    container.sh(
        "mkdir -p /srv/deb/DEBIAN /srv/deb/usr/share/st-app; echo 1 >/srv/deb/usr/share/st-app/version
        printf 'Package: st-app\\nVersion: 1.0\\nArchitecture: all\\nMaintainer: T <t@example.org>\\nDescription: t\\n' \\
            >/srv/deb/DEBIAN/control
        dpkg-deb -Znone -b /srv/deb /srv/st-app.deb >/dev/null; rm -r /srv/deb
        # Few packages and no sources: apt is quick then.
        : >/var/lib/dpkg/status; rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*",
    );
    let state = || {
        container.sh("cd /etc; sha256sum passwd group shadow gshadow subuid subgid hosts 2>/dev/null || true
            dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'
            ls -ld /home/* /usr/share/st-app /etc/st.conf 2>/dev/null || true")
    };
    let before = state();
    let plan = |last: &str| {
        format!(
            "api_version: v1
name: p
on_failure: rollback
tasks:
  - {{name: group, op: group.present, params: {{name: ops, gid: 1700}}, undo: auto}}
  - {{name: user, depends_on: group, op: user.present, params: {{name: zoe, groups: [ops]}}, undo: auto}}
  - {{name: package, depends_on: user, op: package.present, params: {{names: [/srv/st-app.deb]}}, undo: auto}}
  - {{name: file, depends_on: package, op: file.present, params: {{path: /etc/st.conf, content: x, owner: zoe}}, undo: auto}}
  - {{name: hosts, depends_on: file, op: file.line, params: {{path: /etc/hosts, line: 10.0.0.1 st}}, undo: auto}}
  - {{name: last, depends_on: hosts, shell: '{last}'}}
"
        )
    };
    let (code, report) = run(&container, &plan("exit 1"), &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(report["rollback"]["done"], serde_json::json!(["group", "user", "package", "file", "hosts"]));
    assert_eq!(state(), before, "{:#}", report["rollback"]);
    let (code, report) = run(&container, &plan("exit 0"), &[]);
    assert_eq!(code, 0, "{report:#}");
    assert_ne!(state(), before, "without the failure it is done");
}

/// A hash that was on the target before is brought back, and is in nothing that the run has recorded.
#[test]
fn a_rollback_restores_passwords_without_recording_them() {
    let Some(container) = Container::start() else { return };
    let hash = "$6$salt$0123456789abcdef";
    container.sh(&format!(
        "useradd -M ann; useradd -M bob; printf '%s\\n' 'ann:{hash}A' 'bob:{hash}B' | chpasswd -e"
    ));
    let shadow = || container.sh("grep -E '^(ann|bob):' /etc/shadow");
    let before = shadow();
    let plan = "api_version: v1
name: p
on_failure: rollback
tasks:
  - {name: ann, op: user.present, params: {name: ann, locked: true}, undo: auto}
  - {name: bob, depends_on: ann, op: user.absent, params: {name: bob}, undo: auto}
  - {name: last, depends_on: bob, shell: 'cp /etc/shadow /srv/then; exit 1'}
";
    let (code, report) = run(&container, plan, &[]);
    assert_eq!((code, &report["rollback"]["done"]), (1, &serde_json::json!(["ann", "bob"])), "{report:#}");
    assert_eq!(container.sh("grep -cE '^(ann:[$]|bob:)' /srv/then || true").trim(), "0", "both were changed");
    assert_eq!(shadow(), before);
    let recorded = container.sh("grep -rlF 0123456789abcdef /srv/plan || true");
    assert_eq!(recorded, "", "{report:#}");
}

/// What no journal keeps cannot be brought back by whoever comes after the process that knew it: the rollback says so, and
/// does the rest.
#[test]
fn a_rollback_after_a_crash_names_what_it_cannot_bring_back() {
    let Some(container) = Container::start() else { return };
    container.sh(
        "useradd -M ann; printf '%s\\n' 'ann:$6$salt$0123456789abcdef' | chpasswd -e; mkdir -p /srv/plan",
    );
    let plan = "api_version: v1
name: p
on_failure: rollback
tasks:
  - {name: note, op: file.present, params: {path: /srv/note, content: x}, undo: auto}
  - {name: ann, depends_on: note, op: user.present, params: {name: ann, locked: true}, undo: auto}
  - name: both
    depends_on: ann
    undo: auto
    sequence:
      - {name: other, op: file.present, params: {path: /srv/other, content: y}}
      - {name: open, op: user.present, params: {name: ann, locked: false}}
  - {name: last, depends_on: both, idempotent: true, shell: 'touch /srv/began; test -e /srv/go || sleep 600; exit 1'}
";
    container.sh(&format!("cat >/srv/plan/plan.yaml <<'END'\n{plan}END"));
    // It is killed as a power cut would: with all it runs.
    let killed = container.run(&[
        "/bin/sh",
        "-c",
        "cd /srv/plan; export HOME=/srv/plan; setsid \"$@\" >/dev/null & driver=$!
        while ! test -e /srv/began; do kill -0 $driver || exit 9; sleep 0.05; done; kill -KILL $driver; touch /srv/go",
        "sh",
        STEAD,
        "plan",
        "run",
        "plan.yaml",
        "--run-id",
        "r1",
        "--json",
        "--yes",
    ]);
    assert!(killed.status.success(), "{}", String::from_utf8_lossy(&killed.stderr));
    let script = "cd /srv/plan; export HOME=/srv/plan; exec \"$@\"";
    let resumed = container.run(&["/bin/sh", "-c", script, "sh", STEAD, "resume", "r1", "--json", "--yes"]);
    let report: Value = serde_json::from_slice(&resumed.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&resumed.stderr)));
    let rollback = &report["rollback"];
    assert_eq!(resumed.status.code(), Some(1), "{report:#}");
    assert_eq!(rollback["done"], serde_json::json!(["note"]), "{report:#}");
    assert_eq!(rollback["failed"], serde_json::json!(["ann", "both"]), "{report:#}");
    let undone = container.sh("grep undo_finished /srv/plan/.stead/runs/r1/events.jsonl");
    assert_eq!(undone.matches("what was there before holds a secret").count(), 2, "{undone}");
    assert_eq!(container.sh("ls /srv/note /srv/other 2>/dev/null || true"), "");
    assert_eq!(container.sh("grep -rlF 0123456789abcdef /srv/plan || true"), "");
}

/// Case 22 of reach: no service manager runs here, so the row is skipped as unsupported and the run succeeds.
#[test]
fn services_are_skipped_where_none_can_run() {
    let Some(container) = Container::start() else { return };
    let nobody: &[&str] = &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    for operation in ["service.started", "service.restarted"] {
        let plan = format!(
            "api_version: v1\nname: p\ntasks:\n  - {{name: web, op: {operation}, params: {{name: web}}}}\n"
        );
        // What is not there needs no privilege.
        for (account, more) in [(&[][..], &[][..]), (nobody, &[]), (nobody, &["--dry-run"])] {
            let (code, report) = run_with(&container, &plan, account, more);
            let web = task(&report, "web");
            assert_eq!(
                (code, web["status"].as_str(), web["cause"].as_str()),
                (0, Some("skipped"), Some("unsupported")),
                "{operation} {more:?}: {web:#}"
            );
        }
    }
}

/// Case 24 of reach: `reboot` on `local` fails and says why; nothing restarts.
#[test]
fn a_plan_does_not_restart_its_own_machine() {
    let Some(container) = Container::start() else { return };
    let (code, report) =
        run(&container, "api_version: v1\nname: p\ntasks:\n  - {name: r, op: reboot}\n", &[]);
    let refused = task(&report, "r");
    assert_eq!((code, refused["status"].as_str()), (1, Some("failed")), "{refused:#}");
    assert!(refused.to_string().contains("refused on `local`"), "{refused:#}");
    // Nor under another account.
    container.sh(
        "printf '#!/bin/sh\\nwhile [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\\n' >/usr/local/sbin/sudo
        chmod 755 /usr/local/sbin/sudo
        printf 'api_version: v1\\nhosts:\\n  local: {transport: local, become: sudo}\\n' >/srv/plan/inventory.yaml",
    );
    let plan = "api_version: v1\nname: p\ntasks:\n  - {name: a, op: file.absent, params: {path: /srv/none}}\n  \
        - {name: r, depends_on: a, op: reboot}\n";
    let (code, report) = run(&container, plan, &[]);
    assert_eq!((code, task(&report, "a")["status"].as_str()), (1, Some("unchanged")), "{report:#}");
    assert!(task(&report, "r").to_string().contains("refused on `local`"), "{report:#}");
}

/// Section 7, rule 6: a missing privilege is class `permanent` and names `become`.
#[test]
fn a_missing_privilege_names_become() {
    let Some(container) = Container::start() else { return };
    let plan = "api_version: v1
name: p
on_error: continue
tasks:
  - {name: user, op: user.present, params: {name: zoe}}
  - {name: shadow, op: user.present, params: {name: root, locked: true}}
  - {name: group, op: group.present, params: {name: ops}}
";
    let (code, report) =
        run(&container, plan, &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    assert_eq!(code, 1, "{report:#}");
    for name in ["user", "shadow", "group"] {
        let failed = task(&report, name);
        assert_eq!(
            (failed["status"].as_str(), failed["class"].as_str()),
            (Some("failed"), Some("permanent")),
            "{failed:#}"
        );
        assert!(failed.to_string().contains("become"), "{failed:#}");
    }
}

/// Section 7, rules 3 and 6: a restart that is not allowed fails a dry run as it fails the run.
#[test]
fn a_dry_run_sees_that_a_restart_is_not_allowed() {
    let Some(container) = Container::start() else { return };
    container.sh(&stand_in::systemd_script());
    container.sh("printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/web.service
        chmod 777 /run/stand-in; touch /run/stand-in/calls; chmod 666 /run/stand-in/calls");
    let nobody: &[&str] = &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let plan =
        "api_version: v1\nname: p\ntasks:\n  - {name: web, op: service.restarted, params: {name: web}}\n";
    for more in [&["--dry-run"][..], &[]] {
        let (code, report) = run_with(&container, plan, nobody, more);
        let web = task(&report, "web");
        assert_eq!(
            (code, web["status"].as_str(), web["class"].as_str()),
            (1, Some("failed"), Some("permanent")),
            "{more:?}: {web:#}"
        );
        assert!(web["error"].as_str().unwrap().contains("become"), "{more:?}: {web:#}");
    }
    let (code, report) = run_with(&container, plan, &[], &["--dry-run"]);
    assert_eq!((code, task(&report, "web")["status"].as_str()), (0, Some("changed")), "{report:#}");
}

/// Section 7, rule 3: what cannot be written fails a dry run as it fails the run; what an earlier task makes can be.
#[test]
fn a_dry_run_sees_what_cannot_be_written() {
    let Some(container) = Container::start() else { return };
    container.sh(
        "mkdir -p /srv/shut /srv/read-only /srv/open; echo old >/srv/shut/old; chmod 777 /srv/open
        mount -t tmpfs none /srv/read-only; echo old >/srv/read-only/old; mount -o remount,ro /srv/read-only",
    );
    let state = || container.sh("ls -lAR --time-style=full-iso /srv/shut /srv/read-only /srv/open");
    let before = state();
    let nobody: &[&str] = &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    for (account, operation, params, word) in [
        (nobody, "file.present", "path: /srv/shut/new, content: x", "another account can"),
        (nobody, "file.present", "path: /srv/shut/old, content: x", "another account can"),
        (
            nobody,
            "file.present",
            "path: /srv/shut/a/b/new, content: x, parents: true",
            "cannot make directory `/srv/shut/a`",
        ),
        (nobody, "file.directory", "path: /srv/shut/directory", "another account can"),
        (nobody, "file.symlink", "path: /srv/shut/link, to: old", "another account can"),
        (nobody, "file.absent", "path: /srv/shut/old", "another account can"),
        (&[], "file.present", "path: /srv/read-only/new, content: x", "Read-only file system"),
        (&[], "file.present", "path: /srv/read-only/old, mode: '0600'", "Read-only file system"),
        (&[], "file.absent", "path: /srv/read-only/old", "Read-only file system"),
    ] {
        let plan = format!(
            "api_version: v1\nname: p\ntasks:\n  - {{name: t, op: {operation}, params: {{{params}}}}}\n"
        );
        let rows = [&["--dry-run"][..], &[]].map(|more| {
            let (code, report) = run_with(&container, &plan, account, more);
            let row = task(&report, "t");
            assert_eq!(
                (code, &row["status"]),
                (1, &Value::from("failed")),
                "{operation} {params}: {report:#}"
            );
            (row["class"].clone(), row["error"].clone())
        });
        assert_eq!(rows[0], rows[1], "{operation} {params}");
        assert!(rows[0].1.as_str().unwrap().contains(word), "{operation} {params}: {}", rows[0].1);
    }
    assert_eq!(state(), before);
    let plan = "api_version: v1
name: p
tasks:
  - {name: directory, op: file.directory, params: {path: /srv/open/a}}
  - {name: below, depends_on: directory, op: file.present, params: {path: /srv/open/a/b/c, content: x, parents: true}}
";
    for more in [&["--dry-run"][..], &[]] {
        let (code, report) = run_with(&container, plan, nobody, more);
        assert_eq!((code, &task(&report, "below")["status"]), (0, &Value::from("changed")), "{report:#}");
    }
}
