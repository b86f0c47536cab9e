//! `stead bundle verify PATH`.

use stead_bundle::{Finding, Verification, VerifyError, VerifyOptions};
use stead_model::ExitCode;

use crate::args::BundleVerifyArgs;
use crate::commands::bundle::find;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint, Style};
use crate::render::{json, one_line};
use crate::settings::Settings;

pub(crate) fn run(
    args: &BundleVerifyArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let path = find(&args.path, settings)?;
    let options = VerifyOptions { allow_extra: args.allow_extra };
    let mut found = stead_bundle::verify(&path, options).map_err(|error| {
        let kind = match error {
            VerifyError::NotABundle { .. } => FailureKind::Invalid,
            VerifyError::InProgress { .. } => FailureKind::Locked,
            VerifyError::Read(_) => FailureKind::Verification,
        };
        Failure::caused_by(kind, error)
    })?;
    if args.require_signature || args.allowed_signers.is_some() {
        demand_signature(&mut found);
    }
    if args.json {
        output.out.print(&json::document(&found));
    } else {
        output.out.print(&to_text(&path.display().to_string(), &found, settings.stdout_paint));
    }
    Ok(found.exit_code())
}

/// A signature that was asked for and cannot be checked must not pass.
fn demand_signature(found: &mut Verification) {
    if found.signature.valid == Some(true) && found.signature.trusted != Some(false) {
        return;
    }
    let (code, message) = if found.signature.present {
        ("signature-not-checked", "the signature could not be checked")
    } else {
        ("unsigned", "a signature is required and there is none")
    };
    let path = stead_bundle::SIGNATURE.to_owned();
    found.errors.push(Finding { code, path, message: message.to_owned() });
    found.valid = false;
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
    text.push_str(&format!("{}: {verdict}, run {}, {counts}\n", one_line(path), one_line(status)));
    text
}
