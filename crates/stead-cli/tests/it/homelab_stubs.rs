//! The scripts of `examples/homelab`, each alone: what they do without Stead.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

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

/// A copy of the example in a directory of its own.
struct Lab {
    root: TempDir,
}

impl Lab {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        copy(Path::new(EXAMPLE), root.path());
        Self { root }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Runs a stub from another directory, with a log.
    fn run(&self, stub: &str, args: &[&str]) -> Output {
        self.run_with(stub, args, &[])
    }

    fn run_with(&self, stub: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(self.path(stub));
        command.args(args).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
        command.env("LAB_LOG", self.path("log")).envs(env.iter().copied());
        command.output().unwrap()
    }

    /// Runs a stub that must succeed and returns what it says.
    fn says(&self, stub: &str, args: &[&str]) -> String {
        let output = self.run(stub, args);
        assert!(output.status.success(), "{stub} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        // What a run in the example itself leaves is no part of it.
        if entry.file_name() == ".lab" || entry.file_name() == ".stead" {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn name(stub: &str) -> &str {
    stub.rsplit('/').next().unwrap()
}

/// Case 26: every stub refuses `--nonsense` and a mode it does not have, naming itself, and does nothing.
#[test]
fn stubs_refuse_what_they_do_not_know() {
    let lab = Lab::new();
    for (stub, modes) in STUBS {
        for args in [&["--nonsense"][..], &["--delete", "--nonsense"], &["x"]] {
            let output = lab.run(stub, args);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stub} {args:?}");
            assert!(stderr.starts_with(&format!("{}: ", name(stub))), "{stderr}");
        }
        for (args, mode) in [(&[][..], "apply"), (&["--delete"][..], "delete")] {
            if modes.contains(&args.first().copied().unwrap_or_default()) {
                continue;
            }
            let output = lab.run(stub, args);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stub} {args:?}");
            assert!(stderr.contains(name(stub)) && stderr.contains(&format!("mode {mode}")), "{stderr}");
        }
    }
    assert!(!lab.path("log").exists() && !lab.path(".lab").exists());
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
    let lab = Lab::new();
    for stub in [
        "scripts/bootstrap/install-flux.sh",
        "scripts/26_manage_cilium_lifecycle.sh",
        "scripts/32_reconcile_flux_stack.sh",
    ] {
        for args in [&[][..], &["--delete"]] {
            assert!(lab.says(stub, args).contains("::changed true\n"), "{stub} {args:?}");
            assert!(lab.says(stub, args).contains("::changed false\n"), "{stub} {args:?}");
        }
    }
    for stub in ["scripts/15_verify_cluster_access.sh", "scripts/94_verify_config_inputs.sh"] {
        assert!(lab.says(stub, &[]).contains("::changed false\n"), "{stub}");
    }
    let log = fs::read_to_string(lab.path("log")).unwrap();
    let expected = "install-flux.sh\ninstall-flux.sh\ninstall-flux.sh --delete\ninstall-flux.sh --delete\n";
    assert!(log.starts_with(expected), "{log}");
    assert!(log.ends_with("15_verify_cluster_access.sh\n94_verify_config_inputs.sh\n"), "{log}");
}

#[test]
fn the_stack_is_compared_with_the_files_of_the_cluster() {
    let lab = Lab::new();
    let verify = "scripts/91_verify_platform_state.sh";
    let before = lab.run(verify, &[]);
    let said = String::from_utf8(before.stdout).unwrap();
    assert_eq!(before.status.code(), Some(1));
    assert!(
        said.contains("::check bad stack.tenants ") && said.contains("::suggest ./run.sh --only 32\n"),
        "{said}"
    );
    lab.says("scripts/32_reconcile_flux_stack.sh", &[]);
    assert!(lab.says(verify, &[]).contains("::check ok stack.tenants "));
    fs::write(lab.path("clusters/home/tenants.yaml"), "changed: true\n").unwrap();
    let after = String::from_utf8(lab.run(verify, &[]).stdout).unwrap();
    assert!(
        after.contains("::check bad stack.tenants ") && after.contains("::check ok stack.platform "),
        "{after}"
    );
}

#[test]
fn nothing_is_torn_down_under_live_data() {
    let lab = Lab::new();
    let document = lab.path(".lab/runtime-inputs.yaml");
    fs::create_dir_all(lab.path(".lab/volumes")).unwrap();
    fs::write(&document, "x").unwrap();
    for volume in ["photos", "my data", ".hidden"] {
        fs::write(lab.path(".lab/volumes").join(volume), "").unwrap();
    }
    let refused = lab.run("scripts/99_execute_teardown.sh", &["--delete"]);
    let said = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    for key in ["volume:photos", "volume:my_data", "volume:.hidden"] {
        assert!(said.contains(&format!("::check bad {key} ")), "{said}");
    }
    assert!(document.exists());
    fs::remove_dir_all(lab.path(".lab/volumes")).unwrap();
    assert!(lab.says("scripts/99_execute_teardown.sh", &["--delete"]).contains("::changed true\n"));
    assert!(!document.exists());
    assert!(lab.says("scripts/98_verify_teardown_clean.sh", &["--delete"]).contains("::check ok left.flux "));
    lab.says("scripts/bootstrap/install-flux.sh", &[]);
    let left = lab.run("scripts/98_verify_teardown_clean.sh", &["--delete"]);
    assert!(String::from_utf8(left.stdout).unwrap().contains("::check bad left.flux "));
}

#[test]
fn values_are_checked_and_secrets_are_not_repeated() {
    let lab = Lab::new();
    let stub = "scripts/94_verify_config_inputs.sh";
    let inside = [("STEAD_RUN_ID", "r1"), ("BASE_DOMAIN", "x.test"), ("OIDC_CLIENT_SECRET", "hidden-secret")];
    let good = lab.run_with(stub, &[], &inside);
    assert!(good.status.success(), "{good:?}");
    assert!(!String::from_utf8(good.stdout).unwrap().contains("hidden-secret"));
    for (name, value) in [("BASE_DOMAIN", ""), ("TIMEOUT_SECS", "soon"), ("OIDC_CLIENT_SECRET", "")] {
        let mut env = inside.to_vec();
        env.push((name, value));
        let bad = lab.run_with(stub, &[], &env);
        assert_eq!(bad.status.code(), Some(1), "{name}");
        assert!(String::from_utf8(bad.stdout).unwrap().contains(&format!("::check bad {name} ")), "{name}");
    }
    let without = [&inside[..2], &[("FEAT_OAUTH2_PROXY", "false")]].concat();
    assert!(lab.run_with(stub, &[], &without).status.success());
}

/// Case 26: the machine's steps remove only what they may.
#[test]
fn host_tasks_obey_the_managed_mark_and_the_switch() {
    let lab = Lab::new();
    let (dns, k3s) = ("host/tasks/10_dynamic_dns.sh", "host/tasks/20_install_k3s.sh");
    let unit = lab.path(".lab/systemd/dynamic-dns.service");
    assert!(lab.says(dns, &[]).contains("::changed true\n"));
    assert!(lab.says(dns, &[]).contains("::changed false\n"));
    assert!(lab.says(dns, &["--delete"]).contains("::changed true\n"));
    assert!(!unit.exists());
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    fs::write(&unit, "[Unit]\nDescription=mine\n").unwrap();
    assert!(lab.says(dns, &["--delete"]).contains("::changed false\n"));
    assert_eq!(lab.run(dns, &[]).status.code(), Some(1));
    assert_eq!(fs::read_to_string(&unit).unwrap(), "[Unit]\nDescription=mine\n");
    lab.says(k3s, &[]);
    assert!(lab.says(k3s, &["--delete"]).contains("::changed false\n"));
    assert!(lab.path(".lab/k3s").exists());
    assert!(lab.run_with(k3s, &["--delete"], &[("K3S_UNINSTALL", "true")]).status.success());
    assert!(!lab.path(".lab/k3s").exists());
}

#[test]
fn every_target_of_make_has_a_line_of_help() {
    let lab = Lab::new();
    let output = match Command::new("make").arg("help").current_dir(lab.root.path()).output() {
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
