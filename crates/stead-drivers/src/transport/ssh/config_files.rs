//! The files of ssh_config on this machine, read once per run, and what `Match exec` runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stead_model::transport::SshSpec;
use stead_runner::transport::{TransportError, TransportErrorKind};

use super::config::{ConfigText, Outside, Query, SshConfig};
use super::pattern;
use super::settings::expand_home;
use crate::transport::Surroundings;

/// No configuration is longer.
const LONGEST_FILE: u64 = 16 << 20;
/// A condition that takes longer does not hold.
const LONGEST_CONDITION: Duration = Duration::from_secs(30);

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct ConfigFiles {
    texts: Mutex<BTreeMap<PathBuf, Option<String>>>,
}

impl ConfigFiles {
    /// Returns what the files give the host of `spec`. Reads files and may run programs: not for an async thread.
    pub(super) fn resolve(&self, spec: &SshSpec, around: &Surroundings) -> Result<SshConfig, TransportError> {
        let invalid = |message: String| TransportError::new(TransportErrorKind::Invalid, message);
        let user_base = around.home.join(".ssh");
        let places = match spec.ssh_config.as_deref() {
            Some("none") => Vec::new(),
            Some(path) => {
                let path = expand_home(path, around);
                if !path.exists() {
                    return Err(invalid(format!("ssh_config: {} is not there", path.display())));
                }
                vec![(path, user_base)]
            }
            None => vec![
                (user_base.join("config"), user_base),
                (PathBuf::from("/etc/ssh/ssh_config"), PathBuf::from("/etc/ssh")),
            ],
        };
        let mut files = Vec::new();
        for (path, base) in places {
            if let Some(text) =
                self.read(&path).map_err(|error| invalid(format!("{}: {error}", path.display())))?
            {
                files.push(ConfigText {
                    path: path.display().to_string(),
                    base: base.display().to_string(),
                    text,
                });
            }
        }
        let home = around.home.display().to_string();
        let query = Query {
            host: &spec.host,
            user: spec.user.as_deref(),
            port: spec.port,
            local_user: &around.user,
            home: &home,
        };
        let shell = around.variable("SHELL").map_or_else(|| PathBuf::from("/bin/sh"), PathBuf::from);
        let mut include = |wanted: &str| self.include(wanted);
        let mut exec = |command: &str| holds(&shell, command);
        let mut outside = Outside { include: &mut include, exec: &mut exec };
        SshConfig::resolve(&files, &query, &mut outside)
            .map_err(|error| invalid(format!("ssh_config: {error}")))
    }

    fn include(&self, wanted: &str) -> Vec<ConfigText> {
        let mut found = Vec::new();
        for path in glob(wanted) {
            // As OpenSSH: what cannot be read is passed over.
            if let Ok(Some(text)) = self.read(&path) {
                found.push(ConfigText { path: path.display().to_string(), base: String::new(), text });
            }
        }
        found
    }

    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = texts.get(path) {
            return Ok(text.clone());
        }
        let text = match File::open(path) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(LONGEST_FILE).read_to_end(&mut bytes)?;
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        texts.insert(path.to_path_buf(), text.clone());
        Ok(text)
    }
}

/// Returns the paths an absolute pattern names, sorted.
fn glob(wanted: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in wanted.split('/').filter(|part| !part.is_empty()) {
        if !part.contains(['*', '?', '[']) {
            for path in &mut found {
                path.push(part);
            }
            continue;
        }
        let mut next = Vec::new();
        for directory in &found {
            let Ok(entries) = fs::read_dir(directory) else { continue };
            for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
                let hidden = name.starts_with('.') && !part.starts_with('.');
                if !hidden && pattern::names(part, &name) {
                    next.push(directory.join(name));
                }
            }
        }
        next.sort();
        found = next;
    }
    found.retain(|path| path.is_file());
    found
}

/// Runs a condition by the user's shell, as OpenSSH does, and returns whether it succeeded.
fn holds(shell: &Path, command: &str) -> bool {
    let child = Command::new(shell)
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let end = Instant::now() + LONGEST_CONDITION;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                child.kill().ok();
                child.wait().ok();
                return false;
            }
        }
    }
}
