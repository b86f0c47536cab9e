//! `stead doctor`: what this machine, a driver and targets have of what is needed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::Value;
use stead_testkit::sshd::{self, Sshd};

use crate::cases_17_32::lab::{Ended, Lab};

fn lab() -> Lab {
    Lab::new("")
}

fn check<'a>(document: &'a Value, name: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no check `{name}` in {document}"))
}

fn failed(document: &Value) -> Vec<&str> {
    let checks = document["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["status"] == "fail").map(|check| check["name"].as_str().unwrap()).collect()
}

/// Case 30: each missing program is named with its package; without a driver none is needed.
#[test]
fn each_missing_program_is_named_with_its_package() {
    let lab = lab();
    let document = lab.run(["doctor", "--json"]).exits(0).document();
    assert_eq!(document["ok"], true);
    for (name, program, package) in [
        ("git", "git", "git"),
        ("nix", "nix", "nix-bin"),
        ("oci-runtime", "runc", "runc"),
        ("qemu-img", "qemu-img", "qemu-utils"),
        ("cloud-hypervisor", "cloud-hypervisor", "no package"),
    ] {
        let check = check(&document, name);
        if check["status"] == "skip" {
            assert!(check["detail"].as_str().unwrap().contains(program), "{check}");
            assert!(check["fix"].as_str().unwrap().contains(package), "{check}");
        } else {
            assert_eq!(check["status"], "pass", "{check}");
            let path = check["detail"].as_str().unwrap().split(' ').next().unwrap().to_owned();
            assert!(Path::new(&path).is_file(), "{check}");
        }
    }
    assert!(!lab.path("state").exists(), "what was tried is not left behind");
    lab.run(["doctor"]).exits(0).says("[PASS] state-directory: ");
}

#[test]
fn a_driver_needs_its_programs() {
    let lab = lab();
    lab.run(["doctor", "--driver", "sandbox"]).exits(0).says("needs nothing installed");
    let has = |program: &str| {
        ["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin"]
            .iter()
            .any(|dir| Path::new(dir).join(program).exists())
    };
    let ended = lab.run(["doctor", "--driver", "cloud-hypervisor", "--json"]);
    let (code, document) = (ended.code, ended.document());
    let wanted = check(&document, "cloud-hypervisor");
    assert_eq!(wanted["status"], if has("cloud-hypervisor") { "pass" } else { "fail" });
    assert_eq!(code, if failed(&document).is_empty() { 0 } else { 1 });
    assert_eq!(document["ok"], failed(&document).is_empty());
    let document = lab.run(["doctor", "--driver", "qemu", "--json"]).document();
    assert_eq!(check(&document, "qemu")["status"], if has("qemu-system-x86_64") { "pass" } else { "fail" });
    assert_eq!(check(&document, "qemu-img")["status"], if has("qemu-img") { "pass" } else { "fail" });
    let kvm = check(&document, "kvm");
    let says = if kvm["status"] == "pass" { "/dev/kvm" } else { "machines run emulated (tcg), slower" };
    assert!(kvm["status"] != "fail" && kvm["detail"].as_str().unwrap().contains(says), "{kvm}");
    let document = lab.run(["doctor", "--driver", "oci", "--json"]).document();
    let runtime = has("runc") || has("crun") || has("youki");
    assert_eq!(check(&document, "oci-runtime")["status"], if runtime { "pass" } else { "fail" });
    lab.run(["doctor", "--driver", "vmware"]).exits(2).says("cloud-hypervisor");
}

#[test]
fn a_state_directory_that_cannot_be_written_fails() {
    let lab = lab();
    lab.write("file", "");
    let document = lab.run(["--state-dir", "file/state", "doctor", "--json"]);
    // The lab gives the flag too; the last one holds nowhere, so it is given by variable.
    assert_eq!(document.code, 2);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_stead"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_DIR", lab.path("file/state"));
    let ended: Ended = command.current_dir(lab.root()).args(["doctor", "--json"]).output().unwrap().into();
    let document = ended.exits(1).document();
    assert_eq!(failed(&document), ["state-directory"]);
    assert!(check(&document, "state-directory")["fix"].as_str().unwrap().contains("--state-dir"));
}

/// A local target: account, base directory, and `become` by a stand-in for sudo.
#[test]
fn a_local_target_is_looked_at_like_any_other() {
    let lab = lab();
    let root = lab.root().display().to_string();
    let inventory = "api_version: v1\nhosts:\n\
        \x20 here: {transport: local, workdir: \"@/work\"}\n\
        \x20 linked: {transport: local, workdir: \"@/link\"}\n\
        \x20 other: {transport: local, workdir: \"@/work\", become: \"sudo:nobody\", become_password: {env: PW}}\n\
        \x20 third: {transport: local, workdir: \"@/work\", become: \"doas:nobody\", become_password: {env: PW}}\n";
    lab.write("inventory.yaml", inventory.replace('@', &root));
    symlink("/tmp", lab.path("link")).unwrap();
    let document = lab.run(["doctor", "--target", "here", "--json"]).exits(0).document();
    for name in ["here/shell", "here/system", "here/base-directory", "here/binary", "here/clock"] {
        assert_eq!(check(&document, name)["status"], "pass", "{document}");
    }
    assert!(!lab.path("work").exists(), "a directory that was absent is absent afterwards");
    let document = lab.run(["doctor", "--target", "linked", "--json"]).exits(1).document();
    assert_eq!(failed(&document), ["linked/base-directory"]);
    assert!(check(&document, "linked/base-directory")["detail"].as_str().unwrap().contains("symbolic link"));

    // The stand-in takes the password from its input and says who it would be.
    lab.write(
        "bin/sudo",
        "#!/bin/sh\nread -r password\n[ \"$password\" = open-sesame ] || { echo 'wrong password' >&2; exit 1; }\n\
         while [ \"$1\" != -- ]; do shift; done; shift\nAS=nobody exec \"$@\"\n",
    );
    // It answers as whoever the stand-in says it is.
    lab.write(
        "bin/id",
        "#!/bin/sh\nif [ \"$1\" = -un ] && [ -n \"$AS\" ]; then echo $AS; else exec /usr/bin/id \"$@\"; fi\n",
    );
    fs::set_permissions(lab.path("bin/id"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(lab.path("bin/sudo"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{root}/bin:/usr/bin:/bin");
    let run = |target: &str, password: &str| -> Ended {
        let mut command = lab.stead(["doctor", "--target", target, "--json"]);
        command.env("PATH", &path).env("PW", password).output().unwrap().into()
    };
    let document = run("other", "open-sesame").exits(0).document();
    assert_eq!(check(&document, "other/become")["status"], "pass");
    // The rest is looked at as that account.
    assert!(check(&document, "other/system")["detail"].as_str().unwrap().contains("account nobody"));
    // With a password `doas` is not told to go without one.
    fs::copy(lab.path("bin/sudo"), lab.path("bin/plain-doas")).unwrap();
    lab.write(
        "bin/doas",
        "#!/bin/sh\n[ \"$1\" = -n ] && exit 1\nexec \"$(dirname \"$0\")/plain-doas\" \"$@\"\n",
    );
    fs::set_permissions(lab.path("bin/doas"), fs::Permissions::from_mode(0o755)).unwrap();
    let document = run("third", "open-sesame").exits(0).document();
    assert_eq!(check(&document, "third/become")["status"], "pass");
    let refused = run("other", "closed-sesame").exits(1);
    let document = refused.document();
    assert_eq!(failed(&document), ["other/become"]);
    assert!(check(&document, "other/become")["detail"].as_str().unwrap().contains("wrong password"));
    assert!(!refused.stdout.contains("sesame") && !refused.stderr.contains("sesame"));
    lab.run(["doctor", "--target", "other"]).exits(1).says("PW is not set");
}

#[test]
fn an_ssh_target_is_reached_and_the_step_that_fails_is_named() {
    if !sshd::available() {
        return;
    }
    let server = Sshd::start();
    let lab = lab();
    let closed = sshd::free_port();
    let inventory = format!(
        "api_version: v1\nhosts:\n  web: {{transport: \"{}\", workdir: \"{}\"}}\n  strange: {{transport: \"{}\"}}\n  \
         away: {{transport: \"ssh://nobody@127.0.0.1:{closed}?agent=false&ssh_config=none\"}}\n",
        server.spec_text(),
        server.workdir().display(),
        server.spec_text().replace("/known_hosts&", "/nothing&"),
    );
    lab.write("inventory.yaml", inventory);
    let document = lab.run(["doctor", "--target", "web", "--json"]).exits(0).document();
    for name in ["connection", "host-key", "login", "shell", "system", "base-directory", "binary", "clock"] {
        assert_eq!(check(&document, &format!("web/{name}"))["status"], "pass", "{name} in {document}");
    }
    let left = fs::read_dir(server.workdir()).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is uploaded");
    let document = lab.run(["doctor", "--target", "_all", "--json"]).exits(1).document();
    assert_eq!(failed(&document), ["away/connection", "strange/host-key"]);
    assert_eq!(check(&document, "strange/connection")["status"], "pass");
    assert_eq!(check(&document, "strange/login")["status"], "skip");
    lab.run(["doctor", "--target", "nope"]).exits(3).says("nope");
    lab.run(["doctor", "-i", "inventory.yaml"]).exits(2);
}
