//! A run on the screen: started, watched, ended, read in full.

use std::path::PathBuf;
use std::sync::Arc;

use super::{controller, read_output, tasks};
use crate::tui::form::{Answer, Manifest, Problem};
use crate::tui::key::Key;
use crate::tui::pager::{Body, Paged, Pager};
use crate::tui::scroll::Scroll;
use crate::tui::state::{Intent, Overlay, RunEnd, Stage, State};
use crate::tui::tasks::Tasks;
use crate::tui::watched::{Chosen, Verbosity, Watched};

/// Starts a run with what the fields say.
pub(super) fn start(state: &mut State) -> Vec<Intent> {
    if !controller::has_manifest(state, false) {
        return Vec::new();
    }
    let key = state.next_key();
    let request = state.controller.form.request();
    let verbosity = if request.verbose { Verbosity::Verbose } else { Verbosity::Quiet };
    state.controller.run = Some(Box::new(Watched::new(key, PathBuf::new(), verbosity)));
    state.controller.stage = Stage::Running { stops: 0 };
    vec![Intent::Run { key, request }]
}

/// Learns what will happen in a run.
pub(super) fn plan(state: &mut State, key: u64, manifest: &Manifest, runs_dir: PathBuf) {
    if let Some(run) = state.run_mut(key) {
        run.runs_dir = runs_dir;
        manifest.phases.iter().for_each(|phase| run.expect_phase(phase));
        manifest.roles.iter().for_each(|role| run.expect_role(&role.name, &role.agent));
    }
}

/// Ends a run: its result is shown, or what kept it from starting.
pub(super) fn end(state: &mut State, key: u64, result: Result<RunEnd, Vec<Problem>>) -> Vec<Intent> {
    if state.controller.run.as_ref().is_none_or(|run| run.key != key) {
        return Vec::new();
    }
    let mut intents = vec![Intent::ListBundles];
    match (result, state.controller.run.as_deref_mut()) {
        (Ok(ended), Some(run)) => {
            run.bundle = ended.bundle.or_else(|| run.bundle.take());
            run.unpacked = ended.unpacked;
            run.error = ended.error.or_else(|| run.error.take());
            state.controller.stage = Stage::After;
        }
        (Err(problems), Some(run)) if run.run_id.is_some() => {
            run.error = problems.into_iter().next().map(|problem| problem.message);
            state.controller.stage = Stage::After;
        }
        (Err(problems), _) => {
            state.controller.run = None;
            state.controller.stage = Stage::Before;
            state.controller.form.say(Answer::Problems(problems));
        }
        (Ok(_), None) => state.controller.stage = Stage::Before,
    }
    if matches!(state.overlay, Some(Overlay::AskQuit)) {
        state.overlay = None;
    }
    intents.extend(state.leaving.map(Intent::Quit));
    intents
}

/// Takes a key while a run is shown.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    if key == Key::Char('l') {
        return open_pager(state);
    }
    let page = isize::try_from(state.size.1 / 3).unwrap_or(8);
    let Some(run) = state.watched_mut() else { return Vec::new() };
    match key {
        Key::Left => return read_output(run.key, run.choose(-1)),
        Key::Right => return read_output(run.key, run.choose(1)),
        Key::Up | Key::Char('k') => scroll(run, -1),
        Key::Down | Key::Char('j') => scroll(run, 1),
        Key::PageUp => run.shown_mut().by(-page),
        Key::PageDown => run.shown_mut().by(page),
        Key::Home => run.shown_mut().show_start(),
        Key::End => run.shown_mut().follow_end(),
        Key::Char('t') => {
            run.tasks = Some(Tasks::default());
            return tasks::look(state);
        }
        Key::Char('f') => (run.scroll, run.follows) = (Scroll::default(), run.ended.is_none()),
        _ => {}
    }
    Vec::new()
}

fn scroll(run: &mut Watched, by: isize) {
    run.follows = false;
    run.scroll.by(by);
}

/// Opens the full log of the run and of its roles, the one that is shown first.
pub(super) fn open_pager(state: &mut State) -> Vec<Intent> {
    let size = state.pager_size();
    let Some(run) = state.watched_mut() else { return Vec::new() };
    let lines: Vec<String> = run.log().all().map(|(_, line)| line).collect();
    let mut logs = vec![Paged { name: "run".to_owned(), body: Body::Lines(Arc::from(lines)) }];
    let mut first = 0;
    for (place, role) in run.roles.iter().enumerate() {
        let Some(directory) = run.directory() else { break };
        if run.chosen() == Chosen::Role(place) && !role.files().is_empty() {
            first = logs.len();
        }
        let mut files: Vec<_> = role.files().to_vec();
        // The output before the errors, whichever came first.
        files.sort_by(|a, b| b.contains("stdout").cmp(&a.contains("stdout")).then_with(|| a.cmp(b)));
        let name = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
        logs.extend(files.iter().map(|file| Paged {
            name: format!("{} {}", role.name, name(file)),
            body: Body::File(directory.join(&**file)),
        }));
    }
    let (pager, read) = Pager::open(logs, first, size);
    run.pager = Some(pager);
    read.map(|read| Intent::ReadPage { key: run.key, read }).into_iter().collect()
}

/// Takes a key while a full log is open.
pub(super) fn press_pager(state: &mut State, key: Key) -> Vec<Intent> {
    if key == Key::Char('?') {
        state.overlay = Some(Overlay::Help(Scroll::default()));
        return Vec::new();
    }
    let Some(run) = state.watched_mut() else { return Vec::new() };
    if matches!(key, Key::Esc | Key::Char('q' | 'l')) {
        run.pager = None;
        return Vec::new();
    }
    let read = run.pager.as_mut().and_then(|pager| pager.press(key));
    read.map(|read| Intent::ReadPage { key: run.key, read }).into_iter().collect()
}
