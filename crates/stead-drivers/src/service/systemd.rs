//! systemd, by `systemctl`: the running one, or the files of a root prefix.

use std::time::Duration;

use stead_runner::operation::{OpContext, OpError};

use super::{Activity, Boot, ServiceManager, Unit};
use crate::system::{Tool, has};

/// What a unit's name may end with.
const SUFFIXES: &[&str] = &[
    "service",
    "socket",
    "timer",
    "path",
    "target",
    "mount",
    "automount",
    "swap",
    "slice",
    "scope",
    "device",
];

/// systemd on the whole machine, or the units of a root prefix.
pub(crate) struct Systemd<'a> {
    pub(crate) cx: &'a OpContext,
}

impl<'a> Systemd<'a> {
    fn tool(&self) -> Tool<'a> {
        let tool = Tool::new(self.cx, "systemctl").env("SYSTEMD_PAGER", "").env("SYSTEMD_COLORS", "0");
        match &self.cx.root {
            Some(root) => tool.arg(format!("--root={}", root.display())),
            None => tool,
        }
    }

    fn command(&self, verb: &str, names: &[String]) -> Result<(), OpError> {
        self.tool().args([verb, "--no-ask-password", "--"]).args(names).must().map(|_| ())
    }

    /// Makes systemd read its unit files anew.
    pub(crate) fn reload_units(&self) -> Result<(), OpError> {
        self.tool().arg("daemon-reload").must().map(|_| ())
    }

    /// Returns the state of a unit below a root prefix, where nothing runs.
    fn see_files(&self, name: &str) -> Result<Unit, OpError> {
        let said = self.tool().args(["is-enabled", "--", name]).run()?;
        let state = said.stdout.trim();
        let known = !state.is_empty() && state != "not-found";
        if !known && !said.stderr.contains("No such file") && state != "not-found" {
            return Err(OpError::operation(format!("`systemctl`: {}", said.describe())));
        }
        Ok(Unit {
            name: name.to_owned(),
            known,
            masked: state == "masked",
            boot: boot(state),
            ..Unit::default()
        })
    }
}

impl ServiceManager for Systemd<'_> {
    fn full_name(&self, name: &str) -> String {
        let suffix = name.rsplit_once('.').map(|(_, suffix)| suffix);
        if suffix.is_some_and(|suffix| SUFFIXES.contains(&suffix)) {
            name.to_owned()
        } else {
            format!("{name}.service")
        }
    }

    fn see(&self, names: &[String]) -> Result<Vec<Unit>, OpError> {
        if self.cx.root.is_some() {
            return names.iter().map(|name| self.see_files(name)).collect();
        }
        let properties = "--property=LoadState,ActiveState,UnitFileState,CanReload,NeedDaemonReload,Job";
        // One at a time: an alias is answered under its own name, and nothing else tells the answers apart.
        names
            .iter()
            .map(|name| {
                let text = self.tool().args(["show", properties, "--", name]).must()?;
                let mut unit = unit(name, &text);
                if text.lines().any(|line| line == "UnitFileState=generated") {
                    // Made of a script of the old kind, or of a table: of the first only what starts those knows more.
                    let said = self.tool().args(["is-enabled", "--", name]).run()?;
                    unit.boot = boot(said.stdout.trim());
                }
                Ok(unit)
            })
            .collect()
    }

    fn start(&self, names: &[String]) -> Result<(), OpError> {
        self.tool().args(["start", "--no-block", "--no-ask-password", "--"]).args(names).must().map(|_| ())
    }

    fn stop(&self, names: &[String]) -> Result<(), OpError> {
        self.tool().args(["stop", "--no-block", "--no-ask-password", "--"]).args(names).must().map(|_| ())
    }

    fn enable(&self, names: &[String]) -> Result<(), OpError> {
        self.command("enable", names)
    }

    fn disable(&self, names: &[String]) -> Result<(), OpError> {
        self.command("disable", names)
    }

    fn restart(&self, name: &str) -> Result<(), OpError> {
        self.tool().args(["restart", "--no-block", "--no-ask-password", "--", name]).must().map(|_| ())
    }

    fn reload(&self, name: &str, limit: Duration) -> Result<(), OpError> {
        self.tool().args(["reload", "--no-ask-password", "--", name]).within(limit).must().map(|_| ())
    }

    fn log(&self, name: &str) -> String {
        if !has("journalctl") {
            return String::new();
        }
        let journal = Tool::new(self.cx, "journalctl").args([
            "--no-pager",
            "--output=cat",
            "--lines=20",
            "--unit",
            name,
        ]);
        journal.must().unwrap_or_default().trim_end().to_owned()
    }
}

/// Reads what `systemctl show` says of a unit.
fn unit(name: &str, text: &str) -> Unit {
    let value = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
    };
    let load = value("LoadState");
    let active = match value("ActiveState") {
        // A job that has not ended yet: what is there now does not count.
        _ if !matches!(value("Job"), "" | "0") => Activity::Activating,
        "active" | "reloading" | "refreshing" => Activity::Active,
        "activating" => Activity::Activating,
        "deactivating" => Activity::Deactivating,
        "failed" => Activity::Failed,
        _ => Activity::Inactive,
    };
    Unit {
        name: name.to_owned(),
        known: !matches!(load, "not-found" | ""),
        masked: load == "masked",
        active,
        boot: boot(value("UnitFileState")),
        can_reload: value("CanReload") == "yes",
        stale: value("NeedDaemonReload") == "yes",
    }
}

/// Returns what systemd's word for a unit file means at boot.
fn boot(state: &str) -> Boot {
    match state {
        "enabled" | "alias" | "generated" | "indirect" => Boot::Enabled,
        "static" => Boot::Static,
        // Also `enabled-runtime`: it is gone after a boot.
        _ => Boot::Disabled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read() {
        let text = "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nCanReload=yes\n";
        let expected = Unit {
            name: "a.service".to_owned(),
            known: true,
            masked: false,
            active: Activity::Active,
            boot: Boot::Enabled,
            can_reload: true,
            stale: false,
        };
        assert_eq!(unit("a.service", text), expected);
        assert!(unit("a.service", &format!("{text}NeedDaemonReload=yes\n")).stale);
        assert_eq!(unit("a.service", &format!("{text}Job=77\n")).active, Activity::Activating);
        assert!(!unit("b.service", "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n").known);
        assert!(unit("c.service", "LoadState=masked\nActiveState=inactive\nUnitFileState=masked\n").masked);
    }
}
