//! What drivers of machines that live on this machine do alike. Each step leaves a state from which every call goes on
//! or starts over.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stead_model::machine::{Machine, MachineExit, MachineId, MachineSpec, OwnerScope};
use stead_runner::clock;
use stead_runner::machine::{Changed, Ensured, MachineError};

use super::console;
use super::home::{self, Found, Held, Home, Kind, Record, Run};
use super::process::ProcessMark;
use super::tree;

/// How often something on its way is looked at.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Where programs are found, whatever the driver's own search path.
pub(crate) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Told of every step of making and removing, before the next one begins.
pub type StepWatch = Arc<dyn Fn(&str) + Send + Sync>;

/// What is special to a driver of machines that are directories and processes here.
#[async_trait::async_trait]
pub(super) trait Local: Clone + Send + Sync + 'static {
    /// Returns what tells its machines from those of others.
    fn kind(&self) -> &'static Kind;

    /// Returns where machines are kept.
    fn root_dir(&self) -> &Path;

    /// Whether that stays when its last machine goes: somebody chose it.
    fn keeps_root_dir(&self) -> bool {
        false
    }

    /// Returns who is told of every step.
    fn watch(&self) -> &StepWatch;

    /// Does what is to be done for a machine that is made already and asked for again.
    fn refresh(&self, _home: &Home, _spec: &MachineSpec) -> Result<(), MachineError> {
        Ok(())
    }

    /// Does what is to be done before anything of the machine is made.
    async fn before_making(&self, _home: &Home, _spec: &MachineSpec) -> Result<(), MachineError> {
        Ok(())
    }

    /// Makes the machine's files, in a directory that holds none yet. Blocks.
    fn make(&self, home: &Home, spec: &MachineSpec) -> Result<(), MachineError>;

    /// Removes everything of the machine but what says whose it is. Blocks.
    fn wipe(&self, home: &Home) -> io::Result<()> {
        home.wipe()
    }

    /// Does what is to be done before the machine is removed.
    async fn before_removing(&self, _home: &Home) -> Result<(), MachineError> {
        Ok(())
    }

    /// Takes back what the machine has outside of its directory, once nothing of it runs. Blocks.
    fn release(&self, _home: &Home) -> Result<(), MachineError> {
        Ok(())
    }

    /// Returns what a live process is doing.
    fn run(&self, home: &Home, record: &Record, mark: &ProcessMark) -> Run;

    /// Returns how the last run ended, if that was said.
    fn exit(&self, home: &Home) -> Option<MachineExit>;

    /// Looks after a machine when somebody looks at it.
    async fn tend(&self, _home: &Home) {}
}

/// Returns the home of the machine `id`.
pub(super) fn home_of(driver: &impl Local, id: &MachineId) -> Result<Home, MachineError> {
    if !is_uuid(id.as_str()) {
        let noun = driver.kind().noun;
        return Err(MachineError::Invalid(format!("`{}` is not a {noun}'s id", id.as_str().escape_debug())));
    }
    Ok(Home::new(driver.kind(), driver.root_dir(), id.as_str()))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// Runs blocking work that goes on to its end whoever still waits for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MachineError> + Send + 'static,
) -> Result<T, MachineError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(MachineError::failed(format!("the work was stopped: {error}"))))
}

/// Makes the machine unless it is there.
pub(super) async fn ensure_created<L: Local>(
    driver: &L,
    spec: &MachineSpec,
) -> Result<Ensured, MachineError> {
    let home = Home::new(driver.kind(), driver.root_dir(), &spec.owner.uuid());
    let (held, record) = claim(driver, &home, spec).await?;
    if record.made {
        let changes = spec.differences(&record.spec);
        if !changes.is_empty() {
            let machine = format!("the {} {}", driver.kind().noun, spec.owner);
            return Err(MachineError::Conflict { machine, changes });
        }
        driver.refresh(&home, spec)?;
        return ensured(driver, &home, false);
    }
    driver.before_making(&home, spec).await?;
    let (spec, place, maker) = (spec.clone(), home.clone(), driver.clone());
    blocking(move || {
        let held: Held = held;
        let failed = |error: io::Error| place.failed("make", &error);
        let watch = maker.watch();
        end_all(&maker, &place)?;
        watch("quiet");
        maker.wipe(&place).map_err(failed)?;
        watch("wiped");
        let mut record = Record::new(maker.kind(), &spec, record.created_at);
        place.set_record(&record).map_err(failed)?;
        watch("record");
        maker.make(&place, &spec)?;
        record.made = true;
        place.set_record(&record).map_err(failed)?;
        watch("made");
        drop(held);
        Ok(())
    })
    .await?;
    ensured(driver, &home, true)
}

fn ensured(driver: &impl Local, home: &Home, changed: bool) -> Result<Ensured, MachineError> {
    let machine = machine(driver, home).ok_or_else(|| home.not_found())?;
    Ok(Ensured { machine, changed })
}

/// Returns the machine's lock and record, making both if there is nothing.
async fn claim(driver: &impl Local, home: &Home, spec: &MachineSpec) -> Result<(Held, Record), MachineError> {
    loop {
        if let Some(found) = home.lock().await? {
            return Ok(found);
        }
        let record = Record::new(driver.kind(), spec, clock::now());
        if let Some(held) = home.reserve(&record)? {
            driver.watch()("reserved");
            return Ok((held, record));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Ends whatever still runs of the machine, by force, and takes back what it had. Blocks.
pub(super) fn end_all(driver: &impl Local, home: &Home) -> Result<(), MachineError> {
    let unreadable = |error: io::Error| home.unreadable(&error);
    if tree::kill_all(home).map_err(unreadable)? && console::drain(home).map_err(unreadable)? {
        return driver.release(home);
    }
    Err(MachineError::failed(format!(
        "processes of the {} in {} cannot be ended",
        home.kind().noun,
        home.directory().display()
    )))
}

/// Returns the lock of a machine that is wholly made.
pub(super) async fn made(home: &Home) -> Result<Option<(Held, Record)>, MachineError> {
    Ok(home.lock().await?.filter(|(_, record)| record.made))
}

/// Removes the machine and everything of it.
pub(super) async fn destroy<L: Local>(driver: &L, home: &Home) -> Result<Changed, MachineError> {
    let root_dir = driver.root_dir().to_owned();
    let Some((held, mut record)) = home.lock().await? else {
        let driver = driver.clone();
        return blocking(move || {
            home::sweep(&root_dir);
            leave(&driver);
            Ok(Changed::No)
        })
        .await;
    };
    driver.before_removing(home).await?;
    let (place, driver) = (home.clone(), driver.clone());
    blocking(move || {
        let failed = |error: io::Error| place.failed("remove", &error);
        let watch = driver.watch();
        watch("found");
        // From here it is half made: whoever finds it next removes it, or makes it anew.
        record.made = false;
        place.set_record(&record).map_err(failed)?;
        watch("unmade");
        end_all(&driver, &place)?;
        watch("quiet");
        driver.wipe(&place).map_err(failed)?;
        watch("wiped");
        home::sweep(&root_dir);
        place.vanish().map_err(failed)?;
        leave(&driver);
        watch("gone");
        drop(held);
        Ok(Changed::Yes)
    })
    .await
}

/// Removes the directory of machines if it has none any more and was made for them.
fn leave(driver: &impl Local) {
    if !driver.keeps_root_dir() {
        fs::remove_dir(driver.root_dir()).ok();
    }
}

/// Returns the machine as it is now; none if there is none of ours, or it cannot be looked at.
pub(super) fn machine(driver: &impl Local, home: &Home) -> Option<Machine> {
    inspect(driver, home).ok().flatten()
}

/// Returns the machines of `scope`, by scope and name.
pub(super) fn list(driver: &impl Local, scope: &OwnerScope) -> Result<Vec<Machine>, MachineError> {
    let root_dir = driver.root_dir();
    let entries = match fs::read_dir(root_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(MachineError::Unavailable(format!("{} cannot be read: {error}", root_dir.display())));
        }
    };
    let mut machines = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| {
            MachineError::Unavailable(format!("{} cannot be read: {error}", root_dir.display()))
        })?;
        if !entry.file_name().to_str().is_some_and(is_uuid) {
            continue;
        }
        let found = inspect(driver, &Home::at(driver.kind(), entry.path()))?;
        machines.extend(found.filter(|machine| scope.covers(&machine.owner)));
    }
    machines.sort_by(|a, b| a.owner.cmp(&b.owner));
    Ok(machines)
}

/// Refuses what is not there, or not ours.
pub(super) fn is_ours(home: &Home) -> Result<(), MachineError> {
    match home.find() {
        Found::Ours(_) => Ok(()),
        Found::Absent => Err(home.not_found()),
        Found::Foreign => Err(home.foreign()),
        Found::Unreadable(error) => Err(home.unreadable(&error)),
    }
}

/// Returns the machine as it is now; refuses one that cannot be looked at.
pub(super) fn inspect(driver: &impl Local, home: &Home) -> Result<Option<Machine>, MachineError> {
    let seen = home.machine(|record, mark| driver.run(home, record, mark), || driver.exit(home));
    seen.map_err(|error| home.unreadable(&error))
}

/// Waits until the machine does not run and returns how its run ended.
pub(super) async fn wait(driver: &impl Local, home: &Home) -> Result<MachineExit, MachineError> {
    is_ours(home)?;
    let run = home.pid().map(|(mark, _)| mark);
    if let Some(handle) = run.as_ref().and_then(ProcessMark::open) {
        handle.ended().await.map_err(|error| home.failed("wait for", &error))?;
    }
    let never = || MachineError::Invalid(format!("{} was never started", home.directory().display()));
    home::exit_of(driver.exit(home), run.as_ref()).ok_or_else(never)
}
