//! Reads controls and variables.

use std::collections::BTreeMap;

use super::{NameKind, Reader};
use crate::catalogue::keys::{CONTROL_KEYS, MAX_BYTES, VAR_KEYS};
use crate::catalogue::reserved::is_reserved;
use crate::catalogue::{At, Control, ControlKind, Pattern, Rules, Var, VarKind};
use crate::id::StepId;
use crate::yaml::{Fields, Node};

impl Reader<'_, '_> {
    pub(super) fn controls(&mut self, fields: Fields<'_>) -> BTreeMap<String, Control> {
        let mut controls = BTreeMap::new();
        for (key, node) in self.entries(fields, "controls", "controls", NameKind::Variable) {
            let name = key.as_text().unwrap_or_default();
            if let Some(control) = self.control(name, key, node) {
                controls.insert(name.to_owned(), control);
            }
        }
        controls
    }

    fn control(&mut self, name: &str, key: Node<'_>, node: Node<'_>) -> Option<Control> {
        let fields = self.walk.map(node, &CONTROL_KEYS)?;
        let built_in = match name {
            "ONLY" => Some(ControlKind::Only),
            "DRY_RUN" => Some(ControlKind::DryRun),
            _ => None,
        };
        let doc = self.text(fields, "doc");
        if let Some(kind) = built_in {
            for (key, _) in node.as_map().into_iter().flatten() {
                if key
                    .as_text()
                    .is_some_and(|key| key != "doc" && CONTROL_KEYS.names().any(|name| name == key))
                {
                    let problem = key.bad(format!("`{name}` is built in and takes no settings"));
                    self.walk.report(problem.help(format!("write `{name}: {{}}`")));
                }
            }
            return Some(Control { kind, default: None, in_layers: false, doc, place: key.place() });
        }
        self.refuse_reserved(name, key);
        let kind = match (fields.get("type"), fields.get("enum")) {
            (Some(kind), None) => self.walk.choice(kind, &[("bool", ())]).map(|()| ControlKind::Bool),
            (None, Some(allowed)) => self.choices(allowed).map(ControlKind::Enum),
            (Some(_), Some(_)) | (None, None) => {
                let problem = node.bad(format!("the control `{name}` has either `type: bool` or `enum`"));
                self.walk.report(problem.help("write `{ type: bool }` or `{ enum: [a, b] }`"));
                None
            }
        };
        Some(Control {
            default: fields.get("default").and_then(|node| self.expanded(node)),
            in_layers: self.boolean(fields, "in_layers", true),
            doc,
            place: key.place(),
            kind: kind?,
        })
    }

    pub(super) fn vars(&mut self, fields: Fields<'_>) -> BTreeMap<String, Var> {
        let mut vars = BTreeMap::new();
        let controls = fields.get("controls");
        for (key, node) in self.entries(fields, "vars", "variables", NameKind::Variable) {
            let name = key.as_text().unwrap_or_default();
            if let Some(control) = controls.and_then(|controls| controls.key(name)) {
                let problem = key.bad(format!("`{name}` is a control as well"));
                self.walk.report(problem.related(control.place(), "the control").help("remove one of them"));
            } else {
                self.refuse_reserved(name, key);
            }
            if let Some(var) = self.var(key, node) {
                vars.insert(name.to_owned(), var);
            }
        }
        vars
    }

    fn var(&mut self, key: Node<'_>, node: Node<'_>) -> Option<Var> {
        let fields = self.walk.map(node, &VAR_KEYS)?;
        let kind =
            fields.get("type").and_then(|node| self.walk.choice(node, &VarKind::WORDS)).unwrap_or_default();
        let required = self.boolean(fields, "required", false);
        for name in ["when", "for"] {
            if let Some(key) = node.key(name).filter(|_| !required) {
                let problem = key.bad(format!("`{name}` has no use without `required: true`"));
                self.walk.report(problem.help("add `required: true`, or remove it"));
            }
        }
        Some(Var {
            kind,
            default: fields.get("default").and_then(|node| self.expanded(node)),
            env: self.boolean(fields, "env", false),
            secret: self.boolean(fields, "secret", false),
            rules: self.rules(fields, kind),
            required,
            when: fields.get("when").and_then(|node| self.gate(node)),
            for_steps: fields.get("for").map(|node| self.step_ids(node)).unwrap_or_default(),
            doc: self.text(fields, "doc"),
            place: key.place(),
        })
    }

    fn rules(&mut self, fields: Fields<'_>, kind: VarKind) -> Rules {
        let node = fields.node();
        if let Some(key) = node.key("enum").filter(|_| kind == VarKind::Bool) {
            self.walk.report(key.bad("`enum` has no use with `type: bool`").help("remove one of them"));
        }
        for name in ["min", "max"] {
            if let Some(key) = node.key(name).filter(|_| kind != VarKind::Int) {
                let problem = key.bad(format!("`{name}` has no use with `type: {}`", kind.as_str()));
                self.walk.report(
                    problem
                        .help("write `type: int`; for the length of a text use `min_length`, `max_length`"),
                );
            }
        }
        let rules = Rules {
            allowed: fields.get("enum").and_then(|node| self.choices(node)).unwrap_or_default(),
            length: self.lengths(fields),
            min_length: fields.get("min_length").and_then(|node| self.bytes(node)),
            max_length: fields.get("max_length").and_then(|node| self.bytes(node)),
            pattern: self.pattern(fields),
            min: fields.get("min").and_then(|node| self.walk.integer(node, i64::MIN..=i64::MAX)),
            max: fields.get("max").and_then(|node| self.walk.integer(node, i64::MIN..=i64::MAX)),
        };
        let crossed = [
            ("min", "max", rules.min.zip(rules.max).is_some_and(|(min, max)| min > max)),
            (
                "min_length",
                "max_length",
                rules.min_length.zip(rules.max_length).is_some_and(|(min, max)| min > max),
            ),
        ];
        for (low, high, _) in crossed.iter().filter(|(.., crossed)| *crossed) {
            let place = node.key(low).unwrap_or(node);
            self.walk.report(place.bad(format!("`{low}` is more than `{high}`: no value fits")));
        }
        rules
    }

    pub(super) fn lengths(&mut self, fields: Fields<'_>) -> Vec<usize> {
        let Some(node) = fields.get("length") else { return Vec::new() };
        let Some(items) = self.walk.list(node, "lengths, such as [16, 32]") else { return Vec::new() };
        if items.len() == 0 {
            self.walk.report(node.bad("must not be empty"));
        }
        items.filter_map(|node| self.bytes(node)).collect()
    }

    fn bytes(&mut self, node: Node<'_>) -> Option<usize> {
        self.walk.integer(node, 0..=MAX_BYTES).and_then(|number| usize::try_from(number).ok())
    }

    pub(super) fn pattern(&mut self, fields: Fields<'_>) -> Option<Pattern> {
        let node = fields.get("pattern")?;
        let text = self.walk.full_text(node)?;
        Pattern::parse(text)
            .map_err(|error| {
                // What follows the picture of the expression says what is wrong with it.
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                self.walk.report(node.bad(format!("this is no regular expression: {reason}")));
            })
            .ok()
    }

    /// Returns the ids of a list, those that no step has reported.
    pub(super) fn step_ids(&mut self, node: Node<'_>) -> Vec<At<StepId>> {
        let Some(items) = self.walk.list(node, "step ids") else { return Vec::new() };
        items.filter_map(|node| self.step_id(node)).collect()
    }

    pub(super) fn step_id(&mut self, node: Node<'_>) -> Option<At<StepId>> {
        let text = self.walk.text(node)?;
        if !self.names.steps.contains(text) {
            self.unknown(node, "step", text, self.names.steps.iter().copied());
            return None;
        }
        // A declared id that is no id has been reported where it is declared.
        StepId::parse(text).ok().map(|value| At { value, place: node.place() })
    }

    fn refuse_reserved(&mut self, name: &str, key: Node<'_>) {
        if is_reserved(name) {
            let help = match name {
                "ONLY" | "DRY_RUN" => "it is a control: write it under `controls`",
                _ => "choose another name",
            };
            self.walk.report(key.bad(format!("`{name}` is reserved")).help(help));
        }
    }
}
