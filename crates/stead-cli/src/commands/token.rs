//! `stead token …`: what nodes identify themselves with.

pub(super) mod inspect;
pub(super) mod mint;
pub(super) mod revoke;
pub(super) mod rotate;
pub(super) mod verify;

use serde_json::{Map, Value, json};
use stead_drivers::site::{KeyringError, Manifests};
use stead_model::Site;
use stead_model::token::{Audience, Claims, MAX_BYTES, RingError, Version};

use crate::args::{AudienceWord, SiteArgs};
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Returns the time in seconds since 1970.
fn now() -> i64 {
    stead_runner::clock::now().as_micros() / 1_000_000
}

/// Returns the token that was typed, or that standard input holds.
fn read_token(typed: &str) -> Result<String, Failure> {
    if typed != "-" {
        return Ok(typed.to_owned());
    }
    let bytes = site::read_stdin()?;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() <= 2 * MAX_BYTES => Ok(text.trim_end().to_owned()),
        Ok(_) | Err(_) => Err(Failure::new(FailureKind::Invalid, "standard input holds no token")),
    }
}

/// Returns the site without its manifests.
fn load_site(args: &SiteArgs, settings: &Settings) -> Result<Site, Failure> {
    let directory = site::find(args, settings)?;
    Ok(site::load(&directory, Manifests::None)?.site)
}

fn audience(word: AudienceWord) -> Audience {
    match word {
        AudienceWord::Spec => Audience::Spec,
        AudienceWord::Node => Audience::Node,
        AudienceWord::Operator => Audience::Operator,
    }
}

/// Returns what a token says, by the names of its format.
fn to_json(claims: &Claims) -> Value {
    let mut members = Map::new();
    let mut add = |name: &str, value: Value| {
        members.insert(name.to_owned(), value);
    };
    add("n", json!(claims.node));
    if let Some(spec) = &claims.spec {
        add("s", json!(spec));
    }
    add("iat", json!(claims.iat));
    if let Some(exp) = claims.exp() {
        add("exp", json!(exp));
    }
    match &claims.version {
        Version::V1 { .. } => add("v", json!(1)),
        Version::V2 { kid, aud, jti, .. } => {
            add("v", json!(2));
            add("kid", json!(kid));
            add("aud", json!(aud.word()));
            add("jti", json!(jti));
        }
    }
    Value::Object(members)
}

/// Returns the failure of a keyring that was not changed.
fn keyring_failure(error: KeyringError) -> Failure {
    let is_full = matches!(&error, KeyringError::Ring(RingError::TooMany(_)));
    let kind = match &error {
        KeyringError::Locked { .. } => FailureKind::Locked,
        KeyringError::File { .. } | KeyringError::Unreadable | KeyringError::NoRandomness => {
            FailureKind::Work
        }
        KeyringError::Load(_) | KeyringError::Ring(_) => FailureKind::Invalid,
        KeyringError::Invalid(diagnostics) => return Failure::invalid(diagnostics.clone()),
    };
    let failure = Failure::caused_by(kind, error);
    if is_full {
        let hint =
            "wait until the overlap of an old key is over, or take one that nobody needs out of keyring.yaml";
        return failure.hint(hint);
    }
    failure
}
