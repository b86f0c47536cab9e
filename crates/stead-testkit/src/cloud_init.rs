//! The first boot of a machine by cloud-init as a distribution ships it: real packages, which `./test` downloads and nobody
//! installs, in a container whose seed is one of ours.
//!
//! The container has a network card that nobody is behind. What a boot does to disks, languages and package sources is
//! left out; what is left is all that a seed of ours asks for, but for packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::container::Container;
use crate::proxmox::file_of_seed;

/// What cloud-init does of all it could.
const MODULES: &str = "datasource_list: [NoCloud, None]
cloud_init_modules: [write-files, set_hostname, users-groups, ssh]
cloud_config_modules: [set-passwords, runcmd]
cloud_final_modules: [scripts-user]
";

/// Where a seed is found that is no volume.
const SEED: &str = "var/lib/cloud/seed/nocloud";
/// The programs of one boot, in their order.
const STAGES: [&[&str]; 4] =
    [&["init", "--local"], &["init"], &["modules", "--mode=config"], &["modules", "--mode=final"]];

/// A machine that is about to boot for the first time.
#[derive(Debug)]
pub struct CloudInit {
    container: Container,
}

impl CloudInit {
    /// Returns a machine with this seed and a card with this hardware address. The packages lie in `DIRECTORY/cloud-init`;
    /// without them, or without containers, nothing is returned and this is said.
    ///
    /// # Panics
    /// If everything is there and it still cannot be made, and on CI if something is missing.
    pub fn with(directory: &Path, seed: &[u8], mac: &str) -> Option<Self> {
        let place = directory.join("cloud-init");
        let packages = packages(&place);
        if packages.is_empty() {
            let why = format!("no package cloud-init in {} (./test downloads it)", place.display());
            assert!(std::env::var_os("STEAD_CI").is_none(), "{why}");
            #[expect(clippy::print_stderr, reason = "the reader of the test's output is told")]
            {
                eprintln!("skipped: {why}");
            }
            return None;
        }
        let container = Container::start()?;
        let tree = tempfile::tempdir().expect("a temporary directory");
        for package in packages {
            let unpacked = Command::new("dpkg-deb").arg("-x").arg(package).arg(tree.path()).status();
            assert!(unpacked.is_ok_and(|status| status.success()), "dpkg-deb");
        }
        fs::write(tree.path().join("etc/cloud/cloud.cfg.d/99-rig.cfg"), MODULES).expect("its settings");
        fs::create_dir_all(tree.path().join(SEED)).expect("a directory");
        for name in ["meta-data", "user-data", "vendor-data", "network-config"] {
            if let Some(text) = file_of_seed(seed, name) {
                fs::write(tree.path().join(SEED).join(name), text).expect("a file of the seed");
            }
        }
        let machine = Self { container };
        machine.bring(tree.path());
        machine.sh(&format!(
            "ip link set lo up; ip link add ens3 type veth peer name nobody; ip link set ens3 address {mac}"
        ));
        Some(machine)
    }

    /// Puts the parts of a tree that cloud-init is made of into the machine's root.
    fn bring(&self, tree: &Path) {
        let mut packing = Command::new("tar");
        packing.arg("-C").arg(tree).args(["-c", "etc/cloud", "usr/lib/python3", "var"]);
        let mut packing = packing.stdout(Stdio::piped()).spawn().expect("tar can be started");
        let mut entering = self.container.entering().into_iter();
        let mut unpacking = Command::new(entering.next().expect("there is a program"));
        unpacking.args(entering).args(["tar", "-x", "-C", "/"]);
        let packed = packing.stdout.take().expect("a pipe");
        let unpacked = unpacking.stdin(Stdio::from(packed)).output().expect("runc can be started");
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        assert!(packing.wait().is_ok_and(|status| status.success()), "tar");
    }

    /// Boots, and returns what each stage said and whether it succeeded.
    pub fn boot(&self) -> Vec<(String, bool)> {
        let stage = |arguments: &&[&str]| {
            let argv = [&["/usr/bin/python3", "-m", "cloudinit.cmd.main"], *arguments].concat();
            let ended = self.container.run(&argv);
            let said = [ended.stdout, ended.stderr].concat();
            (String::from_utf8_lossy(&said).into_owned(), ended.status.success())
        };
        STAGES.iter().map(stage).collect()
    }

    /// Runs a line of shell in it and returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it said.
    pub fn sh(&self, script: &str) -> String {
        self.container.sh(script)
    }
}

/// Returns the packages that lie at `place`; none if cloud-init itself is not among them.
fn packages(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    let packages: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "deb")).collect();
    let is_itself = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cloud-init_"))
    };
    if packages.iter().any(is_itself) { packages } else { Vec::new() }
}
