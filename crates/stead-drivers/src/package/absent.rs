//! `package.absent`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::present::{Seen, installed, predict};
use super::transaction::{Planned, Transaction};
use super::{BARE_NAMES, PackageManager, WRITE, manager, need_root, requests};
use crate::system::{field, op};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "package.absent",
    summary: "Makes sure packages are not installed; one that others need is refused.",
    params: &[
        BARE_NAMES,
        ParamSpec::new("purge", ParamKind::Bool, "Remove their configuration files too; default: false.")
            .default(ParamDefault::Flag(false)),
        ParamSpec::new("cascade", ParamKind::Bool, "Remove the packages that need them too; default: false.")
            .default(ParamDefault::Flag(false)),
    ],
    ..WRITE
};

pub(super) struct Absent;

impl Operation for Absent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        Ok(Observed(serde_json::to_value(see(cx, &*manager(cx)?, params)?).unwrap_or_default()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let seen = Seen::of(seen);
        let mut diff = seen.diff();
        if params.flag("purge", false) {
            let left = seen.packages.iter().filter(|(_, (has, _))| has.residue);
            diff.fields.extend(left.map(|(name, _)| field(name, "configuration", Value::Null)));
        }
        diff
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, seen: &Observed) -> Option<Value> {
        Seen::of(seen).applied().data
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root(&*manager(cx)?, DESCRIPTOR.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let manager = manager(cx)?;
        let seen = see(cx, &*manager, params)?;
        manager.commit(&transaction(&seen, params))?;
        Ok(seen.applied())
    }

    fn predict(&self, cx: &OpContext, _params: &Params, diff: &Diff) {
        predict(cx, diff);
    }

    fn inverse(&self, _params: &Params, before: &Observed) -> Option<Op> {
        let seen = Seen::of(before);
        let versioned = |(name, version): (&String, &String)| match seen.manager.as_str() {
            // These install the newest only.
            "pacman" | "brew" => name.clone(),
            _ => format!("{name}={version}"),
        };
        let names: Vec<String> = seen.planned.removes.iter().map(versioned).collect();
        // Configuration alone cannot be brought back.
        if names.is_empty() { None } else { op("package.present", [("names", json!(names))]) }
    }
}

fn see(cx: &OpContext, manager: &dyn PackageManager, params: &Params) -> Result<Seen, OpError> {
    let requests = requests(manager, cx, &params.texts("names"))?;
    if let Some(request) = requests.iter().find(|request| request.version.is_some()) {
        return Err(OpError::invalid(format!(
            "`{}`: a package to be absent is named without version",
            request.name
        )));
    }
    let names: Vec<String> = requests.into_iter().map(|request| request.name).collect();
    let packages: BTreeMap<_, _> =
        installed(cx, manager, &names)?.into_iter().map(|(name, has)| (name, (has, None))).collect();
    let mut seen = Seen { manager: manager.name().to_owned(), packages, planned: Planned::default() };
    let transaction = transaction(&seen, params);
    if !transaction.remove.is_empty() {
        seen.planned = manager.plan(&transaction)?;
        let unasked = seen.planned.unasked(&names);
        if !unasked.is_empty() && !transaction.cascade {
            return Err(OpError::permanent(format!(
                "removing {} would also remove {}; `cascade: true` removes them too",
                transaction.remove.join(", "),
                unasked.join(", ")
            )));
        }
        // Residue is purged, not removed.
        let packages = &seen.packages;
        seen.planned
            .removes
            .retain(|name, _| packages.get(name).is_none_or(|(has, _)| has.version.is_some()));
    }
    Ok(seen)
}

fn transaction(seen: &Seen, params: &Params) -> Transaction {
    let purge = params.flag("purge", false);
    let remove = seen.packages.iter().filter(|(_, (has, _))| has.version.is_some() || purge && has.residue);
    Transaction {
        remove: remove.map(|(name, _)| name.clone()).collect(),
        purge,
        cascade: params.flag("cascade", false),
        ..Transaction::default()
    }
}
