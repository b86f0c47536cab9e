//! What a machine has of its own before it starts for the first time: its name, its keys, an account that its driver
//! logs in to, and the files it was given. Everything goes through the machine's root, where links lead nowhere else.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use stead_model::machine::MachineSpec;
use stead_runner::machine::MachineError;

use super::init::SSHD;
use crate::disk::Disk;
use crate::machine::home::Home;
use crate::machine::sandbox::check_path;
use crate::transport::ssh::server::ServerKey;

/// The public half of the machine's host key, beside its root.
const HOST_KEY: &str = "host_key.pub";
/// The first number of accounts that people have.
const FIRST_ACCOUNT: u32 = 1000;

/// The root of a machine that is being made.
struct Root {
    disk: Disk,
}

impl Root {
    fn at(path: &Path) -> io::Result<Self> {
        let disk = Disk::at(path).map_err(|error| io::Error::other(error.message))?;
        Ok(Self { disk })
    }

    /// Returns where a path of the machine really is.
    fn real(&self, path: &str) -> io::Result<PathBuf> {
        self.disk.real_path(path.as_ref()).map_err(|error| io::Error::other(error.message))
    }

    fn directory(&self, path: &str, mode: u32) -> io::Result<PathBuf> {
        let real = self.real(path)?;
        make_directories(&real)?;
        fs::set_permissions(&real, fs::Permissions::from_mode(mode))?;
        Ok(real)
    }

    /// Replaces a file: what was there, a link too, goes.
    fn write(&self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let real = self.real(path)?;
        if let Some(parent) = real.parent() {
            make_directories(parent)?;
        }
        remove(&real)?;
        // Never wider than it will be, not even for a moment.
        let mut file = File::options().write(true).create_new(true).mode(mode & 0o700).open(&real)?;
        file.write_all(content)?;
        file.set_permissions(fs::Permissions::from_mode(mode))
    }

    fn text(&self, path: &str) -> io::Result<String> {
        let text = self.disk.text(path.as_ref()).map_err(|error| io::Error::other(error.message))?;
        Ok(text.unwrap_or_default())
    }

    fn has(&self, path: &str) -> bool {
        self.real(path).is_ok_and(|real| real.is_file())
    }
}

/// Makes a directory and those it is in, as far as they are not there, open to everybody in the machine whatever the
/// caller masks.
fn make_directories(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        fs::create_dir(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Plants everything below `root`, where the machine's root is mounted. `step` is told of each part.
pub(super) fn plant(
    home: &Home,
    spec: &MachineSpec,
    root: &Path,
    step: &(dyn Fn(&str) + Sync),
) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("make", &error);
    let root = Root::at(root).map_err(failed)?;
    if spec.program.is_none() && !root.has(SSHD) {
        let why = format!("the template has no {SSHD} (package openssh-server)");
        return Err(MachineError::Invalid(why));
    }
    if spec.user != "root" && !root.has("/usr/bin/sudo") {
        let why = format!("the template has no sudo, by which {} becomes root (package sudo)", spec.user);
        return Err(MachineError::Invalid(why));
    }
    let key = match &spec.host_key {
        Some(key) => ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?,
        None => ServerKey::generate().map_err(failed)?,
    };
    identity(&root, spec).map_err(failed)?;
    step("identity");
    host_key(home, &root, &key).map_err(failed)?;
    step("host key");
    account(&root, &spec.user).map_err(failed)?;
    if let Some(hash) = &spec.root_password {
        root_password(&root, hash.expose()).map_err(failed)?;
    }
    step("account");
    // What its template was told is not meant for it.
    remove(&root.real("/etc/stead").map_err(failed)?).map_err(failed)?;
    root.directory("/etc/stead/keys", 0o755).map_err(failed)?;
    let keys: String = spec.authorized_keys.iter().map(|key| format!("{}\n", key.trim())).collect();
    // Read by the daemon as the account itself.
    root.write(&format!("/etc/stead/keys/{}", spec.user), 0o644, keys.as_bytes()).map_err(failed)?;
    step("keys");
    for file in &spec.files {
        check_path(&file.path)?;
        root.write(&file.path, file.mode, &file.content).map_err(failed)?;
    }
    step("files");
    Ok(())
}

fn identity(root: &Root, spec: &MachineSpec) -> io::Result<()> {
    let name = spec.owner.name();
    let hosts = format!("127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost ip6-loopback\n");
    root.write("/etc/hostname", 0o644, format!("{name}\n").as_bytes())?;
    root.write("/etc/hosts", 0o644, hosts.as_bytes())?;
    if !spec.name_servers.is_empty() {
        let lines: String = spec.name_servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        root.write("/etc/resolv.conf", 0o644, lines.as_bytes())?;
    }
    let id = spec.owner.uuid().replace('-', "");
    root.write("/etc/machine-id", 0o444, format!("{id}\n").as_bytes())
}

/// Gives the machine a key of its own: those of its template are another machine's.
fn host_key(home: &Home, root: &Root, key: &ServerKey) -> io::Result<()> {
    let directory = root.directory("/etc/ssh", 0o755)?;
    for entry in fs::read_dir(&directory)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("ssh_host_") {
            remove(&entry.path())?;
        }
    }
    let public = key.public()?;
    root.write("/etc/ssh/ssh_host_ed25519_key", 0o600, key.to_text()?.as_bytes())?;
    root.write("/etc/ssh/ssh_host_ed25519_key.pub", 0o644, format!("{public}\n").as_bytes())?;
    crate::machine::home::write_text(&home.file(HOST_KEY), &public, 0o600)
}

/// Returns the public half of the key that the machine shows.
pub(super) fn host_key_of(home: &Home) -> Option<String> {
    fs::read_to_string(home.file(HOST_KEY)).ok()
}

/// Makes sure of an account that becomes root without a password.
fn account(root: &Root, user: &str) -> io::Result<()> {
    if user == "root" {
        return Ok(());
    }
    let (passwd, group) = (root.text("/etc/passwd")?, root.text("/etc/group")?);
    if field(&passwd, user, 2).is_none() {
        let number = free_number(&passwd, &group);
        let shell = if root.has("/bin/bash") { "/bin/bash" } else { "/bin/sh" };
        let line = format!("{user}:x:{number}:{number}::/home/{user}:{shell}\n");
        root.write("/etc/passwd", 0o644, with_line(&passwd, &line).as_bytes())?;
        let line = format!("{user}:x:{number}:\n");
        root.write("/etc/group", 0o644, with_line(&group, &line).as_bytes())?;
        // No password opens it, and yet it is not locked.
        let shadow = root.text("/etc/shadow")?;
        write_shadow(root, &with_line(&shadow, &format!("{user}:*:::::::\n")))?;
        let home = root.directory(&format!("/home/{user}"), 0o755)?;
        chown(home, Some(number), Some(number))?;
    }
    let rule = format!("{user} ALL=(ALL:ALL) NOPASSWD: ALL\n");
    root.directory("/etc/sudoers.d", 0o750)?;
    root.write("/etc/sudoers.d/90-stead-driver", 0o440, rule.as_bytes())
}

/// Has a password of this hash open root.
fn root_password(root: &Root, hash: &str) -> io::Result<()> {
    write_shadow(root, &with_password(&root.text("/etc/shadow")?, "root", hash))
}

fn write_shadow(root: &Root, text: &str) -> io::Result<()> {
    root.write("/etc/shadow", 0o640, text.as_bytes())?;
    let group = root.text("/etc/group")?;
    let group = field(&group, "shadow", 2).and_then(|number| number.parse().ok());
    chown(root.real("/etc/shadow")?, Some(0), Some(group.unwrap_or(0)))
}

fn with_password(shadow: &str, user: &str, hash: &str) -> String {
    if field(shadow, user, 0).is_none() {
        return with_line(shadow, &format!("{user}:{hash}:::::::\n"));
    }
    let line = |line: &str| match line.split(':').collect::<Vec<_>>().as_slice() {
        [name, _, rest @ ..] if *name == user => format!("{user}:{hash}:{}\n", rest.join(":")),
        _ => format!("{line}\n"),
    };
    shadow.lines().map(line).collect()
}

fn with_line(text: &str, line: &str) -> String {
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{gap}{line}")
}

/// Returns a field of the line that begins with `name`.
fn field<'a>(table: &'a str, name: &str, index: usize) -> Option<&'a str> {
    let line = table.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(index)
}

/// Returns the first number that neither an account nor a group has.
fn free_number(passwd: &str, group: &str) -> u32 {
    let numbers = |table: &str| -> Vec<u32> {
        table.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect()
    };
    let taken = [numbers(passwd), numbers(group)].concat();
    (FIRST_ACCOUNT..).find(|number| !taken.contains(number)).unwrap_or(FIRST_ACCOUNT)
}

/// Removes whatever is there; nothing is removed too.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_gets_a_number_that_nobody_has() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh";
        let group = "root:x:0:\nstaff:x:1001:\n";
        assert_eq!(free_number(passwd, group), 1002);
        assert_eq!(field(passwd, "ann", 2), Some("1000"));
        assert_eq!(field(passwd, "an", 2), None);
        assert_eq!(with_line("a", "b\n"), "a\nb\n");
    }

    #[test]
    fn a_password_is_set_whatever_was_there() {
        let shadow = "rooty:!:1::::::\nroot:*:19000:0:99999:7:::\nann:$6$x:1::::::\n";
        let expected = "rooty:!:1::::::\nroot:$6$y:19000:0:99999:7:::\nann:$6$x:1::::::\n";
        assert_eq!(with_password(shadow, "root", "$6$y"), expected);
        assert_eq!(with_password("", "root", "$6$y"), "root:$6$y:::::::\n");
    }
}
