//! Every command once more, with everything in its place: exit code 0, one document on standard output, and none elsewhere.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{is_leaf, typed};
use crate::cases_17_32::lab::{Ended, Lab};
use crate::fleet::Fleet;

/// What is walked elsewhere, and where its one document is looked at.
const ELSEWHERE: [(&str, &str); 9] = [
    ("ui", "goes on until it is ended; `ui::Ui::start` reads its document"),
    ("fleet dev", "goes on until it is ended, a document per line"),
    ("fleet master", "goes on until it is ended; `fleet::daemons` reads its document"),
    ("fleet worker", "goes on until it is ended; `fleet::daemons` reads its document"),
    ("fleet publish", "`fleet::rollouts` reads its document"),
    ("agent run", "is a node's; `nodes::agents`"),
    ("agent signal converge", "is a node's; `nodes::agents`"),
    ("config apply", "is a node's; `nodes::applying` reads its document"),
    ("config fetch", "is a node's; `nodes::fetching`"),
];

/// A walk through commands, in one place.
struct Walk<'a> {
    lab: &'a Lab,
    /// The commands that were walked.
    done: BTreeSet<String>,
}

impl<'a> Walk<'a> {
    fn new(lab: &'a Lab) -> Self {
        Self { lab, done: BTreeSet::new() }
    }

    /// Runs a command with `--json` and returns its document.
    #[track_caller]
    fn run(&mut self, words: &str) -> Value {
        self.run_in(".", words)
    }

    /// Runs a command in a directory of the place.
    #[track_caller]
    fn run_in(&mut self, directory: &str, words: &str) -> Value {
        let words: Vec<&str> = words.split(' ').collect();
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let (flags, rest) = words.split_at(end);
        let argv = flags.iter().chain(&["--json"]).chain(rest).copied();
        let mut command = self.lab.stead(argv);
        command.env("HOME", self.lab.root()).current_dir(self.lab.path(directory));
        let ended: Ended = command.output().unwrap().into();
        let ended = ended.exits(0);
        let document = ended.document();
        assert!(document.is_array() || document["schema"] == 1, "{words:?}: {}", ended.stdout);
        assert!(ended.stdout.ends_with('\n') && !ended.stdout.ends_with("\n\n"), "{words:?}: {ended:?}");
        assert!(
            !ended.stderr.contains("\"schema\""),
            "{words:?} prints its document twice: {}",
            ended.stderr
        );
        let longest = typed()
            .into_iter()
            .filter(is_leaf)
            .map(|one| one.path)
            .filter(|path| words.starts_with(&as_words(path)));
        self.done.insert(longest.max_by_key(Vec::len).expect("it is a command").join(" "));
        document
    }
}

fn as_words(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

fn plans(walk: &mut Walk<'_>) {
    walk.run("init plan hello");
    walk.run("plan show hello/plan.yaml");
    walk.run("plan graph hello/plan.yaml");
    let dir = walk.lab.path("there");
    walk.run(&format!("plan run hello/plan.yaml --run-id r1 --var dir={}", dir.display()));
    walk.lab.write("late.yaml", "api_version: v1\nname: late\ntasks:\n  - {name: a, shell: test -e go}\n");
    walk.lab.run(["plan", "run", "late.yaml", "--run-id", "r2"]).exits(1);
    walk.lab.write("go", "");
    walk.run("resume r2");
    walk.run("exec local -- true");
    assert_eq!(walk.run("bundle list").as_array().unwrap().len(), 2);
    for verb in ["verify", "info", "report"] {
        walk.run(&format!("bundle {verb} r1"));
    }
    walk.run("bundle export r1 -o r1.zip");
    walk.run("bundle replay r1 --speed max");
    walk.run("explain plan/syntax");
    walk.run("doctor");
}

fn steps(walk: &mut Walk<'_>) {
    walk.run("init steps s");
    walk.run_in("s", "steps list");
    walk.run_in("s", "steps run");
    walk.run_in("s", "steps check");
    walk.run_in("s", "steps history");
    walk.lab.write("i/a.sh", "exit 0\n");
    walk.lab.write("i/a.yaml", "v: old\n");
    let catalogue = "api_version: v1\nname: i\nlayers: [{file: a.env}]\nvars: {A: {}}\nsteps: {a: {run: a.sh}}\n\
                     apply: [{phase: one, steps: [a]}]\nintents:\n  flip: {edits: [{file: a.yaml, path: v, value: new}]}\n";
    walk.lab.write("i/steps.yaml", catalogue);
    walk.lab.write("i/a.env", "A=1\n");
    walk.run_in("i", "steps explain A");
    walk.run_in("i", "intent flip");
}

fn roles(walk: &mut Walk<'_>) {
    walk.run("init run soak");
    let bundle = |document: &Value| document["bundle"].as_str().unwrap().to_owned();
    let first = bundle(&walk.run("run manifest soak/run.yaml"));
    let second = bundle(&walk.run("run manifest soak/run.yaml"));
    walk.run(&format!("diff run {first} {second} --role load"));
    walk.run("agent status");
    walk.run("agent list");
    walk.run("agent check local");
}

fn nodes(walk: &mut Walk<'_>) {
    walk.run("init nodes");
    let site = walk.lab.read("site-config/site.yaml");
    walk.lab.write("site-config/site.yaml", format!("{site}server: {{port: 0}}\n"));
    walk.run("token rotate");
    let token = walk.run("token mint --node edge --spec base")["token"].as_str().unwrap().to_owned();
    walk.run(&format!("token inspect {token}"));
    walk.run(&format!("token verify {token}"));
    walk.run("token revoke --node edge");
    walk.run("validate -M first -H local");
    walk.run("create -M first -H local --mode pull");
    walk.run("status -M first -H local");
    walk.run("drift -M first -H local");
    let job = walk.run("job submit --node one -- sleep 600")["id"].as_str().unwrap().to_owned();
    walk.run("job list");
    walk.run(&format!("job show {job}"));
    walk.run(&format!("job cancel {job}"));
    walk.lab.write("p.yaml", "api_version: v1\nname: p\ntasks:\n  - {name: a, shell: echo a}\n");
    walk.run("plan submit p.yaml --wait");
    walk.run("destroy -M first -H local --yes");
    walk.run("server start");
    walk.run("server status");
    walk.run("server stop");
    walk.run("test -M first -H local");
}

fn fleet(fleet: &Fleet) -> BTreeSet<String> {
    let head = fleet.git(&["rev-parse", "HEAD"]);
    fleet.converged(&head);
    let mut walk = Walk::new(&fleet.lab);
    walk.run("init fleet another");
    walk.run("fleet status");
    walk.run(&format!("fleet wait --commit {head}"));
    walk.run_in("fleet", "fleet plan HEAD");
    walk.run("fleet explain web/0");
    let hold = walk.run("fleet hold vm/web --for 1h --reason look")["id"].as_str().unwrap().to_owned();
    walk.run(&format!("fleet release {hold}"));
    walk.run("fleet token mint --role worker --name w9");
    walk.run("fleet token list");
    walk.run("fleet token revoke w9");
    walk.done
}

/// One document on success, from every command there is.
#[test]
fn every_command_succeeds_in_one_way() {
    let lab = Lab::new("");
    let mut walk = Walk::new(&lab);
    plans(&mut walk);
    steps(&mut walk);
    roles(&mut walk);
    nodes(&mut walk);
    let mut done = walk.done;
    done.append(&mut fleet(&Fleet::start()));
    for typed in typed().iter().filter(|typed| is_leaf(typed) && typed.has_json()) {
        let name = typed.path.join(" ");
        let is_elsewhere = ELSEWHERE.iter().any(|(command, _)| *command == name);
        assert!(done.contains(&name) != is_elsewhere, "stead {name}: walked here, or said why not");
    }
}
