//! `stead token rotate`: a new key that mints; the old one verifies for a while.

use serde_json::json;
use stead_drivers::site::{change_keyring, new_signing_key};
use stead_model::ExitCode;
use stead_model::site::keyring::KeyUse;
use stead_model::token::{Overlap, rotate};

use crate::args::TokenRotateArgs;
use crate::commands::site;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &TokenRotateArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = site::find(&args.site, settings)?;
    let key = new_signing_key().map_err(super::keyring_failure)?;
    let kid = key.kid();
    let overlap = Overlap { now: super::now(), length: args.overlap };
    let (_, changed) = change_keyring(&directory.path, &directory.shown, |site| {
        rotate(&site.keyring.value, site.secrets.value.signing_key.as_ref(), key, overlap)
    })
    .map_err(super::keyring_failure)?;
    let old: Vec<(String, Option<i64>)> = changed
        .keys
        .iter()
        .filter(|key| key.usage == KeyUse::Verify && key.until.is_none_or(|until| until > overlap.now))
        .map(|key| (key.key.kid(), key.until))
        .collect();
    if args.json {
        let verifying: Vec<_> = old.iter().map(|(kid, until)| json!({"kid": kid, "until": until})).collect();
        output.out.print(&render_json::document(&json!({"mint": kid, "verify": verifying})));
    } else {
        output.out.print_line(&format!("key {kid} signs from now on"));
        for (kid, until) in old {
            let until = until.map_or_else(String::new, |until| format!(" until {}", moment(until)));
            output.out.print_line(&format!("key {kid} still verifies{until}"));
        }
    }
    Ok(ExitCode::Success)
}

fn moment(seconds: i64) -> String {
    stead_model::time::Timestamp::from_micros(seconds.saturating_mul(1_000_000)).to_string()
}
