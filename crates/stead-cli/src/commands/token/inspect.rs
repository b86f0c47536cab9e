//! `stead token inspect`: what a token says, without a key.

use stead_model::{ExitCode, token};

use crate::args::TokenInspectArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;

pub(crate) fn run(args: &TokenInspectArgs, output: &mut Output) -> Result<ExitCode, Failure> {
    let token = super::read_token(&args.token)?;
    let claims = token::inspect(&token).map_err(|refusal| {
        let code = refusal.code.as_str();
        Failure::caused_by(FailureKind::Invalid, refusal).code(code)
    })?;
    let claims = super::to_json(&claims);
    output.out.print(&if args.json { render_json::document(&claims) } else { render_json::bare(&claims) });
    Ok(ExitCode::Success)
}
