//! What an operation declares of itself: effect, parameters, result. Compile-time checks,
//! JSON Schema and documentation are all made from this one table.

use serde_json::{Value, json};

use crate::plan::Op;

/// What an operation may do to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Read,
    /// Brings it to a described state.
    Write,
    /// Anything.
    Command,
}

impl Effect {
    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Command => "command",
        }
    }
}

/// How an operation behaves under a root prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootSupport {
    /// Everything works.
    Full,
    /// The persistent part only.
    Files,
    /// Not at all.
    None,
}

/// What an operation declares of itself.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Its dotted name.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What it may do.
    pub effect: Effect,
    /// Whether doing it twice is the same as once.
    pub idempotent: bool,
    /// Whether it can predict its change.
    pub check: bool,
    /// Whether it has an inverse of its own.
    pub undo: bool,
    /// Operating systems it works on; empty: all.
    pub platforms: &'static [&'static str],
    /// How it behaves under a root prefix.
    pub root: RootSupport,
    /// Whether it needs root.
    pub needs_root: bool,
    /// Its parameters.
    pub params: &'static [ParamSpec],
    /// Groups of parameters of which at most one may be given.
    pub exclusive: &'static [&'static [&'static str]],
    /// Groups of parameters of which at least one must be given.
    pub one_of: &'static [&'static [&'static str]],
    /// The members of its result data, with what they are.
    pub result: &'static [(&'static str, &'static str)],
}

impl Descriptor {
    /// Returns the parameter called `name`.
    pub fn param(&self, name: &str) -> Option<&'static ParamSpec> {
        self.params.iter().find(|param| param.name == name)
    }

    /// Returns what it may do with these parameters. `given` returns what one of them is; null while that is not known.
    pub fn effect_with<'a>(&self, given: impl Fn(&str) -> Option<&'a Value>) -> Effect {
        let reads = |param: &ParamSpec| {
            let value = match (given(param.name), param.default) {
                (Some(value), _) => value.as_str(),
                (None, Some(ParamDefault::Text(text))) => Some(text),
                (None, _) => None,
            };
            value.is_some_and(|value| param.reads.contains(&value))
        };
        if self.params.iter().any(reads) { Effect::Read } else { self.effect }
    }

    /// Returns what it may do as `op`, whose templates are not rendered yet.
    pub fn effect_of(&self, op: &Op) -> Effect {
        self.effect_with(|name| op.params.get(name).map(|param| param.as_value().unwrap_or(&Value::Null)))
    }

    /// Returns the closed JSON Schema of the parameters.
    pub fn params_schema(&self) -> Value {
        let properties: serde_json::Map<String, Value> =
            self.params.iter().map(|param| (param.name.to_owned(), param.schema())).collect();
        let required: Vec<&str> =
            self.params.iter().filter(|param| param.required).map(|param| param.name).collect();
        let mut schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
        let conditions: Vec<Value> = self.needs().map(|(names, needed)| needed.schema(&names)).collect();
        if let (Value::Object(fields), false) = (&mut schema, conditions.is_empty()) {
            fields.insert("allOf".to_owned(), conditions.into());
        }
        schema
    }

    /// Returns the parameters that are needed under a condition, each with those that do in its place: of parameters that
    /// exclude each other one is enough.
    pub fn needs(&self) -> impl Iterator<Item = (Vec<&'static str>, Needed)> {
        self.params.iter().filter_map(|param| {
            let needed = param.needed?;
            let also = |name: &&str| self.param(name).is_some_and(|other| other.needed == Some(needed));
            let group = self.exclusive.iter().find(|group| group.contains(&param.name));
            let names = match group {
                Some(group) => group.iter().copied().filter(also).collect(),
                None => vec![param.name],
            };
            (names.first() == Some(&param.name)).then_some((names, needed))
        })
    }

    /// Returns the descriptor as one JSON value, for `stead schema operation`.
    pub fn to_json(&self) -> Value {
        let secrets: Vec<&str> =
            self.params.iter().filter(|param| param.secret).map(|param| param.name).collect();
        let result: serde_json::Map<String, Value> = self
            .result
            .iter()
            .map(|(name, what)| ((*name).to_owned(), json!({"description": what})))
            .collect();
        json!({
            "name": self.name, "summary": self.summary, "effect": self.effect.as_str(),
            "idempotent": self.idempotent, "check": self.check, "undo": self.undo,
            "platforms": self.platforms,
            "root": match self.root { RootSupport::Full => "full", RootSupport::Files => "files", RootSupport::None => "none" },
            "privilege": if self.needs_root { "root" } else { "any" },
            "params": self.params_schema(), "secrets": secrets,
            "result": {"type": "object", "properties": result, "additionalProperties": false},
        })
    }
}

/// One parameter of an operation.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub kind: ParamKind,
    /// Whether it must be given.
    pub required: bool,
    /// When it must be given all the same, if it is not always.
    pub needed: Option<Needed>,
    /// Whether it may hold secrets.
    pub secret: bool,
    /// What it is if it is not given; none where that is no value of its own, such as an attribute that is kept.
    pub default: Option<ParamDefault>,
    /// With one of these values the operation only reads, whatever its effect is otherwise.
    pub reads: &'static [&'static str],
    /// Returns why a value of its kind is not allowed all the same, such as a schedule that is none.
    pub judge: Option<Judge>,
    /// One sentence, with the default.
    pub doc: &'static str,
}

impl ParamSpec {
    /// Returns an optional parameter that may not hold secrets.
    pub const fn new(name: &'static str, kind: ParamKind, doc: &'static str) -> Self {
        Self {
            name,
            kind,
            required: false,
            needed: None,
            secret: false,
            default: None,
            reads: &[],
            judge: None,
            doc,
        }
    }

    /// Returns this parameter as one that must be given.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Returns this parameter as one that must be given when `needed` says so.
    pub const fn needed(mut self, needed: Needed) -> Self {
        self.needed = Some(needed);
        self
    }

    /// Returns this parameter as one that may hold secrets.
    pub const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Returns this parameter as one that is `default` if it is not given.
    pub const fn default(mut self, default: ParamDefault) -> Self {
        self.default = Some(default);
        self
    }

    /// Returns this parameter as one with which the operation only reads if it is one of `values`.
    pub const fn reads(mut self, values: &'static [&'static str]) -> Self {
        self.reads = values;
        self
    }

    /// Returns this parameter as one whose values `judge` looks at too.
    pub const fn judged(mut self, judge: Judge) -> Self {
        self.judge = Some(judge);
        self
    }

    /// Whether giving `value` says no more than giving nothing.
    pub fn is_default(&self, value: &Value) -> bool {
        let Some(default) = self.default else { return false };
        match (self.kind, default, value) {
            // `60s` and `1m` are one duration, `644` and `0644` one mode.
            (ParamKind::Duration, ParamDefault::Text(default), Value::String(text)) => {
                matches!((crate::duration::parse(default), crate::duration::parse(text)), (Ok(default), Ok(given)) if default == given)
            }
            (ParamKind::Mode, ParamDefault::Text(default), Value::String(text)) => {
                is_mode(text) && u32::from_str_radix(default, 8).ok() == u32::from_str_radix(text, 8).ok()
            }
            (_, default, value) => default.to_json() == *value,
        }
    }

    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        if let Value::Object(fields) = &mut schema {
            fields.insert("description".to_owned(), json!(self.doc));
            if let Some(default) = self.default {
                fields.insert("default".to_owned(), default.to_json());
            }
        }
        schema
    }
}

/// When a parameter must be given that is not always required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Unless `state` is `absent`.
    UnlessAbsent,
    /// If this parameter is given.
    With(&'static str),
}

impl Needed {
    /// Whether one must be given with these parameters. `given` returns what one of them is; null while that is not known,
    /// and then it need not.
    pub fn holds<'a>(self, given: impl Fn(&str) -> Option<&'a Value>) -> bool {
        match self {
            Self::UnlessAbsent => given("state").is_none_or(|state| state == "present"),
            Self::With(name) => given(name).is_some(),
        }
    }

    /// Returns the condition as words after `needs X`.
    pub fn describe(self) -> String {
        match self {
            Self::UnlessAbsent => "unless `state` is absent".to_owned(),
            Self::With(name) => format!("with `{name}`"),
        }
    }

    /// Returns the schema of parameters among which one of `names` is if it must be.
    fn schema(self, names: &[&str]) -> Value {
        let mut ways: Vec<Value> = names.iter().map(|name| json!({"required": [name]})).collect();
        ways.push(match self {
            Self::UnlessAbsent => {
                json!({"properties": {"state": {"const": "absent"}}, "required": ["state"]})
            }
            Self::With(name) => json!({"not": {"required": [name]}}),
        });
        json!({"anyOf": ways})
    }
}

/// Returns why a value is not allowed, or nothing if it is.
pub type Judge = fn(&Value) -> Option<String>;

/// Returns the first problem of a text, or of the texts of a list.
pub fn judge_texts(value: &Value, judge: impl Fn(&str) -> Option<String>) -> Option<String> {
    match value {
        Value::String(text) => judge(text),
        Value::Array(items) => items.iter().filter_map(Value::as_str).find_map(judge),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// What a parameter is if it is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamDefault {
    /// True or false.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A text: also of a mode, a duration or an enum.
    Text(&'static str),
    /// A list of texts.
    Texts(&'static [&'static str]),
    /// A list of whole numbers.
    Numbers(&'static [i64]),
    /// A map without entries.
    EmptyMap,
}

impl ParamDefault {
    /// Returns the value a plan would spell out.
    pub fn to_json(self) -> Value {
        match self {
            Self::Flag(value) => value.into(),
            Self::Number(value) => value.into(),
            Self::Text(value) => value.into(),
            Self::Texts(values) => values.into(),
            Self::Numbers(values) => values.into(),
            Self::EmptyMap => json!({}),
        }
    }
}

/// Bytes of the longest script.
pub const LONGEST_SCRIPT: usize = 1 << 20;

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// Any text.
    Text,
    /// Text that is not empty.
    NonEmptyText,
    /// A script, of at most [`LONGEST_SCRIPT`] bytes: systems take no more as arguments of a program.
    Script,
    /// An absolute path on the target.
    AbsolutePath,
    /// A path on the driver, relative to the plan file.
    SourcePath,
    /// A regular expression.
    Regex,
    /// An `http://` or `https://` address.
    Url,
    /// 64 lower-case hex digits.
    Sha256,
    /// Three or four octal digits in a string.
    Mode,
    /// A user or group: a name or a number.
    Principal,
    /// True or false.
    Bool,
    /// A whole number in these bounds.
    Int(i64, i64),
    /// A duration such as `30s`.
    Duration,
    /// One of these words.
    Enum(&'static [&'static str]),
    /// A list of text.
    TextList,
    /// A list of text with at least one element.
    NonEmptyTextList,
    /// A list of whole numbers in these bounds, or of `"200-299"` ranges.
    IntList(i64, i64),
    /// A map of text to text; numbers and booleans become text.
    TextMap,
    /// A map of anything.
    Map,
    /// One text or a list of texts.
    TextOrList,
    /// A text or a number, which becomes text.
    TextOrNumber,
    /// A name that is a file's in one directory: letters, digits, `-`, `_` and `.`, not starting with `-` or `.`.
    FileName,
    /// Text that fits on one line of a file: not empty, without control characters.
    Line,
    /// A list of such texts with at least one element.
    Lines,
    /// An IPv4 or IPv6 address.
    Address,
    /// A list of addresses.
    Addresses,
    /// Anything.
    Any,
}

impl ParamKind {
    /// Returns why `value` is not allowed, or nothing if it is.
    pub fn refuse(self, value: &Value) -> Option<String> {
        let text = |what: &str| Some(format!("expected {what}, found {}", describe(value)));
        let listed = |what: &str, fits: &dyn Fn(&Value) -> bool| match value.as_array() {
            Some(items) => {
                let odd = items.iter().find(|item| !fits(item))?;
                Some(format!("expected {what}, found {} in it", describe(odd)))
            }
            None => text(what),
        };
        match self {
            Self::Any => None,
            Self::Text | Self::SourcePath | Self::Regex => {
                if value.is_string() {
                    None
                } else {
                    text("a text")
                }
            }
            Self::NonEmptyText => match value.as_str() {
                Some("") => Some("must not be empty".to_owned()),
                Some(_) => None,
                None => text("a text"),
            },
            Self::Script => match value.as_str() {
                Some("") => Some("must not be empty".to_owned()),
                Some(script) if script.len() > LONGEST_SCRIPT => Some(format!(
                    "a script of {} bytes is too long, 1 MiB ({LONGEST_SCRIPT} bytes) at most: put it into a file with \
                     `file.present` and run that",
                    script.len()
                )),
                Some(_) => None,
                None => text("a text"),
            },
            Self::AbsolutePath => match value.as_str() {
                Some(path) if path.starts_with('/') && !path.contains('\0') => None,
                Some(path) => Some(format!("expected an absolute path, found `{path}`")),
                None => text("an absolute path"),
            },
            Self::Url => match value.as_str() {
                Some(url) if url.starts_with("http://") || url.starts_with("https://") => None,
                Some(_) | None => text("an http:// or https:// address"),
            },
            Self::Sha256 => match value.as_str() {
                Some(hex) if crate::plan::Digest::parse(hex).is_some() => None,
                Some(_) | None => text("64 lower-case hex digits"),
            },
            Self::Mode => match value {
                Value::String(mode) if is_mode(mode) => None,
                Value::Number(number) => Some(format!(
                    "a mode is a string of octal digits: write \"{:0>4}\" in quotes (YAML reads a bare {number} as a decimal number)",
                    number.to_string()
                )),
                Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                    text("a string of 3 or 4 octal digits, such as \"0644\"")
                }
            },
            Self::Principal => match value {
                Value::String(name) if !name.is_empty() => None,
                Value::Number(id) if id.as_u64().is_some_and(|id| id < u64::from(u32::MAX)) => None,
                Value::Null
                | Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => text("a name or an id"),
            },
            Self::Bool => {
                if value.is_boolean() {
                    None
                } else {
                    text("true or false")
                }
            }
            Self::Int(low, high) => match value.as_i64() {
                Some(number) if (low..=high).contains(&number) => None,
                Some(_) | None => text(&format!("a whole number from {low} to {high}")),
            },
            Self::Duration => match value.as_str() {
                Some(duration) => crate::duration::parse(duration).err().map(|error| error.to_string()),
                None => text("a duration such as 30s"),
            },
            Self::Enum(words) => match value.as_str() {
                Some(word) if words.contains(&word) => None,
                Some(_) | None => text(&format!("one of {}", words.join(", "))),
            },
            Self::NonEmptyTextList | Self::Lines if value.as_array().is_some_and(Vec::is_empty) => {
                Some("must not be empty".to_owned())
            }
            Self::TextList | Self::NonEmptyTextList => listed("a list of texts", &Value::is_string),
            Self::IntList(low, high) => {
                let fits = |item: &Value| {
                    match item {
                    Value::String(range) => range.split_once('-').is_some_and(|(from, to)| {
                        matches!((from.parse::<i64>(), to.parse::<i64>()), (Ok(from), Ok(to)) if low <= from && from <= to && to <= high)
                    }),
                    other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => other.as_i64().is_some_and(|number| (low..=high).contains(&number)),
                }
                };
                listed(&format!("a list of whole numbers from {low} to {high}"), &fits)
            }
            Self::TextMap => match value.as_object() {
                Some(items)
                    if items
                        .values()
                        .all(|item| !item.is_array() && !item.is_object() && !item.is_null()) =>
                {
                    None
                }
                Some(_) | None => text("a map of texts"),
            },
            Self::Map => {
                if value.is_object() {
                    None
                } else {
                    text("a map")
                }
            }
            Self::TextOrList => {
                if value.is_string() || is_text_list(value) {
                    None
                } else {
                    text("a text or a list of texts")
                }
            }
            Self::FileName => match value.as_str() {
                Some(name) if is_file_name(name) => None,
                Some(_) | None => text("a file name of letters, digits, `-`, `_` and `.`"),
            },
            Self::Line => match value.as_str() {
                Some(line) if is_line(line) => None,
                Some(_) | None => text("a text on one line"),
            },
            Self::Lines => {
                listed("a list of texts, each on one line", &|item| item.as_str().is_some_and(is_line))
            }
            Self::Address => match value.as_str() {
                Some(address) if is_address(address) => None,
                Some(_) | None => text("an IPv4 or IPv6 address"),
            },
            Self::Addresses => {
                listed("a list of IPv4 or IPv6 addresses", &|item| item.as_str().is_some_and(is_address))
            }
            Self::TextOrNumber => {
                if value.is_string() || value.is_number() {
                    None
                } else {
                    text("a text or a number")
                }
            }
        }
    }

    fn schema(self) -> Value {
        match self {
            Self::Any => json!({}),
            Self::Text | Self::SourcePath => json!({"type": "string"}),
            Self::NonEmptyText => json!({"type": "string", "minLength": 1}),
            Self::Script => json!({"type": "string", "minLength": 1, "maxLength": LONGEST_SCRIPT}),
            Self::AbsolutePath => json!({"type": "string", "pattern": "^/"}),
            Self::Regex => json!({"type": "string", "format": "regex"}),
            Self::Url => json!({"type": "string", "pattern": "^https?://"}),
            Self::Sha256 => json!({"type": "string", "pattern": "^[0-9a-f]{64}$"}),
            Self::Mode => json!({"type": "string", "pattern": "^[0-7]{3,4}$"}),
            Self::Principal => json!({"type": ["string", "integer"]}),
            Self::Bool => json!({"type": "boolean"}),
            Self::Int(low, high) => json!({"type": "integer", "minimum": low, "maximum": high}),
            Self::Duration => json!({"type": "string", "pattern": crate::schema::DURATION_PATTERN}),
            Self::Enum(words) => json!({"enum": words}),
            Self::TextList => json!({"type": "array", "items": {"type": "string"}}),
            Self::NonEmptyTextList => json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            Self::IntList(low, high) => json!({"type": "array", "items": {"anyOf": [
                {"type": "integer", "minimum": low, "maximum": high}, {"type": "string", "pattern": "^[0-9]+-[0-9]+$"}]}}),
            Self::TextMap => {
                json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})
            }
            Self::Map => json!({"type": "object"}),
            Self::TextOrList => {
                json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
            }
            Self::TextOrNumber => json!({"type": ["string", "number"]}),
            Self::FileName => json!({"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*$"}),
            Self::Line => json!({"type": "string", "minLength": 1, "pattern": LINE_PATTERN}),
            Self::Lines => {
                json!({"type": "array", "items": {"type": "string", "minLength": 1, "pattern": LINE_PATTERN}, "minItems": 1})
            }
            Self::Address => json!({"type": "string", "pattern": ADDRESS_PATTERN}),
            Self::Addresses => {
                json!({"type": "array", "items": {"type": "string", "pattern": ADDRESS_PATTERN}})
            }
        }
    }
}

/// No control characters, in the words of a schema.
const LINE_PATTERN: &str = "^[^\\u0000-\\u0008\\u000a-\\u001f\\u007f]*$";
/// What addresses are made of, in the words of a schema, which has none that say more.
const ADDRESS_PATTERN: &str = "^[0-9A-Fa-f:.]+$";

fn is_file_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with(['-', '.']) && text.chars().all(fits)
}

fn is_line(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(|c| c.is_control() && c != '\t')
}

fn is_address(text: &str) -> bool {
    text.parse::<core::net::IpAddr>().is_ok()
}

/// Whether `text` is three or four octal digits.
pub fn is_mode(text: &str) -> bool {
    matches!(text.len(), 3 | 4) && text.bytes().all(|b| matches!(b, b'0'..=b'7'))
}

fn is_text_list(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

/// Returns a value's kind and, if it is short, itself: for error messages.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(value) if value.len() <= 60 => format!("the text `{value}`"),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lines_and_addresses_are_nothing_else() {
        for (kind, good, bad) in [
            (
                ParamKind::FileName,
                json!(["web-1", "a.b"]),
                json!(["", "..", ".a", "-a", "a/b", "a b", "a\nb", 1]),
            ),
            (ParamKind::Line, json!(["a b", "a\tb"]), json!(["", " ", "a\nb", "a\rb", 1])),
            (ParamKind::Lines, json!([["a b"], ["a", "b"]]), json!([[], ["a\nb"], [1], "a"])),
            (ParamKind::Address, json!(["10.0.0.1", "fd00::1"]), json!(["10.0.0", "h", "10.0.0.1/8", 1])),
            (ParamKind::Addresses, json!([[], ["10.0.0.1"]]), json!([["h"], "10.0.0.1"])),
            (ParamKind::TextOrNumber, json!(["1", 1]), json!([true, [], {}])),
        ] {
            for value in good.as_array().unwrap() {
                assert_eq!(kind.refuse(value), None, "{kind:?} {value}");
            }
            for value in bad.as_array().unwrap() {
                assert!(kind.refuse(value).is_some(), "{kind:?} {value}");
            }
        }
    }

    #[test]
    fn defaults_are_compared_by_value() {
        let timeout = ParamSpec::new("timeout", ParamKind::Duration, "").default(ParamDefault::Text("1m"));
        let mode = ParamSpec::new("mode", ParamKind::Mode, "").default(ParamDefault::Text("0644"));
        let codes =
            ParamSpec::new("codes", ParamKind::IntList(0, 255), "").default(ParamDefault::Numbers(&[0]));
        let kept = ParamSpec::new("owner", ParamKind::Principal, "");
        for (spec, value) in
            [(&timeout, json!("60s")), (&timeout, json!("1m")), (&mode, json!("644")), (&codes, json!([0]))]
        {
            assert!(spec.is_default(&value), "{} {value}", spec.name);
        }
        for (spec, value) in [
            (&timeout, json!("61s")),
            (&timeout, json!("soon")),
            (&mode, json!("1644")),
            (&codes, json!([0, 1])),
            (&codes, json!([])),
            (&kept, json!("root")),
            (&kept, Value::Null),
        ] {
            assert!(!spec.is_default(&value), "{} {value}", spec.name);
        }
        assert_eq!(timeout.schema()["default"], "1m");
        assert_eq!(kept.schema().get("default"), None);
    }
}
