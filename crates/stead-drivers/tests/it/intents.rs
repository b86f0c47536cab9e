//! `intent.edit` and `intent.commit`: several files or none, with the real Git.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use stead_drivers::intent::{self, IntentSurroundings, Prepared};
use stead_model::intent::FileEdit;
use stead_runner::operation::{Entry, OpContext, OpError, Outcome, Registry};
use stead_testkit::context::{context, params};
use stead_testkit::flow::{self, Ran};

/// A root with two files, in a repository of its own.
struct Place {
    dir: tempfile::TempDir,
}

const FILE: &str = "spec:\n  path: ./old # keep\n";

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["a.yaml", "b.yaml"] {
            place.write(name, FILE);
        }
        place
    }

    fn with_git() -> Self {
        let place = Self::new();
        place.git(&["init", "--quiet"]);
        place.git(&["config", "user.name", "test"]);
        place.git(&["config", "user.email", "test@example.com"]);
        place.git(&["add", "."]);
        place.git(&["commit", "--quiet", "-m", "first"]);
        place
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.root().join(name).parent().unwrap()).unwrap();
        fs::write(self.root().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.root().join(name)).unwrap()
    }

    fn git(&self, args: &[&str]) -> String {
        let said = Command::new("git").arg("-C").arg(self.root()).args(args).output().unwrap();
        assert!(said.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap()
    }

    fn prepare(&self, edits: &Value) -> Prepared {
        let edits: Vec<FileEdit> = serde_json::from_value(edits.clone()).unwrap();
        intent::prepare(&self.root(), &edits).unwrap()
    }

    fn problems(&self, edits: &Value) -> Vec<String> {
        let edits: Vec<FileEdit> = serde_json::from_value(edits.clone()).unwrap();
        let problems = intent::prepare(&self.root(), &edits).unwrap_err();
        problems
            .iter()
            .map(|problem| format!("{} {}: {}", problem.code, problem.place, problem.message))
            .collect()
    }

    fn run(&self, edits: &Value, commit: bool) -> Run {
        let surroundings = IntentSurroundings::new(self.root(), self.state(), &self.prepare(edits));
        let mut registry = Registry::new();
        intent::add_to(&mut registry, &surroundings);
        Run { registry, surroundings, cx: context(&self.root()), edits: edits.clone(), commit }
    }

    /// No journal, no temporary file.
    fn is_clean(&self) -> bool {
        let hidden = |path: &Path| {
            let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().contains(".stead-tmp")).count()
        };
        !intent::is_half_done(&self.state()) && hidden(&self.root()) == 0
    }
}

struct Run {
    registry: Registry,
    surroundings: IntentSurroundings,
    cx: OpContext,
    edits: Value,
    commit: bool,
}

impl Run {
    fn edit(&self) -> Result<Ran, OpError> {
        let Some(Entry::State(operation)) = self.registry.get("intent.edit") else { panic!("a state") };
        let given = json!({"intent": "test", "edits": self.edits, "commit": self.commit});
        flow::run(operation.as_ref(), &self.cx, &params(given))
    }

    fn commit(&self) -> Result<Outcome, OpError> {
        let Some(Entry::Action(action)) = self.registry.get("intent.commit") else { panic!("an action") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(action.run(&self.cx, &params(json!({"message": "intent test A=b"}))))
    }
}

fn both(value: &str) -> Value {
    json!([
        {"file": "a.yaml", "path": "spec.path", "value": value},
        {"file": "b.yaml", "path": "spec.path", "value": value},
    ])
}

/// Case 21, the operation: both files change in one value; again: nothing is written.
#[test]
fn both_files_change_and_a_second_run_writes_nothing() {
    let place = Place::new();
    fs::set_permissions(place.root().join("a.yaml"), fs::Permissions::from_mode(0o640)).unwrap();
    let ran = place.run(&both("./new"), false).edit().unwrap();
    assert!(ran.changed);
    for name in ["a.yaml", "b.yaml"] {
        assert_eq!(place.read(name), FILE.replace("./old", "./new"));
    }
    assert_eq!(fs::metadata(place.root().join("a.yaml")).unwrap().mode() & 0o7777, 0o640);
    assert!(place.is_clean());
    let inode = fs::metadata(place.root().join("a.yaml")).unwrap().ino();
    assert!(!place.run(&both("./new"), false).edit().unwrap().changed);
    assert_eq!(fs::metadata(place.root().join("a.yaml")).unwrap().ino(), inode);
}

#[test]
fn a_diff_has_a_and_b_and_three_lines() {
    let place = Place::new();
    place.write("a.yaml", "1: a\n2: b\n3: c\n4: d\nspec: {path: ./old}\n");
    assert_eq!(
        place.prepare(&both("./new")).diff(),
        "--- a/a.yaml\n+++ b/a.yaml\n@@ -2,4 +2,4 @@\n 2: b\n 3: c\n 4: d\n-spec: {path: ./old}\n+spec: {path: ./new}\n\
         --- a/b.yaml\n+++ b/b.yaml\n@@ -1,2 +1,2 @@\n spec:\n-  path: ./old # keep\n+  path: ./new # keep\n"
    );
    assert_eq!(place.prepare(&both("./old")).diff(), "");
}

#[test]
fn links_are_followed_inside_the_root_and_refused_outside() {
    let place = Place::new();
    fs::create_dir(place.root().join("real")).unwrap();
    fs::rename(place.root().join("a.yaml"), place.root().join("real/a.yaml")).unwrap();
    symlink("real/a.yaml", place.root().join("a.yaml")).unwrap();
    assert!(place.run(&both("./new"), false).edit().unwrap().changed);
    assert!(fs::symlink_metadata(place.root().join("a.yaml")).unwrap().is_symlink());
    assert_eq!(place.read("real/a.yaml"), FILE.replace("./old", "./new"));

    fs::write(place.dir.path().join("outside.yaml"), FILE).unwrap();
    fs::remove_file(place.root().join("a.yaml")).unwrap();
    symlink("../outside.yaml", place.root().join("a.yaml")).unwrap();
    assert_eq!(place.problems(&both("./x")), ["intent/file a.yaml: a link leads outside the root"]);
}

/// All problems of all files at once, nothing written.
#[test]
fn every_problem_of_every_file_is_told_at_once() {
    let place = Place::new();
    place.write("broken.yaml", "a: [1\nb: 2\n");
    place.write("other.yaml", "spec: {}\n");
    place.write("bytes.yaml", "");
    fs::write(place.root().join("bytes.yaml"), b"a: \xff\n").unwrap();
    fs::create_dir(place.root().join("dir.yaml")).unwrap();
    let at = |file: &str| json!({"file": file, "path": "spec.path", "value": "x"});
    let found = place.problems(&json!([
        at("missing.yaml"), at("broken.yaml"), at("other.yaml"), at("bytes.yaml"), at("dir.yaml"), at("../x.yaml"),
        {"file": "a.yaml", "path": "spec.path", "value": "./nowhere", "must_exist": true},
        {"file": "b.yaml", "path": "spec.path", "value": "../up", "must_exist": true},
    ]));
    let codes: Vec<&str> = found.iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        codes,
        [
            "intent/file ../x.yaml",
            "intent/path a.yaml",
            "intent/path b.yaml",
            "intent/file broken.yaml:2:2",
            "intent/file bytes.yaml:1:4",
            "intent/file dir.yaml",
            "intent/file missing.yaml",
            "intent/path other.yaml:1:7",
        ],
        "{found:#?}"
    );
}

#[test]
fn two_edits_of_one_file_are_one_change_and_may_not_disagree() {
    let place = Place::new();
    place.write("a.yaml", "x: 1\ny: 2\n");
    let edits = json!([
        {"file": "a.yaml", "path": "x", "value": 3},
        {"file": "./a.yaml", "path": "y", "value": true},
    ]);
    assert!(place.run(&edits, false).edit().unwrap().changed);
    assert_eq!(place.read("a.yaml"), "x: 3\ny: true\n");
    let edits =
        json!([{"file": "a.yaml", "path": "x", "value": 4}, {"file": "a.yaml", "path": "x", "value": 5}]);
    assert_eq!(place.problems(&edits), ["intent/path a.yaml:1:4: two edits set `x`, to different values"]);
}

#[test]
fn a_file_that_changed_since_it_was_shown_is_not_touched() {
    let place = Place::new();
    let run = place.run(&both("./new"), false);
    place.write("b.yaml", "# mine\nspec:\n  path: ./old\n");
    let ran = run.edit();
    let error = ran.map(|ran| ran.changed).unwrap_err();
    assert_eq!(error.message, "`b.yaml` changed since it was read; nothing was written");
    assert_eq!(place.read("a.yaml"), FILE);
    assert!(place.is_clean());
}

/// Case 24: one commit of the files, what else is staged stays staged.
#[test]
fn a_commit_has_exactly_the_edited_files() {
    let place = Place::with_git();
    place.write("other", "staged");
    place.git(&["add", "other"]);
    let run = place.run(&both("./new"), true);
    intent::ready_to_commit(&place.root(), &place.prepare(&both("./new")).files).unwrap();
    assert!(run.edit().unwrap().changed);
    let outcome = run.commit().unwrap();
    assert!(outcome.changed);
    assert_eq!(outcome.data.unwrap()["commit"], place.git(&["rev-parse", "HEAD"]).trim());
    assert_eq!(
        place.git(&["show", "--format=%s", "--name-only", "HEAD"]),
        "intent test A=b\n\na.yaml\nb.yaml\n"
    );
    assert_eq!(place.git(&["status", "--porcelain"]), "A  other\n");
    assert!(place.is_clean());
    // Nothing edited: no commit.
    let again = place.run(&both("./new"), true);
    assert!(!again.edit().unwrap().changed);
    let outcome = again.commit().unwrap();
    assert!(!outcome.changed);
    assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "2\n");
}

#[test]
fn a_refused_commit_puts_the_edit_back() {
    let place = Place::with_git();
    let hook = place.root().join(".git/hooks/pre-commit");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    // As formatters do: change the file, then fail.
    fs::write(&hook, "#!/bin/sh\necho '# hook' >> a.yaml\necho no >&2\nexit 1\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let run = place.run(&both("./new"), true);
    run.edit().unwrap();
    assert_eq!(place.read("b.yaml"), FILE.replace("./old", "./new"));
    let error = run.commit().unwrap_err();
    assert!(
        error.message.contains("no") && error.message.ends_with("the edit is put back"),
        "{}",
        error.message
    );
    assert_eq!((place.read("a.yaml"), place.read("b.yaml")), (FILE.to_owned(), FILE.to_owned()));
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert!(place.is_clean());
}

#[test]
fn an_edit_whose_commit_never_came_is_put_back() {
    let place = Place::with_git();
    let run = place.run(&both("./new"), true);
    run.edit().unwrap();
    assert!(intent::is_half_done(&place.state()));
    let error = intent::recover(&place.state(), &place.root()).unwrap_err();
    assert!(error.message.contains("another intent is at work"), "{}", error.message);
    assert_eq!(run.surroundings.settle().unwrap(), ["a.yaml", "b.yaml"]);
    assert_eq!(place.read("a.yaml"), FILE);
    assert!(place.is_clean());
    assert_eq!(run.surroundings.settle().unwrap(), Vec::<String>::new());
}

/// A journal may have come with a checkout: what it says of files elsewhere is not done.
#[test]
fn a_journal_that_is_not_of_this_root_is_not_believed() {
    let place = Place::with_git();
    let outside = place.dir.path().join("outside.yaml");
    let written = FILE.replace("./old", "./new");
    let journal = place.state().join("intents/switch.json");
    let run = place.run(&both("./new"), true);
    run.edit().unwrap();
    let genuine: Value = serde_json::from_slice(&fs::read(&journal).unwrap()).unwrap();
    run.surroundings.settle().unwrap();
    let path = |path: &Path| json!(stead_model::base64::encode(path.to_str().unwrap().as_bytes()));
    let recover = |change: &dyn Fn(&mut Value)| {
        let mut forged = genuine.clone();
        change(&mut forged);
        fs::write(&journal, forged.to_string()).unwrap();
        [outside.clone(), place.root().join("a.yaml"), place.root().join("b.yaml")]
            .iter()
            .for_each(|file| fs::write(file, &written).unwrap());
        intent::recover(&place.state(), &place.root())
    };
    let real = place.root().canonicalize().unwrap();
    symlink(place.dir.path(), place.root().join("out")).unwrap();
    let forgeries: [&dyn Fn(&mut Value); 6] = [
        &|journal| journal["files"][0]["place"] = path(&outside),
        &|journal| {
            journal["files"][0]["name"] = json!("../outside.yaml");
            journal["files"][0]["place"] = path(&outside);
        },
        &|journal| {
            journal["files"][0]["name"] = json!("out/outside.yaml");
            journal["files"][0]["place"] = path(&outside);
        },
        &|journal| journal["files"][0]["place"] = path(&real.join("out/nothing.yaml")),
        &|journal| journal["schema"] = json!(2),
        &|journal| journal["root"] = path(place.dir.path()),
    ];
    for (number, forgery) in forgeries.iter().enumerate() {
        let error = recover(forgery).unwrap_err();
        let wanted = if number == 5 { "was cut off in" } else { "is not a journal of an intent" };
        assert!(error.message.contains(wanted), "{number}: {}", error.message);
        assert_eq!(fs::read_to_string(&outside).unwrap(), written, "{number}");
        assert_eq!((place.read("a.yaml"), place.read("b.yaml")), (written.clone(), written.clone()));
    }
    fs::remove_file(&journal).unwrap();
    symlink(&outside, &journal).unwrap();
    assert!(intent::recover(&place.state(), &place.root()).is_err());
    fs::remove_file(&journal).unwrap();
    // As it was written it is believed.
    let recovered = recover(&|_| ()).unwrap().unwrap();
    assert_eq!(recovered.put_back, ["a.yaml", "b.yaml"]);
    assert_eq!(place.read("a.yaml"), FILE);
    assert!(place.is_clean());
}

/// Documents of one file are told apart, whatever values they have and give each other.
#[test]
fn two_documents_of_a_file_may_swap_their_values() {
    let place = Place::new();
    let docs = "kind: A\nspec: {path: green}\n---\nkind: B\nspec: {path: blue}\n";
    place.write("docs.yaml", docs);
    let edit = |select: Value, value: &str| json!({"file": "docs.yaml", "select": select, "path": "spec.path", "value": value});
    let swap = json!([edit(json!({"kind": "A"}), "blue"), edit(json!({"kind": "B"}), "green")]);
    let swapped = docs.replace("green", "x").replace("blue", "green").replace("path: x", "path: blue");
    assert_eq!(place.prepare(&swap).files[0].after, swapped);
    // However it is picked, one value is one value.
    place.write("docs.yaml", &docs.replace("kind: A", "kind: A\nname: a"));
    let twice = json!([edit(json!({"kind": "A"}), "blue"), edit(json!({"name": "a"}), "red")]);
    assert!(place.problems(&twice)[0].contains("two edits set `spec.path`"));
}

/// Case 24: what is in the way of a commit is said before anything is edited.
#[test]
fn what_is_in_the_way_of_a_commit_is_said_before() {
    let refused = |place: &Place| -> Vec<String> {
        let problems = intent::ready_to_commit(&place.root(), &place.prepare(&both("./new")).files);
        let problems = problems.map(|_| ()).unwrap_err();
        problems
            .iter()
            .map(|problem| format!("{} {}: {}", problem.code, problem.place, problem.message))
            .collect()
    };
    let none = Place::new();
    let said = refused(&none);
    assert!(said[0].starts_with("intent/dirty --commit: --commit needs a Git work tree"), "{said:?}");

    let place = Place::with_git();
    place.write("a.yaml", &FILE.replace("# keep", "# changed"));
    place.git(&["rm", "--quiet", "--cached", "b.yaml"]);
    assert_eq!(
        refused(&place),
        [
            "intent/dirty a.yaml: the file has uncommitted changes",
            "intent/dirty b.yaml: Git does not track the file"
        ]
    );

    let place = Place::with_git();
    place.write("a.yaml", &FILE.replace("# keep", "# staged"));
    place.git(&["add", "a.yaml"]);
    place.write("a.yaml", FILE);
    assert_eq!(refused(&place), ["intent/dirty a.yaml: the file has uncommitted changes"]);

    for state in ["MERGE_HEAD", "rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD", "REVERT_HEAD"] {
        let place = Place::with_git();
        fs::write(place.root().join(".git").join(state), "").unwrap();
        assert!(refused(&place)[0].contains("is under way in"), "{state}");
    }
}
