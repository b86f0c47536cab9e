//! A recorded run that is shown again.

use super::{read_output, run, tasks};
use crate::tui::key::Key;
use crate::tui::replay::{Recording, Replay};
use crate::tui::state::{Intent, Screen, State};
use crate::tui::watched::Read;

/// Shows a run from its beginning, unless the person has gone elsewhere meanwhile.
pub(super) fn begin(state: &mut State, key: u64, recording: Result<Box<Recording>, String>) {
    let is_open = state.recorded.as_ref().is_some_and(|run| run.key == key);
    if !is_open || state.screen != Screen::Recorded {
        return;
    }
    match recording {
        Ok(mut recording) => {
            recording.run.key = state.next_key();
            let replay = Replay::new(*recording);
            state.notice = replay.note.clone();
            state.replay = Some(replay);
        }
        Err(problem) => state.notice = Some(problem),
    }
}

/// Lets time go by: what is due while it plays happens.
pub(super) fn tick(state: &mut State) -> Vec<Intent> {
    let now = state.now;
    act(state, |replay| replay.tick(now))
}

/// Takes a key while a run is shown again.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    let now = state.now;
    if state.replay.as_ref().is_some_and(|replay| replay.run.tasks.is_some()) {
        return tasks::press(state, key);
    }
    match key {
        Key::Char(' ') => act(state, |replay| replay.toggle(now)),
        Key::Left => act(state, |replay| replay.step(-1)),
        Key::Right => act(state, |replay| replay.step(1)),
        Key::Home => act(state, |replay| replay.step(isize::MIN)),
        Key::End => act(state, |replay| replay.step(isize::MAX)),
        Key::Char('+' | '=') => act(state, |replay| {
            replay.change_speed(1, now);
            Vec::new()
        }),
        Key::Char('-' | '_') => act(state, |replay| {
            replay.change_speed(-1, now);
            Vec::new()
        }),
        // These choose the role elsewhere.
        Key::Char('<' | ',') => run::press(state, Key::Left),
        Key::Char('>' | '.') => run::press(state, Key::Right),
        _ => run::press(state, key),
    }
}

fn act(state: &mut State, change: impl FnOnce(&mut Replay) -> Vec<Read>) -> Vec<Intent> {
    let Some(replay) = &mut state.replay else { return Vec::new() };
    let reads = change(replay);
    read_output(replay.run.key, reads)
}
