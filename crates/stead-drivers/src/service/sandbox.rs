//! A sandbox's own services: names in its database, as many as its host allows. Nothing runs; what is said to run
//! does so until it is stopped or the machine restarts.

use std::time::Duration;

use stead_runner::operation::OpError;

use super::{Activity, Boot, ServiceManager, Unit};
use crate::machine::sandbox::{Sandbox, Service};

/// The services of a sandbox.
pub(super) struct SandboxServices(pub(super) Sandbox);

impl SandboxServices {
    fn change(&self, names: &[String], change: impl Fn(&mut Service)) -> Result<(), OpError> {
        if let Some(name) = names.iter().find(|name| !self.0.has_service(name)) {
            return Err(OpError::permanent(format!("there is no service `{name}`")));
        }
        self.0.update(|database| {
            for name in names {
                change(database.services.entry(name.clone()).or_default());
            }
        })
    }
}

impl ServiceManager for SandboxServices {
    fn full_name(&self, name: &str) -> String {
        name.strip_suffix(".service").unwrap_or(name).to_owned()
    }

    fn see(&self, names: &[String]) -> Result<Vec<Unit>, OpError> {
        let database = self.0.read()?;
        let see = |name: &String| {
            let service = database.services.get(name).copied().unwrap_or_default();
            Unit {
                name: name.clone(),
                known: self.0.has_service(name),
                masked: false,
                active: if service.active { Activity::Active } else { Activity::Inactive },
                boot: if service.enabled { Boot::Enabled } else { Boot::Disabled },
                stale: false,
                can_reload: true,
            }
        };
        Ok(names.iter().map(see).collect())
    }

    fn start(&self, names: &[String]) -> Result<(), OpError> {
        self.change(names, |service| service.active = true)
    }

    fn stop(&self, names: &[String]) -> Result<(), OpError> {
        self.change(names, |service| service.active = false)
    }

    fn enable(&self, names: &[String]) -> Result<(), OpError> {
        self.change(names, |service| service.enabled = true)
    }

    fn disable(&self, names: &[String]) -> Result<(), OpError> {
        self.change(names, |service| service.enabled = false)
    }

    fn restart(&self, name: &str) -> Result<(), OpError> {
        self.start(&[name.to_owned()])
    }

    fn reload(&self, name: &str, _limit: Duration) -> Result<(), OpError> {
        self.start(&[name.to_owned()])
    }

    fn log(&self, _name: &str) -> String {
        String::new()
    }
}
