//! The operation contract: a table entry for every write operation, and proof that the suite can fail.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};
use stead_model::operation::RootSupport;
use stead_model::{Descriptor, Effect, Op};
use stead_runner::operation::{
    Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params, Registry,
};
use stead_testkit::operation_contract::{Case, World, nothing, nothing_kept, uncovered, violations};

pub(crate) fn write(path: impl AsRef<Path>, text: &str) {
    std::fs::write(path, text).unwrap();
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn attributes(path: &Path) -> String {
    path.symlink_metadata()
        .map_or_else(|_| "nothing".to_owned(), |m| format!("{:o} {} {}", m.mode() & 0o7777, m.uid(), m.gid()))
}

/// Owners can be changed by root alone; another account gives its own, which is true already.
fn owner(id: u32) -> Value {
    if rustix::process::geteuid().is_root() { id.into() } else { rustix::process::geteuid().as_raw().into() }
}

fn disown(path: impl AsRef<Path>) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(4242), Some(4243)).unwrap();
    } else {
        chmod(path, 0o600);
    }
}

pub(crate) const BASE: Case = Case {
    operation: "",
    name: "",
    world: World::Directory,
    params: || json!({}),
    sources: nothing,
    fresh: nothing,
    half: nothing,
    drifts: &[],
    kept: nothing_kept,
    ignore: |_| false,
};

const PRESENT: &[Case] = &[
    Case {
        operation: "file.present",
        name: "content, mode and owner",
        params: || json!({"path": "{dir}/f", "content": "new\n", "mode": "0640", "owner": owner(7), "group": owner(8)}),
        half: |dir| write(dir.join("f"), "old\n"),
        drifts: &[
            ("content", |dir| write(dir.join("f"), "hand\n")),
            ("mode", |dir| chmod(dir.join("f"), 0o600)),
            ("owner", |dir| disown(dir.join("f"))),
            ("existence", |dir| std::fs::remove_file(dir.join("f")).unwrap()),
        ],
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "content alone keeps mode and owner",
        params: || json!({"path": "{dir}/f", "content": "new\n"}),
        fresh: |dir| {
            write(dir.join("f"), "old");
            chmod(dir.join("f"), 0o751);
            disown(dir.join("f"));
        },
        half: |dir| write(dir.join("f"), "new"),
        kept: |dir| attributes(&dir.join("f")),
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "mode alone keeps content",
        params: || json!({"path": "{dir}/f", "mode": "0600"}),
        fresh: |dir| write(dir.join("f"), "mine"),
        kept: |dir| std::fs::read_to_string(dir.join("f")).unwrap(),
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "an empty file with parents",
        params: || json!({"path": "{dir}/a/b/f", "parents": true}),
        half: |dir| std::fs::create_dir(dir.join("a")).unwrap(),
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "binary content from a source",
        params: || json!({"path": "{dir}/f", "source": "bin"}),
        sources: |dir| std::fs::write(dir.join("bin"), [0, 159, 146, 150]).unwrap(),
        half: |dir| std::fs::write(dir.join("f"), [255, 254]).unwrap(),
        ..BASE
    },
];

const SHAPES: &[Case] = &[
    Case {
        operation: "file.absent",
        name: "a tree",
        params: || json!({"path": "{dir}/t", "recursive": true}),
        fresh: |dir| {
            std::fs::create_dir_all(dir.join("t/sub")).unwrap();
            write(dir.join("t/sub/f"), "content");
            chmod(dir.join("t/sub/f"), 0o640);
            symlink("/outside", dir.join("t/link")).unwrap();
            write(dir.join("other"), "stays");
            chmod(dir.join("t/sub"), 0o711);
        },
        half: |dir| std::fs::remove_file(dir.join("t/sub/f")).unwrap(),
        drifts: &[("existence", |dir| write(dir.join("t"), "again"))],
        kept: |dir| std::fs::read_to_string(dir.join("other")).unwrap(),
        ..BASE
    },
    Case {
        operation: "file.absent",
        name: "a file",
        params: || json!({"path": "{dir}/f"}),
        fresh: |dir| write(dir.join("f"), "content"),
        ..BASE
    },
    Case {
        operation: "file.directory",
        name: "mode and owner",
        params: || json!({"path": "{dir}/a/d", "mode": "0710", "owner": owner(7), "group": owner(8), "parents": true}),
        half: |dir| std::fs::create_dir_all(dir.join("a/d")).unwrap(),
        drifts: &[
            ("mode", |dir| chmod(dir.join("a/d"), 0o700)),
            ("owner", |dir| disown(dir.join("a/d"))),
            ("existence", |dir| std::fs::remove_dir(dir.join("a/d")).unwrap()),
        ],
        ..BASE
    },
    Case {
        operation: "file.directory",
        name: "recursively",
        params: || json!({"path": "{dir}/d", "mode": "0750", "recurse": true}),
        fresh: |dir| {
            std::fs::create_dir_all(dir.join("d/sub")).unwrap();
            write(dir.join("d/sub/f"), "content");
            symlink("nowhere", dir.join("d/link")).unwrap();
        },
        half: |dir| chmod(dir.join("d/sub"), 0o750),
        drifts: &[("mode below", |dir| chmod(dir.join("d/sub/f"), 0o600))],
        kept: |dir| std::fs::read_to_string(dir.join("d/sub/f")).unwrap(),
        ..BASE
    },
    Case {
        operation: "file.symlink",
        name: "over another link",
        params: || json!({"path": "{dir}/l", "to": "../new"}),
        half: |dir| symlink("old", dir.join("l")).unwrap(),
        drifts: &[
            ("text", |dir| {
                std::fs::remove_file(dir.join("l")).unwrap();
                symlink("hand", dir.join("l")).unwrap();
            }),
            ("existence", |dir| std::fs::remove_file(dir.join("l")).unwrap()),
        ],
        ..BASE
    },
    Case {
        operation: "file.symlink",
        name: "over a file and an empty directory, by force",
        params: || json!({"path": "{dir}/l", "to": "new", "force": true, "owner": owner(7), "group": owner(8)}),
        fresh: |dir| write(dir.join("l"), "was a file"),
        half: |dir| {
            std::fs::remove_file(dir.join("l")).unwrap();
            std::fs::create_dir(dir.join("l")).unwrap();
        },
        drifts: &[("owner", |dir| {
            if rustix::process::geteuid().is_root() {
                disown(dir.join("l"));
            } else {
                std::fs::remove_file(dir.join("l")).unwrap();
            }
        })],
        ..BASE
    },
    Case {
        operation: "file.restored",
        name: "kinds, content, attributes and absence",
        params: || {
            json!({"path": "{dir}/d", "entries": {
                ".": {"kind": "directory", "mode": "0755"}, "f": {"kind": "file", "mode": "0600", "text": "t"},
                "b": {"kind": "file", "base64": "AP8="}, "l": {"kind": "symlink", "to": "f"}, "gone": {"kind": "absent"}}})
        },
        half: |dir| {
            std::fs::create_dir_all(dir.join("d/l")).unwrap();
            write(dir.join("d/gone"), "not yet");
            symlink("x", dir.join("d/f")).unwrap();
        },
        drifts: &[
            ("content", |dir| write(dir.join("d/f"), "hand")),
            ("mode", |dir| chmod(dir.join("d/f"), 0o644)),
            ("absence", |dir| write(dir.join("d/gone"), "")),
        ],
        ..BASE
    },
];

const EDITS: &[Case] = &[
    Case {
        operation: "file.line",
        name: "replaced, other lines kept",
        params: || json!({"path": "{dir}/f", "line": "b=2", "match": "^b=", "mode": "0644"}),
        fresh: |dir| {
            write(dir.join("f"), "# comment\r\na=1\r\nb=1\r\nlast");
            chmod(dir.join("f"), 0o600);
        },
        half: |dir| chmod(dir.join("f"), 0o644),
        drifts: &[
            ("line", |dir| write(dir.join("f"), "# comment\r\na=1\r\nb=3\r\nlast")),
            ("mode", |dir| chmod(dir.join("f"), 0o640)),
        ],
        kept: |dir| {
            let text = std::fs::read_to_string(dir.join("f")).unwrap();
            text.split('\n').filter(|line| !line.starts_with("b=")).collect::<Vec<_>>().join("\n")
        },
        ..BASE
    },
    Case {
        operation: "file.line",
        name: "in a new file",
        params: || json!({"path": "{dir}/f", "line": "b=2", "create": true}),
        half: |dir| write(dir.join("f"), "a"),
        drifts: &[("existence", |dir| std::fs::remove_file(dir.join("f")).unwrap())],
        ..BASE
    },
    Case {
        operation: "file.block",
        name: "put in",
        params: || json!({"path": "{dir}/f", "name": "n", "block": "1\n2", "after": "^a"}),
        fresh: |dir| write(dir.join("f"), "a\nz"),
        half: |dir| write(dir.join("f"), "a\n# BEGIN stead n\n1\n# END stead n\nz"),
        drifts: &[
            ("block", |dir| write(dir.join("f"), "a\n# BEGIN stead n\nhand\n# END stead n\nz")),
            ("existence", |dir| write(dir.join("f"), "a\nz")),
        ],
        kept: |dir| {
            let text = std::fs::read_to_string(dir.join("f")).unwrap();
            format!("{} {}", text.starts_with("a\n"), text.ends_with("\nz"))
        },
        ..BASE
    },
    Case {
        operation: "file.template",
        name: "rendered",
        params: || json!({"path": "{dir}/f", "source": "t.j2", "vars": {"port": 8080}, "mode": "0600"}),
        sources: |dir| write(dir.join("t.j2"), "listen {{ vars.port }}\n"),
        half: |dir| write(dir.join("f"), "listen 80\n"),
        drifts: &[
            ("content", |dir| write(dir.join("f"), "listen 81\n")),
            ("mode", |dir| chmod(dir.join("f"), 0o644)),
        ],
        ..BASE
    },
    Case {
        operation: "file.copy",
        name: "a tree, deleting the rest",
        params: || json!({"path": "{dir}/t", "source": "tree", "delete": true, "exclude": ["skip", "*.bak"]}),
        sources: |dir| {
            std::fs::create_dir_all(dir.join("tree/sub")).unwrap();
            write(dir.join("tree/sub/f"), "content\n");
            write(dir.join("tree/run"), "#!/bin/sh\n");
            chmod(dir.join("tree/run"), 0o755);
            write(dir.join("tree/skip"), "no");
            write(dir.join("tree/x.bak"), "no");
            symlink("sub/f", dir.join("tree/link")).unwrap();
        },
        half: |dir| {
            std::fs::create_dir_all(dir.join("t/extra/deep")).unwrap();
            write(dir.join("t/extra/deep/f"), "goes");
            write(dir.join("t/run"), "old");
            chmod(dir.join("t/run"), 0o711);
        },
        drifts: &[
            ("content", |dir| write(dir.join("t/sub/f"), "hand")),
            ("link", |dir| {
                std::fs::remove_file(dir.join("t/link")).unwrap();
                symlink("run", dir.join("t/link")).unwrap();
            }),
            ("extra", |dir| write(dir.join("t/new"), "hand")),
            ("missing", |dir| std::fs::remove_dir_all(dir.join("t/sub")).unwrap()),
        ],
        ..BASE
    },
    Case {
        operation: "file.copy",
        name: "one file",
        params: || json!({"path": "{dir}/f", "source": "f", "mode": "0444"}),
        sources: |dir| write(dir.join("f"), "content"),
        half: |dir| write(dir.join("f"), "content"),
        drifts: &[("content", |dir| {
            std::fs::remove_file(dir.join("f")).unwrap();
            write(dir.join("f"), "hand");
        })],
        ..BASE
    },
];

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
    cases.extend_from_slice(crate::accounts::CASES);
    cases.extend_from_slice(crate::packages::CASES);
    cases.extend(crate::configuration::cases());
    cases.extend_from_slice(crate::services::CASES);
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
