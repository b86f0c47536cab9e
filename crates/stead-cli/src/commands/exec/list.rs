//! `stead exec --list`: which hosts a target means. Reaches none.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stead_engine::target::{self, AdHoc, HostSet, TargetExpr};
use stead_model::inventory::{Host, Inventory, SOURCE_LABEL};
use stead_model::{ExitCode, HostName};

use crate::args::ExecArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json;

pub(super) fn run(
    args: &ExecArgs,
    inventory: &Inventory,
    limit: &[TargetExpr],
    output: &Output,
) -> Result<ExitCode, Failure> {
    let texts = if args.target.is_empty() { &["_all".to_owned()] } else { args.target.as_slice() };
    let exprs = texts.iter().map(|text| TargetExpr::parse(text)).collect::<Result<Vec<_>, _>>();
    let exprs = exprs.map_err(|error| Failure::target(vec![error]))?;
    let set = HostSet::from(inventory);
    let resolve = |exprs: &[TargetExpr]| target::resolve(exprs, &set, "").map_err(Failure::target);
    let mut found = resolve(&exprs)?;
    if !limit.is_empty() {
        let within: BTreeSet<HostName> = resolve(limit)?.into_iter().collect();
        found.retain(|host| within.contains(host));
    }
    for unmatched in exprs.iter().flat_map(|expr| expr.unmatched(&set)) {
        output
            .err
            .print_line(&format!("[warning] reach/no-match: `{unmatched}` matches no host of the inventory"));
    }
    let ad_hoc: Vec<&AdHoc> = exprs.iter().filter_map(TargetExpr::ad_hoc).collect();
    let hosts: Vec<(HostName, Host)> = found
        .into_iter()
        .filter_map(|name| {
            let own = || ad_hoc.iter().find(|host| host.name == name).map(|host| host.transport.clone());
            let host = inventory.get(name.as_str()).or_else(|| own().map(Host::reached_by))?;
            Some((name, host))
        })
        .collect();
    for (code, text) in hosts.iter().flat_map(|(_, host)| host.transport.warnings()) {
        output.err.print_line(&format!("[warning] {code}: {text}"));
    }
    if args.json {
        let hosts: Vec<Value> = hosts
            .iter()
            .map(|(name, host)| {
                json!({"name": name, "transport": host.transport.to_string(), "labels": host.labels,
                    "source": host.labels.get(SOURCE_LABEL)})
            })
            .collect();
        output.out.print(&json::document(&json!({"hosts": hosts})));
    } else {
        hosts.iter().for_each(|(name, host)| output.out.print_line(&line(name, host)));
    }
    Ok(ExitCode::Success)
}

fn line(name: &HostName, host: &Host) -> String {
    let labels = host.labels.iter().map(|(key, value)| format!(" {key}:{value}"));
    format!("{name} {}{}", host.transport, labels.collect::<String>())
}
