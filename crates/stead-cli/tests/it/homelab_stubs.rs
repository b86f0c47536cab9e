//! The scripts of `examples/homelab`, each alone: what they do without Stead.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::steps::homelab::Homelab;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/homelab");

/// Every stub with the modes it has; 15 takes no argument in either.
const STUBS: &[(&str, &[&str])] = &[
    ("scripts/15_verify_cluster_access.sh", &[""]),
    ("scripts/94_verify_config_inputs.sh", &[""]),
    ("scripts/bootstrap/install-flux.sh", &["", "--delete"]),
    ("scripts/32_reconcile_flux_stack.sh", &["", "--delete"]),
    ("scripts/91_verify_platform_state.sh", &[""]),
    ("scripts/30_manage_cert_manager_cleanup.sh", &["--delete"]),
    ("scripts/99_execute_teardown.sh", &["--delete"]),
    ("scripts/26_manage_cilium_lifecycle.sh", &["", "--delete"]),
    ("scripts/98_verify_teardown_clean.sh", &["--delete"]),
    ("host/tasks/10_dynamic_dns.sh", &["", "--delete"]),
    ("host/tasks/20_install_k3s.sh", &["", "--delete"]),
];

/// Runs a stub alone, from another directory.
fn run(lab: &Homelab, stub: &str, args: &[&str]) -> Output {
    run_with(lab, stub, args, &[])
}

fn run_with(lab: &Homelab, stub: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
    lab.command(lab.path(stub), args).current_dir("/").envs(env.iter().copied()).output().unwrap()
}

/// Runs a stub that must succeed and returns what it says.
fn says(lab: &Homelab, stub: &str, args: &[&str]) -> String {
    let output = run(lab, stub, args);
    assert!(output.status.success(), "{stub} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn name(stub: &str) -> &str {
    stub.rsplit('/').next().unwrap()
}

/// Case 26: every stub refuses `--nonsense` and a mode it does not have, naming itself, and does nothing.
#[test]
fn stubs_refuse_what_they_do_not_know() {
    let lab = Homelab::new();
    for (stub, modes) in STUBS {
        for args in [&["--nonsense"][..], &["--delete", "--nonsense"], &["x"]] {
            let output = run(&lab, stub, args);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stub} {args:?}");
            assert!(stderr.starts_with(&format!("{}: ", name(stub))), "{stderr}");
        }
        for (args, mode) in [(&[][..], "apply"), (&["--delete"][..], "delete")] {
            if modes.contains(&args.first().copied().unwrap_or_default()) {
                continue;
            }
            let output = run(&lab, stub, args);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stub} {args:?}");
            assert!(stderr.contains(name(stub)) && stderr.contains(&format!("mode {mode}")), "{stderr}");
        }
    }
    assert!(lab.log().is_empty() && !lab.path(".lab").exists());
}

/// Every stub is a step of its catalogue, can be started, and every script under the scanned directories is one.
#[test]
fn stubs_are_scripts_of_the_catalogues() {
    let catalogues = ["steps/cluster.yaml", "steps/host.yaml"]
        .map(|file| fs::read_to_string(Path::new(EXAMPLE).join(file)).unwrap())
        .concat();
    let entry_points = ["run.sh", "host/run-host.sh", "scripts/bootstrap/sync-runtime-inputs.sh"];
    for script in STUBS.iter().map(|(stub, _)| *stub).chain(entry_points) {
        let path = Path::new(EXAMPLE).join(script);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o111, 0o111, "{script}");
        assert!(fs::read_to_string(&path).unwrap().starts_with("#!/bin/sh\n"), "{script}");
    }
    for (stub, _) in STUBS {
        assert!(catalogues.contains(&format!("run: {stub}")), "{stub}");
    }
    for script in entry_points {
        assert_eq!(
            fs::read_to_string(Path::new(EXAMPLE).join(script)).unwrap().lines().count(),
            3,
            "{script}"
        );
    }
}

/// Each stub says whether it changed something, and doing it twice changes nothing.
#[test]
fn stubs_are_idempotent_and_log_what_they_were_started_with() {
    let lab = Homelab::new();
    for stub in [
        "scripts/bootstrap/install-flux.sh",
        "scripts/26_manage_cilium_lifecycle.sh",
        "scripts/32_reconcile_flux_stack.sh",
    ] {
        for args in [&[][..], &["--delete"]] {
            assert!(says(&lab, stub, args).contains("::changed true\n"), "{stub} {args:?}");
            assert!(says(&lab, stub, args).contains("::changed false\n"), "{stub} {args:?}");
        }
    }
    for stub in ["scripts/15_verify_cluster_access.sh", "scripts/94_verify_config_inputs.sh"] {
        assert!(says(&lab, stub, &[]).contains("::changed false\n"), "{stub}");
    }
    let log = lab.log().join("\n");
    let expected = "install-flux.sh\ninstall-flux.sh\ninstall-flux.sh --delete\ninstall-flux.sh --delete\n";
    assert!(log.starts_with(expected), "{log}");
    assert!(log.ends_with("15_verify_cluster_access.sh\n94_verify_config_inputs.sh"), "{log}");
}

#[test]
fn the_stack_is_compared_with_the_files_of_the_cluster() {
    let lab = Homelab::new();
    let verify = "scripts/91_verify_platform_state.sh";
    let before = run(&lab, verify, &[]);
    let said = String::from_utf8(before.stdout).unwrap();
    assert_eq!(before.status.code(), Some(1));
    assert!(
        said.contains("::check bad stack.tenants ") && said.contains("::suggest ./run.sh --only 32\n"),
        "{said}"
    );
    says(&lab, "scripts/32_reconcile_flux_stack.sh", &[]);
    assert!(says(&lab, verify, &[]).contains("::check ok stack.tenants "));
    fs::write(lab.path("clusters/home/tenants.yaml"), "changed: true\n").unwrap();
    let after = String::from_utf8(run(&lab, verify, &[]).stdout).unwrap();
    assert!(
        after.contains("::check bad stack.tenants ") && after.contains("::check ok stack.platform "),
        "{after}"
    );
}

#[test]
fn nothing_is_torn_down_under_live_data() {
    let lab = Homelab::new();
    let document = lab.path(".lab/runtime-inputs.yaml");
    fs::create_dir_all(lab.path(".lab/volumes")).unwrap();
    fs::write(&document, "x").unwrap();
    for volume in ["photos", "my data", ".hidden"] {
        fs::write(lab.path(".lab/volumes").join(volume), "").unwrap();
    }
    let refused = run(&lab, "scripts/99_execute_teardown.sh", &["--delete"]);
    let said = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    for key in ["volume:photos", "volume:my_data", "volume:.hidden"] {
        assert!(said.contains(&format!("::check bad {key} ")), "{said}");
    }
    assert!(document.exists());
    fs::remove_dir_all(lab.path(".lab/volumes")).unwrap();
    assert!(says(&lab, "scripts/99_execute_teardown.sh", &["--delete"]).contains("::changed true\n"));
    assert!(!document.exists());
    assert!(
        says(&lab, "scripts/98_verify_teardown_clean.sh", &["--delete"]).contains("::check ok left.flux ")
    );
    says(&lab, "scripts/bootstrap/install-flux.sh", &[]);
    let left = run(&lab, "scripts/98_verify_teardown_clean.sh", &["--delete"]);
    assert!(String::from_utf8(left.stdout).unwrap().contains("::check bad left.flux "));
}

#[test]
fn values_are_checked_and_secrets_are_not_repeated() {
    let lab = Homelab::new();
    let stub = "scripts/94_verify_config_inputs.sh";
    let inside = [("STEAD_RUN_ID", "r1"), ("BASE_DOMAIN", "x.test"), ("OIDC_CLIENT_SECRET", "hidden-secret")];
    let good = run_with(&lab, stub, &[], &inside);
    assert!(good.status.success(), "{good:?}");
    assert!(!String::from_utf8(good.stdout).unwrap().contains("hidden-secret"));
    for (name, value) in [("BASE_DOMAIN", ""), ("TIMEOUT_SECS", "soon"), ("OIDC_CLIENT_SECRET", "")] {
        let mut env = inside.to_vec();
        env.push((name, value));
        let bad = run_with(&lab, stub, &[], &env);
        assert_eq!(bad.status.code(), Some(1), "{name}");
        assert!(String::from_utf8(bad.stdout).unwrap().contains(&format!("::check bad {name} ")), "{name}");
    }
    let without = [&inside[..2], &[("FEAT_OAUTH2_PROXY", "false")]].concat();
    assert!(run_with(&lab, stub, &[], &without).status.success());
}

/// Case 26: the machine's steps remove only what they may.
#[test]
fn host_tasks_obey_the_managed_mark_and_the_switch() {
    let lab = Homelab::new();
    let (dns, k3s) = ("host/tasks/10_dynamic_dns.sh", "host/tasks/20_install_k3s.sh");
    let unit = lab.path(".lab/systemd/dynamic-dns.service");
    assert!(says(&lab, dns, &[]).contains("::changed true\n"));
    assert!(says(&lab, dns, &[]).contains("::changed false\n"));
    assert!(says(&lab, dns, &["--delete"]).contains("::changed true\n"));
    assert!(!unit.exists());
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    fs::write(&unit, "[Unit]\nDescription=mine\n").unwrap();
    assert!(says(&lab, dns, &["--delete"]).contains("::changed false\n"));
    assert_eq!(run(&lab, dns, &[]).status.code(), Some(1));
    assert_eq!(fs::read_to_string(&unit).unwrap(), "[Unit]\nDescription=mine\n");
    says(&lab, k3s, &[]);
    assert!(says(&lab, k3s, &["--delete"]).contains("::changed false\n"));
    assert!(lab.path(".lab/k3s").exists());
    assert!(run_with(&lab, k3s, &["--delete"], &[("K3S_UNINSTALL", "true")]).status.success());
    assert!(!lab.path(".lab/k3s").exists());
}

#[test]
fn every_target_of_make_has_a_line_of_help() {
    let lab = Homelab::new();
    let output = match Command::new("make").arg("help").current_dir(lab.root()).output() {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(_) => return eprintln!("make is not installed: the Makefile was not checked with it"),
    };
    let targets: Vec<&str> =
        output.lines().filter_map(|line| line.split_once(": ")).map(|(target, _)| target).collect();
    assert_eq!(
        targets,
        [
            "install",
            "teardown",
            "reinstall",
            "flux-bootstrap",
            "runtime-inputs-sync",
            "flux-reconcile",
            "platform-certs",
            "app-test",
            "verify",
            "check",
            "help"
        ]
    );
}

#[test]
fn shellcheck_finds_nothing_in_the_scripts() {
    let scripts = STUBS.iter().map(|(stub, _)| *stub).chain(["run.sh", "host/run-host.sh", "scripts/lib.sh"]);
    let checked =
        Command::new("shellcheck").args(["-x", "-P", "scripts"]).args(scripts).current_dir(EXAMPLE).output();
    match checked {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
        Err(_) => eprintln!("shellcheck is not installed: the scripts were not checked with it"),
    }
}
