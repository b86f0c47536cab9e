//! What things look like. Without colours everything can still be told apart by its words.

use ratatui::style::{Color, Modifier, Style};
use stead_model::{RunStatus, Status};

use super::transcript::LineKind;
use super::watched::{PhaseState, RoleState};
use crate::output::{self, Paint};

/// What things look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    paint: Paint,
}

impl Theme {
    /// Returns the looks on a terminal that takes `paint`.
    pub(crate) fn new(paint: Paint) -> Self {
        Self { paint }
    }

    fn colored(self, color: Color) -> Style {
        match self.paint {
            Paint::None => Style::new(),
            Paint::Ansi => Style::new().fg(color),
        }
    }

    /// Returns the look of something of this style.
    pub(crate) fn of(self, style: output::Style) -> Style {
        match style {
            output::Style::Bad => self.colored(Color::Red).add_modifier(Modifier::BOLD),
            output::Style::Good => self.colored(Color::Green),
            output::Style::Warn => self.colored(Color::Yellow),
            output::Style::Dim => Style::new().add_modifier(Modifier::DIM),
            output::Style::Strong => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    /// Returns the look of what is at the cursor.
    pub(crate) fn cursor(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the look of a key in a line of hints.
    pub(crate) fn key(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Returns the look of a run's end, by its word in the metadata.
    pub(crate) fn run_word(self, status: &str) -> Style {
        match RunStatus::ALL.iter().find(|known| known.as_str() == status) {
            Some(status) => self.of(output::Style::of_run(*status)),
            None => self.word(status),
        }
    }

    /// Returns the look of a state of nodes, of instances or of workers, by its word; the page in a browser says the same.
    pub(crate) fn word(self, word: &str) -> Style {
        match word {
            "converged" | "completed" | "running" | "ready" | "connected" | "active" | "done" | "yes" => {
                self.of(output::Style::Good)
            }
            "failed" | "degraded" | "lost" | "stale" | "foreign" | "absent" | "unreachable"
            | "not converged" => self.of(output::Style::Bad),
            "converging" | "pending" | "backoff" | "stopping" | "stopped" | "held" | "suspended"
            | "suspect" | "retrying" | "unknown" | "unschedulable" => self.of(output::Style::Warn),
            "skipped" | "destroyed" | "none" | "-" => self.of(output::Style::Dim),
            _ => Style::new(),
        }
    }

    /// Returns the look of a phase.
    pub(crate) fn phase(self, state: PhaseState) -> Style {
        match state {
            PhaseState::Waiting => self.of(output::Style::Dim),
            PhaseState::Running { .. } => self.of(output::Style::Strong),
            // Of a run only what went well has to be seen at a glance, whether it changed something or not.
            PhaseState::Ended { status: Status::Unchanged, .. } => self.of(output::Style::Good),
            PhaseState::Ended { status, .. } => self.of(output::Style::of_status(status)),
        }
    }

    /// Returns the look of a role.
    pub(crate) fn role(self, state: &RoleState) -> Style {
        match state {
            RoleState::Waiting | RoleState::NotStarted => self.of(output::Style::Dim),
            RoleState::Running => self.of(output::Style::Strong),
            RoleState::Ready | RoleState::Exited { code: Some(0), .. } => self.of(output::Style::Good),
            RoleState::Stopping { .. } | RoleState::Exited { .. } => self.of(output::Style::Warn),
        }
    }

    /// Returns the look of a line of output.
    pub(crate) fn line(self, kind: LineKind) -> Style {
        match kind {
            LineKind::Stdout | LineKind::Run => Style::new(),
            LineKind::Stderr => self.of(output::Style::Warn),
            LineKind::Note => self.of(output::Style::Dim),
        }
    }
}
