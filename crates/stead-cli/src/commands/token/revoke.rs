//! `stead token revoke`: tokens that are not accepted any more.

use serde_json::json;
use stead_drivers::site::change_keyring;
use stead_model::ExitCode;
use stead_model::token::{self, revoke_all_of, revoke_token};

use crate::args::TokenRevokeArgs;
use crate::commands::{server, site};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &TokenRevokeArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = site::find(&args.site, settings)?;
    let jti = match (&args.token, &args.jti) {
        (Some(token), _) => Some(id_of(token)?),
        (None, Some(jti)) => Some(jti.clone()),
        (None, None) => None,
    };
    let now = super::now();
    let (before, after) = change_keyring(&directory.path, &directory.shown, |site| {
        let keyring = &site.keyring.value;
        Ok(match (&jti, &args.node) {
            (Some(jti), _) => revoke_token(keyring, jti),
            (None, Some(node)) => revoke_all_of(keyring, node, now),
            (None, None) => keyring.clone(),
        })
    })
    .map_err(super::keyring_failure)?;
    let place = server::place(&args.site, settings)?;
    let reloaded = server::reload(&place, output);
    reloaded.say_if_nobody(&place, output);
    if args.json {
        let document =
            json!({"jti": jti, "node": args.node, "changed": before != after, "servers": reloaded.known});
        output.out.print(&render_json::document(&document));
    } else {
        let what = match (&jti, &args.node) {
            (Some(jti), _) => format!("token {jti}"),
            (None, Some(node)) => format!("all tokens of {node} so far"),
            (None, None) => String::new(),
        };
        let done = if before == after { "already revoked" } else { "revoked" };
        output.out.print_line(&format!("{done}: {what}"));
    }
    Ok(reloaded.exit_code())
}

/// Returns the id of a token. It need not verify: revoking it does no harm.
fn id_of(typed: &str) -> Result<String, Failure> {
    let token = super::read_token(typed)?;
    let claims =
        token::inspect(&token).map_err(|refusal| Failure::caused_by(FailureKind::Invalid, refusal))?;
    match claims.jti() {
        Some(jti) => Ok(jti.to_owned()),
        None => Err(Failure::new(FailureKind::Invalid, "tokens of version 1 have no id")
            .hint("revoke all tokens of the node: --node")),
    }
}
