//! What is seen of a node: its files, packages and services, as far as its spec manages them. Reads only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use stead_engine::compile::config::{NAG_HOOK, sudo_rule};
use stead_engine::expr::Scope;
use stead_engine::nodes::drift::{FAIL2BAN, has_sudo, removes_nag};
use stead_model::node::NodeState;
use stead_model::node::observed::{
    ObservedFail2ban, ObservedPve, ObservedSecurity, ObservedService, ObservedSsh, ObservedSudo, ObservedUser,
};
use stead_model::site::ResolvedSpec;
use stead_model::{HostName, TaskName};
use stead_runner::files::LocalFiles;
use stead_runner::operation::{Cancel, OpContext, OpError, Output, Predicted, UndoStore};

use crate::disk::seen::{Depth, Kind};
use crate::disk::{Disk, Last};
use crate::service::{Activity, Boot};
use crate::{network, package, service};

/// Returns what is seen of the node below `root` (none: this machine) of what `spec` manages.
///
/// # Errors
/// If something that is there cannot be read.
pub fn observe(spec: &ResolvedSpec, root: Option<&Path>) -> Result<NodeState, OpError> {
    let cx = context(root);
    let disk = Disk::open(&cx)?;
    let node = Node { cx: &cx, disk: &disk, spec };
    let users = node.users()?;
    let rules = node.sudo_rules()?;
    let hostname = node.hostname()?;
    Ok(NodeState {
        domain: match (&spec.identity.domain, &hostname) {
            (Some(_), Some(name)) => node.domain(name)?,
            (Some(_) | None, _) => None,
        },
        hostname,
        timezone: node.timezone()?,
        packages: node.packages()?,
        services: node.services()?,
        security: ObservedSecurity {
            fail2ban: ObservedFail2ban { enabled: node.fail2ban()? },
            ssh: node.ssh()?,
            sudo: has_sudo(spec).then(|| ObservedSudo {
                nopasswd: !rules.is_empty() && rules.values().all(|rule| rule.contains(" NOPASSWD: ")),
            }),
        },
        users: users
            .into_iter()
            .map(|(name, keys)| ObservedUser { sudo: rules.contains_key(&name), name, keys })
            .collect(),
        network: match &spec.network {
            Some(_) => network::observed::observe(&cx, &disk, &super::interface(root))?,
            None => None,
        },
        pve: match removes_nag(spec) {
            Some(_) => Some(ObservedPve { remove_subscription_nag: node.text(NAG_HOOK)?.is_some() }),
            None => None,
        },
    })
}

/// Returns what operations are given who are asked outside a run.
fn context(root: Option<&Path>) -> OpContext {
    let base_dir = PathBuf::from("/");
    OpContext {
        run_id: None,
        parents: Arc::default(),
        bundle: None,
        task: TaskName::parse("observe").expect("a word is a task's name"),
        host: HostName::local(),
        attempt: 1,
        files: Arc::new(LocalFiles { base_dir: base_dir.clone(), artifacts: None }),
        base_dir,
        undo: UndoStore::default(),
        root: root.map(Path::to_owned),
        hidden_env: Arc::from([]),
        grace: Duration::from_secs(10),
        deadline: None,
        restarted: None,
        predicted: Predicted::default(),
        output: Output::none(),
        cancel: Cancel::never(),
        scope: Arc::new(Scope::of_names(Map::new())),
    }
}

/// A node that is looked at.
struct Node<'a> {
    cx: &'a OpContext,
    disk: &'a Disk,
    spec: &'a ResolvedSpec,
}

impl Node<'_> {
    fn text(&self, path: &str) -> Result<Option<String>, OpError> {
        self.disk.text(Path::new(path))
    }

    fn hostname(&self) -> Result<Option<String>, OpError> {
        let text = self.text("/etc/hostname")?.unwrap_or_default();
        let is_name = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let written = text.lines().map(str::trim).find(is_name).map(str::to_owned);
        if self.cx.root.is_some() {
            return Ok(written);
        }
        // What runs counts, unless it is only not running yet.
        Ok(Some(rustix::system::uname().nodename().to_string_lossy().into_owned()))
    }

    /// Returns the domain of the node's own name in its table of hosts.
    fn domain(&self, hostname: &str) -> Result<Option<String>, OpError> {
        let text = self.text("/etc/hosts")?.unwrap_or_default();
        let own = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let own = own.filter_map(|line| line.trim_start().strip_prefix("127.0.1.1"));
        let mut names = own.flat_map(str::split_whitespace);
        Ok(names.find_map(|name| name.strip_prefix(hostname)?.strip_prefix('.').map(str::to_owned)))
    }

    fn timezone(&self) -> Result<Option<String>, OpError> {
        let spot = self.disk.locate(Path::new("/etc/localtime"), Last::Keep)?;
        let seen = self.disk.see(&spot, Depth::Attributes)?;
        let zone =
            seen.to.as_deref().and_then(|to| to.split_once("zoneinfo/")).map(|(_, zone)| zone.to_owned());
        match (seen.kind, zone) {
            (Kind::Symlink, Some(zone)) => Ok(Some(zone)),
            (Kind::File, _) => Ok(self.text("/etc/timezone")?.map(|text| text.trim().to_owned())),
            (Kind::Absent | Kind::Symlink | Kind::Directory | Kind::Other | Kind::Unknown, _) => Ok(None),
        }
    }

    fn packages(&self) -> Result<BTreeMap<String, bool>, OpError> {
        let wanted = &self.spec.platform.packages;
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let parts = |text: &String| match text.split_once('=') {
            Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
            None => (text.clone(), None),
        };
        let names: Vec<String> = wanted.iter().map(|text| parts(text).0).collect();
        let installed = match package::manager(self.cx) {
            Ok(manager) => manager.installed(&names)?,
            Err(error) if error.unsupported => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let is_there = |text: &String| {
            let (name, version) = parts(text);
            let found = installed.get(&name).and_then(|installed| installed.version.as_ref());
            found.is_some_and(|found| version.is_none_or(|version| *found == version))
        };
        Ok(wanted.iter().map(|text| (text.clone(), is_there(text))).collect())
    }

    /// Returns the keys of those of the spec's users that are there, by name.
    fn users(&self) -> Result<BTreeMap<String, Vec<String>>, OpError> {
        let passwd = self.text("/etc/passwd")?.unwrap_or_default();
        let mut users = BTreeMap::new();
        for user in &self.spec.access.users {
            let home = passwd.lines().find_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                let [name, _, _, _, _, home, _] = fields[..] else { return None };
                (name == user.name && home.starts_with('/')).then_some(home)
            });
            let Some(home) = home else { continue };
            let keys = self.text(&format!("{home}/.ssh/authorized_keys"))?.unwrap_or_default();
            let keys = keys.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
            users.insert(user.name.clone(), keys.collect());
        }
        Ok(users)
    }

    /// Returns the rules by which users of the spec may use sudo, by name.
    fn sudo_rules(&self) -> Result<BTreeMap<String, String>, OpError> {
        let mut rules = BTreeMap::new();
        for user in &self.spec.access.users {
            let text = self.text(&format!("/etc/sudoers.d/{}", sudo_rule(&user.name)))?.unwrap_or_default();
            if text.starts_with(&format!("{} ALL=(ALL) ", user.name)) && text.trim_end().ends_with("ALL") {
                rules.insert(user.name.clone(), text);
            }
        }
        Ok(rules)
    }

    fn services(&self) -> Result<BTreeMap<String, ObservedService>, OpError> {
        let services = &self.spec.platform.services;
        self.see_services(&[services.enable.as_slice(), services.disable.as_slice()].concat())
    }

    fn fail2ban(&self) -> Result<bool, OpError> {
        let seen = self.see_services(&[FAIL2BAN.to_owned()])?;
        Ok(seen.values().all(|service| service.enabled && service.active))
    }

    /// Returns the state of services; without anything that manages them none runs.
    fn see_services(&self, names: &[String]) -> Result<BTreeMap<String, ObservedService>, OpError> {
        let of = |unit: &service::Unit| ObservedService {
            enabled: unit.known && unit.boot == Boot::Enabled,
            active: unit.known && matches!(unit.active, Activity::Active | Activity::Activating),
        };
        let seen: Vec<ObservedService> = match service::manager(self.cx) {
            Ok(_) if names.is_empty() => Vec::new(),
            Ok(manager) => {
                let full: Vec<String> = names.iter().map(|name| manager.full_name(name)).collect();
                manager.see(&full)?.iter().map(of).collect()
            }
            Err(error) if error.unsupported => {
                vec![ObservedService::default(); names.len()]
            }
            Err(error) => return Err(error),
        };
        Ok(names.iter().cloned().zip(seen).collect())
    }

    /// Returns what Stead's drop-in says; other files cannot overrule it.
    fn ssh(&self) -> Result<ObservedSsh, OpError> {
        let text = self.text("/etc/ssh/sshd_config.d/10-stead.conf")?.unwrap_or_default();
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
        };
        Ok(ObservedSsh {
            password_authentication: value("PasswordAuthentication"),
            permit_root_login: value("PermitRootLogin"),
            port: value("Port").and_then(|port| port.parse().ok()),
        })
    }
}
