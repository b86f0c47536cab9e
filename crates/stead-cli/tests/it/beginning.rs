//! `stead init plan|steps|run`: what is written works as it stands.

use crate::cases_17_32::lab::{Ended, Lab};

/// Begins what `word` names in `directory` and returns the command that is said to come next.
#[track_caller]
fn begin(lab: &Lab, word: &str, directory: &str) -> Vec<String> {
    let said = lab.run(["init", word, directory]).exits(0);
    let next = said.stderr.lines().find_map(|line| line.strip_prefix("next: stead "));
    let next = next.unwrap_or_else(|| panic!("nothing comes next: {}", said.stderr));
    next.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_first_plan_runs_and_finds_everything_in_place_the_second_time() {
    let lab = Lab::new("");
    let next = begin(&lab, "plan", "hello");
    assert_eq!(next, ["plan", "run", "hello/plan.yaml"]);
    // Where it would write is outside of this test's place.
    let dir = format!("dir={}", lab.path("there").display());
    let run = || lab.run(next.iter().map(String::as_str).chain(["--var", &dir])).exits(0);
    run().says("3 tasks: 3 changed");
    assert_eq!(lab.read("there/greeting.txt"), "hello, world\n");
    run().says("3 tasks: 2 unchanged, 1 skipped");
}

/// Whatever the directory is called: one that is called `steps` would else be a folder of catalogues.
#[test]
fn first_steps_run_up_and_down() {
    for directory in ["lab", "steps"] {
        let lab = Lab::new("");
        let next = begin(&lab, "steps", directory);
        lab.run(next.iter().map(String::as_str)).exits(0).says("Dry run: nothing was executed.");
        let file = format!("{directory}/steps.yaml");
        lab.run(["steps", "check", &file]).exits(0);
        let big = format!("{directory}/profiles/big.env");
        lab.run(["steps", "run", &file, "--profile", &big])
            .exits(0)
            .says("https://app.big.test/ is configured");
        let made = format!("{directory}/storage/app.conf");
        assert_eq!(lab.read(&made), "host=app.big.test replicas=3\n");
        lab.run(["steps", "run", &file, "--delete", "--confirm", "lab"]).exits(0);
        assert!(!lab.path(&made).exists());
    }
}

#[test]
fn a_first_run_leaves_a_bundle_that_can_be_compared() {
    let lab = Lab::new("");
    let next = begin(&lab, "run", "soak");
    let run = |more: [&str; 4]| lab.run(next.iter().map(String::as_str).chain(more)).exits(0);
    run(["--bundle-dir", "good", "--var", "lose=0"]).says("Status: success");
    run(["--bundle-dir", "bad", "--var", "lose=10"]).says("Status: success");
    let bundle = |place: &str| {
        let mut runs = std::fs::read_dir(lab.path(place)).unwrap();
        let run = runs.next().unwrap().unwrap().path();
        assert!(runs.next().is_none(), "one run in {place}");
        run.to_str().unwrap().to_owned()
    };
    let (good, bad) = (bundle("good"), bundle("bad"));
    lab.run(["bundle", "verify", &good]).exits(0);
    let worse = "metric:load/out.json#/answered.delta_pct<-5";
    lab.run(["diff", "run", &good, &bad, "--role", "load", "--fail-on", worse]).exits(4).says("-10");
}

/// A fleet is changed by commits: somebody whose commits Git would refuse is told so at once, and how to mend it.
#[test]
fn a_fleet_of_somebody_whom_git_does_not_know_says_so() {
    let lab = Lab::new("");
    let init = |name: &str, config: &str| {
        // Without this Git would make up an address from the names of the account and the machine.
        lab.write(".gitconfig", format!("[user]\nuseConfigOnly = true\n{config}"));
        let ended: Ended =
            lab.stead(["init", "fleet", name]).env("HOME", lab.root()).output().unwrap().into();
        ended.exits(0).stderr
    };
    let unknown = init("a", "");
    assert!(unknown.contains("hint: ") && unknown.contains("git config --global user.email"), "{unknown}");
    assert_eq!(init("b", "name = Ann\nemail = ann@example.org\n"), "next: stead fleet dev b\n");
}

/// What is there stays, and nothing of the rest is written.
#[test]
fn nothing_is_overwritten() {
    for (word, file) in [("plan", "plan.yaml"), ("steps", "config.env"), ("run", "load.sh")] {
        let lab = Lab::new("");
        lab.write(&format!("d/{file}"), "mine");
        lab.run(["init", word, "d"]).exits(3).says("is there already");
        assert_eq!(lab.read(&format!("d/{file}")), "mine");
        assert_eq!(std::fs::read_dir(lab.path("d")).unwrap().count(), 1, "{word}");
    }
}

/// The file that an editor checks against is what `stead schema` prints.
#[test]
fn each_brings_its_schema() {
    for word in ["plan", "steps", "run"] {
        let lab = Lab::new("");
        let written = lab.run(["init", word, "--json"]).exits(0).document();
        let files: Vec<&str> =
            written["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        let schema = format!("defs/{word}.schema.json");
        assert!(files.contains(&schema.as_str()), "{files:?}");
        let read: serde_json::Value = serde_json::from_str(&lab.read(&format!("{word}/{schema}"))).unwrap();
        assert_eq!(read, lab.run(["schema", word]).exits(0).document());
    }
}
