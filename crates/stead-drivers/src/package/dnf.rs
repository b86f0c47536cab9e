//! dnf and rpm.

use std::collections::BTreeMap;

use stead_runner::operation::{OpContext, OpError};

use super::name::Request;
use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::command::blocking::Said;
use crate::system::Tool;

/// The answer to whether it may go on, when asking what it would do.
const NO: &str = "--assumeno";

/// dnf on the whole machine or a root prefix.
pub(super) struct Dnf<'a> {
    pub(super) cx: &'a OpContext,
}

impl<'a> Dnf<'a> {
    fn tool(&self) -> Tool<'a> {
        let tool = Tool::new(self.cx, "dnf").arg("--color=never");
        match &self.cx.root {
            Some(root) => tool.arg(format!("--installroot={}", root.display())),
            None => tool,
        }
    }

    fn transaction(&self, transaction: &Transaction, answer: &'static str) -> Tool<'a> {
        let mut tool = self.tool().arg(answer);
        if transaction.install.is_empty() {
            return tool.args(["remove", "--noautoremove"]).args(&transaction.remove);
        }
        if !transaction.recommends {
            tool = tool.arg("--setopt=install_weak_deps=False");
        }
        if transaction.remove.is_empty() {
            // Only when asking: what it would erase is to be named, and never erased.
            let erasing = (answer == NO).then_some("--allowerasing");
            return tool.arg("install").args(erasing).args(transaction.install.iter().map(argument));
        }
        // Both at once are a swap of the first two, with the rest following; dnf takes them as a shell's lines.
        let removes = transaction.remove.iter().map(|name| format!("remove {name}\n"));
        let installs = transaction.install.iter().map(|request| format!("install {}\n", argument(request)));
        let script: String = removes.chain(installs).chain(["run\n".to_owned()]).collect();
        tool.arg("shell").stdin(script.into_bytes())
    }
}

fn argument(request: &Request) -> String {
    match (&request.file, &request.version) {
        (Some(file), _) => file.to_string_lossy().into_owned(),
        (None, Some(version)) => format!("{}-{version}", request.name),
        (None, None) => request.name.clone(),
    }
}

impl PackageManager for Dnf<'_> {
    fn name(&self) -> &'static str {
        "dnf"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        let query =
            Tool::new(self.cx, "rpm").root("--root").args(["-q", "--qf", "%{NAME}\\t%{EVR}\\n", "--"]);
        // Its exit code counts the ones it does not know.
        let listing = query.args(names).run()?.stdout;
        let version = |name: &String| {
            let mut lines = listing.lines().filter_map(|line| line.split_once('\t'));
            lines.find(|(known, _)| known == name).map(|(_, version)| version.to_owned())
        };
        Ok(names
            .iter()
            .map(|name| (name.clone(), Installed { version: version(name), residue: false }))
            .collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        let query = self.tool().args(["-q", "repoquery", "--qf", "%{name}\\t%{evr}\\n"]).args(names);
        let mut found: BTreeMap<String, Available> = BTreeMap::new();
        for line in query.must()?.lines() {
            let Some((name, version)) = line.trim().split_once('\t') else { continue };
            // Oldest first; the last is what `install` takes.
            let known = found.entry(name.to_owned()).or_default();
            known.candidate = version.to_owned();
            known.versions.push(version.to_owned());
        }
        Ok(found)
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let said = self.transaction(transaction, NO).run()?;
        let mut planned = table(&said.stdout);
        // It ends with 1 because the answer was no; without a table it could not even ask.
        if planned == Planned::default() && !said.is_ok() {
            return Err(OpError::permanent(format!("dnf cannot do it: {}", said.describe())));
        }
        let changing: Vec<String> = planned.changes.keys().cloned().collect();
        if !changing.is_empty() {
            // The table has the new versions only.
            for (name, has) in self.installed(&changing)? {
                planned
                    .changes
                    .entry(name)
                    .and_modify(|(before, _)| *before = has.version.unwrap_or_default());
            }
        }
        Ok(planned)
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        self.transaction(transaction, "-y").must_when_free(is_busy).map(|_| ())
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.tool().args(["makecache", "--refresh"]).must_when_free(is_busy).map(|_| ())
    }

    fn index(&self) -> &'static [&'static str] {
        &["/var/cache/dnf"]
    }
}

fn is_busy(said: &Said) -> bool {
    said.stderr.contains("waiting for process") || said.stderr.contains("transaction lock")
}

/// Reads the table of a transaction: headings at the left, then ` name arch version repository size` rows.
fn table(text: &str) -> Planned {
    let mut planned = Planned::default();
    let mut heading = "";
    for line in text.lines() {
        if !line.starts_with(' ') {
            heading = line.trim_end_matches(':');
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(name), Some(_), Some(version)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let (name, version) = (name.to_owned(), version.to_owned());
        match heading {
            "Installing" | "Installing dependencies" | "Installing weak dependencies" => {
                planned.installs.insert(name, version);
            }
            "Upgrading" | "Downgrading" => {
                planned.changes.insert(name, (String::new(), version));
            }
            "Removing" | "Removing dependent packages" | "Removing unused dependencies" => {
                planned.removes.insert(name, version);
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
    fn the_table_of_a_transaction_is_read() {
        let text = "Dependencies resolved.\n================\n Package  Arch   Version   Repository  Size\n================\nInstalling:\n nginx    x86_64 1:1.24-1  fedora      40 k\nInstalling dependencies:\n nginx-core x86_64 1:1.24-1 fedora    600 k\nRemoving dependent packages:\n foe      noarch 2-1       @System      1 k\n\nTransaction Summary\n================\n";
        let planned = table(text);
        assert_eq!(planned.installs.keys().collect::<Vec<_>>(), ["nginx", "nginx-core"]);
        assert_eq!(planned.installs["nginx"], "1:1.24-1");
        assert_eq!(planned.removes["foe"], "2-1");
    }
}
