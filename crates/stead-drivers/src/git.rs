//! `git.checkout`: a commit of a repository, in a directory.
//!
//! The `git` program does the work, by argument list: every option comes before `--`, and an address or reference
//! that starts with `-` is refused, so neither can be taken for an option. Hooks and file-system monitors of the
//! checkout are switched off, and git never asks for a password. The commit is checked out detached.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::plan::Param;
use stead_model::{Descriptor, Op, OperationName};
use stead_runner::operation::{Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params};

use crate::command::blocking::{self, Program, Said};
use crate::disk::seen::{Depth, Kind};
use crate::disk::{Disk, Last, Spot};
use crate::file::entry::new_directory;
use crate::file::params::{PATH, WRITE};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "git.checkout",
    summary: "Makes sure a commit of a Git repository is checked out in a directory.",
    params: &[
        ParamSpec::new("repo", ParamKind::NonEmptyText, "The repository: an address or a path.").required(),
        PATH,
        ParamSpec::new(
            "ref",
            ParamKind::NonEmptyText,
            "Branch, tag, full reference or full commit id; default: the repository's own branch.",
        ),
        ParamSpec::new("depth", ParamKind::Int(1, 1_000_000), "Fetch only this many commits; default: all."),
        ParamSpec::new(
            "force",
            ParamKind::Bool,
            "Discard changes to tracked files; default: false, they are an error.",
        )
        .default(ParamDefault::Flag(false)),
        ParamSpec::new("submodules", ParamKind::Bool, "Check out submodules too; default: false.")
            .default(ParamDefault::Flag(false)),
    ],
    result: &[("commit", "The commit that is checked out."), ("before", "The one before, if there was one.")],
    ..WRITE
};

/// Checks out a commit.
pub(crate) struct Checkout;

/// What is there and what should be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// Something is at the path.
    exists: bool,
    /// What is at the path is a directory with nothing in it.
    #[serde(default)]
    empty: bool,
    commit: Option<String>,
    repo: Option<String>,
    local_changes: bool,
    stale_submodules: bool,
    wanted: String,
}

impl Operation for Checkout {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let git = Git::new(cx, params)?;
        let wanted = git.wanted(params)?.commit;
        let state = State { wanted, ..git.state(params)? };
        serde_json::to_value(state).map(Observed).map_err(|error| OpError::operation(error.to_string()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let state: State = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        let mut diff = Diff::default();
        let mut add =
            |name: &str, before, after| diff.fields.push(FieldDiff { name: name.to_owned(), before, after });
        if state.commit.as_deref() != Some(&state.wanted) {
            add("commit", json!(state.commit), state.wanted.clone().into());
        }
        if let (Some(before), Some(repo)) = (&state.repo, params.text("repo"))
            && before != repo
        {
            add("repo", before.as_str().into(), repo.into());
        }
        if state.local_changes {
            add("local_changes", true.into(), false.into());
        }
        if state.stale_submodules {
            add("submodules", "stale".into(), "checked out".into());
        }
        diff
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, seen: &Observed) -> Option<Value> {
        let state: State = serde_json::from_value(seen.0.clone()).ok()?;
        Some(json!({"commit": state.wanted, "before": state.commit}))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let git = Git::new(cx, params)?;
        let wanted = git.wanted(params)?;
        let before = git.state(params)?.commit;
        // From the first command on something may be different.
        git.check_out(params, &wanted).map_err(|error| OpError { changed: true, ..error })?;
        let data = json!({"commit": wanted.commit, "before": before});
        Ok(Applied { data: Some(data), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let Ok(git) = Git::new(cx, params) else { return };
        if let Ok(wanted) = git.wanted(params) {
            cx.predicted.set(git.resource(), json!({"commit": wanted.commit, "repo": params.text("repo")}));
            git.disk.predict(&git.spot.path, &new_directory());
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let state: State = serde_json::from_value(before.0.clone()).ok()?;
        let path = params.get("path")?.clone();
        let op = |name: &str, params: BTreeMap<String, Param>| {
            Some(Op { operation: OperationName::parse(name).ok()?, params })
        };
        let path = ("path".to_owned(), Param::Value(path));
        match (state.commit, state.repo) {
            // Discarded changes cannot be brought back.
            (Some(_), _) if state.local_changes => None,
            (Some(commit), Some(repo)) => op(
                DESCRIPTOR.name,
                BTreeMap::from([
                    path,
                    ("repo".to_owned(), Param::from(repo)),
                    ("ref".to_owned(), Param::from(commit)),
                    ("submodules".to_owned(), Param::from(params.flag("submodules", false))),
                ]),
            ),
            (None, _) if !state.exists => {
                op("file.absent", BTreeMap::from([path, ("recursive".to_owned(), Param::from(true))]))
            }
            // An empty directory was there, and is to be empty again.
            (None, _) if state.empty => op(
                "file.restored",
                BTreeMap::from([
                    path,
                    ("entries".to_owned(), Param::Value(json!({".": {"kind": "directory"}}))),
                    ("nothing_else".to_owned(), Param::from(true)),
                ]),
            ),
            (Some(_), None) | (None, _) => None,
        }
    }
}

/// The commit that is wanted, and how to get it.
struct Wanted {
    commit: String,
    /// What to fetch; none: the commit itself, or everything if the server does not give single commits.
    refspec: Option<String>,
}

struct Git<'a> {
    cx: &'a OpContext,
    disk: Disk,
    spot: Spot,
    /// The directory as git sees it.
    directory: PathBuf,
    repo: &'a str,
}

impl<'a> Git<'a> {
    fn new(cx: &'a OpContext, params: &'a Params) -> Result<Self, OpError> {
        let repo = params.required("repo")?;
        if repo.starts_with('-') || repo.contains(['\0', '\n']) {
            return Err(OpError::invalid(format!("`{}` is not a repository", repo.escape_debug())));
        }
        let disk = Disk::open(cx)?;
        let spot = disk.locate(Path::new(params.required("path")?), Last::Follow)?;
        if spot.is_root() {
            return Err(OpError::invalid("the root directory cannot be a checkout"));
        }
        if let Some(missing) = spot.missing.first() {
            return Err(OpError::operation(format!("directory `{}` does not exist", missing.display())));
        }
        let directory = disk.outside(&spot.path);
        Ok(Self { cx, disk, spot, directory, repo })
    }

    fn resource(&self) -> String {
        format!("git:{}", self.spot.path.display())
    }

    /// Runs git, in the checkout or in a directory that always exists.
    fn run(&self, inside: bool, args: &[&str]) -> Result<Said, OpError> {
        let safe = [
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "core.fsmonitor=false",
            "-c",
            "advice.detachedHead=false",
        ];
        let mut argv: Vec<OsString> = safe.iter().map(OsString::from).collect();
        argv.extend(args.iter().map(OsString::from));
        let env = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_SSH_COMMAND", "ssh -oBatchMode=yes"),
            // Looking must not write, and `status` would refresh the index.
            ("GIT_OPTIONAL_LOCKS", "0"),
            ("LC_ALL", "C"),
        ];
        let mut env: BTreeMap<String, String> =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        if std::env::var_os("GIT_SSH_COMMAND").is_some() {
            env.remove("GIT_SSH_COMMAND");
        }
        if inside {
            // Never a repository further up, whatever is or is not at the path.
            env.insert("GIT_DIR".to_owned(), self.directory.join(".git").to_string_lossy().into_owned());
            env.insert("GIT_WORK_TREE".to_owned(), self.directory.to_string_lossy().into_owned());
        }
        let cwd = if inside { self.directory.clone() } else { self.cx.base_dir.clone() };
        blocking::run(self.cx, Program { name: "git".to_owned(), args: argv, cwd, env })
    }

    fn must(&self, inside: bool, args: &[&str]) -> Result<String, OpError> {
        let said = self.run(inside, args)?;
        if said.is_ok() {
            return Ok(said.stdout);
        }
        let verb = args.first().copied().unwrap_or_default();
        Err(OpError::operation(format!(
            "`git {verb}` for `{}`: {}",
            self.spot.path.display(),
            said.describe()
        )))
    }

    /// Returns the commit that `ref` means now: branch tips are asked of the remote.
    fn wanted(&self, params: &Params) -> Result<Wanted, OpError> {
        let Some(name) = params.text("ref") else {
            return self
                .ask(&["HEAD"])
                .map(|(commit, _)| Wanted { commit, refspec: Some("HEAD".to_owned()) });
        };
        check_ref(name)?;
        if is_commit(name) {
            return Ok(Wanted { commit: name.to_owned(), refspec: None });
        }
        // A branch before a tag of the same name; the commit an annotated tag names before the tag itself.
        let names = if name.starts_with("refs/") || name == "HEAD" {
            vec![format!("{name}^{{}}"), name.to_owned()]
        } else {
            vec![format!("refs/heads/{name}"), format!("refs/tags/{name}^{{}}"), format!("refs/tags/{name}")]
        };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (commit, reference) = self.ask(&names)?;
        let source = reference.trim_end_matches("^{}");
        let refspec = match source.strip_prefix("refs/heads/") {
            Some(branch) => format!("+{source}:refs/remotes/origin/{branch}"),
            None if source.starts_with("refs/tags/") => format!("+{source}:{source}"),
            None => source.to_owned(),
        };
        Ok(Wanted { commit, refspec: Some(refspec) })
    }

    /// Asks the remote for references and returns the first of `names` it has.
    fn ask(&self, names: &[&str]) -> Result<(String, String), OpError> {
        let mut args = vec!["ls-remote", "--", self.repo];
        args.extend(names);
        let answer = self.must(false, &args)?;
        let found: Vec<(&str, &str)> = answer.lines().filter_map(|line| line.split_once('\t')).collect();
        let hit = names.iter().find_map(|name| found.iter().find(|(_, reference)| reference == name));
        let (commit, reference) = hit
            .ok_or_else(|| OpError::operation(format!("`{}` has none of {}", self.repo, names.join(", "))))?;
        Ok(((*commit).to_owned(), (*reference).to_owned()))
    }

    fn state(&self, params: &Params) -> Result<State, OpError> {
        if let Some(predicted) = self.cx.predicted.get(&self.resource()) {
            let text = |name: &str| predicted[name].as_str().map(str::to_owned);
            return Ok(State {
                exists: true,
                commit: text("commit"),
                repo: text("repo"),
                ..State::default()
            });
        }
        let seen = self.disk.see(&self.spot, Depth::Attributes)?;
        match seen.kind {
            Kind::Absent => return Ok(State::default()),
            Kind::Directory => {}
            Kind::File | Kind::Symlink | Kind::Other | Kind::Unknown => {
                return Err(OpError::permanent(format!("`{}` is not a directory", self.spot.path.display())));
            }
        }
        let children = self.disk.children(&self.spot)?;
        if children.is_empty() {
            return Ok(State { exists: true, empty: true, ..State::default() });
        }
        if !children.iter().any(|child| child.name == ".git") {
            return Err(OpError::permanent(format!(
                "`{}` is neither empty nor a Git checkout",
                self.spot.path.display()
            )));
        }
        let line = |said: Said| {
            Some(said.stdout.trim().to_owned())
                .filter(|line| said.ended.exit_code == Some(0) && !line.is_empty())
        };
        let commit = line(self.run(true, &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?);
        let repo = line(self.run(true, &["config", "--get", "remote.origin.url"])?);
        let changes =
            self.run(true, &["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"])?;
        let local_changes = commit.is_some() && !changes.stdout.is_empty();
        if local_changes && !params.flag("force", false) {
            return Err(OpError::permanent(format!(
                "`{}` has local changes; `force: true` discards them:\n{}",
                self.spot.path.display(),
                changes.stdout.lines().take(20).collect::<Vec<_>>().join("\n")
            )));
        }
        let mut stale_submodules = false;
        if params.flag("submodules", false) && commit.is_some() {
            let status = self.must(true, &["submodule", "status", "--recursive"])?;
            stale_submodules = status.lines().any(|line| !line.starts_with(' '));
        }
        Ok(State { exists: true, commit, repo, local_changes, stale_submodules, ..State::default() })
    }

    fn check_out(&self, params: &Params, wanted: &Wanted) -> Result<(), OpError> {
        let directory = self.directory.to_string_lossy();
        self.must(false, &["init", "--quiet", "--", &directory])?;
        self.must(true, &["config", "remote.origin.url", self.repo])?;
        self.must(true, &["config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"])?;
        let object = format!("{}^{{commit}}", wanted.commit);
        if !self.run(true, &["cat-file", "-e", &object])?.is_ok() {
            self.fetch(params, wanted)?;
        }
        let mut checkout = vec!["checkout", "--quiet", "--detach"];
        if params.flag("force", false) {
            checkout.push("--force");
        }
        checkout.extend([wanted.commit.as_str(), "--"]);
        self.must(true, &checkout)?;
        if params.flag("submodules", false) {
            self.must(true, &["submodule", "update", "--quiet", "--init", "--recursive", "--force"])?;
        }
        Ok(())
    }

    fn fetch(&self, params: &Params, wanted: &Wanted) -> Result<(), OpError> {
        let depth = params.int("depth").map(|depth| format!("--depth={depth}"));
        let mut args = vec!["fetch", "--quiet", "--force"];
        args.extend(depth.as_deref());
        let what = wanted.refspec.as_deref().unwrap_or(&wanted.commit);
        let said = self.run(true, &[&args[..], &["--", "origin", what]].concat())?;
        if said.is_ok() {
            return Ok(());
        }
        if wanted.refspec.is_some() {
            return Err(OpError::operation(format!("`git fetch` from `{}`: {}", self.repo, said.describe())));
        }
        let everything =
            ["fetch", "--quiet", "--force", "--tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*"];
        self.must(true, &everything).map(|_| ())
    }
}

fn is_commit(name: &str) -> bool {
    matches!(name.len(), 40 | 64)
        && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

/// Refuses what git would not take as the name of a reference, and what it would take for something else.
fn check_ref(name: &str) -> Result<(), OpError> {
    let odd = |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    let parts_ok =
        name.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock"));
    if name.starts_with('-')
        || name.contains(odd)
        || name.contains("..")
        || name.contains("@{")
        || !parts_ok
        || name.ends_with('.')
    {
        return Err(OpError::invalid(format!("`{}` is not a branch, tag or commit", name.escape_debug())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_options_or_expressions_are_refused() {
        for name in [
            "-x",
            "--upload-pack=x",
            "a..b",
            "a b",
            "HEAD~1",
            "a:b",
            "a//b",
            "/a",
            "a/",
            ".a",
            "a.lock",
            "@{-1}",
            "a.",
        ] {
            assert!(check_ref(name).is_err(), "{name}");
        }
        for name in ["main", "feature/x-1", "v1.2.3", "refs/heads/main", "HEAD", "a-b_c"] {
            assert!(check_ref(name).is_ok(), "{name}");
        }
    }
}
