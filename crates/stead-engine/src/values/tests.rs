//! Values under the rules of the contract, on the catalogue of its example.

mod documents;
mod expansion;
mod precedence;
mod provenance;
mod ruled;
mod secrecy;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use stead_model::StepId;
use stead_model::catalogue::{Catalogue, LayerOrigin};
use stead_model::diagnostic::{Diagnostics, Severity, Source};
use stead_model::layer::LayerFile;

use super::*;

/// The example's catalogue, as far as values are concerned.
const CLUSTER: &str = r#"api_version: v1
name: cluster
undeclared: error
layers:
  - { file: config.env }
  - { file: profiles/local.env, unless: PROFILE_EXCLUSIVE }
  - { file: profiles/secrets.env, unless: PROFILE_EXCLUSIVE, secret: true }
  - { flag: profile }
controls:
  ONLY: {}
  DRY_RUN: {}
  PROFILE_EXCLUSIVE: { type: bool, default: false, in_layers: false }
  FEAT_VERIFY: { type: bool, default: true }
  FEAT_CILIUM: { type: bool, default: true }
vars:
  BASE_DOMAIN: { required: true, pattern: "[a-z0-9.-]+" }
  OAUTH_HOST: { default: "oauth.${BASE_DOMAIN}" }
  INGRESS_PROVIDER: { enum: [nginx, traefik], default: nginx }
  TIMEOUT_SECS: { type: int, min: 1, default: 300 }
  FEAT_OAUTH2_PROXY: { type: bool, default: true }
  FEAT_CLICKSTACK: { type: bool, default: true }
  FEAT_OTEL_K8S: { type: bool, default: true }
  OIDC_CLIENT_ID: { secret: true }
  OIDC_CLIENT_SECRET: { secret: true, required: true, when: FEAT_OAUTH2_PROXY, for: [config-inputs] }
  OAUTH_COOKIE_SECRET: {}
  CLICKSTACK_API_KEY: { secret: true }
  CLICKSTACK_INGESTION_KEY: { secret: true }
  LAB_STATE: { env: true, default: .lab }
steps:
  access: { run: scripts/15_verify_cluster_access.sh }
  config-inputs: { run: scripts/94_verify_config_inputs.sh, gate: FEAT_VERIFY }
  runtime-inputs: { inputs: runtime, as: scripts/bootstrap/sync-runtime-inputs.sh }
apply:
  - { phase: all, steps: [access, config-inputs, runtime-inputs] }
inputs:
  runtime:
    sink: { kind: file, path: "${LAB_STATE}/runtime-inputs.yaml", format: manifest, namespace: flux-system, name: inputs }
    keys:
      OIDC_CLIENT_ID: { when: FEAT_OAUTH2_PROXY, required: true }
      OIDC_CLIENT_SECRET: { when: FEAT_OAUTH2_PROXY, required: true }
      OAUTH_COOKIE_SECRET: { when: FEAT_OAUTH2_PROXY, required: true, length: [16, 24, 32] }
      CLICKSTACK_API_KEY: { when: FEAT_CLICKSTACK || FEAT_OTEL_K8S, required: true }
      CLICKSTACK_INGESTION_KEY: { when: FEAT_OTEL_K8S, fallback: CLICKSTACK_API_KEY, warn: set it after the first login }
"#;

/// What a test starts from.
#[derive(Clone)]
struct World {
    catalogue: Catalogue,
    files: BTreeMap<String, String>,
    profile: Option<String>,
    environment: BTreeMap<String, String>,
    set: Vec<(String, String)>,
}

/// What came of it.
struct Resolved {
    values: Values,
    diagnostics: Diagnostics,
}

impl World {
    fn new(yaml: &str) -> Self {
        let source = Source { name: "steps.yaml".into(), text: yaml.into() };
        let catalogue = match Catalogue::read(&source, Path::new("/lab/steps.yaml")) {
            Ok(catalogue) => catalogue,
            Err(problems) => panic!("{problems}"),
        };
        Self {
            catalogue,
            files: BTreeMap::new(),
            profile: None,
            environment: BTreeMap::new(),
            set: Vec::new(),
        }
    }

    /// The example with nothing set.
    fn cluster() -> Self {
        Self::new(CLUSTER)
    }

    /// A catalogue of these variables with two layers, `low.env` and `high.env`.
    fn of_vars(vars: &str) -> Self {
        Self::new(&format!(
            "api_version: v1\nname: small\nundeclared: allow\nlayers: [{{ file: low.env }}, {{ file: high.env }}, {{ file: secrets.env, secret: true }}]\n\
             {vars}\nsteps: {{ one: {{ run: one.sh }} }}\napply: [{{ steps: [one] }}]\n"
        ))
    }

    fn file(mut self, name: &str, text: &str) -> Self {
        self.files.insert(name.to_owned(), text.to_owned());
        self
    }

    fn profile(mut self, text: &str) -> Self {
        self.profile = Some(text.to_owned());
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.set.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Reads the layers that are to be read, as the command does, and resolves.
    fn resolve(&self) -> Resolved {
        let mut diagnostics = Diagnostics::default();
        let to_read = layers_to_read(&self.catalogue, &self.environment, &self.set);
        let mut layers = Vec::new();
        for (layer, is_read) in self.catalogue.layers.iter().zip(to_read) {
            let (name, text) = match &layer.origin {
                LayerOrigin::File(path) => (path.value.clone(), self.files.get(&path.value)),
                LayerOrigin::Flag(_) if self.profile.is_some() => {
                    ("my.env".to_owned(), self.profile.as_ref())
                }
                LayerOrigin::Flag(_) => ("--profile".to_owned(), None),
            };
            let state = match text {
                _ if !is_read => LayerState::Skipped,
                Some(text) => {
                    let source = Source { name: name.as_str().into(), text: text.as_str().into() };
                    LayerState::Read(LayerFile::read(&source, &mut diagnostics))
                }
                None if name == "--profile" => LayerState::NotGiven,
                None => LayerState::Missing,
            };
            layers.push(LayerInput { name, state, secret: layer.secret });
        }
        let inputs = Inputs {
            catalogue: &self.catalogue,
            layers: &layers,
            environment: &self.environment,
            set: &self.set,
        };
        let values = resolve(&inputs, &mut diagnostics);
        Resolved { values, diagnostics }
    }

    /// Resolves what must be without errors.
    fn values(&self) -> Values {
        let Resolved { values, diagnostics } = self.resolve();
        assert!(!diagnostics.has_errors(), "{diagnostics}");
        values
    }

    /// Returns the errors, as `code place: message`, without columns.
    fn errors(&self) -> Vec<String> {
        self.resolve().told(Severity::Error)
    }

    fn warnings(&self) -> Vec<String> {
        self.resolve().told(Severity::Warning)
    }
}

impl Resolved {
    fn told(&self, severity: Severity) -> Vec<String> {
        told(&self.diagnostics, severity)
    }
}

fn told(diagnostics: &Diagnostics, severity: Severity) -> Vec<String> {
    let told = diagnostics.iter().filter(|problem| problem.severity == severity);
    told.map(|problem| {
        let place = match problem.place.location() {
            (name, Some((line, _))) => format!("{name}:{line}"),
            (name, None) => name.to_owned(),
        };
        format!("{} {place}: {}", problem.code, problem.message)
    })
    .collect()
}

/// Returns a value and its source: `x <- config.env:1`.
fn shown(values: &Values, name: &str) -> String {
    match values.get(name) {
        Some(effective) => format!("{} <- {}", effective.value, effective.source),
        None => "-".to_owned(),
    }
}

fn steps(ids: &[&str]) -> BTreeSet<StepId> {
    ids.iter().map(|id| StepId::parse(id).unwrap()).collect()
}
