//! Merging: what every source says about every name, low to high.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stead_model::catalogue::reserved::{DANGEROUS, FLAGS, OWN_PREFIX};
use stead_model::catalogue::{
    Catalogue, Control, ControlKind, LayerOrigin, ProfileFlag, Undeclared, Var, VarKind,
};
use stead_model::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span, nearest, suggest};
use stead_model::layer::{Assignment, LayerFile, Text};
use stead_model::plan_file::keys::is_env_name;

use super::{Effective, Inputs, LayerInput, LayerState, RowState, SET, ValueSource, Values};

/// So many undeclared keys are compared with the declared ones. Typing errors are few; whoever has more keys than this
/// does not declare them, and each comparison costs.
const COMPARED: usize = 20;

/// What is known of one name.
pub(super) struct Entry {
    /// Whether the catalogue declares it.
    pub(super) is_declared: bool,
    /// Whether every value of it is secret.
    pub(super) is_secret: bool,
    /// Whether it is declared bool, int or enum: then a secret layer does not make it secret.
    pub(super) is_plain: bool,
    /// Whether the environment beats the layers.
    pub(super) reads_environment: bool,
    /// What the sources say, low to high.
    pub(super) candidates: Vec<Candidate>,
    /// What came out.
    pub(super) effective: Option<Effective>,
    /// Whether nothing can come out, which has been reported.
    pub(super) is_broken: bool,
}

/// What one source says about a name.
pub(super) struct Candidate {
    pub(super) source: ValueSource,
    /// The number of the layer, if it is one.
    pub(super) layer: Option<usize>,
    /// Where it says so: the key in a layer, the value in the catalogue.
    pub(super) at: At,
    pub(super) value: Said,
    /// The value as written.
    pub(super) raw: String,
    /// Whether the source makes it secret, whatever it refers to.
    pub(super) is_secret: bool,
}

/// Where a candidate is.
pub(super) enum At {
    /// In the catalogue.
    Catalogue(Place),
    /// In its layer.
    Layer(Span),
    /// Nowhere in a text.
    Named(String),
}

/// A value before expansion.
pub(super) enum Said {
    /// It may refer to others.
    Text(Text),
    /// It is taken as it is; the raw value is the value.
    Literal,
    /// Something is wrong with it, which has been reported.
    Broken,
}

/// What is kept of a layer.
pub(super) struct LayerView {
    pub(super) name: String,
    /// Its state for names it does not set.
    pub(super) state: RowState,
    pub(super) open: Option<Source>,
    pub(super) concealed: Option<Source>,
}

/// Returns all names with what their sources say, nothing expanded yet.
pub(super) fn merge(inputs: &Inputs<'_>, diagnostics: &mut Diagnostics) -> Values {
    let mut merge = Merge {
        catalogue: inputs.catalogue,
        entries: declared(inputs.catalogue),
        undeclared: BTreeSet::new(),
        diagnostics,
    };
    for (number, layer) in inputs.layers.iter().enumerate() {
        merge.layer(number, layer);
    }
    for (name, entry) in merge.entries.iter_mut().filter(|(_, entry)| entry.reads_environment) {
        if let Some(value) = inputs.environment.get(name).filter(|value| !value.is_empty()) {
            entry.candidates.push(Candidate {
                source: ValueSource::Environment,
                layer: None,
                at: At::Named(format!("{} variable {name}", super::ENVIRONMENT)),
                value: Said::Literal,
                raw: value.clone(),
                is_secret: entry.is_secret,
            });
        }
    }
    let set: BTreeMap<&str, &str> =
        inputs.set.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for (name, value) in set {
        merge.set(name, value);
    }
    let Merge { entries, .. } = merge;
    Values {
        entries,
        layers: inputs.layers.iter().map(LayerView::of).collect(),
        environment: inputs.environment.clone(),
    }
}

impl LayerView {
    fn of(layer: &LayerInput) -> Self {
        let (state, file) = match &layer.state {
            LayerState::Read(file) => (RowState::Unset, Some(file)),
            LayerState::NotGiven => (RowState::Unset, None),
            LayerState::Missing => (RowState::Missing, None),
            LayerState::Skipped => (RowState::Skipped, None),
        };
        Self {
            name: layer.name.clone(),
            state,
            open: file.map(|file| file.source.clone()),
            concealed: file.map(|file| file.concealed.clone()),
        }
    }
}

/// Returns an entry for every declared name, its default in it.
fn declared(catalogue: &Catalogue) -> BTreeMap<String, Entry> {
    let handed_over: BTreeSet<&str> = catalogue
        .inputs
        .values()
        .flat_map(|inputs| inputs.keys.values())
        .map(|key| key.variable.value.as_str())
        .collect();
    let mut entries = BTreeMap::new();
    for (name, Control { kind, default, .. }) in &catalogue.controls {
        let is_plain = match kind {
            ControlKind::Bool | ControlKind::DryRun | ControlKind::Enum(_) => true,
            ControlKind::Only => false,
        };
        let is_secret = handed_over.contains(name.as_str());
        let mut entry = Entry { is_plain, reads_environment: true, ..Entry::new(true, is_secret) };
        entry.candidates.extend(default.as_ref().map(|default| Candidate::default(default, is_secret)));
        entries.insert(name.clone(), entry);
    }
    for (name, Var { kind, default, env, secret, rules, .. }) in &catalogue.vars {
        let is_plain = match kind {
            VarKind::Bool | VarKind::Int => true,
            VarKind::String => !rules.allowed.is_empty(),
        };
        let is_secret = *secret || handed_over.contains(name.as_str());
        let mut entry = Entry { is_plain, reads_environment: *env, ..Entry::new(true, is_secret) };
        entry.candidates.extend(default.as_ref().map(|default| Candidate::default(default, is_secret)));
        entries.insert(name.clone(), entry);
    }
    // A key of inputs may take a variable that only layers know.
    for name in handed_over {
        entries.entry(name.to_owned()).or_insert_with(|| Entry::new(false, true));
    }
    entries
}

impl Entry {
    fn new(is_declared: bool, is_secret: bool) -> Self {
        Self {
            is_declared,
            is_secret,
            is_plain: false,
            reads_environment: false,
            candidates: Vec::new(),
            effective: None,
            is_broken: false,
        }
    }
}

impl Candidate {
    fn default(default: &stead_model::catalogue::At<Text>, is_secret: bool) -> Self {
        Self {
            source: ValueSource::Default,
            layer: None,
            at: At::Catalogue(default.place.clone()),
            raw: default.value.written(),
            value: Said::Text(default.value.clone()),
            is_secret,
        }
    }
}

struct Merge<'a, 'd> {
    catalogue: &'a Catalogue,
    entries: BTreeMap<String, Entry>,
    /// Undeclared keys that have been told of.
    undeclared: BTreeSet<String>,
    diagnostics: &'d mut Diagnostics,
}

impl Merge<'_, '_> {
    fn layer(&mut self, number: usize, layer: &LayerInput) {
        match &layer.state {
            LayerState::Read(file) => {
                let name: Arc<str> = layer.name.as_str().into();
                for assignment in &file.assignments {
                    self.assignment(number, &name, layer.secret, file, assignment);
                }
            }
            LayerState::Missing | LayerState::Skipped | LayerState::NotGiven => {}
        }
    }

    fn assignment(
        &mut self,
        number: usize,
        name: &Arc<str>,
        secret: bool,
        file: &LayerFile,
        assignment: &Assignment,
    ) {
        let Assignment { key, span, raw, value } = assignment;
        if let Some(why) = self.refused_in_layers(key) {
            let message = format!("`{key}` cannot be set in a layer: {why}");
            let place = file.concealed_place(*span);
            self.diagnostics
                .push(Diagnostic::error("layer/reserved", place, message).help("remove the line"));
            return;
        }
        if !self.is_declared(key) {
            self.undeclared(key, file.concealed_place(*span));
        }
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry::new(false, false));
        entry.candidates.push(Candidate {
            source: ValueSource::File { name: Arc::clone(name), line: span.line },
            layer: Some(number),
            at: At::Layer(*span),
            value: value.clone().map_or(Said::Broken, Said::Text),
            raw: raw.clone(),
            is_secret: entry.is_secret || (secret && !entry.is_plain),
        });
    }

    /// Returns why no layer may set `key`, if so.
    fn refused_in_layers(&self, key: &str) -> Option<String> {
        match reserved(key) {
            Some(reserved) => Some(reserved.called(self.profile_flag()).reason()),
            None if self.catalogue.controls.get(key).is_some_and(|control| !control.in_layers) => {
                Some("it is a control with `in_layers: false`".to_owned())
            }
            None => None,
        }
    }

    fn is_declared(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.is_declared)
    }

    /// Returns what the catalogue calls the flag of its flag layer.
    fn profile_flag(&self) -> &'static str {
        let is_host = self.catalogue.layers.iter().any(|layer| match &layer.origin {
            LayerOrigin::Flag(ProfileFlag::HostEnv) => true,
            LayerOrigin::Flag(ProfileFlag::Profile) | LayerOrigin::File(_) => false,
        });
        if is_host { "--host-env" } else { PROFILE }
    }

    fn undeclared(&mut self, key: &str, place: Place) {
        let message = || format!("the catalogue does not declare `{key}`");
        let problem = match self.catalogue.undeclared {
            Undeclared::Allow => return,
            Undeclared::Warn if self.undeclared.contains(key) => return,
            Undeclared::Warn => Diagnostic::warning("layer/undeclared", place, message()),
            Undeclared::Error => Diagnostic::error("layer/undeclared", place, message()),
        };
        let is_compared = self.undeclared.len() < COMPARED;
        self.undeclared.insert(key.to_owned());
        let declared =
            || self.catalogue.controls.keys().chain(self.catalogue.vars.keys()).map(String::as_str);
        let near = if is_compared { nearest(key, declared()) } else { None };
        self.diagnostics.push(problem.help(match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("add `{key}` to `vars`, or remove it"),
        }));
    }

    /// Returns why `--set` may not set `name`, if so.
    fn refused_by_set(&self, name: &str) -> Option<Diagnostic> {
        if let Some(reserved) = reserved(name) {
            return Some(reserved.called(self.profile_flag()).refused(name));
        }
        if !is_env_name(name) {
            let message = format!("`{name}` is not a name");
            let help = suggest(name, self.catalogue.declared());
            return Some(Diagnostic::error("steps/unknown-key", set_place(name), message).help(help));
        }
        None
    }

    fn set(&mut self, name: &str, value: &str) {
        if let Some(problem) = self.refused_by_set(name) {
            self.diagnostics.push(problem);
            return;
        }
        match self.catalogue.undeclared {
            _ if self.is_declared(name) => {}
            // What was typed is an argument, and no line of a file.
            Undeclared::Error => {
                let message = format!("the catalogue does not declare `{name}`");
                let help = suggest(name, self.catalogue.declared());
                let problem = Diagnostic::error("steps/unknown-key", set_place(name), message);
                self.diagnostics.push(problem.help(help));
                return;
            }
            Undeclared::Allow | Undeclared::Warn => self.undeclared(name, set_place(name)),
        }
        let entry = self.entries.entry(name.to_owned()).or_insert_with(|| Entry::new(false, false));
        let is_secret = entry.is_secret;
        entry.candidates.push(Candidate {
            source: ValueSource::Set,
            layer: None,
            at: At::Named(format!("{SET} {name}")),
            value: Said::Literal,
            raw: value.to_owned(),
            is_secret,
        });
        if is_secret {
            let message =
                format!("`{name}` is secret, and other processes can see the arguments of this one");
            self.diagnostics.push(
                Diagnostic::warning("value/visible-secret", set_place(name), message)
                    .help("put it into a layer with `secret: true`"),
            );
        }
    }
}

fn set_place(name: &str) -> Place {
    Place::Named(format!("{SET} {name}"))
}

/// Why a name is reserved, whatever the catalogue.
#[derive(Clone, Copy)]
enum Reserved {
    /// This flag says what it would.
    Flag(&'static str),
    /// Stead sets it for its children.
    Own,
    /// It makes a child run other code.
    Code,
}

/// The flag of a flag layer, unless the catalogue calls it otherwise.
const PROFILE: &str = "--profile";

impl Reserved {
    /// Returns this with the flag of the flag layer as its catalogue calls it.
    fn called(self, profile_flag: &'static str) -> Self {
        match self {
            Self::Flag(PROFILE) => Self::Flag(profile_flag),
            Self::Flag(_) | Self::Own | Self::Code => self,
        }
    }

    fn reason(self) -> String {
        match self {
            Self::Flag(flag) => format!("it is what `{flag}` says"),
            Self::Own => "names that begin with `STEAD_` are Stead's own".to_owned(),
            Self::Code => "it makes programs run other code".to_owned(),
        }
    }

    /// Returns that `--set` may not set `name`.
    fn refused(self, name: &str) -> Diagnostic {
        let message = format!("`{name}` cannot be set with `{SET}`: {}", self.reason());
        let help = match self {
            Self::Flag(flag) => format!("use `{flag}`"),
            Self::Own | Self::Code => "remove the flag".to_owned(),
        };
        Diagnostic::error("steps/reserved-set", set_place(name), message).help(help)
    }
}

/// Reports every `--set` of a name that no catalogue lets it set.
pub fn refuse_reserved(set: &[(String, String)], diagnostics: &mut Diagnostics) {
    let names: BTreeSet<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
    let refused = names.into_iter().filter_map(|name| Some(reserved(name)?.refused(name)));
    diagnostics.0.extend(refused);
}

fn reserved(name: &str) -> Option<Reserved> {
    if let Some((_, flag)) = FLAGS.iter().find(|(reserved, _)| *reserved == name) {
        return Some(Reserved::Flag(flag));
    }
    if name.starts_with(OWN_PREFIX) {
        return Some(Reserved::Own);
    }
    DANGEROUS.contains(&name).then_some(Reserved::Code)
}
