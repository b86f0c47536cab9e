//! Attestations: an in-toto statement about an exported archive, signed as a DSSE envelope.
//!
//! Tools that gate on test results know this form, whatever made the result. The same archive and key give the same
//! bytes: everything said is in the bundle.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::directory::replace_file;
use crate::error::RecordError;
use crate::export::Exported;
use crate::hashes::hash_file;
use crate::layout::{PLAN, shown};
use crate::list::info;
use crate::report::{ReportError, RunReport, report};
use crate::signature::{SignError, SigningKey};

const STATEMENT: &str = "https://in-toto.io/Statement/v1";
const TEST_RESULT: &str = "https://in-toto.io/attestation/test-result/v0.1";
const PAYLOAD: &str = "application/vnd.in-toto+json";

/// Why there is no attestation.
#[derive(Debug, thiserror::Error)]
pub enum AttestError {
    /// The run has no result.
    #[error("{path} has no result to vouch for: its run is `{status}`", path = path.display())]
    NoResult {
        /// The archive.
        path: PathBuf,
        /// How the run stands.
        status: String,
    },
    /// The archive cannot be read.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The statement cannot be signed.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// A file could not be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Returns where the attestation of the archive at `archive` is.
pub fn attestation_path(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(".intoto.json");
    name.into()
}

/// Writes a statement of the result in `archive` beside it, signed with `key`; replaces an earlier one.
pub fn attest(archive: &Exported, key: &SigningKey) -> Result<PathBuf, AttestError> {
    let payload = statement(&archive.path)?.to_string();
    let signature = key.sign_plainly(&to_be_signed(PAYLOAD, payload.as_bytes()))?;
    let envelope = json!({
        "payload": STANDARD.encode(payload),
        "payloadType": PAYLOAD,
        "signatures": [{"keyid": key.fingerprint(), "sig": STANDARD.encode(signature)}],
    });
    let path = attestation_path(&archive.path);
    let beside = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    replace_file(beside, &name, &|out| writeln!(out, "{envelope}"))?;
    Ok(path)
}

/// Returns the bytes that a DSSE signature is over: its pre-authentication encoding.
fn to_be_signed(kind: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

fn statement(archive: &Path) -> Result<Value, AttestError> {
    let found = report(archive, None)?;
    let result = result_of(&found)
        .ok_or_else(|| AttestError::NoResult { path: archive.to_owned(), status: found.status.clone() })?;
    let digest = hash_file(archive, &mut vec![0; 1 << 16]).map_err(RecordError::of("read", archive))?;
    let plan = info(archive).map_err(ReportError::from)?.run_meta["plan_hash"].clone();
    let (passed, failed) = tests_of(&found);
    Ok(json!({
        "_type": STATEMENT,
        "predicateType": TEST_RESULT,
        "subject": [{
            "name": archive.file_name().map(|name| shown(Path::new(name)).into_owned()),
            "digest": {"sha256": digest.to_string()},
        }],
        "predicate": {
            "result": result,
            // Bundles of CIPDIP have no plan.
            "configuration": plan.as_str().map(|plan| json!({"name": PLAN, "digest": {"sha256": plan}})).into_iter()
                .collect::<Vec<_>>(),
            "passedTests": passed,
            "failedTests": failed,
        },
    }))
}

/// Returns the result in the words of the statement, none if the run has not ended.
fn result_of(found: &RunReport) -> Option<&'static str> {
    match found.status.as_str() {
        "success" if found.warnings.is_empty() => Some("PASSED"),
        "success" => Some("WARNED"),
        "failed" | "timeout" | "cancelled" => Some("FAILED"),
        _ => None,
    }
}

/// Returns what passed and what failed: the roles of a run of roles, the tasks of any other. What did not run is neither.
fn tests_of(found: &RunReport) -> (Vec<&str>, Vec<&str>) {
    let roles =
        found.roles.iter().map(|(name, role)| (name.as_str(), role.status.as_deref().unwrap_or_default()));
    let tasks = found.phases.iter().map(|task| (task.name.as_str(), task.status.as_str()));
    let all: Vec<(&str, &str)> = if found.roles.is_empty() { tasks.collect() } else { roles.collect() };
    let those = |statuses: &[&str]| {
        all.iter().filter(|(_, status)| statuses.contains(status)).map(|(name, _)| *name).collect()
    };
    (
        those(&["success", "changed", "unchanged"]),
        those(&["failed", "timeout", "cancelled", "unknown", "lost"]),
    )
}

#[cfg(test)]
mod tests {
    use super::to_be_signed;

    /// The example of the DSSE specification.
    #[test]
    fn what_is_signed_is_as_the_specification_says() {
        let signed = to_be_signed("http://example.com/HelloWorld", b"hello world");
        assert_eq!(signed, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }
}
