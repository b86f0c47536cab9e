//! What a sandbox does wrong on purpose.

use serde_json::{Value, json};

use crate::diagnostic::Span;
use crate::schema::{boolean, full_text, integer, object, text, words};
use crate::site::read;
use crate::yaml::{Fields, Key, Keys, Walk};

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPhase {
    /// While the machine is made.
    Create,
    /// While it boots.
    Boot,
    /// While it gets an address.
    Address,
    /// While it answers over SSH.
    Ssh,
    /// While it becomes its spec.
    Config,
    /// While it reports.
    Report,
    /// While it is removed.
    Destroy,
}

impl FaultPhase {
    /// Every phase with its word.
    pub const WORDS: [(&'static str, Self); 7] = [
        ("create", Self::Create),
        ("boot", Self::Boot),
        ("address", Self::Address),
        ("ssh", Self::Ssh),
        ("config", Self::Config),
        ("report", Self::Report),
        ("destroy", Self::Destroy),
    ];
}

/// Something that goes wrong on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A glob over node names.
    pub node: String,
    /// Where the glob is written.
    pub span: Span,
    /// When it strikes.
    pub phase: FaultPhase,
    /// How often; 0: always.
    pub times: u32,
    /// What is said; none: nothing fails.
    pub error: Option<String>,
    /// How long it is held up.
    pub delay_ms: u64,
    /// Whether the machine dies.
    pub crash: bool,
}

const FAULT_KEYS: Keys = Keys {
    what: "a fault",
    keys: &[
        Key::new("node", full_text, "a glob over node names").required(),
        Key::new("phase", || words(&FaultPhase::WORDS), "when it strikes").required(),
        Key::new("times", || integer(0, 1_000_000), "how often; default 0 = always"),
        Key::new("error", text, "what is said"),
        Key::new("delay_ms", || integer(0, 3_600_000), "how long it is held up; default 0"),
        Key::new("crash", boolean, "whether the machine dies; default `false`"),
    ],
    hints: &[],
};

pub(super) fn schema() -> Value {
    json!({"type": "array", "items": object(&FAULT_KEYS)})
}

pub(super) fn read(walk: &mut Walk<'_>, fields: Fields<'_>) -> Vec<Fault> {
    let Some(node) = fields.get("faults") else { return Vec::new() };
    let Some(items) = walk.list(node, "faults") else { return Vec::new() };
    let mut faults = Vec::new();
    for item in items {
        let Some(fields) = walk.map(item, &FAULT_KEYS) else { continue };
        let span = fields.get("node").unwrap_or(item).span();
        let node = read::text(walk, fields, "node");
        let phase = read::word(walk, fields, "phase", &FaultPhase::WORDS);
        let times = read::number(walk, fields, "times", 0..=1_000_000).unwrap_or_default();
        let error = read::text(walk, fields, "error");
        let delay_ms = read::number(walk, fields, "delay_ms", 0..=3_600_000).unwrap_or_default();
        let crash = read::flag(walk, fields, "crash").unwrap_or_default();
        if let (Some(node), Some(phase)) = (node, phase) {
            faults.push(Fault { node, span, phase, times, error, delay_ms, crash });
        }
    }
    faults
}
