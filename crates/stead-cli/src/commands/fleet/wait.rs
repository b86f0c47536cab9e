//! `stead fleet wait`: until a commit, or one that contains it, is what runs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_fleet::api::{CallError, Master as _, StatusFilter};
use stead_model::ExitCode;
use stead_model::fleet::CommitId;

use super::{call_failure, parsed, way};
use crate::args::FleetWaitArgs;
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

/// How long one question waits for a change.
const LONG: Duration = Duration::from_secs(30);
/// When a master that is away is asked again.
const AGAIN: Duration = Duration::from_millis(500);

pub(crate) fn run(
    args: &FleetWaitArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let commit = named(&args.commit, settings)?;
    let deadline = Instant::now() + args.timeout;
    let filter = StatusFilter { group: args.group.clone(), ..StatusFilter::default() };
    let verdict = reach::block_on(async {
        let master = way::master(&args.way, settings).await?;
        let mut after = 0;
        let mut last = Verdict::Pending("no status yet".to_owned());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(last);
            }
            match master.status(after, LONG.min(left), &filter).await {
                Ok((status, seq)) => {
                    last = judge(&parsed(&status)?, &commit, &|newer| contains(newer, &commit, settings));
                    if !matches!(last, Verdict::Pending(_)) {
                        return Ok(last);
                    }
                    after = seq;
                }
                Err(error @ (CallError::Away(_) | CallError::NotLeader { .. })) if after == 0 => {
                    return Err(call_failure(error));
                }
                // One that was there comes back, or another takes over.
                Err(CallError::Away(_) | CallError::NotLeader { .. }) => tokio::time::sleep(AGAIN).await,
                Err(error @ CallError::Refused { .. }) => return Err(call_failure(error)),
            }
        }
    })??;
    tell(&commit, verdict, args.way.json, output)
}

fn tell(commit: &CommitId, verdict: Verdict, json: bool, output: &Output) -> Result<ExitCode, Failure> {
    let (exit_code, said, by) = match verdict {
        Verdict::Satisfied(by) if by == commit.as_str() => {
            (ExitCode::Success, format!("{commit} is what runs"), Some(by))
        }
        Verdict::Satisfied(by) => {
            (ExitCode::Success, format!("{by} is what runs, which contains {commit}"), Some(by))
        }
        Verdict::Failed(why) => (ExitCode::Failed, why, None),
        Verdict::Held(why) => (ExitCode::Degraded, why, None),
        Verdict::Pending(why) => (ExitCode::TimedOut, format!("not in time: {why}"), None),
    };
    if json {
        let document = json!({
            "schema": 1, "commit": commit.as_str(), "satisfied_by": by, "exit_code": exit_code.code(), "message": said,
        });
        output.out.print(&render_json::document(&document));
    } else if exit_code == ExitCode::Success {
        output.out.print_line(&said);
    } else {
        output.err.print_line(&said);
    }
    Ok(exit_code)
}

/// Returns the commit that is meant; a name is what Git here says it is.
fn named(text: &str, settings: &Settings) -> Result<CommitId, Failure> {
    if let Ok(commit) = text.parse() {
        return Ok(commit);
    }
    let unknown = || {
        Failure::unknown_name(FailureKind::Usage, format!("`{text}` is no commit that Git knows here"))
            .hint("give all 40 digits, or say it in the repository")
    };
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", "--quiet", "--end-of-options"]).arg(format!("{text}^{{commit}}"));
    let output =
        git.current_dir(&settings.current_dir).stdin(Stdio::null()).output().map_err(|_| unknown())?;
    String::from_utf8_lossy(&output.stdout).trim().parse().map_err(|_| unknown())
}

/// Whether the repository here says that `newer` contains `commit`.
fn contains(newer: &str, commit: &CommitId, settings: &Settings) -> bool {
    let mut git = Command::new("git");
    git.args(["merge-base", "--is-ancestor", commit.as_str(), newer]);
    git.current_dir(&settings.current_dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    newer.parse::<CommitId>().is_ok() && git.status().is_ok_and(|status| status.success())
}

/// What is known of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// This one runs everywhere.
    Satisfied(String),
    /// It will never run.
    Failed(String),
    /// It waits for somebody.
    Held(String),
    /// It is on its way.
    Pending(String),
}

/// Returns what a status says of a commit. `is_in` says of a newer commit whether it contains it.
fn judge(status: &Value, commit: &CommitId, is_in: &dyn Fn(&str) -> bool) -> Verdict {
    let text = |value: &Value, path: &str| {
        value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    if text(status, "/watcher/rejected") == commit.as_str() {
        return Verdict::Failed(format!("{commit} was rejected: {}", text(status, "/watcher/error")));
    }
    let groups: Vec<&Value> = status.get("groups").and_then(Value::as_array).into_iter().flatten().collect();
    let mut by = String::new();
    for group in &groups {
        let name = text(group, "/group");
        let told = group.pointer("/evaluated/contains").and_then(Value::as_array);
        let evaluated = text(group, "/evaluated/commit");
        let is_told = told.is_some_and(|told| told.iter().any(|one| one.as_str() == Some(commit.as_str())));
        let covers = |other: &str| {
            other == commit.as_str() || (is_told && other == evaluated) || (!other.is_empty() && is_in(other))
        };
        let active = text(group, "/active/commit");
        if covers(&active) {
            by = active;
            continue;
        }
        if covers(&text(group, "/held/commit")) {
            let why = text(group, "/held/code");
            return Verdict::Held(format!("the generation of {commit} is held in {name} ({why})"));
        }
        // What the publisher goes on trying is not over.
        let is_final = text(group, "/evaluated/class") == "permanent";
        if covers(&evaluated) && is_final && group.pointer("/evaluated/error").is_some_and(Value::is_string) {
            return Verdict::Failed(format!(
                "{evaluated} failed in {name}: {}",
                text(group, "/evaluated/error")
            ));
        }
        let why = text(group, "/evaluated/error");
        let why = if why.is_empty() { why } else { format!(": {why}") };
        return Verdict::Pending(format!("{name} is not at {commit} yet{why}"));
    }
    if by.is_empty() {
        return Verdict::Pending("nothing is published yet".to_owned());
    }
    let rollouts = status.get("rollouts").and_then(Value::as_array).into_iter().flatten();
    if let Some(held) = rollouts.into_iter().find(|rollout| text(rollout, "/state") == "held") {
        return Verdict::Held(format!(
            "the rollout of {} is on hold: {}",
            text(held, "/vm"),
            text(held, "/message")
        ));
    }
    match status.get("convergence_percent").and_then(Value::as_u64) {
        Some(100) => Verdict::Satisfied(by),
        Some(percent) => Verdict::Pending(format!("{by} is active, {percent} % of it is there")),
        None => Verdict::Pending("the master does not say how far it is".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(digit: char) -> CommitId {
        digit.to_string().repeat(40).parse().unwrap()
    }

    /// Case 22: what a commit is waited for comes to one of five ends.
    #[test]
    fn a_commit_runs_fails_waits_or_is_contained() {
        let (old, new) = (commit('a'), commit('b'));
        let none = |_: &str| false;
        let status = |active: &CommitId, percent: u64| {
            json!({"groups": [{"group": "default", "active": {"commit": active.as_str()}}],
                "convergence_percent": percent, "rollouts": []})
        };
        assert_eq!(judge(&status(&old, 100), &old, &none), Verdict::Satisfied(old.to_string()));
        assert!(matches!(judge(&status(&old, 50), &old, &none), Verdict::Pending(_)));
        assert!(matches!(judge(&status(&old, 100), &new, &none), Verdict::Pending(_)));
        assert_eq!(judge(&status(&new, 100), &old, &|_| true), Verdict::Satisfied(new.to_string()));
        let mut contained = status(&new, 100);
        contained["groups"][0]["evaluated"] = json!({"commit": new.as_str(), "contains": [old.as_str()]});
        assert_eq!(judge(&contained, &old, &none), Verdict::Satisfied(new.to_string()));
        let mut failed = status(&old, 100);
        failed["groups"][0]["evaluated"] =
            json!({"commit": new.as_str(), "error": "syntax error", "class": "permanent"});
        assert!(matches!(judge(&failed, &new, &none), Verdict::Failed(why) if why.contains("syntax")));
        for class in ["transient", "resource"] {
            failed["groups"][0]["evaluated"]["class"] = json!(class);
            assert!(matches!(judge(&failed, &new, &none), Verdict::Pending(why) if why.contains("syntax")));
        }
        let mut held = status(&old, 100);
        held["groups"][0]["held"] = json!({"commit": new.as_str(), "code": "empty-set"});
        assert!(matches!(judge(&held, &new, &none), Verdict::Held(_)));
        let mut stuck = status(&new, 50);
        stuck["rollouts"] = json!([{"vm": "web", "state": "held", "message": "web/0 crashes"}]);
        assert!(matches!(judge(&stuck, &new, &none), Verdict::Held(_)));
        let rejected = json!({"watcher": {"rejected": new.as_str(), "error": "unsigned"}, "groups": []});
        assert!(matches!(judge(&rejected, &new, &none), Verdict::Failed(_)));
    }
}
