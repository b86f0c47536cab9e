//! `--events`: the journal's lines, byte for byte, as they happen.

use std::io::Write as _;

use stead_model::Event;
use stead_runner::Observer;

use crate::output::Handle;

/// Passes the journal's lines on.
pub struct Events(Handle);

impl Events {
    /// Returns a writer to `out`: standard output or a file.
    pub fn new(out: Handle) -> Self {
        Self(out)
    }
}

impl Observer for Events {
    fn on_event(&mut self, _: &Event) {}

    fn on_lines(&mut self, lines: &[u8]) {
        // A handle keeps its errors to itself; they are told at the end.
        drop(self.0.write_all(lines).and_then(|()| self.0.flush()));
    }

    fn wants_lines(&self) -> bool {
        true
    }
}
