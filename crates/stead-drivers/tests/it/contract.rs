//! The operation contract: a table entry for every write operation, and proof that the suite can fail.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use stead_model::operation::RootSupport;
use stead_model::{Descriptor, Effect, Op};
use stead_runner::operation::{
    Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params, Registry,
};
use stead_testkit::file_cases::{EDITS, PRESENT, SHAPES, chmod, owner};
use stead_testkit::operation_contract::{Case, uncovered, violations};

pub(crate) use stead_testkit::file_cases::BASE;

pub(crate) fn write(path: impl AsRef<Path>, text: &str) {
    std::fs::write(path, text).unwrap();
}

const FETCHED: &[Case] = &[
    Case {
        operation: "archive.unpacked",
        name: "a local tar",
        params: || json!({"source": "a.tar.gz", "path": "{dir}/t", "strip": 1, "owner": owner(7)}),
        sources: |dir| {
            std::fs::create_dir_all(dir.join("top/sub")).unwrap();
            write(dir.join("top/sub/f"), "content\n");
            write(dir.join("top/run"), "#!/bin/sh\n");
            chmod(dir.join("top/run"), 0o755);
            symlink("sub/f", dir.join("top/link")).unwrap();
            sh(dir, "tar czf a.tar.gz top");
        },
        half: |dir| {
            std::fs::create_dir_all(dir.join("t/sub")).unwrap();
            write(dir.join("t/sub/f"), "old\n");
            write(dir.join("t/mine"), "kept");
        },
        drifts: &[
            ("content", |dir| write(dir.join("t/sub/f"), "hand\n")),
            ("owner", |dir| {
                if rustix::process::geteuid().is_root() {
                    std::os::unix::fs::lchown(dir.join("t/run"), Some(4242), None).unwrap();
                } else {
                    std::fs::remove_file(dir.join("t/run")).unwrap();
                }
            }),
            ("missing", |dir| std::fs::remove_file(dir.join("t/link")).unwrap()),
        ],
        kept: |dir| std::fs::read_to_string(dir.join("t/mine")).unwrap_or_default(),
        ..BASE
    },
    Case {
        operation: "git.checkout",
        name: "a branch",
        params: || json!({"repo": "{sources}/repo", "path": "{dir}/c", "ref": "main"}),
        sources: |dir| make_repository(&dir.join("repo")),
        half: |dir| {
            let repo = dir.parent().unwrap().parent().unwrap().join("sources/repo");
            sh(
                dir,
                &format!("git clone -q '{}' c && cd c && git checkout -q --detach HEAD~1", repo.display()),
            );
        },
        drifts: &[("commit", |dir| sh(dir, "cd c && git checkout -q --detach HEAD~1"))],
        ignore: |path| path.contains(".git"),
        ..BASE
    },
];

/// Returns what is in a container's `/tmp`. A test that itself lies below it finds itself there.
pub(crate) fn in_tmp() -> BTreeSet<OsString> {
    std::fs::read_dir("/tmp").unwrap().flatten().map(|entry| entry.file_name()).collect()
}

/// Runs a line of shell in `dir`, to prepare a test.
pub(crate) fn sh(dir: &Path, script: &str) {
    let out = std::process::Command::new("/bin/sh").arg("-ec").arg(script).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Makes a repository with two commits on `main`, an annotated tag `v1` on the first, and a branch `side`.
pub(crate) fn make_repository(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    sh(
        path,
        "export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
        git init -q -b main; git config user.name t; git config user.email t@example.org
        echo one > f; git add f; git commit -qm one; git tag -a v1 -m v1
        git branch side; echo two > f; mkdir d; echo new > d/g; git add .; git commit -qm two",
    );
}

fn cases() -> Vec<Case> {
    let mut cases = [PRESENT, SHAPES, EDITS, FETCHED].concat();
    cases.extend_from_slice(stead_testkit::system_cases::accounts::CASES);
    cases.extend_from_slice(stead_testkit::system_cases::packages::CASES);
    cases.extend(crate::configuration::cases());
    cases.extend_from_slice(stead_testkit::system_cases::services::CASES);
    cases.extend_from_slice(crate::containers::CASES);
    cases
}

#[test]
fn archives_and_checkouts_keep_the_contract() {
    passes(FETCHED);
}

pub(crate) fn passes(cases: &[Case]) {
    let registry = stead_drivers::Drivers::standard();
    let found: Vec<String> = cases.iter().flat_map(|case| violations(&registry, case)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Case 18, and case 17 of reach: a file with content.
#[test]
fn files_keep_the_contract() {
    passes(PRESENT);
}

#[test]
fn directories_links_and_absence_keep_the_contract() {
    passes(SHAPES);
}

#[test]
fn edits_templates_and_copies_keep_the_contract() {
    passes(EDITS);
}

#[test]
fn every_write_operation_has_an_entry() {
    assert_eq!(uncovered(&stead_drivers::Drivers::standard(), &cases()), Vec::<&str>::new());
}

/// Says `changed` every time, or predicts something else than it does.
struct Dummy {
    always_changed: bool,
}

static DUMMY: Descriptor = Descriptor {
    name: "dummy",
    summary: "Breaks the contract.",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::None,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

impl Operation for Dummy {
    fn descriptor(&self) -> &'static Descriptor {
        &DUMMY
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        if self.always_changed {
            return Ok(Observed(json!(cx.predicted.get("dummy").is_none())));
        }
        // What it predicts hangs on how often it was asked.
        let asked = cx.base_dir.join("asked");
        let before = std::fs::read_to_string(&asked).unwrap_or_default();
        write(&asked, &format!("{before}."));
        let done = Path::new(params.required("path")?).exists() || cx.predicted.get("dummy").is_some();
        Ok(Observed(if done { Value::Null } else { before.into() }))
    }

    fn diff(&self, _: &Params, seen: &Observed) -> Diff {
        let differs = self.always_changed || !seen.0.is_null();
        let field = FieldDiff { name: "field".to_owned(), before: seen.0.clone(), after: Value::Null };
        Diff { fields: if differs { vec![field] } else { Vec::new() }, text: None }
    }

    fn apply(&self, _: &OpContext, params: &Params, _: &Diff) -> Result<Applied, OpError> {
        write(params.required("path")?, "");
        Ok(Applied::default())
    }

    fn predict(&self, cx: &OpContext, _: &Params, _: &Diff) {
        cx.predicted.set("dummy", Value::Null);
    }

    fn inverse(&self, _: &Params, _: &Observed) -> Option<Op> {
        None
    }
}

/// Case 17 of reach: the suite refuses operations that break the contract.
#[test]
fn the_suite_can_fail() {
    let case = Case { operation: "dummy", name: "broken", params: || json!({"path": "{dir}/f"}), ..BASE };
    for (always_changed, says) in [(true, "still different"), (false, "check said")] {
        let mut registry = Registry::new();
        registry.add_operation(Dummy { always_changed });
        let found = violations(&registry, &case);
        assert!(found.iter().any(|line| line.contains(says)), "{found:?}");
        assert_eq!(uncovered(&registry, &[]), ["dummy"]);
    }
}
