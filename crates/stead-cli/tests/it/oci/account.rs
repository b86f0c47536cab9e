//! An ordinary account for tests of containers without root: it is known, has numbers of its own and a network card to
//! open, but only where its programs look. Nothing of this machine is changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The account's number; nobody has it.
const NUMBER: u32 = 54_321;
/// Says where the template is that this account's containers are made from.
const TEMPLATE: &str = "STEAD_TEST_ROOTLESS_TEMPLATE";
/// Makes that.
const MAKE_TEMPLATE: &str = include_str!("template.sh");

/// Becomes the account, among mounts of its own. Arguments: the place, the number, this program, the test's, what to run.
const SETUP: &str = r#"set -e
cd "$1"; number=$2; stead=$3; test=$4; shift 4
for name in passwd group subuid subgid; do mount --bind "etc/$name" "/etc/$name"; done
mount -t tmpfs -o mode=0755 stead-rig bin
mknod -m 666 bin/tun c 10 200
mount --bind bin/tun /dev/net/tun
touch bin/stead bin/test
mount --bind "$stead" bin/stead
mount --bind "$test" bin/test
cd home
exec setpriv --reuid "$number" --regid "$number" --clear-groups -- "$@""#;

/// Runs its arguments as the account where the kernel gives nobody a user namespace: such a limit is that of the namespace it
/// is set in. Arguments: the number, what to run.
const CONFINED: &str = r#"set -e
echo 0 >/proc/sys/user/max_user_namespaces
number=$1; shift
exec setpriv --reuid "$number" --regid "$number" --clear-groups -- "$@""#;

/// Makes a small root of programs of this machine in a directory, with a device in it. Only root can.
pub(crate) fn make_tree(directory: &Path) {
    let mut making = Command::new("/bin/sh");
    making.args(["-c", MAKE_TEMPLATE, "sh"]).arg(directory).arg(env!("CARGO_BIN_EXE_stead"));
    let out = making.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// An ordinary account.
pub(crate) struct Account {
    dir: TempDir,
}

impl Account {
    /// Returns one, unless none can be here: then that is said. On CI it fails.
    #[expect(clippy::print_stderr, reason = "a test that is left out says why")]
    pub(crate) fn new() -> Option<Self> {
        if let Some(why) = missing() {
            assert!(std::env::var_os("STEAD_CI").is_none(), "containers without root are needed: {why}");
            eprintln!("skipped: containers without root are needed: {why}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let account = Self { dir };
        fs::set_permissions(account.dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        for place in ["etc", "bin", "home", "tree"] {
            fs::create_dir(account.path(place)).unwrap();
        }
        chown(account.path("home"), Some(NUMBER), Some(NUMBER)).unwrap();
        let home = account.path("home");
        let lines = [
            ("passwd", format!("ordinary:x:{NUMBER}:{NUMBER}::{}:/bin/sh\n", home.display())),
            ("group", format!("ordinary:x:{NUMBER}:\n")),
            ("subuid", "root:0:400000\nordinary:300000:65536\n".to_owned()),
            ("subgid", "root:0:400000\nordinary:300000:65536\n".to_owned()),
        ];
        for (name, line) in lines {
            let text = fs::read_to_string(Path::new("/etc").join(name)).unwrap();
            fs::write(account.path("etc").join(name), format!("{text}{line}")).unwrap();
        }
        account.make_template();
        Some(account)
    }

    fn make_template(&self) {
        make_tree(&self.path("tree"));
        let mut packing = Command::new("tar");
        packing
            .arg("-C")
            .arg(self.path("tree"))
            .args(["--numeric-owner", "-czf"])
            .arg(self.template())
            .arg(".");
        let out = packing.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the archive that its containers are made from.
    pub(crate) fn template(&self) -> PathBuf {
        self.path("base.tar.gz")
    }

    /// Gives the account a file below its home.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path("home").join(name);
        for place in path.parent().unwrap().ancestors().take_while(|place| !place.exists()) {
            fs::create_dir_all(place).unwrap();
        }
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for place in path.ancestors().take_while(|place| *place != self.path("home")) {
            chown(place, Some(NUMBER), Some(NUMBER)).unwrap();
        }
    }

    /// Returns a command that the account runs in its home: `stead`, or `test`, which is this program.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = self.among_its_mounts(NUMBER);
        command.arg(self.path("bin").join(program));
        command
    }

    /// Returns the same where the kernel gives nobody a user namespace.
    pub(crate) fn confined(&self, program: &str) -> Command {
        let mut command = self.among_its_mounts(0);
        let all = ["--user", "--map-users=0,0,400000", "--map-groups=0,0,400000"];
        command.arg("unshare").args(all).args(["/bin/sh", "-c", CONFINED, "sh", &NUMBER.to_string()]);
        command.arg(self.path("bin").join(program));
        command
    }

    /// Returns the beginning of a command among the mounts of the account, as the account `number`.
    fn among_its_mounts(&self, number: u32) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-c", SETUP, "sh"]);
        command.arg(self.dir.path()).arg(number.to_string());
        command.arg(env!("CARGO_BIN_EXE_stead")).arg(std::env::current_exe().unwrap());
        let home = self.path("home");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", &home);
        command.env("TMPDIR", &home).env(TEMPLATE, self.template()).stdin(Stdio::null());
        command
    }

    /// Runs the test `name` of this program as the account.
    #[track_caller]
    pub(crate) fn run_test(&self, name: &str) {
        let mut command = self.command("test");
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        let out = command.output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(out.status.success() && said.contains("1 passed"), "`{name}` without root failed:\n{said}");
    }
}

/// Returns the template that the containers of this process are made from, if it is the account's.
pub(crate) fn own_template() -> Option<PathBuf> {
    std::env::var_os(TEMPLATE).map(PathBuf::from)
}

/// Returns this program, as the driver of this process starts it.
pub(crate) fn program() -> PathBuf {
    match own_template() {
        Some(template) => template.with_file_name("bin").join("stead"),
        None => PathBuf::from(env!("CARGO_BIN_EXE_stead")),
    }
}

fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can be another account".to_owned());
    }
    let has = |name: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|place| Path::new(place).join(name).exists())
    };
    let programs = [
        ("busybox", "busybox-static"),
        ("crun", "crun"),
        ("ip", "iproute2"),
        ("newuidmap", "uidmap"),
        ("runc", "runc"),
        ("setpriv", "util-linux"),
        ("slirp4netns", "slirp4netns"),
        ("sshd", "openssh-server"),
        ("sudo", "sudo"),
    ];
    let absent = programs.iter().find(|(program, _)| !has(program));
    if let Some((program, package)) = absent {
        return Some(format!("`{program}` is not installed (package {package})"));
    }
    let files = ["/dev/net/tun", "/etc/subuid", "/etc/subgid"];
    files.iter().find(|file| !Path::new(file).exists()).map(|file| format!("there is no {file}"))
}
