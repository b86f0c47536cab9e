//! `stead steps list`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use stead_model::catalogue::{Catalogue, Group, Step, StepAction};
use stead_model::{Diagnostics, ExitCode, StepMode};

use super::find::{self, Listed};
use crate::args::StepsListArgs;
use crate::failure::{Failure, Source};
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

#[derive(Serialize)]
struct Document {
    schema: u32,
    catalogues: Vec<CatalogueRow>,
}

/// One catalogue.
#[derive(Serialize)]
struct CatalogueRow {
    name: String,
    file: String,
    root: String,
    doc: Option<String>,
    steps: Vec<StepRow>,
    apply: Vec<GroupRow>,
    delete: Option<Vec<GroupRow>>,
    controls: Vec<NameRow>,
    vars: Vec<NameRow>,
    inputs: Vec<InputsRow>,
    intents: Vec<NameRow>,
}

/// One step.
#[derive(Serialize)]
struct StepRow {
    id: String,
    number: Option<u64>,
    basename: String,
    path: String,
    action: &'static str,
    modes: Vec<StepMode>,
    destructive: Vec<StepMode>,
    gate: Option<String>,
    doc: Option<String>,
}

/// One group of a list.
#[derive(Serialize)]
struct GroupRow {
    phase: Option<String>,
    steps: Vec<String>,
}

/// One document of inputs.
#[derive(Serialize)]
struct InputsRow {
    name: String,
    doc: Option<String>,
    keys: Vec<NameRow>,
}

/// Something that has a name and perhaps an explanation.
#[derive(Serialize)]
struct NameRow {
    name: String,
    doc: Option<String>,
}

pub(crate) fn run(
    args: &StepsListArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let mut problems = Diagnostics::default();
    let mut catalogues = Vec::new();
    for listed in find::one_or_all(args.catalogue.as_deref(), settings)? {
        match find::load(&listed) {
            Ok(catalogue) => catalogues.push(row(&listed, &catalogue)),
            Err(Failure { source: Source::Diagnostics(found), .. }) => problems.0.extend(found.0),
            Err(failure) => return Err(failure),
        }
    }
    if problems.has_errors() {
        return Err(Failure::invalid(problems));
    }
    match args.json {
        true => output.out.print(&json::document(&Document { schema: 1, catalogues })),
        false => output.out.print(&catalogues.iter().map(to_text).collect::<Vec<_>>().join("\n")),
    }
    Ok(ExitCode::Success)
}

fn row(listed: &Listed, catalogue: &Catalogue) -> CatalogueRow {
    let groups = |groups: &[Group]| -> Vec<GroupRow> {
        let ids = |group: &Group| group.steps.iter().map(|id| id.value.to_string()).collect();
        groups.iter().map(|group| GroupRow { phase: group.phase.clone(), steps: ids(group) }).collect()
    };
    let name = |name: &String, doc: &Option<String>| NameRow { name: name.clone(), doc: doc.clone() };
    CatalogueRow {
        name: catalogue.name.to_string(),
        file: listed.shown.clone(),
        root: catalogue.root.display().to_string(),
        doc: catalogue.doc.clone(),
        steps: catalogue.steps.values().map(step_row).collect(),
        apply: groups(&catalogue.apply),
        delete: catalogue.delete.as_deref().map(groups),
        controls: catalogue.controls.iter().map(|(key, control)| name(key, &control.doc)).collect(),
        vars: catalogue.vars.iter().map(|(key, var)| name(key, &var.doc)).collect(),
        inputs: catalogue
            .inputs
            .iter()
            .map(|(key, inputs)| InputsRow {
                name: key.clone(),
                doc: inputs.doc.clone(),
                keys: inputs.keys.iter().map(|(key, input)| name(key, &input.doc)).collect(),
            })
            .collect(),
        intents: catalogue.intents.iter().map(|(key, intent)| name(key, &intent.doc)).collect(),
    }
}

fn step_row(step: &Step) -> StepRow {
    StepRow {
        id: step.id.to_string(),
        number: step.number,
        basename: step.basename().to_owned(),
        path: step.path().to_owned(),
        action: match &step.action {
            StepAction::Run(_) => "run",
            StepAction::Inputs { .. } => "inputs",
        },
        modes: step.modes.iter().copied().collect(),
        destructive: step.destructive.iter().copied().collect(),
        gate: step.gate.as_ref().map(|gate| gate.text().to_owned()),
        doc: step.doc.clone(),
    }
}

fn to_text(catalogue: &CatalogueRow) -> String {
    let mut text = String::new();
    let mut say =
        |line: String| writeln!(text, "{}", line.trim_end()).expect("writing to memory does not fail");
    let doc =
        |doc: &Option<String>| doc.as_deref().map_or_else(String::new, |doc| format!(": {}", one_line(doc)));
    say(format!("{} ({}){}", catalogue.name, catalogue.file, doc(&catalogue.doc)));
    let steps: BTreeMap<&str, &StepRow> =
        catalogue.steps.iter().map(|step| (step.id.as_str(), step)).collect();
    for (mode, groups) in
        [(StepMode::Apply, Some(&catalogue.apply)), (StepMode::Delete, catalogue.delete.as_ref())]
    {
        let Some(groups) = groups else { continue };
        say(format!("  {mode}:"));
        for group in groups {
            if let Some(phase) = &group.phase {
                say(format!("    {}", one_line(phase)));
            }
            for id in &group.steps {
                let Some(step) = steps.get(id.as_str()) else { continue };
                let gate = step.gate.as_deref().map_or_else(String::new, |gate| format!(" (gate {gate})"));
                let destroys = if step.destructive.contains(&mode) { " (destructive)" } else { "" };
                say(format!("      {} [{}]{gate}{destroys}{}", step.basename, step.id, doc(&step.doc)));
            }
        }
    }
    let mut names = |what: &str, rows: &[NameRow]| {
        if !rows.is_empty() {
            say(format!("  {what}:"));
            rows.iter().for_each(|row| say(format!("    {}{}", row.name, doc(&row.doc))));
        }
    };
    names("controls", &catalogue.controls);
    names("vars", &catalogue.vars);
    names("intents", &catalogue.intents);
    if !catalogue.inputs.is_empty() {
        say("  inputs:".to_owned());
    }
    for inputs in &catalogue.inputs {
        say(format!("    {}{}", inputs.name, doc(&inputs.doc)));
        inputs.keys.iter().for_each(|key| say(format!("      {}{}", key.name, doc(&key.doc))));
    }
    text
}
