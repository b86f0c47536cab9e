//! What a message changes and what it makes the screen want. Nothing here waits, reads or draws.

#![expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing in most places")]

use stead_model::ExitCode;

use super::key::Key;
use super::scroll::Scroll;
use super::state::{Intent, Message, Overlay, Screen, Stage, State, View};
use super::watched::Read;

mod controller;
mod run;

/// Takes a message in and returns what is to be done.
pub(crate) fn update(state: &mut State, message: Message) -> Vec<Intent> {
    match message {
        Message::Key(key) => press(state, key),
        Message::Paste(text) => controller::paste(state, &text),
        Message::Resized { columns, rows } => resize(state, columns, rows),
        Message::Tick(now) => {
            state.now = now;
            Vec::new()
        }
        Message::Signal => leave(state, ExitCode::Cancelled),
        Message::Notice(text) => {
            state.notice = Some(text);
            Vec::new()
        }
        Message::Bundles(bundles) => {
            state.home.bundles = Some(bundles);
            state.home.at = state.home.at.min(state.home.listed().len().saturating_sub(1));
            Vec::new()
        }
        Message::Recorded(Ok(run)) => open(state, run),
        Message::Recorded(Err(problem)) => {
            state.notice = Some(problem);
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
        (Key::Esc, Screen::Recorded | Screen::Panel(_)) => {
            state.screen = Screen::Home;
            state.recorded = None;
            vec![Intent::ListBundles]
        }
        (Key::Tab, Screen::Panel(view)) => switch(state, view),
        (_, Screen::Home) => press_home(state, key),
        (_, Screen::Recorded) => run::press(state, key),
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

fn press_home(state: &mut State, key: Key) -> Vec<Intent> {
    let last = state.home.listed().len().saturating_sub(1);
    let page = usize::from(state.size.1).saturating_sub(6).max(1);
    let at = state.home.at;
    match key {
        Key::Up | Key::Char('k') => state.home.at = at.saturating_sub(1),
        Key::Down | Key::Char('j') => state.home.at = (at + 1).min(last),
        Key::PageUp => state.home.at = at.saturating_sub(page),
        Key::PageDown => state.home.at = (at + page).min(last),
        Key::Home => state.home.at = 0,
        Key::End => state.home.at = last,
        Key::Char('r') => return vec![Intent::ListBundles],
        Key::Char('o') => {
            state.screen = Screen::Panel(View::Controller);
        }
        Key::Enter => {
            let Some(bundle) = state.home.listed().get(at) else { return Vec::new() };
            let path = bundle.path.clone().into();
            let key = state.next_key();
            state.notice = Some("reading the bundle…".to_owned());
            return vec![Intent::OpenBundle { path, key }];
        }
        _ => {}
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

/// Shows a bundle that was read, unless the person has gone elsewhere meanwhile.
fn open(state: &mut State, mut run: Box<super::watched::Watched>) -> Vec<Intent> {
    if state.screen != Screen::Home {
        return Vec::new();
    }
    state.notice = None;
    state.screen = Screen::Recorded;
    let reads = read_output(run.key, run.read_shown());
    state.recorded = Some(run);
    reads
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
