//! A run as the screen knows it: a fold of its events. A live run and a recorded one go through here alike.
//!
//! Output is not in events, only where it lies; what the chosen role wrote is asked for by [`Read`]s and comes back
//! through [`Watched::take_output`].

use std::collections::{HashMap, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use stead_bundle::Unpacked;
use stead_model::event::{RoleExited, RunKind, Stream};
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, RunStatus, Status};

use super::pager::Pager;
use super::scroll::Scroll;
use super::transcript::{LineKind, Transcript};
use crate::render::{one_line, plain, run};

mod phase;
mod role;

pub(crate) use phase::{Phase, PhaseState};
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

/// A run that is watched.
#[derive(Debug)]
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
    pub(crate) unpacked: Option<Unpacked>,
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
            started: None,
            ended: None,
            error: None,
            warnings: Vec::new(),
            artifacts: Vec::new(),
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
        self.unpacked.as_ref().map(Unpacked::path).or(self.bundle.as_deref())
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
            EventKind::RunResumed(_) => self.ended = None,
            EventKind::TaskStarted { task, .. } => {
                self.phase(task.as_str()).state = PhaseState::Running { since: event.t };
            }
            EventKind::TaskFinished { task, result } => {
                self.end_phase(task.as_str(), result.status, result.duration_ms, result.error.as_deref());
            }
            EventKind::TaskSkipped { task, reason, .. } => {
                self.end_phase(task.as_str(), Status::Skipped, 0, None);
                self.phase(task.as_str()).note = Some(one_line(reason));
            }
            EventKind::TaskNotRun { task, .. } => self.end_phase(task.as_str(), Status::NotRun, 0, None),
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
            | EventKind::AttemptStarted { .. }
            | EventKind::AttemptFailed { .. }
            | EventKind::PartFinished { .. }
            | EventKind::HostResult { .. }
            | EventKind::Confirmed { .. }
            | EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. }
            | EventKind::AgentConnected(_)
            | EventKind::Node(_)
            | EventKind::Delegated { .. }
            | EventKind::CancelRequested { .. } => {}
        }
        Vec::new()
    }

    fn take_log(&mut self, who: &str, piece: Piece) -> Vec<Read> {
        let place = self.role_place(who);
        self.roles[place].wrote(piece.clone());
        let piece = piece.tail(TAIL_BYTES);
        let mut reads = Vec::new();
        if self.chosen == Chosen::Role(place) {
            reads.extend(self.read(Reader::Chosen(self.reading), vec![piece.clone()]));
        } else if self.chosen == Chosen::Log {
            // In a run without roles nobody says beforehand who will write.
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
        let of_role = |phase: &Phase| {
            self.roles.iter().position(|role| {
                phase
                    .name
                    .strip_prefix(&role.name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '@']))
            })
        };
        match failed.and_then(of_role) {
            Some(place) => self.suggest(place),
            None => Vec::new(),
        }
    }

    fn end_phase(&mut self, name: &str, status: Status, millis: u64, error: Option<&str>) {
        if let Some(error) = error
            && status == Status::Failed
        {
            self.error.get_or_insert_with(|| format!("{name}: {}", one_line(error)));
        }
        let phase = self.phase(name);
        phase.state = PhaseState::Ended { status, millis };
        phase.note = error.map(one_line);
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
