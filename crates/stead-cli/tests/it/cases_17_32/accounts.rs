//! The program as people start it: without root, and with tools that read their settings from a home directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use super::lab::{Ended, Lab, program, task};

/// An account that owns nothing: `nobody` on most systems, and a number everywhere.
const NOBODY: u32 = 65_534;

fn sh(dir: &Path, script: &str) {
    let ended: Ended =
        Command::new("/bin/sh").args(["-ec", script]).current_dir(dir).output().unwrap().into();
    ended.exits(0);
}

/// Returns a lab in which [`command`] runs without root; nothing if root cannot be given up.
fn unprivileged(plan: &str) -> Option<Lab> {
    give_away(Lab::new(plan))
}

/// Gives a lab, with all that is in it, to who is not root; nothing if root cannot be given up.
pub(crate) fn give_away(lab: Lab) -> Option<Lab> {
    if rustix::process::geteuid().is_root() {
        program("setpriv")?;
        // The account can reach neither the build directory nor a private temporary one.
        fs::copy(env!("CARGO_BIN_EXE_stead"), lab.path("stead")).unwrap();
        fs::set_permissions(lab.path("stead"), fs::Permissions::from_mode(0o755)).unwrap();
        sh(lab.root(), &format!("chown -R {NOBODY}:{NOBODY} ."));
    }
    Some(lab)
}

/// Gives a file of the lab to the account.
fn own(lab: &Lab, name: &str) {
    if rustix::process::geteuid().is_root() {
        chown(lab.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Returns the command with these arguments, started without root.
pub(crate) fn command(lab: &Lab, args: &[&str]) -> Command {
    let mut command = lab.stead(args.iter().copied());
    if rustix::process::geteuid().is_root() {
        let inner: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new("setpriv");
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups", "--"]);
        command.arg(lab.path("stead")).args(inner).current_dir(lab.root());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_LAB", lab.root());
    }
    command.env("XDG_CACHE_HOME", lab.path("cache")).stdin(std::process::Stdio::null());
    command
}

/// Section 14, and what `examples/README.md` says: the shipped example needs no root.
#[test]
fn the_shipped_example_runs_without_root() {
    let Some(lab) = unprivileged("{api_version: v1, name: unused, tasks: []}") else { return };
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let plan = fs::read_to_string(shipped.join("first.yaml")).unwrap();
    let site = lab.path("site");
    lab.write("first.yaml", plan.replace("/tmp/stead-first", site.to_str().unwrap()));
    lab.write("first.conf.template", fs::read(shipped.join("first.conf.template")).unwrap());
    let run = |args: &[&str]| -> Ended {
        let args: Vec<&str> = ["plan", "run", "first.yaml"].iter().chain(args).copied().collect();
        command(&lab, &args).output().unwrap().into()
    };
    let predicted = run(&["--dry-run", "--json"]).exits(0).document();
    assert_eq!(task(&predicted, "site")["status"], "changed");
    assert!(!site.exists() && !lab.path("state").exists());
    let first = run(&["--run-id", "r1", "--json"]).exits(0).document();
    assert_eq!(
        (&first["status"], &task(&first, "logo")["attempts"]),
        (&"success".into(), &2.into()),
        "{first}"
    );
    let second = run(&["--run-id", "r2", "--json"]).exits(0).document();
    assert_eq!(second["counts"]["changed"], 0, "{second}");
    lab.verify("r1");
    if rustix::process::geteuid().is_root() {
        use std::os::unix::fs::MetadataExt as _;
        for path in [site.join("index.html"), lab.bundle("r1").join("report.json"), lab.path("state/locks")] {
            assert_eq!(path.metadata().unwrap().uid(), NOBODY, "{}", path.display());
        }
    }
}

/// Case 18: submodules of a real repository are checked out, brought up to date, and repaired, each exactly once.
#[test]
fn a_checkout_takes_its_submodules_along() {
    let lab = Lab::new(
        "api_version: v1\nname: checkout\nvars: {submodules: true, force: false}\ntasks:\n  - {name: c, op: git.checkout, params: {repo: @/outer, path: @/c, submodules: \"{{ vars.submodules }}\", force: \"{{ vars.force }}\"}}\n",
    );
    // Local submodules are refused by git unless its owner allows them.
    lab.write(
        "home/.gitconfig",
        "[protocol \"file\"]\n\tallow = always\n[user]\n\tname = t\n\temail = t@example.org\n",
    );
    let home = lab.path("home");
    let git = |script: &str| sh(lab.root(), &format!("export HOME='{}'\n{script}", home.display()));
    git(
        "git init -q -b main deep; (cd deep; echo deep > f; git add f; git commit -qm deep)
        git init -q -b main inner; (cd inner; git submodule --quiet add ../deep deep; echo one > f; git add f; git commit -qm one)
        git init -q -b main outer; (cd outer; git submodule --quiet add ../inner inner; echo top > f; git add f; git commit -qm top)",
    );
    let run = |args: &[&str]| -> Ended {
        let mut command = lab.stead(["plan", "run", "p.yaml"].iter().chain(args).copied());
        command.env("HOME", &home).output().unwrap().into()
    };
    let changed = |args: &[&str]| {
        let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
        let report = run(&args).exits(0).document();
        task(&report, "c")["changed"].as_bool().unwrap()
    };
    assert!(changed(&["--dry-run"]) && !lab.path("c").exists());
    assert!(changed(&[]));
    assert_eq!(
        (lab.read("c/inner/f"), lab.read("c/inner/deep/f")),
        ("one\n".to_owned(), "deep\n".to_owned())
    );
    assert!(!changed(&["--dry-run"]) && !changed(&[]), "the second time there is nothing to do");
    // A new commit of the submodule that the outer repository points to.
    git(
        "cd inner; echo two > f; git commit -qam two; cd ../outer/inner; git pull -q origin main; cd ..; git commit -qam moved",
    );
    assert!(changed(&["--dry-run"]) && lab.read("c/inner/f") == "one\n");
    assert!(changed(&[]) && !changed(&[]));
    assert_eq!(lab.read("c/inner/f"), "two\n");
    // Drift: a submodule on another commit, and one that was never fetched.
    git("cd c/inner; git checkout -q HEAD~1; git submodule --quiet deinit --force deep");
    assert!(changed(&["--dry-run"]) && changed(&[]) && !changed(&[]));
    assert_eq!(
        (lab.read("c/inner/f"), lab.read("c/inner/deep/f")),
        ("two\n".to_owned(), "deep\n".to_owned())
    );
    // Without `submodules` they are nobody's business.
    git("cd c/inner; git checkout -q HEAD~1");
    assert!(!changed(&["--var", "submodules=false"]));
    assert!(changed(&[]));
    // What git refuses is told: here a submodule that went away.
    git("mv deep gone; rm -rf c");
    run(&[]).exits(1).says("submodule");
}

/// Section 7 of reach, rule 5: the program's own place for copies is the account's; they survive the program's death.
#[test]
fn a_resumed_run_rolls_back_large_files_from_the_accounts_cache() {
    let Some(lab) = unprivileged(
        "api_version: v1\nname: large\non_failure: rollback\ngrace: 1s\ntasks:\n  - {name: w, op: file.present, params: {path: @/large, content: small}, undo: auto}\n  - {name: f, depends_on: w, idempotent: true, shell: 'touch started; test -e go || sleep 60; exit 1'}\n",
    ) else {
        return;
    };
    let before: Vec<u8> = (0..3_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    lab.write("large", &before);
    own(&lab, "large");
    let mut running = command(&lab, &["plan", "run", "p.yaml", "--run-id", "r1"]).spawn().unwrap();
    lab.wait_for_file("started");
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(lab.read("large"), "small");
    lab.write("go", "");
    let ended: Ended = command(&lab, &["resume", "r1", "--json"]).output().unwrap().into();
    let report = ended.exits(1).document();
    assert_eq!(report["rollback"]["done"], serde_json::json!(["w"]), "{report}");
    assert!(fs::read(lab.path("large")).unwrap() == before);
    let kept = lab.path("cache/stead/undo/r1");
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 1);
}
