//! Does what the screen wants, off its thread, and answers with messages.
//!
//! ```text
//!  update ── Intent ──▶ Worker ──┬─ a thread per question (bundles, nodes, fleet, manifests, agents)
//!    ▲                           ├─ one reader, so that output stays in order
//!    └────── Message ◀───────────┴─ one run at a time, told to stop through `Stops`
//! ```

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

use stead_bundle::Lister;
use stead_drivers::run::StopWish;
use stead_fleet::wire::Client;

use super::pager::PageRead;
use super::state::{Intent, Message};
use super::watched::Read;
use crate::args::TuiArgs;
use crate::output::{Handle, Output};
use crate::settings::Settings;

mod agents;
mod bundles;
mod entries;
mod fleet;
mod nodes;
mod notices;
mod reading;
mod recording;
mod running;
mod stops;

pub(super) use stops::Stops;

/// Does what the screen wants.
pub(super) struct Worker {
    surroundings: Surroundings,
    reader: Sender<(u64, Wish)>,
    stops: Arc<Stops>,
}

/// Something to read from the files of a run.
enum Wish {
    Output(Read),
    Page(PageRead),
}

/// What every piece of work has.
#[derive(Clone)]
struct Surroundings {
    settings: Arc<Settings>,
    args: Arc<TuiArgs>,
    kept: Arc<Kept>,
    // Unbounded: a screen that cannot be drawn for a while must not hold a run up. Output is not sent, only asked for.
    messages: Sender<Message>,
}

/// What one question leaves for the next.
#[derive(Default)]
struct Kept {
    /// Bundles that need not be read again.
    lister: Mutex<Lister>,
    /// What was said last to be wrong with bundles, so that it is said once.
    problem: Mutex<Option<String>>,
    /// The way to the fleet's master.
    master: Mutex<Option<Arc<Client>>>,
}

impl Surroundings {
    /// Sends a message; nobody listens any more when the screen is being left.
    fn send(&self, message: Message) {
        drop(self.messages.send(message));
    }

    /// Returns an output for code that prints: its talk becomes notices, its data goes to `out`.
    fn output(&self, out: Handle) -> Output {
        Output::new(out, Handle::new(notices::Notices::new(self.messages.clone())))
    }

    /// Does a piece of work on a thread of its own.
    fn later(&self, work: impl FnOnce(&Self) + Send + 'static) {
        let surroundings = self.clone();
        let guarded = move || {
            if panic::catch_unwind(AssertUnwindSafe(|| work(&surroundings))).is_err() {
                surroundings.send(Message::Notice("a part of stead broke; please report this".to_owned()));
            }
        };
        if let Err(error) = thread::Builder::new().name("stead-tui".to_owned()).spawn(guarded) {
            self.send(Message::Notice(format!("cannot start a thread: {error}")));
        }
    }
}

impl Worker {
    /// Returns a worker that answers to `messages`; its run listens to `stops`.
    pub(super) fn new(
        args: &TuiArgs,
        settings: &Settings,
        messages: Sender<Message>,
        stops: Arc<Stops>,
    ) -> Self {
        let (settings, args) = (Arc::new(settings.clone()), Arc::new(args.clone()));
        let surroundings = Surroundings { settings, args, kept: Arc::default(), messages };
        let (reader, wishes) = mpsc::channel();
        surroundings.later(move |surroundings| {
            wishes.into_iter().for_each(|(key, wish)| surroundings.send(reading::answer(key, wish)));
        });
        Self { surroundings, reader, stops }
    }

    /// Begins to do what is wanted. Leaving and drawing are not its business.
    pub(super) fn carry_out(&self, intent: Intent) {
        let work = &self.surroundings;
        match intent {
            Intent::ListBundles => work.later(bundles::list),
            Intent::OpenBundle { path, key } => work.later(move |work| bundles::open(work, &path, key)),
            Intent::FollowRun { key, directory, read_to } => {
                work.later(move |work| recording::follow(work, key, &directory, read_to));
            }
            Intent::ReadRecording { path, key } => {
                work.later(move |work| recording::read(work, &path, key));
            }
            Intent::LookAtNodes => work.later(nodes::look),
            Intent::AskNode(place) => work.later(move |work| nodes::ask(work, place)),
            Intent::AskFleet => work.later(fleet::ask),
            Intent::ExplainInstance(instance) => work.later(move |work| fleet::explain(work, instance)),
            Intent::ListEntries { directory } => work.later(move |work| entries::list(work, directory)),
            Intent::Load { serial, why, request } => {
                work.later(move |work| running::load(work, serial, why, &request));
            }
            Intent::DryRun { serial, request } => {
                work.later(move |work| running::dry_run(work, serial, &request));
            }
            Intent::Run { key, request } => {
                let stops = Arc::clone(&self.stops);
                stops.forget();
                work.later(move |work| running::run(work, key, &request, &stops));
            }
            Intent::StopRun => self.stops.press(StopWish::End),
            // The reader lives as long as the screen does.
            Intent::ReadOutput { key, read } => drop(self.reader.send((key, Wish::Output(read)))),
            Intent::ReadPage { key, read } => drop(self.reader.send((key, Wish::Page(read)))),
            Intent::LookAtAgents => work.later(agents::look),
            Intent::CheckAgents(names) => work.later(move |work| agents::check(work, &names)),
            Intent::Redraw | Intent::Quit(_) => {}
        }
    }
}
