//! A resolved spec as a plan for the machine it is applied on: what `stead config apply` runs.
//!
//! One task after the other, in the order in which later ones stand on earlier ones: identity, network, packages, time
//! zone, users, security, services, `config`. A task is named by what it is about in
//! [`NodeState`](stead_model::node::NodeState): `users.ops.keys`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use stead_model::diagnostic::Place;
use stead_model::plan::{
    Action, Digest, OnError, OnlyIfChanged, Op, Param, Part, Plan, Section, Settings, Task, TaskIndex,
};
use stead_model::site::ResolvedSpec;
use stead_model::site::address::NodeAddress;
use stead_model::site::resolve::{ResolvedNetwork, ResolvedUser};
use stead_model::{Diagnostic, Diagnostics, OperationName, PlanName, TaskName};

use super::{Catalogue, CompiledPlan, Explicit, check};
use crate::nodes::drift::{FAIL2BAN, disables_fail2ban, has_sudo, removes_nag, timezone, wants_fail2ban};

/// The name of the plan.
pub const NAME: &str = "config";
/// Where accounts are looked for that may log in: their own keys, and those of the driver, which lie apart so that no
/// spec takes them away.
pub const AUTHORIZED_KEYS: &str = ".ssh/authorized_keys /etc/stead/keys/%u";
/// What tells fail2ban which port to watch.
pub const JAIL: &str = "/etc/fail2ban/jail.d/stead.local";
/// What takes the question for a subscription out of Proxmox whenever packages have changed.
pub const NAG_HOOK: &str = "/etc/apt/apt.conf.d/86-stead-no-subscription-nag";
const NAG_HOOK_TEXT: &str = "DPkg::Post-Invoke { \"f=/usr/share/javascript/proxmox-widget-toolkit/proxmoxlib.js; \
    [ ! -f $f ] || sed -i 's/res === null || res === undefined || !res || res.data.status.toLowerCase() !== .active./false/' $f || true\"; };\n";

/// What of the machine a plan depends on.
#[derive(Clone, Debug, Default)]
pub struct ConfigSurroundings {
    /// The network interface that the spec's address is for.
    pub interface: String,
    /// Packages whose programs are not there: `sudo`, `openssh-server`.
    pub missing: Vec<&'static str>,
    /// Whether services really run there, so that one can be restarted; in a sandbox none does.
    pub restarts: bool,
}

/// Returns the name of the file in `/etc/sudoers.d` that is a user's.
pub fn sudo_rule(user: &str) -> String {
    format!("stead-{user}")
}

/// Returns the plan that makes the machine what `spec` wants.
///
/// # Errors
/// If the spec holds what an operation refuses, such as a malformed name, or contradicts its posture: one task would undo
/// what another did, at every apply.
pub fn config(
    spec: &ResolvedSpec,
    around: &ConfigSurroundings,
    catalogue: &Catalogue,
) -> Result<CompiledPlan, Diagnostics> {
    if wants_fail2ban(spec) && disables_fail2ban(&spec.platform.services.disable) {
        let message = format!("the posture `{}` runs fail2ban, which the spec disables", spec.access.posture);
        let place = Place::Named(format!("spec {}", spec.spec));
        let help = "take `fail2ban` out of `platform.services.disable`, or name another posture";
        let problem = Diagnostic::error("node/conflict", place, message).path("platform.services.disable");
        return Err(Diagnostics(vec![problem.help(help)]));
    }
    let mut plan = Plan::new(PlanName::parse(NAME).expect("a word is a plan's name"));
    plan.lock = false;
    let settings = Arc::new(Settings {
        target: vec!["local".to_owned()],
        on_error: OnError::StopAll,
        ..Settings::default()
    });
    for (name, operation, params) in items(spec, around) {
        let before = plan.tasks.last().map(|task: &Task| task.name.clone());
        plan.tasks.push(Task {
            name: TaskName::parse(&name).expect("paths of states are names of tasks"),
            section: Section::Main,
            depends_on: before.into_iter().collect(),
            action: Action::Op(Arc::new(part(operation, params))),
            settings: Arc::clone(&settings),
            item: None,
            hash: Digest::default(),
        });
    }
    if around.restarts && wants_fail2ban(spec) {
        plan.tasks.push(restart_of_fail2ban(&settings));
    }
    let names: Vec<String> = plan.tasks.iter().map(|task| task.name.to_string()).collect();
    let locate = |task: TaskIndex, _: &str| {
        let item = names.get(task.get()).map_or(NAME, String::as_str);
        Place::Named(format!("{item} of spec {}", spec.spec))
    };
    check(plan, &Explicit::default(), catalogue, &locate, Diagnostics::default())
}

/// Returns the task that has fail2ban read its jail again, if that is another one now: it reads it when it starts.
fn restart_of_fail2ban(settings: &Settings) -> Task {
    let named = |name: &str| TaskName::parse(name).expect("only names of tasks are written here");
    Task {
        name: named("security.fail2ban.restart"),
        section: Section::Main,
        depends_on: [named("security.fail2ban.jail"), named("security.fail2ban.run")].into(),
        action: Action::Op(Arc::new(part("service.restarted", json!({"name": FAIL2BAN})))),
        settings: Arc::new(Settings { only_if_changed: OnlyIfChanged::Any, ..settings.clone() }),
        item: None,
        hash: Digest::default(),
    }
}

/// A task: what it is about, its operation and parameters.
type Item = (String, &'static str, Value);

fn part(operation: &str, params: Value) -> Part {
    let Value::Object(params) = params else { unreachable!("parameters are written as objects here") };
    let params: BTreeMap<String, Param> =
        params.into_iter().map(|(name, value)| (name, Param::Value(value))).collect();
    let operation = OperationName::parse(operation).expect("only names of operations are written here");
    Part {
        name: None,
        op: Op { operation, params },
        when_host: Vec::new(),
        changed_when: None,
        failed_when: None,
    }
}

fn items(spec: &ResolvedSpec, around: &ConfigSurroundings) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut add = |name: &str, operation: &'static str, params: Value| {
        items.push((name.to_owned(), operation, params));
    };
    let mut hostname = json!({"name": spec.identity.hostname});
    if let Some(domain) = &spec.identity.domain {
        hostname["domain"] = json!(domain);
    }
    add("hostname", "hostname", hostname);
    if let Some(network) = &spec.network {
        add("network", "network.interface", interface(network, &around.interface));
        if !network.dns.is_empty() {
            add("network.dns", "dns.servers", json!({"servers": network.dns}));
        }
    }
    if !spec.platform.packages.is_empty() {
        add("packages", "package.present", json!({"names": spec.platform.packages}));
    }
    if let Some(zone) = timezone(spec) {
        add("timezone", "timezone", json!({"zone": zone}));
    }
    for user in &spec.access.users {
        add(&format!("users.{}", user.name), "user.present", json!({"name": user.name}));
        let keys = json!({"user": user.name, "keys": user.ssh_keys, "exclusive": true});
        add(&format!("users.{}.keys", user.name), "ssh.authorized_key", keys);
    }
    items.extend(security(spec, around));
    items.extend(services(&spec.platform.services.enable, true));
    items.extend(services(&spec.platform.services.disable, false));
    if let Some(remove) = removes_nag(spec) {
        let name = "pve.remove_subscription_nag".to_owned();
        items.push(if remove {
            (
                name,
                "file.present",
                json!({"path": NAG_HOOK, "content": NAG_HOOK_TEXT, "mode": "0644", "parents": true}),
            )
        } else {
            (name, "file.absent", json!({"path": NAG_HOOK}))
        });
    }
    items
}

fn interface(network: &ResolvedNetwork, name: &str) -> Value {
    let mut params = json!({"name": name, "dns": network.dns, "confirm": "60s"});
    match network.ip {
        NodeAddress::Dhcp => params["dhcp4"] = json!(true),
        NodeAddress::Static(cidr) => {
            params["addresses"] = json!([cidr.to_string()]);
            if let Some(gateway) = network.gateway {
                let key = if gateway.is_ipv4() { "gateway4" } else { "gateway6" };
                params[key] = json!(gateway);
            }
        }
    }
    params
}

fn security(spec: &ResolvedSpec, around: &ConfigSurroundings) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let security = &spec.access.security;
    let package = |item: &str, name: &str| -> Option<Item> {
        let is_missing = around.missing.contains(&name);
        let item = (format!("security.{item}.package"), "package.present", json!({"names": [name]}));
        is_missing.then_some(item)
    };
    items.extend(package("ssh", "openssh-server"));
    let settings = json!({"settings": {
        "AuthorizedKeysFile": AUTHORIZED_KEYS,
        "PasswordAuthentication": security.ssh.password_authentication,
        "PermitRootLogin": security.ssh.permit_root_login,
        "Port": security.ssh.port,
    }});
    items.push(("security.ssh".to_owned(), "ssh.daemon", settings));
    if has_sudo(spec) {
        items.extend(package("sudo", "sudo"));
    }
    let mut add =
        |name: String, operation: &'static str, params: Value| items.push((name, operation, params));
    for user in &spec.access.users {
        add(format!("users.{}.sudo", user.name), "sudo.rule", sudo(user, security.sudo.nopasswd));
    }
    if wants_fail2ban(spec) {
        let jail = format!("[sshd]\nenabled = true\nport = {}\n", security.ssh.port);
        let file = json!({"path": JAIL, "content": jail, "mode": "0644", "parents": true});
        // Before the package: it starts the service at once.
        add("security.fail2ban.jail".to_owned(), "file.present", file);
        add("security.fail2ban.package".to_owned(), "package.present", json!({"names": [FAIL2BAN]}));
    }
    let (boot, run) = boot_and_run(wants_fail2ban(spec));
    add("security.fail2ban.boot".to_owned(), boot, json!({"name": FAIL2BAN}));
    add("security.fail2ban.run".to_owned(), run, json!({"name": FAIL2BAN}));
    items
}

fn sudo(user: &ResolvedUser, nopasswd: bool) -> Value {
    let name = sudo_rule(&user.name);
    if user.sudo {
        json!({"name": name, "user": user.name, "nopasswd": nopasswd})
    } else {
        json!({"name": name, "state": "absent"})
    }
}

fn services(names: &[String], runs: bool) -> Vec<Item> {
    if names.is_empty() {
        return Vec::new();
    }
    let (boot, run) = boot_and_run(runs);
    let word = if runs { "enable" } else { "disable" };
    vec![
        (format!("services.{word}.boot"), boot, json!({"names": names})),
        (format!("services.{word}.run"), run, json!({"names": names})),
    ]
}

fn boot_and_run(runs: bool) -> (&'static str, &'static str) {
    if runs { ("service.enabled", "service.started") } else { ("service.disabled", "service.stopped") }
}

/// Whether the task `task` of the plan is about what `path` of a state says.
pub fn is_about(task: &str, path: &str) -> bool {
    let subject = |name: &str| {
        let mut parts = name.split('.');
        let first = parts.next().map(str::to_owned);
        let second = parts.next().filter(|_| first.as_deref() == Some("users")).map(str::to_owned);
        (first, second)
    };
    subject(task) == subject(path)
        || (task == "hostname" && path == "domain")
        || (task.ends_with(".sudo") && path.starts_with("security.sudo"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(nopasswd: bool) -> ResolvedSpec {
        serde_json::from_value(json!({
            "access": {"posture": "prod", "security": {"fail2ban": {"enabled": true},
                "ssh": {"password_authentication": "no", "permit_root_login": "no", "port": 2222},
                "sudo": {"nopasswd": nopasswd}},
                "users": [{"name": "ops", "ssh_keys": [], "sudo": true}, {"name": "ann", "ssh_keys": [], "sudo": false}]},
            "config": {"timezone": "UTC", "pve": {"remove_subscription_nag": true}},
            "identity": {"domain": "lab.example", "hostname": "edge"},
            "network": {"dns": ["10.0.0.1"], "gateway": "10.0.0.1", "ip": "10.0.0.5/24"}, "node": "edge",
            "platform": {"packages": ["htop"], "services": {"disable": ["rpcbind"], "enable": ["cron"]}},
            "run": {"trigger": "manual"}, "schema_version": 1, "spec": "base",
        }))
        .unwrap()
    }

    /// Section 5: the order of an apply.
    #[test]
    fn what_stands_on_something_comes_after_it() {
        let around = ConfigSurroundings {
            interface: "eth0".to_owned(),
            missing: vec!["sudo"],
            ..ConfigSurroundings::default()
        };
        let names: Vec<String> = items(&spec(true), &around).into_iter().map(|(name, _, _)| name).collect();
        assert_eq!(
            names,
            [
                "hostname",
                "network",
                "network.dns",
                "packages",
                "timezone",
                "users.ops",
                "users.ops.keys",
                "users.ann",
                "users.ann.keys",
                "security.ssh",
                "security.sudo.package",
                "users.ops.sudo",
                "users.ann.sudo",
                "security.fail2ban.jail",
                "security.fail2ban.package",
                "security.fail2ban.boot",
                "security.fail2ban.run",
                "services.enable.boot",
                "services.enable.run",
                "services.disable.boot",
                "services.disable.run",
                "pve.remove_subscription_nag",
            ]
        );
        assert!(names.iter().all(|name| TaskName::parse(name).is_ok()));
    }

    /// Section 2: a network through which nobody is reached is put back after a minute, whichever way it is given.
    #[test]
    fn a_change_of_the_network_has_a_minute_to_prove_itself() {
        for ip in ["dhcp", "10.0.0.5/24"] {
            let mut spec = spec(true);
            let network = json!({"ip": ip, "gateway": "10.0.0.1", "dns": []});
            spec.network = Some(serde_json::from_value(network).unwrap());
            let all = items(&spec, &ConfigSurroundings::default());
            let (_, operation, params) = all.iter().find(|(name, _, _)| name == "network").unwrap();
            assert_eq!((*operation, &params["confirm"]), ("network.interface", &json!("60s")), "{ip}");
        }
    }

    /// A spec that was fetched, or written by another, is refused where it would be applied, not only where it is written.
    #[test]
    fn a_spec_that_contradicts_its_posture_is_refused() {
        let refused = |disabled: &str, by_posture: bool| {
            let mut spec = spec(true);
            spec.access.security.fail2ban.enabled = by_posture;
            spec.platform.services.disable = vec!["rpcbind".to_owned(), disabled.to_owned()];
            let none = Catalogue::new(Vec::new());
            let problems = config(&spec, &ConfigSurroundings::default(), &none).err().unwrap_or_default();
            problems.iter().any(|problem| problem.code == "node/conflict")
        };
        assert!(refused("fail2ban", true) && refused("fail2ban.service", true));
        assert!(!refused("fail2ban", false) && !refused("cups", true));
    }

    #[test]
    fn a_user_without_sudo_has_no_rule() {
        let find = |nopasswd: bool, task: &str| {
            let all = items(&spec(nopasswd), &ConfigSurroundings::default());
            all.into_iter().find(|(name, _, _)| name == task).map(|(_, _, params)| params)
        };
        let rule = json!({"name": "stead-ops", "user": "ops", "nopasswd": false});
        assert_eq!(find(false, "users.ops.sudo"), Some(rule));
        assert_eq!(find(true, "users.ann.sudo"), Some(json!({"name": "stead-ann", "state": "absent"})));
    }

    #[test]
    fn a_task_is_about_what_it_is_named_by() {
        for (task, path) in [
            ("users.ops.keys", "users.ops"),
            ("packages", "packages.htop"),
            ("services.enable.run", "services.cron.active"),
            ("hostname", "domain"),
            ("users.ops.sudo", "security.sudo.nopasswd"),
        ] {
            assert!(is_about(task, path), "{task} {path}");
        }
        assert!(!is_about("users.ops.keys", "users.ann.keys"));
        assert!(!is_about("packages", "timezone"));
    }
}
