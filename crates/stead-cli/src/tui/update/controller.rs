//! The Controller before a run: fields, picker and questions about the manifest.

use super::run;
use crate::tui::form::{Answer, Editing, Field, Manifest, Problem};
use crate::tui::key::Key;
use crate::tui::picker::{Entry, Picked, Picker};
use crate::tui::state::{Intent, Screen, Stage, State, View, Why};

/// Whether keys are text.
pub(super) fn is_editing(state: &State) -> bool {
    state.screen == Screen::Panel(View::Controller)
        && state.controller.stage == Stage::Before
        && state.controller.form.editing.is_some()
}

/// Takes a key while a field is edited.
pub(super) fn press_editing(state: &mut State, key: Key) -> Vec<Intent> {
    let form = &mut state.controller.form;
    match &mut form.editing {
        Some(Editing::Picker(picker)) => {
            let picked = picker.press(key);
            after_pick(state, picked)
        }
        Some(Editing::InPlace(_)) => {
            let edited = form.field();
            if form.press_in_place(key) && edited == Field::Manifest {
                load(state, Why::Roles)
            } else {
                Vec::new()
            }
        }
        None => Vec::new(),
    }
}

/// Takes text that was pasted.
pub(super) fn paste(state: &mut State, text: &str) -> Vec<Intent> {
    if !is_editing(state) {
        return Vec::new();
    }
    let form = &mut state.controller.form;
    match &mut form.editing {
        Some(Editing::Picker(picker)) => {
            let picked = picker.paste(text);
            after_pick(state, picked)
        }
        Some(Editing::InPlace(_)) => {
            if let Some(field) = form.text_mut() {
                field.paste(text);
            }
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn after_pick(state: &mut State, picked: Picked) -> Vec<Intent> {
    let form = &mut state.controller.form;
    match picked {
        Picked::Stay => Vec::new(),
        Picked::Look(directory) => vec![Intent::ListEntries { directory }],
        Picked::Closed => {
            form.editing = None;
            Vec::new()
        }
        Picked::Path(path) => {
            form.editing = None;
            form.set_manifest(&path);
            load(state, Why::Roles)
        }
    }
}

/// Takes a key of the Controller.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    match state.controller.stage {
        Stage::Before => press_form(state, key),
        Stage::Running { .. } => match key {
            Key::Char('x') => super::stop_run(state).into_iter().collect(),
            _ => run::press(state, key),
        },
        Stage::After => match key {
            Key::Enter => {
                state.controller.stage = Stage::Before;
                load(state, Why::Roles)
            }
            _ => run::press(state, key),
        },
    }
}

fn press_form(state: &mut State, key: Key) -> Vec<Intent> {
    let form = &mut state.controller.form;
    match key {
        Key::Up | Key::Char('k') => form.step(-1),
        Key::Down | Key::Char('j') => form.step(1),
        Key::Char(' ') | Key::Left | Key::Right => form.toggle(),
        Key::Enter => match form.field() {
            Field::Manifest => return open_picker(state),
            Field::BundleDir | Field::Timeout => form.edit(),
            Field::DryRun | Field::Verbose => form.toggle(),
        },
        Key::Char('e') => form.edit(),
        // A path begins so: who types it does not want to press Enter first.
        Key::Char('/' | '.' | '~') if form.field() == Field::Manifest => {
            let empty = form.text(Field::Manifest).is_some_and(|text| text.is_empty());
            let mut intents = open_picker(state);
            if empty {
                intents.extend(press_editing(state, key));
            }
            return intents;
        }
        Key::Char('v') => return load(state, Why::Validate),
        Key::Char('d') => return dry_run(state),
        Key::Char('r') if form.is_dry_run() => return dry_run(state),
        Key::Char('r') => return run::start(state),
        other => drop(form.scroll.page(other)),
    }
    Vec::new()
}

fn open_picker(state: &mut State) -> Vec<Intent> {
    let form = &mut state.controller.form;
    let (picker, directory) = Picker::open(&form.request().manifest);
    form.editing = Some(Editing::Picker(picker));
    vec![Intent::ListEntries { directory }]
}

/// Asks for the manifest; without a path there is nothing to ask.
fn load(state: &mut State, why: Why) -> Vec<Intent> {
    if !has_manifest(state, why == Why::Roles) {
        return Vec::new();
    }
    let form = &mut state.controller.form;
    vec![Intent::Load { serial: form.ask(), why, request: form.request() }]
}

fn dry_run(state: &mut State) -> Vec<Intent> {
    if !has_manifest(state, false) {
        return Vec::new();
    }
    let form = &mut state.controller.form;
    vec![Intent::DryRun { serial: form.ask(), request: form.request() }]
}

/// Whether a manifest is named; if not, that is said unless nobody asked.
pub(super) fn has_manifest(state: &mut State, unasked: bool) -> bool {
    let form = &mut state.controller.form;
    if !form.request().manifest.is_empty() {
        return true;
    }
    form.say(if unasked {
        Answer::Nothing
    } else {
        Answer::Problems(vec![Problem {
            place: "Manifest".to_owned(),
            message: "no manifest is named".to_owned(),
            help: "press Enter on the first field and choose a file".to_owned(),
        }])
    });
    false
}

/// Takes the entries of a directory.
pub(super) fn take_entries(state: &mut State, directory: &str, entries: Vec<Entry>) {
    if let Some(Editing::Picker(picker)) = &mut state.controller.form.editing {
        picker.take(directory, entries);
    }
}

/// Takes a manifest that was read, if it is still wanted.
pub(super) fn take_manifest(
    state: &mut State,
    serial: u64,
    why: Why,
    result: Result<Manifest, Vec<Problem>>,
) {
    let form = &mut state.controller.form;
    if serial == form.serial {
        form.answer = match (result, why) {
            (Ok(manifest), Why::Roles) => Answer::Roles(manifest),
            (Ok(manifest), Why::Validate) => Answer::Valid(manifest),
            (Err(problems), Why::Roles | Why::Validate) => Answer::Problems(problems),
        };
    }
}

/// Takes what a run would do, if it is still wanted.
pub(super) fn take_dry_run(state: &mut State, serial: u64, result: Result<Vec<String>, Vec<Problem>>) {
    let form = &mut state.controller.form;
    if serial == form.serial {
        form.answer = match result {
            Ok(lines) => Answer::DryRun(lines),
            Err(problems) => Answer::Problems(problems),
        };
    }
}
