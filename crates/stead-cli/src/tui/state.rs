//! Everything the screen shows, what can happen to it, and what it wants done.

use std::path::PathBuf;

use stead_bundle::{Listed, Unpacked};
use stead_drivers::agent::AgentStatus;
use stead_model::time::Timestamp;
use stead_model::{Event, ExitCode};

use super::agents::{Agents, CheckState, Registered};
use super::form::{Form, Manifest, Problem, Request};
use super::key::Key;
use super::pager::{PageRead, Window};
use super::picker::Entry;
use super::scroll::Scroll;
use super::watched::{Piece, Read, Reader, Watched};

/// What happened.
#[derive(Debug)]
pub(crate) enum Message {
    /// A key was pressed.
    Key(Key),
    /// Text was pasted.
    Paste(String),
    /// The terminal has another size.
    Resized {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
    /// Time went by.
    Tick(Timestamp),
    /// A signal asked this process to stop; a run that goes on has been told already.
    Signal,
    /// Something could not be done, or should be known.
    Notice(String),
    /// The bundles there are.
    Bundles(Result<Vec<Listed>, String>),
    /// A bundle was read.
    Recorded(Result<Box<Watched>, String>),
    /// A directory was listed for the picker.
    Entries {
        /// The directory as it was typed.
        directory: String,
        /// What is in it.
        entries: Vec<Entry>,
    },
    /// A manifest was read.
    Loaded {
        /// Which question this answers.
        serial: u64,
        /// Why it was read.
        why: Why,
        /// What was found.
        result: Result<Manifest, Vec<Problem>>,
    },
    /// What a run would do.
    DryRun {
        /// Which question this answers.
        serial: u64,
        /// The text, line by line.
        result: Result<Vec<String>, Vec<Problem>>,
    },
    /// The manifest of a run that starts was read.
    RunPlanned {
        /// Which run.
        key: u64,
        /// Its manifest.
        manifest: Manifest,
        /// Where its bundle is made.
        runs_dir: PathBuf,
    },
    /// Something happened in a run.
    RunEvent {
        /// Which run.
        key: u64,
        /// What.
        event: Box<Event>,
    },
    /// A run ended.
    RunEnded {
        /// Which run.
        key: u64,
        /// How.
        result: Result<RunEnd, Vec<Problem>>,
    },
    /// Output was read.
    Output {
        /// Of which run.
        key: u64,
        /// For what.
        reader: Reader,
        /// The output.
        parts: Vec<(Piece, Vec<u8>)>,
    },
    /// Part of a full log was read.
    Page {
        /// Of which run.
        key: u64,
        /// Which question this answers.
        serial: u64,
        /// What was read.
        window: Window,
    },
    /// This machine was looked at.
    Local(Box<AgentStatus>),
    /// The registry was read.
    Registry(Result<Vec<Registered>, String>),
    /// An agent was checked.
    Checked {
        /// Which.
        name: String,
        /// What was found.
        state: CheckState,
    },
}

/// Why a manifest is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// To list its roles.
    Roles,
    /// Because a person asked whether it is valid.
    Validate,
}

/// How a run ended, beyond what its events say.
#[derive(Debug, Default)]
pub(crate) struct RunEnd {
    /// Its directory or archive.
    pub(crate) bundle: Option<PathBuf>,
    /// The files of an archive.
    pub(crate) unpacked: Option<Unpacked>,
    /// Why it went wrong.
    pub(crate) error: Option<String>,
}

/// What the screen wants done. Each is answered by messages.
#[derive(Debug, PartialEq)]
pub(crate) enum Intent {
    /// Find the bundles there are.
    ListBundles,
    /// Read a bundle.
    OpenBundle {
        /// Where it is.
        path: PathBuf,
        /// What the run is to be called.
        key: u64,
    },
    /// List a directory for the picker.
    ListEntries {
        /// The directory as it was typed.
        directory: String,
    },
    /// Read a manifest.
    Load {
        /// Which question this is.
        serial: u64,
        /// Why.
        why: Why,
        /// What was typed.
        request: Request,
    },
    /// Tell what a run would do.
    DryRun {
        /// Which question this is.
        serial: u64,
        /// What was typed.
        request: Request,
    },
    /// Start a run.
    Run {
        /// What it is to be called.
        key: u64,
        /// What was typed.
        request: Request,
    },
    /// Stop the run: the first time as a first SIGINT does, the second time as a second one.
    StopRun,
    /// Read output of a run.
    ReadOutput {
        /// Of which run.
        key: u64,
        /// What.
        read: Read,
    },
    /// Read part of a full log.
    ReadPage {
        /// Of which run.
        key: u64,
        /// What.
        read: PageRead,
    },
    /// Look at this machine and read the registry.
    LookAtAgents,
    /// Check agents of the registry.
    CheckAgents(Vec<String>),
    /// Draw everything again.
    Redraw,
    /// Leave.
    Quit(ExitCode),
}

/// Which screen is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    /// The list of runs.
    Home,
    /// One recorded run.
    Recorded,
    /// The Orchestration panel.
    Panel(View),
}

/// A view of the Orchestration panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Runs manifests.
    Controller,
    /// Shows agents.
    Agent,
}

/// How the run of the Controller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There is none: the form is shown.
    Before,
    /// It goes on.
    Running {
        /// How often it was asked to stop.
        stops: u32,
    },
    /// It ended.
    After,
}

/// What lies over the screen.
#[derive(Debug)]
pub(crate) enum Overlay {
    /// The keys.
    Help(Scroll),
    /// Whether to stop the run and leave.
    AskQuit,
}

/// The list of runs.
#[derive(Debug, Default)]
pub(crate) struct Home {
    /// The runs, newest first; none while they are being looked for.
    pub(crate) bundles: Option<Result<Vec<Listed>, String>>,
    /// Which is at the cursor.
    pub(crate) at: usize,
}

impl Home {
    /// Returns the runs that are known.
    pub(crate) fn listed(&self) -> &[Listed] {
        match &self.bundles {
            Some(Ok(bundles)) => bundles,
            Some(Err(_)) | None => &[],
        }
    }
}

/// The Controller view.
#[derive(Debug)]
pub(crate) struct Controller {
    /// What a run is started with.
    pub(crate) form: Form,
    /// How the run stands.
    pub(crate) stage: Stage,
    /// The run, once one was started.
    pub(crate) run: Option<Box<Watched>>,
}

/// Everything the screen shows.
#[derive(Debug)]
pub(crate) struct State {
    /// The time.
    pub(crate) now: Timestamp,
    /// Columns and rows of the terminal.
    pub(crate) size: (u16, u16),
    /// Which screen is shown.
    pub(crate) screen: Screen,
    /// What lies over it.
    pub(crate) overlay: Option<Overlay>,
    /// What should be known, until the next key.
    pub(crate) notice: Option<String>,
    /// The list of runs.
    pub(crate) home: Home,
    /// The recorded run that is open.
    pub(crate) recorded: Option<Box<Watched>>,
    /// The Controller view.
    pub(crate) controller: Controller,
    /// The Agent view.
    pub(crate) agents: Agents,
    /// With what to leave when the run has ended.
    pub(crate) leaving: Option<ExitCode>,
    keys_used: u64,
}

impl State {
    /// Returns the first screen.
    pub(crate) fn new(now: Timestamp, size: (u16, u16)) -> Self {
        Self {
            now,
            size,
            screen: Screen::Home,
            overlay: None,
            notice: None,
            home: Home::default(),
            recorded: None,
            controller: Controller { form: Form::default(), stage: Stage::Before, run: None },
            agents: Agents::default(),
            leaving: None,
            keys_used: 0,
        }
    }

    /// Returns a name for a run that no other has.
    pub(crate) fn next_key(&mut self) -> u64 {
        self.keys_used += 1;
        self.keys_used
    }

    /// Whether a run goes on.
    pub(crate) fn is_running(&self) -> bool {
        match self.controller.stage {
            Stage::Running { .. } => true,
            Stage::Before | Stage::After => false,
        }
    }

    /// Whether something on the screen changes with time.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_running() || self.agents.is_checking()
    }

    /// Returns the run that is shown.
    pub(crate) fn watched_mut(&mut self) -> Option<&mut Watched> {
        match self.screen {
            Screen::Recorded => self.recorded.as_deref_mut(),
            Screen::Panel(View::Controller) => match self.controller.stage {
                Stage::Running { .. } | Stage::After => self.controller.run.as_deref_mut(),
                Stage::Before => None,
            },
            Screen::Home | Screen::Panel(View::Agent) => None,
        }
    }

    /// Returns the run called `key`, if it is still there.
    pub(crate) fn run_mut(&mut self, key: u64) -> Option<&mut Watched> {
        let runs = [self.controller.run.as_deref_mut(), self.recorded.as_deref_mut()];
        runs.into_iter().flatten().find(|run| run.key == key)
    }

    /// Returns columns and rows of a full log's text.
    pub(crate) fn pager_size(&self) -> (usize, usize) {
        // A frame around the text, a line above and one below.
        (usize::from(self.size.0).saturating_sub(2), usize::from(self.size.1).saturating_sub(4))
    }
}
