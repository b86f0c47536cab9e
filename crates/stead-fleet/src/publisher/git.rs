//! The repository: one `git` program per question, by argument list, with credentials in files.
//!
//! The clone is bare and has all of the history, for ancestry in shallow clones is not the truth. A head that is looked into
//! lies at `refs/stead/seen`; the ref itself moves only when the head was accepted.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_engine::fleet::watch::{BadSignature, SignatureFault};
use stead_model::fleet::CommitId;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::services::publisher::{Credentials, Verify};

use super::PublishError;
use super::kept::replace;
use crate::job::{Ended, Job, JobError, Sink};

/// How long a question to the clone may take.
const LOCAL: Duration = Duration::from_secs(600);

/// Where a head lies until it is accepted.
const SEEN: &str = "refs/stead/seen";

/// How many contained commits are told.
const CONTAINED: &str = "256";

/// How many commits are verified by one process.
const BATCH: usize = 256;

/// Variables of a Git or an agent that started us: they must not lead elsewhere, or add keys.
const FOREIGN: [&str; 11] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
];

/// What git runs to ask for a password. It is the same for everybody; the file with the token is named by a variable.
const ASKPASS: &str = "#!/bin/sh\ncase \"$1\" in Username*) echo x-access-token ;; *) exec cat -- \"$STEAD_GIT_TOKEN_FILE\" ;; esac\n";

/// What git runs to reach a server: the key's file is named by a variable, which the shell does not look into.
const SSH: &str = "exec ssh -o BatchMode=yes -o IdentitiesOnly=yes -i \"$STEAD_GIT_SSH_KEY\"";

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum GitError {
    /// git could not be run to its end.
    #[error(transparent)]
    Job(#[from] JobError),
    /// git says no.
    #[error("git {what}: {why}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What it said.
        why: String,
    },
}

/// What the remote has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    /// The head of the ref.
    Head(CommitId),
    /// It answers and has no such ref.
    Missing,
}

/// One entry of a commit's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeFile {
    /// The name of its content.
    pub(super) object: String,
    /// Its size.
    pub(super) size: u64,
    /// Whether it is a file, and no link.
    pub(super) is_file: bool,
}

/// The repository and its clone.
#[derive(Clone, Debug)]
pub(super) struct Git {
    repo: String,
    reference: String,
    directory: PathBuf,
    timeout: Duration,
    credentials: Option<Credentials>,
    askpass: PathBuf,
    verify: Verify,
    allowed_signers: String,
    gpg_home: PathBuf,
}

impl Git {
    /// Returns the repository of `file`, cloned at `directory`.
    pub(super) fn open(file: &PublisherFile, directory: PathBuf) -> Result<Self, PublishError> {
        let repo = &file.repo;
        let authority = repo.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
        let account = authority.and_then(|authority| authority.rsplit_once('@')).map(|(account, _)| account);
        if account.is_some_and(|account| account.contains(':')) {
            let why = "`repo` holds a password, which every process list would show: put it into a file and name that in `credentials.token_file`";
            return Err(PublishError::Settings(why.to_owned()));
        }
        let above = directory.parent().unwrap_or(Path::new("/")).to_owned();
        let git = Self {
            repo: absolute(repo)?,
            reference: file.reference.clone(),
            directory,
            timeout: file.fetch_timeout,
            credentials: match &file.credentials {
                None => None,
                Some(Credentials::TokenFile(path)) => Some(Credentials::TokenFile(absolute(path)?)),
                Some(Credentials::SshKeyFile(path)) => Some(Credentials::SshKeyFile(absolute(path)?)),
            },
            askpass: above.join("askpass"),
            verify: file.verify,
            // Where nobody is named, nobody may sign.
            allowed_signers: match &file.allowed_signers {
                Some(path) => absolute(path)?,
                None => "/dev/null".to_owned(),
            },
            gpg_home: match &file.gpg_home {
                Some(path) => PathBuf::from(absolute(path)?),
                None => above.join("no-keys"),
            },
        };
        git.write_helpers().map_err(|source| PublishError::File { what: "write", path: above, source })?;
        git.clear_locks();
        Ok(git)
    }

    /// Removes locks that a crash left in the clone: it is nobody else's, and no git that holds one is as old.
    fn clear_locks(&self) {
        let entries = walkdir::WalkDir::new(&self.directory).into_iter().flatten();
        for entry in entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "lock")) {
            let age = entry.metadata().ok().and_then(|found| found.modified().ok()?.elapsed().ok());
            if age.is_some_and(|age| age > LOCAL.max(self.timeout)) {
                // One that stays is told by the next git.
                std::fs::remove_file(entry.path()).unwrap_or(());
            }
        }
    }

    fn write_helpers(&self) -> std::io::Result<()> {
        if std::fs::read(&self.askpass).ok().as_deref() != Some(ASKPASS.as_bytes()) {
            replace(&self.askpass, ASKPASS.as_bytes())?;
        }
        std::fs::set_permissions(&self.askpass, std::fs::Permissions::from_mode(0o700))?;
        if self.gpg_home.ends_with("no-keys") && !self.gpg_home.exists() {
            std::fs::create_dir(&self.gpg_home)?;
            std::fs::set_permissions(&self.gpg_home, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Returns git with what every question needs.
    fn git(&self, timeout: Duration) -> Job {
        Job::new("git", timeout)
            .without(&FOREIGN)
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"])
            .args(["-c", "gc.autoDetach=false", "-c", "maintenance.autoDetach=false"])
    }

    fn local(&self) -> Job {
        self.git(LOCAL).arg("--git-dir").arg(&self.directory)
    }

    /// Returns git with what is needed to enter the repository.
    fn entering(&self, job: Job) -> Job {
        match &self.credentials {
            None => job,
            Some(Credentials::TokenFile(file)) => {
                job.env("GIT_ASKPASS", &self.askpass).env("STEAD_GIT_TOKEN_FILE", file)
            }
            Some(Credentials::SshKeyFile(file)) => {
                job.env("GIT_SSH_COMMAND", SSH).env("GIT_SSH_VARIANT", "ssh").env("STEAD_GIT_SSH_KEY", file)
            }
        }
    }

    /// Looks at the remote's ref. The only process of an idle poll.
    pub(super) async fn look(&self) -> Result<Remote, GitError> {
        let peeled = format!("{}^{{}}", self.reference);
        let job = self.entering(self.git(self.timeout));
        let job = job.args(["ls-remote", "--exit-code", "--", &self.repo, &self.reference, &peeled]);
        let ended = job.run().await?;
        if ended.status.code() == Some(2) {
            return Ok(Remote::Missing);
        }
        let ended = good("ls-remote", ended)?;
        let text = ended.text();
        let named = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once('\t'));
            lines.find(|(_, found)| *found == name).and_then(|(id, _)| CommitId::parse(id).ok())
        };
        Ok(named(&peeled).or_else(|| named(&self.reference)).map_or(Remote::Missing, Remote::Head))
    }

    /// Fetches the ref with all of its history, to where heads lie until they are accepted.
    pub(super) async fn fetch(&self, head: &CommitId) -> Result<(), GitError> {
        if !self.directory.exists() {
            // Made elsewhere and put in place whole: half a clone would never be mended.
            let format = if head.as_str().len() == 64 { "sha256" } else { "sha1" };
            let half = self.directory.with_extension("new");
            let job = self.git(LOCAL).args(["init", "--quiet", "--bare", "--object-format", format, "--"]);
            good("init", job.arg(&half).run().await?)?;
            let put = std::fs::rename(&half, &self.directory);
            put.map_err(|error| GitError::Refused { what: "init", why: error.to_string() })?;
        }
        let job = self.entering(self.git(self.timeout)).arg("--git-dir").arg(&self.directory);
        let refspec = format!("+{}:{SEEN}", self.reference);
        let job = job.args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"]);
        good("fetch", job.args(["--", &self.repo, &refspec]).run().await?)?;
        Ok(())
    }

    /// Whether the clone has a commit.
    pub(super) async fn has(&self, commit: &CommitId) -> Result<bool, GitError> {
        let job = self.local().args(["cat-file", "-e", &format!("{commit}^{{commit}}")]);
        Ok(job.run().await?.status.success())
    }

    /// Whether `old` is `new` or among its ancestors. One the clone does not have is not.
    pub(super) async fn is_ancestor(&self, old: &CommitId, new: &CommitId) -> Result<bool, GitError> {
        let job = self.local().args(["merge-base", "--is-ancestor", old.as_str(), new.as_str()]);
        Ok(job.run().await?.status.success())
    }

    /// Whether the ref as it was last fetched contains `commit`.
    pub(super) async fn contains(&self, commit: &CommitId) -> Result<bool, GitError> {
        let job = self.local().args(["merge-base", "--is-ancestor", commit.as_str(), SEEN]);
        Ok(job.run().await?.status.success())
    }

    /// Returns the commits that `commit` contains, newest first, without itself.
    pub(super) async fn contained(&self, commit: &CommitId) -> Result<Vec<CommitId>, GitError> {
        let job = self.local().args(["rev-list", "--topo-order", "--max-count", CONTAINED, commit.as_str()]);
        Ok(commits(&good("rev-list", job.arg("--").run().await?)?).into_iter().skip(1).collect())
    }

    /// Makes `commit` what the clone's ref names.
    pub(super) async fn accept(&self, commit: &CommitId) -> Result<(), GitError> {
        let job = self.local().args(["update-ref", &self.reference, commit.as_str()]);
        good("update-ref", job.run().await?)?;
        Ok(())
    }

    /// Returns what is wrong with a signature that has to be there. Where nothing was accepted before, the head alone counts:
    /// trust begins with it.
    pub(super) async fn bad_signature(
        &self,
        accepted: Option<&CommitId>,
        head: &CommitId,
    ) -> Result<Option<BadSignature>, GitError> {
        let wanted = match (self.verify, accepted) {
            (Verify::None, _) => return Ok(None),
            (Verify::Head, _) | (Verify::Range, None) => vec![head.clone()],
            (Verify::Range, Some(accepted)) => {
                let range = [head.as_str(), "--not", accepted.as_str(), "--"];
                let job = self.local().args(["rev-list", "--topo-order"]).args(range);
                commits(&good("rev-list", job.run().await?)?)
            }
        };
        for batch in wanted.chunks(BATCH) {
            let names = batch.iter().map(CommitId::as_str);
            let verified =
                self.verifying().args(["verify-commit", "--raw"]).args(names.clone()).run().await?;
            if verified.status.success() {
                continue;
            }
            // What is wrong, and with which of them.
            for commit in batch {
                let verified =
                    self.verifying().args(["verify-commit", "--raw", commit.as_str()]).run().await?;
                if !verified.status.success() {
                    let fault = self.fault(commit).await?;
                    return Ok(Some(BadSignature { commit: commit.clone(), fault }));
                }
            }
        }
        Ok(None)
    }

    /// Returns git that trusts exactly who may sign.
    fn verifying(&self) -> Job {
        let signers = format!("gpg.ssh.allowedSignersFile={}", self.allowed_signers);
        self.local()
            .args(["-c", &signers, "-c", "gpg.x509.program=/bin/false"])
            .env("GNUPGHOME", &self.gpg_home)
    }

    async fn fault(&self, commit: &CommitId) -> Result<SignatureFault, GitError> {
        let format = "--format=%G?%n%GF%n%GK";
        let job = self.verifying().args(["log", "-1", "--no-show-signature", format, commit.as_str(), "--"]);
        let text = good("log", job.run().await?)?.text();
        let mut lines = text.lines();
        let state = lines.next().unwrap_or_default();
        let fingerprint = lines.find(|line| !line.is_empty()).unwrap_or("no fingerprint").to_owned();
        Ok(match state {
            "N" => SignatureFault::Unsigned,
            "U" | "E" => SignatureFault::UnknownKey { fingerprint },
            _ => SignatureFault::Bad,
        })
    }

    /// Returns this repository with every branch at hand: a path as it is, anything else fetched.
    pub(super) async fn at_hand(mut self) -> Result<Self, GitError> {
        if Path::new(&self.repo).is_dir() {
            let job = self.git(LOCAL).arg("-C").arg(&self.repo).args(["rev-parse", "--absolute-git-dir"]);
            self.directory = PathBuf::from(good("rev-parse", job.run().await?)?.text().trim_end());
            return Ok(self);
        }
        let job = self.git(LOCAL).args(["init", "--quiet", "--bare", "--"]).arg(&self.directory);
        good("init", job.run().await?)?;
        let job = self.entering(self.git(self.timeout)).arg("--git-dir").arg(&self.directory);
        let job = job.args(["fetch", "--quiet", "--no-write-fetch-head", "--", &self.repo]);
        good("fetch", job.args(["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]).run().await?)?;
        Ok(self)
    }

    /// Returns the commit that `text` names.
    pub(super) async fn resolve(&self, text: &str) -> Result<CommitId, GitError> {
        let job = self.local().args(["rev-parse", "--verify", "--quiet", "--end-of-options"]);
        let ended = job.arg(format!("{text}^{{commit}}")).run().await?;
        // Some print what they were told not to look at, too.
        let found = ended.text().lines().last().and_then(|line| CommitId::parse(line).ok());
        let why = || format!("there is no commit `{text}`");
        found.ok_or_else(|| GitError::Refused { what: "rev-parse", why: why() })
    }

    /// Returns the files of a commit below `subdir`, by their path there.
    pub(super) async fn tree(
        &self,
        commit: &CommitId,
        subdir: &str,
    ) -> Result<BTreeMap<String, TreeFile>, GitError> {
        let treeish = format!("{commit}:{subdir}");
        let job = self.local().args(["ls-tree", "-r", "-l", "-z", "--full-tree", &treeish]);
        let ended = job.run().await?;
        if !ended.status.success() && !subdir.is_empty() {
            let why = format!("the commit has no directory `{subdir}`, which `subdir` names");
            return Err(GitError::Refused { what: "ls-tree", why });
        }
        let text = good("ls-tree", ended)?.text();
        let entries = text.split('\0').filter_map(|line| {
            let (facts, path) = line.split_once('\t')?;
            let mut facts = facts.split_ascii_whitespace();
            let (mode, object) = (facts.next()?, facts.nth(1)?);
            let size = facts.next()?.parse().unwrap_or_default();
            let is_file = mode.starts_with("100");
            Some((path.to_owned(), TreeFile { object: object.to_owned(), size, is_file }))
        });
        Ok(entries.collect())
    }

    /// Returns the contents of objects, in their order.
    pub(super) async fn read(&self, objects: &[&str]) -> Result<Vec<Vec<u8>>, GitError> {
        if objects.is_empty() {
            return Ok(Vec::new());
        }
        let input = objects.join("\n") + "\n";
        let job = self.local().args(["cat-file", "--batch"]).input(input.into_bytes());
        let ended = good("cat-file", job.run().await?)?;
        let mut rest = ended.stdout.as_slice();
        let mut found = Vec::new();
        for object in objects {
            let content = next_object(&mut rest);
            let why = || format!("object {object} is missing");
            found.push(content.ok_or_else(|| GitError::Refused { what: "cat-file", why: why() })?);
        }
        Ok(found)
    }

    /// Gives the content of an object to `sink`.
    pub(super) async fn stream(&self, object: &str, sink: &mut dyn Sink) -> Result<(), GitError> {
        good("cat-file", self.local().args(["cat-file", "blob", object]).run_into(sink).await?)?;
        Ok(())
    }

    /// Returns where Nix finds a commit.
    pub(super) fn flake(&self, commit: &CommitId, subdir: &str) -> String {
        let directory = if subdir.is_empty() { String::new() } else { format!("&dir={}", quoted(subdir)) };
        let clone = quoted(&self.directory.to_string_lossy());
        format!("git+file://{clone}?ref={}&rev={commit}{directory}", quoted(&self.reference))
    }
}

/// Returns a path or an address that means the same everywhere.
pub(super) fn absolute(text: &str) -> Result<String, PublishError> {
    let is_remote = text.contains("://") || text.split('/').next().is_some_and(|head| head.contains(':'));
    if is_remote {
        return Ok(text.to_owned());
    }
    let failed = |source| PublishError::File { what: "find", path: PathBuf::from(text), source };
    Ok(std::path::absolute(text).map_err(failed)?.to_string_lossy().into_owned())
}

/// Returns `text` as a part of an address.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                quoted.push(char::from(byte));
            }
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}

fn good(what: &'static str, ended: Ended) -> Result<Ended, GitError> {
    if ended.status.success() {
        return Ok(ended);
    }
    let complaint =
        ended.stderr.lines().find(|line| line.starts_with("fatal:") || line.starts_with("error:"));
    let complaint = complaint.or_else(|| ended.stderr.lines().last()).unwrap_or_default();
    let complaint = complaint.split_once(": ").map_or(complaint, |(_, rest)| rest).trim();
    let why = if complaint.is_empty() { ended.describe() } else { complaint.to_owned() };
    Err(GitError::Refused { what, why })
}

fn commits(ended: &Ended) -> Vec<CommitId> {
    ended.text().lines().filter_map(|line| CommitId::parse(line).ok()).collect()
}

/// Takes one object from what `cat-file --batch` prints.
fn next_object(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = (rest.get(..end)?, rest.get(end + 1..)?);
    let size: usize = std::str::from_utf8(head).ok()?.split(' ').nth(2)?.parse().ok()?;
    let content = body.get(..size)?.to_vec();
    *rest = body.get(size + 1..)?;
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_batch_are_cut_at_their_size() {
        let mut rest: &[u8] = b"aa blob 3\na\nb\nbb blob 0\n\ncc missing\n";
        assert_eq!(next_object(&mut rest).unwrap(), b"a\nb");
        assert_eq!(next_object(&mut rest).unwrap(), b"");
        assert_eq!(next_object(&mut rest), None);
    }

    #[test]
    fn addresses_are_kept_and_paths_made_whole() {
        for remote in ["https://host/repo.git", "ssh://git@host/repo", "git@host:repo.git"] {
            assert_eq!(absolute(remote).unwrap(), remote);
        }
        assert!(absolute("repo").unwrap().starts_with('/'));
        assert_eq!(quoted("/a b/refs/heads/x&y"), "/a%20b/refs/heads/x%26y");
    }
}
