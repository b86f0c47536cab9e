//! `stead bundle verify PATH`.

use stead_bundle::{AllowedSigners, Verification, VerifyOptions};
use stead_model::ExitCode;

use crate::args::BundleVerifyArgs;
use crate::commands::bundle::find;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint, Style};
use crate::render::{json, one_line, shown_path};
use crate::settings::Settings;

pub(crate) fn run(
    args: &BundleVerifyArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let path = find(&args.path, settings)?;
    let signers =
        args.allowed_signers.as_ref().map(|file| AllowedSigners::load(&settings.current_dir.join(file)));
    let signers = signers.transpose().map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    let options = VerifyOptions {
        allow_extra: args.allow_extra,
        require_signature: args.require_signature,
        signers: signers.map(|signers| (signers, stead_runner::clock::now())),
    };
    let found = stead_bundle::verify(&path, &options)
        .map_err(|error| Failure::caused_by(FailureKind::of(error.exit_code()), error))?;
    if args.json {
        output.out.print(&json::document(&found));
    } else {
        output.out.print(&to_text(
            &shown_path(&path.display().to_string(), &settings.current_dir),
            &found,
            settings.stdout_paint,
        ));
    }
    Ok(found.exit_code())
}

fn to_text(path: &str, found: &Verification, paint: Paint) -> String {
    let mut text = String::new();
    for (word, style, findings) in
        [("error", Style::Bad, &found.errors), ("warning", Style::Warn, &found.warnings)]
    {
        for finding in findings {
            let head = paint.apply(style, &format!("{word}[{}]:", finding.code));
            let at = if finding.path.is_empty() {
                String::new()
            } else {
                format!("{}: ", one_line(&finding.path))
            };
            text.push_str(&format!("{head} {at}{}\n", one_line(&finding.message)));
        }
    }
    let verdict =
        if found.valid { paint.apply(Style::Good, "valid") } else { paint.apply(Style::Bad, "not valid") };
    let status = found.status.as_deref().unwrap_or("unknown");
    let counts = format!("{} of {} files verified", found.hashes_verified, found.files_checked);
    let signed = match (&found.signature.fingerprint, found.signature.trusted) {
        (None, _) => String::new(),
        (Some(key), Some(true)) => format!(", signed by {key} (allowed)"),
        (Some(key), _) => format!(", signed by {key}"),
    };
    text.push_str(&format!("{}: {verdict}, run {}, {counts}{signed}\n", one_line(path), one_line(status)));
    text
}
