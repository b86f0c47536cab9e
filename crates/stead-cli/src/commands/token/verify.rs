//! `stead token verify`: whether the site's server would accept a token.

use serde_json::{Value, json};
use stead_model::ExitCode;
use stead_model::token::{self, Claims, Endpoint, LiveRing, Refusal, RingError};

use crate::args::{AudienceWord, TokenVerifyArgs};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &TokenVerifyArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let token = super::read_token(&args.token)?;
    let site = super::load_site(&args.site, settings)?;
    let at = args.at.unwrap_or_else(super::now);
    // What `site.yaml` says of tokens is not known if it cannot be read.
    let ring =
        if site.settings.is_broken() { Err(RingError::BrokenSettings) } else { LiveRing::of(&site, at) };
    let accept_v1 = site.settings.value.server.accept_v1;
    let checked =
        token::verify(&token, ring.as_ref(), accept_v1, at).and_then(|claims| further(args, claims));
    match checked {
        Ok(claims) => {
            let claims = super::to_json(&claims);
            output.out.print(&if args.json {
                render_json::document(&json!({"valid": true, "code": null, "claims": claims}))
            } else {
                render_json::bare(&claims)
            });
            Ok(ExitCode::Success)
        }
        Err(refusal) => {
            let (code, message) = (refusal.code.as_str(), json!(refusal.message));
            Err(Failure::caused_by(FailureKind::Verification, refusal)
                .code(code)
                .knowing("valid", json!(false))
                .knowing("code", json!(code))
                .knowing("message", message)
                .knowing("claims", Value::Null))
        }
    }
}

/// Checks 9 and 10, as far as they were asked for.
fn further(args: &TokenVerifyArgs, claims: Claims) -> Result<Claims, Refusal> {
    if let Some(aud) = args.aud {
        let endpoint = match aud {
            AudienceWord::Spec => Endpoint::Spec,
            AudienceWord::Node => Endpoint::Node,
            AudienceWord::Operator => Endpoint::Operator,
        };
        token::check_endpoint(&claims, endpoint)?;
    }
    if let Some(node) = &args.node {
        token::check_identity(&claims, node)?;
    }
    Ok(claims)
}
