//! `stead bundle export PATH`.

use serde_json::json;
use stead_bundle::ArchiveFormat;
use stead_model::ExitCode;

use crate::args::BundleExportArgs;
use crate::commands::bundle::{find, signing_key, unreadable};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, shown_path};
use crate::settings::Settings;

/// What to do about a file that is there.
const REPLACES: &str = "--force replaces it, -o names another file";

pub(crate) fn run(
    args: &BundleExportArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let bundle = find(&args.path, settings)?;
    let by_name = args.output.as_deref().and_then(ArchiveFormat::of_name);
    let format = args.format.or(by_name).unwrap_or(ArchiveFormat::Zip);
    let out = match &args.output {
        Some(out) => settings.current_dir.join(out),
        None => {
            let run_id = stead_bundle::info(&bundle).map_err(unreadable)?.run_id.unwrap_or_default();
            settings.current_dir.join(format!("{}.{}", stead_bundle::file_name(&run_id, ""), format.as_str()))
        }
    };
    let key = args.attest.as_deref().map(|path| signing_key(path, settings)).transpose()?;
    let attestation = stead_bundle::attestation_path(&out);
    if key.is_some() && !args.force && attestation.exists() {
        let message = format!("{} exists already", attestation.display());
        return Err(Failure::new(FailureKind::Invalid, message).code("input/exists").hint(REPLACES));
    }
    let exported = stead_bundle::export(&bundle, &out, format, args.force).map_err(|error| {
        let exists = matches!(error, stead_bundle::ExportError::Exists { .. });
        let failure = Failure::caused_by(FailureKind::of(error.exit_code()), error);
        if exists { failure.code("input/exists").hint(REPLACES) } else { failure }
    })?;
    let attested = key.as_ref().map(|key| stead_bundle::attest(&exported, key)).transpose();
    let attested = attested.map_err(|error| {
        // Who asked for both has use for neither alone.
        std::fs::remove_file(&exported.path).ok();
        Failure::caused_by(FailureKind::Work, error)
    })?;
    let path = exported.path.display().to_string();
    let (files, bytes) = (exported.files, exported.bytes);
    if args.json {
        let document = json!({"schema": 1, "path": path, "format": format.as_str(), "files": files, "bytes": bytes,
            "attestation": attested.map(|path| path.display().to_string())});
        output.out.print(&json::document(&document));
        return Ok(ExitCode::Success);
    }
    let here = &settings.current_dir;
    output.out.print_line(&format!("{}: {files} files, {bytes} bytes", shown_path(&path, here)));
    if let (Some(path), Some(key)) = (attested, key) {
        let path = path.display().to_string();
        output.out.print_line(&format!("{}: signed by {}", shown_path(&path, here), key.fingerprint()));
    }
    Ok(ExitCode::Success)
}
