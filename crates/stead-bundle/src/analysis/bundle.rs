//! The captures of a whole bundle.

use std::collections::BTreeMap;
use std::path::Path;

use super::summary::Summary;
use super::{AnalysisOptions, CaptureError, CaptureSource, RoleKind, analyze_files, summarize};
use crate::roles::{RoleFiles, role_files};

/// Returns what the captures of all roles of the bundle at `bundle` hold; at most `jobs` are read at a time.
///
/// Every capture that cannot be analysed is told.
pub fn analyze_bundle(
    bundle: &Path,
    options: &AnalysisOptions,
    jobs: usize,
) -> Result<Summary, Vec<CaptureError>> {
    let roles = role_files(bundle).map_err(|error| vec![error.into()])?;
    let mut sources = Vec::new();
    for (role, files) in &roles {
        let of_role = files.captures().filter_map(|name| {
            let path = files.files.get(name)?.path.clone();
            Some((role, CaptureSource { path, name: format!("roles/{role}/{name}") }))
        });
        sources.extend(of_role);
    }
    let (owners, sources): (Vec<&String>, Vec<CaptureSource>) = sources.into_iter().unzip();
    let mut found: BTreeMap<String, (RoleKind, Vec<_>)> = BTreeMap::new();
    let mut errors = Vec::new();
    for (role, result) in owners.into_iter().zip(analyze_files(&sources, options, jobs)) {
        match result {
            Ok(capture) => {
                let kind = roles.get(role).map_or(RoleKind::Task, |files| kind(role, files));
                found.entry(role.clone()).or_insert_with(|| (kind, Vec::new())).1.push(capture);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(summarize(found, options)) } else { Err(errors) }
}

/// Returns the kind of a role as its metadata says; bundles of CIPDIP do not, and are known by name.
fn kind(role: &str, files: &RoleFiles) -> RoleKind {
    let kind = files.meta.as_ref().and_then(|meta| meta.get("kind")?.as_str());
    match kind.unwrap_or(role) {
        "service" | "server" => RoleKind::Service,
        _ => RoleKind::Task,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::analysis::testing::{golden_a, golden_b};

    #[test]
    fn every_capture_of_every_role_is_in_the_summary() {
        let bundle = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = bundle.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write("roles/store/role_meta.json", br#"{"kind": "service"}"#);
        write("roles/store/net/b.pcapng", &golden_a());
        write("roles/load/role_meta.json", br#"{"kind": "task"}"#);
        write("roles/load/load.pcap", &golden_b());
        write("roles/load/empty.pcap", b"");
        write("roles/load/stdout.log", b"text");
        let summary = analyze_bundle(bundle.path(), &AnalysisOptions::default(), 2).unwrap();
        let paths: Vec<&str> = summary
            .roles
            .values()
            .flat_map(|role| role.captures.iter().map(|capture| capture.path.as_str()))
            .collect();
        assert_eq!(paths, ["roles/load/empty.pcap", "roles/load/load.pcap", "roles/store/net/b.pcapng"]);
        assert_eq!(summary.compare.unwrap().drop_rate, Some(0.018605));
        write("roles/load/text.pcap", b"this is text");
        write("roles/store/also.pcap", b"this too");
        let errors = analyze_bundle(bundle.path(), &AnalysisOptions::default(), 2).unwrap_err();
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(told[0].starts_with("roles/load/text.pcap is not a capture"), "{told:?}");
        assert!(told[1].starts_with("roles/store/also.pcap is not a capture"), "{told:?}");
    }
}
