//! The targets: for everything that Stead reads and did not write itself, a function that takes any bytes.
//!
//! A target panics if something is wrong, and does nothing else: no panic below it, what is written is read back as the
//! same, canonical forms stay as they are, and what must not be seen is in no message.

use stead_model::diagnostic::{Diagnostics, Place, Source};

mod captures;
mod fleet;
mod formats;
mod net;
mod records;
mod site;
mod tokens;
mod words;

/// One reader, to be tried with any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called; its corpus has the same name.
    pub name: &'static str,
    /// What reads the bytes.
    pub about: &'static str,
    /// Tries one input.
    pub run: fn(&[u8]),
    /// Words that lead further than bytes do.
    pub words: &'static [&'static str],
}

/// Every target, by name.
pub const ALL: &[Target] = &[
    words::ADDRESS,
    fleet::AGENTS,
    records::ARCHIVE,
    captures::CAPTURE,
    formats::CATALOGUE,
    fleet::CERTIFICATE,
    captures::CIP,
    words::CRON,
    fleet::DAEMONS,
    formats::EDIT,
    words::EXPRESSION,
    fleet::FLEET,
    net::FRAMES,
    records::HASHES,
    net::HOOK,
    fleet::INVENTORY,
    records::JOURNAL,
    formats::KIT,
    net::KNOWN_HOSTS,
    formats::LAYER,
    words::LINES,
    net::MESSAGES,
    fleet::NIX,
    net::PAGE,
    formats::PLAN,
    words::REDACT,
    net::ROUTE,
    formats::RUN_MANIFEST,
    records::SIGNERS,
    site::SITE,
    site::SPEC_FILE,
    net::SSH_CONFIG,
    site::STATE,
    words::TARGET,
    words::THRESHOLD,
    tokens::TOKEN,
    tokens::JOIN,
    words::TRANSPORT,
    fleet::VMS,
    net::WIRE,
    net::WIRE_BODIES,
];

/// Returns the target called `name`.
pub fn named(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}

/// What must not be seen, wherever a target puts it.
const SECRET: &str = "hunter2";

/// Returns the input as text, if it is text.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// Returns a text as a file that somebody wrote.
fn source(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

/// Returns the first byte as a choice, and the rest.
fn chosen(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((*first, rest))
}

/// Tells problems in every form, and checks that each has a place in its text.
fn tell(diagnostics: &Diagnostics) -> String {
    for diagnostic in diagnostics.iter() {
        assert!(!diagnostic.message.is_empty(), "a problem without a word: {}", diagnostic.code);
        let Place::Text { source, span } = &diagnostic.place else { continue };
        assert!(span.start <= span.end && span.end <= source.text.len(), "{diagnostic:?}");
        assert!(source.text.is_char_boundary(span.start), "{diagnostic:?}");
        assert!(source.text.is_char_boundary(span.end), "{diagnostic:?}");
        let line = source.text[..span.start].matches(['\n', '\r']).count() + 1;
        assert!(usize::try_from(span.line).is_ok_and(|found| found <= line), "{diagnostic:?}: line {line}");
    }
    let colored = diagnostics.render(true);
    let plain = diagnostics.render(false);
    assert_eq!(plain.is_empty(), colored.is_empty());
    assert!(plain.chars().all(|c| c == '\n' || !c.is_control()), "a control character reaches the terminal");
    let json: Vec<String> = diagnostics.iter().map(|problem| problem.to_json().to_string()).collect();
    format!("{plain}\n{}", json.join("\n"))
}

/// Checks that a told problem does not show what must not be seen.
fn check_hidden(told: &str, what: &str) {
    assert!(!told.contains(SECRET), "{what} shows a secret:\n{told}");
}
