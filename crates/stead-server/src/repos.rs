//! Bare clones of repositories, for nodes to clone from.
//!
//! Each has the branches and tags of its source, and the branch `_working`: its last commit with everything on top that is
//! not committed. Git writes nothing into the source: new objects go to the clone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use stead_drivers::repositories;
use stead_model::SiteKey;
use stead_runner::clock;

/// The branch of what is not committed.
const WORKING: &str = "refs/heads/_working";

/// How long all clones of a site may take: less than a server has to start.
const LONGEST: Duration = Duration::from_secs(100);
/// How often is looked whether Git has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Why a repository cannot be cloned.
#[derive(Debug, thiserror::Error)]
pub enum ReposError {
    /// Git could not be started, or a directory could not be made.
    #[error("failed to {what} for repository `{name}`")]
    Io {
        /// Which repository.
        name: SiteKey,
        /// What was done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Git said no.
    #[error("repository `{name}` at {}: {said}", path.display())]
    Git {
        /// Which repository.
        name: SiteKey,
        /// Where it is.
        path: PathBuf,
        /// What Git said.
        said: String,
    },
}

/// The clones of one snapshot, which go with it.
#[derive(Debug, Default)]
pub(crate) struct Repos {
    clones: BTreeMap<SiteKey, PathBuf>,
    _directory: Option<tempfile::TempDir>,
}

impl Repos {
    /// Clones `repos` below `directory`.
    ///
    /// # Errors
    /// With what is wrong with each that cannot be cloned.
    pub(crate) fn clone_all(directory: &Path, repos: &[(SiteKey, PathBuf)]) -> Result<Self, Vec<ReposError>> {
        let Some((first, _)) = repos.first() else { return Ok(Self::default()) };
        let failed = |source| vec![ReposError::Io { name: first.clone(), what: "make a directory", source }];
        fs::create_dir_all(directory).map_err(failed)?;
        let home = tempfile::tempdir_in(directory).map_err(failed)?;
        let (mut clones, mut errors) = (BTreeMap::new(), Vec::new());
        let deadline = clock::instant() + LONGEST;
        for (name, path) in repos {
            let to = home.path().join(format!("{name}.git"));
            let index = home.path().join(format!("{name}.index"));
            let cloned = Cloning { name, from: path, to: &to, index: &index, deadline }.run();
            errors.extend(cloned.err());
            clones.insert(name.clone(), to);
        }
        match errors.is_empty() {
            true => Ok(Self { clones, _directory: Some(home) }),
            false => Err(errors),
        }
    }

    /// Unpacks the clones in an archive that the level above has handed down, below `directory`.
    pub(crate) fn unpack(directory: &Path, archive: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let home = tempfile::tempdir_in(directory)?;
        let clones = repositories::unpack(archive, home.path())?;
        Ok(Self { clones, _directory: Some(home) })
    }

    /// Packs them into an archive.
    pub(crate) fn pack(&self, archive: &Path) -> io::Result<()> {
        repositories::pack(&self.clones, archive)
    }

    /// Removes what an earlier server has left.
    pub(crate) fn tidy(directory: &Path) -> io::Result<()> {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.clones.len()
    }

    /// Returns the file of a clone that `path` names, if it is one that Git asks for.
    pub(crate) fn file(&self, name: &str, path: &[String]) -> Option<PathBuf> {
        let clone = self.clones.get(name)?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let is_hex = |text: &str, length: &[usize]| {
            length.contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let is_known = match path.as_slice() {
            ["HEAD"] | ["info", "refs"] | ["objects", "info", "packs"] => true,
            ["objects", "pack", file] => {
                let stem = file.strip_prefix("pack-");
                let stem = stem.and_then(|s| s.strip_suffix(".pack").or_else(|| s.strip_suffix(".idx")));
                stem.is_some_and(|stem| is_hex(stem, &[40, 64]))
            }
            ["objects", fan, object] => is_hex(fan, &[2]) && is_hex(object, &[38, 62]),
            _ => false,
        };
        is_known.then(|| path.iter().fold(clone.clone(), |at, part| at.join(part)))
    }
}

struct Cloning<'a> {
    name: &'a SiteKey,
    from: &'a Path,
    to: &'a Path,
    index: &'a Path,
    deadline: Instant,
}

impl Cloning<'_> {
    fn run(&self) -> Result<(), ReposError> {
        let mut clone = git();
        clone.args(["clone", "--quiet", "--bare", "--no-hardlinks", "--"]).arg(self.from).arg(self.to);
        self.say(clone)?;
        if let Some(commit) = self.working()? {
            self.say_bare(&["update-ref", WORKING, &commit])?;
        }
        self.say_bare(&["update-server-info"])?;
        Ok(())
    }

    fn say_bare(&self, args: &[&str]) -> Result<String, ReposError> {
        let mut command = git();
        command.arg("--git-dir").arg(self.to).args(args);
        self.say(command)
    }

    /// Returns the commit of what is there but not committed: the last commit itself if everything is.
    fn working(&self) -> Result<Option<String>, ReposError> {
        let asked = |args: &[&str]| {
            let mut command = git();
            command.arg("-C").arg(self.from).args(args);
            command
        };
        let head = self.say(asked(&["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])).ok();
        if self.say(asked(&["rev-parse", "--is-bare-repository"]))? == "true" {
            return Ok(head);
        }
        let source = self.say(asked(&["rev-parse", "--path-format=absolute", "--git-common-dir"]))?;
        let with_clone = |args: &[&str]| {
            let mut command = asked(args);
            command.env("GIT_INDEX_FILE", self.index).env("GIT_OBJECT_DIRECTORY", self.to.join("objects"));
            command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", Path::new(&source).join("objects"));
            command
        };
        if head.is_some() {
            self.say(with_clone(&["read-tree", "HEAD"]))?;
        }
        self.say(with_clone(&["add", "--all", "."]))?;
        let tree = self.say(with_clone(&["write-tree"]))?;
        if let Some(head) = &head
            && self.say(with_clone(&["rev-parse", "--verify", &format!("{head}^{{tree}}")]))? == tree
        {
            return Ok(Some(head.clone()));
        }
        let mut commit = with_clone(&["commit-tree", &tree, "-m", "what is not committed"]);
        if let Some(head) = &head {
            commit.args(["-p", head]);
        }
        // The same work is the same commit, whoever serves it.
        for who in ["AUTHOR", "COMMITTER"] {
            commit.env(format!("GIT_{who}_NAME"), "stead").env(format!("GIT_{who}_EMAIL"), "stead@localhost");
            commit.env(format!("GIT_{who}_DATE"), "2000-01-01T00:00:00Z");
        }
        self.say(commit).map(Some)
    }

    /// Returns what a command of Git says.
    fn say(&self, command: Command) -> Result<String, ReposError> {
        let output = finish(command, self.deadline);
        let output =
            output.map_err(|source| ReposError::Io { name: self.name.clone(), what: "run git", source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().chars().take(2_000).collect();
        Err(ReposError::Git { name: self.name.clone(), path: self.from.to_owned(), said })
    }
}

/// Runs a command to its end; one that has not ended by then is killed with all it started.
fn finish(mut command: Command, deadline: Instant) -> io::Result<Output> {
    let mut child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if clock::instant() < deadline => thread::sleep(LOOK_AGAIN),
            None => {
                end(&mut child)?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"));
            }
        }
    };
    let read = |stream: JoinHandle<Vec<u8>>| stream.join().unwrap_or_default();
    Ok(Output { status, stdout: read(stdout), stderr: read(stderr) })
}

/// Reads a stream to its end, beside what else is done.
fn drain(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read of a stream that breaks off is what there is.
            stream.read_to_end(&mut bytes).ok();
        }
        bytes
    })
}

fn end(child: &mut Child) -> io::Result<()> {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended in between.
        kill_process_group(group, Signal::KILL).ok();
    }
    child.wait().map(drop)
}

/// Returns the command `git`, which asks nobody anything.
fn git() -> Command {
    let mut command = Command::new("git");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"] {
        command.env_remove(variable);
    }
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C").stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hangs is killed, with what it has started: a reload that waits for it would hold up all that come after.
    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let mut hanging = Command::new("sh");
        hanging.args(["-c", "sleep 1000 & wait"]);
        let ended = finish(hanging, clock::instant() + Duration::from_millis(50));
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut quick = Command::new("sh");
        quick.args(["-c", "echo out; echo err >&2; exit 3"]);
        let ended = finish(quick, clock::instant() + LONGEST).unwrap();
        assert_eq!(
            (ended.status.code(), &*ended.stdout, &*ended.stderr),
            (Some(3), &b"out\n"[..], &b"err\n"[..])
        );
    }
}
