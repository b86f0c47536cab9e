//! A parameter of an operation: a value, or a template rendered when the operation runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The key that marks a template in `plan.json`: `{"{{}}": "{{ results.a.data }}"}`.
const TEMPLATE_KEY: &str = "{{}}";

/// A parameter: plain, or holding templates somewhere inside.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    /// A value without templates.
    Value(Value),
    /// A template; if it is exactly one `{{ … }}` it keeps the value's type, else it gives text.
    Template(String),
    /// A list with a template inside.
    List(Vec<Param>),
    /// A map with a template inside.
    Map(BTreeMap<String, Param>),
}

impl Param {
    /// Returns the value, if no template is inside.
    pub fn as_value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Template(_) | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Calls `visit` with every template inside and the path to it, such as `env.KEY` or `args.2`.
    pub fn each_template<'a>(&'a self, path: &str, visit: &mut dyn FnMut(&str, &'a str)) {
        match self {
            Self::Value(_) => {}
            Self::Template(template) => visit(path, template),
            Self::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    item.each_template(&format!("{path}.{i}"), visit);
                }
            }
            Self::Map(items) => {
                for (key, item) in items {
                    item.each_template(&format!("{path}.{key}"), visit);
                }
            }
        }
    }
}

impl<T: Into<Value>> From<T> for Param {
    fn from(value: T) -> Self {
        Self::Value(value.into())
    }
}

impl Serialize for Param {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(serializer),
            Self::Template(template) => BTreeMap::from([(TEMPLATE_KEY, template)]).serialize(serializer),
            Self::List(items) => items.serialize(serializer),
            Self::Map(items) => items.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Param {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(from_json(Value::deserialize(deserializer)?))
    }
}

fn from_json(value: Value) -> Param {
    match value {
        Value::Array(items) => {
            let items: Vec<Param> = items.into_iter().map(from_json).collect();
            if items.iter().all(|item| item.as_value().is_some()) {
                Param::Value(Value::Array(items.into_iter().map(into_value).collect()))
            } else {
                Param::List(items)
            }
        }
        Value::Object(mut items) => {
            if items.len() == 1
                && let Some(Value::String(template)) = items.get_mut(TEMPLATE_KEY)
            {
                return Param::Template(std::mem::take(template));
            }
            let items: BTreeMap<String, Param> =
                items.into_iter().map(|(key, item)| (key, from_json(item))).collect();
            if items.values().all(|item| item.as_value().is_some()) {
                Param::Value(Value::Object(
                    items.into_iter().map(|(key, item)| (key, into_value(item))).collect(),
                ))
            } else {
                Param::Map(items)
            }
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => Param::Value(plain),
    }
}

fn into_value(param: Param) -> Value {
    match param {
        Param::Value(value) => value,
        Param::Template(_) | Param::List(_) | Param::Map(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_survive_json_and_literal_braces_stay_literal() {
        let param = Param::Map(BTreeMap::from([
            ("a".to_owned(), Param::Template("{{ results.x.data }}".to_owned())),
            ("b".to_owned(), Param::Value(json!("{{ literal }}"))),
        ]));
        let text = serde_json::to_string(&param).unwrap();
        assert_eq!(serde_json::from_str::<Param>(&text).unwrap(), param);
    }
}
