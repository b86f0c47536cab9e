//! OpenRC, by `rc-service` and `rc-update`, in the runlevel `default`.

use std::path::Path;
use std::time::Duration;

use stead_runner::operation::{OpContext, OpError};

use super::{Activity, Boot, ServiceManager, Unit};
use crate::system::Tool;

/// OpenRC on this machine.
pub(super) struct OpenRc<'a> {
    pub(super) cx: &'a OpContext,
}

impl OpenRc<'_> {
    fn each(&self, verb: &str, names: &[String]) -> Result<(), OpError> {
        names
            .iter()
            .try_for_each(|name| Tool::new(self.cx, "rc-service").args([name, verb]).must().map(|_| ()))
    }

    fn update(&self, verb: &str, names: &[String]) -> Result<(), OpError> {
        names.iter().try_for_each(|name| {
            Tool::new(self.cx, "rc-update").args([verb, name, "default"]).must().map(|_| ())
        })
    }
}

impl ServiceManager for OpenRc<'_> {
    fn full_name(&self, name: &str) -> String {
        name.to_owned()
    }

    fn see(&self, names: &[String]) -> Result<Vec<Unit>, OpError> {
        let see = |name: &String| {
            let known = Path::new("/etc/init.d").join(name).exists();
            let enabled = Path::new("/etc/runlevels/default").join(name).symlink_metadata().is_ok();
            let mut unit = Unit { name: name.clone(), known, ..Unit::default() };
            if enabled {
                unit.boot = Boot::Enabled;
            }
            if known {
                let said = Tool::new(self.cx, "rc-service").args([name, "status"]).run()?;
                unit.active = match said.ended.exit_code {
                    Some(0) => Activity::Active,
                    Some(8) => Activity::Activating,
                    Some(4) => Activity::Deactivating,
                    Some(32) => Activity::Failed,
                    _ => Activity::Inactive,
                };
                let script = Tool::new(self.cx, "rc-service").args([name, "describe"]).run()?;
                unit.can_reload = script.stdout.contains("reload");
            }
            Ok(unit)
        };
        names.iter().map(see).collect()
    }

    fn start(&self, names: &[String]) -> Result<(), OpError> {
        self.each("start", names)
    }

    fn stop(&self, names: &[String]) -> Result<(), OpError> {
        self.each("stop", names)
    }

    fn enable(&self, names: &[String]) -> Result<(), OpError> {
        self.update("add", names)
    }

    fn disable(&self, names: &[String]) -> Result<(), OpError> {
        self.update("del", names)
    }

    fn restart(&self, name: &str) -> Result<(), OpError> {
        self.each("restart", &[name.to_owned()])
    }

    fn reload(&self, name: &str, limit: Duration) -> Result<(), OpError> {
        Tool::new(self.cx, "rc-service").args([name, "reload"]).within(limit).must().map(|_| ())
    }

    fn log(&self, _name: &str) -> String {
        String::new()
    }
}
