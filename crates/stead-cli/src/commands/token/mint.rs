//! `stead token mint`: a new token, and nothing else, on standard output.

use serde_json::json;
use stead_drivers::site::new_token_id;
use stead_model::token::{self, Claims, LATEST, LiveRing, RingError, Version};
use stead_model::{Diagnostics, ExitCode, NodeName};

use crate::args::{AudienceWord, TokenMintArgs};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &TokenMintArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    check_names(args)?;
    let site = super::load_site(&args.site, settings)?;
    let mut broken = Diagnostics::default();
    for diagnostics in [&site.settings.diagnostics, &site.secrets.diagnostics, &site.keyring.diagnostics] {
        broken.0.extend(diagnostics.0.clone());
    }
    if broken.has_errors() {
        return Err(Failure::invalid(broken));
    }
    let now = super::now();
    let ring = LiveRing::of(&site, now).map_err(no_key)?;
    let key = ring.minting().map_err(no_key)?;
    let iat = args.iat.unwrap_or_else(|| ring.issue_time(&args.node, now));
    let ttl = args.ttl.unwrap_or(site.settings.value.server.token_ttl);
    let exp =
        args.exp.unwrap_or_else(|| iat.saturating_add(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)));
    if exp > LATEST {
        return Err(Failure::new(FailureKind::Usage, "the token would live for too long")
            .hint("no time in a token is later than 9007199254740992"));
    }
    let version = if args.v1 {
        Version::V1 { exp: args.exp }
    } else {
        let jti = match &args.jti {
            Some(jti) => jti.clone(),
            None => new_token_id().map_err(super::keyring_failure)?,
        };
        Version::V2 { exp, kid: key.kid(), aud: super::audience(args.aud), jti }
    };
    let claims = Claims { node: args.node.clone(), spec: args.spec.clone(), iat, version };
    let token = token::mint(key, &claims);
    match args.json {
        true => output.out.print(&json::document(&json!({"schema": 1, "token": token}))),
        false => output.out.print_line(&token),
    }
    Ok(ExitCode::Success)
}

fn no_key(error: RingError) -> Failure {
    Failure::caused_by(FailureKind::Invalid, error)
        .hint("`stead token rotate` makes a key, or set `auth.signing_key` in secrets.yaml to 64 hex digits")
}

/// What no server would accept is not made.
fn check_names(args: &TokenMintArgs) -> Result<(), Failure> {
    let usage = |message: String| Err(Failure::new(FailureKind::Usage, message));
    if args.aud == AudienceWord::Operator {
        if args.spec.is_some() {
            return usage("a token for an operator has no --spec".to_owned());
        }
        return if token::is_person(&args.node) {
            Ok(())
        } else {
            usage(format!("`{}` cannot name a person", args.node))
        };
    }
    if args.spec.is_none() {
        return usage("a token for a node needs --spec".to_owned());
    }
    match NodeName::parse(&args.node) {
        Ok(_) => Ok(()),
        Err(error) => usage(error.to_string()),
    }
}
