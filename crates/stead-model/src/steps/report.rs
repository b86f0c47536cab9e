//! What a report says of steps, beyond what it says of every task.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::catalogue::StepMode;

use super::lines::{Check, CheckLevel};

/// What a report of kind `steps` adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepsReport {
    /// The catalogue's name.
    pub catalogue: String,
    /// Which order.
    pub mode: StepMode,
    /// What it acts on.
    pub target: String,
    /// The directory that paths of the catalogue start from.
    pub root: String,
    /// What was selected.
    pub selection: SelectionRow,
    /// The effective configuration, by name.
    pub config: Vec<ConfigRow>,
    /// Steps of the mode's list that are not in the plan.
    pub left_out: Vec<LeftOutRow>,
    /// How the checks of all steps went.
    pub checks: CheckCounts,
    /// Remedies, each once, in the order they were first seen.
    pub suggestions: Vec<String>,
    /// What happened to input documents.
    pub inputs: BTreeMap<String, InputsChange>,
    /// The bundle's directory, if there is one.
    pub bundle: Option<String>,
}

/// What was selected, as it was typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionRow {
    /// Tokens of `--only`.
    pub only: Vec<String>,
    /// Tokens of `--skip`.
    pub skip: Vec<String>,
    /// The first step.
    pub from: Option<String>,
    /// The last step.
    pub until: Option<String>,
    /// What was said about needs.
    pub needs: Option<NeedsChoice>,
}

/// What is done about steps that selected ones need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeedsChoice {
    /// They are added.
    With,
    /// They are not.
    Skip,
}

/// One value of the effective configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRow {
    /// Its name.
    pub key: String,
    /// The value; `***` if it is secret.
    pub value: String,
    /// Whether it is secret.
    pub secret: bool,
    /// Where it comes from.
    pub source: String,
}

/// A step of the mode's list that is not in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutRow {
    /// The step.
    pub id: String,
    /// What left it out.
    pub cause: LeftOutCause,
    /// In words.
    pub detail: String,
}

/// What left a step out of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOutCause {
    /// Its gate is false.
    Gate,
    /// `--only` does not name it.
    Only,
    /// `--skip` names it.
    Skip,
    /// It lies outside `--from` and `--until`.
    Range,
}

/// How many checks went how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckCounts {
    /// As it should be.
    pub ok: u32,
    /// Not as it should be.
    pub bad: u32,
    /// A person should look.
    pub warn: u32,
}

impl CheckCounts {
    /// Counts one more check.
    pub fn add(&mut self, level: CheckLevel) {
        match level {
            CheckLevel::Ok => self.ok += 1,
            CheckLevel::Bad => self.bad += 1,
            CheckLevel::Warn => self.warn += 1,
        }
    }
}

/// What happened to an input document: keys, never values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputsChange {
    /// Whether it is different now.
    pub changed: bool,
    /// Keys it did not have.
    pub added: Vec<String>,
    /// Keys with another value.
    pub updated: Vec<String>,
    /// Keys it has no more.
    pub removed: Vec<String>,
}

/// What a task's row says of its step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// The step's number, if it has one.
    pub number: Option<u64>,
    /// The last part of its path.
    pub basename: String,
    /// Its path, relative to the root.
    pub path: String,
    /// What it is started with.
    pub args: Vec<String>,
    /// The phase it is listed in.
    pub phase: Option<String>,
    /// Whether it destroys in this mode.
    pub destructive: bool,
    /// Whether it is only assumed that it changed something.
    pub assumed: bool,
    /// What its program exited with.
    pub exit_code: Option<i32>,
    /// Its checks, in order.
    pub checks: Vec<Check>,
    /// What it hands to later steps.
    pub outputs: BTreeMap<String, String>,
}

/// The result data of `script.run` and `inputs.sync`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepOutcome {
    /// Whether it is only assumed that something changed: the script did not say.
    #[serde(default)]
    pub assumed: bool,
    /// What its program exited with; none if a signal ended it.
    pub exit_code: Option<i32>,
    /// Its checks, in order.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Its remedies, in order.
    #[serde(default)]
    pub suggestions: Vec<String>,
    /// What it hands to later steps.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// What happened to its document, by the name of the inputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputsChange>,
}

impl StepsReport {
    /// Takes in what steps left, in order: checks are counted, remedies kept once.
    pub fn add<'o>(&mut self, outcomes: impl IntoIterator<Item = &'o StepOutcome>) {
        let mut known: BTreeSet<String> = self.suggestions.iter().cloned().collect();
        for outcome in outcomes {
            for check in &outcome.checks {
                self.checks.add(check.level);
            }
            for suggestion in outcome.suggestions.iter().map(|text| text.trim()) {
                if known.insert(suggestion.to_owned()) {
                    self.suggestions.push(suggestion.to_owned());
                }
            }
            self.inputs.extend(outcome.inputs.clone());
        }
    }
}
