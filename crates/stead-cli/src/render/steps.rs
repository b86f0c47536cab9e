//! How a run of steps is shown: each script's own lines as they come, framed by what Stead says.
//!
//! Standard output has the steps and how they ended; warnings and errors go to standard error. Lines that a step
//! speaks (`::check …`) are shown in words or not at all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use stead_model::catalogue::Order;
use stead_model::duration::Short;
use stead_model::event::Stream;
use stead_model::report::ErrorRow;
use stead_model::steps::lines::{self, LONGEST, Spoken};
use stead_model::{ErrorClass, Event, EventKind, ExitCode, HostName, Report, RunStatus, TaskName};
use stead_runner::Observer;

use super::summary::{error_word, lock_hint};
use super::{plain, shown_path, text};
use crate::output::{Handle, Paint, Style};

/// A line of a step that others may interrupt is shown in pieces of this length.
const LONGEST_PIECE: usize = 8 << 10;

/// What a step is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The last part of its path.
    pub basename: String,
    /// What it is started with.
    pub args: Vec<String>,
}

/// Shows a run of steps.
pub struct StepsShown {
    out: Handle,
    err: Handle,
    labels: BTreeMap<TaskName, Label>,
    order: Order,
    open: BTreeMap<(TaskName, Stream), Line>,
}

/// A line that has not ended yet.
#[derive(Default)]
struct Line {
    // Invariant: what is not shown yet of it.
    held: Vec<u8>,
    // Whether its beginning is shown already.
    begun: bool,
}

impl StepsShown {
    /// Returns a renderer that writes what steps say to `out` and `err`.
    pub fn new(out: Handle, err: Handle, labels: BTreeMap<TaskName, Label>, order: Order) -> Self {
        Self { out, err, labels, order, open: BTreeMap::new() }
    }

    fn basename<'a>(&'a self, task: &'a TaskName) -> &'a str {
        self.labels.get(task).map_or(task.as_str(), |label| &label.basename)
    }

    fn handle(&self, stream: Stream) -> Handle {
        match stream {
            Stream::Stdout => self.out.clone(),
            Stream::Stderr => self.err.clone(),
        }
    }

    fn prefix(&self, task: &TaskName) -> String {
        match self.order {
            Order::Listed => String::new(),
            Order::Needs => format!("{} | ", self.basename(task)),
        }
    }

    /// Shows what is left of a step's output, each stream ending in a newline.
    fn finish(&mut self, task: &TaskName) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(line) = self.open.remove(&(task.clone(), stream))
                && (line.begun || !line.held.is_empty())
            {
                let shown = line.ended(stream, &self.prefix(task));
                put(&mut self.handle(stream), &shown);
            }
        }
    }

    fn push(&mut self, task: &TaskName, stream: Stream, bytes: &[u8]) {
        let (prefix, mut out) = (self.prefix(task), self.handle(stream));
        let order = self.order;
        let line = self.open.entry((task.clone(), stream)).or_default();
        let mut shown = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(rest) => {
                    line.held.extend_from_slice(rest);
                    shown.extend_from_slice(&std::mem::take(line).ended(stream, &prefix));
                }
                None => {
                    line.held.extend_from_slice(piece);
                    shown.extend_from_slice(&line.so_far(stream, order, &prefix));
                }
            }
        }
        put(&mut out, &shown);
    }
}

/// A handle keeps its errors to itself; they are told at the end.
fn put(out: &mut Handle, bytes: &[u8]) {
    drop(out.write_all(bytes).and_then(|()| out.flush()));
}

impl Line {
    /// Returns what is shown of a line whose end has come, newline included.
    fn ended(self, stream: Stream, prefix: &str) -> Vec<u8> {
        let spoken = match stream {
            Stream::Stdout if !self.begun && lines::may_speak(&self.held) => {
                lines::parse(&String::from_utf8_lossy(&self.held))
            }
            Stream::Stdout | Stream::Stderr => Spoken::Text,
        };
        let own = |text: &[u8]| {
            let prefix = if self.begun { "" } else { prefix };
            [prefix.as_bytes(), text, b"\n"].concat()
        };
        match spoken {
            Spoken::Check(check) => own(check.to_string().as_bytes()),
            Spoken::Suggest(_) | Spoken::Changed(_) | Spoken::Output { .. } => Vec::new(),
            Spoken::Malformed(_) | Spoken::Text => own(&self.held),
        }
    }

    /// Returns what can be shown of a line that goes on. Where steps run side by side only whole lines are shown,
    /// unless they are very long.
    fn so_far(&mut self, stream: Stream, order: Order, prefix: &str) -> Vec<u8> {
        let may_speak = stream == Stream::Stdout && !self.begun && lines::may_speak(&self.held);
        let hold = match order {
            _ if may_speak => self.held.len() <= LONGEST,
            Order::Listed => false,
            Order::Needs => self.held.len() <= LONGEST_PIECE,
        };
        if hold || self.held.is_empty() {
            return Vec::new();
        }
        let held = std::mem::take(&mut self.held);
        match order {
            Order::Listed => {
                self.begun = true;
                held
            }
            Order::Needs => [prefix.as_bytes(), &held, b"\n"].concat(),
        }
    }
}

impl Observer for StepsShown {
    fn on_event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::TaskStarted { task, .. } => {
                let args = self.labels.get(task).map(|label| label.args.as_slice()).unwrap_or_default();
                let words: Vec<&str> =
                    std::iter::once(self.basename(task)).chain(args.iter().map(String::as_str)).collect();
                self.out.print_line(&format!("[run] {}", text::one_line(&words.join(" "))));
            }
            EventKind::AttemptFailed { task, attempt, error, retry_in_ms, .. } => {
                self.finish(task);
                let delay = Short::from_millis(*retry_in_ms);
                let (name, error) = (self.basename(task), text::one_line(error));
                self.err.print_line(&format!("[retry] {name} attempt={attempt} in {delay}: {error}"));
            }
            EventKind::TaskFinished { task, result } => {
                self.finish(task);
                self.out.print_line(&plain::task_line(self.basename(task), result));
            }
            EventKind::TaskSkipped { task, reason, .. } => {
                self.out.print_line(&plain::decided(
                    stead_model::Status::Skipped,
                    self.basename(task),
                    Some(reason),
                ));
            }
            EventKind::TaskNotRun { task, reason } => {
                self.out.print_line(&plain::decided(
                    stead_model::Status::NotRun,
                    self.basename(task),
                    Some(reason),
                ));
            }
            kind @ (EventKind::Warning { .. }
            | EventKind::CancelRequested { .. }
            | EventKind::RunResumed(_)) => {
                if let Some(line) = plain::line_of(kind) {
                    self.err.print_line(&line);
                }
            }
            EventKind::RunStarted(_)
            | EventKind::SectionStarted { .. }
            | EventKind::FactsGathered { .. }
            | EventKind::TaskReady { .. }
            | EventKind::AttemptStarted { .. }
            | EventKind::Log { .. }
            | EventKind::PartFinished { .. }
            | EventKind::HostResult { .. }
            | EventKind::Confirmed { .. }
            | EventKind::UndoStarted { .. }
            | EventKind::UndoFinished { .. }
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
            | EventKind::RunFinished(_) => {}
        }
    }

    fn on_output(&mut self, task: &TaskName, _: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        self.push(task, stream, bytes);
    }

    fn wants_output(&self) -> bool {
        true
    }
}

/// Returns what stands at the end of a run on standard output: remedies, summary, bundle, how to go on (`again`, or by
/// resuming), and `Done.` if all is well.
pub fn ending(report: &Report, here: &Path, paint: Paint, again: Option<&str>) -> String {
    let mut lines = String::new();
    let mut say = |line: &str| writeln!(lines, "{line}").expect("writing to memory does not fail");
    let suggestions = report.steps.as_ref().map(|steps| steps.suggestions.as_slice()).unwrap_or_default();
    if !suggestions.is_empty() {
        say("Suggested:");
        suggestions.iter().for_each(|command| say(&format!("  {}", text::one_line(command))));
    }
    let mut summary = report.summary().lines();
    if let Some(first) = summary.next() {
        say(&paint.apply(Style::of_run(report.status), first));
    }
    summary.for_each(&mut say);
    if let Some(bundle) = &report.bundle {
        say(&format!("Bundle: {}", shown_path(bundle, here)));
        if let Some(run) = report.run_id.as_ref().filter(|_| report.status != RunStatus::Success) {
            let again = again.map_or_else(|| format!("stead resume {run}"), str::to_owned);
            say(&format!("{} {again}", paint.apply(Style::Strong, "hint:")));
        }
    }
    if report.exit_code == ExitCode::Success {
        say("Done.");
    }
    lines
}

/// Returns what stands at the end of a run on standard error: errors of the run itself.
pub fn errors(report: &Report, paint: Paint) -> String {
    let errors = report.errors.iter().filter(|error| error.task.is_none());
    let lines: String = errors.map(|error| error_line(report, error.class, &error.message, paint)).collect();
    lines + &lock_hint(report)
}

/// Returns every error of a prediction: nothing has told of those of its steps.
pub fn predicted_errors(report: &Report, paint: Paint) -> String {
    let line = |error: &ErrorRow| match &error.task {
        Some(task) => error_line(report, error.class, &format!("{task}: {}", error.message), paint),
        None => error_line(report, error.class, &error.message, paint),
    };
    report.errors.iter().map(line).collect()
}

fn error_line(report: &Report, class: Option<ErrorClass>, message: &str, paint: Paint) -> String {
    format!("{} {}\n", error_word(report, class, paint), text::one_line(message))
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(order: Order, pieces: &[&str]) -> String {
        let kept = Kept::default();
        let task = TaskName::parse("a").unwrap();
        let label = Label { basename: "a.sh".to_owned(), args: Vec::new() };
        let labels = BTreeMap::from([(task.clone(), label)]);
        let mut steps = StepsShown::new(Handle::new(kept.clone()), Handle::new(io::sink()), labels, order);
        for piece in pieces {
            steps.on_output(&task, None, Stream::Stdout, piece.as_bytes());
        }
        steps.finish(&task);
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_come_as_they_are_and_spoken_ones_in_words() {
        let text = "hello\n::check bad a:b  broken \n::changed true\n::output A=1\n::suggest x\n::check maybe x\n::group\nno newline";
        let expected = "hello\n[BAD] a:b broken\n::check maybe x\n::group\nno newline\n";
        assert_eq!(shown(Order::Listed, &[text]), expected);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(shown(Order::Listed, &pieces), expected);
        let prefixed: String = expected.lines().map(|line| format!("a.sh | {line}\n")).collect();
        assert_eq!(shown(Order::Needs, &[text]), prefixed);
        assert_eq!(shown(Order::Needs, &pieces), prefixed);
    }

    #[test]
    fn a_question_without_newline_is_shown_at_once() {
        let kept = Kept::default();
        let task = TaskName::parse("a").unwrap();
        let out = Handle::new(kept.clone());
        let mut steps = StepsShown::new(out, Handle::new(io::sink()), BTreeMap::new(), Order::Listed);
        steps.on_output(&task, None, Stream::Stdout, b"50%\r");
        assert_eq!(*kept.0.lock().unwrap(), b"50%\r");
    }

    #[test]
    fn very_long_lines_are_not_kept_in_memory() {
        let long = "x".repeat(3 * LONGEST_PIECE);
        let needs = shown(Order::Needs, &[&long]);
        assert_eq!(needs.matches('x').count(), 3 * LONGEST_PIECE);
        let spoken = format!("::output A={}", "y".repeat(2 * LONGEST));
        assert_eq!(shown(Order::Listed, &[&spoken, "\n"]).matches('y').count(), 2 * LONGEST);
    }
}
