//! `package.present` and `package.latest`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::name::Request;
use super::transaction::{Planned, Transaction};
use super::{Available, BARE_NAMES, Installed, NAMES, PackageManager, WRITE, manager, need_root, requests};
use crate::system::{field, op};

const REFRESH: ParamSpec = ParamSpec::new(
    "refresh",
    ParamKind::Enum(&["auto", "always", "never"]),
    "Fetch the index anew: `auto` (default) if it does not know a name or version, `always` or `never`.",
)
.default(ParamDefault::Text("auto"));
const RECOMMENDS: ParamSpec =
    ParamSpec::new("recommends", ParamKind::Bool, "Install recommended packages too; default: false.")
        .default(ParamDefault::Flag(false));

static PRESENT: Descriptor = Descriptor {
    name: "package.present",
    summary: "Makes sure packages are installed, in one transaction; other installed packages are never removed.",
    params: &[NAMES, REFRESH, RECOMMENDS],
    ..WRITE
};

static LATEST: Descriptor = Descriptor {
    name: "package.latest",
    summary: "Makes sure packages are installed in the newest version of the index, in one transaction.",
    params: &[BARE_NAMES, REFRESH, RECOMMENDS],
    ..WRITE
};

/// Stands for a version that only a refreshed index can tell.
const NEWEST: &str = "newest";

/// What is there, what should be, and what it takes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) manager: String,
    /// By name: what is installed, and the version that should be.
    pub(super) packages: BTreeMap<String, (Installed, Option<String>)>,
    /// What the manager would do about it.
    pub(super) planned: Planned,
}

impl Seen {
    pub(super) fn of(observed: &Observed) -> Self {
        serde_json::from_value(observed.0.clone()).unwrap_or_default()
    }

    /// Returns every package that would be different.
    pub(super) fn diff(&self) -> Diff {
        let mut rows: BTreeMap<&str, (Value, Value)> = BTreeMap::new();
        for (name, version) in &self.planned.installs {
            rows.insert(name, (Value::Null, version.as_str().into()));
        }
        for (name, (before, after)) in &self.planned.changes {
            rows.insert(name, (before.as_str().into(), after.as_str().into()));
        }
        for (name, version) in &self.planned.removes {
            rows.insert(name, (version.as_str().into(), Value::Null));
        }
        for (name, (has, wanted)) in &self.packages {
            if has.version != *wanted {
                rows.insert(name, (json!(has.version), json!(wanted)));
            } else {
                rows.remove(name.as_str());
            }
        }
        if self.packages.values().all(|(has, wanted)| has.version == *wanted) {
            rows.clear();
        }
        let fields = rows.into_iter().map(|(name, (before, after))| field(name, before, after));
        Diff { fields: fields.collect(), text: None }
    }

    /// Returns the operation that takes back what was planned.
    pub(super) fn inverse(&self) -> Option<Op> {
        let absent: Vec<&String> = self.planned.installs.keys().collect();
        // What was left of a package that had been removed before is not to be purged now.
        let purge = self.packages.values().all(|(has, _)| !has.residue);
        if self.planned.changes.is_empty() && self.planned.removes.is_empty() {
            return op("package.absent", [("names", json!(absent)), ("purge", purge.into())]);
        }
        let before = self.planned.changes.iter().map(|(name, (before, _))| (name, before));
        let present: Vec<String> =
            before.chain(&self.planned.removes).map(|(name, version)| format!("{name}={version}")).collect();
        op(
            "package.restored",
            [("names", json!(present)), ("absent", json!(absent)), ("purge", purge.into())],
        )
    }

    /// Returns the operation's result.
    pub(super) fn applied(&self) -> Applied {
        let upgraded: BTreeMap<_, _> =
            self.planned.changes.iter().map(|(name, (before, _))| (name, before)).collect();
        let data = json!({"manager": self.manager, "installed": self.planned.installs, "upgraded": upgraded,
            "removed": self.planned.removes});
        Applied { data: Some(data), notes: Vec::new() }
    }
}

/// Records what would be installed.
pub(super) fn predict(cx: &OpContext, diff: &Diff) {
    for field in &diff.fields {
        cx.predicted.set(resource(&field.name), json!({"version": field.after, "residue": false}));
    }
}

fn resource(name: &str) -> String {
    format!("package:{name}")
}

/// Returns what is installed, seen through what a dry run has predicted.
pub(super) fn installed(
    cx: &OpContext,
    manager: &dyn PackageManager,
    names: &[String],
) -> Result<BTreeMap<String, Installed>, OpError> {
    let mut found = manager.installed(names)?;
    for (name, has) in &mut found {
        let predicted =
            cx.predicted.get(&resource(name)).and_then(|state| serde_json::from_value(state).ok());
        *has = predicted.unwrap_or_else(|| has.clone());
    }
    Ok(found)
}

/// Whether any version will do, or the newest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Any,
    Newest,
}

fn see(cx: &OpContext, params: &Params, which: Which, refresh: &str) -> Result<Seen, OpError> {
    let manager = manager(cx)?;
    let requests = requests(&*manager, cx, &params.texts("names"))?;
    let has = installed(cx, &*manager, &names(&requests))?;
    if let Some(request) = requests.iter().find(|request| request.version.is_some() && which == Which::Newest)
    {
        return Err(OpError::invalid(format!(
            "`{}` is pinned; package.latest wants the newest",
            request.name
        )));
    }
    let open = open(&requests, &has, which);
    let asked = asked(&open);
    let aside = if refresh == "always" && !asked.is_empty() { manager.refreshed_aside()? } else { None };
    let mut index = lookup(aside.as_deref().unwrap_or(&*manager), &asked)?;
    let mut fresh = aside;
    let mut problem = unknown(&open, &index);
    if problem.is_some() && refresh == "auto" && fresh.is_none() {
        fresh = manager.refreshed_aside()?;
        if let Some(fresh) = &fresh {
            index = lookup(&**fresh, &asked)?;
            problem = unknown(&open, &index);
        }
    }
    if let Some(problem) = problem.clone() {
        // Where the index cannot be refreshed aside, the run finds out.
        if fresh.is_some() || refresh == "never" {
            return Err(not_there(cx, problem));
        }
    }
    let mut packages = BTreeMap::new();
    for request in &requests {
        let installed = has.get(&request.name).cloned().unwrap_or_default();
        let candidate = index.get(&request.name).map(|known| known.candidate.clone());
        let wanted = match (&request.version, !open.contains(request)) {
            (_, true) => installed.version.clone(),
            (Some(version), false) => Some(version.clone()),
            // What is installed from elsewhere is the newest there is.
            (None, false) => {
                candidate.or_else(|| installed.version.clone()).or_else(|| Some(NEWEST.to_owned()))
            }
        };
        packages.insert(request.name.clone(), (installed, wanted));
    }
    let mut seen = Seen { manager: manager.name().to_owned(), packages, planned: Planned::default() };
    let wishes = wishes(&*manager, &requests, &seen);
    if !wishes.is_empty() && problem.is_none() {
        let transaction = transaction(wishes, params);
        seen.planned = fresh.as_deref().unwrap_or(&*manager).plan(&transaction)?;
        let unasked = seen.planned.unasked(&[]);
        if !unasked.is_empty() {
            return Err(OpError::permanent(format!(
                "installing would remove {}; remove them first if that is meant",
                unasked.join(", ")
            )));
        }
    }
    Ok(seen)
}

/// Returns the requests that what is installed does not answer yet.
fn open(requests: &[Request], has: &BTreeMap<String, Installed>, which: Which) -> Vec<Request> {
    let is_settled = |request: &&Request| {
        let version = has.get(&request.name).and_then(|has| has.version.as_ref());
        let fits = request.version.is_none() || request.version.as_ref() == version;
        which == Which::Any && version.is_some() && fits
    };
    requests.iter().filter(|request| !is_settled(request)).cloned().collect()
}

/// Returns what to ask the manager for: what differs, in the version that is wanted.
fn wishes(manager: &dyn PackageManager, requests: &[Request], seen: &Seen) -> Vec<Request> {
    let wish = |request: &Request| {
        let (has, wanted) = seen.packages.get(&request.name)?;
        let version = wanted.clone().filter(|version| manager.pins() && version != NEWEST);
        (has.version != *wanted).then(|| Request { version, ..request.clone() })
    };
    requests.iter().filter_map(wish).collect()
}

/// Returns the names that the index has to know.
fn asked(requests: &[Request]) -> Vec<String> {
    requests.iter().filter(|request| request.file.is_none()).map(|request| request.name.clone()).collect()
}

fn names(requests: &[Request]) -> Vec<String> {
    requests.iter().map(|request| request.name.clone()).collect()
}

fn lookup(manager: &dyn PackageManager, names: &[String]) -> Result<BTreeMap<String, Available>, OpError> {
    if names.is_empty() { Ok(BTreeMap::new()) } else { manager.available(names) }
}

fn transaction(install: Vec<Request>, params: &Params) -> Transaction {
    Transaction { install, recommends: params.flag("recommends", false), ..Transaction::default() }
}

/// Returns what the index does not have, if something.
fn unknown(requests: &[Request], index: &BTreeMap<String, Available>) -> Option<String> {
    for request in requests.iter().filter(|request| request.file.is_none()) {
        let name = &request.name;
        let Some(known) = index.get(name) else {
            return Some(format!("there is no package `{name}`"));
        };
        if let Some(version) = &request.version
            && !known.versions.contains(version)
        {
            return Some(format!(
                "there is no version {version} of `{name}`, only {}",
                known.versions.join(", ")
            ));
        }
    }
    None
}

/// Returns the error of asking for what no index has.
fn not_there(cx: &OpContext, problem: String) -> OpError {
    let sources = ["file:/etc/apt/", "file:/etc/yum.repos.d/", "file:/etc/apk/", "file:/etc/pacman"];
    // A source that an earlier task of this dry run would add may have it.
    let not_known = sources.iter().any(|prefix| !cx.predicted.starting_with(prefix).is_empty());
    OpError { not_known, ..OpError::permanent(problem) }
}

/// Installs packages, in any version or in the newest.
pub(super) struct Installing(pub(super) Which);

impl Operation for Installing {
    fn descriptor(&self) -> &'static Descriptor {
        match self.0 {
            Which::Any => &PRESENT,
            Which::Newest => &LATEST,
        }
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let refresh = params.text("refresh").unwrap_or("auto");
        Ok(Observed(serde_json::to_value(see(cx, params, self.0, refresh)?).unwrap_or_default()))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        Seen::of(seen).diff()
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, seen: &Observed) -> Option<Value> {
        Seen::of(seen).applied().data
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root(&*manager(cx)?, self.descriptor().name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let manager = manager(cx)?;
        let requests = requests(&*manager, cx, &params.texts("names"))?;
        let open = open(&requests, &installed(cx, &*manager, &names(&requests))?, self.0);
        let lacks = || Ok(unknown(&open, &lookup(&*manager, &asked(&open))?).is_some());
        match params.text("refresh").unwrap_or("auto") {
            "always" => manager.refresh()?,
            "auto" if lacks()? => manager.refresh()?,
            _ => {}
        }
        // What was seen aside is in the index now; what still is not, no refresh brings.
        let seen = see(cx, params, self.0, "never")?;
        manager.commit(&transaction(wishes(&*manager, &requests, &seen), params))?;
        Ok(seen.applied())
    }

    fn predict(&self, cx: &OpContext, _params: &Params, diff: &Diff) {
        predict(cx, diff);
    }

    fn inverse(&self, _params: &Params, before: &Observed) -> Option<Op> {
        Seen::of(before).inverse()
    }
}
