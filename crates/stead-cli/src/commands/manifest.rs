//! The manifest that a command is about, wherever it is written.

use std::path::Path;

use stead_drivers::site::read_bounded;
use stead_model::diagnostic::{Place, suggest};
use stead_model::site::manifest::Origin;
use stead_model::site::{Entry, FileKind, Manifest};
use stead_model::{Diagnostic, Diagnostics, Site};

use crate::args::ManifestArgs;
use crate::commands::site;
use crate::failure::Failure;
use crate::settings::Settings;

/// Whether the manifest is no file of the site.
pub(super) fn has_own(args: &ManifestArgs) -> bool {
    args.manifest_file.is_some() || args.manifest_json.is_some()
}

/// Returns the manifest that was asked for; none: the whole site.
pub(super) fn find(
    args: &ManifestArgs,
    site: &Site,
    names: &[String],
    settings: &Settings,
) -> Result<Option<Entry<Manifest>>, Failure> {
    if let Some(name) = &args.manifest {
        return match site.manifests.get(name.as_str()) {
            Some(entry) => Ok(Some(entry.clone())),
            // A file that has no usable name has said so.
            None if names.contains(name) && !site.strays.0.is_empty() => {
                Err(Failure::invalid(site.strays.clone()))
            }
            None => {
                let known = || names.iter().map(String::as_str);
                let message = format!("there is no {}", FileKind::Manifest.path_of(name));
                let problem =
                    Diagnostic::error("node/unknown-fk", Place::Named(format!("-M {name}")), message);
                let problem = problem.help(suggest(name, known())).candidates(names.to_vec());
                Err(Failure::invalid(Diagnostics(vec![problem])))
            }
        };
    }
    if let Some(path) = &args.manifest_file {
        if path == Path::new("-") {
            return Ok(Some(Site::read_manifest("-", site::read_stdin()?, Origin::Elsewhere)));
        }
        let bytes = read_bounded(&settings.current_dir.join(path))
            .map_err(|error| Failure::unreadable(path.display(), &error))?;
        return Ok(Some(Site::read_manifest(&path.display().to_string(), bytes, Origin::Elsewhere)));
    }
    let Some(text) = &args.manifest_json else { return Ok(None) };
    let bytes = if text == "-" { site::read_stdin()? } else { text.clone().into_bytes() };
    Ok(Some(Site::read_manifest("--manifest-json", bytes, Origin::Given)))
}
