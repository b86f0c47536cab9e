//! Reads inputs: sinks and keys.

use std::collections::BTreeMap;

use super::{ENV_NAME, NameKind, Reader};
use crate::catalogue::keys::{FILE_SINK_KEYS, INPUT_KEYS, INPUTS_KEYS, KUBECTL_SINK_KEYS};
use crate::catalogue::{At, Document, InputKey, Inputs, Sink, SinkFormat};
use crate::diagnostic::{Diagnostic, suggest};
use crate::plan_file::keys::is_env_name;
use crate::yaml::{Codes, Fields, Node};

impl Reader<'_, '_> {
    pub(super) fn inputs(&mut self, fields: Fields<'_>) -> BTreeMap<String, Inputs> {
        let entries = self.entries(fields, "inputs", "inputs", NameKind::Word);
        let must_be_declared = fields.get("undeclared").and_then(Node::as_text) == Some("error");
        entries
            .into_iter()
            .filter_map(|(key, node)| {
                let inputs = self.one_inputs(key, node, must_be_declared)?;
                Some((key.as_text().unwrap_or_default().to_owned(), inputs))
            })
            .collect()
    }

    fn one_inputs(&mut self, key: Node<'_>, node: Node<'_>, must_be_declared: bool) -> Option<Inputs> {
        let fields = self.walk.map(node, &INPUTS_KEYS)?;
        let sink = fields.get("sink").and_then(|node| self.sink(node));
        let is_env = matches!(&sink, Some(Sink::File { format: SinkFormat::Env, .. }));
        let keys = fields.get("keys").map(|node| self.input_keys(node, is_env, must_be_declared));
        Some(Inputs { sink: sink?, keys: keys?, doc: self.text(fields, "doc"), place: key.place() })
    }

    fn sink(&mut self, node: Node<'_>) -> Option<Sink> {
        let Some(kind) = node.get("kind") else {
            let problem = node.bad("a sink needs the key `kind`");
            self.walk.report(problem.help(format!("kinds: {}", Sink::KINDS.join(", "))));
            return None;
        };
        match self.walk.choice(kind, &Sink::KINDS.map(|kind| (kind, kind)))? {
            "file" => self.file_sink(node),
            _ => self.kubectl_sink(node),
        }
    }

    fn file_sink(&mut self, node: Node<'_>) -> Option<Sink> {
        let fields = self.walk.map(node, &FILE_SINK_KEYS)?;
        let formats = [("manifest", true), ("env", false)];
        let is_manifest =
            fields.get("format").map_or(Some(true), |node| self.walk.choice(node, &formats)).unwrap_or(true);
        let path = fields.get("path").and_then(|node| {
            self.walk.full_text(node)?;
            self.expanded(node)
        });
        if is_manifest {
            if fields.get("name").is_none() {
                let problem = node.bad("a manifest needs the key `name`");
                self.walk.report(
                    problem.help("the name of the Secret; for lines `KEY='value'` use `format: env`"),
                );
            }
            let namespace = self.text(fields, "namespace");
            let document = self.document(fields);
            return Some(Sink::File {
                path: path?,
                format: SinkFormat::Manifest { namespace, document: document? },
            });
        }
        for name in ["namespace", "name", "labels", "annotations"] {
            if let Some(key) = node.key(name) {
                self.walk
                    .report(key.bad(format!("`{name}` has no use with `format: env`")).help("remove it"));
            }
        }
        Some(Sink::File { path: path?, format: SinkFormat::Env })
    }

    fn kubectl_sink(&mut self, node: Node<'_>) -> Option<Sink> {
        let fields = self.walk.map(node, &KUBECTL_SINK_KEYS)?;
        let command = self.text(fields, "command").unwrap_or_else(|| Sink::KUBECTL.to_owned());
        let namespace = self.text(fields, "namespace");
        let document = self.document(fields);
        Some(Sink::Kubectl { command, namespace: namespace?, document: document? })
    }

    fn document(&mut self, fields: Fields<'_>) -> Option<Document> {
        let labels = self.texts(fields, "labels");
        let annotations = self.texts(fields, "annotations");
        if let Some(key) = fields.get("labels").and_then(|labels| labels.key(MANAGED_BY)) {
            self.walk.report(key.bad(format!("the label `{MANAGED_BY}` is set by Stead")).help("remove it"));
        }
        Some(Document { name: self.text(fields, "name")?, labels, annotations })
    }

    fn texts(&mut self, fields: Fields<'_>, key: &str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let Some(node) = fields.get(key) else { return texts };
        let Some(entries) = node.as_map() else {
            self.walk.report(node.bad(format!("expected a map of texts, found {}", node.describe())));
            return texts;
        };
        for (key, value) in entries {
            if let Some(text) = self.walk.text_of_scalar(value) {
                texts.insert(key.as_text().unwrap_or_default().to_owned(), text.to_owned());
            }
        }
        texts
    }

    fn input_keys(
        &mut self,
        node: Node<'_>,
        is_env: bool,
        must_be_declared: bool,
    ) -> BTreeMap<String, InputKey> {
        let mut keys = BTreeMap::new();
        let Some(entries) = node.as_map() else {
            self.walk.report(node.bad(format!("expected a map of keys, found {}", node.describe())));
            return keys;
        };
        for (key, value) in entries.clone() {
            let name = key.as_text().unwrap_or_default();
            let (is_key, rule): (fn(&str) -> bool, &str) =
                if is_env { (is_env_name, ENV_NAME) } else { (is_secret_key, SECRET_KEY) };
            if !is_key(name) {
                self.walk.report(key.bad(format!("`{name}` cannot be a key of inputs")).help(rule));
                continue;
            }
            if let Some(input) = self.input_key(key, value, must_be_declared) {
                keys.insert(name.to_owned(), input);
            }
        }
        let known: Vec<&str> = entries.filter_map(|(key, _)| key.as_text()).collect();
        self.fallbacks(&keys, &known);
        keys
    }

    fn input_key(&mut self, key: Node<'_>, node: Node<'_>, must_be_declared: bool) -> Option<InputKey> {
        let fields = self.walk.map(node, &INPUT_KEYS)?;
        let source = fields.get("from").unwrap_or(key);
        let variable = self.walk.text(source)?;
        if !is_env_name(variable) {
            let problem = source.bad(format!("`{variable}` cannot name a variable"));
            self.walk.report(problem.help("say with `from` which variable the key takes"));
        } else if must_be_declared && !self.names.vars.contains(variable) {
            // Nothing could ever give it a value.
            self.unknown(source, "variable", variable, self.names.vars.iter().copied());
        }
        if let Some(warn) = node.key("warn").filter(|_| fields.get("fallback").is_none()) {
            self.walk.report(warn.bad("`warn` has no use without `fallback`").help("remove it"));
        }
        let fallback = fields.get("fallback").and_then(|node| {
            let name = self.walk.full_text(node)?;
            Some(At { value: name.to_owned(), place: node.place() })
        });
        Some(InputKey {
            variable: At { value: variable.to_owned(), place: source.place() },
            when: fields.get("when").and_then(|node| self.gate(node)),
            required: self.boolean(fields, "required", false),
            length: self.lengths(fields),
            pattern: self.pattern(fields),
            fallback,
            warn: self.text(fields, "warn"),
            doc: self.text(fields, "doc"),
            place: key.place(),
        })
    }

    /// Reports fallbacks that lead nowhere or in a circle.
    fn fallbacks(&mut self, keys: &BTreeMap<String, InputKey>, known: &[&str]) {
        for (name, key) in keys {
            let Some(fallback) = &key.fallback else { continue };
            let error =
                |message: String| Diagnostic::error(Codes::STEPS.bad_value, fallback.place.clone(), message);
            if !known.contains(&fallback.value.as_str()) {
                let help = suggest(&fallback.value, known.iter().copied());
                self.walk.report(error(format!("there is no key `{}`", fallback.value)).help(help));
                continue;
            }
            let mut chain = vec![name.as_str()];
            let mut next = Some(fallback.value.as_str());
            while let Some(at) = next.filter(|at| !chain.contains(at)) {
                chain.push(at);
                next = keys
                    .get(at)
                    .and_then(|key| key.fallback.as_ref())
                    .map(|fallback| fallback.value.as_str());
            }
            // The key with the least name speaks for its circle.
            if next == Some(name.as_str()) && chain.iter().all(|other| *other >= name.as_str()) {
                let message = format!("fallbacks lead in a circle: {} → {name}", chain.join(" → "));
                self.walk.report(error(message).help("remove one of them"));
            }
        }
    }
}

/// The label that marks what Stead made.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

const SECRET_KEY: &str = "letters, digits, `-`, `_` or `.`, at most 253 in all";

/// Whether `name` can be a key of a Secret.
fn is_secret_key(name: &str) -> bool {
    (1..=253).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}
