//! Files of plans, steps and runs.

use std::path::Path;
use std::sync::LazyLock;

use stead_engine::compile::{self, Inputs};
use stead_model::diagnostic::Diagnostics;
use stead_model::layer::LayerFile;
use stead_model::plan::Plan;
use stead_model::run_manifest::Kit;
use stead_model::yaml::edit::{KeyPath, Spot, Wanted, find, set};
use stead_model::{Catalogue, RunManifest, yaml};

use super::{Target, source, tell, text};

pub(super) const PLAN: Target = Target {
    name: "plan",
    about: "a plan file, compiled and checked with every operation there is",
    run: plan,
    words: &[
        "api_version: v1\n",
        "name: ",
        "tasks:\n",
        "  - name: ",
        "\n    shell: ",
        "exec: [",
        "op: ",
        "params: {",
        "depends_on: ",
        "when: ",
        "for_each: ",
        "register: ",
        "retry: {",
        "batch: ",
        "target: ",
        "host_failure: ",
        "vars: {",
        "env: [",
        "secrets: {",
        "finally:\n",
        "on_error: continue",
        "triggers:\n",
        "{{ vars.x }}",
        "{{ item }}",
        "{{ results.a.data }}",
        "file.present",
        "undo: ",
        "mutex: ",
        "timeout: 1s",
        "limits: {",
        "&a ",
        "*a",
        "<<: ",
        "|\n",
        ">-\n",
        "!!str ",
    ],
};

pub(super) const CATALOGUE: Target = Target {
    name: "catalogue",
    about: "a catalogue of steps",
    run: catalogue,
    words: &[
        "api_version: v1\n",
        "layers: [",
        "vars: {",
        "secret: true",
        "default: ",
        "steps:\n",
        "apply:\n",
        "delete:\n",
        "needs: [",
        "controls: {",
        "inputs: {",
        "intents: {",
        "check: {",
        "order: needs",
        "limits: {parallel: ",
        "profiles: ",
        "gate: ",
        "timeout: ",
        "env: {",
        "select: {",
        "path: ",
        "required: true",
        "pattern: ",
    ],
};

pub(super) const LAYER: Target = Target {
    name: "layer",
    about: "a layer file",
    run: layer,
    words: &[
        "export ",
        "KEY=",
        "${KEY}",
        "${KEY:-x}",
        "$KEY",
        "\"",
        "'",
        "\\\n",
        "#",
        "`x`",
        "$(x)",
        "=",
        "\r\n",
    ],
};

pub(super) const RUN_MANIFEST: Target = Target {
    name: "run-manifest",
    about: "a run manifest with the roles in it",
    run: run_manifest,
    words: &[
        "api_version: v1\n",
        "run_id: auto",
        "roles:\n",
        "command: [",
        "kit: ",
        "agent: ",
        "ready: {",
        "after: [",
        "stop: {",
        "artifacts: [",
        "capture: ",
        "phases:\n",
        "profile: ",
        "vars: {",
        "diff: {",
        "baseline: ",
        "thresholds: [",
        "count: ",
        "env: {",
        "files: [",
        "args: {",
        "regex: ",
        "tcp: ",
        "http: ",
        "timeout: ",
    ],
};

pub(super) const KIT: Target = Target {
    name: "kit",
    about: "a kit of roles",
    run: kit,
    words: &[
        "api_version: v1\n",
        "kit: x\n",
        "roles:\n",
        "requires: [",
        "args: {",
        "type: ",
        "enum: [",
        "command: [",
        "ready: {",
    ],
};

pub(super) const EDIT: Target = Target {
    name: "edit",
    about: "an edit of one value of a YAML file: first line path, second line value, then the file",
    run: edit,
    words: &[
        "a.b", "a[0]", "---\n", "a: b\n", "- ", "{a: 1}", "'x'", "\"x\"", "|\n  ", "# c", "&a ", "*a", "? ",
        "true", "~",
    ],
};

static OPERATIONS: LazyLock<compile::Catalogue> =
    LazyLock::new(|| compile::Catalogue::new(stead_drivers::Drivers::standard().descriptors()));

fn plan(bytes: &[u8]) {
    let source = match yaml::source("plan.yaml", bytes.to_vec(), yaml::Codes::PLAN) {
        Ok(source) => source,
        Err(diagnostics) => {
            tell(&diagnostics);
            return;
        }
    };
    let compiled = match compile::plans::plan_file(&source, &Inputs::default(), &OPERATIONS) {
        Ok(compiled) => compiled,
        Err(diagnostics) => {
            assert!(diagnostics.has_errors(), "refused without a reason");
            tell(&diagnostics);
            return;
        }
    };
    tell(&Diagnostics(compiled.warnings.clone()));
    // What is recorded is the plan itself, with the hash that its journal names.
    let written = compiled.plan.to_json();
    let read: Plan = serde_json::from_slice(&written).expect("a plan that was written is read");
    assert_eq!(read.digest(), compiled.plan.digest(), "the digest changes on the way");
    assert_eq!(read.to_json(), written, "a plan has one form");
}

fn catalogue(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match Catalogue::read(&source("steps.yaml", text), Path::new("/lab/steps.yaml")) {
        Ok(catalogue) => {
            // What is kept of it is still the same catalogue.
            let shown = catalogue.shown_text();
            let again = Catalogue::read(&source("steps.yaml", &shown), Path::new("/lab/steps.yaml"));
            let again = again.unwrap_or_else(|problems| panic!("{}\n{shown}", problems.render(false)));
            assert!(again.declared().eq(catalogue.declared()));
        }
        Err(diagnostics) => {
            assert!(diagnostics.has_errors());
            tell(&diagnostics);
        }
    }
}

fn layer(bytes: &[u8]) {
    let mut diagnostics = Diagnostics::default();
    let file = LayerFile::from_bytes("config.env", bytes, &mut diagnostics);
    tell(&diagnostics);
    let lines = |text: &str| text.matches('\n').count();
    assert_eq!(lines(&file.concealed.text), lines(&file.source.text), "what is shown has other lines");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let mut again = Diagnostics::default();
        let read = LayerFile::read(&source("config.env", text), &mut again);
        assert!(read == file, "read in two ways, two files");
    }
}

fn run_manifest(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut diagnostics = Diagnostics::default();
    let source = source("run.yaml", text);
    if let Some(manifest) = RunManifest::read(&source, &mut diagnostics) {
        let cipdip = Kit::cipdip();
        for entry in &manifest.roles {
            let kit = manifest.kit_of(entry).and_then(|_| cipdip.roles.first());
            drop(manifest.role(entry, kit, &mut diagnostics));
        }
        assert!(manifest.kit_names().len() <= manifest.roles.len());
        drop(manifest.agent_words());
    }
    tell(&stead_model::run_manifest::with_paths(diagnostics));
}

fn kit(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut diagnostics = Diagnostics::default();
    if let Some(kit) = Kit::read(&source("x.yaml", text), "x", &mut diagnostics) {
        for role in &kit.roles {
            assert!(kit.role(&role.name).is_some());
        }
    } else {
        assert!(diagnostics.has_errors());
    }
    tell(&diagnostics);
}

fn edit(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut parts = text.splitn(3, '\n');
    let (Some(path), Some(value), Some(rest)) = (parts.next(), parts.next(), parts.next()) else { return };
    let Ok(path) = KeyPath::parse(path) else { return };
    let again = KeyPath::parse(&path.to_string()).expect("a path that was written is read");
    assert_eq!(again.parts(), path.parts());
    let wanted = match value {
        "true" => Wanted::Bool(true),
        "false" => Wanted::Bool(false),
        text => text.parse().map_or_else(|_| Wanted::Text(text.to_owned()), Wanted::Int),
    };
    let spot = Spot { select: Default::default(), path };
    let file = source("values.yaml", rest);
    match set(&file, &spot, &wanted) {
        Ok(edited) => {
            let text = edited.text.as_deref().unwrap_or(rest);
            let after = source("values.yaml", text);
            let found = find(&after, &spot).unwrap_or_else(|problems| panic!("{}", problems.render(false)));
            assert_eq!(found.value, wanted.to_json(), "the value is not what was asked for:\n{text}");
            let once_more = set(&after, &spot, &wanted).expect("what was edited can be edited");
            assert!(once_more.text.is_none(), "an edit is not the last of its kind");
        }
        Err(diagnostics) => {
            tell(&diagnostics);
        }
    }
}
