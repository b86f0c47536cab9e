//! Texts of roles that may hold templates: rendered now if all they use is known, kept if it will be, refused if not.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use stead_model::diagnostic::suggest;
use stead_model::run_plan::{Distribution, RoleKind};
use stead_model::yaml::{self, Node};
use stead_model::{Diagnostics, RunManifest};

use super::super::vars::Resolved;
use super::{BAD_EXPRESSION, SECRET_IN_ARGV};
use crate::expr::{self, NamePath, Scope};

/// What templates of all roles may use.
pub(super) struct Names<'a> {
    pub(super) manifest: &'a RunManifest,
    pub(super) resolved: &'a Resolved,
    /// Each instance's name, with the role it is of.
    pub(super) instances: Vec<(String, usize)>,
    /// Each role's name and kind.
    pub(super) roles: Vec<(&'a str, RoleKind)>,
    /// What each role needs, directly or not.
    pub(super) needed: Vec<BTreeSet<usize>>,
    /// Paths that kits require: that they are missing is said elsewhere.
    pub(super) required: BTreeSet<&'a str>,
}

/// What templates of one instance may use.
pub(super) struct Here<'a> {
    pub(super) names: &'a Names<'a>,
    /// Which role it is of.
    pub(super) role: usize,
    /// Whether it runs on this machine.
    pub(super) is_local: bool,
    /// Everything that is known before the run.
    pub(super) known: Map<String, Value>,
    /// Names of its kit.
    pub(super) own: BTreeSet<String>,
    /// Names of its kit without a usable value; that has been reported.
    pub(super) broken: BTreeSet<String>,
    pub(super) scope: Scope,
}

/// Where a text stands, which decides what it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// In what is started, looked for or collected.
    Run,
    /// In the environment: secrets may stand there.
    Env,
    /// In the workdir, which is made before roles start.
    Workdir,
    /// Where it must be known before the run.
    Now,
}

/// What a text gives.
pub(super) enum Given {
    /// Its value.
    Known(Value),
    /// It is a template that is rendered when the role starts.
    Later,
    /// It has none, which has been reported.
    Broken,
}

/// What is wrong with a template: code, message, help.
type Fault = (&'static str, String, String);

/// Whether a name is known before the run.
#[derive(PartialEq, Eq)]
enum When {
    Now,
    Later,
    Broken,
}

impl<'a> Here<'a> {
    /// Returns the names of an instance; `known` are those that have a value before the run.
    pub(super) fn new(names: &'a Names<'a>, role: usize, is_local: bool, known: Map<String, Value>) -> Self {
        let scope = Scope::of_names(known.clone());
        Self { names, role, is_local, known, own: BTreeSet::new(), broken: BTreeSet::new(), scope }
    }

    /// Adds names of the instance's kit.
    pub(super) fn add(&mut self, names: impl IntoIterator<Item = (String, Value)>) {
        for (name, value) in names {
            self.own.insert(name.clone());
            self.known.insert(name, value);
        }
        self.scope = Scope::of_names(self.known.clone());
    }

    /// Returns what the text of `node` gives.
    pub(super) fn text(&self, node: Node<'_>, spot: Spot, problems: &mut Diagnostics) -> Given {
        let text = match node.value() {
            yaml::Value::Text(text) => text,
            yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) => {
                return Given::Known(node.to_json());
            }
            yaml::Value::List(_) | yaml::Value::Map(_) => return Given::Broken,
        };
        match self.template(text, spot) {
            Ok(given) => given,
            Err((code, message, help)) => {
                problems.push(node.error(code, message).help(help));
                Given::Broken
            }
        }
    }

    /// Returns a text that must be known before the run.
    pub(super) fn known_text(&self, node: Node<'_>, problems: &mut Diagnostics) -> Option<String> {
        match self.text(node, Spot::Now, problems) {
            Given::Known(value) => match super::render::word(&value) {
                Some(text) => Some(text),
                None => {
                    let found = stead_model::operation::describe(&value);
                    problems.push(node.bad(format!("expected a text, the template gives {found}")));
                    None
                }
            },
            Given::Later | Given::Broken => None,
        }
    }

    /// Returns a text that is kept in the plan: with its value, or as the template it is.
    pub(super) fn kept_text(&self, node: Node<'_>, spot: Spot, problems: &mut Diagnostics) -> Option<Kept> {
        match self.text(node, spot, problems) {
            Given::Later => node.as_text().map(|text| Kept::Later(text.to_owned())),
            Given::Broken => None,
            Given::Known(_) if node.as_text().is_none() => Some(Kept::Known(node.raw().to_owned())),
            Given::Known(value) => match super::render::word(&value) {
                Some(text) => Some(Kept::Known(text)),
                None => {
                    let found = stead_model::operation::describe(&value);
                    problems.push(node.bad(format!("expected a text, the template gives {found}")));
                    None
                }
            },
        }
    }

    /// Returns a value in which every template that can be is rendered.
    pub(super) fn value(&self, node: Node<'_>, spot: Spot, problems: &mut Diagnostics) -> Value {
        match node.value() {
            yaml::Value::List(items) => items.map(|item| self.value(item, spot, problems)).collect(),
            yaml::Value::Map(entries) => entries
                .map(|(key, value)| {
                    (key.as_text().unwrap_or_default().to_owned(), self.value(value, spot, problems))
                })
                .collect(),
            yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) | yaml::Value::Text(_) => {
                match self.text(node, spot, problems) {
                    Given::Known(value) if spot == Spot::Now => value,
                    Given::Known(value) => escaped(value),
                    Given::Later | Given::Broken => node.to_json(),
                }
            }
        }
    }

    fn template(&self, text: &str, spot: Spot) -> Result<Given, Fault> {
        if !expr::is_template(text) {
            return Ok(Given::Known(Value::String(text.to_owned())));
        }
        let bad = |error: expr::ExprError| (BAD_EXPRESSION, error.to_string(), String::new());
        let used = expr::used_names(text).map_err(bad)?;
        if let Some(unknown) = used.unknown.into_iter().next() {
            return Err((BAD_EXPRESSION, unknown.message, unknown.help));
        }
        let mut given = When::Now;
        for path in &used.paths {
            match self.judge(path, spot)? {
                When::Now => {}
                When::Later if spot == Spot::Now => return Err(too_early(path)),
                When::Later if given == When::Now => given = When::Later,
                When::Later => {}
                When::Broken => given = When::Broken,
            }
        }
        match given {
            When::Now => expr::render(text, &self.scope).map(Given::Known).map_err(bad),
            When::Later => Ok(Given::Later),
            When::Broken => Ok(Given::Broken),
        }
    }

    /// Returns when a name is known, or why it means nothing here.
    fn judge(&self, path: &NamePath, spot: Spot) -> Result<When, Fault> {
        let parts: Vec<&str> = path.parts.iter().map(String::as_str).collect();
        let (name, members) = parts.split_first().unwrap_or((&"", &[]));
        match *name {
            "seed" => Ok(When::Now),
            "run_id" => Ok(if self.names.manifest.run_id.is_some() { When::Now } else { When::Later }),
            "vars" => self.declared("vars", members.first().copied()),
            "env" => self.declared("env", members.first().copied()),
            "secrets" => self.secret(members.first().copied(), spot),
            "matrix" | "network" => self.known_path(&parts),
            "role" => match members.first() {
                Some(&("name" | "index")) => Ok(When::Now),
                Some(&"workdir") | None if spot != Spot::Workdir => Ok(When::Later),
                Some(&"workdir") | None => Err(too_early(path)),
                Some(other) => Err(unknown("role", other, &["name", "index", "workdir"])),
            },
            "agent" => match members.first() {
                Some(&("host" | "os")) | None => Ok(When::Later),
                Some(other) => Err(unknown("agent", other, &["host", "os"])),
            },
            "profile" => self.profile(path, spot),
            "roles" => self.other_role(path, members, spot),
            "manifest_dir" if self.is_local => Ok(When::Now),
            "manifest_dir" => Err((
                BAD_EXPRESSION,
                "`manifest_dir` is a directory of this machine, the role runs on another".to_owned(),
                "stage what it needs with `files`".to_owned(),
            )),
            name if self.broken.contains(name) => Ok(When::Broken),
            name if self.own.contains(name) => Ok(When::Now),
            name => {
                let known: Vec<&str> =
                    NAMES.iter().copied().chain(self.own.iter().map(String::as_str)).collect();
                Err((BAD_EXPRESSION, format!("the name `{name}` means nothing here"), suggest(name, known)))
            }
        }
    }

    fn declared(&self, space: &str, member: Option<&str>) -> Result<When, Fault> {
        let resolved = self.names.resolved;
        let (known, broken): (Vec<&str>, &BTreeSet<String>) = match space {
            "vars" => (resolved.vars.keys().map(String::as_str).collect(), &resolved.broken_vars),
            _ => (resolved.env.keys().map(String::as_str).collect(), &resolved.broken_env),
        };
        match member {
            None if broken.is_empty() => Ok(When::Now),
            None => Ok(When::Broken),
            Some(member) if broken.contains(member) => Ok(When::Broken),
            Some(member) if known.contains(&member) => Ok(When::Now),
            Some(member) => Err((
                stead_model::plan_file::UNDECLARED,
                format!("`{space}.{member}` is not declared"),
                match space {
                    "vars" => suggest(member, known),
                    _ => format!("add `{member}` to `env`"),
                },
            )),
        }
    }

    fn secret(&self, member: Option<&str>, spot: Spot) -> Result<When, Fault> {
        if spot != Spot::Env {
            return Err((
                SECRET_IN_ARGV,
                "a secret may not be used here: it would be visible".to_owned(),
                "give it to the role in its `env`".to_owned(),
            ));
        }
        let known = self.names.manifest.secrets.keys().map(String::as_str);
        match member {
            Some(member) if self.names.manifest.secrets.contains_key(member) => Ok(When::Later),
            Some(member) => Err((
                stead_model::plan_file::UNDECLARED,
                format!("`secrets.{member}` is not declared"),
                suggest(member, known),
            )),
            None => Err((
                BAD_EXPRESSION,
                "which secret is used must be written out, as in `secrets.name`".to_owned(),
                String::new(),
            )),
        }
    }

    /// Judges a path into what is known as a value, as far as it is written out.
    fn known_path(&self, parts: &[&str]) -> Result<When, Fault> {
        let mut value = self.known.get(parts[0]).unwrap_or(&Value::Null);
        for (at, member) in parts.iter().enumerate().skip(1) {
            let Some(items) = value.as_object() else { return Ok(When::Now) };
            value = match items.get(*member) {
                Some(value) => value,
                None if self.is_reported(parts) => return Ok(When::Broken),
                None => {
                    let known: Vec<&str> = items.keys().map(String::as_str).collect();
                    let message = format!("`{}` is not written in the manifest", parts[..=at].join("."));
                    return Err((BAD_EXPRESSION, message, suggest(member, known)));
                }
            };
        }
        Ok(When::Now)
    }

    /// Whether something else says why a path has no value: it is required and missing, or written and faulty.
    fn is_reported(&self, parts: &[&str]) -> bool {
        let root = self.names.manifest.tree().root();
        let is_written = parts.iter().try_fold(root, |node, part| node.get(part)).is_some();
        is_written || self.names.required.contains(parts.join(".").as_str())
    }

    fn profile(&self, path: &NamePath, spot: Spot) -> Result<When, Fault> {
        let Some(profile) = &self.names.manifest.profile else {
            let message = "the manifest has no `profile`".to_owned();
            return Err((BAD_EXPRESSION, message, "add `profile: {path: …}`".to_owned()));
        };
        match path.parts.get(1).map(String::as_str) {
            Some("path") | None => match profile.distribution {
                Distribution::Preinstalled => Ok(When::Now),
                Distribution::Inline | Distribution::Push if spot == Spot::Workdir => Err(too_early(path)),
                Distribution::Inline | Distribution::Push => Ok(When::Later),
            },
            Some(other) => Err(unknown("profile", other, &["path"])),
        }
    }

    fn other_role(&self, path: &NamePath, members: &[&str], spot: Spot) -> Result<When, Fault> {
        let bad = |message: String, help: String| Err((BAD_EXPRESSION, message, help));
        let Some(name) = members.first() else {
            return bad(
                "which role is meant must be written out, as in `roles.server`".to_owned(),
                String::new(),
            );
        };
        let Some((_, role)) = self.names.instances.iter().find(|(instance, _)| instance == name) else {
            let is_several = self.names.roles.iter().any(|(role, _)| role == name);
            if is_several {
                return bad(
                    format!("the role `{name}` has several instances"),
                    format!("say which one: `roles['{name}-1']`"),
                );
            }
            let known = self.names.instances.iter().map(|(instance, _)| instance.as_str());
            let help = format!("{}; a name with `-` is written `roles['a-b']`", suggest(name, known));
            return bad(format!("there is no role `{name}`"), help);
        };
        if spot == Spot::Workdir {
            return Err(too_early(path));
        }
        match members.get(1).copied() {
            Some("host" | "workdir") => Ok(When::Later),
            Some("ready") => {
                let (written, kind) = self.names.roles[*role];
                if kind == RoleKind::Task {
                    return bad(
                        format!("the role `{written}` is a task: it ends, and is never ready"),
                        "only services have `ready` values".to_owned(),
                    );
                }
                if !self.names.needed[self.role].contains(role) {
                    return bad(
                        format!("the role `{written}` need not be ready before this one"),
                        format!("add `{written}` to `needs`"),
                    );
                }
                Ok(When::Later)
            }
            Some(other) => Err(unknown(&format!("roles.{name}"), other, &["host", "workdir", "ready"])),
            None => bad(
                format!("what of the role `{name}` is meant must be written out"),
                format!("write `roles.{name}.host`, `roles.{name}.workdir` or `roles.{name}.ready.KEY`"),
            ),
        }
    }
}

/// Names that texts of roles know, besides those of their kit.
const NAMES: [&str; 12] = [
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
];

/// A text of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// What it is.
    Known(String),
    /// A template.
    Later(String),
}

impl Kept {
    /// Returns it as it stands in the plan.
    pub(super) fn into_plan(self) -> String {
        match self {
            Self::Known(text) => escape(&text),
            Self::Later(template) => template,
        }
    }

    /// Returns what it is, if that is known.
    pub(super) fn known(&self) -> Option<&str> {
        match self {
            Self::Known(text) => Some(text),
            Self::Later(_) => None,
        }
    }
}

fn unknown(space: &str, member: &str, known: &[&str]) -> Fault {
    (BAD_EXPRESSION, format!("`{space}` has no `{member}`"), suggest(member, known.iter().copied()))
}

fn too_early(path: &NamePath) -> Fault {
    let message = format!("`{}` is not known yet where this is used", path.parts.join("."));
    (BAD_EXPRESSION, message, "use what is known before the run: `vars`, `matrix`, `network`, …".to_owned())
}

/// Returns `text` as a template that gives it: braces in it stay braces.
pub(super) fn escape(text: &str) -> String {
    if !expr::is_template(text) {
        return text.to_owned();
    }
    let mut template = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('{', Some('{' | '%')) => template.push_str("{{ '{' }}"),
            (c, Some(_) | None) => template.push(c),
        }
    }
    template
}

fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(escape(&text)),
        Value::Array(items) => items.into_iter().map(escaped).collect(),
        Value::Object(items) => items.into_iter().map(|(key, item)| (key, escaped(item))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}
