//! `--events`: the journal's lines, byte for byte, as they happen.

use stead_model::{Event, event};

use super::Render;
use crate::output::Handle;

/// Writes each event as its journal line.
pub struct Events {
    out: Handle,
    line: Vec<u8>,
}

impl Events {
    /// Returns a writer to `out`: standard output or a file.
    pub fn new(out: Handle) -> Self {
        Self { out, line: Vec::new() }
    }
}

impl Render for Events {
    fn on_event(&mut self, event: &Event) {
        use std::io::Write as _;
        self.line.clear();
        event::encode(event.seq, event.t, &event.kind, &mut self.line);
        // A handle keeps its errors to itself; they are told at the end.
        drop(self.out.write_all(&self.line).and_then(|()| self.out.flush()));
    }
}
