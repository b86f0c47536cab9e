//! Homebrew. It installs the newest version only, into its own place: no root, no root prefix.

use std::collections::BTreeMap;

use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::command::blocking::Said;
use crate::system::Tool;

/// Homebrew on this machine.
pub(super) struct Brew<'a> {
    pub(super) cx: &'a OpContext,
}

impl<'a> Brew<'a> {
    fn tool(&self) -> Tool<'a> {
        Tool::new(self.cx, "brew").env("HOMEBREW_NO_AUTO_UPDATE", "1").env("HOMEBREW_NO_ANALYTICS", "1")
    }

    fn info(&self, names: &[String]) -> Result<BTreeMap<String, String>, OpError> {
        let said = self.tool().args(["info", "--json=v2", "--formula"]).args(names).run()?;
        let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
        let formulae = answer["formulae"].as_array().cloned().unwrap_or_default();
        let of = |formula: &Value| {
            let revision = formula["revision"].as_u64().filter(|revision| *revision > 0);
            let version = formula["versions"]["stable"].as_str()?.to_owned();
            let version = revision.map_or(version.clone(), |revision| format!("{version}_{revision}"));
            Some((formula["name"].as_str()?.to_owned(), version))
        };
        Ok(formulae.iter().filter_map(of).collect())
    }
}

impl PackageManager for Brew<'_> {
    fn name(&self) -> &'static str {
        "brew"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        // Exits 1 if one of them is not installed, and lists the others: `NAME VERSION…`, newest last.
        let listing = self.tool().args(["list", "--versions", "--formula"]).args(names).run()?.stdout;
        let version = |name: &String| {
            let line = listing.lines().find(|line| line.split(' ').next() == Some(name))?;
            line.split(' ').skip(1).last().map(str::to_owned)
        };
        Ok(names
            .iter()
            .map(|name| (name.clone(), Installed { version: version(name), residue: false }))
            .collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        let mut found = BTreeMap::new();
        // One by one: a single unknown name fails them all.
        for name in names {
            for (name, version) in self.info(std::slice::from_ref(name))? {
                found.insert(name, Available { candidate: version.clone(), versions: vec![version] });
            }
        }
        Ok(found)
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let mut planned = Planned::default();
        let names: Vec<String> = transaction.install.iter().map(|request| request.name.clone()).collect();
        if !names.is_empty() {
            let needed = self.tool().args(["deps", "--union", "--formula"]).args(&names).must()?;
            let all: Vec<String> = needed.lines().map(str::to_owned).chain(names.iter().cloned()).collect();
            let (has, newest) = (self.installed(&all)?, self.info(&all)?);
            for name in all {
                let after = newest.get(&name).cloned().unwrap_or_default();
                match has.get(&name).and_then(|has| has.version.clone()) {
                    None => {
                        planned.installs.insert(name, after);
                    }
                    Some(before) if before != after && names.contains(&name) => {
                        planned.changes.insert(name, (before, after));
                    }
                    Some(_) => {}
                }
            }
        }
        if !transaction.remove.is_empty() {
            let mut going = transaction.remove.clone();
            let users =
                self.tool().args(["uses", "--installed", "--recursive"]).args(&transaction.remove).must()?;
            going.extend(users.lines().map(str::to_owned));
            let has = self.installed(&going)?;
            planned.removes = has.into_iter().filter_map(|(name, has)| Some((name, has.version?))).collect();
        }
        Ok(planned)
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        if !transaction.remove.is_empty() {
            let mut going = transaction.remove.clone();
            if transaction.cascade {
                going = self
                    .plan(&Transaction { install: Vec::new(), ..transaction.clone() })?
                    .removes
                    .into_keys()
                    .collect();
            }
            self.tool().args(["uninstall", "--formula"]).args(going).must_when_free(is_busy)?;
        }
        let names: Vec<String> = transaction.install.iter().map(|request| request.name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let has = self.installed(&names)?;
        let is_new = |name: &&String| has.get(*name).is_none_or(|has| has.version.is_none());
        let (new, old): (Vec<&String>, Vec<&String>) = names.iter().partition(is_new);
        for (verb, names) in [("install", new), ("upgrade", old)] {
            if !names.is_empty() {
                self.tool().args([verb, "--formula"]).args(names).must_when_free(is_busy)?;
            }
        }
        Ok(())
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.tool().arg("update").must_when_free(is_busy).map(|_| ())
    }

    fn index(&self) -> &'static [&'static str] {
        &[
            "/opt/homebrew/Library/Taps",
            "/usr/local/Homebrew/Library/Taps",
            "/home/linuxbrew/.linuxbrew/Homebrew/.git/refs",
        ]
    }

    fn pins(&self) -> bool {
        false
    }
}

fn is_busy(said: &Said) -> bool {
    said.stderr.contains("has already locked")
}
