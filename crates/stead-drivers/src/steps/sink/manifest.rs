//! The document's text: a `v1` Secret or lines `KEY='value'`, the same bytes for the same values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use stead_model::base64;
use stead_model::catalogue::{Document, SinkFormat};
use stead_runner::redact::Secret;
use zeroize::Zeroizing;

use crate::steps::InputsDocument;

/// The label that marks what Stead manages.
pub(super) const MANAGED_LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "stead");

/// Returns the first line of a file, which marks it as managed.
pub(super) fn mark(inputs: &str) -> String {
    format!("# managed by stead: inputs {inputs}")
}

/// What every mark begins with, whatever the inputs were called when it was written.
pub(super) const MARK: &str = "# managed by stead: inputs ";

/// Returns the bytes of a file in `format`.
pub(super) fn to_file(document: &InputsDocument, format: &SinkFormat) -> Zeroizing<String> {
    let mut text = Zeroizing::new(format!("{}\n", mark(&document.name)));
    match format {
        SinkFormat::Manifest { namespace, document: secret } => {
            text.push_str(&to_manifest(&document.keys, namespace.as_deref(), secret));
        }
        SinkFormat::Env => {
            for (key, value) in &document.keys {
                let value = value.expose_text().unwrap_or_default().replace('\'', "'\\''");
                writeln!(text, "{key}='{value}'").expect("writing to memory does not fail");
            }
        }
    }
    text
}

/// Returns the manifest of a `v1` Secret.
pub(super) fn to_manifest(
    keys: &BTreeMap<String, Secret>,
    namespace: Option<&str>,
    document: &Document,
) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::from("apiVersion: v1\nkind: Secret\nmetadata:\n"));
    let mut line = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).and_then(|()| text.write_char('\n')).expect("writing to memory does not fail");
    };
    line(format_args!("  name: {}", quoted(&document.name)));
    if let Some(namespace) = namespace {
        line(format_args!("  namespace: {}", quoted(namespace)));
    }
    let mut map = |name: &str, entries: &BTreeMap<String, String>| {
        if !entries.is_empty() {
            line(format_args!("  {name}:"));
            for (key, value) in entries {
                line(format_args!("    {}: {}", quoted_if_needed(key), quoted(value)));
            }
        }
    };
    map("labels", &labels(document));
    map("annotations", &document.annotations);
    line(format_args!("type: Opaque"));
    if keys.is_empty() {
        line(format_args!("data: {{}}"));
    } else {
        line(format_args!("data:"));
    }
    for (key, value) in keys {
        // Quoted: digits alone would be a number.
        line(format_args!("  {}: \"{}\"", quoted_if_needed(key), base64::encode(value.expose())));
    }
    text
}

/// Returns the labels of a Secret: the declared ones and the managed mark.
pub(super) fn labels(document: &Document) -> BTreeMap<String, String> {
    let mut labels = document.labels.clone();
    let (name, value) = MANAGED_LABEL;
    labels.insert(name.to_owned(), value.to_owned());
    labels
}

/// Returns `text` as a YAML scalar that is text whatever it holds: a JSON string is one.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a key as it is, if no reader takes it for something else than text.
fn quoted_if_needed(key: &str) -> String {
    const OTHERS: [&str; 10] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan"];
    let plain = key.bytes().next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte))
        && !OTHERS.contains(&key.to_ascii_lowercase().as_str());
    if plain { key.to_owned() } else { quoted(key) }
}

/// Returns the keys and values of a file in `format`, as far as it is one that Stead wrote.
pub(super) fn keys_in(text: &str, format: &SinkFormat) -> BTreeMap<String, Secret> {
    match format {
        SinkFormat::Manifest { .. } => {
            let lines = text.lines().skip_while(|line| *line != "data:").skip(1);
            let entries = lines.map_while(|line| line.strip_prefix("  ")?.split_once(": "));
            let read = |(key, value): (&str, &str)| {
                let key = serde_json::from_str::<String>(key).unwrap_or_else(|_| key.to_owned());
                let value = value.trim_matches('"');
                Some((key, Secret::new(base64::decode(value)?)))
            };
            entries.filter_map(read).collect()
        }
        SinkFormat::Env => env_keys(text),
    }
}

/// Reads lines `KEY='value'`, whose values may hold newlines and `'\''`.
fn env_keys(text: &str) -> BTreeMap<String, Secret> {
    let mut keys = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let Some((key, begun)) = line.split_once("='").filter(|_| !line.starts_with('#')) else {
            rest = after;
            continue;
        };
        let begin = line.len() - begun.len();
        let Some(end) = rest[begin..].find("'\n").map(|at| begin + at) else { break };
        keys.insert(key.to_owned(), Secret::new(rest[begin..end].replace("'\\''", "'")));
        rest = &rest[end + 2..];
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::SinkPlace;

    fn document(format: &SinkFormat) -> InputsDocument {
        let keys = [("API_KEY", "p@ss'word\nsecond line"), ("N", "1234"), ("UNSET", "")];
        InputsDocument {
            name: "runtime".to_owned(),
            sink: SinkPlace::File { path: "/x".into(), format: format.clone() },
            keys: keys.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect(),
        }
    }

    fn manifest() -> SinkFormat {
        let document = Document {
            name: "inputs".to_owned(),
            labels: BTreeMap::from([("tier".to_owned(), "on".to_owned())]),
            annotations: BTreeMap::from([("a/prune".to_owned(), "disabled".to_owned())]),
        };
        SinkFormat::Manifest { namespace: Some("flux-system".to_owned()), document }
    }

    #[test]
    fn a_manifest_is_a_marked_secret_with_sorted_keys() {
        let format = manifest();
        let text = to_file(&document(&format), &format);
        assert_eq!(
            text.as_str(),
            "# managed by stead: inputs runtime\napiVersion: v1\nkind: Secret\nmetadata:\n  name: \"inputs\"\n  \
             namespace: \"flux-system\"\n  labels:\n    app.kubernetes.io/managed-by: \"stead\"\n    tier: \"on\"\n  \
             annotations:\n    a/prune: \"disabled\"\ntype: Opaque\ndata:\n  \
             API_KEY: \"cEBzcyd3b3JkCnNlY29uZCBsaW5l\"\n  \"N\": \"MTIzNA==\"\n  UNSET: \"\"\n"
        );
    }

    #[test]
    fn what_was_written_is_read_back() {
        for format in [manifest(), SinkFormat::Env] {
            let document = document(&format);
            assert_eq!(keys_in(&to_file(&document, &format), &format), document.keys);
        }
        for text in ["", "data:", "data:\nx", "A='", "A='x", "='x'\n", "\n\n"] {
            for format in [manifest(), SinkFormat::Env] {
                keys_in(text, &format);
            }
        }
    }
}
