//! Reads intents.

use std::collections::BTreeMap;

use super::{NameKind, Reader};
use crate::catalogue::keys::{EDIT_KEYS, INTENT_KEYS, PARAM_KEYS, THEN_KEYS};
use crate::catalogue::{
    At, Catalogue, Edit, EditValue, Intent, IntentParam, KeyPath, ScalarKind, Step, StepMode, Then,
};
use crate::yaml::{Fields, Node};

type Params = BTreeMap<String, IntentParam>;

impl Reader<'_, '_> {
    pub(super) fn intents(&mut self, fields: Fields<'_>, catalogue: &Catalogue) -> BTreeMap<String, Intent> {
        let entries = self.entries(fields, "intents", "intents", NameKind::Word);
        let mut intents = BTreeMap::new();
        for (key, node) in entries {
            let name = key.as_text().unwrap_or_default();
            if name == "list" {
                let problem = key.bad("an intent cannot be called `list`");
                self.walk.report(problem.help("`stead intent list` lists intents; choose another name"));
            }
            if let Some(intent) = self.intent(key, node, catalogue) {
                intents.insert(name.to_owned(), intent);
            }
        }
        intents
    }

    fn intent(&mut self, key: Node<'_>, node: Node<'_>, catalogue: &Catalogue) -> Option<Intent> {
        let fields = self.walk.map(node, &INTENT_KEYS)?;
        let mut params = Params::new();
        for (key, node) in self.entries(fields, "params", "parameters", NameKind::Variable) {
            if let Some(param) = self.param(key, node) {
                params.insert(key.as_text().unwrap_or_default().to_owned(), param);
            }
        }
        let declared: Vec<&str> = fields
            .get("params")
            .and_then(Node::as_map)
            .into_iter()
            .flatten()
            .filter_map(|(key, _)| key.as_text())
            .collect();
        let edits = fields.get("edits").map(|node| self.edits(node, &params, &declared)).unwrap_or_default();
        let then = fields.get("then").and_then(|node| self.then(node, catalogue));
        Some(Intent { params, edits, then, doc: self.text(fields, "doc"), place: key.place() })
    }

    fn param(&mut self, key: Node<'_>, node: Node<'_>) -> Option<IntentParam> {
        let fields = self.walk.map(node, &PARAM_KEYS)?;
        let allowed = fields.get("enum").and_then(|node| self.choices(node));
        let default = fields.get("default").and_then(|node| Some((node, self.walk.text_of_scalar(node)?)));
        if let (Some((node, default)), Some(allowed)) = (default, &allowed)
            && !allowed.iter().any(|value| value == default)
        {
            let problem = node.bad(format!("`{default}` is not one of the values"));
            self.walk.report(problem.help(format!("values: {}", allowed.join(", "))));
        }
        Some(IntentParam {
            allowed: allowed?,
            default: default.map(|(_, default)| default.to_owned()),
            doc: self.text(fields, "doc"),
            place: key.place(),
        })
    }

    fn edits(&mut self, node: Node<'_>, params: &Params, declared: &[&str]) -> Vec<Edit> {
        let Some(items) = self.walk.list(node, "edits") else { return Vec::new() };
        if items.len() == 0 {
            self.walk.report(node.bad("an intent has at least one edit"));
        }
        let mut edits: Vec<Edit> = Vec::with_capacity(items.len());
        for node in items {
            let Some(edit) = self.edit(node, params, declared) else { continue };
            let same = |other: &&Edit| {
                (&other.file.value, &other.path.value) == (&edit.file.value, &edit.path.value)
                    && other
                        .select
                        .iter()
                        .map(|(path, text)| (&path.value, text))
                        .eq(edit.select.iter().map(|(path, text)| (&path.value, text)))
            };
            if let Some(first) = edits.iter().find(same) {
                let problem = node.bad("two edits of one value").help("remove one of them");
                self.walk.report(problem.related(first.place.clone(), "the other one"));
            }
            edits.push(edit);
        }
        edits
    }

    fn edit(&mut self, node: Node<'_>, params: &Params, declared: &[&str]) -> Option<Edit> {
        let fields = self.walk.map(node, &EDIT_KEYS)?;
        let file = fields.get("file").and_then(|node| self.relative(node));
        let select = fields.get("select").map(|node| self.select(node)).unwrap_or_default();
        let path = fields.get("path").and_then(|node| self.key_path(node));
        let kind = fields
            .get("type")
            .and_then(|node| self.walk.choice(node, &ScalarKind::WORDS))
            .unwrap_or_default();
        let value = self.edit_value(node, fields, params, declared, kind);
        let must_exist = self.boolean(fields, "must_exist", false);
        Some(Edit { file: file?, select, path: path?, value: value?, kind, must_exist, place: node.place() })
    }

    fn select(&mut self, node: Node<'_>) -> Vec<(At<KeyPath>, String)> {
        let Some(entries) = node.as_map() else {
            self.walk
                .report(node.bad(format!("expected a map of values by path, found {}", node.describe())));
            return Vec::new();
        };
        if entries.len() == 0 {
            self.walk.report(
                node.bad("must not be empty").help("write `{ kind: K, metadata.name: N }`, or remove it"),
            );
        }
        let mut select = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let path = self.key_path(key);
            let text = self.walk.text_of_scalar(value);
            select.extend(path.zip(text.map(str::to_owned)));
        }
        select
    }

    fn key_path(&mut self, node: Node<'_>) -> Option<At<KeyPath>> {
        let text = self.walk.full_text(node)?;
        let path = self.walk.parsed(node, KeyPath::parse(text))?;
        Some(At { value: path, place: node.place() })
    }

    fn edit_value(
        &mut self,
        node: Node<'_>,
        fields: Fields<'_>,
        params: &Params,
        declared: &[&str],
        kind: ScalarKind,
    ) -> Option<EditValue> {
        match (fields.get("value"), fields.get("by"), fields.get("values")) {
            (Some(value), None, None) => {
                let text = self.expanded(value)?;
                for (name, _) in text.value.references() {
                    if !declared.contains(&name) {
                        self.unknown(value, "parameter", name, declared.iter().copied());
                    }
                }
                if text.value.references().is_empty() {
                    self.scalar(value, kind);
                }
                Some(EditValue::Template(text))
            }
            (None, Some(by), Some(values)) => self.by(by, values, params, declared, kind),
            _ => {
                let problem = node.bad("an edit has either `value`, or `by` and `values`");
                self.walk.report(
                    problem.help("`value: \"app-${PARAM}\"`, or `by: PARAM, values: { a: x, b: y }`"),
                );
                None
            }
        }
    }

    fn by(
        &mut self,
        by: Node<'_>,
        values: Node<'_>,
        params: &Params,
        declared: &[&str],
        kind: ScalarKind,
    ) -> Option<EditValue> {
        let name = self.walk.text(by)?;
        if !declared.contains(&name) {
            self.unknown(by, "parameter", name, declared.iter().copied());
            return None;
        }
        let Some(entries) = values.as_map() else {
            self.walk.report(values.bad(format!("expected a map of values, found {}", values.describe())));
            return None;
        };
        let allowed = &params.get(name)?.allowed;
        let mut written = BTreeMap::new();
        for (key, value) in entries {
            let choice = key.as_text().unwrap_or_default();
            if !allowed.iter().any(|value| value == choice) {
                let problem = key.bad(format!("`{name}` is never `{choice}`"));
                self.walk.report(problem.help(format!("values: {}", allowed.join(", "))));
            }
            self.scalar(value, kind);
            if let Some(text) = self.walk.text_of_scalar(value) {
                written.insert(choice.to_owned(), text.to_owned());
            }
        }
        for missing in allowed.iter().filter(|value| values.get(value).is_none()) {
            let problem = values.bad(format!("there is no value for `{name}={missing}`"));
            self.walk.report(problem.help(format!("add `{missing}: …`")));
        }
        Some(EditValue::By { param: At { value: name.to_owned(), place: by.place() }, values: written })
    }

    /// Reports a scalar that is not of `kind`.
    fn scalar(&mut self, node: Node<'_>, kind: ScalarKind) {
        let Some(text) = node.as_text().or_else(|| node.as_map().is_none().then(|| node.raw())) else {
            return;
        };
        let wanted = match kind {
            ScalarKind::Int if text.parse::<i64>().is_err() => "a whole number",
            ScalarKind::Bool if !matches!(text, "true" | "false") => "true or false",
            ScalarKind::String | ScalarKind::Int | ScalarKind::Bool => return,
        };
        self.walk.report(node.bad(format!("expected {wanted}, found {}", node.describe())));
    }

    fn then(&mut self, node: Node<'_>, catalogue: &Catalogue) -> Option<Then> {
        let fields = self.walk.map(node, &THEN_KEYS)?;
        let node = fields.get("only")?;
        let items = self.walk.list(node, "steps")?;
        if items.len() == 0 {
            self.walk.report(node.bad("must not be empty"));
        }
        let only = items
            .filter_map(|node| {
                let token = self.walk.text_of_scalar(node)?.trim();
                self.token(node, token, catalogue);
                Some(At { value: token.to_owned(), place: node.place() })
            })
            .collect();
        Some(Then { only })
    }

    /// Reports a token that `--only` would not take in apply, or that means a step which destroys.
    fn token(&mut self, node: Node<'_>, token: &str, catalogue: &Catalogue) {
        let listed = || catalogue.listed(StepMode::Apply).map(|(_, step)| step);
        let found: Vec<&Step> = listed().filter(|step| step.answers_to(token)).collect();
        if found.is_empty() {
            let known: Vec<&str> = listed().map(Step::basename).collect();
            let help = crate::diagnostic::suggest(token, known);
            self.walk.report(node.bad(format!("no step of `apply` goes by `{token}`")).help(help));
        }
        if found.len() > 1 && !Step::is_number(token) {
            let ids: Vec<&str> = found.iter().map(|step| step.id.as_str()).collect();
            let problem = node.bad(format!("several steps go by `{token}`"));
            self.walk.report(problem.help(format!("name one of them: {}", ids.join(", "))));
        }
        for step in found.iter().filter(|step| step.destructive.contains(&StepMode::Apply)) {
            let problem = node.bad(format!("`{}` destroys, so it cannot follow an intent", step.id));
            let problem = problem.help("run it with `stead steps run`, which asks first");
            self.walk.report(problem.related(step.place.clone(), "the step"));
        }
    }
}
