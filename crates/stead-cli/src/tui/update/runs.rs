//! The list of runs, and one that is open.

use stead_model::Event;

use super::{read_output, run, tasks};
use crate::tui::key::Key;
use crate::tui::state::{Intent, Screen, State, View};
use crate::tui::tasks::Tasks;
use crate::tui::watched::{Liveness, Watched};

/// Looks for runs.
pub(super) fn list(state: &mut State) -> Vec<Intent> {
    state.home.pace.ask(state.now);
    vec![Intent::ListBundles]
}

/// Takes a key of the list.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    match key {
        Key::Char('r') => list(state),
        Key::Char('o') => {
            state.screen = Screen::Panel(View::Controller);
            Vec::new()
        }
        Key::Enter => {
            let shown = state.home.shown();
            let Some(bundle) = shown.get(state.home.at()) else { return Vec::new() };
            let path = bundle.path.clone().into();
            let key = state.next_key();
            state.notice = Some("reading the bundle…".to_owned());
            vec![Intent::OpenBundle { path, key }]
        }
        _ => {
            let page = state.page_rows();
            state.home.step(key, page);
            Vec::new()
        }
    }
}

/// Shows a bundle that was read, unless the person has gone elsewhere meanwhile.
pub(super) fn open(state: &mut State, mut run: Box<Watched>) -> Vec<Intent> {
    if state.screen != Screen::Home {
        return Vec::new();
    }
    state.notice = None;
    state.screen = Screen::Recorded;
    state.replay = None;
    let reads = read_output(run.key, run.read_shown());
    state.recorded = Some(run);
    reads
}

/// Closes the run that is open.
pub(super) fn close(state: &mut State) {
    (state.recorded, state.replay) = (None, None);
}

/// Takes a key while a recorded run is shown.
pub(super) fn press_recorded(state: &mut State, key: Key) -> Vec<Intent> {
    let Some(recorded) = &mut state.recorded else { return Vec::new() };
    if recorded.tasks.is_some() {
        return tasks::press(state, key);
    }
    match key {
        Key::Enter => {
            recorded.tasks = Some(Tasks::default());
            tasks::look(state)
        }
        Key::Char('p') => {
            let Some(path) = recorded.bundle.clone() else { return Vec::new() };
            let key = recorded.key;
            state.notice = Some("reading what happened…".to_owned());
            vec![Intent::ReadRecording { path, key }]
        }
        _ => run::press(state, key),
    }
}

/// Takes what happened in a run that goes on.
pub(super) fn follow(
    state: &mut State,
    key: u64,
    events: &[Event],
    (read_to, liveness): ((u64, u64), Liveness),
) -> Vec<Intent> {
    state.follow_pace.answer(state.now);
    let Some(run) = state.recorded.as_mut().filter(|run| run.key == key) else { return Vec::new() };
    let reads: Vec<_> = events.iter().flat_map(|event| run.apply(event)).collect();
    run.read_to = read_to;
    run.liveness = if run.ended.is_some() { Liveness::Over } else { liveness };
    read_output(key, reads)
}
