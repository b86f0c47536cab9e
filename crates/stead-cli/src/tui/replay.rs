//! A recorded run shown again, event by event: forwards and back, by hand or at the pace it had.
//!
//! What is shown is a fold of the first events, as a live run is of all so far. To go back the fold is made anew, from one of
//! a few that were kept on the way.

use std::sync::Arc;

use stead_model::time::Timestamp;
use stead_model::{Event, EventKind};

use super::watched::{Read, Watched};
use crate::render::{one_line, plain};

/// How many folds are kept on the way, besides the one before the first event.
const KEPT: usize = 32;
/// Fewer events than this are folded at once faster than anybody sees.
const FEW: usize = 256;
/// What this many events want read is read piece by piece.
const NEAR: usize = 64;
/// How much faster than it was, in hundredths.
const SPEEDS: [u64; 11] = [25, 50, 100, 200, 400, 800, 1_600, 3_200, 10_000, 30_000, 100_000];
/// The place of the speed it had.
const AS_IT_WAS: usize = 2;

/// Everything that happened in a run, as it was read.
#[derive(Debug)]
pub(crate) struct Recording {
    /// The run before its first event.
    pub(crate) run: Box<Watched>,
    /// Its events, in order.
    pub(crate) events: Vec<Event>,
    /// How many lines of the journal are none.
    pub(crate) damaged: u64,
    /// How many events there are that were too many to be kept.
    pub(crate) left_out: u64,
}

/// A recorded run that is shown again.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The run so far.
    pub(crate) run: Box<Watched>,
    events: Arc<[Event]>,
    /// How many events are behind.
    at: usize,
    /// Folds of the first events, by their number, in order. Invariant: the first is of none.
    kept: Vec<(usize, Box<Watched>)>,
    speed: usize,
    playing: Option<Playing>,
    /// What should be known of the journal.
    pub(crate) note: Option<String>,
}

/// Since when it plays by itself, and from which moment of the run on.
#[derive(Clone, Copy, Debug)]
struct Playing {
    since: Timestamp,
    from: Timestamp,
}

impl Replay {
    /// Returns a recording at its beginning; nothing has happened.
    pub(crate) fn new(recording: Recording) -> Self {
        let Recording { mut run, events, damaged, left_out } = recording;
        if let Some(Event { kind: EventKind::RunStarted(started), .. }) = events.first() {
            run.expect_kind(started.kind);
        }
        let mut notes = Vec::new();
        if damaged > 0 {
            notes.push(format!("{damaged} lines of the journal cannot be read and are left out"));
        }
        if left_out > 0 {
            notes.push(format!("the last {left_out} events are too many: `stead bundle replay` shows them"));
        }
        Self {
            kept: vec![(0, run.clone())],
            run,
            events: events.into(),
            at: 0,
            speed: AS_IT_WAS,
            playing: None,
            note: (!notes.is_empty()).then(|| notes.join("; ")),
        }
    }

    /// Returns how many events are behind, and how many there are.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.at, self.events.len())
    }

    /// Whether it plays by itself.
    pub(crate) fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    /// Returns how fast, as people say it.
    pub(crate) fn speed(&self) -> String {
        match SPEEDS[self.speed] {
            whole if whole % 100 == 0 => format!("×{}", whole / 100),
            part => format!("×0.{part:02}").trim_end_matches('0').to_owned(),
        }
    }

    /// Returns the moment of the run that is shown.
    pub(crate) fn moment(&self) -> Timestamp {
        let last = self.at.checked_sub(1).and_then(|last| self.events.get(last));
        last.or_else(|| self.events.first()).map_or(Timestamp::from_micros(0), |event| event.t)
    }

    /// Returns how long after its beginning that is, and how long it took, in milliseconds.
    pub(crate) fn times(&self) -> (u64, u64) {
        let first = self.events.first().map_or(self.moment(), |event| event.t);
        let last = self.events.last().map_or(first, |event| event.t);
        (self.moment().millis_since(first), last.millis_since(first))
    }

    /// Returns what the event says that was taken last.
    pub(crate) fn said(&self) -> String {
        let Some(event) = self.at.checked_sub(1).and_then(|last| self.events.get(last)) else {
            return "nothing has happened".to_owned();
        };
        plain::line_of(&event.kind).unwrap_or_else(|| described(&event.kind))
    }

    /// Plays, or stops doing so; at the end it begins again.
    pub(crate) fn toggle(&mut self, now: Timestamp) -> Vec<Read> {
        if self.playing.take().is_some() {
            return Vec::new();
        }
        let reads = if self.at == self.events.len() { self.go(0) } else { Vec::new() };
        self.playing = Some(Playing { since: now, from: self.moment() });
        reads
    }

    /// Makes it faster or slower.
    pub(crate) fn change_speed(&mut self, by: isize, now: Timestamp) {
        let from = self.playing.map(|playing| self.due(playing, now));
        self.speed = self.speed.saturating_add_signed(by).min(SPEEDS.len() - 1);
        self.playing = from.map(|from| Playing { since: now, from });
    }

    /// Goes on by some events, or back; playing ends.
    pub(crate) fn step(&mut self, by: isize) -> Vec<Read> {
        self.playing = None;
        self.go(self.at.saturating_add_signed(by))
    }

    /// Takes in that time goes by: what is due while it plays has happened.
    pub(crate) fn tick(&mut self, now: Timestamp) -> Vec<Read> {
        let Some(playing) = self.playing else { return Vec::new() };
        let due = self.due(playing, now);
        let ahead = &self.events[self.at..];
        // Clocks may go back: what is behind an event that is due is due as well.
        let next = ahead.iter().take_while(|event| event.t <= due).count();
        if self.at + next == self.events.len() {
            self.playing = None;
        }
        if next == 0 { Vec::new() } else { self.go(self.at + next) }
    }

    /// Returns the moment of the run that playing has come to.
    fn due(&self, playing: Playing, now: Timestamp) -> Timestamp {
        let passed = now.as_micros().saturating_sub(playing.since.as_micros()).max(0);
        let speed = i64::try_from(SPEEDS[self.speed]).unwrap_or(i64::MAX);
        Timestamp::from_micros(playing.from.as_micros().saturating_add(passed.saturating_mul(speed) / 100))
    }

    /// Goes to where `at` events are behind; returns the output that is to be read there.
    pub(crate) fn go(&mut self, at: usize) -> Vec<Read> {
        let at = at.min(self.events.len());
        let mut is_near = at.saturating_sub(self.at) <= NEAR;
        if at < self.at {
            let nearest = self.kept.iter().rposition(|(behind, _)| *behind <= at).unwrap_or(0);
            let (behind, run) = &self.kept[nearest];
            let mut run = run.clone();
            run.take_place_of(&self.run);
            (self.at, self.run) = (*behind, run);
            is_near = false;
        }
        let apart = (self.events.len() / KEPT).max(FEW);
        let mut reads = Vec::new();
        while self.at < at {
            let wanted = self.run.apply(&self.events[self.at]);
            if is_near {
                reads.extend(wanted);
            }
            self.at += 1;
            let newest = self.kept.last().map_or(0, |(behind, _)| *behind);
            if self.at >= newest + apart {
                self.kept.push((self.at, self.run.clone()));
            }
        }
        // After a leap it is read once, when the run is where it should be.
        if is_near { reads } else { self.run.read_shown().into_iter().collect() }
    }
}

/// Returns a line for an event that has none of its own.
fn described(kind: &EventKind) -> String {
    let named = serde_json::to_value(kind).unwrap_or_default();
    let word = |key: &str| named.get(key).and_then(serde_json::Value::as_str).map(one_line);
    let mut line = format!("[{}]", word("ev").unwrap_or_default());
    for key in ["task", "host", "role", "agent", "name", "section", "stream", "status"] {
        if let Some(word) = word(key) {
            line.push_str(&format!(" {word}"));
        }
    }
    line
}

#[cfg(test)]
mod tests;
