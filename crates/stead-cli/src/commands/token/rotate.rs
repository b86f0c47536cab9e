//! `stead token rotate`: a new key that mints; the old one verifies for a while.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stead_drivers::site::{change_keyring, new_signing_key};
use stead_model::ExitCode;
use stead_model::site::keyring::KeyUse;
use stead_model::token::{Overlap, rotate};

use crate::args::TokenRotateArgs;
use crate::commands::{server, site};
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
    let place = server::place(&args.site, settings)?;
    let reloaded = server::reload(&place, output);
    if !old.is_empty() {
        // Nobody can miss a first key.
        reloaded.say_if_nobody(&place, output);
    }
    let hosting = hosting_nodes(&place.state);
    if args.json {
        let verifying: Vec<_> = old.iter().map(|(kid, until)| json!({"kid": kid, "until": until})).collect();
        output.out.print(&render_json::document(&json!({
            "mint": kid, "verify": verifying, "servers": reloaded.known, "hosting": hosting,
        })));
    } else {
        output.out.print_line(&format!("key {kid} signs from now on"));
        for (kid, until) in old {
            let until = until.map_or_else(String::new, |until| format!(" until {}", moment(until)));
            output.out.print_line(&format!("key {kid} still verifies{until}"));
        }
        for (manifest, node) in hosting {
            let line = format!(
                "{node} of {manifest} has keys that come from the old one: `stead create` renews them"
            );
            output.out.print_line(&line);
        }
    }
    Ok(reloaded.exit_code())
}

/// Returns the nodes that others were made in, with their manifests: they have keys that come from this site's.
fn hosting_nodes(state: &Path) -> BTreeSet<(String, String)> {
    let below = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let mut hosting = BTreeSet::new();
    for manifest in below(&state.join("nodes")).iter().flat_map(|host| below(host)) {
        let text = std::fs::read(manifest.join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let name = manifest.file_name().unwrap_or_default().to_string_lossy();
        let nodes = state.get("nodes").and_then(Value::as_object).into_iter().flatten();
        let parents = nodes.filter_map(|(_, node)| node.get("parent")?.as_str());
        hosting.extend(parents.map(|parent| (name.to_string(), parent.to_owned())));
    }
    hosting
}

fn moment(seconds: i64) -> String {
    stead_model::time::Timestamp::from_micros(seconds.saturating_mul(1_000_000)).to_string()
}
