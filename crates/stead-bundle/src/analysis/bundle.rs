//! The captures of a whole bundle.

use std::collections::BTreeMap;
use std::path::Path;

use super::summary::{Capture, Summary};
use super::{AnalysisOptions, CaptureError, CaptureSource, RoleKind, analyze, analyze_files, summarize};
use crate::layout::shown;
use crate::roles::{ROLES, RoleFiles, in_role, is_capture, role_files};
use crate::source::{Form, Source};
use crate::stored::LoadError;

/// Returns what the captures of all roles of the bundle at `bundle` hold, a directory or an archive; at most `jobs` are
/// read at a time, of an archive one.
///
/// Every capture that cannot be analysed is told.
pub fn analyze_bundle(
    bundle: &Path,
    options: &AnalysisOptions,
    jobs: usize,
) -> Result<Summary, Vec<CaptureError>> {
    let source = Source::open(bundle).map_err(|error| vec![error.into()])?;
    let roles = role_files(&source).map_err(|error| vec![error.into()])?;
    let results = match source.form() {
        Form::Directory => in_directory(bundle, &roles, options, jobs),
        Form::Archive(_) => in_archive(&source, options).map_err(|error| vec![error.into()])?,
    };
    let mut found: BTreeMap<String, (RoleKind, Vec<_>)> = BTreeMap::new();
    let mut errors = Vec::new();
    for (role, result) in results {
        match result {
            Ok(capture) => {
                let kind = roles.get(&role).map_or(RoleKind::Task, |files| kind(&role, files));
                found.entry(role).or_insert_with(|| (kind, Vec::new())).1.push(capture);
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(summarize(found, options)) } else { Err(errors) }
}

/// What each capture holds, with the role it belongs to, in order of their paths.
type OfRoles = Vec<(String, Result<Capture, CaptureError>)>;

fn in_directory(
    bundle: &Path,
    roles: &BTreeMap<String, RoleFiles>,
    options: &AnalysisOptions,
    jobs: usize,
) -> OfRoles {
    let mut sources = Vec::new();
    for (role, files) in roles {
        sources.extend(files.captures().map(|name| {
            let name = format!("{ROLES}/{role}/{name}");
            (role.clone(), CaptureSource { path: bundle.join(&name), name })
        }));
    }
    let (owners, sources): (Vec<String>, Vec<CaptureSource>) = sources.into_iter().unzip();
    owners.into_iter().zip(analyze_files(&sources, options, jobs)).collect()
}

fn in_archive(source: &Source, options: &AnalysisOptions) -> Result<OfRoles, LoadError> {
    let mut results = OfRoles::new();
    source.visit(&mut |path, bytes, content| {
        let Some((role, _)) = in_role(path).filter(|(_, name)| is_capture(&shown(name))) else { return };
        let capture = analyze(content, &shown(path), options);
        results.push((shown(role).into_owned(), capture.map(|capture| Capture { bytes, ..capture })));
    })?;
    results.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(results)
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
        write("run_meta.json", b"{}");
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
