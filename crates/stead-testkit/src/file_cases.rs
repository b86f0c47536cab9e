//! The cases of [`crate::operation_contract`] for files: for every carrier there is.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::operation_contract::{Case, World, nothing, nothing_kept};

fn write(path: impl AsRef<Path>, text: &str) {
    std::fs::write(path, text).expect("the test's own directory");
}

/// Sets permission bits.
///
/// # Panics
/// If the path is not there.
pub fn chmod(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the test's own directory");
}

fn attributes(path: &Path) -> String {
    path.symlink_metadata()
        .map_or_else(|_| "nothing".to_owned(), |m| format!("{:o} {} {}", m.mode() & 0o7777, m.uid(), m.gid()))
}

/// Returns an owner that can be given: root gives `id`, another account its own, which is true already.
pub fn owner(id: u32) -> Value {
    if rustix::process::geteuid().is_root() { id.into() } else { rustix::process::geteuid().as_raw().into() }
}

fn disown(path: impl AsRef<Path>) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(4242), Some(4243)).expect("the test's own directory");
    } else {
        chmod(path, 0o600);
    }
}

/// A case that says nothing yet.
pub const BASE: Case = Case {
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

/// `file.present`.
pub const PRESENT: &[Case] = &[
    Case {
        operation: "file.present",
        name: "content, mode and owner",
        params: || json!({"path": "{dir}/f", "content": "new\n", "mode": "0640", "owner": owner(7), "group": owner(8)}),
        half: |dir| write(dir.join("f"), "old\n"),
        drifts: &[
            ("content", |dir| write(dir.join("f"), "hand\n")),
            ("mode", |dir| chmod(dir.join("f"), 0o600)),
            ("owner", |dir| disown(dir.join("f"))),
            ("existence", |dir| std::fs::remove_file(dir.join("f")).expect("the test's own directory")),
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
        kept: |dir| std::fs::read_to_string(dir.join("f")).expect("the test's own directory"),
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "an empty file with parents",
        params: || json!({"path": "{dir}/a/b/f", "parents": true}),
        half: |dir| std::fs::create_dir(dir.join("a")).expect("the test's own directory"),
        ..BASE
    },
    Case {
        operation: "file.present",
        name: "binary content from a source",
        params: || json!({"path": "{dir}/f", "source": "bin"}),
        sources: |dir| std::fs::write(dir.join("bin"), [0, 159, 146, 150]).expect("the test's own directory"),
        half: |dir| std::fs::write(dir.join("f"), [255, 254]).expect("the test's own directory"),
        ..BASE
    },
];

/// Directories, links and absence.
pub const SHAPES: &[Case] = &[
    Case {
        operation: "file.absent",
        name: "a tree",
        params: || json!({"path": "{dir}/t", "recursive": true}),
        fresh: |dir| {
            std::fs::create_dir_all(dir.join("t/sub")).expect("the test's own directory");
            write(dir.join("t/sub/f"), "content");
            chmod(dir.join("t/sub/f"), 0o640);
            symlink("/outside", dir.join("t/link")).expect("the test's own directory");
            write(dir.join("other"), "stays");
            chmod(dir.join("t/sub"), 0o711);
        },
        half: |dir| std::fs::remove_file(dir.join("t/sub/f")).expect("the test's own directory"),
        drifts: &[("existence", |dir| write(dir.join("t"), "again"))],
        kept: |dir| std::fs::read_to_string(dir.join("other")).expect("the test's own directory"),
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
        half: |dir| std::fs::create_dir_all(dir.join("a/d")).expect("the test's own directory"),
        drifts: &[
            ("mode", |dir| chmod(dir.join("a/d"), 0o700)),
            ("owner", |dir| disown(dir.join("a/d"))),
            ("existence", |dir| std::fs::remove_dir(dir.join("a/d")).expect("the test's own directory")),
        ],
        ..BASE
    },
    Case {
        operation: "file.directory",
        name: "recursively",
        params: || json!({"path": "{dir}/d", "mode": "0750", "recurse": true}),
        fresh: |dir| {
            std::fs::create_dir_all(dir.join("d/sub")).expect("the test's own directory");
            write(dir.join("d/sub/f"), "content");
            symlink("nowhere", dir.join("d/link")).expect("the test's own directory");
        },
        half: |dir| chmod(dir.join("d/sub"), 0o750),
        drifts: &[("mode below", |dir| chmod(dir.join("d/sub/f"), 0o600))],
        kept: |dir| std::fs::read_to_string(dir.join("d/sub/f")).expect("the test's own directory"),
        ..BASE
    },
    Case {
        operation: "file.symlink",
        name: "over another link",
        params: || json!({"path": "{dir}/l", "to": "../new"}),
        half: |dir| symlink("old", dir.join("l")).expect("the test's own directory"),
        drifts: &[
            ("text", |dir| {
                std::fs::remove_file(dir.join("l")).expect("the test's own directory");
                symlink("hand", dir.join("l")).expect("the test's own directory");
            }),
            ("existence", |dir| std::fs::remove_file(dir.join("l")).expect("the test's own directory")),
        ],
        ..BASE
    },
    Case {
        operation: "file.symlink",
        name: "over a file and an empty directory, by force",
        params: || json!({"path": "{dir}/l", "to": "new", "force": true, "owner": owner(7), "group": owner(8)}),
        fresh: |dir| write(dir.join("l"), "was a file"),
        half: |dir| {
            std::fs::remove_file(dir.join("l")).expect("the test's own directory");
            std::fs::create_dir(dir.join("l")).expect("the test's own directory");
        },
        drifts: &[("owner", |dir| {
            if rustix::process::geteuid().is_root() {
                disown(dir.join("l"));
            } else {
                std::fs::remove_file(dir.join("l")).expect("the test's own directory");
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
            std::fs::create_dir_all(dir.join("d/l")).expect("the test's own directory");
            write(dir.join("d/gone"), "not yet");
            symlink("x", dir.join("d/f")).expect("the test's own directory");
        },
        drifts: &[
            ("content", |dir| write(dir.join("d/f"), "hand")),
            ("mode", |dir| chmod(dir.join("d/f"), 0o644)),
            ("absence", |dir| write(dir.join("d/gone"), "")),
        ],
        ..BASE
    },
];

/// Lines, blocks, templates and copies.
pub const EDITS: &[Case] = &[
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
            let text = std::fs::read_to_string(dir.join("f")).expect("the test's own directory");
            text.split('\n').filter(|line| !line.starts_with("b=")).collect::<Vec<_>>().join("\n")
        },
        ..BASE
    },
    Case {
        operation: "file.line",
        name: "in a new file",
        params: || json!({"path": "{dir}/f", "line": "b=2", "create": true}),
        half: |dir| write(dir.join("f"), "a"),
        drifts: &[("existence", |dir| {
            std::fs::remove_file(dir.join("f")).expect("the test's own directory")
        })],
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
            let text = std::fs::read_to_string(dir.join("f")).expect("the test's own directory");
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
            std::fs::create_dir_all(dir.join("tree/sub")).expect("the test's own directory");
            write(dir.join("tree/sub/f"), "content\n");
            write(dir.join("tree/run"), "#!/bin/sh\n");
            chmod(dir.join("tree/run"), 0o755);
            write(dir.join("tree/skip"), "no");
            write(dir.join("tree/x.bak"), "no");
            symlink("sub/f", dir.join("tree/link")).expect("the test's own directory");
        },
        half: |dir| {
            std::fs::create_dir_all(dir.join("t/extra/deep")).expect("the test's own directory");
            write(dir.join("t/extra/deep/f"), "goes");
            write(dir.join("t/run"), "old");
            chmod(dir.join("t/run"), 0o711);
        },
        drifts: &[
            ("content", |dir| write(dir.join("t/sub/f"), "hand")),
            ("link", |dir| {
                std::fs::remove_file(dir.join("t/link")).expect("the test's own directory");
                symlink("run", dir.join("t/link")).expect("the test's own directory");
            }),
            ("extra", |dir| write(dir.join("t/new"), "hand")),
            ("missing", |dir| std::fs::remove_dir_all(dir.join("t/sub")).expect("the test's own directory")),
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
            std::fs::remove_file(dir.join("f")).expect("the test's own directory");
            write(dir.join("f"), "hand");
        })],
        ..BASE
    },
];
