//! Who may log in to a sandbox, and what a command finds around it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::process::Command;

use super::MARK;
use super::home::Home;
use super::names::is_account;
use crate::disk::Disk;
use crate::machine::console::Console;
use crate::machine::local::SYSTEM_PATH;
use crate::transport::ssh::server::{SshHost, Started};

/// Processes that somebody here waits for: nobody else may.
pub(super) type Awaited = Arc<Mutex<BTreeSet<u32>>>;

/// A sandbox, as those see it who log in.
pub(super) struct Guest {
    pub(super) home: Home,
    pub(super) node: String,
    pub(super) console: Arc<Console>,
    pub(super) awaited: Awaited,
}

impl Guest {
    /// Returns a file of the machine, if it is there; nothing outside the root is ever read.
    fn text(&self, path: &str) -> Option<String> {
        let disk = Disk::at(&self.home.root()).ok()?;
        disk.text(Path::new(path)).ok()?
    }

    /// Returns the home directory of an account, as the machine names it.
    fn home_of(&self, user: &str) -> Option<String> {
        let passwd = self.text("/etc/passwd").filter(|_| is_account(user))?;
        passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, _, _, _, home, _] = fields[..] else { return None };
            (name == user && home.starts_with('/')).then(|| home.to_owned())
        })
    }

    /// Returns what a command of an account finds around it.
    pub(super) fn variables(&self, user: &str) -> Vec<(&'static str, OsString)> {
        let root = self.home.root();
        let disk = Disk::at(&root).ok();
        let home = self.home_of(user).and_then(|home| disk?.real_path(Path::new(&home)).ok());
        let home = home.filter(|home| home.is_dir()).unwrap_or_else(|| root.clone());
        let path: PathBuf = self.home.programs();
        let mut search = path.into_os_string();
        search.push(":");
        search.push(SYSTEM_PATH);
        vec![
            ("HOME", home.into()),
            ("LOGNAME", user.into()),
            ("PATH", search),
            ("SHELL", "/bin/sh".into()),
            ("STEAD_NODE", self.node.as_str().into()),
            ("STEAD_ROOT", root.into()),
            (MARK, self.home.directory().into()),
            ("USER", user.into()),
        ]
    }
}

impl SshHost for Guest {
    fn keys(&self, user: &str) -> Vec<String> {
        let Some(home) = self.home_of(user) else { return Vec::new() };
        let own = self.text(&format!("{home}/.ssh/authorized_keys"));
        // The driver's keys lie apart: no configuration of the account takes them away.
        let planted = self.text(&format!("/etc/stead/keys/{user}"));
        [own, planted].iter().flatten().flat_map(|text| text.lines()).map(str::to_owned).collect()
    }

    fn start(
        &self,
        user: &str,
        line: Option<OsString>,
        locale: &BTreeMap<String, String>,
    ) -> io::Result<Started> {
        let mut command = Command::new("/bin/sh");
        if let Some(line) = line {
            command.arg("-c").arg(line);
        }
        command.env_clear().envs(locale).envs(self.variables(user));
        command.current_dir(self.home.root()).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Known as awaited before anybody can find it ended.
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let pid = child.id().unwrap_or_default();
        awaited.insert(pid);
        let guard = Box::new(Waiting { pid, awaited: Arc::clone(&self.awaited) });
        Ok(Started { child, guard })
    }

    fn socket(&self, path: &str) -> Option<PathBuf> {
        let root = self.home.root();
        // By its place in the machine, or by its place here, as commands of the machine see it.
        let inside = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(path));
        Disk::at(&root).ok()?.real_path(&Path::new("/").join(inside)).ok()
    }

    fn note(&self, line: &str) {
        self.console.say(line);
    }
}

/// As long as it is there, somebody waits for the process.
pub(super) struct Waiting {
    pub(super) pid: u32,
    pub(super) awaited: Awaited,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
    }
}
