//! apt and dpkg.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stead_runner::operation::{OpContext, OpError};

use super::name::Request;
use super::transaction::{Planned, Transaction};
use super::{Available, Installed, PackageManager};
use crate::command::blocking::Said;
use crate::system::Tool;

/// apt on the whole machine or a root prefix.
pub(super) struct Apt<'a> {
    cx: &'a OpContext,
    /// The root prefix, free of links.
    root: Option<PathBuf>,
    aside: Option<Aside>,
}

/// An index of our own, removed when it is not needed any more.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        // A directory that stays in /tmp is a nuisance, not a failure of the operation.
        std::fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

impl<'a> Apt<'a> {
    pub(super) fn new(cx: &'a OpContext) -> Result<Self, OpError> {
        let root = cx.root.as_ref().map(|root| root.canonicalize()).transpose();
        let root = root.map_err(|error| OpError::io("root", &error))?;
        Ok(Self { cx, root, aside: None })
    }

    fn tool(&self, name: &'a str) -> Tool<'a> {
        let mut tool = Tool::new(self.cx, name)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("DEBIAN_PRIORITY", "critical")
            .env("APT_LISTCHANGES_FRONTEND", "none")
            .args(["-q", "-o", "APT::Color=0"]);
        if let Some(root) = &self.root {
            let root = root.display();
            for option in [
                format!("Dir={root}"),
                format!("Dir::State::status={root}/var/lib/dpkg/status"),
                format!("Dpkg::Options::=--root={root}"),
                // The prefix need not have apt's own account.
                "APT::Sandbox::User=root".to_owned(),
            ] {
                tool = tool.arg("-o").arg(option);
            }
        }
        if let Some(Aside(lists)) = &self.aside {
            for option in [
                format!("Dir::State::lists={}", lists.display()),
                "Dir::Cache::pkgcache=".to_owned(),
                "Dir::Cache::srcpkgcache=".to_owned(),
                "APT::Sandbox::User=root".to_owned(),
            ] {
                tool = tool.arg("-o").arg(option);
            }
        }
        tool
    }

    /// Configures what an interrupted dpkg has unpacked.
    fn finish_interrupted(&self) -> Result<(), OpError> {
        let mut dpkg = Tool::new(self.cx, "dpkg").env("DEBIAN_FRONTEND", "noninteractive");
        if let Some(root) = &self.root {
            dpkg = dpkg.arg(format!("--root={}", root.display()));
        }
        let configure = dpkg.args(["--force-confdef", "--force-confold", "--configure", "-a"]);
        configure.must_when_free(is_busy).map(|_| ())
    }

    /// Returns `apt-get` with the arguments of a transaction, and one more.
    fn transaction(&self, transaction: &Transaction, option: Option<&str>) -> Tool<'a> {
        let mut tool = self.tool("apt-get").arg("-y").args(option);
        if transaction.install.is_empty() {
            let verb = if transaction.purge { "purge" } else { "remove" };
            return tool.arg(verb).arg("--").args(&transaction.remove);
        }
        tool = tool.args([
            // A configuration file somebody changed is kept; one nobody changed gets the package's new one.
            "-o",
            "Dpkg::Options::=--force-confdef",
            "-o",
            "Dpkg::Options::=--force-confold",
        ]);
        if !transaction.recommends {
            tool = tool.arg("--no-install-recommends");
        }
        if transaction.install.iter().any(|request| request.version.is_some()) {
            tool = tool.arg("--allow-downgrades");
        }
        if transaction.purge {
            tool = tool.arg("--purge");
        }
        // In an installation, `name-` removes.
        let removes = transaction.remove.iter().map(|name| format!("{name}-"));
        tool.arg("install").arg("--").args(transaction.install.iter().map(argument)).args(removes)
    }
}

fn argument(request: &Request) -> String {
    match (&request.file, &request.version) {
        (Some(file), _) => file.to_string_lossy().into_owned(),
        (None, Some(version)) => format!("{}={version}", request.name),
        (None, None) => request.name.clone(),
    }
}

impl PackageManager for Apt<'_> {
    fn name(&self) -> &'static str {
        "apt"
    }

    fn installed(&self, names: &[String]) -> Result<BTreeMap<String, Installed>, OpError> {
        let mut query = Tool::new(self.cx, "dpkg-query");
        if let Some(root) = &self.root {
            query = query.arg(format!("--admindir={}/var/lib/dpkg", root.display()));
        }
        let format = "${Package}\\t${binary:Package}\\t${Architecture}\\t${db:Status-Status}\\t${Version}\\n";
        // Exits 1 if it does not know one of them, and lists the others.
        let said = query.args(["-W", "-f", format, "--"]).args(names).run()?;
        if !matches!(said.ended.exit_code, Some(0 | 1)) {
            return Err(OpError::operation(format!("`dpkg-query`: {}", said.describe())));
        }
        Ok(names.iter().map(|name| (name.clone(), installed(name, &said.stdout))).collect())
    }

    fn available(&self, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
        let said = self.tool("apt-cache").arg("policy").arg("--").args(names).must()?;
        Ok(policy(&said))
    }

    fn describe_file(&self, path: &Path) -> Result<(String, String), OpError> {
        let said =
            Tool::new(self.cx, "dpkg-deb").arg("-W").arg("--showformat=${Package}\\n${Version}\\n").arg(path);
        let said = said.must().map_err(|error| OpError::permanent(error.message))?;
        let mut lines = said.lines().map(str::to_owned);
        match (lines.next(), lines.next()) {
            (Some(name), Some(version)) if !name.is_empty() && !version.is_empty() => Ok((name, version)),
            _ => Err(OpError::permanent(format!("`{}` is not a Debian package", path.display()))),
        }
    }

    fn plan(&self, transaction: &Transaction) -> Result<Planned, OpError> {
        let said = self.transaction(transaction, Some("--simulate")).run()?;
        if !said.is_ok() {
            return Err(OpError::permanent(format!("apt cannot do it: {}", said.describe())));
        }
        Ok(simulation(&said.stdout))
    }

    fn commit(&self, transaction: &Transaction) -> Result<(), OpError> {
        // What was planned removes nothing; should that have changed since, apt stops.
        let option = transaction.remove.is_empty().then_some("--no-remove");
        let tool = self.transaction(transaction, option);
        match tool.must_when_free(is_busy) {
            // A transaction that was killed midway has to be finished before another can begin.
            Err(error) if error.message.contains("dpkg was interrupted") => {
                self.finish_interrupted()?;
                tool.must_when_free(is_busy).map(|_| ())
            }
            done => done.map(|_| ()),
        }
    }

    fn refresh(&self) -> Result<(), OpError> {
        self.tool("apt-get")
            .args(["-o", "APT::Update::Error-Mode=any", "update"])
            .must_when_free(is_busy)
            .map(|_| ())
    }

    fn refreshed_aside(&self) -> Result<Option<Box<dyn PackageManager + '_>>, OpError> {
        let made = Tool::new(self.cx, "mktemp").args(["-d", "--tmpdir", "stead-apt.XXXXXXXX"]).must()?;
        let aside = Aside(PathBuf::from(made.trim_end()));
        std::fs::create_dir(aside.0.join("partial"))
            .map_err(|error| OpError::io("an index aside", &error))?;
        let apt = Apt { cx: self.cx, root: self.root.clone(), aside: Some(aside) };
        apt.refresh()?;
        Ok(Some(Box::new(apt)))
    }

    fn index(&self) -> &'static [&'static str] {
        &["/var/lib/apt/lists"]
    }
}

/// Whether apt or dpkg failed because another one was at work.
fn is_busy(said: &Said) -> bool {
    [
        "Could not get lock",
        "Unable to acquire the dpkg frontend lock",
        "Unable to lock",
        "is locked by another process",
    ]
    .iter()
    .any(|text| said.stderr.contains(text))
}

/// Returns what `dpkg-query` says of `name`, which may have an architecture.
fn installed(name: &str, listing: &str) -> Installed {
    let mut found = Installed::default();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [package, binary, architecture, status, version] = fields[..] else { continue };
        let is_it = name == package || name == binary || name == format!("{package}:{architecture}");
        if !is_it {
            continue;
        }
        match status {
            "installed" | "triggers-awaited" | "triggers-pending" if !version.is_empty() => {
                return Installed { version: Some(version.to_owned()), residue: false };
            }
            "config-files" => found.residue = true,
            _ => {}
        }
    }
    found
}

/// Reads what `apt-cache policy` says.
fn policy(text: &str) -> BTreeMap<String, Available> {
    let mut found: BTreeMap<String, Available> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        match line.len() - trimmed.len() {
            0 => name = line.trim_end_matches(':').to_owned(),
            2 => {
                if let Some(candidate) = trimmed.strip_prefix("Candidate: ").filter(|it| *it != "(none)") {
                    let known = Available { candidate: candidate.to_owned(), versions: Vec::new() };
                    found.insert(name.clone(), known);
                }
            }
            // Sources are further to the right; ` *** ` marks the installed version.
            1 | 5 => {
                let version = trimmed.trim_start_matches("*** ").split_whitespace().next();
                if let (Some(version), Some(known)) = (version, found.get_mut(&name)) {
                    known.versions.push(version.to_owned());
                }
            }
            _ => {}
        }
    }
    found
}

/// Reads the actions of `apt-get --simulate`: `Inst NAME [OLD] (NEW …)`, `Remv NAME [OLD]`, `Purg NAME [OLD]`.
fn simulation(text: &str) -> Planned {
    let mut planned = Planned::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(verb), Some(name)) = (words.next(), words.next()) else { continue };
        let mut rest = words.peekable();
        let old =
            rest.next_if(|word| word.starts_with('[')).map(|word| word.trim_matches(['[', ']']).to_owned());
        let new = rest.next().map(|word| word.trim_matches(['(', ')']).to_owned());
        match (verb, old, new) {
            ("Inst", None, Some(new)) => {
                planned.installs.insert(name.to_owned(), new);
            }
            ("Inst", Some(old), Some(new)) => {
                planned.changes.insert(name.to_owned(), (old, new));
            }
            ("Remv" | "Purg", old, _) => {
                planned.removes.insert(name.to_owned(), old.unwrap_or_default());
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
    fn policies_are_read() {
        let text = "app:\n  Installed: 1.0\n  Candidate: 2.0\n  Version table:\n     2.0 500\n        500 file:/repo ./ Packages\n *** 1.0 100\n        100 /var/lib/dpkg/status\nvirtual:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
        let found = policy(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found["app"].candidate, "2.0");
        assert_eq!(found["app"].versions, ["2.0", "1.0"]);
    }

    #[test]
    fn simulations_are_read() {
        let text = "Reading package lists...\nRemv foe [1.0]\nInst liba (1.0 localhost [all])\nInst app [1.0] (2.0 localhost [all]) []\nPurg old [3]\nConf app (2.0 localhost [all])\n";
        let planned = simulation(text);
        assert_eq!(planned.installs, BTreeMap::from([("liba".to_owned(), "1.0".to_owned())]));
        assert_eq!(planned.changes["app"], ("1.0".to_owned(), "2.0".to_owned()));
        assert_eq!(planned.unasked(&["old".to_owned()]), ["foe"]);
    }

    #[test]
    fn states_are_read_by_name_and_architecture() {
        let listing = "app\tapp\tall\tinstalled\t1.0\nold\told:i386\ti386\tconfig-files\t2\nbad\tbad\tamd64\tunpacked\t3\n";
        assert_eq!(installed("app", listing).version.as_deref(), Some("1.0"));
        assert!(installed("old:i386", listing).residue);
        assert_eq!(installed("bad", listing), Installed::default());
        assert_eq!(installed("gone", listing), Installed::default());
    }
}
