//! How runs get to other machines from this process.

use std::path::PathBuf;
use std::sync::Arc;

use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_runner::remote::Reach;
use stead_runner::{Runner, Warner};

use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Returns the runner with the ways this process has to other machines.
pub(crate) fn connect(runner: Runner, settings: &Settings) -> Result<Runner, Failure> {
    let reach = reach(runner.warner(), settings)?;
    Ok(runner.reach(reach))
}

/// Returns the ways this process has to other machines; what a person should know of them goes to `warner`.
pub(crate) fn reach(warner: Warner, settings: &Settings) -> Result<Reach, Failure> {
    let executable = std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let surroundings = surroundings(settings);
    let user = surroundings.user.clone();
    let notices = Notices::new(move |notice| warner.warn(notice.code, notice.message));
    let mut reach = Reach::new(Arc::new(Transports::new(surroundings, notices)), executable);
    // Not set, it still is where a program for another kind of machine can be put: errors name it.
    let given = settings.environment.get("STEAD_BINARIES").filter(|value| !value.is_empty());
    let given = given.map_or_else(|| PathBuf::from("$STEAD_BINARIES"), PathBuf::from);
    reach.binaries = vec![given, settings.state_dir.path.join("bin")];
    reach.user = user;
    reach.driver = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(reach)
}

/// Returns what connecting needs to know of this process and its account.
pub(crate) fn surroundings(settings: &Settings) -> Surroundings {
    let (name, home) = account().unwrap_or_default();
    let variable = |name: &str| settings.environment.get(name).filter(|value| !value.is_empty());
    let user =
        variable("LOGNAME").or_else(|| variable("USER")).map(|user| user.to_string_lossy().into_owned());
    Surroundings {
        home: variable("HOME").map(PathBuf::from).unwrap_or(home),
        user: if name.is_empty() { user.unwrap_or_default() } else { name },
        environment: settings.environment.to_os_map(),
    }
}

/// Returns the home of this process's account.
pub(crate) fn home() -> Option<PathBuf> {
    account().map(|(_, home)| home)
}

/// Returns name and home of this process's account.
fn account() -> Option<(String, PathBuf)> {
    let own = rustix::process::getuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let found = fields.get(2).is_some_and(|uid| *uid == own);
        found.then(|| Some((fields.first()?.to_string(), PathBuf::from(fields.get(5)?))))?
    })
}
