//! The contract every write operation keeps, as one suite over a table of cases.
//!
//! For each case, on the whole machine and under a root prefix:
//!
//! * from a fresh, a half-applied and a converged target, check says what the run right after does, and writes
//!   nothing (content, mode, owner, modification time, inode);
//! * a dry run that observes again sees its own prediction;
//! * the first run is changed, the second is not and writes nothing, and has the same keys in its result;
//! * drift made by hand in any field is repaired;
//! * what is not specified is kept;
//! * spelling out the declared defaults of its parameters changes nothing;
//! * the inverse restores the state before, byte for byte, and is itself idempotent.
//!
//! A case acts on a directory of its own, or on the whole system it runs in ([`World`]): the latter only inside a
//! container (`container::inside`), where its functions get `/`, or under a root prefix, where they get that.
//!
//! [`violations`] returns what was not kept, so that the suite can be shown to fail. [`violations_by`] has the
//! operations carried out by another [`Carrier`], such as an executor behind SSH.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use stead_model::operation::RootSupport;
use stead_model::{Descriptor, Effect, Op};
use stead_runner::operation::{Diff, Entry, OpContext, OpError, Operation, Params, Predicted, Registry};

use crate::context::{context, params};
use crate::flow;
use crate::tree::{Depth, difference, snapshot};

/// What a case acts on, and what is compared before and after.
#[derive(Clone, Copy)]
pub enum World {
    /// A directory of its own: everything in it.
    Directory,
    /// The system: what this function returns of the one whose root it gets, as deep as it is asked to. `fresh` has to bring every walk to
    /// the same start, on `/` and on an empty root prefix alike.
    System(fn(&Path, Depth) -> BTreeMap<String, String>),
}

/// One way to use a write operation. Functions get the target directory; with [`World::System`] the root of the system.
#[derive(Clone)]
pub struct Case {
    /// The operation.
    pub operation: &'static str,
    /// What this case shows.
    pub name: &'static str,
    /// What it acts on.
    pub world: World,
    /// Its parameters; `{dir}` stands for the target directory, `{sources}` for the driver's.
    pub params: fn() -> Value,
    /// Fills the driver's directory.
    pub sources: fn(&Path),
    /// Makes a target on which everything has to be done.
    pub fresh: fn(&Path),
    /// Makes, from a fresh one, a target on which a part has been done.
    pub half: fn(&Path),
    /// Changes, on a converged target, one field each.
    pub drifts: &'static [Drift],
    /// Returns what the operation has to keep, read from the target; on a target where it is not there yet too.
    pub kept: fn(&Path) -> String,
    /// Whether a path, relative to the target directory, holds bookkeeping that the state does not include.
    pub ignore: fn(&str) -> bool,
}

/// A field, and how to change it by hand.
pub type Drift = (&'static str, fn(&Path));

/// Does nothing: for a part that a case does not need.
pub fn nothing(_: &Path) {}

/// Keeps nothing: for a case without unspecified fields.
pub fn nothing_kept(_: &Path) -> String {
    String::new()
}

/// Returns the write operations of `registry` that no case covers.
pub fn uncovered(registry: &Registry, cases: &[Case]) -> Vec<&'static str> {
    let writes = registry.descriptors().filter(|descriptor| descriptor.effect == Effect::Write);
    writes
        .map(|descriptor| descriptor.name)
        .filter(|name| cases.iter().all(|case| case.operation != *name))
        .collect()
}

/// How a run of an operation went, as the suite judges it.
#[derive(Debug)]
pub struct Went {
    /// Whether something was applied.
    pub changed: bool,
    /// What differed before; none if nothing did.
    pub diff: Option<Value>,
    /// The operation that restores the state before.
    pub inverse: Option<Op>,
    /// Its result.
    pub data: Option<Value>,
}

/// Carries out operations for the suite.
pub trait Carrier {
    /// What follows happens in this context, and a dry run begins anew.
    fn begin(&self, cx: &OpContext);

    /// Returns what would change, if something would; nothing is written.
    ///
    /// # Errors
    /// As the operation.
    fn check(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Option<Value>, OpError>;

    /// Brings the target to the described state.
    ///
    /// # Errors
    /// As the operation.
    fn run(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Went, OpError>;

    /// Whether it is asked for the whole suite. Else for a walk from a fresh target and one drift, on the machine alone:
    /// for a slow one, where another has been asked for the rest.
    fn is_thorough(&self) -> bool {
        true
    }
}

/// Carries out operations in this process.
struct Here<'a>(&'a Registry);

impl Here<'_> {
    fn operation(&self, name: &str) -> Result<&dyn Operation, OpError> {
        match self.0.get(name) {
            Some(Entry::State(operation)) => Ok(operation.as_ref()),
            Some(Entry::Action(_)) | None => Err(OpError::invalid(format!("`{name}` describes no state"))),
        }
    }
}

fn shown(diff: &Diff) -> Option<Value> {
    (!diff.is_empty()).then(|| diff.to_json())
}

impl Carrier for Here<'_> {
    fn begin(&self, _: &OpContext) {}

    fn check(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Option<Value>, OpError> {
        flow::check(self.operation(operation)?, cx, params).map(|diff| shown(&diff))
    }

    fn run(&self, operation: &str, cx: &OpContext, params: &Params) -> Result<Went, OpError> {
        let operation = self.operation(operation)?;
        let ran = flow::run(operation, cx, params)?;
        let inverse = operation.inverse(params, &ran.before);
        Ok(Went { changed: ran.changed, diff: shown(&ran.diff), inverse, data: ran.applied.data })
    }
}

/// Returns every way in which `case` shows the contract broken. Empty: it is kept.
///
/// # Panics
/// If the test machine does not let directories be made.
pub fn violations(registry: &Registry, case: &Case) -> Vec<String> {
    violations_by(&Here(registry), registry, case)
}

/// Like [`violations`], with the operations carried out by `carrier`.
///
/// # Panics
/// As [`violations`].
pub fn violations_by(carrier: &dyn Carrier, registry: &Registry, case: &Case) -> Vec<String> {
    let Some(Entry::State(operation)) = registry.get(case.operation) else {
        return vec![format!("{} is not an operation that describes a state", case.operation)];
    };
    let descriptor = operation.descriptor();
    let mut placements = vec![Placement::Machine];
    let is_thorough = carrier.is_thorough();
    match (descriptor.root, case.world) {
        _ if !is_thorough => {}
        // A directory's case may show what only a running system has.
        (RootSupport::Full, _) | (RootSupport::Files, World::System(_)) => placements.push(Placement::Root),
        (RootSupport::Files, World::Directory) | (RootSupport::None, _) => {}
    }
    let mut found = Vec::new();
    for placement in placements {
        let mut suite = Suite { carrier, descriptor, case, placement, found: Vec::new() };
        suite.walk_from("fresh", nothing);
        if is_thorough {
            suite.walk_from("half-applied", case.half);
        }
        for (field, drift) in case.drifts.iter().take(if is_thorough { usize::MAX } else { 1 }) {
            suite.drift(field, *drift);
        }
        found.extend(suite.found);
    }
    found
}

#[derive(Clone, Copy, Debug)]
enum Placement {
    Machine,
    Root,
}

struct Suite<'a> {
    carrier: &'a dyn Carrier,
    descriptor: &'static Descriptor,
    case: &'a Case,
    placement: Placement,
    found: Vec<String>,
}

/// A target of its own for one walk through the suite.
struct Target {
    _keep: tempfile::TempDir,
    /// Where the operation acts.
    dir: PathBuf,
    cx: OpContext,
    params: Params,
}

impl Suite<'_> {
    fn target(&self) -> Target {
        let keep = tempfile::tempdir().expect("a temporary directory");
        let base = keep.path().canonicalize().expect("it is there");
        let (sources, root) = (base.join("sources"), base.join("root"));
        let dir = match (self.case.world, self.placement) {
            (World::Directory, _) => root.join("target"),
            (World::System(_), Placement::Machine) => PathBuf::from("/"),
            (World::System(_), Placement::Root) => root.clone(),
        };
        std::fs::create_dir_all(&sources).expect("a directory");
        std::fs::create_dir_all(&dir).expect("a directory");
        (self.case.sources)(&sources);
        (self.case.fresh)(&dir);
        let mut cx = context(&sources);
        let shown = match self.placement {
            Placement::Machine => dir.clone(),
            Placement::Root => {
                cx.root = Some(root);
                PathBuf::from(if matches!(self.case.world, World::System(_)) { "/" } else { "/target" })
            }
        };
        let values = fill((self.case.params)(), &shown, &sources);
        self.carrier.begin(&cx);
        Target { _keep: keep, dir, cx, params: params(values) }
    }

    fn state(&self, target: &Target) -> BTreeMap<String, String> {
        let mut tree = self.everything(target, Depth::State);
        tree.retain(|path, _| !(self.case.ignore)(path));
        tree
    }

    fn everything(&self, target: &Target, depth: Depth) -> BTreeMap<String, String> {
        match self.case.world {
            World::Directory => snapshot(&target.dir, depth),
            World::System(state) => state(&target.dir, depth),
        }
    }

    fn broken(&mut self, what: impl std::fmt::Display) {
        let (operation, name) = (self.case.operation, self.case.name);
        self.found.push(format!("{operation} ({name}, {:?}): {what}", self.placement));
    }

    /// Walks from a start to a converged target and back.
    fn walk_from(&mut self, start: &str, prepare: fn(&Path)) {
        let target = self.target();
        prepare(&target.dir);
        let kept = (self.case.kept)(&target.dir);
        let before = self.state(&target);
        let Some(predicted) = self.check(&target, start) else { return };
        if predicted.is_none() {
            self.broken(format!("{start}: check predicts no change"));
        }
        self.defaults(&target, start, &predicted);
        let ran = match self.run(&target) {
            Ok(ran) => ran,
            Err(error) => return self.broken(format!("{start}: the run failed: {error}")),
        };
        if !ran.changed {
            self.broken(format!("{start}: the first run is unchanged"));
        }
        if ran.diff != predicted {
            self.broken(format!("{start}: check said {}, the run {}", text(&predicted), text(&ran.diff)));
        }
        if (self.case.kept)(&target.dir) != kept {
            self.broken(format!("{start}: not kept: {kept:?} became {:?}", (self.case.kept)(&target.dir)));
        }
        let leftovers: Vec<_> =
            self.state(&target).into_keys().filter(|path| path.contains("stead-tmp")).collect();
        if !leftovers.is_empty() {
            self.broken(format!("{start}: left {leftovers:?}"));
        }
        self.converged(&target, start, ran.data.as_ref());
        self.undo(&target, start, ran.inverse, &before);
    }

    fn run(&self, target: &Target) -> Result<Went, OpError> {
        self.carrier.begin(&target.cx);
        self.carrier.run(self.case.operation, &target.cx, &target.params)
    }

    /// Checks without writing, twice: the second sees the prediction of the first. Nothing if it failed.
    fn check(&mut self, target: &Target, start: &str) -> Option<Option<Value>> {
        let before = self.everything(target, Depth::Everything);
        let cx = self.dry_run(target);
        let predicted = match self.carrier.check(self.case.operation, &cx, &target.params) {
            Ok(diff) => diff,
            Err(error) => {
                self.broken(format!("{start}: check failed: {error}"));
                return None;
            }
        };
        match self.carrier.check(self.case.operation, &cx, &target.params) {
            Ok(None) => {}
            Ok(diff) => {
                self.broken(format!("{start}: a dry run does not see its own prediction: {}", text(&diff)))
            }
            Err(error) => self.broken(format!("{start}: a second check failed: {error}")),
        }
        for line in difference(&before, &self.everything(target, Depth::Everything)) {
            self.broken(format!("{start}: check wrote: {line}"));
        }
        Some(predicted)
    }

    /// Returns the context of a dry run that has predicted nothing yet.
    fn dry_run(&self, target: &Target) -> OpContext {
        self.carrier.begin(&target.cx);
        OpContext { predicted: Predicted::default(), ..target.cx.clone() }
    }

    /// What is declared as a default is what happens without the parameter.
    fn defaults(&mut self, target: &Target, start: &str, predicted: &Option<Value>) {
        let cx = self.dry_run(target);
        let spelled = with_defaults(self.descriptor, &target.params);
        match self.carrier.check(self.case.operation, &cx, &spelled) {
            Ok(diff) if diff == *predicted => {}
            Ok(diff) => self.broken(format!(
                "{start}: check says {}, with the defaults spelled out {}",
                text(predicted),
                text(&diff)
            )),
            Err(error) => {
                self.broken(format!("{start}: check with the defaults spelled out failed: {error}"))
            }
        }
    }

    /// A converged target: check and run say unchanged and write nothing.
    fn converged(&mut self, target: &Target, start: &str, data: Option<&Value>) {
        let before = self.everything(target, Depth::Everything);
        if let Some(diff @ Some(_)) = self.check(target, "converged") {
            self.broken(format!("{start}, converged: check predicts {}", text(&diff)));
        }
        match self.run(target) {
            Ok(ran) if ran.changed => {
                self.broken(format!("{start}: the second run is changed: {}", text(&ran.diff)))
            }
            Ok(ran) => {
                let keys = |data: Option<&Value>| -> BTreeSet<String> {
                    let keys = data.and_then(Value::as_object).into_iter().flat_map(Map::keys);
                    // A backup is made of what is replaced.
                    keys.filter(|key| *key != "backup").cloned().collect()
                };
                let (first, second) = (keys(data), keys(ran.data.as_ref()));
                if first != second {
                    self.broken(format!(
                        "{start}: the result has {first:?}, that of the second run {second:?}"
                    ));
                }
            }
            Err(error) => self.broken(format!("{start}: the second run failed: {error}")),
        }
        for line in difference(&before, &self.everything(target, Depth::Everything)) {
            self.broken(format!("{start}: the second run wrote: {line}"));
        }
    }

    fn undo(&mut self, target: &Target, start: &str, inverse: Option<Op>, before: &BTreeMap<String, String>) {
        if !self.descriptor.undo {
            return;
        }
        let Some(inverse) = inverse else {
            return self.broken(format!("{start}: there is no inverse"));
        };
        let values = flow::params_of(&inverse);
        for (round, changed) in [("first", true), ("second", false)] {
            match self.carrier.run(inverse.operation.as_str(), &target.cx, &values) {
                Ok(ran) if ran.changed == changed => {}
                Ok(ran) => self.broken(format!("{start}: the {round} inverse has changed: {}", ran.changed)),
                Err(error) => self.broken(format!("{start}: the {round} inverse failed: {error}")),
            }
            for line in difference(before, &self.state(target)) {
                self.broken(format!("{start}: after the {round} inverse: {line}"));
            }
        }
    }

    fn drift(&mut self, field: &str, drift: fn(&Path)) {
        let target = self.target();
        if let Err(error) = self.run(&target) {
            return self.broken(format!("drift in {field}: the first run failed: {error}"));
        }
        let converged = self.state(&target);
        drift(&target.dir);
        let Some(predicted) = self.check(&target, field) else { return };
        match self.run(&target) {
            Ok(ran) if ran.changed && predicted.is_some() => {}
            Ok(ran) => self.broken(format!(
                "drift in {field}: check said {}, the run changed {}",
                predicted.is_some(),
                ran.changed
            )),
            Err(error) => self.broken(format!("drift in {field}: not repaired: {error}")),
        }
        for line in difference(&converged, &self.state(&target)) {
            self.broken(format!("drift in {field}: not repaired: {line}"));
        }
    }
}

fn text(diff: &Option<Value>) -> String {
    diff.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string)
}

/// Returns `params` with every declared default that is neither given nor excluded by what is.
pub fn with_defaults(descriptor: &Descriptor, params: &Params) -> Params {
    let mut values = params.as_map().clone();
    let excluded = |name: &str| {
        let mut groups = descriptor.exclusive.iter().filter(|group| group.contains(&name));
        groups.any(|group| group.iter().any(|other| params.get(other).is_some()))
    };
    for spec in descriptor.params {
        if let Some(default) = spec.default
            && !values.contains_key(spec.name)
            && !excluded(spec.name)
        {
            values.insert(spec.name.to_owned(), default.to_json());
        }
    }
    Params::new(values)
}

/// Puts the real directories in the place of `{dir}` and `{sources}`.
fn fill(value: Value, dir: &Path, sources: &Path) -> Value {
    match value {
        Value::String(text) => {
            let text = text.replace("{dir}", &dir.to_string_lossy());
            Value::String(text.replace("{sources}", &sources.to_string_lossy()))
        }
        Value::Array(items) => items.into_iter().map(|item| fill(item, dir, sources)).collect(),
        Value::Object(items) => {
            items.into_iter().map(|(key, item)| (key, fill(item, dir, sources))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}
