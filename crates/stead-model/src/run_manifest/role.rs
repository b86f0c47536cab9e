//! One role as it is written, completed by its kit.

use super::keys::{
    ARTIFACT_KEYS, FILE_KEYS, FLAG_KEYS, KIND, MAX_INSTANCES, MAX_REPEAT, MAX_SECONDS, ROLE_KEYS, STOP_KEYS,
    STOP_SIGNAL,
};
use super::kit::KitRole;
use crate::operation::ParamKind;
use crate::plan_file::keys::{is_env_name, is_var_name};
use crate::role::StopRule;
use crate::run_plan::RoleKind;
use crate::yaml::{Fields, Node, Value, Walk};

/// The names that templates of roles know; no field of a kit may have one of them.
pub(crate) const NAMES: [&str; 13] = [
    "run_id",
    "seed",
    "vars",
    "env",
    "secrets",
    "matrix",
    "network",
    "role",
    "agent",
    "profile",
    "roles",
    "manifest_dir",
    "args",
];

/// One role as it is written. What is not written, or not usable, is `None` or its default.
#[derive(Clone, Debug)]
pub struct RoleForm<'t> {
    /// Where its name is written.
    pub key: Node<'t>,
    /// What is written of it in the manifest.
    pub node: Node<'t>,
    /// Where it runs.
    pub agent: Option<Node<'t>>,
    /// What is started.
    pub command: Vec<ArgForm<'t>>,
    /// Where that is written.
    pub command_place: Option<Node<'t>>,
    /// `kit_role`.
    pub kit_role: Option<Node<'t>>,
    /// Whether it ends by itself.
    pub kind: RoleKind,
    /// What must be there before.
    pub needs: NeedsForm<'t>,
    /// Its environment; values may hold templates.
    pub env: Vec<(String, Node<'t>)>,
    /// Where it runs on its agent; may hold a template.
    pub workdir: Option<Node<'t>>,
    /// What is staged.
    pub files: Vec<FileForm<'t>>,
    /// When it counts as ready.
    pub ready: Option<Node<'t>>,
    /// How it is stopped.
    pub stop: StopRule,
    /// After this long it is stopped.
    pub duration_seconds: Option<u32>,
    /// After this long the run times out.
    pub timeout_seconds: Option<u32>,
    /// Exit codes that are well.
    pub expect_exit: Vec<i32>,
    /// Whether a service may end by itself.
    pub may_exit: bool,
    /// Whether its failure is only a warning.
    pub allow_failure: bool,
    /// What is collected.
    pub artifacts: Vec<ArtifactForm<'t>>,
    /// How often it runs.
    pub repeat: u32,
    /// Lists of values, in written order.
    pub matrix: Vec<(String, Vec<Node<'t>>)>,
    /// Instances at once; 0: all.
    pub concurrency: u32,
    /// More flags, in written order.
    pub args: Vec<(Node<'t>, Node<'t>)>,
}

/// An item of a command.
#[derive(Clone, Copy, Debug)]
pub enum ArgForm<'t> {
    /// A word; may hold templates.
    Text(Node<'t>),
    /// A flag with a value.
    Flag {
        /// The flag; may hold templates.
        flag: Node<'t>,
        /// The value; may hold templates.
        value: Node<'t>,
    },
}

/// What a role needs.
#[derive(Clone, Debug)]
pub enum NeedsForm<'t> {
    /// Roles of the manifest.
    Roles(Vec<Node<'t>>),
    /// Roles of the kit: all roles of the manifest that are those.
    OfKit(Vec<Node<'t>>),
}

/// A file that is staged.
#[derive(Clone, Debug)]
pub struct FileForm<'t> {
    /// What is written of it.
    pub node: Node<'t>,
    /// The file; may hold a template.
    pub from: Node<'t>,
    /// Its place in the workdir; may hold a template.
    pub to: Option<Node<'t>>,
    /// Its permissions.
    pub mode: Option<u32>,
}

/// What is collected.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactForm<'t> {
    /// The pattern; may hold a template.
    pub path: Node<'t>,
    /// Whether a run without a match fails.
    pub required: bool,
}

/// A role's keys: those of the manifest, then those of its kit.
#[derive(Clone, Copy)]
struct Merged<'t> {
    /// None: nothing is written of the role.
    own: Option<Fields<'t>>,
    kit: Option<Node<'t>>,
}

impl<'t> Merged<'t> {
    fn own(self, key: &str) -> Option<Node<'t>> {
        self.own?.get(key).filter(is_given)
    }

    fn get(self, key: &str) -> Option<Node<'t>> {
        self.own(key).or_else(|| self.kit?.get(key).filter(is_given))
    }
}

/// Whether something is written behind a key.
fn is_given(node: &Node<'_>) -> bool {
    !matches!(node.value(), Value::Null)
}

impl<'t> RoleForm<'t> {
    /// Reads a role of a manifest, completed by the role of its kit.
    pub(super) fn read(
        walk: &mut Walk<'_>,
        key: Node<'t>,
        node: Node<'t>,
        kit: Option<&'t KitRole>,
    ) -> Option<Self> {
        let fields: Vec<&str> =
            kit.map_or_else(Vec::new, |kit| kit.fields.iter().map(|field| &*field.name).collect());
        // A role that says nothing of itself is all its kit's.
        let own = match kit.is_some() && !is_given(&node) {
            true => None,
            false => Some(walk.map_with(node, &ROLE_KEYS, &fields)?),
        };
        let merged = Merged { own, kit: kit.map(KitRole::node) };
        for key in ["kit", "kit_role"] {
            if let (Some(command), Some(kit)) = (merged.own("command"), merged.own(key)) {
                let problem = kit.bad(format!("a role has `command` or `{key}`, not both"));
                walk.report(problem.related(command.place(), "the command").help("leave one of them out"));
            }
        }
        Some(Self::of(walk, key, node, merged))
    }

    /// Reads a role of a kit by itself.
    pub(super) fn read_of_kit(walk: &mut Walk<'_>, key: Node<'t>, node: Node<'t>) -> Option<Self> {
        let own = walk.map_with(node, &ROLE_KEYS, &["fields"])?;
        for key in ["kit", "kit_role"] {
            if let Some(key) = node.key(key) {
                walk.report(key.bad("a kit is not made of kits").help("leave it out"));
            }
        }
        Some(Self::of(walk, key, node, Merged { own: Some(own), kit: None }))
    }

    fn of(walk: &mut Walk<'_>, key: Node<'t>, node: Node<'t>, merged: Merged<'t>) -> Self {
        let seconds = |walk: &mut Walk<'_>, key: &str| {
            let seconds = merged.get(key).and_then(|node| walk.integer(node, 1..=MAX_SECONDS));
            seconds.and_then(|seconds| u32::try_from(seconds).ok())
        };
        let count = |walk: &mut Walk<'_>, key: &str, range| {
            let count = merged.get(key).and_then(|node| walk.integer(node, range));
            count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1)
        };
        let flag = |walk: &mut Walk<'_>, key: &str| {
            merged.get(key).and_then(|node| walk.boolean(node)).unwrap_or(false)
        };
        let kind = merged.get("kind").and_then(|node| walk.choice(node, KIND)).unwrap_or_default();
        let command = merged.get("command");
        let form = Self {
            key,
            node,
            agent: merged.get("agent").filter(|node| walk.full_text(*node).is_some()),
            command: command.map(|node| self::command(walk, node)).unwrap_or_default(),
            command_place: command,
            kit_role: merged.own("kit_role").filter(|node| walk.full_text(*node).is_some()),
            kind,
            needs: needs(walk, merged),
            env: merged.get("env").map(|node| env(walk, node)).unwrap_or_default(),
            workdir: merged.get("workdir").filter(|node| walk.full_text(*node).is_some()),
            files: merged.get("files").map(|node| files(walk, node)).unwrap_or_default(),
            ready: merged.get("ready"),
            stop: merged.get("stop").map(|node| stop(walk, node)).unwrap_or_default(),
            duration_seconds: seconds(walk, "duration_seconds"),
            timeout_seconds: seconds(walk, "timeout_seconds"),
            expect_exit: merged.get("expect_exit").map_or_else(|| vec![0], |node| exits(walk, node)),
            may_exit: flag(walk, "may_exit"),
            allow_failure: flag(walk, "allow_failure"),
            artifacts: merged.get("artifacts").map(|node| artifacts(walk, node)).unwrap_or_default(),
            repeat: count(walk, "repeat", 1..=MAX_REPEAT),
            matrix: merged.get("matrix").map(|node| matrix(walk, node)).unwrap_or_default(),
            concurrency: count(walk, "concurrency", 0..=MAX_INSTANCES),
            args: merged.get("args").map(|node| args(walk, node)).unwrap_or_default(),
        };
        form.judge_kind(walk, merged);
        form
    }

    /// Refuses keys that mean nothing to a role of its kind.
    fn judge_kind(&self, walk: &mut Walk<'_>, merged: Merged<'t>) {
        let (wrong, message, help): (&[&str], &str, &str) = match self.kind {
            RoleKind::Service => (
                &["concurrency", "expect_exit"],
                "only a task has this, the role is a service",
                "leave it out: instances of a service all run together, and it is stopped, whatever it exits with",
            ),
            RoleKind::Task => (
                &["ready", "may_exit"],
                "only a service has this, the role is a task",
                "add `kind: service`, or leave it out",
            ),
        };
        for key in wrong {
            if let Some(node) = merged.get(key) {
                walk.report(node.bad(message).help(help));
            }
        }
    }
}

fn needs<'t>(walk: &mut Walk<'_>, merged: Merged<'t>) -> NeedsForm<'t> {
    let mut names = |node| {
        let items = walk.one_or_many(node).into_iter();
        items.filter(|item| walk.full_text(*item).is_some()).collect::<Vec<Node<'t>>>()
    };
    match (merged.own("needs"), merged.get("needs")) {
        (Some(node), _) => NeedsForm::Roles(names(node)),
        (None, Some(node)) => NeedsForm::OfKit(names(node)),
        (None, None) => NeedsForm::Roles(Vec::new()),
    }
}

fn command<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<ArgForm<'t>> {
    let Some(items) = node.as_list() else {
        let problem =
            node.bad(format!("expected a list, the program and its arguments, found {}", node.describe()));
        walk.report(problem.help("write `command: [program, argument]`; no shell reads it"));
        return Vec::new();
    };
    if items.len() == 0 {
        walk.report(node.bad("the command is empty").help("write `command: [program, argument]`"));
    }
    let mut command = Vec::with_capacity(items.len());
    for item in items {
        if item.as_map().is_some() {
            let Some(fields) = walk.map(item, &FLAG_KEYS) else { continue };
            let flag = fields.get("flag").filter(|flag| walk.full_text(*flag).is_some());
            if let (Some(flag), Some(value)) = (flag, fields.get("value")) {
                command.push(ArgForm::Flag { flag, value });
            }
        } else if walk.text_of_scalar(item).is_some() {
            command.push(ArgForm::Text(item));
        }
    }
    if let Some(ArgForm::Text(first)) = command.first()
        && first.as_text() == Some("")
    {
        walk.report(first.bad("the program has no name"));
    }
    command
}

fn env<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<(String, Node<'t>)> {
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of variables, found {}", node.describe())));
        return Vec::new();
    };
    let mut env = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !is_env_name(name) {
            let problem = key.bad(format!("`{name}` cannot name an environment variable"));
            walk.report(problem.help("letters, digits and `_`, not beginning with a digit"));
        }
        if matches!(name, "STEAD_RUN_ID" | "STEAD_ROLE" | "STEAD_SEED" | "STEAD_WORKDIR") {
            walk.report(key.bad(format!("`{name}` is set by Stead")).help("choose another name"));
        }
        if walk.text_of_scalar(value).is_some() {
            env.push((name.to_owned(), value));
        }
    }
    env
}

fn files<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<FileForm<'t>> {
    let Some(items) = walk.list(node, "files") else { return Vec::new() };
    let mut files = Vec::with_capacity(items.len());
    for item in items {
        if item.as_map().is_none() {
            if walk.full_text(item).is_some() {
                files.push(FileForm { node: item, from: item, to: None, mode: None });
            }
            continue;
        }
        let Some(fields) = walk.map(item, &FILE_KEYS) else { continue };
        let mode = fields.get("mode").and_then(|node| mode(walk, node));
        let to = fields.get("to").filter(|node| walk.full_text(*node).is_some());
        if let Some(from) = fields.get("from").filter(|node| walk.full_text(*node).is_some()) {
            files.push(FileForm { node: item, from, to, mode });
        }
    }
    files
}

fn mode(walk: &mut Walk<'_>, node: Node<'_>) -> Option<u32> {
    let value = node.to_json();
    if let Some(message) = ParamKind::Mode.refuse(&value) {
        walk.report(node.bad(message));
        return None;
    }
    u32::from_str_radix(value.as_str()?, 8).ok()
}

fn stop(walk: &mut Walk<'_>, node: Node<'_>) -> StopRule {
    let mut rule = StopRule::default();
    let Some(fields) = walk.map(node, &STOP_KEYS) else { return rule };
    if let Some(signal) = fields.get("signal").and_then(|node| walk.choice(node, STOP_SIGNAL)) {
        rule.signal = signal;
    }
    let longest = i64::from(StopRule::LONGEST_GRACE);
    let grace = fields.get("grace_seconds").and_then(|node| walk.integer(node, 0..=longest));
    if let Some(grace) = grace.and_then(|grace| u32::try_from(grace).ok()) {
        rule.grace_seconds = grace;
    }
    rule
}

fn exits(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<i32> {
    let items = walk.one_or_many(node);
    if items.is_empty() {
        walk.report(node.bad("a role needs an exit code that is well").help("write `[0]`, or leave it out"));
    }
    let codes = items.into_iter().filter_map(|node| walk.integer(node, 0..=255));
    codes.filter_map(|code| i32::try_from(code).ok()).collect()
}

fn artifacts<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<ArtifactForm<'t>> {
    let Some(items) = walk.list(node, "patterns") else { return Vec::new() };
    let mut artifacts = Vec::with_capacity(items.len());
    for item in items {
        if item.as_map().is_none() {
            if walk.full_text(item).is_some() {
                artifacts.push(ArtifactForm { path: item, required: false });
            }
            continue;
        }
        let Some(fields) = walk.map(item, &ARTIFACT_KEYS) else { continue };
        let required = fields.get("required").and_then(|node| walk.boolean(node)).unwrap_or(false);
        if let Some(path) = fields.get("path").filter(|node| walk.full_text(*node).is_some()) {
            artifacts.push(ArtifactForm { path, required });
        }
    }
    artifacts
}

fn matrix<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<(String, Vec<Node<'t>>)> {
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of lists, found {}", node.describe())));
        return Vec::new();
    };
    let mut matrix = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !is_var_name(name) {
            walk.report(key.bad(format!("`{name}` cannot name a value of a matrix")));
        }
        let Some(items) = walk.list(value, "values") else { continue };
        if items.len() == 0 {
            walk.report(
                value.bad("a list without values gives no instance").help("write at least one value"),
            );
        }
        let scalars: Vec<Node<'t>> = items.filter(|item| walk.text_of_scalar(*item).is_some()).collect();
        if !scalars.is_empty() {
            matrix.push((name.to_owned(), scalars));
        }
    }
    matrix
}

fn args<'t>(walk: &mut Walk<'_>, node: Node<'t>) -> Vec<(Node<'t>, Node<'t>)> {
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of flags, found {}", node.describe())));
        return Vec::new();
    };
    let mut args = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let items = walk.one_or_many(value);
        let is_flat = value.as_map().is_none()
            && items.iter().all(|item| item.as_map().is_none() && item.as_list().is_none());
        if is_flat {
            args.push((key, value));
        } else {
            let problem = value.bad(format!(
                "expected a text, number, boolean or a list of them, found {}",
                value.describe()
            ));
            walk.report(problem.help("a flag has no map for its value"));
        }
    }
    args
}
