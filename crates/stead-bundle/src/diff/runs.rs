//! Two runs compared, from their paths to the result: what `diff run` and the phase `diff` of a run call.

use std::path::{Path, PathBuf};

use globset::GlobSet;

use super::{
    DiffOptions, LoadedSide, RoleChoice, RoleDiff, RoleError, RunDiff, Side, choose_roles, compare,
    compare_roles, load_bundle, load_capture, load_captures,
};
use crate::analysis::{AnalysisOptions, CaptureError, recorded_ports};
use crate::archive::ArchiveFormat;
use crate::source::Source;
use crate::stored::LoadError;
use crate::verify::{VerifyError, VerifyOptions, verify};

/// One of two things to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What it is called in the result.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub kind: TargetKind,
}

/// What a thing to compare is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A bundle, directory or archive.
    Bundle,
    /// A capture alone.
    Capture,
}

impl Target {
    /// Returns what is at `path`: a directory or an archive is a bundle, any other file a capture.
    pub fn at(path: &Path, name: &str) -> Result<Self, LoadError> {
        let kind = match Source::open(path) {
            Ok(_) => TargetKind::Bundle,
            Err(LoadError::NotAnArchive { .. })
                if ArchiveFormat::of_name(path).is_none() && path.is_file() =>
            {
                TargetKind::Capture
            }
            Err(error) => return Err(error),
        };
        Ok(Self { name: name.to_owned(), path: path.to_owned(), kind })
    }
}

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct DiffRequest {
    /// Which roles.
    pub role: RoleChoice,
    /// Files that are compared line by line.
    pub text: GlobSet,
    /// What to look for in captures, beyond the ports that the bundles name.
    pub analysis: AnalysisOptions,
    /// What to leave out, and when it fails.
    pub options: DiffOptions,
    /// What the new run's `run_meta.json` will say, if it goes on still.
    pub so_far: Option<serde_json::Value>,
}

/// A difference, and what a person should know of it.
#[derive(Debug)]
pub struct Diffed {
    /// The difference.
    pub diff: RunDiff,
    /// What could not be compared, and whether a side does not verify.
    pub warnings: Vec<String>,
}

/// Why two runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A side cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A capture cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The roles do not fit.
    #[error(transparent)]
    Role(#[from] RoleError),
}

/// Returns what differs from `baseline` to `new`.
///
/// A bundle that this process is writing is taken as it is; any other that does not verify is a warning.
pub fn diff_runs(baseline: &Target, new: &Target, request: &DiffRequest) -> Result<Diffed, DiffError> {
    let mut warnings = Vec::new();
    let mut analysis = request.analysis.clone();
    for (side, target) in [("BASE", baseline), ("NEW", new)] {
        if target.kind == TargetKind::Bundle {
            warnings.extend(doubt(&target.path).map(|why| format!("{side} {why}")));
            analysis.ports.extend(recorded_ports(&target.path)?);
        }
    }
    let mut sides = Vec::new();
    for (side, target) in [("BASE", baseline), ("NEW", new)] {
        let (loaded, told) = load(target, request, &analysis)?;
        warnings.extend(told.into_iter().map(|warning| format!("{side}: {warning}")));
        sides.push(loaded);
    }
    let [mut old, mut new_side]: [Side; 2] = sides.try_into().unwrap_or_default();
    new_side.run_meta = request.so_far.clone().or(new_side.run_meta);
    let chosen = choose_roles(&old.roles(), &new_side.roles(), &request.role)?;
    let roles: Vec<String> = chosen.iter().flatten().cloned().collect();
    for (target, side) in [(baseline, &mut old), (new, &mut new_side)] {
        if target.kind == TargetKind::Bundle {
            load_captures(&target.path, side, &roles, &analysis)?;
        }
    }
    let options = &request.options;
    let diff = if roles.len() > 1 || (request.role == RoleChoice::All && !roles.is_empty()) {
        RunDiff::All(Box::new(compare_roles(&old, &new_side, &roles, options)?))
    } else {
        let role = roles.first().map(String::as_str);
        RunDiff::One(Box::new(compare(&old, &new_side, role, options)?))
    };
    Ok(Diffed { diff, warnings })
}

fn load(
    target: &Target,
    request: &DiffRequest,
    analysis: &AnalysisOptions,
) -> Result<(Side, Vec<String>), DiffError> {
    let Target { name, path, kind } = target;
    Ok(match kind {
        TargetKind::Bundle => {
            let LoadedSide { side, warnings } = load_bundle(path, name, &request.text)?;
            (side, warnings)
        }
        TargetKind::Capture => (load_capture(path, name, analysis)?, Vec::new()),
    })
}

/// Returns why the bundle at `path` should not be relied on.
fn doubt(path: &Path) -> Option<String> {
    match verify(path, &VerifyOptions::default()) {
        Ok(found) if found.valid => None,
        Ok(found) => {
            let first = found.errors.first().map(|error| format!("{} {}", error.path, error.message));
            let more = match found.errors.len() {
                0 | 1 => String::new(),
                count => format!(" (and {} more)", count - 1),
            };
            Some(format!("does not verify: {}{more}", first.unwrap_or_default()))
        }
        Err(VerifyError::InProgress { holder, .. }) => {
            let ours = holder.is_some_and(|holder| holder.pid == std::process::id());
            (!ours).then(|| "is in progress".to_owned())
        }
        Err(error) => Some(format!("cannot be verified: {error}")),
    }
}

impl RunDiff {
    /// Returns the comparisons, one or one per role.
    pub fn roles(&self) -> Vec<&RoleDiff> {
        match self {
            Self::One(diff) => vec![diff],
            Self::All(all) => all.roles.values().collect(),
        }
    }

    /// Returns whether captures were compared.
    pub fn has_captures(&self) -> bool {
        self.roles().iter().any(|diff| diff.pcap_diff.is_some())
    }
}
