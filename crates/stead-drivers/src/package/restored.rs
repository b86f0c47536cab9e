//! `package.restored`: packages as they were. The inverse of an installation that also changed versions.

use serde_json::Value;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::name::Request;
use super::present::{Seen, installed, predict};
use super::transaction::{Planned, Transaction};
use super::{PackageManager, WRITE, manager, need_root, requests};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "package.restored",
    summary: "Makes sure packages have the versions they had, and that those that came are gone.",
    params: &[
        ParamSpec::new("names", ParamKind::TextList, "Packages with their versions, `name=version`.")
            .required(),
        ParamSpec::new("absent", ParamKind::TextList, "Packages that are not installed.").required(),
        ParamSpec::new("purge", ParamKind::Bool, "Remove the configuration of those too; default: false.")
            .default(ParamDefault::Flag(false)),
    ],
    ..WRITE
};

pub(super) struct Restored;

impl Operation for Restored {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        Ok(Observed(serde_json::to_value(see(cx, &*manager(cx)?, params)?).unwrap_or_default()))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        Seen::of(seen).diff()
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
        Seen::of(before).inverse()
    }
}

fn see(cx: &OpContext, manager: &dyn PackageManager, params: &Params) -> Result<Seen, OpError> {
    let mut wanted = requests(manager, cx, &params.texts("names"))?;
    let absent = requests(manager, cx, &params.texts("absent"))?;
    if let Some(request) = wanted.iter().find(|request| request.version.is_none()) {
        return Err(OpError::invalid(format!("`{}` has no version to restore", request.name)));
    }
    wanted.extend(absent.into_iter().map(|request| Request { version: None, ..request }));
    let names: Vec<String> = wanted.iter().map(|request| request.name.clone()).collect();
    let mut has = installed(cx, manager, &names)?;
    let packages = wanted.into_iter().map(|request| {
        let installed = has.remove(&request.name).unwrap_or_default();
        (request.name, (installed, request.version))
    });
    let mut seen = Seen {
        manager: manager.name().to_owned(),
        packages: packages.collect(),
        planned: Planned::default(),
    };
    let transaction = transaction(&seen, params);
    if !transaction.install.is_empty() || !transaction.remove.is_empty() {
        seen.planned = manager.plan(&transaction)?;
        let unasked = seen.planned.unasked(&names);
        if !unasked.is_empty() {
            return Err(OpError::permanent(format!("that would also remove {}", unasked.join(", "))));
        }
    }
    Ok(seen)
}

fn transaction(seen: &Seen, params: &Params) -> Transaction {
    let differing = || seen.packages.iter().filter(|(_, (has, wanted))| has.version != *wanted);
    Transaction {
        install: differing()
            .filter_map(|(name, (_, wanted))| Some(Request::exactly(name, wanted.as_ref()?)))
            .collect(),
        remove: differing()
            .filter(|(_, (_, wanted))| wanted.is_none())
            .map(|(name, _)| name.clone())
            .collect(),
        purge: params.flag("purge", false),
        ..Transaction::default()
    }
}
