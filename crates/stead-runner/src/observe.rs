//! Watching a run: readers of its events.

use stead_model::event::Stream;
use stead_model::{Event, HostName, TaskName};

/// Reads the events of a run, in order. One that panics is dropped with a warning.
pub trait Observer: Send {
    /// Takes in an event; it is in the journal already.
    fn on_event(&mut self, event: &Event);

    /// Takes in an event of an earlier segment, before a resumed run goes on.
    fn on_recorded(&mut self, event: &Event) {
        let _ = event;
    }

    /// Takes in output as it is logged. Called only if [`Observer::wants_output`].
    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        let _ = (task, host, stream, bytes);
    }

    /// Takes in the journal's lines, byte for byte. Called only if [`Observer::wants_lines`].
    fn on_lines(&mut self, lines: &[u8]) {
        let _ = lines;
    }

    /// Whether it wants [`Observer::on_output`].
    fn wants_output(&self) -> bool {
        false
    }

    /// Whether it wants [`Observer::on_lines`].
    fn wants_lines(&self) -> bool {
        false
    }
}

impl<F: FnMut(&Event) + Send> Observer for F {
    fn on_event(&mut self, event: &Event) {
        self(event);
    }
}
