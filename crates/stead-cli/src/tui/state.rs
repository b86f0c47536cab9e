//! Everything the screen shows, what can happen to it, and what it wants done.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use stead_bundle::{Listed, Unpacked};
use stead_drivers::agent::AgentStatus;
use stead_model::node::wire::NodeStatus;
use stead_model::time::Timestamp;
use stead_model::{Event, ExitCode};

use super::agents::{Agents, CheckState, Registered};
use super::filter::Filter;
use super::fleet::Fleet;
use super::form::{Form, Manifest, Problem, Request};
use super::key::Key;
use super::nodes::{Nodes, Seen};
use super::pace::Pace;
use super::pager::{PageRead, Window};
use super::picker::Entry;
use super::replay::{Recording, Replay};
use super::scroll::Scroll;
use super::trouble::Trouble;
use super::watched::{Liveness, Piece, Read, Reader, Watched};
use crate::commands::nodes::report::NodePlace;

/// How long after an answer runs are looked for again.
const BETWEEN_LISTS_MILLIS: u64 = 2_000;
/// How long after an answer the journal of a run that goes on is looked at again.
const BETWEEN_PIECES_MILLIS: u64 = 200;

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
    /// What was written to the journal of a recorded run since it was read last.
    Followed {
        /// Which run.
        key: u64,
        /// What happened.
        events: Vec<Event>,
        /// How far it was read: the number of the last event, and where that ends.
        read_to: (u64, u64),
        /// Whether more will come.
        liveness: Liveness,
    },
    /// All events of a recorded run were read.
    Replayable {
        /// Which run.
        key: u64,
        /// What happened in it.
        recording: Result<Box<Recording>, String>,
    },
    /// Nodes were looked at.
    Nodes(Result<Seen, Trouble>),
    /// What a node's agent told the server of its level.
    NodeTold {
        /// Which node.
        place: NodePlace,
        /// What; none if there is no server.
        told: Result<Option<Box<NodeStatus>>, Trouble>,
    },
    /// A fleet's master told how it is.
    Fleet(Box<Result<Value, Trouble>>),
    /// A fleet's master said why an instance is where it is.
    Explained {
        /// Which instance.
        instance: String,
        /// Why, line by line.
        explained: Result<Vec<String>, Trouble>,
    },
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
    pub(crate) unpacked: Option<Arc<Unpacked>>,
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
    /// Read what was written to the journal of a run since.
    FollowRun {
        /// Which run.
        key: u64,
        /// Its directory.
        directory: PathBuf,
        /// How far it was read.
        read_to: (u64, u64),
    },
    /// Read all events of a recorded run.
    ReadRecording {
        /// Where it is.
        path: PathBuf,
        /// What the run is to be called.
        key: u64,
    },
    /// Look at the nodes of the site.
    LookAtNodes,
    /// Ask what a node's agent told.
    AskNode(NodePlace),
    /// Ask the fleet's master how it is.
    AskFleet,
    /// Ask the fleet's master why an instance is where it is.
    ExplainInstance(String),
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
    /// The nodes of the site.
    Nodes,
    /// The fleet.
    Fleet,
    /// The Orchestration panel.
    Panel(View),
}

impl Screen {
    /// Returns under which tab it stands.
    pub(crate) fn tab(self) -> Tab {
        match self {
            Self::Home | Self::Recorded => Tab::Runs,
            Self::Nodes => Tab::Nodes,
            Self::Fleet => Tab::Fleet,
            Self::Panel(_) => Tab::Orchestration,
        }
    }
}

/// What the top bar names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    /// Runs, recorded ones among them.
    Runs,
    /// The nodes of the site.
    Nodes,
    /// The fleet.
    Fleet,
    /// The Orchestration panel.
    Orchestration,
}

impl Tab {
    /// Every tab, in order; the first is 1.
    pub(crate) const ALL: [Self; 4] = [Self::Runs, Self::Nodes, Self::Fleet, Self::Orchestration];

    /// Returns what it is called.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Runs => "Runs",
            Self::Nodes => "Nodes",
            Self::Fleet => "Fleet",
            Self::Orchestration => "Orchestration",
        }
    }

    /// Returns the one that is `by` places further.
    pub(crate) fn further(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
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
#[derive(Debug)]
pub(crate) struct Home {
    /// The runs, newest first; none while they are being looked for.
    pub(crate) bundles: Option<Result<Vec<Listed>, String>>,
    /// When they are looked for.
    pub(crate) pace: Pace,
    /// What narrows the list.
    pub(crate) filter: Filter,
    at: usize,
}

impl Default for Home {
    fn default() -> Self {
        let pace = Pace::every(BETWEEN_LISTS_MILLIS);
        Self { bundles: None, pace, filter: Filter::default(), at: 0 }
    }
}

impl Home {
    /// Returns the runs that are known.
    pub(crate) fn listed(&self) -> &[Listed] {
        match &self.bundles {
            Some(Ok(bundles)) => bundles,
            Some(Err(_)) | None => &[],
        }
    }

    /// Returns the runs that fit the filter.
    pub(crate) fn shown(&self) -> Vec<&Listed> {
        let words = self.filter.words();
        let fits = |run: &&Listed| {
            let kind = run.kind.as_deref().unwrap_or_default();
            words.fit([run.run_id.as_str(), kind, &run.status, run.plan.as_deref().unwrap_or_default()])
        };
        self.listed().iter().filter(fits).collect()
    }

    /// Returns which of the runs that are shown is at the cursor.
    pub(crate) fn at(&self) -> usize {
        self.at.min(self.shown().len().saturating_sub(1))
    }

    /// Takes the runs there are; the cursor stays at its run, or at the newest.
    pub(crate) fn take(&mut self, bundles: Result<Vec<Listed>, String>, now: Timestamp) {
        self.pace.answer(now);
        let chosen = self.shown().get(self.at()).filter(|_| self.at > 0).map(|run| run.path.clone());
        self.bundles = Some(bundles);
        let at = chosen.and_then(|path| self.shown().iter().position(|run| run.path == path));
        self.at = at.unwrap_or_else(|| self.at());
    }

    /// Takes a key that moves the cursor of the list by `page` rows at most.
    pub(crate) fn step(&mut self, key: Key, page: usize) {
        self.at = super::scroll::moved(self.at(), self.shown().len(), key, page);
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
    /// When its journal is looked at.
    pub(crate) follow_pace: Pace,
    /// The same run, shown again from its beginning.
    pub(crate) replay: Option<Replay>,
    /// The Nodes view.
    pub(crate) nodes: Nodes,
    /// The Fleet view.
    pub(crate) fleet: Fleet,
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
            follow_pace: Pace::every(BETWEEN_PIECES_MILLIS),
            replay: None,
            nodes: Nodes::default(),
            fleet: Fleet::default(),
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
        let is_playing = self.replay.as_ref().is_some_and(Replay::is_playing);
        self.is_running() || self.agents.is_checking() || is_playing || self.is_following()
    }

    /// Whether the recorded run that is shown goes on.
    pub(crate) fn is_following(&self) -> bool {
        let is_live = self.recorded.as_ref().is_some_and(|run| run.liveness == Liveness::Live);
        self.screen == Screen::Recorded && self.replay.is_none() && is_live
    }

    /// Returns what narrows the list that is shown, if one is.
    pub(crate) fn filter_mut(&mut self) -> Option<&mut Filter> {
        match self.screen {
            Screen::Home => Some(&mut self.home.filter),
            Screen::Nodes if self.nodes.open.is_none() => Some(&mut self.nodes.filter),
            Screen::Fleet if self.fleet.open.is_none() => Some(&mut self.fleet.filter),
            Screen::Nodes | Screen::Fleet => None,
            Screen::Recorded | Screen::Panel(_) => {
                self.watched_mut().and_then(|run| run.tasks.as_mut()).map(|tasks| &mut tasks.filter)
            }
        }
    }

    /// Returns how many rows of a list there are, roughly: what Page Up and Page Down move by.
    pub(crate) fn page_rows(&self) -> usize {
        usize::from(self.size.1).saturating_sub(6).max(1)
    }

    /// Returns the run that is shown.
    pub(crate) fn watched_mut(&mut self) -> Option<&mut Watched> {
        match self.screen {
            Screen::Recorded => match &mut self.replay {
                Some(replay) => Some(&mut *replay.run),
                None => self.recorded.as_deref_mut(),
            },
            Screen::Panel(View::Controller) => match self.controller.stage {
                Stage::Running { .. } | Stage::After => self.controller.run.as_deref_mut(),
                Stage::Before => None,
            },
            Screen::Home | Screen::Nodes | Screen::Fleet | Screen::Panel(View::Agent) => None,
        }
    }

    /// Returns the run called `key`, if it is still there.
    pub(crate) fn run_mut(&mut self, key: u64) -> Option<&mut Watched> {
        let replayed = self.replay.as_mut().map(|replay| &mut *replay.run);
        let runs = [self.controller.run.as_deref_mut(), self.recorded.as_deref_mut(), replayed];
        runs.into_iter().flatten().find(|run| run.key == key)
    }

    /// Returns columns and rows of a full log's text.
    pub(crate) fn pager_size(&self) -> (usize, usize) {
        // A frame around the text, a line above and one below.
        (usize::from(self.size.0).saturating_sub(2), usize::from(self.size.1).saturating_sub(4))
    }
}
