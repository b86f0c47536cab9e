//! pacman. It installs the newest version only, so nothing can be pinned.

use std::collections::BTreeMap;

use stead_runner::operation::{OpContext, OpError};

use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::command::blocking::Said;
use crate::system::Tool;

/// pacman on the whole machine or a root prefix.
pub(super) struct Pacman<'a> {
    pub(super) cx: &'a OpContext,
}

impl<'a> Pacman<'a> {
    fn tool(&self) -> Tool<'a> {
        Tool::new(self.cx, "pacman").root("--root").args(["--noconfirm", "--color", "never"])
    }

    fn print(&self, tool: Tool<'a>) -> Result<BTreeMap<String, String>, OpError> {
        let said = tool.args(["--print", "--print-format", "%n %v"]).run()?;
        if said.is_ok() {
            return Ok(pairs(&said.stdout));
        }
        Err(OpError::permanent(format!("pacman cannot do it: {}", said.describe())))
    }

    fn installs(&self, transaction: &Transaction) -> Option<Tool<'a>> {
        let names = transaction.install.iter().map(|request| &request.name);
        (!transaction.install.is_empty()).then(|| self.tool().args(["-S", "--needed"]).args(names))
    }

    fn removes(&self, transaction: &Transaction) -> Option<Tool<'a>> {
        let how = match (transaction.cascade, transaction.purge) {
            (true, true) => "-Rnc",
            (true, false) => "-Rc",
            (false, true) => "-Rn",
            (false, false) => "-R",
        };
        (!transaction.remove.is_empty()).then(|| self.tool().arg(how).args(&transaction.remove))
    }
}

impl PackageManager for Pacman<'_> {
    fn name(&self) -> &'static str {
        "pacman"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        // Exits 1 if it does not know one of them, and lists the others.
        let known = pairs(&self.tool().arg("-Q").args(names).run()?.stdout);
        let of = |name: &String| Installed { version: known.get(name).cloned(), residue: false };
        Ok(names.iter().map(|name| (name.clone(), of(name))).collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        let mut found = BTreeMap::new();
        // One by one: a single unknown name fails them all.
        for name in names {
            let said = self.tool().args(["-Sdd", "--print", "--print-format", "%n %v"]).arg(name).run()?;
            if let Some(version) = pairs(&said.stdout).remove(name).filter(|_| said.is_ok()) {
                found.insert(name.clone(), Available { candidate: version.clone(), versions: vec![version] });
            }
        }
        Ok(found)
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let mut planned = Planned::default();
        if let Some(tool) = self.installs(transaction) {
            let coming = self.print(tool)?;
            let names: Vec<String> = coming.keys().cloned().collect();
            let has = self.installed(&names)?;
            for (name, version) in coming {
                match has.get(&name).and_then(|has| has.version.clone()) {
                    Some(before) => {
                        planned.changes.insert(name, (before, version));
                    }
                    None => {
                        planned.installs.insert(name, version);
                    }
                }
            }
        }
        // Asked with all that needs them, so that those can be named.
        let all = Transaction { cascade: true, ..transaction.clone() };
        if let Some(tool) = self.removes(&all) {
            planned.removes = self.print(tool)?;
        }
        Ok(planned)
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        for tool in [self.removes(transaction), self.installs(transaction)].into_iter().flatten() {
            tool.must_when_free(is_busy)?;
        }
        Ok(())
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.tool().arg("-Sy").must_when_free(is_busy).map(|_| ())
    }

    fn index(&self) -> &'static [&'static str] {
        &["/var/lib/pacman/sync"]
    }

    fn pins(&self) -> bool {
        false
    }
}

fn is_busy(said: &Said) -> bool {
    said.stderr.contains("unable to lock database")
}

/// Reads lines of `NAME VERSION`.
fn pairs(text: &str) -> BTreeMap<String, String> {
    let pair =
        |line: &str| line.split_once(' ').map(|(name, version)| (name.to_owned(), version.trim().to_owned()));
    text.lines().filter_map(pair).collect()
}
