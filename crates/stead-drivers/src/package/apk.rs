//! apk.

use std::collections::BTreeMap;
use std::path::Path;

use stead_runner::operation::{OpContext, OpError};

use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::command::blocking::Said;
use crate::disk::seen::Depth;
use crate::disk::{Disk, Last};
use crate::system::Tool;

/// The database of even a large system is far smaller.
const LARGEST: u64 = 64 << 20;

/// apk on the whole machine or a root prefix.
pub(super) struct Apk<'a> {
    pub(super) cx: &'a OpContext,
}

impl<'a> Apk<'a> {
    fn tool(&self) -> Tool<'a> {
        Tool::new(self.cx, "apk").root("--root").args(["--no-progress"])
    }

    fn transaction(&self, transaction: &Transaction, simulate: bool) -> Tool<'a> {
        let simulate = simulate.then_some("--simulate");
        if transaction.install.is_empty() {
            let recursive = transaction.cascade.then_some("--rdepends");
            return self.tool().arg("del").args(simulate).args(recursive).args(&transaction.remove);
        }
        let installs = transaction.install.iter().map(|request| match (&request.file, &request.version) {
            (Some(file), _) => file.to_string_lossy().into_owned(),
            (None, Some(version)) => format!("{}={version}", request.name),
            (None, None) => request.name.clone(),
        });
        // `!name` in one transaction means "not this".
        let removes = transaction.remove.iter().map(|name| format!("!{name}"));
        self.tool().arg("add").args(simulate).args(installs).args(removes)
    }
}

impl PackageManager for Apk<'_> {
    fn name(&self) -> &'static str {
        "apk"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        let disk = Disk::open(self.cx)?;
        let spot = disk.locate(Path::new("/lib/apk/db/installed"), Last::Follow)?;
        let seen = disk.see(&spot, Depth::Content)?;
        let database = database(&String::from_utf8_lossy(&disk.read(&spot, &seen, LARGEST)?));
        let of = |name: &String| Installed { version: database.get(name).cloned(), residue: false };
        Ok(names.iter().map(|name| (name.clone(), of(name))).collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        Ok(policy(&self.tool().arg("policy").args(names).must()?))
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let said = self.transaction(transaction, true).run()?;
        if !said.is_ok() {
            return Err(OpError::permanent(format!("apk cannot do it: {}", said.describe())));
        }
        if let Some(needed) = said.stdout.split_once("not removed due to:").map(|(_, by)| by) {
            return Err(OpError::permanent(format!(
                "removing {} would also remove what needs it: {}; `cascade: true` removes it too",
                transaction.remove.join(", "),
                needed.split_whitespace().collect::<Vec<_>>().join(" ")
            )));
        }
        Ok(simulation(&said.stdout))
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        self.transaction(transaction, false).must_when_free(is_busy).map(|_| ())
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.tool().arg("update").must_when_free(is_busy).map(|_| ())
    }

    fn index(&self) -> &'static [&'static str] {
        &["/var/cache/apk"]
    }
}

fn is_busy(said: &Said) -> bool {
    said.stderr.contains("Unable to lock database")
}

/// Reads the database: blocks of `P:name`, `V:version` and more.
fn database(text: &str) -> BTreeMap<String, String> {
    let block = |block: &str| {
        let value = |key: &str| block.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
        Some((value("P:")?, value("V:")?))
    };
    text.split("\n\n").filter_map(block).collect()
}

/// Reads `apk policy`: `NAME policy:`, then versions, each followed by where it comes from.
fn policy(text: &str) -> BTreeMap<String, Available> {
    let mut found: BTreeMap<String, Available> = BTreeMap::new();
    let mut name = String::new();
    let mut version = String::new();
    for line in text.lines() {
        let trimmed = line.trim();
        match line.len() - line.trim_start().len() {
            0 => name = trimmed.trim_end_matches(" policy:").to_owned(),
            2 => version = trimmed.trim_end_matches(':').to_owned(),
            // What only the installed database has cannot be fetched.
            _ if trimmed != "lib/apk/db/installed" && !version.is_empty() => {
                let known = found.entry(name.clone()).or_default();
                known.candidate = version.clone();
                if !known.versions.contains(&version) {
                    known.versions.push(version.clone());
                }
            }
            _ => {}
        }
    }
    found
}

/// Reads the steps of a simulation: `(1/2) Installing NAME (VERSION)`, `Upgrading NAME (OLD -> NEW)`, `Purging …`.
fn simulation(text: &str) -> Planned {
    let mut planned = Planned::default();
    for line in text.lines().filter(|line| line.starts_with('(')) {
        let mut words = line.split_whitespace().skip(1);
        let (Some(verb), Some(name)) = (words.next(), words.next()) else { continue };
        let version = words.collect::<Vec<_>>().join(" ");
        let version = version.trim_matches(['(', ')']);
        match (verb, version.split_once(" -> ")) {
            ("Installing", _) => {
                planned.installs.insert(name.to_owned(), version.to_owned());
            }
            ("Upgrading" | "Downgrading", Some((old, new))) => {
                planned.changes.insert(name.to_owned(), (old.to_owned(), new.to_owned()));
            }
            ("Purging", _) => {
                planned.removes.insert(name.to_owned(), version.to_owned());
            }
            _ => {}
        }
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_and_simulations_are_read() {
        let found = policy(
            "nginx policy:\n  1.22-r0:\n    lib/apk/db/installed\n  1.24-r1:\n    https://example.org/main\nold policy:\n  1:\n    lib/apk/db/installed\n",
        );
        assert_eq!(
            found["nginx"],
            Available { candidate: "1.24-r1".into(), versions: vec!["1.24-r1".into()] }
        );
        assert!(!found.contains_key("old"));
        let planned = simulation(
            "(1/3) Installing pcre (8-r0)\n(2/3) Upgrading nginx (1.22-r0 -> 1.24-r1)\n(3/3) Purging foe (1-r0)\nOK: 9 MiB\n",
        );
        assert_eq!(planned.installs["pcre"], "8-r0");
        assert_eq!(planned.changes["nginx"], ("1.22-r0".to_owned(), "1.24-r1".to_owned()));
        assert_eq!(planned.removes["foe"], "1-r0");
        assert_eq!(database("C:x\nP:a\nV:1\n\nP:b\nV:2-r0\n")["b"], "2-r0");
    }
}
