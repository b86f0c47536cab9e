//! `stead doctor`: whether this machine, a driver on it, and targets have what is needed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stead_drivers::doctor::{self, Check, CheckStatus, MachineDriverName, Programs, Target};
use stead_drivers::transport::Transports;
use stead_engine::target::{self, HostSet, TargetExpr};
use stead_model::inventory::Host;
use stead_model::{ExitCode, HostName};
use tokio::task::JoinSet;

use crate::args::{DoctorArgs, Driver, InventoryArgs};
use crate::commands::plan::source;
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Style};
use crate::render::{json, one_line};
use crate::settings::Settings;

/// How long one target may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(args: &DoctorArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let programs = Programs { path: settings.environment.get("PATH") };
    let mut checks = doctor::state_directory(&settings.state_dir.path);
    match args.driver {
        None => checks.extend(doctor::programs(&programs)),
        Some(driver) => checks.extend(reach::block_on(doctor::driver(name(driver), &programs))?),
    }
    if let Some(text) = &args.target {
        let hosts = hosts(text, args, settings)?;
        let transports = Arc::new(reach::transports(settings, output));
        let settings = Arc::new(settings.clone());
        checks.extend(reach::block_on(look_at(hosts, transports, settings))?);
    }
    let ok = checks.iter().all(|check| check.status != CheckStatus::Fail);
    if args.json {
        output.out.print(&json::document(&json!({"ok": ok, "checks": checks})));
    } else {
        checks.iter().for_each(|check| output.out.print(&to_text(check, settings)));
    }
    Ok(if ok { ExitCode::Success } else { ExitCode::Failed })
}

fn name(driver: Driver) -> MachineDriverName {
    match driver {
        Driver::Sandbox => MachineDriverName::Sandbox,
        Driver::Oci => MachineDriverName::Oci,
        Driver::Qemu => MachineDriverName::Qemu,
        Driver::CloudHypervisor => MachineDriverName::CloudHypervisor,
        Driver::Proxmox => MachineDriverName::Proxmox,
    }
}

/// Returns the hosts that a target expression means.
fn hosts(text: &str, args: &DoctorArgs, settings: &Settings) -> Result<Vec<(HostName, Host)>, Failure> {
    let from = InventoryArgs { inventory: args.inventory.clone(), ..InventoryArgs::default() };
    let inventory = source::inventory(&from, &settings.current_dir, settings)?.inventory;
    let expr = TargetExpr::parse(text).map_err(|error| Failure::target(vec![error]))?;
    let found = target::resolve(std::slice::from_ref(&expr), &HostSet::from(&inventory), "");
    let found = found.map_err(Failure::target)?;
    if found.is_empty() {
        let message = format!("`{text}` matches no host of the inventory");
        return Err(Failure::new(FailureKind::Invalid, message).code("reach/no-match"));
    }
    let ad_hoc = || expr.ad_hoc().map(|host| Host::reached_by(host.transport.clone()));
    let host = |name: HostName| {
        let host = inventory.get(name.as_str()).or_else(ad_hoc)?;
        Some((name, host))
    };
    Ok(found.into_iter().filter_map(host).collect())
}

/// Looks at all hosts at once; their checks come in the order of the hosts.
async fn look_at(
    hosts: Vec<(HostName, Host)>,
    transports: Arc<Transports>,
    settings: Arc<Settings>,
) -> Vec<Check> {
    let mut looking = JoinSet::new();
    for (i, (name, host)) in hosts.into_iter().enumerate() {
        let (transports, settings) = (Arc::clone(&transports), Arc::clone(&settings));
        looking.spawn(async move {
            let checks = look(&host, &transports, &settings).await;
            let named =
                checks.into_iter().map(|check| Check { name: format!("{name}/{}", check.name), ..check });
            (i, named.collect::<Vec<_>>())
        });
    }
    let mut found = looking.join_all().await;
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().flat_map(|(_, checks)| checks).collect()
}

async fn look(host: &Host, transports: &Transports, settings: &Settings) -> Vec<Check> {
    let password = match host.account_password().map(|source| transports.secret(source)) {
        None => None,
        Some(Ok(password)) => Some(password),
        Some(Err(why)) => {
            return vec![Check::fail("become", why, "correct `become_password` of the host")];
        }
    };
    let target = Target {
        transport: &host.transport,
        workdir: host.workdir.as_deref(),
        account: host.account().map(|account| (account, password)),
        sha256: reach::own_sha256(),
        has_binary: &|name| reach::has_binary(name, settings),
        patience: PATIENCE,
    };
    doctor::target(transports, &target).await
}

fn to_text(check: &Check, settings: &Settings) -> String {
    let (word, style) = match check.status {
        CheckStatus::Pass => ("[PASS]", Style::Good),
        CheckStatus::Fail => ("[FAIL]", Style::Bad),
        CheckStatus::Skip => ("[SKIP]", Style::Dim),
    };
    let word = settings.stdout_paint.apply(style, word);
    let fix = check.fix.as_ref().map_or_else(String::new, |fix| format!("       fix: {}\n", one_line(fix)));
    format!("{word} {}: {}\n{fix}", check.name, one_line(&check.detail))
}
