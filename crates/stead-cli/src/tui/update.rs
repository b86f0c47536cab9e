//! What a message changes and what it makes the screen want. Nothing here waits, reads or draws.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use stead_model::ExitCode;

use super::key::Key;
use super::scroll::Scroll;
use super::state::{Intent, Message, Overlay, Screen, Stage, State, Tab, View};
use super::watched::Read;

mod controller;
mod fleet;
mod nodes;
mod replay;
mod run;
mod runs;
mod tasks;

/// Takes a message in and returns what is to be done.
pub(crate) fn update(state: &mut State, message: Message) -> Vec<Intent> {
    match message {
        Message::Key(key) => press(state, key),
        Message::Paste(text) => match state.filter_mut().filter(|filter| filter.is_typing()) {
            Some(filter) => {
                filter.paste(&text);
                Vec::new()
            }
            None => controller::paste(state, &text),
        },
        Message::Resized { columns, rows } => resize(state, columns, rows),
        Message::Tick(now) => {
            state.now = now;
            let mut intents = replay::tick(state);
            intents.extend(look_again(state));
            intents
        }
        Message::Signal => leave(state, ExitCode::Cancelled),
        Message::Notice(text) => {
            state.notice = Some(text);
            Vec::new()
        }
        Message::Bundles(bundles) => {
            state.home.take(bundles, state.now);
            Vec::new()
        }
        Message::Recorded(Ok(run)) => runs::open(state, run),
        Message::Recorded(Err(problem)) => {
            state.notice = Some(problem);
            Vec::new()
        }
        Message::Followed { key, events, read_to, liveness } => {
            runs::follow(state, key, &events, (read_to, liveness))
        }
        Message::Replayable { key, recording } => {
            replay::begin(state, key, recording);
            Vec::new()
        }
        Message::Nodes(seen) => {
            state.nodes.take(seen, state.now);
            Vec::new()
        }
        Message::NodeTold { place, told } => {
            state.nodes.take_told(&place, told);
            Vec::new()
        }
        Message::Fleet(told) => {
            state.fleet.take(*told, state.now);
            Vec::new()
        }
        Message::Explained { instance, explained } => {
            state.fleet.take_explained(&instance, explained);
            Vec::new()
        }
        Message::Entries { directory, entries } => {
            controller::take_entries(state, &directory, entries);
            Vec::new()
        }
        Message::Loaded { serial, why, result } => {
            controller::take_manifest(state, serial, why, result);
            Vec::new()
        }
        Message::DryRun { serial, result } => {
            controller::take_dry_run(state, serial, result);
            Vec::new()
        }
        Message::RunPlanned { key, manifest, runs_dir } => {
            run::plan(state, key, &manifest, runs_dir);
            Vec::new()
        }
        Message::RunEvent { key, event } => {
            let reads = state.run_mut(key).map(|run| run.apply(&event)).unwrap_or_default();
            read_output(key, reads)
        }
        Message::RunEnded { key, result } => run::end(state, key, result),
        Message::Output { key, reader, parts } => {
            if let Some(run) = state.run_mut(key) {
                run.take_output(reader, &parts);
            }
            Vec::new()
        }
        Message::Page { key, serial, window } => {
            if let Some(pager) = state.run_mut(key).and_then(|run| run.pager.as_mut()) {
                pager.take(serial, window);
            }
            Vec::new()
        }
        Message::Local(status) => {
            state.agents.local = Some(*status);
            Vec::new()
        }
        Message::Registry(registry) => {
            state.agents.take(registry);
            Vec::new()
        }
        Message::Checked { name, state: found } => {
            state.agents.checked(&name, found);
            Vec::new()
        }
    }
}

/// Returns the wishes for output of the run called `key`.
fn read_output(key: u64, reads: impl IntoIterator<Item = Read>) -> Vec<Intent> {
    reads.into_iter().map(|read| Intent::ReadOutput { key, read }).collect()
}

fn press(state: &mut State, key: Key) -> Vec<Intent> {
    state.notice = None;
    match key {
        Key::Interrupt => {
            let stop = stop_run(state);
            return stop.into_iter().chain(leave(state, ExitCode::Cancelled)).collect();
        }
        Key::Redraw => return vec![Intent::Redraw],
        _ => {}
    }
    if state.overlay.is_some() {
        return press_overlay(state, key);
    }
    if controller::is_editing(state) {
        return controller::press_editing(state, key);
    }
    if state.watched_mut().is_some_and(|run| run.pager.is_some()) {
        return run::press_pager(state, key);
    }
    if let Some(filter) = state.filter_mut().filter(|filter| filter.is_typing())
        && !matches!(key, Key::Up | Key::Down | Key::PageUp | Key::PageDown)
    {
        filter.press(key);
        return tasks::look(state);
    }
    match (key, state.screen) {
        (Key::Char('q'), _) if state.is_running() => {
            state.overlay = Some(Overlay::AskQuit);
            Vec::new()
        }
        (Key::Char('q'), _) => vec![Intent::Quit(ExitCode::Success)],
        (Key::Char('?'), _) => {
            state.overlay = Some(Overlay::Help(Scroll::default()));
            Vec::new()
        }
        (Key::Char(digit @ '1'..='4'), screen) => {
            let place = usize::from(digit as u8 - b'1');
            go(state, Tab::Runs.further(place), screen.tab())
        }
        (Key::Char('/'), _) if state.filter_mut().is_some() => {
            if let Some(filter) = state.filter_mut() {
                filter.begin();
            }
            Vec::new()
        }
        (Key::Esc, _) => back(state),
        (Key::Tab, Screen::Panel(view)) => switch(state, view),
        (Key::Tab, screen) => go(state, screen.tab().further(1), screen.tab()),
        (Key::BackTab, screen) => go(state, screen.tab().further(3), screen.tab()),
        (_, Screen::Home) => runs::press(state, key),
        (_, Screen::Recorded) if state.replay.is_some() => replay::press(state, key),
        (_, Screen::Recorded) => runs::press_recorded(state, key),
        (_, Screen::Nodes) => nodes::press(state, key),
        (_, Screen::Fleet) => fleet::press(state, key),
        // Whatever is looked at, `x` stops the run.
        (_, Screen::Panel(View::Controller))
            if key != Key::Char('x') && state.watched_mut().is_some_and(|run| run.tasks.is_some()) =>
        {
            tasks::press(state, key)
        }
        (_, Screen::Panel(View::Controller)) => controller::press(state, key),
        (_, Screen::Panel(View::Agent)) => match state.agents.press(key) {
            names if names.is_empty() => Vec::new(),
            names => vec![Intent::CheckAgents(names)],
        },
    }
}

fn press_overlay(state: &mut State, key: Key) -> Vec<Intent> {
    match state.overlay.take() {
        Some(Overlay::AskQuit) => match key {
            Key::Char('y' | 'Y') => {
                let stop = stop_run(state);
                return stop.into_iter().chain(leave(state, ExitCode::Success)).collect();
            }
            Key::Char('n' | 'N') | Key::Esc => {}
            _ => state.overlay = Some(Overlay::AskQuit),
        },
        Some(Overlay::Help(mut scroll)) => match key {
            Key::Esc | Key::Enter | Key::Char('?' | 'q') => {}
            _ => {
                match key {
                    Key::Up | Key::Char('k') => scroll.by(-1),
                    Key::Down | Key::Char('j') => scroll.by(1),
                    other => drop(scroll.page(other)),
                }
                state.overlay = Some(Overlay::Help(scroll));
            }
        },
        None => {}
    }
    Vec::new()
}

fn switch(state: &mut State, view: View) -> Vec<Intent> {
    match view {
        View::Controller => {
            state.screen = Screen::Panel(View::Agent);
            vec![Intent::LookAtAgents]
        }
        View::Agent => {
            state.screen = Screen::Panel(View::Controller);
            Vec::new()
        }
    }
}

/// Goes to another tab, as it was left; from a run to the list it is of.
fn go(state: &mut State, to: Tab, from: Tab) -> Vec<Intent> {
    state.screen = match to {
        Tab::Runs if from != Tab::Runs && state.recorded.is_some() => Screen::Recorded,
        Tab::Runs => {
            runs::close(state);
            Screen::Home
        }
        Tab::Nodes => Screen::Nodes,
        Tab::Fleet => Screen::Fleet,
        Tab::Orchestration => Screen::Panel(View::Controller),
    };
    look_again(state)
}

/// Goes back by one level: to the whole list, out of what is open, at last to the runs.
fn back(state: &mut State) -> Vec<Intent> {
    if state.filter_mut().is_some_and(|filter| filter.clear()) {
        return tasks::look(state);
    }
    if let Some(run) = state.watched_mut().filter(|run| run.tasks.is_some()) {
        run.tasks = None;
        return Vec::new();
    }
    match state.screen {
        Screen::Home => return Vec::new(),
        Screen::Nodes if state.nodes.open.take().is_some() => return Vec::new(),
        Screen::Fleet if state.fleet.open.take().is_some() => return Vec::new(),
        Screen::Recorded if state.replay.take().is_some() => return Vec::new(),
        Screen::Recorded | Screen::Nodes | Screen::Fleet | Screen::Panel(_) => {}
    }
    runs::close(state);
    state.screen = Screen::Home;
    runs::list(state)
}

/// Returns what it is time to ask for again, of what is on the screen.
fn look_again(state: &mut State) -> Vec<Intent> {
    let now = state.now;
    match state.screen {
        Screen::Home if state.home.pace.is_due(now) => runs::list(state),
        Screen::Nodes if state.nodes.pace.is_due(now) => nodes::look(state),
        Screen::Fleet if state.fleet.pace.is_due(now) => fleet::ask(state),
        Screen::Recorded if state.is_following() && state.follow_pace.is_due(now) => {
            let Some(run) = &state.recorded else { return Vec::new() };
            let Some(directory) = run.directory() else { return Vec::new() };
            state.follow_pace.ask(now);
            vec![Intent::FollowRun { key: run.key, directory: directory.to_owned(), read_to: run.read_to }]
        }
        Screen::Home | Screen::Recorded | Screen::Nodes | Screen::Fleet | Screen::Panel(_) => Vec::new(),
    }
}

fn resize(state: &mut State, columns: u16, rows: u16) -> Vec<Intent> {
    state.size = (columns, rows);
    let size = state.pager_size();
    let Some(run) = state.watched_mut() else { return Vec::new() };
    let read = run.pager.as_mut().and_then(|pager| pager.resize(size));
    read.map(|read| Intent::ReadPage { key: run.key, read }).into_iter().collect()
}

/// Asks a run that goes on to stop; more than twice says nothing new.
fn stop_run(state: &mut State) -> Option<Intent> {
    match &mut state.controller.stage {
        Stage::Running { stops } if *stops < 2 => {
            *stops += 1;
            Some(Intent::StopRun)
        }
        Stage::Running { .. } | Stage::Before | Stage::After => None,
    }
}

/// Leaves now, or when the run that goes on has ended.
fn leave(state: &mut State, code: ExitCode) -> Vec<Intent> {
    if !state.is_running() {
        return vec![Intent::Quit(code)];
    }
    state.leaving = Some(code);
    Vec::new()
}

#[cfg(test)]
mod tests;
