//! `service.*`: services, by the system's own service manager.
//!
//! Running and starting at boot are two states, compared one at a time. A service that was asked to start is waited
//! for, and looked at once more after a moment: one that dies at once is not started. Without a service manager that
//! runs here (a container, an image) the operations are unsupported, so their rows are skipped; what starts at boot
//! can be set under a root prefix all the same, since that is files.

mod openrc;
mod restarted;
mod sandbox;
mod state;
pub(crate) mod systemd;

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::operation::{ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpContext, OpError, Params, Registry};

use crate::machine::sandbox::Sandbox;
use crate::setup::input;
use crate::system::has;

pub(crate) use state::{Wish, overlay, wait};

/// Adds every `service.*` operation.
pub(crate) fn add_to(registry: &mut Registry) {
    for wish in [Wish::Started, Wish::Stopped, Wish::Enabled, Wish::Disabled] {
        registry.add_operation(state::State(wish));
    }
    registry.add_action(restarted::Restarted);
}

const NAME: ParamSpec = ParamSpec::new(
    "name",
    ParamKind::NonEmptyText,
    "The service; systemd: a unit, `.service` if it has no suffix.",
)
.judged(judge_name);
const NAMES: ParamSpec =
    ParamSpec::new("names", ParamKind::NonEmptyTextList, "Several services.").judged(judge_name);

/// One service, as its manager sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unit {
    /// As the manager calls it.
    pub(crate) name: String,
    /// There is such a service.
    pub(crate) known: bool,
    /// It is forbidden to start.
    pub(crate) masked: bool,
    /// Whether it runs.
    pub(crate) active: Activity,
    /// Whether it starts at boot.
    pub(crate) boot: Boot,
    /// It can take a new configuration without being restarted.
    pub(crate) can_reload: bool,
    /// Its files have changed since the manager read them.
    #[serde(default)]
    pub(crate) stale: bool,
}

/// Whether a service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activity {
    /// It runs.
    Active,
    /// It is on its way up.
    Activating,
    /// It is on its way down.
    Deactivating,
    /// It ended badly.
    Failed,
    /// It does not run.
    #[default]
    Inactive,
}

impl Activity {
    /// Returns the word for it in messages.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Activating => "activating",
            Self::Deactivating => "deactivating",
            Self::Failed => "failed",
            Self::Inactive => "inactive",
        }
    }
}

/// Whether a service starts at boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Boot {
    /// By itself.
    Enabled,
    /// Only if another wants it; it has nothing to be enabled by.
    Static,
    /// No.
    #[default]
    Disabled,
}

/// A service manager.
pub(crate) trait ServiceManager {
    /// Returns the name as the manager has it.
    fn full_name(&self, name: &str) -> String;

    /// Returns the state of each of `names`, in their order.
    fn see(&self, names: &[String]) -> Result<Vec<Unit>, OpError>;

    /// Asks for services to start, and need not wait.
    fn start(&self, names: &[String]) -> Result<(), OpError>;

    /// Asks for services to stop, and need not wait.
    fn stop(&self, names: &[String]) -> Result<(), OpError>;

    /// Makes services start at boot.
    fn enable(&self, names: &[String]) -> Result<(), OpError>;

    /// Makes services not start at boot.
    fn disable(&self, names: &[String]) -> Result<(), OpError>;

    /// Stops and starts a service, and need not wait.
    fn restart(&self, name: &str) -> Result<(), OpError>;

    /// Lets a service read its configuration anew, and waits until it has: nothing else tells that it failed.
    ///
    /// # Errors
    /// Also if that takes longer than `limit`: class `timeout`.
    fn reload(&self, name: &str, limit: Duration) -> Result<(), OpError>;

    /// Returns the last 20 lines that a service logged, or nothing if nobody knows.
    fn log(&self, name: &str) -> String;
}

/// Returns the service manager that runs here.
pub(crate) fn manager<'a>(cx: &'a OpContext) -> Result<Box<dyn ServiceManager + 'a>, OpError> {
    if let Some(sandbox) = Sandbox::of(cx) {
        return Ok(Box::new(sandbox::SandboxServices(sandbox)));
    }
    if cx.root.is_some() {
        return Err(OpError::unsupported("a root prefix has no running services"));
    }
    if Path::new("/run/systemd/system").is_dir() && has("systemctl") {
        return Ok(Box::new(systemd::Systemd { cx }));
    }
    if Path::new("/run/openrc").is_dir() && has("rc-service") {
        return Ok(Box::new(openrc::OpenRc { cx }));
    }
    Err(OpError::unsupported("no service manager that Stead knows runs here: systemd or openrc"))
}

/// Returns what sets what starts at boot: under a root prefix too, where nothing runs.
fn boot_manager<'a>(cx: &'a OpContext) -> Result<Box<dyn ServiceManager + 'a>, OpError> {
    if let Some(sandbox) = Sandbox::of(cx) {
        return Ok(Box::new(sandbox::SandboxServices(sandbox)));
    }
    match &cx.root {
        None => manager(cx),
        Some(_) if has("systemctl") => Ok(Box::new(systemd::Systemd { cx })),
        Some(_) => {
            Err(OpError::unsupported("this host has no `systemctl` (package systemd) for a root prefix"))
        }
    }
}

/// Returns the services that the parameters name.
fn names(manager: &dyn ServiceManager, params: &Params) -> Result<Vec<String>, OpError> {
    let given = if params.get("name").is_some() { params.texts("name") } else { params.texts("names") };
    given.iter().map(|name| check_name(name).map(|()| manager.full_name(name))).collect()
}

/// Returns why the texts are not names of services.
pub(crate) fn judge_name(value: &Value) -> Option<String> {
    judge_texts(value, |text| input::problem(check_name(text)))
}

/// Refuses what is an option, a path or a pattern.
pub(crate) fn check_name(name: &str) -> Result<(), OpError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ":_.@\\-".contains(c);
    if name.is_empty() || name.len() > 255 || name.starts_with(['-', '.']) || !name.chars().all(fits) {
        return Err(OpError::invalid(format!("`{}` is not the name of a service", name.escape_debug())));
    }
    Ok(())
}
