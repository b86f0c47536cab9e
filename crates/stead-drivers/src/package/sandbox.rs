//! A sandbox's own packages: names in its database, as many as its host allows.

use std::collections::BTreeMap;

use stead_runner::operation::OpError;

use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::machine::sandbox::Sandbox;

/// Every package there is has this version.
const VERSION: &str = "1.0";

/// The packages of a sandbox.
pub(super) struct SandboxPackages(pub(super) Sandbox);

impl PackageManager for SandboxPackages {
    fn name(&self) -> &'static str {
        "sandbox"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        let database = self.0.read()?;
        let of = |name: &String| Installed { version: database.packages.get(name).cloned(), residue: false };
        Ok(names.iter().map(|name| (name.clone(), of(name))).collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        let known = names.iter().filter(|name| self.0.has_package(name));
        let one = Available { candidate: VERSION.to_owned(), versions: vec![VERSION.to_owned()] };
        Ok(known.map(|name| (name.clone(), one.clone())).collect())
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let database = self.0.read()?;
        let version = |wanted: &Option<String>| wanted.clone().unwrap_or_else(|| VERSION.to_owned());
        let mut planned = Planned::default();
        for request in &transaction.install {
            let after = version(&request.version);
            match database.packages.get(&request.name) {
                None => {
                    planned.installs.insert(request.name.clone(), after);
                }
                Some(before) if *before != after => {
                    planned.changes.insert(request.name.clone(), (before.clone(), after));
                }
                Some(_) => {}
            }
        }
        for name in &transaction.remove {
            if let Some(version) = database.packages.get(name) {
                planned.removes.insert(name.clone(), version.clone());
            }
        }
        Ok(planned)
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        if let Some(request) = transaction.install.iter().find(|request| !self.0.has_package(&request.name)) {
            return Err(OpError::permanent(format!("there is no package `{}`", request.name)));
        }
        self.0.update(|database| {
            for request in &transaction.install {
                let version = request.version.clone().unwrap_or_else(|| VERSION.to_owned());
                database.packages.insert(request.name.clone(), version);
            }
            for name in &transaction.remove {
                database.packages.remove(name);
            }
        })
    }

    fn refresh(&self) -> Result<(), OpError> {
        Ok(())
    }

    fn refreshed_aside(&self) -> Result<Option<Box<dyn PackageManager + '_>>, OpError> {
        Ok(Some(Box::new(Again(self))))
    }

    fn index(&self) -> &'static [&'static str] {
        &[]
    }
}

/// The same packages once more: there is nothing to fetch, so what is not known never will be.
struct Again<'a>(&'a SandboxPackages);

impl PackageManager for Again<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        self.0.installed(names)
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        self.0.available(names)
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        self.0.plan(transaction)
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        self.0.commit(transaction)
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.0.refresh()
    }

    fn index(&self) -> &'static [&'static str] {
        self.0.index()
    }
}
