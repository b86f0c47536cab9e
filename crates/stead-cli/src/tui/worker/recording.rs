//! Reads the journals of recorded runs: what is new in one that goes on, and all of one that is shown again.

use std::path::Path;

use stead_bundle::EVENTS;
use stead_model::{Event, event};
use stead_runner::journal::Lines;

use super::{Surroundings, bundles};
use crate::commands::bundle::replay::each_event;
use crate::render::one_line;
use crate::tui::replay::Recording;
use crate::tui::state::Message;
use crate::tui::watched::Liveness;

/// How much of a journal is read at once.
const PIECE_BYTES: usize = 256 << 10;
/// More events than this are not held in memory to be gone through one by one.
const MOST_EVENTS: usize = 200_000;

/// Reads what was written to the journal of the run in `directory` since it was read up to `read_to`.
pub(super) fn follow(work: &Surroundings, key: u64, directory: &Path, (after, offset): (u64, u64)) {
    // Asked before the journal is read: what a process wrote before it went away is in it.
    let is_held = stead_web::is_held(directory);
    let mut lines = Lines::new(directory.join(EVENTS), after, offset);
    // One that cannot be read now may be readable the next time.
    let read = lines.next(PIECE_BYTES).unwrap_or_default();
    let whole = read.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events: Vec<Event> = whole.filter_map(|line| event::decode(line).ok()).collect();
    let liveness = if is_held || !events.is_empty() { Liveness::Live } else { Liveness::Over };
    work.send(Message::Followed { key, events, read_to: lines.place(), liveness });
}

/// Reads all events of the run that is recorded at `path`, as `stead bundle replay` does.
pub(super) fn read(work: &Surroundings, path: &Path, key: u64) {
    work.send(Message::Replayable { key, recording: recording(path, key).map(Box::new) });
}

fn recording(path: &Path, key: u64) -> Result<Recording, String> {
    let run = bundles::unbegun(path, key)?;
    let place = run.directory().unwrap_or(path).to_owned();
    let (mut events, mut left_out) = (Vec::new(), 0);
    let damaged = each_event(&place, |event| {
        if events.len() < MOST_EVENTS {
            events.push(event.clone());
        } else {
            left_out += 1;
        }
        true
    });
    let damaged = damaged.map_err(|failure| one_line(&failure.message()))?;
    if events.is_empty() {
        return Err("nothing is recorded that could be shown again".to_owned());
    }
    Ok(Recording { run: Box::new(run), events, damaged, left_out })
}
