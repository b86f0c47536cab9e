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
