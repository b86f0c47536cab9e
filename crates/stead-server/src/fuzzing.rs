//! What others send, for those who try readers with any bytes; no part of what this crate offers.

use hyper::Uri;
use serde_json::Value;
use stead_model::plan::Digest;
use stead_runner::redact::Redactor;

use crate::plans::hook_is_signed;
use crate::route::Route;

/// Reads the path and query of a request. Returns the parts of it that may become names of files, if it asks for any.
pub fn route(target: &str) -> Vec<String> {
    let Ok(uri) = target.parse::<Uri>() else { return Vec::new() };
    let Ok(route) = Route::parse(&uri) else { return Vec::new() };
    debug_assert!(!route.name().is_empty() && !route.methods().is_empty());
    match route {
        Route::Repo { path, .. } => path,
        Route::Spec(node) | Route::Token(node) | Route::Signals(node) => vec![node.to_string()],
        Route::PlanRun(run) | Route::PlanEvents { run, .. } => vec![run.to_string()],
        Route::Manifest(key) => vec![key.to_string()],
        Route::Artifact(Digest(_))
        | Route::Health
        | Route::Specs
        | Route::Next { .. }
        | Route::Reports { .. }
        | Route::Nodes { .. }
        | Route::Node { .. }
        | Route::Jobs { .. }
        | Route::Job { .. }
        | Route::JobInput { .. }
        | Route::Plans
        | Route::Hook(_)
        | Route::Page
        | Route::Shown(_)
        | Route::Manifests
        | Route::Server
        | Route::Reload
        | Route::Keys
        | Route::Usable => Vec::new(),
    }
}

/// Whether a hook with `secret` takes `signature` for `body`.
pub fn hook(secret: &str, signature: &str, body: &[u8]) -> bool {
    hook_is_signed(secret, signature, body)
}

/// Returns the payload of a hook as its trigger gets it, which no plan's secret is in.
pub fn payload(secret: &str, body: &[u8]) -> Option<Value> {
    let mut payload = crate::plans::payload_of(body);
    Redactor::new([secret]).ok()?.redact_value(&mut payload);
    Some(payload)
}
