//! The display a program gets that only says `Terminal::auto()`: moving on a terminal, plain lines elsewhere.

use stead_model::event::Stream;
use stead_model::{Event, HostName, TaskName};
use stead_runner::Observer;

use crate::args::ColorWhen;
use crate::output::Output;
use crate::settings::{ColorRule, Environment, Terminals};

use super::Options;
use super::plain::Plain;
use super::terminal::{Live, Screen, Terminal};

/// Shows a run on standard error, as the `stead` command does.
pub struct Auto(Box<dyn Observer>);

impl std::fmt::Debug for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auto")
    }
}

impl Terminal {
    /// Returns a display that fits standard error: moving on a terminal, plain lines elsewhere.
    pub fn auto() -> Auto {
        let output = Output::of_process();
        let terminals = Terminals::of_process();
        if !terminals.stderr {
            return Auto(Box::new(Plain::new(output.err, Options::default())));
        }
        let environment = Environment::of_process();
        let paint = ColorRule::new(ColorWhen::Auto, &environment).paint(terminals.stderr);
        Auto(Box::new(Live::start(Self::new(
            output.err,
            paint,
            Screen::of_stderr((None, None)),
            Options::default(),
        ))))
    }
}

impl Observer for Auto {
    fn on_event(&mut self, event: &Event) {
        self.0.on_event(event);
    }

    fn on_output(&mut self, task: &TaskName, host: Option<&HostName>, stream: Stream, bytes: &[u8]) {
        self.0.on_output(task, host, stream, bytes);
    }

    fn wants_output(&self) -> bool {
        self.0.wants_output()
    }
}
