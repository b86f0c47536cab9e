//! The ports that a bundle's own record takes for EtherNet/IP.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use stead_model::Diagnostics;
use stead_model::yaml::{self, Codes};

use crate::source::Source;
use crate::stored::LoadError;

const SUMMARY: &str = "analysis/summary.json";
const MANIFEST: &str = "manifest_resolved.yaml";

/// Returns the ports that the bundle at `bundle` was or would be analysed with beyond the usual ones: those of its
/// analysis, its target port and those its manifest names.
pub fn recorded_ports(bundle: &Path) -> Result<BTreeSet<u16>, LoadError> {
    let source = Source::open(bundle)?;
    let (files, _) =
        source.read_files(&|path| [SUMMARY, MANIFEST].iter().any(|name| path == Path::new(name)))?;
    let held = |name: &str| files.get(Path::new(name)).and_then(|read| read.as_ref().ok());
    let summary = held(SUMMARY).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let mut ports = numbers(summary.as_ref().and_then(|summary| summary.get("ports")));
    if let Some(manifest) = held(MANIFEST).and_then(|bytes| parsed(bytes)) {
        let at = |pointer: &str| manifest.pointer(pointer);
        ports.extend(numbers(at("/manifest/network/data_plane/target_port")));
        ports.extend(numbers(at("/manifest/post_run/ports")));
    }
    Ok(ports)
}

/// Returns the document of a YAML file; one that does not parse says nothing.
fn parsed(bytes: &[u8]) -> Option<Value> {
    let source = yaml::source(MANIFEST, bytes.to_vec(), Codes::PLAN).ok()?;
    let mut problems = Diagnostics::default();
    Some(yaml::read(&source, Codes::PLAN, &mut problems)?.root().to_json())
}

/// Returns the port, or the ports of a list.
fn numbers(value: Option<&Value>) -> BTreeSet<u16> {
    let one = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    match value {
        Some(Value::Array(ports)) => ports.iter().filter_map(one).collect(),
        other => other.and_then(one).into_iter().collect(),
    }
}
