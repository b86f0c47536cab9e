//! `stead bundle export PATH`.

use serde_json::json;
use stead_bundle::ArchiveFormat;
use stead_model::ExitCode;

use crate::args::BundleExportArgs;
use crate::commands::bundle::{find, unreadable};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json, shown_path};
use crate::settings::Settings;

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
    let exported = stead_bundle::export(&bundle, &out, format, args.force).map_err(|error| {
        let exists = matches!(error, stead_bundle::ExportError::Exists { .. });
        let failure = Failure::caused_by(FailureKind::of(error.exit_code()), error);
        if exists {
            failure.code("input/exists").hint("--force replaces it, -o names another file")
        } else {
            failure
        }
    })?;
    let path = exported.path.display().to_string();
    if args.json {
        let (files, bytes) = (exported.files, exported.bytes);
        let document =
            json!({"schema": 1, "path": path, "format": format.as_str(), "files": files, "bytes": bytes});
        output.out.print(&json::document(&document));
        return Ok(ExitCode::Success);
    }
    output.out.print_line(&format!(
        "{}: {} files, {} bytes",
        shown_path(&path, &settings.current_dir),
        exported.files,
        exported.bytes
    ));
    Ok(ExitCode::Success)
}
