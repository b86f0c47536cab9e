//! Every write operation: once, again, and after somebody changed the target by hand.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use super::lab::{Lab, statuses, task};

const OPERATIONS: &str = r#"api_version: v1
name: writing
tasks:
  - {name: directory, op: file.directory, params: {path: @/t/dir, parents: true}}
  - {name: present, op: file.present, params: {path: @/t/present, content: "hello\n"}, depends_on: directory}
  - {name: template, op: file.template, params: {path: @/t/template, content: "v={{ '{{' }} vars.version }}\n", vars: {version: 3}}, depends_on: directory}
  - {name: copy, op: file.copy, params: {path: @/t/copy, source: tree}, depends_on: directory}
  - {name: line, op: file.line, params: {path: @/t/lines, line: "b=2", match: "^b="}, depends_on: directory}
  - {name: block, op: file.block, params: {path: @/t/lines, name: own, block: "x\ny\n"}, depends_on: line}
  - {name: symlink, op: file.symlink, params: {path: @/t/link, to: present}, depends_on: directory}
  - {name: absent, op: file.absent, params: {path: @/t/unwanted}, depends_on: directory}
  - {name: unpacked, op: archive.unpacked, params: {path: @/t/unpacked, source: a.tar}, depends_on: directory}
  - {name: checkout, op: git.checkout, params: {path: @/t/checkout, repo: "{{ vars.repo }}", ref: main}, depends_on: directory}
vars: {repo: ""}
"#;

fn tool(dir: &Path, program: &str, args: &[&str]) {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", dir);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

fn prepared() -> (Lab, String) {
    let lab = Lab::new(OPERATIONS);
    lab.write("tree/one", "1\n");
    lab.write("tree/sub/two", "2\n");
    lab.write("t/lines", "a=1\nb=1\nc=3\n");
    lab.write("t/unwanted", "x");
    lab.write("packed/file", "packed\n");
    tool(lab.root(), "tar", &["-cf", "a.tar", "-C", "packed", "file"]);
    let repo = lab.path("repo");
    fs::create_dir(&repo).unwrap();
    tool(&repo, "git", &["init", "-q", "-b", "main"]);
    fs::write(repo.join("f"), "1\n").unwrap();
    tool(&repo, "git", &["add", "f"]);
    tool(&repo, "git", &["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "one"]);
    let var = format!("repo=file://{}", repo.display());
    (lab, var)
}

/// Case 18: changed, unchanged, and changed again after drift, which is repaired; what was not asked for stays.
#[test]
fn write_operations_change_once_and_repair_drift() {
    let (lab, repo) = prepared();
    let names = [
        "directory",
        "present",
        "template",
        "copy",
        "line",
        "block",
        "symlink",
        "absent",
        "unpacked",
        "checkout",
    ];
    let all = |status: &str| -> Vec<String> { names.iter().map(|name| format!("{name}:{status}")).collect() };
    let first = lab.plan_report(&["--var", &repo], 0);
    // `t` was there already.
    assert_eq!(statuses(&first), all("changed"));
    assert_eq!(lab.read("t/template"), "v=3\n");
    assert_eq!(lab.read("t/copy/sub/two"), "2\n");
    assert_eq!(lab.read("t/unpacked/file"), "packed\n");
    assert_eq!(lab.read("t/checkout/f"), "1\n");
    let lines = lab.read("t/lines");
    assert!(lines.starts_with("a=1\nb=2\nc=3\n"), "unspecified lines stay: {lines}");

    // Owner and mode were not asked for: a second run leaves them, and everything else, alone.
    fs::set_permissions(lab.path("t/present"), fs::Permissions::from_mode(0o604)).unwrap();
    fs::set_permissions(lab.path("t/lines"), fs::Permissions::from_mode(0o606)).unwrap();
    let before = lab.snapshot("t");
    let second = lab.plan_report(&["--var", &repo], 0);
    assert_eq!(statuses(&second), all("unchanged"));
    let mut after = lab.snapshot("t");
    // Git may refresh its own index when it looks.
    after.retain(|path, _| !path.starts_with(lab.path("t/checkout/.git")));
    for (path, seen) in &after {
        assert_eq!(before.get(path), Some(seen), "{}", path.display());
    }

    // Drift, made by hand.
    fs::remove_dir(lab.path("t/dir")).unwrap();
    lab.write("t/present", "hallo\n");
    lab.write("t/template", "v=4\n");
    lab.write("t/copy/one", "9\n");
    lab.write("t/lines", lines.replace("b=2", "b=7").replace('y', "z") + "last=1\n");
    fs::remove_file(lab.path("t/link")).unwrap();
    symlink("elsewhere", lab.path("t/link")).unwrap();
    lab.write("t/unwanted", "again");
    lab.write("t/unpacked/file", "other\n");
    fs::write(lab.path("repo/f"), "2\n").unwrap();
    tool(
        &lab.path("repo"),
        "git",
        &["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-am", "two"],
    );
    let third = lab.plan_report(&["--var", &repo], 0);
    assert_eq!(statuses(&third), all("changed"), "{}", task(&third, "unpacked"));
    assert_eq!(
        (lab.read("t/present"), lab.read("t/copy/one"), lab.read("t/checkout/f")),
        ("hello\n".into(), "1\n".into(), "2\n".into())
    );
    assert!(lab.read("t/lines").starts_with("a=1\nb=2\n") && lab.read("t/lines").contains("last=1\n"));
    assert_eq!(fs::metadata(lab.path("t/present")).unwrap().permissions().mode() & 0o777, 0o604);
    assert_eq!(fs::metadata(lab.path("t/lines")).unwrap().permissions().mode() & 0o777, 0o606);
    assert_eq!(statuses(&lab.plan_report(&["--var", &repo], 0)), all("unchanged"));
}

/// Case 18: a file that differs in nothing but an attribute that was asked for is changed, and only that attribute.
#[test]
fn only_the_asked_for_attribute_changes() {
    let plan = |mode: &str| {
        format!(
            "{{api_version: v1, name: m, tasks: [{{name: f, op: file.present, params: {{path: @/f, content: \"x\", mode: \"{mode}\"}}}}]}}"
        )
    };
    let lab = Lab::new(&plan("0640"));
    assert_eq!(statuses(&lab.plan_report(&[], 0)), ["f:changed"]);
    assert_eq!(statuses(&lab.plan_report(&[], 0)), ["f:unchanged"]);
    let inode = |lab: &Lab| lab.snapshot("f").values().next().unwrap().split(' ').nth(2).unwrap().to_owned();
    let before = inode(&lab);
    lab.write_plan(&plan("0600"));
    assert_eq!(statuses(&lab.plan_report(&[], 0)), ["f:changed"]);
    assert_eq!(fs::metadata(lab.path("f")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(inode(&lab), before, "the content is not written again");
}
