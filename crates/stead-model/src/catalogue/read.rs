//! Reads catalogues, every problem at once.
//!
//! Names come first: every control, variable, step and inputs a file declares is known before the rest is read, so that
//! a faulty entry is reported once and not again wherever it is used.

use std::collections::BTreeMap;
use std::path::Path;

use super::gate;
use super::keys::{
    CATALOGUE_KEYS, CHECK_KEYS, GOLDEN_KEYS, LAYER_KEYS, LIMITS_KEYS, ORDER_KEYS, TARGET_KEYS, TARGET_WORDS,
};
use super::{
    At, Catalogue, CheckSpec, Gate, Layer, LayerOrigin, Order, PerMode, ProfileFlag, StepMode, Target,
    Undeclared,
};
use crate::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span, suggest};
use crate::id::{PlanName, is_lower_word};
use crate::layer::Text;
use crate::plan_file::api_version;
use crate::plan_file::keys::{MAX_PARALLEL, is_env_name};
use crate::yaml::{self, Codes, Fields, Node, Walk};

mod inputs;
mod intents;
mod lists;
mod names;
mod paths;
mod steps;
mod values;

use names::Names;

/// Returns the catalogue `source` holds, or every problem in it. `file` is its absolute path.
pub(super) fn catalogue(source: &Source, file: &Path) -> Result<Catalogue, Diagnostics> {
    let file = &paths::resolved(file);
    let mut diagnostics = Diagnostics::default();
    let catalogue = yaml::read(source, Codes::STEPS, &mut diagnostics).and_then(|tree| {
        let mut walk = Walk::new(&mut diagnostics);
        let fields = walk.map(tree.root(), &CATALOGUE_KEYS)?;
        let names = Names::of(fields);
        Reader { walk, names: &names }.catalogue(fields, file)
    });
    match catalogue {
        Some(catalogue) if !diagnostics.has_errors() => Ok(catalogue),
        Some(_) | None => Err(diagnostics.sorted()),
    }
}

/// What reads one file.
struct Reader<'d, 'n> {
    walk: Walk<'d>,
    names: &'n Names<'n>,
}

impl Reader<'_, '_> {
    fn catalogue(&mut self, fields: Fields<'_>, file: &Path) -> Option<Catalogue> {
        if let Some(node) = fields.get("api_version") {
            api_version(&mut self.walk, node);
        }
        let name = self.name(fields, file);
        let steps = self.steps(fields);
        let mut catalogue = Catalogue {
            source: fields.node().tree().source().clone(),
            doc: self.text(fields, "doc"),
            root: self.root(fields, file),
            target: fields.get("target").and_then(|node| self.target(node)),
            undeclared: fields
                .get("undeclared")
                .and_then(|node| self.walk.choice(node, &Undeclared::WORDS))
                .unwrap_or_default(),
            layers: self.layers(fields),
            controls: self.controls(fields),
            vars: self.vars(fields),
            apply: self.groups(fields, StepMode::Apply, &steps).unwrap_or_default(),
            delete: self.groups(fields, StepMode::Delete, &steps),
            order: self.order(fields),
            parallel: self.parallel(fields),
            inputs: self.inputs(fields),
            intents: BTreeMap::new(),
            check: fields.get("check").map(|node| self.check(node)).unwrap_or_default(),
            steps,
            // A faulty one has been reported.
            name: name.unwrap_or_else(|| PlanName::parse("unnamed").expect("a word is a plan name")),
        };
        self.needs(&catalogue);
        catalogue.intents = self.intents(fields, &catalogue);
        Some(catalogue)
    }

    fn name(&mut self, fields: Fields<'_>, file: &Path) -> Option<PlanName> {
        let (text, node) = match fields.get("name") {
            Some(node) => (self.walk.text(node)?, node),
            None => (file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default(), fields.node()),
        };
        if is_lower_word(text) {
            return PlanName::parse(text).ok();
        }
        let help = match fields.get("name") {
            Some(_) => LOWER_WORD.to_owned(),
            None => format!("give the catalogue a `name`: {LOWER_WORD}"),
        };
        self.walk.report(node.bad(format!("`{text}` cannot name a catalogue")).help(help));
        None
    }

    fn root(&mut self, fields: Fields<'_>, file: &Path) -> std::path::PathBuf {
        let directory = file.parent().unwrap_or(Path::new("/"));
        match fields.get("root").and_then(|node| self.walk.full_text(node)) {
            Some(given) => paths::resolved(&directory.join(given)),
            None if directory.file_name().is_some_and(|name| name == "steps") => {
                directory.parent().unwrap_or(directory).to_owned()
            }
            None => directory.to_owned(),
        }
    }

    fn target(&mut self, node: Node<'_>) -> Option<Target> {
        let fields = self.walk.map(node, &TARGET_KEYS)?;
        let from = fields.get("from")?;
        let words = TARGET_WORDS.map(|word| (word, word));
        let from = self.walk.choice(from, &words)?;
        let default = fields.get("default").and_then(|node| self.expanded(node));
        let value = fields.get("value").and_then(|node| self.expanded(node));
        for (key, belongs_to) in [("default", "kubeconfig"), ("value", "value")] {
            if let Some(key_node) = node.key(key).filter(|_| from != belongs_to) {
                let message = format!("`{key}` has no use with `from: {from}`");
                self.walk.report(key_node.bad(message).help(format!("it belongs to `from: {belongs_to}`")));
            }
        }
        match from {
            "kubeconfig" => Some(Target::Kubeconfig { default }),
            "hostname" => Some(Target::Hostname),
            _ => {
                if fields.get("value").is_none() {
                    let problem = node.bad("`from: value` needs the key `value`");
                    self.walk.report(problem.help("write the target there; it may refer to variables"));
                }
                value.map(Target::Value)
            }
        }
    }

    fn layers(&mut self, fields: Fields<'_>) -> Vec<Layer> {
        let Some(items) = fields.get("layers").and_then(|node| self.walk.list(node, "layers")) else {
            return Vec::new();
        };
        let count = items.len();
        let mut layers: Vec<Layer> = Vec::with_capacity(count);
        let mut files: BTreeMap<String, Place> = BTreeMap::new();
        let mut flag: Option<Place> = None;
        for (i, node) in items.enumerate() {
            let Some(layer) = self.layer(node) else { continue };
            match &layer.origin {
                LayerOrigin::File(path) => match files.get(&path.value) {
                    Some(first) => {
                        let message = format!("the file `{}` is two layers", path.value);
                        let problem = node.bad(message).help("remove one of them");
                        self.walk.report(problem.related(first.clone(), "the other one"));
                    }
                    None => {
                        files.insert(path.value.clone(), path.place.clone());
                    }
                },
                LayerOrigin::Flag(_) => {
                    if let Some(first) = &flag {
                        let problem = node.bad("there is one layer with `flag` at most");
                        self.walk.report(problem.related(first.clone(), "the other one"));
                    } else if i + 1 != count {
                        let problem = node.bad("the layer with `flag` is the last one");
                        self.walk.report(problem.help("move it to the end of `layers`"));
                    }
                    flag.get_or_insert(node.place());
                }
            }
            layers.push(layer);
        }
        layers
    }

    fn layer(&mut self, node: Node<'_>) -> Option<Layer> {
        let fields = self.walk.map(node, &LAYER_KEYS)?;
        let unless = fields.get("unless").and_then(|node| self.gate(node));
        for name in unless.iter().flat_map(Gate::names) {
            if self.names.is_in_layers(&name.value) {
                let message =
                    format!("`{}` may be set by layers, so it cannot decide which are read", name.value);
                let problem = Diagnostic::error(Codes::STEPS.bad_value, name.place.clone(), message);
                self.walk.report(problem.help("use a control with `in_layers: false`"));
            }
        }
        let secret = self.boolean(fields, "secret", false);
        let optional = self.boolean(fields, "optional", true);
        let origin = match (fields.get("file"), fields.get("flag")) {
            (Some(file), None) => LayerOrigin::File(self.relative_or_absolute(file)?),
            (None, Some(flag)) => {
                if let Some(key) = node.key("optional") {
                    let problem = key.bad("`optional` has no use with `flag`");
                    self.walk.report(problem.help("the file that a flag names must always be there"));
                }
                LayerOrigin::Flag(self.walk.choice(flag, &ProfileFlag::WORDS)?)
            }
            (Some(_), Some(_)) | (None, None) => {
                let problem = node.bad("a layer has either `file` or `flag`");
                self.walk.report(problem.help("write `file: PATH`, or `flag: profile` for the last layer"));
                return None;
            }
        };
        Some(Layer { origin, unless, secret, optional, place: node.place() })
    }

    fn order(&mut self, fields: Fields<'_>) -> PerMode<Order> {
        let mut order = PerMode::default();
        let Some(given) = fields.get("order").and_then(|node| self.walk.map(node, &ORDER_KEYS)) else {
            return order;
        };
        for (word, mode) in StepMode::WORDS {
            if let Some(given) = given.get(word).and_then(|node| self.walk.choice(node, &Order::WORDS)) {
                *order.get_mut(mode) = given;
            }
        }
        order
    }

    fn parallel(&mut self, fields: Fields<'_>) -> u32 {
        let given = fields.get("limits").and_then(|node| self.walk.map(node, &LIMITS_KEYS));
        given
            .and_then(|given| self.walk.integer(given.get("parallel")?, 1..=MAX_PARALLEL))
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(Catalogue::PARALLEL)
    }

    fn check(&mut self, node: Node<'_>) -> CheckSpec {
        let Some(fields) = self.walk.map(node, &CHECK_KEYS) else { return CheckSpec::default() };
        let mut check = CheckSpec::default();
        if let Some(items) = fields.get("scan").and_then(|node| self.walk.list(node, "directories")) {
            check.scan = items.filter_map(|node| self.relative(node)).collect();
        }
        if let Some(golden) = fields.get("golden").and_then(|node| self.walk.map(node, &GOLDEN_KEYS)) {
            for (word, mode) in StepMode::WORDS {
                *check.golden.get_mut(mode) = golden.get(word).and_then(|node| self.relative(node));
            }
            if let Some(key) = golden.node().key("delete").filter(|_| !self.names.has_delete) {
                self.walk.report(key.bad("there is no `delete` list whose lines these could be"));
            }
        }
        check
    }

    /// Returns the entries of the map at `key` whose names are right, none if there is no such key.
    fn entries<'t>(
        &mut self,
        fields: Fields<'t>,
        key: &str,
        what: &str,
        kind: NameKind,
    ) -> Vec<(Node<'t>, Node<'t>)> {
        let Some(node) = fields.get(key) else { return Vec::new() };
        let Some(entries) = node.as_map() else {
            self.walk.report(node.bad(format!("expected a map of {what}, found {}", node.describe())));
            return Vec::new();
        };
        let (is_name, rule): (fn(&str) -> bool, &str) = match kind {
            NameKind::Variable => (is_env_name, ENV_NAME),
            NameKind::Word => (is_lower_word, LOWER_WORD),
        };
        entries
            .filter(|(key, _)| {
                let name = key.as_text().unwrap_or_default();
                let right = is_name(name);
                if !right {
                    self.walk.report(key.bad(format!("`{name}` cannot be a name in {what}")).help(rule));
                }
                right
            })
            .collect()
    }

    fn text(&mut self, fields: Fields<'_>, key: &str) -> Option<String> {
        fields.get(key).and_then(|node| self.walk.full_text(node)).map(str::to_owned)
    }

    fn boolean(&mut self, fields: Fields<'_>, key: &str, default: bool) -> bool {
        fields.get(key).and_then(|node| self.walk.boolean(node)).unwrap_or(default)
    }

    /// Returns a scalar as a text whose references are expanded.
    fn expanded(&mut self, node: Node<'_>) -> Option<At<Text>> {
        let text = self.walk.text_of_scalar(node)?;
        let mut problems = Diagnostics::default();
        let text = Text::parse(text, &node.place(), &mut problems);
        for problem in problems.0 {
            self.walk.report(Diagnostic { code: Codes::STEPS.bad_value, ..problem }.path(node.path()));
        }
        Some(At { value: text, place: node.place() })
    }

    /// Returns the texts of a list of scalars, at least one, none twice.
    fn choices(&mut self, node: Node<'_>) -> Option<Vec<String>> {
        let items = self.walk.list(node, "values")?;
        if items.len() == 0 {
            self.walk.report(node.bad("must not be empty"));
            return None;
        }
        let mut choices: Vec<String> = Vec::with_capacity(items.len());
        for item in items {
            let Some(text) = self.walk.text_of_scalar(item) else { continue };
            if choices.iter().any(|known| known == text) {
                self.walk.report(item.bad(format!("`{text}` is listed twice")));
            } else if text.is_empty() {
                self.walk.report(item.bad("must not be empty").help("an empty value counts as none"));
            } else {
                choices.push(text.to_owned());
            }
        }
        Some(choices)
    }

    /// Returns a gate whose names are all declared, and bool where they stand alone.
    fn gate(&mut self, node: Node<'_>) -> Option<Gate> {
        let text = self.walk.full_text(node)?;
        let place = |range: std::ops::Range<usize>| place_within(node, text, range);
        match gate::parse(text, &place) {
            Err(error) => {
                let mut problem = node.bad(error.message).help(
                    "a gate is made of names of controls and variables, `!`, `&&`, `||`, `( )`, `==` and `!=`",
                );
                problem.place = place(error.range);
                self.walk.report(problem);
                None
            }
            Ok(condition) => {
                for mut problem in self.names.judge(&condition) {
                    problem.path = node.path();
                    self.walk.report(problem);
                }
                Some(Gate { text: text.trim().to_owned(), condition, place: node.place() })
            }
        }
    }

    /// Reports that `name` at `node` is not one of `known`.
    fn unknown<'a>(
        &mut self,
        node: Node<'_>,
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) {
        let known: Vec<&str> = known.into_iter().collect();
        let problem =
            node.bad(format!("there is no {what} `{name}`")).help(suggest(name, known.iter().copied()));
        self.walk.report(problem.candidates(known.into_iter().map(str::to_owned).collect()));
    }
}

/// What the keys of a map are.
#[derive(Clone, Copy)]
enum NameKind {
    /// Names of environment variables.
    Variable,
    /// `[a-z][a-z0-9-]*`.
    Word,
}

const LOWER_WORD: &str = "a lower-case letter, then lower-case letters, digits or `-`, at most 128 in all";
const ENV_NAME: &str = "a letter or `_`, then letters, digits or `_`, at most 255 in all";

/// Returns the place of `range` in the text that `node` is, as near as it is known.
fn place_within(node: Node<'_>, text: &str, range: std::ops::Range<usize>) -> Place {
    let raw = node.raw();
    let Some(start) = raw.find(text).map(|at| at + range.start) else { return node.place() };
    let before = raw.get(..start).unwrap_or_default();
    if before.contains('\n') {
        return node.place();
    }
    let whole = node.span();
    let columns = u32::try_from(before.chars().count()).unwrap_or(u32::MAX);
    let span = Span {
        start: whole.start + start,
        end: whole.start + start + range.len(),
        line: whole.line,
        column: whole.column.saturating_add(columns),
    };
    Place::Text { source: node.tree().source().clone(), span }
}
