//! Asks a fleet's master by the same functions as `stead fleet status`, `stead fleet explain` and the page.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::Value;
use stead_fleet::api::{Master as _, StatusFilter};
use stead_fleet::wire::Client;
use stead_model::fleet::InstanceKey;

use super::Surroundings;
use crate::commands::{fleet, reach};
use crate::failure::{Failure, FailureKind};
use crate::render::visible;
use crate::tui::state::Message;
use crate::tui::trouble::Trouble;

/// How to come by a fleet, where there is none.
const NO_FLEET: &str = "for one on this machine, here: `stead init fleet lab` and `stead fleet dev lab`";

/// Asks how the fleet is.
pub(super) fn ask(work: &Surroundings) {
    let told = reach::block_on(status(work)).unwrap_or_else(Err).map_err(|failure| {
        let trouble = Trouble::of(&failure);
        let is_known = fleet::is_known(&work.args.fleet(), &work.settings);
        if is_known { trouble } else { trouble.hint(NO_FLEET) }
    });
    work.send(Message::Fleet(Box::new(told)));
}

async fn status(work: &Surroundings) -> Result<Value, Failure> {
    let master = master(work).await?;
    let asked = master.status(0, Duration::ZERO, &StatusFilter::default()).await;
    let (status, _) = asked.map_err(fleet::call_failure)?;
    fleet::parsed(&status)
}

/// Asks why an instance is where it is.
pub(super) fn explain(work: &Surroundings, instance: String) {
    let explained = reach::block_on(explanation(work, &instance)).unwrap_or_else(Err);
    let explained = explained.map_err(|failure| Trouble::of(&failure));
    work.send(Message::Explained { instance, explained });
}

async fn explanation(work: &Surroundings, instance: &str) -> Result<Vec<String>, Failure> {
    let key = InstanceKey::parse(instance).map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
    let told = master(work).await?.explain(&key).await.map_err(fleet::call_failure)?;
    let text = fleet::explain::to_text(&fleet::parsed(&told)?);
    Ok(text.lines().map(visible).collect())
}

/// Returns the way to the master; it is found once.
async fn master(work: &Surroundings) -> Result<Arc<Client>, Failure> {
    let known = || work.kept.master.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = known().clone() {
        return Ok(client);
    }
    let client = fleet::master(&work.args.fleet(), &work.settings).await?;
    *known() = Some(Arc::clone(&client));
    Ok(client)
}
