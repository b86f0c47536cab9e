//! A run of a submitted plan on the disk: one directory each, there as a whole or not at all.
//!
//! | file | what |
//! |---|---|
//! | `head.json` | who submitted it, when, and why |
//! | `plan.json`, `plan.yaml` | the compiled plan; the file it was compiled from |
//! | `lock` | held by the process that runs it |
//! | `cancelled` | it is to be stopped; there before anybody is told |
//! | `report.json` | the report of a run that could not begin: it has no bundle |
//! | `end.json` | how it ended |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::plan::{Digest, Plan};
use stead_model::time::Timestamp;
use stead_model::{ExitCode, PlanName, Report, RunId};

use crate::lock;

const HEAD: &str = "head.json";
const PLAN: &str = "plan.json";
const SOURCE: &str = "plan.yaml";
const LOCK: &str = "lock";
const CANCELLED: &str = "cancelled";
const REPORT: &str = "report.json";
const END: &str = "end.json";
/// Before the name of what is not whole: made, or removed, and never seen.
const ASIDE: &str = ".new-";
/// How often a lock is tried for that others only look at.
const TRIES: u32 = 100;

/// Who submitted a run of a plan, when, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanHead {
    /// The run.
    pub run_id: RunId,
    /// The plan's name.
    pub plan: PlanName,
    /// Its hash.
    pub plan_hash: Digest,
    /// Who submitted it.
    pub by: String,
    /// When it was submitted, or its trigger fired.
    pub created_at: Timestamp,
    /// What started it, if it was a trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    /// The key it was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether it waits for the runs of this plan before it.
    #[serde(default)]
    pub waits: bool,
    /// Whether every question is answered with yes.
    #[serde(default)]
    pub yes: bool,
    /// Variables that were given.
    #[serde(default)]
    pub vars: BTreeMap<String, Value>,
}

impl PlanHead {
    /// Returns what tells its trigger from all others.
    pub(crate) fn trigger_id(&self) -> Option<&str> {
        self.trigger.as_ref()?["id"].as_str()
    }

    /// Returns the head without what may be large and nobody asks for but who asks for this run.
    pub(super) fn into_light(mut self) -> Self {
        self.vars = BTreeMap::new();
        if let Some(Value::Object(trigger)) = &mut self.trigger {
            trigger.remove("payload");
        }
        self
    }
}

/// How a run of a submitted plan ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEnd {
    /// What it ended with.
    pub exit_code: u8,
    /// Why there is no report, or none of a run that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl PlanEnd {
    /// Returns the end of a run that was cancelled before it began.
    pub fn before_it_began() -> Self {
        let error = Some("it was cancelled before it began".to_owned());
        Self { exit_code: ExitCode::Cancelled.code(), error }
    }
}

/// A run that this process works on.
#[derive(Debug)]
pub struct TakenPlan {
    /// Who submitted it.
    pub head: PlanHead,
    /// The plan.
    pub plan: Plan,
    /// The file it was compiled from.
    pub source: Option<Vec<u8>>,
    /// The directory, which is found by this also when a server at another port has taken it along.
    directory: File,
    _lock: File,
}

impl TakenPlan {
    /// Takes the run in `directory`; none if another process works on it, or it has ended.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn take(directory: &Path) -> io::Result<Option<Self>> {
        let opened = File::open(directory)?;
        let directory = &place_of(&opened);
        let Some(lock) = lock::take(&directory.join(LOCK))? else { return Ok(None) };
        if end(directory)?.is_some() {
            return Ok(None);
        }
        let head = serde_json::from_slice(&fs::read(directory.join(HEAD))?)?;
        let plan = serde_json::from_slice(&fs::read(directory.join(PLAN))?)?;
        let source = match fs::read(directory.join(SOURCE)) {
            Ok(source) => Some(source),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Some(Self { head, plan, source, directory: opened, _lock: lock }))
    }

    /// Whether it is to be stopped.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub fn is_cancelled(&self) -> io::Result<bool> {
        place_of(&self.directory).join(CANCELLED).try_exists()
    }

    /// Writes down how it ended, with its report if it has none in a bundle.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn end(&self, end: &PlanEnd, report: Option<&Report>) -> io::Result<()> {
        let directory = place_of(&self.directory);
        if let Some(report) = report {
            replace(&directory, REPORT, &serde_json::to_vec(report)?)?;
        }
        write_end(&directory, end)
    }
}

/// Returns a path of a directory that this process has open, which leads to it wherever it is.
fn place_of(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Puts a new run on the disk.
pub(super) fn create(plans: &Path, head: &PlanHead, plan: &Plan, source: Option<&str>) -> io::Result<()> {
    let new = tempfile::Builder::new().prefix(ASIDE).tempdir_in(plans)?;
    write(new.path(), HEAD, &serde_json::to_vec(head)?)?;
    write(new.path(), PLAN, &plan.to_json())?;
    if let Some(source) = source {
        write(new.path(), SOURCE, source.as_bytes())?;
    }
    File::open(new.path())?.sync_all()?;
    let made = new.keep();
    fs::rename(&made, plans.join(head.run_id.as_str())).inspect_err(|_| {
        fs::remove_dir_all(&made).ok();
    })?;
    File::open(plans)?.sync_all()
}

fn write(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(directory.join(name))?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Writes a file of `directory`, whole or not at all.
pub(super) fn replace(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(ASIDE).tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(directory.join(name)).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Removes a directory. Aside first, as a whole: half of it would look like something else.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    let aside = put_aside(directory)?;
    // What is left of it is removed by the next who looks.
    fs::remove_dir_all(aside).ok();
    Ok(())
}

fn put_aside(directory: &Path) -> io::Result<PathBuf> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let aside = directory.with_file_name(format!("{ASIDE}{name}"));
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(directory, &aside)?;
    if let Some(parent) = directory.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(aside)
}

/// Returns the directories below `parent`. What was never finished being made or removed is removed.
pub(super) fn whole_directories(parent: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ASIDE)) {
            fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path)).ok();
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Writes down how a run ended.
pub(super) fn write_end(directory: &Path, end: &PlanEnd) -> io::Result<()> {
    replace(directory, END, &serde_json::to_vec(end)?)
}

/// Returns how the run in `directory` ended, if it has.
pub(super) fn end(directory: &Path) -> io::Result<Option<PlanEnd>> {
    match fs::read(directory.join(END)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns what is known of the run in `directory`.
pub(super) fn head(directory: &Path) -> io::Result<PlanHead> {
    Ok(serde_json::from_slice(&fs::read(directory.join(HEAD))?)?)
}

/// Returns the report of the run in `directory` whose bundle would be `bundle`.
pub(super) fn report(directory: &Path, bundle: &Path) -> Option<Value> {
    let read = |directory: &Path| serde_json::from_slice(&fs::read(directory.join(REPORT)).ok()?).ok();
    read(bundle).or_else(|| read(directory))
}

/// Returns the process that works on a run, if one does; the inner is none if it has not said who it is.
pub(super) fn holder(directory: &Path) -> io::Result<Option<Option<u32>>> {
    lock::holder(&directory.join(LOCK))
}

/// Lets a run be stopped whose bundle would be `bundle`, and tells who works on it unless `is_told`. Returns how it ended, if
/// it has: one that nobody works on and that never began ends here.
pub(super) fn cancel(directory: &Path, bundle: &Path, is_told: bool) -> io::Result<Option<PlanEnd>> {
    // On the disk first: whoever takes the run up, now or after a crash, looks for it.
    replace(directory, CANCELLED, b"")?;
    for _ in 0..TRIES {
        if let Some(pid) = holder(directory)? {
            let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
            // One that has just ended needs no signal.
            pid.filter(|_| !is_told).map(|pid| kill_process(pid, Signal::TERM));
            return Ok(None);
        }
        let Some(_held) = lock::hold(&directory.join(LOCK))? else { continue };
        if let Some(end) = end(directory)? {
            return Ok(Some(end));
        }
        if bundle.is_dir() {
            return Ok(None);
        }
        let end = PlanEnd::before_it_began();
        write_end(directory, &end)?;
        return Ok(Some(end));
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Returns all runs on the disk, oldest first, without what may be large. Adds to `problems` what is wrong with those that
/// cannot be read.
pub(super) fn all(plans: &Path, problems: &mut Vec<String>) -> io::Result<Vec<(PlanHead, Option<PlanEnd>)>> {
    let mut found = Vec::new();
    for path in whole_directories(plans)? {
        match head(&path).and_then(|head| Ok((head.into_light(), end(&path)?))) {
            Ok(run) => found.push(run),
            Err(error) => problems.push(format!("the run in {} is left out: {error}", path.display())),
        }
    }
    found.sort_by(|a, b| a.0.run_id.cmp(&b.0.run_id));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A run of a plan that nobody has begun, with this end.
    fn run(plans: &Path, end: Option<&PlanEnd>) -> PathBuf {
        let head: PlanHead = serde_json::from_value(json!({
            "run_id": "r", "plan": "p", "plan_hash": Digest::default(), "by": "ann",
            "created_at": "2026-01-01T00:00:00Z", "vars": {"long": "text"},
            "trigger": {"kind": "webhook", "id": "webhook:p:t:d", "payload": {"long": "text"}},
        }))
        .unwrap();
        create(plans, &head, &Plan::new(head.plan.clone()), None).unwrap();
        let home = plans.join("r");
        if let Some(end) = end {
            write_end(&home, end).unwrap();
        }
        home
    }

    fn failed() -> PlanEnd {
        PlanEnd { exit_code: 1, error: None }
    }

    /// A server that is killed while it forgets a run that failed leaves no run that could be taken for unfinished.
    #[test]
    fn a_run_is_removed_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let home = run(dir.path(), Some(&failed()));
        let aside = put_aside(&home).unwrap();
        fs::remove_file(aside.join(END)).unwrap();
        let mut problems = Vec::new();
        assert!(all(dir.path(), &mut problems).unwrap().is_empty());
        assert!(problems.is_empty() && !aside.exists());
        let home = run(dir.path(), Some(&failed()));
        remove(&home).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_may_be_large_is_not_held_on_to() {
        let dir = tempfile::tempdir().unwrap();
        let home = run(dir.path(), None);
        let found = all(dir.path(), &mut Vec::new()).unwrap();
        let light = &found[0].0;
        assert_eq!(light.trigger_id(), Some("webhook:p:t:d"));
        assert!(light.vars.is_empty() && light.trigger.as_ref().unwrap().get("payload").is_none());
        assert_eq!(head(&home).unwrap().trigger.unwrap()["payload"]["long"], "text");
    }

    #[test]
    fn a_run_that_cannot_be_read_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let home = run(dir.path(), Some(&failed()));
        fs::write(home.join(END), "{").unwrap();
        let mut problems = Vec::new();
        let found = all(dir.path(), &mut problems).unwrap();
        assert_eq!((found.len(), problems.len()), (0, 1), "and does not count as unfinished");
    }

    /// Who comes late to a run that was cancelled finds that it has ended, or that it is to be stopped.
    #[test]
    fn a_cancelled_run_is_never_begun() {
        let dir = tempfile::tempdir().unwrap();
        let (home, bundle) = (run(dir.path(), None), dir.path().join("bundle"));
        assert_eq!(cancel(&home, &bundle, false).unwrap(), Some(PlanEnd::before_it_began()));
        assert!(TakenPlan::take(&home).unwrap().is_none());
        // One that ended before it heard of it keeps its end.
        write_end(&home, &failed()).unwrap();
        assert_eq!(cancel(&home, &bundle, false).unwrap(), Some(failed()));
    }

    #[test]
    fn a_cancel_outlives_who_was_told_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let (home, bundle) = (run(dir.path(), None), dir.path().join("bundle"));
        let taken = TakenPlan::take(&home).unwrap().unwrap();
        assert!(!taken.is_cancelled().unwrap());
        assert_eq!(cancel(&home, &bundle, true).unwrap(), None, "somebody works on it");
        drop(taken);
        assert!(TakenPlan::take(&home).unwrap().unwrap().is_cancelled().unwrap());
        // One that had begun has a `finally`: it is taken up again for that.
        fs::create_dir(&bundle).unwrap();
        assert_eq!(cancel(&home, &bundle, false).unwrap(), None);
    }
}
