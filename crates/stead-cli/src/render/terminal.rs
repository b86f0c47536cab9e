//! The moving display: finished tasks scroll up, below them one line per running task.
//!
//! [`Terminal`] is fed events and drawn on demand; [`Live`] adds the thread that keeps spinners turning.
//! The live lines never take more than the screen, are redrawn at most ten times a second, and cost the
//! same for ten tasks as for ten thousand: only lines that fit are made.

use std::time::{Duration, Instant};

use stead_model::duration::Short;
use stead_model::event::{CancelReason, RowResult, Stream, TaskResult};
use stead_model::{Cause, Event, EventKind, HostName, Status, TaskName};
use stead_runner::Observer;

use self::rows::Rows;
use self::tail::Tails;
use super::lines::Lines;
use super::logs::Logs;
use super::plain::{at, explanation};
use super::{Differences, Options, Streaming, cursor, diff, text};
use crate::output::{Handle, Paint, Style};

mod live;
mod rows;
mod tail;

pub use live::{Live, Pauser};

/// Shortest time between two redraws: at most ten a second.
const BETWEEN_DRAWS: Duration = Duration::from_millis(100);
/// Lines that wait for the next redraw are written earlier when they are this many bytes.
const MOST_WAITING: usize = 32 * 1024;
/// The same while a person is being asked: what a question's lines are pushed away by.
const MOST_WAITING_PAUSED: usize = 1024 * 1024;

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters per line.
    pub columns: u16,
}

/// What is asked before each redraw.
pub struct Screen {
    /// How large the terminal is now.
    pub size: Box<dyn Fn() -> Size + Send>,
    /// Time since some fixed moment.
    pub clock: Box<dyn Fn() -> Duration + Send>,
}

impl Screen {
    /// Returns the screen behind standard error; `hint` (columns, rows) serves where it does not say.
    pub fn of_stderr(hint: (Option<u16>, Option<u16>)) -> Self {
        let begin = Instant::now();
        let size = move || {
            let told = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
            let columns = told.map(|told| told.ws_col).filter(|count| *count > 0).or(hint.0);
            let rows = told.map(|told| told.ws_row).filter(|count| *count > 0).or(hint.1);
            Size { rows: rows.unwrap_or(24), columns: columns.unwrap_or(80) }
        };
        Self { size: Box::new(size), clock: Box::new(move || begin.elapsed()) }
    }
}

/// Shows a run on a terminal.
pub struct Terminal {
    out: Handle,
    paint: Paint,
    screen: Screen,
    streaming: Streaming,
    diff: Differences,
    logs: Logs,
    lines: Lines,
    tails: Tails,
    rows: Rows,
    /// Finished lines, each with its line end, that wait for the next redraw.
    waiting: String,
    /// Widths of the live lines on the screen; the cursor is at the end of the last one.
    drawn: Vec<usize>,
    drawn_at: Option<Duration>,
    frame: usize,
    cursor_hidden: bool,
    paused: bool,
}

impl Terminal {
    /// Returns a renderer that writes to `out`, which shows `screen`.
    pub fn new(out: Handle, paint: Paint, screen: Screen, options: Options) -> Self {
        let recorded = options.runs_dir.is_some() || options.bundle.is_some();
        Self {
            out,
            paint,
            screen,
            streaming: options.streaming,
            diff: options.diff,
            logs: Logs::new(options.runs_dir, options.bundle),
            lines: Lines::default(),
            tails: Tails::new(recorded),
            rows: Rows::default(),
            waiting: String::new(),
            drawn: Vec::new(),
            drawn_at: None,
            frame: 0,
            cursor_hidden: false,
            paused: false,
        }
    }

    /// Redraws if the last redraw is long enough ago.
    pub fn tick(&mut self) {
        let now = (self.screen.clock)();
        if self.paused || self.drawn_at.is_some_and(|last| now < last + BETWEEN_DRAWS) {
            return;
        }
        if self.rows.is_empty() && self.waiting.is_empty() && self.drawn.is_empty() {
            return;
        }
        self.drawn_at = Some(now);
        self.frame += 1;
        let size = (self.screen.size)();
        let mut bytes = self.erase(size);
        bytes.push_str(&std::mem::take(&mut self.waiting));
        // One row stays free, so that the last finished line is seen and a small screen never scrolls.
        let lines = self.rows.lines(now, self.frame, usize::from(size.rows.saturating_sub(1)));
        for (i, line) in lines.iter().enumerate() {
            let line = text::fit(line, usize::from(size.columns.saturating_sub(1)));
            bytes.push_str(if i == 0 { self.hide_cursor() } else { "\r\n" });
            bytes.push_str(&line);
            self.drawn.push(line.chars().count());
        }
        if lines.is_empty() {
            bytes.push_str(self.show_cursor());
        }
        self.out.print(&bytes);
    }

    /// Takes the live lines away, writes what waits, and shows the cursor. May be called again.
    pub fn finish(&mut self) {
        let size = (self.screen.size)();
        let mut bytes = self.erase(size);
        bytes.push_str(&std::mem::take(&mut self.waiting));
        bytes.push_str(self.show_cursor());
        if !bytes.is_empty() {
            self.out.print(&bytes);
        }
    }

    /// Clears the live lines and draws none until [`Terminal::resume`].
    pub fn pause(&mut self) {
        self.finish();
        self.paused = true;
    }

    /// Draws again.
    pub fn resume(&mut self) {
        self.paused = false;
        self.drawn_at = None;
        self.tick();
    }

    /// Returns the bytes that remove the live lines. A narrower terminal may have wrapped them since.
    fn erase(&mut self, size: Size) -> String {
        if self.drawn.is_empty() {
            return String::new();
        }
        let columns = usize::from(size.columns.max(1));
        let rows: usize = self.drawn.drain(..).map(|width| width.div_ceil(columns).max(1)).sum();
        let up = (rows - 1).min(usize::from(size.rows.saturating_sub(1)));
        if up == 0 { "\r\x1b[J".to_owned() } else { format!("\r\x1b[{up}A\x1b[J") }
    }

    fn hide_cursor(&mut self) -> &'static str {
        cursor::note(true);
        if std::mem::replace(&mut self.cursor_hidden, true) { "" } else { cursor::HIDE }
    }

    fn show_cursor(&mut self) -> &'static str {
        if !std::mem::replace(&mut self.cursor_hidden, false) {
            return "";
        }
        cursor::note(false);
        cursor::SHOW
    }

    fn say(&mut self, line: &str) {
        self.waiting.push_str(line);
        self.waiting.push_str("\r\n");
        let most = if self.paused { MOST_WAITING_PAUSED } else { MOST_WAITING };
        if self.waiting.len() > most {
            let size = (self.screen.size)();
            let mut bytes = self.erase(size);
            bytes.push_str(&std::mem::take(&mut self.waiting));
            self.out.print(&bytes);
        }
    }

    /// Says one finished thing: its word in a column of its own, then what it is about.
    fn say_end(&mut self, style: Style, word: &str, about: &str, detail: Option<&str>) {
        let mut line = format!("{} {about}", self.paint.apply(style, &format!("{word:>9}")));
        let mut more = Vec::new();
        if let Some(detail) = detail {
            let mut detail = detail.trim_end().lines().map(|line| text::clean(line).into_owned());
            if let Some(first) = detail.next() {
                line.push_str(&format!(": {first}"));
            }
            more.extend(detail);
        }
        self.say(&line);
        for line in more {
            self.say(&format!("          {line}"));
        }
    }

    fn say_rest(&mut self, task: &TaskName, host: Option<&HostName>) {
        let mut shown = Vec::new();
        self.lines.finish(task, host, |line| shown.push(line.to_owned()));
        shown.iter().for_each(|line| self.say(line));
    }

    fn stream(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        let mut shown = Vec::new();
        self.lines.push(task, host, stream, bytes, |line| shown.push(line.to_owned()));
        shown.iter().for_each(|line| self.say(line));
    }

    fn on_host_result(&mut self, task: &TaskName, host: &HostName, result: &RowResult) {
        self.say_rest(task, Some(host));
        self.rows.host_done(task, host);
        if result.status == Status::Failed {
            self.tails.keep(task, host, result, &self.logs);
            if self.rows.hosts_of(task) > 1 {
                let about = format!("{task}@{host} {}", Short::from_millis(result.duration_ms));
                self.say_end(Style::Bad, "failed", &about, result.error.as_deref());
            }
        } else {
            self.tails.forget_host(task, host);
        }
        if self.diff == Differences::Shown
            && let Some(difference) = &result.diff
        {
            for line in diff::lines(difference) {
                let style = match line.as_bytes().first() {
                    Some(b'+') => Style::Good,
                    Some(b'-') => Style::Bad,
                    Some(_) | None => Style::Dim,
                };
                let line = format!("          {}", self.paint.apply(style, &line));
                self.say(&line);
            }
        }
    }

    fn on_task_finished(&mut self, task: &TaskName, result: &TaskResult) {
        self.say_rest(task, None);
        let mut about = task.to_string();
        if result.status != Status::Skipped {
            about.push_str(&format!(" {}", Short::from_millis(result.duration_ms)));
        }
        if result.partial {
            about.push_str(" (partial)");
        }
        let detail = explanation(result.status, result.error.as_deref(), result.reason.as_deref());
        self.say_end(Style::of_status(result.status), result.status.as_str(), &about, detail);
        let several = self.rows.hosts_of(task) > 1;
        self.rows.remove(task);
        let tails = self.tails.take(task, &self.logs);
        if result.status != Status::Failed {
            return;
        }
        for tail in tails {
            let of = tail.host.as_ref().filter(|_| several);
            let header = format!("          --- last lines of stderr of {}", at(task, of));
            self.say(&self.paint.apply(Style::Dim, &header));
            for line in tail.lines {
                self.say(&format!("          {line}"));
            }
        }
    }
}

impl Observer for Terminal {
    fn on_event(&mut self, event: &Event) {
        self.logs.on_event(&event.kind);
        let now = (self.screen.clock)();
        match &event.kind {
            EventKind::TaskStarted { task, hosts, batches } => {
                self.rows.add(task, hosts.len(), batches.len(), now)
            }
            EventKind::AttemptStarted { task, host, batch, .. } => {
                self.tails.forget(task, host.as_ref());
                self.rows.attempt(task, host.as_ref(), *batch);
            }
            EventKind::AttemptFailed { task, host, retry_in_ms, instead, .. } => {
                self.say_rest(task, host.as_ref());
                let next = instead.as_ref().or(host.as_ref());
                self.rows.retry(task, next, now + Duration::from_millis(*retry_in_ms));
            }
            EventKind::Log { task, host, stream, file, offset, len, .. } => {
                if *stream == Stream::Stderr {
                    self.tails.logged(task, host.as_ref(), file, offset + len);
                }
                if self.streaming == Streaming::Logs {
                    let mut pieces = Vec::new();
                    self.logs.read(file, *offset, *len, |bytes| pieces.push(bytes.to_vec()));
                    for bytes in pieces {
                        self.stream(task, host.as_ref(), *stream, &bytes);
                    }
                }
            }
            EventKind::HostResult { task, host, result, .. } => self.on_host_result(task, host, result),
            EventKind::TaskFinished { task, result } => self.on_task_finished(task, result),
            EventKind::TaskSkipped { cause: Cause::NotSelected, .. } => {}
            EventKind::TaskSkipped { task, reason, .. } => {
                self.say_end(Style::Dim, "skipped", task.as_str(), Some(reason));
            }
            EventKind::UndoStarted { task, hosts } => self.rows.add_undo(task, hosts.len(), now),
            EventKind::UndoFinished { task, status, error } => {
                self.rows.remove(task);
                self.say_end(
                    Style::of_status(*status),
                    "undone",
                    &format!("{task} {status}"),
                    error.as_deref(),
                );
            }
            EventKind::Warning { code, text, .. } => {
                self.say_end(Style::Warn, "warning", &text::one_line(code), Some(text));
            }
            EventKind::CancelRequested { why, task } => {
                let said = match (why, task) {
                    (CancelReason::Failure, Some(task)) => format!("{task} failed; nothing new starts"),
                    (CancelReason::Failure, None) => {
                        "the run cannot be recorded any more; nothing new starts".to_owned()
                    }
                    (CancelReason::Signal, _) => "signal; once more kills what is running".to_owned(),
                    (CancelReason::Timeout, _) => "the plan's timeout has passed".to_owned(),
                    (CancelReason::Api, _) => "asked to stop".to_owned(),
                };
                self.say_end(Style::Warn, "stopping", &said, None);
            }
            EventKind::RunResumed(resumed) => {
                self.say_end(Style::Strong, "resumed", &format!("segment {}", resumed.segment), None);
            }
            EventKind::RunFinished(_) => {
                self.rows = Rows::default();
                self.finish();
                return;
            }
            // A task that never started has nothing to scroll up: the summary counts it.
            EventKind::TaskNotRun { .. }
            | EventKind::RunStarted(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::PartFinished { .. }
            | EventKind::AgentConnected(_)
            | EventKind::AgentLost(_)
            | EventKind::AgentBack(_)
            | EventKind::RoleStarted(_)
            | EventKind::RoleReady(_)
            | EventKind::RoleStop(_)
            | EventKind::RoleExited(_)
            | EventKind::Artifact(_)
            | EventKind::Node(_)
            | EventKind::Delegated { .. }
            | EventKind::Confirmed { .. } => {}
        }
        self.tick();
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        if stream == Stream::Stderr {
            self.tails.said(task, host, bytes);
        }
        if self.streaming == Streaming::Live {
            self.stream(task, host, stream, bytes);
            self.tick();
        }
    }

    fn wants_output(&self) -> bool {
        self.streaming == Streaming::Live || !self.tails.is_recorded()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.finish();
    }
}
