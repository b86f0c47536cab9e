//! The host catalogue, and the check of catalogues.

use std::process::Command;

use super::homelab::{Homelab, steps_in};
use crate::cases_17_32::lab::Ended;

/// Case 26: apply 10, 20; delete 20, 10; `ONLY` is not read here and that is said.
#[test]
fn the_host_catalogue_runs_in_both_orders() {
    let lab = Homelab::new();
    let host = |env: &[(&str, &str)], args: &[&str]| -> Ended {
        lab.command(lab.path("host/run-host.sh"), args).envs(env.iter().copied()).output().unwrap().into()
    };
    let ended = host(&[("ONLY", "10")], &[]).exits(0);
    assert_eq!(steps_in(&ended.stdout), ["10_dynamic_dns.sh", "20_install_k3s.sh"]);
    assert!(ended.stderr.contains("ONLY"), "{}", ended.stderr);
    assert_eq!(lab.log(), ["10_dynamic_dns.sh", "20_install_k3s.sh"]);
    let target = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let deleted = host(&[], &["--delete", "--confirm", &target]).exits(0);
    assert_eq!(steps_in(&deleted.stdout), ["20_install_k3s.sh (delete)", "10_dynamic_dns.sh (delete)"]);
    assert_eq!(lab.log()[2..], ["20_install_k3s.sh --delete", "10_dynamic_dns.sh --delete"]);
}

/// Case 25: the example is in order, and `steps check` names what is not.
#[test]
fn check_finds_nothing_bad_in_the_example_and_names_what_breaks() {
    let lab = Homelab::new();
    let fine = lab.stead(&["steps", "check"]).exits(0);
    assert!(!fine.stdout.contains("\nbad "), "{}", fine.stdout);
    let document = lab.stead(&["steps", "check", "--json"]).exits(0).document();
    assert_eq!(document["summary"]["bad"], 0);
    let keys: Vec<&str> =
        document["checks"].as_array().unwrap().iter().map(|check| check["key"].as_str().unwrap()).collect();
    for key in [
        "catalogue",
        "step.access",
        "layer.config.env",
        "var.BASE_DOMAIN",
        "inputs.runtime",
        "golden.apply",
        "golden.delete",
        "intent.platform-certs.clusters/home/platform.yaml",
    ] {
        assert!(keys.contains(&key), "no {key}: {keys:?}");
    }
    let rows = document["checks"].as_array().unwrap().iter();
    let of: Vec<&str> = rows
        .filter(|check| check["key"] == "catalogue")
        .map(|check| check["catalogue"].as_str().unwrap())
        .collect();
    assert_eq!(of, ["cluster", "host"]);
    assert!(!lab.path(".stead").exists() && lab.log().is_empty());

    std::fs::rename(lab.path("scripts/91_verify_platform_state.sh"), lab.path("scripts/92_verify.sh"))
        .unwrap();
    Command::new("chmod").args(["-x"]).arg(lab.path("scripts/99_execute_teardown.sh")).status().unwrap();
    lab.append("steps/golden/cluster.apply.txt", "  - one-more.sh");
    let broken = lab.stead(&["steps", "check", "--json"]).exits(4).document();
    let level = |key: &str| {
        let checks = broken["checks"].as_array().unwrap();
        checks.iter().find(|check| check["key"] == key).unwrap_or_else(|| panic!("no {key}"))["level"].clone()
    };
    for (key, wanted) in [
        ("step.platform-state", "bad"),
        ("step.teardown", "bad"),
        ("golden.apply", "bad"),
        ("golden.delete", "ok"),
        ("orphan.scripts/92_verify.sh", "warn"),
    ] {
        assert_eq!(level(key), wanted, "{key}");
    }
    assert!(
        broken["suggestions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|text| text.as_str().unwrap().starts_with("chmod +x "))
    );
    let text = lab.stead(&["steps", "check"]).exits(4).stdout;
    assert!(text.contains("-  - one-more.sh"), "the difference is shown: {text}");
    lab.write("steps/cluster.yaml", "api_version: v1\nnope: 1\n");
    lab.stead(&["steps", "check"]).exits(3);
}

/// Returns a lab whose catalogue has one step of these keys, and inputs into a file of this path.
fn with_step(step: &str, sink: &str) -> Homelab {
    let lab = Homelab::with(&format!(
        "api_version: v1\nlayers: []\nvars: {{PW: {{secret: true, default: hunter22}}, EMPTY: {{}}}}\n\
         steps:\n  one: {{run: one.sh, {step}}}\n  two: {{inputs: docs}}\napply: [{{steps: [one, two]}}]\n\
         inputs: {{docs: {{sink: {{kind: file, path: \"{sink}\", format: env}}, keys: {{PW: {{}}}}}}}}\n"
    ));
    lab.script("one.sh", "");
    lab
}

/// Section 11: what keeps a catalogue from running is found without running it.
#[test]
fn check_refuses_what_a_run_refuses() {
    with_step("doc: fine", "out.env").stead(&["steps", "check"]).exits(0);
    for (step, sink, key) in [
        ("args: {apply: [\"${PW}\"]}", "out.env", "step.one"),
        ("args: {apply: [\"${NOPE}\"]}", "out.env", "step.one"),
        ("env: {X: \"${NOPE}\"}", "out.env", "step.one"),
        ("cwd: ../x", "out.env", "step.one"),
        ("cwd: \"${EMPTY}/x\"", "out.env", "step.one"),
        ("doc: fine", "../x", "inputs.docs"),
        ("doc: fine", "${NOPE}", "inputs.docs"),
        ("doc: fine", "${PW}", "inputs.docs"),
        ("doc: fine", "${EMPTY}/out.env", "inputs.docs"),
    ] {
        let lab = with_step(step, sink);
        let run = lab.stead(&["steps", "run", "--dry-run"]);
        assert_eq!(run.code, 3, "{step} {sink}: {}", run.stderr);
        let document = lab.stead(&["steps", "check", "--json"]).exits(4).document();
        let bad: Vec<&str> = document["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["level"] == "bad")
            .map(|check| check["key"].as_str().unwrap())
            .collect();
        assert_eq!(bad, [key], "{step} {sink}: {document:#}");
    }
    let timeless = with_step("timeout: 0s, cwd: 7", "out.env");
    let refused = timeless.stead(&["steps", "run", "--dry-run", "--json"]).exits(3).document();
    assert_eq!(super::homelab::codes(&refused), ["steps/catalogue", "steps/catalogue"], "{refused:#}");
    timeless.stead(&["steps", "check"]).exits(3);
    let later = with_step("cwd: made-later", "out.env").stead(&["steps", "check"]).exits(0).stdout;
    assert!(later.contains("warn step.one its `cwd`, `made-later`, is no directory now"), "{later}");
}

/// Sections 1 and 3: what is wrong with flags is no finding of the check.
#[test]
fn check_refuses_bad_flags() {
    let lab = Homelab::new();
    let check = |args: &[&str], code| {
        let args: Vec<&str> =
            ["steps", "check", "cluster", "--json"].into_iter().chain(args.iter().copied()).collect();
        super::homelab::codes(&lab.stead(&args).exits(code).document())
    };
    assert_eq!(check(&["--set", "ONLY=1"], 2), ["steps/reserved-set"]);
    assert_eq!(check(&["--profile", "nosuch.env"], 3), ["layer/missing"]);
}

/// Section 11: what the check is told to look at must be there, and a pipe is not waited for.
#[test]
fn check_names_what_it_cannot_look_at() {
    let lab = Homelab::new();
    lab.replace("steps/cluster.yaml", "scan: [scripts]", "scan: [scripts, nosuch, config.env]");
    std::fs::remove_file(lab.path("steps/golden/cluster.apply.txt")).unwrap();
    Command::new("mkfifo").arg(lab.path("steps/golden/cluster.apply.txt")).status().unwrap();
    let kubeconfig = lab.home().join("pipe");
    Command::new("mkfifo").arg(&kubeconfig).status().unwrap();
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["steps", "check", "cluster"]);
    let ended: Ended = command.env("KUBECONFIG", &kubeconfig).output().unwrap().into();
    let text = ended.exits(4).stdout;
    for row in [
        "bad  orphan.nosuch ",
        "bad  orphan.config.env ",
        "bad  golden.apply cannot read",
        "it is not a file",
    ] {
        assert!(text.contains(row), "no {row}: {text}");
    }
}

/// Section 2: what explains something is shown.
#[test]
fn list_shows_every_doc() {
    let lab = Homelab::with(
        "api_version: v1\nlayers: []\ncontrols: {C: {type: bool, doc: of-control}}\n\
         vars: {V: {secret: true, doc: of-var}}\nsteps: {a: {run: a.sh, doc: of-step}, b: {inputs: i}}\n\
         apply: [{steps: [a, b]}]\n\
         inputs: {i: {doc: of-inputs, sink: {kind: file, path: o, format: env}, keys: {V: {doc: of-key}}}}\n\
         intents: {n: {doc: of-intent, params: {P: {enum: [x], doc: of-param}}, \
         edits: [{file: f.yaml, path: a, value: \"${P}\"}]}}\n",
    );
    let (text, document) = (
        lab.stead(&["steps", "list"]).exits(0).stdout,
        lab.stead(&["steps", "list", "--json"]).exits(0).stdout,
    );
    for doc in ["of-control", "of-var", "of-step", "of-inputs", "of-key", "of-intent"] {
        assert!(text.contains(&format!(": {doc}\n")), "{doc}: {text}");
        assert!(document.contains(&format!("\"{doc}\"")), "{doc}: {document}");
    }
    let intents = lab.stead(&["intent", "list"]).exits(0).stdout;
    assert!(intents.contains("P=x  of-param\n"), "{intents}");
}
