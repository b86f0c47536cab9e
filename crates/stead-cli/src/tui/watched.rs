//! A run as the screen knows it: a fold of its events. A live run and a recorded one go through here alike.
//!
//! Output is not in events, only where it lies; what the chosen role wrote is asked for by [`Read`]s and comes back
//! through [`Watched::take_output`].

use std::collections::{HashMap, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use stead_bundle::Unpacked;
use stead_model::event::{RoleExited, RunKind, Stream};
use stead_model::node::NodeChange;
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, RunStatus, Status};

use super::pager::Pager;
use super::scroll::Scroll;
use super::tasks::Tasks;
use super::transcript::{LineKind, Transcript};
use crate::render::{one_line, plain, run};

mod phase;
mod role;

pub(crate) use phase::{HostRow, Phase, PhaseState};
pub(crate) use role::{Role, RoleState};

/// How much of a role's output is read when it is chosen, and the most that is read of it at once.
const TAIL_BYTES: u64 = 64 * 1024;

/// Part of a log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// What its lines begin with; may be empty.
    pub(crate) who: String,
    /// Which output.
    pub(crate) stream: Stream,
    /// The file, relative to the bundle.
    pub(crate) file: Arc<str>,
    /// Where in the file.
    pub(crate) offset: u64,
    /// How much.
    pub(crate) len: u64,
    /// How much right before it is left out.
    pub(crate) left_out: u64,
}

impl Piece {
    /// Returns the last bytes of this piece, at most `most`.
    fn tail(mut self, most: u64) -> Self {
        self.left_out = self.len.saturating_sub(most);
        (self.offset, self.len) = (self.offset + self.left_out, self.len - self.left_out);
        self
    }
}

/// For what output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// What the chosen role wrote; the number tells one choice from the next.
    Chosen(u64),
    /// The log of the run, with the output of all roles.
    Log,
}

/// Output that the screen wants to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// For what.
    pub(crate) reader: Reader,
    /// Where the files of the bundle are.
    pub(crate) directory: PathBuf,
    /// What, in order.
    pub(crate) pieces: Vec<Piece>,
}

/// Whose output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// The role with this place in the list.
    Role(usize),
    /// The run's own log.
    Log,
}

/// Who chose whose output is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// Nobody: it is that of the role that started last, or that failed.
    Automatic,
    /// A person.
    Person,
}

/// A file that a role left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftFile {
    /// The role.
    pub(crate) role: String,
    /// Its path below the role's directory.
    pub(crate) path: String,
    /// How long it is.
    pub(crate) bytes: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its status.
    pub(crate) status: RunStatus,
    /// How long it took.
    pub(crate) millis: u64,
}

/// Whether the log of the run holds the output of roles too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// It does not.
    #[default]
    Quiet,
    /// It does.
    Verbose,
}

/// A node that a run did something to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeLine {
    /// Its name.
    pub(crate) name: String,
    /// Where it stands, and its address if it has one.
    pub(crate) words: String,
}

/// Whether more will happen in a run that is recorded elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Its process is there.
    Live,
    /// It has ended, or its process is gone.
    #[default]
    Over,
}

/// A run that is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// Tells it from others.
    pub(crate) key: u64,
    /// Where its directory is made.
    pub(crate) runs_dir: PathBuf,
    verbosity: Verbosity,
    kind: RunKind,
    /// Its id, once it has one.
    pub(crate) run_id: Option<String>,
    /// Its directory or archive, once it has one.
    pub(crate) bundle: Option<PathBuf>,
    /// Where the files of an archive can be read.
    pub(crate) unpacked: Option<Arc<Unpacked>>,
    /// Whether more will come of a run that somebody else records.
    pub(crate) liveness: Liveness,
    /// How far its journal was read: the number of the last event, and where that ends; 0 if that is not known.
    pub(crate) read_to: (u64, u64),
    /// When it began.
    pub(crate) started: Option<Timestamp>,
    /// How it ended.
    pub(crate) ended: Option<Ended>,
    /// Why it went wrong.
    pub(crate) error: Option<String>,
    /// What it warned of.
    pub(crate) warnings: Vec<String>,
    /// What roles left.
    pub(crate) artifacts: Vec<LeftFile>,
    /// Nodes that it did something to, in the order they came.
    pub(crate) nodes: Vec<NodeLine>,
    /// Its phases or tasks, in plan order.
    pub(crate) phases: Vec<Phase>,
    phase_places: HashMap<String, usize>,
    /// Its roles; in a run without roles, the tasks on hosts that wrote something.
    pub(crate) roles: Vec<Role>,
    role_places: HashMap<String, usize>,
    chosen: Chosen,
    choice: Choice,
    reading: u64,
    output: Transcript,
    log: Transcript,
    /// Which part of phases and result is on the screen.
    pub(crate) scroll: Scroll,
    /// Whether that part follows the run.
    pub(crate) follows: bool,
    /// The full log, if it is open.
    pub(crate) pager: Option<Pager>,
    /// The list of its tasks with their hosts, if it is open.
    pub(crate) tasks: Option<Tasks>,
}

impl Watched {
    /// Returns a run that has not begun; its directory will be below `runs_dir`, which may be said later.
    pub(crate) fn new(key: u64, runs_dir: PathBuf, verbosity: Verbosity) -> Self {
        Self {
            key,
            runs_dir,
            verbosity,
            kind: RunKind::Run,
            run_id: None,
            bundle: None,
            unpacked: None,
            liveness: Liveness::Over,
            read_to: (0, 0),
            started: None,
            ended: None,
            error: None,
            warnings: Vec::new(),
            artifacts: Vec::new(),
            nodes: Vec::new(),
            phases: Vec::new(),
            phase_places: HashMap::new(),
            roles: Vec::new(),
            role_places: HashMap::new(),
            chosen: Chosen::Log,
            choice: Choice::Automatic,
            reading: 0,
            output: Transcript::default(),
            log: Transcript::default(),
            scroll: Scroll::default(),
            follows: true,
            pager: None,
            tasks: None,
        }
    }

    /// Learns of a phase that will come.
    pub(crate) fn expect_phase(&mut self, name: &str) {
        self.phase(name);
    }

    /// Learns of a role that will come.
    pub(crate) fn expect_role(&mut self, name: &str, agent: &str) {
        self.role(name).agent = Some(agent.to_owned());
    }

    /// Learns what kind of run it is before its first event says so.
    pub(crate) fn expect_kind(&mut self, kind: RunKind) {
        self.kind = kind;
    }

    /// Whether its tasks are phases.
    pub(crate) fn has_phases(&self) -> bool {
        self.kind == RunKind::Run
    }

    /// Whose output is shown.
    pub(crate) fn chosen(&self) -> Chosen {
        self.chosen
    }

    /// Returns where the files of the bundle can be read.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.unpacked.as_deref().map(Unpacked::path).or(self.bundle.as_deref())
    }

    /// Returns the output that is shown.
    pub(crate) fn shown(&self) -> &Transcript {
        match self.chosen {
            Chosen::Role(_) => &self.output,
            Chosen::Log => &self.log,
        }
    }

    /// Returns the output that is shown, to be scrolled.
    pub(crate) fn shown_mut(&mut self) -> &mut Transcript {
        match self.chosen {
            Chosen::Role(_) => &mut self.output,
            Chosen::Log => &mut self.log,
        }
    }

    /// Returns the log of the run.
    pub(crate) fn log(&self) -> &Transcript {
        &self.log
    }

    /// Returns how long it has been going on, or how long it took.
    pub(crate) fn millis(&self, now: Timestamp) -> u64 {
        match (&self.ended, self.started) {
            (Some(ended), _) => ended.millis,
            (None, Some(started)) => now.millis_since(started),
            (None, None) => 0,
        }
    }

    /// Returns the place of the phase that is going on, else of the last that ended.
    pub(crate) fn current_phase(&self) -> usize {
        let last =
            |wanted: fn(&PhaseState) -> bool| self.phases.iter().rposition(|phase| wanted(&phase.state));
        last(|state| matches!(state, PhaseState::Running { .. }))
            .or_else(|| last(|state| matches!(state, PhaseState::Ended { .. })))
            .unwrap_or(0)
    }

    /// Chooses the output that comes `by` places later in the list of roles and the log of the run.
    pub(crate) fn choose(&mut self, by: isize) -> Option<Read> {
        let places = self.roles.len() + 1;
        let now = match self.chosen {
            Chosen::Role(place) => place,
            Chosen::Log => places - 1,
        };
        let next = (now + places).saturating_add_signed(by) % places;
        self.choice = Choice::Person;
        self.show(if next == places - 1 { Chosen::Log } else { Chosen::Role(next) })
    }

    /// Returns the place in the list of roles of what a task wrote, on `host` if one is named.
    pub(crate) fn output_of(&self, task: &str, host: Option<&str>) -> Option<usize> {
        if let Some(host) = host {
            return self.role_places.get(&format!("{task}@{host}")).copied();
        }
        let own = self.role_places.get(task).copied();
        let first = || {
            let phase = self.phases.get(*self.phase_places.get(task)?)?;
            phase.hosts.iter().find_map(|host| self.output_of(task, Some(&host.name)))
        };
        own.or_else(first).or_else(|| self.role_of_phase(task))
    }

    /// Shows the output of the role at `place`, because a person looks at it.
    pub(crate) fn choose_role(&mut self, place: usize) -> Option<Read> {
        self.choice = Choice::Person;
        if self.chosen == Chosen::Role(place) {
            return None;
        }
        self.show(Chosen::Role(place))
    }

    /// Returns the place of the role that a phase is about.
    fn role_of_phase(&self, phase: &str) -> Option<usize> {
        self.roles.iter().position(|role| {
            let rest = phase.strip_prefix(&role.name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '@']))
        })
    }

    /// Takes the place of `other`, the same run at another moment: a person goes on to see the same part of it, and what
    /// is still being read for `other` is not for this one.
    pub(crate) fn take_place_of(&mut self, other: &Self) {
        self.key = other.key;
        self.reading = self.reading.max(other.reading);
        (self.scroll, self.follows) = (other.scroll.clone(), other.follows || self.ended.is_none());
        (self.tasks, self.pager) = (other.tasks.clone(), other.pager.clone());
        if other.choice == Choice::Person {
            self.choice = Choice::Person;
            self.chosen = match other.chosen {
                Chosen::Role(place) if place < self.roles.len() => other.chosen,
                Chosen::Role(_) | Chosen::Log => Chosen::Log,
            };
        }
    }

    /// Reads what is shown once more, for a run that was made from its record.
    pub(crate) fn read_shown(&mut self) -> Option<Read> {
        let chosen = self.chosen;
        self.show(chosen)
    }

    fn show(&mut self, chosen: Chosen) -> Option<Read> {
        self.chosen = chosen;
        self.reading += 1;
        self.output = Transcript::default();
        let Chosen::Role(place) = chosen else { return None };
        let pieces = self.roles.get(place)?.tail();
        self.read(Reader::Chosen(self.reading), pieces)
    }

    fn read(&self, reader: Reader, pieces: Vec<Piece>) -> Option<Read> {
        let directory = self.directory().filter(|_| !pieces.is_empty())?.to_owned();
        Some(Read { reader, directory, pieces })
    }

    /// Takes output that was read; what nobody wants any more is dropped.
    pub(crate) fn take_output(&mut self, reader: Reader, parts: &[(Piece, Vec<u8>)]) {
        let transcript = match reader {
            Reader::Chosen(reading) if reading == self.reading => &mut self.output,
            Reader::Chosen(_) => return,
            Reader::Log => &mut self.log,
        };
        for (piece, bytes) in parts {
            if piece.left_out > 0 {
                transcript
                    .say(LineKind::Note, &format!("… {} bytes more: l shows the full log", piece.left_out));
            }
            transcript.take(&piece.who, piece.stream, bytes);
        }
    }

    /// Takes in an event; returns the output it makes the screen want.
    pub(crate) fn apply(&mut self, event: &Event) -> Vec<Read> {
        self.read_to.0 = event.seq;
        if let EventKind::RunStarted(started) = &event.kind {
            self.kind = started.kind;
        }
        let line = if self.has_phases() { run::line_of(&event.kind) } else { plain::line_of(&event.kind) };
        if let Some(line) = line {
            self.log.say(LineKind::Run, &line);
        }
        match &event.kind {
            EventKind::RunStarted(started) => {
                self.run_id = Some(started.run_id.to_string());
                self.bundle.get_or_insert_with(|| self.runs_dir.join(started.run_id.as_str()));
                self.started = Some(event.t);
            }
            EventKind::RunResumed(resumed) => {
                // What ended it before is over: it may well succeed now.
                (self.ended, self.error) = (None, None);
                let begun = self.phases.iter_mut();
                begun
                    .filter(|phase| matches!(phase.state, PhaseState::Running { .. }))
                    .for_each(Phase::reset);
                for task in resumed.reset.iter().chain(&resumed.rerun) {
                    self.phase(task.as_str()).reset();
                }
            }
            EventKind::TaskFinished { task, result } => {
                if let (Status::Failed, Some(error)) = (result.status, &result.error) {
                    self.error.get_or_insert_with(|| format!("{task}: {}", one_line(error)));
                }
                self.phase(task.as_str()).take(event.t, &event.kind);
            }
            EventKind::TaskStarted { task, .. }
            | EventKind::TaskSkipped { task, .. }
            | EventKind::TaskNotRun { task, .. }
            | EventKind::AttemptStarted { task, .. }
            | EventKind::AttemptFailed { task, .. }
            | EventKind::HostResult { task, .. }
            | EventKind::UndoStarted { task, .. }
            | EventKind::UndoFinished { task, .. }
            | EventKind::Delegated { task, .. } => self.phase(task.as_str()).take(event.t, &event.kind),
            EventKind::Node(change) => self.take_node(change),
            EventKind::Warning { code, text, .. } => {
                self.warnings.push(format!("{}: {}", one_line(code), one_line(text)));
            }
            EventKind::AgentLost(lost) => self.reach_agent(&lost.agent, false),
            EventKind::AgentBack(back) => self.reach_agent(&back.agent, true),
            EventKind::RoleStarted(started) => {
                let place = self.role_place(&started.role);
                self.roles[place].agent = Some(started.agent.clone());
                self.roles[place].state = RoleState::Running;
                return self.suggest(place);
            }
            EventKind::RoleReady(ready) => self.role(&ready.role).state = RoleState::Ready,
            EventKind::RoleStop(stop) => {
                self.role(&stop.role).state = RoleState::Stopping { signal: one_line(&stop.signal) };
            }
            EventKind::RoleExited(exited) => self.end_role(exited),
            EventKind::Artifact(artifact) => self.artifacts.push(LeftFile {
                role: one_line(&artifact.role),
                path: one_line(&artifact.path),
                bytes: artifact.bytes,
            }),
            EventKind::Log { file, .. } if !is_inside(file) => {}
            EventKind::Log { task, host, stream, file, offset, len, .. } => {
                let who = if self.has_phases() { task.to_string() } else { plain::at(task, host.as_ref()) };
                let piece = Piece {
                    who: String::new(),
                    stream: *stream,
                    file: file.as_str().into(),
                    offset: *offset,
                    len: *len,
                    left_out: 0,
                };
                return self.take_log(&who, piece);
            }
            EventKind::RunFinished(finished) => {
                self.ended = Some(Ended { status: finished.status, millis: finished.duration_ms });
                self.error = self.error.take().or_else(|| finished.error.as_deref().map(one_line));
                return self.settle();
            }
            EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::PartFinished { .. }
            | EventKind::Confirmed { .. }
            | EventKind::AgentConnected(_)
            | EventKind::CancelRequested { .. } => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, who: &str, piece: Piece) -> Vec<Read> {
        let is_new = !self.role_places.contains_key(who);
        let place = self.role_place(who);
        self.roles[place].wrote(piece.clone());
        let piece = piece.tail(TAIL_BYTES);
        let mut reads = Vec::new();
        if self.chosen == Chosen::Role(place) {
            reads.extend(self.read(Reader::Chosen(self.reading), vec![piece.clone()]));
        } else if self.chosen == Chosen::Log || (is_new && !self.has_phases()) {
            // In a run without roles nobody says beforehand who will write: who has just begun to is shown.
            reads.extend(self.suggest(place));
        }
        if self.verbosity == Verbosity::Verbose {
            let piece = Piece { who: one_line(who), ..piece };
            reads.extend(self.read(Reader::Log, vec![piece]));
        }
        reads
    }

    /// Shows the output of a role, unless a person has chosen another.
    fn suggest(&mut self, place: usize) -> Vec<Read> {
        match self.choice {
            Choice::Automatic if self.chosen != Chosen::Role(place) => {
                self.show(Chosen::Role(place)).into_iter().collect()
            }
            Choice::Automatic | Choice::Person => Vec::new(),
        }
    }

    /// Ends what never began, and shows the role that made the run fail.
    fn settle(&mut self) -> Vec<Read> {
        (self.scroll, self.follows) = (Scroll::default(), false);
        for role in &mut self.roles {
            if role.state == RoleState::Waiting {
                role.state = RoleState::NotStarted;
            }
        }
        let failed = self.phases.iter().find(|phase| phase.status() == Some(Status::Failed));
        match failed.and_then(|phase| self.role_of_phase(&phase.name)) {
            Some(place) => self.suggest(place),
            None => Vec::new(),
        }
    }

    fn take_node(&mut self, change: &NodeChange) {
        let name = change.name.as_str();
        let at = change.entry.ip.as_deref().map(|ip| format!(" at {}", one_line(ip)));
        let words = format!("{}{}", change.entry.status.word(), at.unwrap_or_default());
        match self.nodes.iter_mut().find(|node| node.name == name) {
            Some(node) => node.words = words,
            None => self.nodes.push(NodeLine { name: name.to_owned(), words }),
        }
    }

    fn end_role(&mut self, exited: &RoleExited) {
        self.role(&exited.role).state =
            RoleState::Exited { code: exited.exit_code, signal: exited.signal.as_deref().map(one_line) };
    }

    fn reach_agent(&mut self, agent: &str, reached: bool) {
        for role in self.roles.iter_mut().filter(|role| role.agent.as_deref() == Some(agent)) {
            role.lost = !reached;
        }
    }

    fn phase(&mut self, name: &str) -> &mut Phase {
        let place = match self.phase_places.get(name) {
            Some(place) => *place,
            None => {
                self.phases.push(Phase::waiting(name));
                self.phase_places.insert(name.to_owned(), self.phases.len() - 1);
                self.phases.len() - 1
            }
        };
        &mut self.phases[place]
    }

    fn role(&mut self, name: &str) -> &mut Role {
        let place = self.role_place(name);
        &mut self.roles[place]
    }

    fn role_place(&mut self, name: &str) -> usize {
        if let Some(place) = self.role_places.get(name) {
            return *place;
        }
        self.roles.push(Role::waiting(name));
        self.role_places.insert(name.to_owned(), self.roles.len() - 1);
        self.roles.len() - 1
    }
}

/// Whether a path names a file below its bundle and nowhere else: a bundle may come from anywhere.
fn is_inside(file: &str) -> bool {
    !file.is_empty() && Path::new(file).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the last pieces, together at least [`TAIL_BYTES`] long if there is so much, and no longer.
fn last_pieces(pieces: &VecDeque<Piece>) -> Vec<Piece> {
    let mut left = TAIL_BYTES;
    let mut wanted = Vec::new();
    for piece in pieces.iter().rev() {
        if left == 0 {
            break;
        }
        let piece = piece.clone().tail(left);
        left -= piece.len;
        wanted.push(piece);
    }
    wanted.reverse();
    wanted
}

#[cfg(test)]
mod tests;
