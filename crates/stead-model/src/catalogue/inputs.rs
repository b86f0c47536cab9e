//! Inputs: values handed over as one secret document.

use std::collections::BTreeMap;

use super::{At, Gate, Pattern};
use crate::diagnostic::Place;
use crate::layer::Text;

/// One document of secret values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Where the document goes.
    pub sink: Sink,
    /// Its keys; every one is always written.
    pub keys: BTreeMap<String, InputKey>,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}

/// Where a document goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Into a file.
    File {
        /// Which, relative to the root.
        path: At<Text>,
        /// What is written.
        format: SinkFormat,
    },
    /// Into a cluster.
    Kubectl {
        /// The program.
        command: String,
        /// The namespace.
        namespace: String,
        /// The document.
        document: Document,
    },
}

impl Sink {
    /// The kinds there are.
    pub const KINDS: [&'static str; 2] = ["file", "kubectl"];
    /// The program of a kubectl sink, unless `command` says otherwise.
    pub const KUBECTL: &'static str = "kubectl";
}

/// What a file sink writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkFormat {
    /// A `v1` Secret.
    Manifest {
        /// The namespace in it, if one is given.
        namespace: Option<String>,
        /// The document.
        document: Document,
    },
    /// Lines `KEY='value'`.
    Env,
}

/// What is particular to a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Its name.
    pub name: String,
    /// Labels besides the managed mark.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// One key of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputKey {
    /// The variable whose value it takes: `from`, or the one of its own name. It is secret.
    pub variable: At<String>,
    /// Rules and fallback act only while this holds.
    pub when: Option<Gate>,
    /// Whether its value must not be empty.
    pub required: bool,
    /// The lengths in bytes its value may have; empty: any.
    pub length: Vec<usize>,
    /// What its whole value must fit.
    pub pattern: Option<Pattern>,
    /// Another key whose value it takes if it has none. Without cycles.
    pub fallback: Option<At<String>>,
    /// Said when the fallback is used.
    pub warn: Option<String>,
    /// What it is for.
    pub doc: Option<String>,
    /// Where its name is written.
    pub place: Place,
}
