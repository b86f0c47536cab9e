//! A sandbox's file system, as it is before it starts for the first time.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use stead_model::machine::MachineSpec;
use stead_runner::machine::MachineError;

use super::home::Home;
use super::planted;
use crate::transport::ssh::server::ServerKey;

/// Answers for the machine, whatever this machine is called.
const HOSTNAME: &str = r#"#!/bin/sh
name=$(head -n 1 "$STEAD_ROOT/etc/hostname" 2>/dev/null)
name=${name:-$STEAD_NODE}
full=$(awk -v name="$name" '$1 !~ /^#/ { for (i = 2; i <= NF; i++) if ($i == name) { print $2; exit } }' \
  "$STEAD_ROOT/etc/hosts" 2>/dev/null)
case ${1-} in
  '') printf '%s\n' "$name" ;;
  -s|--short) printf '%s\n' "${name%%.*}" ;;
  -f|--fqdn|--long) printf '%s\n' "${full:-$name}" ;;
  -d|--domain) case $full in *.*) printf '%s\n' "${full#*.}" ;; esac ;;
  -i|-I|--ip-address|--all-ip-addresses) echo 127.0.0.1 ;;
  *) echo "hostname: $1: a sandbox is renamed by its /etc/hostname" >&2; exit 1 ;;
esac
"#;

/// Restarts the machine: its supervisor ends what runs and begins another boot.
///
/// It is known by its number and by when it began: the number alone may be somebody else's by now.
const REBOOT: &str = r#"#!/bin/sh
read -r pid began rest <"$STEAD_SANDBOX/pid" && read -r stat <"/proc/$pid/stat" || exit 1
set -- ${stat##*) }
[ "${20}" = "$began" ] && kill -HUP "$pid"
"#;

/// Makes the machine's files, below a directory that holds none yet, and plants `program`. `step` is told of each.
pub(super) fn make(
    home: &Home,
    spec: &MachineSpec,
    program: &Path,
    step: &dyn Fn(&str),
) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("make", &error);
    let root = home.root();
    directory(&root, 0o755).map_err(failed)?;
    step("root");
    for (path, mode) in [
        ("etc/network/interfaces.d", 0o755),
        ("etc/ssh/sshd_config.d", 0o755),
        ("etc/stead/keys", 0o755),
        ("etc/sudoers.d", 0o755),
        ("root", 0o700),
        ("run", 0o755),
        ("tmp", 0o1777),
        ("usr/share", 0o755),
        ("var/lib/stead", 0o700),
        ("var/log", 0o755),
    ] {
        directory(&root.join(path), mode).map_err(failed)?;
    }
    step("directories");
    for (path, mode, content) in system_files(spec) {
        plant(&root, path, mode, content.as_bytes()).map_err(failed)?;
    }
    if spec.user != "root" {
        directory(&root.join("home").join(&spec.user), 0o755).map_err(failed)?;
    }
    step("system");
    let keys = Path::new("etc/stead/keys").join(&spec.user);
    // Public keys, and whoever checks a login reads them as the account that logs in.
    plant(&root, &keys, 0o644, lines(&spec.authorized_keys).as_bytes()).map_err(failed)?;
    step("keys");
    for file in &spec.files {
        let path = check_path(&file.path)?;
        plant(&root, &path, file.mode, &file.content).map_err(failed)?;
    }
    step("files");
    planted::plant(program, home).map_err(failed)?;
    step("program");
    directory(&home.programs(), 0o755).map_err(failed)?;
    for (name, text) in [("hostname", HOSTNAME), ("reboot", REBOOT)] {
        plant(&home.programs(), name, 0o755, text.as_bytes()).map_err(failed)?;
    }
    step("programs");
    let key = match &spec.host_key {
        Some(key) => ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?,
        None => ServerKey::generate().map_err(failed)?,
    };
    let text = key.to_text().map_err(failed)?;
    plant(home.directory(), "host_key", 0o600, text.as_bytes())
        .and_then(|file| file.sync_all())
        .map_err(failed)?;
    step("host key");
    Ok(())
}

fn system_files(spec: &MachineSpec) -> Vec<(&'static str, u32, String)> {
    let (name, user) = (spec.owner.name(), &spec.user);
    let own = |line: String| if user == "root" { String::new() } else { line };
    let password = spec.root_password.as_ref().map_or("*", |hash| hash.expose());
    vec![
        ("etc/hostname", 0o644, format!("{name}\n")),
        ("etc/hosts", 0o644, format!("127.0.0.1 localhost\n127.0.1.1 {name}\n")),
        ("etc/machine-id", 0o444, format!("{}\n", spec.owner.uuid().replace('-', ""))),
        ("etc/os-release", 0o644, "ID=sandbox\nNAME=Sandbox\nPRETTY_NAME=\"Stead sandbox\"\n".to_owned()),
        ("etc/login.defs", 0o644, "USERGROUPS_ENAB yes\n".to_owned()),
        ("etc/ssh/sshd_config", 0o644, "Include /etc/ssh/sshd_config.d/*.conf\n".to_owned()),
        (
            "etc/passwd",
            0o644,
            format!(
                "root:x:0:0:root:/root:/bin/sh\n{}",
                own(format!("{user}:x:1000:1000::/home/{user}:/bin/sh\n"))
            ),
        ),
        (
            "etc/group",
            0o644,
            format!("root:x:0:\nadm:x:4:\nsudo:x:27:\nusers:x:100:\n{}", own(format!("{user}:x:1000:\n"))),
        ),
        ("etc/shadow", 0o600, format!("root:{password}:::::::\n{}", own(format!("{user}:*:::::::\n")))),
    ]
}

fn lines(keys: &[String]) -> String {
    keys.iter().map(|key| format!("{}\n", key.trim())).collect()
}

/// Returns where a planted file goes, below the root.
pub(in crate::machine) fn check_path(path: &str) -> Result<PathBuf, MachineError> {
    let refuse =
        || MachineError::Invalid(format!("`{}` is not a file's path in a machine", path.escape_debug()));
    let inside = path.strip_prefix('/').map(Path::new).ok_or_else(refuse)?;
    let is_plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || inside.as_os_str().is_empty() || path.contains('\0') {
        return Err(refuse());
    }
    Ok(inside.to_owned())
}

/// Makes a directory with those above it.
fn directory(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn plant(root: &Path, path: impl AsRef<Path>, mode: u32, content: &[u8]) -> io::Result<File> {
    let path = root.join(path);
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    // Never wider than it will be, not even for a moment.
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(mode & 0o700).open(&path)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reboot_is_for_the_process_that_was_noted() {
        use std::os::unix::process::ExitStatusExt as _;
        use std::process::{Command, Stdio};
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let mark = crate::machine::ProcessMark::of(child.id()).unwrap().to_string();
        let reboot = |line: &str| {
            fs::write(dir.path().join("pid"), line).unwrap();
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", REBOOT]).env("STEAD_SANDBOX", dir.path()).stderr(Stdio::null());
            shell.status().unwrap().success()
        };
        let stranger = format!("{} 1 boot\n", child.id());
        assert!(!reboot(&stranger) && !reboot("4194305 1 boot\n"));
        assert!(child.try_wait().unwrap().is_none(), "one of the same number began at another time");
        assert!(reboot(&format!("{mark}\n")));
        assert_eq!(child.wait().unwrap().signal(), Some(1));
    }

    #[test]
    fn a_planted_file_stays_in_its_machine() {
        assert_eq!(check_path("/etc/stead/bootstrap.json").unwrap(), Path::new("etc/stead/bootstrap.json"));
        for bad in ["etc/x", "/", "", "/../x", "/a/../../b", "/a/./b/.."] {
            assert!(check_path(bad).is_err(), "{bad}");
        }
    }
}
