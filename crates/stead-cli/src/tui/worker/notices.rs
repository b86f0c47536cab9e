//! Talk of code that thinks it writes to standard error, as notices on the screen.

use std::io::{self, Write};
use std::sync::mpsc::Sender;

use crate::render::one_line;
use crate::tui::state::Message;

/// A stream whose lines become notices.
pub(super) struct Notices {
    messages: Sender<Message>,
    pending: Vec<u8>,
}

impl Notices {
    pub(super) fn new(messages: Sender<Message>) -> Self {
        Self { messages, pending: Vec::new() }
    }
}

impl Write for Notices {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let text = one_line(&String::from_utf8_lossy(&line));
            if !text.is_empty() {
                drop(self.messages.send(Message::Notice(text)));
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
