//! Reads manifests and runs them, by the same functions as the command line.

use super::{Stops, Surroundings};
use crate::tui::form::{Problem, Request};
use crate::tui::state::{Message, Why};

pub(super) fn load(work: &Surroundings, serial: u64, why: Why, _request: &Request) {
    work.send(Message::Loaded { serial, why, result: Err(not_yet()) });
}

pub(super) fn dry_run(work: &Surroundings, serial: u64, _request: &Request) {
    work.send(Message::DryRun { serial, result: Err(not_yet()) });
}

pub(super) fn run(work: &Surroundings, key: u64, _request: &Request, _stops: &Stops) {
    work.send(Message::RunEnded { key, result: Err(not_yet()) });
}

fn not_yet() -> Vec<Problem> {
    vec![Problem { place: String::new(), message: "not yet".to_owned(), help: String::new() }]
}
