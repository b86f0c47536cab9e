//! Kits: what makes the command lines of roles that only say what is particular to them.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value as Json;

use super::keys::{FIELD_KEYS, FIELD_KIND, KIT_KEYS, ROLE_KEYS, ROLE_RULE, is_role_name};
use super::role::RoleForm;
use crate::diagnostic::{Diagnostics, Source};
use crate::operation::describe;
use crate::plan::Digest;
use crate::plan_file::{self, Declared};
use crate::yaml::{self, Codes, Fields, Node, NodeId, Tree, Value, Walk};

/// The name of the built-in kit.
pub const CIPDIP: &str = "cipdip";

/// Its text.
const CIPDIP_TEXT: &str = include_str!("cipdip.yaml");

/// A kit.
#[derive(Clone, Debug)]
pub struct Kit {
    /// Its name.
    pub name: String,
    /// The hash of its text.
    pub sha256: Digest,
    /// Paths a manifest must have.
    pub requires: Vec<Declared>,
    /// Its roles in written order.
    pub roles: Vec<KitRole>,
}

/// A role of a kit.
#[derive(Clone, Debug)]
pub struct KitRole {
    tree: Arc<Tree>,
    node: NodeId,
    /// Its name.
    pub name: String,
    /// What roles of this kind have besides the usual keys, in written order.
    pub fields: Vec<Field>,
}

/// A field of a kit's role.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: FieldKind,
    /// Whether a role must have it.
    pub required: bool,
    /// Its value otherwise.
    pub default: Json,
    /// The least of a number.
    pub min: Option<f64>,
    /// The most of a number.
    pub max: Option<f64>,
    /// What an enum may be.
    pub values: Vec<String>,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A text.
    Text,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// True or false.
    Bool,
    /// One of some words.
    Enum,
    /// A list of scalars.
    List,
    /// An IP address.
    Ip,
}

impl Kit {
    /// Returns the kit `source` holds, which must have this name; problems are added to `diagnostics`.
    pub fn read(source: &Source, name: &str, diagnostics: &mut Diagnostics) -> Option<Self> {
        let tree = Arc::new(yaml::read(source, Codes::RUN, diagnostics)?);
        let mut walk = Walk::new(diagnostics);
        let fields = walk.map(tree.root(), &KIT_KEYS)?;
        if let Some(node) = fields.get("api_version") {
            plan_file::api_version(&mut walk, node);
        }
        if let Some(node) = fields.get("kit")
            && let Some(text) = walk.text(node)
            && text != name
        {
            let problem = node.bad(format!("the file is called `{name}.yaml`, the kit `{text}`"));
            walk.report(problem.help(format!("write `kit: {name}`, or rename the file")));
        }
        let requires = fields.get("requires").map(|node| requires(&mut walk, node)).unwrap_or_default();
        let roles = roles(&mut walk, fields, &tree);
        Some(Self { name: name.to_owned(), sha256: Digest::of(source.text.as_bytes()), requires, roles })
    }

    /// Returns the built-in kit.
    ///
    /// # Panics
    /// Never: a test reads it.
    pub fn cipdip() -> Self {
        let source = Source { name: "kit cipdip".into(), text: CIPDIP_TEXT.into() };
        let mut diagnostics = Diagnostics::default();
        let kit = Self::read(&source, CIPDIP, &mut diagnostics);
        kit.expect("the built-in kit is a kit")
    }

    /// Returns the role called `name`.
    pub fn role(&self, name: &str) -> Option<&KitRole> {
        self.roles.iter().find(|role| role.name == name)
    }
}

impl KitRole {
    /// Returns what is written of it.
    pub fn node(&self) -> Node<'_> {
        self.tree.node(self.node)
    }
}

fn requires(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Declared> {
    let Some(items) = walk.list(node, "paths") else { return Vec::new() };
    let items = items.filter_map(|item| {
        let text = walk.full_text(item)?;
        Some(Declared { name: text.to_owned(), value: item.id() })
    });
    items.collect()
}

fn roles(walk: &mut Walk<'_>, fields: Fields<'_>, tree: &Arc<Tree>) -> Vec<KitRole> {
    let Some(node) = fields.get("roles") else { return Vec::new() };
    let entries = match node.as_map() {
        Some(entries) if entries.len() > 0 => entries,
        Some(_) | None => {
            walk.report(
                node.bad(format!("expected a map of roles, at least one, found {}", node.describe())),
            );
            return Vec::new();
        }
    };
    let mut roles = Vec::new();
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if !is_role_name(name) {
            walk.report(key.bad(format!("`{name}` cannot name a role")).help(ROLE_RULE));
        }
        let fields = value.get("fields").map(|node| self::fields(walk, node)).unwrap_or_default();
        // Its other keys are read as those of a role, for their problems.
        drop(RoleForm::read_of_kit(walk, key, value));
        if value.as_map().is_some() && value.get("command").is_none() {
            walk.report(
                value.bad("a kit's role needs the key `command`").help("the program and its arguments"),
            );
        }
        roles.push(KitRole { tree: Arc::clone(tree), node: value.id(), name: name.to_owned(), fields });
    }
    roles
}

fn fields(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Field> {
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of fields, found {}", node.describe())));
        return Vec::new();
    };
    let mut fields = Vec::new();
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        let is_taken = ROLE_KEYS.names().any(|known| known == name) || super::role::NAMES.contains(&name);
        if is_taken {
            walk.report(
                key.bad(format!("`{name}` means something else already")).help("choose another name"),
            );
        } else if !is_field_name(name) {
            let problem = key.bad(format!("`{name}` cannot name a field"));
            walk.report(problem.help("a letter or `_`, then letters, digits or `_`, at most 64 in all"));
        }
        fields.extend(field(walk, name, value));
    }
    fields
}

/// Whether `text` can be written in a template as it is.
fn is_field_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 64
        && bytes.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

fn field(walk: &mut Walk<'_>, name: &str, node: Node<'_>) -> Option<Field> {
    let given = walk.map(node, &FIELD_KEYS)?;
    let kind = given.get("type").and_then(|node| walk.choice(node, FIELD_KIND))?;
    let values = given.get("values").map(|node| {
        let items = walk.list(node, "words");
        let texts = items.into_iter().flatten().filter_map(|item| walk.text(item).map(str::to_owned));
        texts.collect::<Vec<String>>()
    });
    match (kind, &values) {
        (FieldKind::Enum, None) => walk.report(node.bad("a field of type enum needs `values`")),
        (FieldKind::Enum, Some(values)) if values.is_empty() => {
            walk.report(node.bad("a field of type enum needs at least one value"));
        }
        (_, Some(_)) if kind != FieldKind::Enum => {
            walk.report(node.bad("`values` is for fields of type enum"));
        }
        (_, None | Some(_)) => {}
    }
    let mut bound = |key: &str| {
        let node = given.get(key)?;
        let number = match node.value() {
            Value::Number(number) => number.as_f64(),
            Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
        };
        match number {
            None => walk.report(node.bad(format!("expected a number, found {}", node.describe()))),
            Some(_) if !matches!(kind, FieldKind::Int | FieldKind::Float) => {
                walk.report(node.bad(format!("`{key}` is for fields of type int or float")));
            }
            Some(_) => {}
        }
        number
    };
    let (min, max) = (bound("min"), bound("max"));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        walk.report(node.bad(format!("`min` {min} is above `max` {max}: no number is both")));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = values.iter().flatten().find(|value| !seen.insert(value.as_str())) {
        walk.report(node.bad(format!("`values` has `{twice}` twice")));
    }
    let required = given.get("required").and_then(|node| walk.boolean(node)).unwrap_or(false);
    let default = given.get("default");
    if let Some(default) = default.filter(|_| required) {
        walk.report(default.bad("a required field has no default").help("take one of the two keys out"));
    }
    let field = Field {
        name: name.to_owned(),
        kind,
        required,
        default: default.map_or(Json::Null, Node::to_json),
        min,
        max,
        values: values.unwrap_or_default(),
    };
    if let Some(node) = default
        && !field.default.is_null()
        && let Some(message) = field.refuse(&field.default)
    {
        walk.report(node.bad(message));
    }
    Some(field)
}

impl Field {
    /// Returns why `value` is none of this field's, or nothing if it is.
    pub fn refuse(&self, value: &Json) -> Option<String> {
        let expected = |what: &str| Some(format!("expected {what}, found {}", describe(value)));
        match self.kind {
            FieldKind::Text => {
                if value.is_string() {
                    None
                } else {
                    expected("a text")
                }
            }
            FieldKind::Bool => {
                if value.is_boolean() {
                    None
                } else {
                    expected("true or false")
                }
            }
            FieldKind::Int => match value.as_i64() {
                Some(number) => self.out_of_range(number as f64, value),
                None => expected("a whole number"),
            },
            FieldKind::Float => match value.as_f64() {
                Some(number) => self.out_of_range(number, value),
                None => expected("a number"),
            },
            FieldKind::Enum => match value.as_str() {
                Some(word) if self.values.iter().any(|known| known == word) => None,
                Some(_) | None => expected(&format!("one of {}", self.words())),
            },
            FieldKind::List => match value.as_array() {
                Some(items)
                    if items.iter().all(|item| !item.is_array() && !item.is_object() && !item.is_null()) =>
                {
                    None
                }
                Some(_) | None => expected("a list of texts or numbers"),
            },
            FieldKind::Ip => match value.as_str().map(str::parse::<IpAddr>) {
                Some(Ok(_)) => None,
                Some(Err(_)) | None => expected("an IPv4 or IPv6 address"),
            },
        }
    }

    fn words(&self) -> String {
        self.values
            .iter()
            .map(|word| if word.is_empty() { "\"\"" } else { word })
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn out_of_range(&self, number: f64, value: &Json) -> Option<String> {
        let is_within = self.min.is_none_or(|min| number >= min) && self.max.is_none_or(|max| number <= max);
        if is_within {
            return None;
        }
        let bounds = match (self.min, self.max) {
            (Some(min), Some(max)) => format!("from {min} to {max}"),
            (Some(min), None) => format!("of at least {min}"),
            (None, Some(max)) => format!("of at most {max}"),
            (None, None) => String::new(),
        };
        Some(format!("expected a number {bounds}, found {}", describe(value)))
    }
}
