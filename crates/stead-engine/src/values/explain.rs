//! Where a value comes from, layer by layer.

use serde::Serialize;

use super::expand::{Outcome, expand_candidate, refers_to};
use super::merge::{Candidate, Said};
use super::{ENVIRONMENT, Expanded, SET, STARS, ValueSource, Values};

/// The version of the JSON form.
const SCHEMA: u32 = 1;

/// Everything about one name. Its fields are those of `steps explain --json`; secrets are stars.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The version of this form.
    pub schema: u32,
    /// The name.
    pub key: String,
    /// Its value, if it has one.
    pub value: Option<String>,
    /// Whether the value is secret.
    pub secret: bool,
    /// Whether the catalogue declares it.
    pub declared: bool,
    /// The source whose value counts.
    pub winner: Option<ValueSource>,
    /// Every source, low to high.
    pub layers: Vec<LayerRow>,
    /// The names its value refers to, sorted.
    pub references: Vec<String>,
    /// The names whose values refer to it, sorted.
    pub referenced_by: Vec<String>,
}

/// What one source says about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerRow {
    /// The source: `default`, a layer's name, `environment` or `--set`.
    pub layer: String,
    /// Whether it sets the name.
    pub state: RowState,
    /// The line that does.
    pub line: Option<u32>,
    /// The value as written.
    pub raw: Option<String>,
    /// The value after expansion; none if it has none.
    pub value: Option<String>,
    /// Whether it is the one that counts.
    pub wins: bool,
}

/// Whether a source sets a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowState {
    /// It does.
    Set,
    /// It does not.
    Unset,
    /// There is no such file.
    Missing,
    /// The layer is not read.
    Skipped,
    /// It does, but it is not read for this name.
    Ignored,
}

impl RowState {
    /// Returns the word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Unset => "unset",
            Self::Missing => "missing",
            Self::Skipped => "skipped",
            Self::Ignored => "ignored",
        }
    }
}

impl Values {
    /// Returns where the value of `key` comes from; nothing if catalogue, layers and `--set` do not know it.
    pub fn explain(&self, key: &str) -> Option<Explanation> {
        let entry =
            self.entries.get(key).filter(|entry| entry.is_declared || !entry.candidates.is_empty())?;
        let expanded = self.expand_each(key, &entry.candidates);
        let row = |layer: &str, state: RowState, of: &dyn Fn(&Candidate) -> bool| {
            // The last of a source counts.
            let found =
                entry.candidates.iter().zip(&expanded).enumerate().rfind(|(_, (candidate, _))| of(candidate));
            match found {
                Some((index, (candidate, expanded))) => {
                    let wins = entry.effective.is_some() && index + 1 == entry.candidates.len();
                    set_row(layer, candidate, expanded.as_ref(), wins)
                }
                None => LayerRow {
                    layer: layer.to_owned(),
                    state,
                    line: None,
                    raw: None,
                    value: None,
                    wins: false,
                },
            }
        };
        let mut layers =
            vec![row("default", RowState::Unset, &|candidate| candidate.source == ValueSource::Default)];
        for (number, view) in self.layers.iter().enumerate() {
            layers.push(row(&view.name, view.state, &|candidate| candidate.layer == Some(number)));
        }
        let mut environment =
            row(ENVIRONMENT, RowState::Unset, &|candidate| candidate.source == ValueSource::Environment);
        if let Some(held) = self.environment(key).filter(|_| environment.state == RowState::Unset) {
            let shown = if entry.is_secret { STARS } else { held };
            environment.state =
                if self.starts_with_environment(key) { RowState::Set } else { RowState::Ignored };
            environment.raw = Some(shown.to_owned());
            environment.value = Some(shown.to_owned());
        }
        layers.push(environment);
        layers.push(row(SET, RowState::Unset, &|candidate| candidate.source == ValueSource::Set));
        Some(Explanation {
            schema: SCHEMA,
            key: key.to_owned(),
            value: entry.effective.as_ref().map(|effective| effective.shown().to_owned()),
            secret: entry.effective.as_ref().map_or(entry.is_secret, |effective| effective.secret),
            declared: entry.is_declared,
            winner: entry.effective.as_ref().map(|effective| effective.source.clone()),
            layers,
            references: references(&entry.candidates),
            referenced_by: self.referenced_by(key),
        })
    }

    /// Returns the expanded values of all candidates, each over the one below it.
    fn expand_each(&self, key: &str, candidates: &[Candidate]) -> Vec<Option<Expanded>> {
        let mut all: Vec<Option<Expanded>> = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let is_below_broken = all.last().is_some_and(Option::is_none) && refers_to(candidate, key);
            let below = all.last().and_then(Option::as_ref);
            all.push(match expand_candidate(self, key, candidate, below) {
                Outcome::Done(expanded) if !is_below_broken => Some(expanded),
                Outcome::Done(_) | Outcome::Waiting(_) | Outcome::Broken(_) => None,
            });
        }
        all
    }

    /// Whether the value begins with what the environment holds: every candidate refers to the one below it.
    fn starts_with_environment(&self, key: &str) -> bool {
        let candidates = self.candidates(key);
        !candidates.is_empty() && candidates.iter().all(|candidate| refers_to(candidate, key))
    }

    fn referenced_by(&self, key: &str) -> Vec<String> {
        let refers =
            |candidates: &[Candidate]| candidates.last().is_some_and(|winner| refers_to(winner, key));
        let others = self.entries.iter().filter(|(name, entry)| *name != key && refers(&entry.candidates));
        others.map(|(name, _)| name.clone()).collect()
    }
}

fn set_row(layer: &str, candidate: &Candidate, expanded: Option<&Expanded>, wins: bool) -> LayerRow {
    let line = match &candidate.source {
        ValueSource::File { line, .. } => Some(*line),
        ValueSource::Default | ValueSource::Environment | ValueSource::Set => None,
    };
    let is_secret = expanded.map_or(candidate.is_secret, |expanded| expanded.secret);
    let shown = |text: &str| if is_secret { STARS.to_owned() } else { text.to_owned() };
    LayerRow {
        layer: layer.to_owned(),
        state: RowState::Set,
        line,
        raw: Some(shown(&candidate.raw)),
        value: expanded.map(|expanded| shown(&expanded.text)),
        wins,
    }
}

/// Returns the names that the value that counts refers to.
fn references(candidates: &[Candidate]) -> Vec<String> {
    let Some(Candidate { value: Said::Text(text), .. }) = candidates.last() else { return Vec::new() };
    let mut names: Vec<String> = text.references().into_iter().map(|(name, _)| name.to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Explanation {
    /// Returns the explanation as a person reads it: the value, a row per source from low to high, the winner marked.
    pub fn text(&self) -> String {
        let mut lines = vec![match (&self.value, &self.winner) {
            (Some(value), Some(winner)) => format!("{}={}  # {winner}", self.key, one_line(value)),
            (_, _) => format!("{} has no value", self.key),
        }];
        let width = self.layers.iter().map(|row| row.layer.chars().count()).max().unwrap_or_default();
        for row in &self.layers {
            let mark = if row.wins { '*' } else { ' ' };
            let mut line = format!("{mark} {:width$}  {:7}", row.layer, row.state.as_str());
            if let Some(number) = row.line {
                line.push_str(&format!("  line {number}"));
            }
            if let Some(raw) = &row.raw {
                line.push_str(&format!("  {}", one_line(raw)));
            }
            match (&row.raw, &row.value) {
                (Some(raw), Some(value)) if raw != value => {
                    line.push_str(&format!("  ->  {}", one_line(value)))
                }
                (Some(_), None) => line.push_str("  ->  no value"),
                (_, _) => {}
            }
            lines.push(line.trim_end().to_owned());
        }
        for (what, names) in [("refers to", &self.references), ("referred to by", &self.referenced_by)] {
            if !names.is_empty() {
                lines.push(format!("{what}: {}", names.join(", ")));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}
