//! Connects keyboard, signals, worker and terminal with the state. Decides nothing.

use std::io::{self, BufWriter, Stdout};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use stead_drivers::run::StopWish;
use stead_model::ExitCode;
use stead_runner::clock;
use tokio::sync::watch;

use super::key::Key;
use super::state::{Intent, Message, State};
use super::theme::Theme;
use super::update::update;
use super::view::view;
use super::worker::{Stops, Worker};
use crate::args::TuiArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Paint;
use crate::render::full_screen::FullScreen;
use crate::settings::Settings;
use crate::signals::{self, Signals};

/// How often what changes with time is drawn.
const BETWEEN_TICKS: Duration = Duration::from_millis(100);
/// How often the time is looked at when nothing changes with it.
const BETWEEN_IDLE_TICKS: Duration = Duration::from_secs(1);
/// How long the keyboard is listened to before looking whether anybody still wants to hear of it.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// How long a signal may take that comes when a terminal goes away.
const PATIENCE_FOR_HANGUP: Duration = Duration::from_secs(2);

type Screen = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Shows the screen until a person leaves it, and returns the exit code.
pub(crate) fn run(args: &TuiArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    check_terminal(settings)?;
    let internal = |error: io::Error| Failure::caused_by(FailureKind::Work, error);
    let counts = signals::listen().map_err(internal)?;
    let (messages, received) = mpsc::channel();
    let stops = Arc::new(Stops::default());
    let full_screen = FullScreen::take().map_err(internal)?;
    if settings.stdout_paint == Paint::Ansi {
        // `--color always` wins over NO_COLOR, which crossterm looks at too.
        crossterm::style::force_color_output(true);
    }
    let backend = CrosstermBackend::new(BufWriter::new(io::stdout()));
    let mut terminal = Terminal::new(backend).map_err(internal)?;
    listen_to_signals(counts, messages.clone(), Arc::clone(&stops)).map_err(internal)?;
    listen_to_keys(messages.clone()).map_err(internal)?;
    let worker = Worker::new(args, settings, messages, Arc::clone(&stops));
    let ended =
        Loop { terminal: &mut terminal, worker: &worker, stops: &stops, lost: None }.run(settings, &received);
    drop(full_screen);
    ended
}

/// The screen needs a terminal to read keys from and one to draw on.
fn check_terminal(settings: &Settings) -> Result<(), Failure> {
    let problem = match (settings.terminals.stdin, settings.terminals.stdout, settings.can_move_cursor) {
        (true, true, true) => return Ok(()),
        (false, _, _) => "standard input is not a terminal",
        (_, false, _) => "standard output is not a terminal",
        (true, true, false) => "this terminal cannot move its cursor (TERM is not set, or `dumb`)",
    };
    Err(Failure::new(FailureKind::Usage, format!("stead tui needs a terminal: {problem}"))
        .hint("without one, use `stead run manifest`, `stead bundle list` and `stead bundle report`"))
}

struct Loop<'a> {
    terminal: &'a mut Screen,
    worker: &'a Worker,
    stops: &'a Stops,
    /// Since when and why nothing can be drawn any more.
    lost: Option<(Instant, io::Error)>,
}

impl Loop<'_> {
    fn run(mut self, settings: &Settings, received: &Receiver<Message>) -> Result<ExitCode, Failure> {
        let size = self.terminal.size().map_or((80, 24), |size| (size.width, size.height));
        let mut state = State::new(clock::now(), size);
        let theme = Theme::new(settings.stdout_paint);
        let mut wanted = update(&mut state, Message::Tick(clock::now()));
        loop {
            for intent in std::mem::take(&mut wanted) {
                if let Intent::Quit(code) = intent {
                    return self.end(code);
                }
                if intent == Intent::Redraw {
                    // Where nothing can be drawn, drawing says so.
                    drop(self.terminal.clear());
                }
                self.worker.carry_out(intent);
            }
            wanted.extend(self.draw(&mut state, theme));
            let patience = if state.is_moving() { BETWEEN_TICKS } else { BETWEEN_IDLE_TICKS };
            let first = match received.recv_timeout(patience) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.end(ExitCode::Failed),
            };
            wanted.extend(update(&mut state, Message::Tick(clock::now())));
            // What has come meanwhile is drawn together.
            for message in first.into_iter().chain(received.try_iter()) {
                wanted.extend(update(&mut state, message));
            }
        }
    }

    /// Draws. Without a terminal the screen is left as after a signal; the signal that comes with a terminal that goes
    /// away stops a run, and where none comes the run is stopped all the same.
    fn draw(&mut self, state: &mut State, theme: Theme) -> Vec<Intent> {
        if let Some((since, _)) = &self.lost {
            if since.elapsed() >= PATIENCE_FOR_HANGUP {
                self.stops.ask(StopWish::HangUp);
            }
            return Vec::new();
        }
        match self.terminal.draw(|frame| view(state, theme, frame)) {
            Ok(_) => Vec::new(),
            Err(error) => {
                self.lost = Some((clock::instant(), error));
                update(state, Message::Signal)
            }
        }
    }

    fn end(self, code: ExitCode) -> Result<ExitCode, Failure> {
        match self.lost {
            Some((_, error)) => Err(Failure::caused_by(FailureKind::Output, error)),
            None => Ok(code),
        }
    }
}

/// Tells the run and the screen of every signal; the run at once, also if the screen is stuck.
fn listen_to_signals(
    mut signals: watch::Receiver<Signals>,
    messages: Sender<Message>,
    stops: Arc<Stops>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let listen = move || {
        runtime.block_on(async {
            let mut told = 0;
            while signals.changed().await.is_ok() {
                let Signals { count, hung_up } = *signals.borrow_and_update();
                for _ in told..count {
                    stops.press(if hung_up { StopWish::HangUp } else { StopWish::End });
                }
                told = count;
                if messages.send(Message::Signal).is_err() {
                    return;
                }
            }
        });
    };
    thread::Builder::new().name("stead-tui-signals".to_owned()).spawn(listen).map(drop)
}

/// Tells the screen of keys, pasted text and new sizes, until nobody listens or the terminal is gone.
fn listen_to_keys(messages: Sender<Message>) -> io::Result<()> {
    let listen = move || {
        loop {
            let message = match event::poll(BETWEEN_LOOKS) {
                Ok(false) => continue,
                Ok(true) => match event::read() {
                    Ok(event) => message_of(event),
                    Err(_) => return,
                },
                Err(_) => return,
            };
            if message.is_some_and(|message| messages.send(message).is_err()) {
                return;
            }
        }
    };
    thread::Builder::new().name("stead-tui-keys".to_owned()).spawn(listen).map(drop)
}

fn message_of(event: Event) -> Option<Message> {
    match event {
        Event::Key(key) => Key::of(key).map(Message::Key),
        Event::Paste(text) => Some(Message::Paste(text)),
        Event::Resize(columns, rows) => Some(Message::Resized { columns, rows }),
        Event::FocusGained | Event::FocusLost | Event::Mouse(_) => None,
    }
}
