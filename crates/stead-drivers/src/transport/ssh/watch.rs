//! Commands that must not outlive the driver: who ends them on the target when nobody is left to do so.
//!
//! ```text
//!   command's shell ──"+ KEY PID GRACE"──▶ ┐
//!                                          ├─▶ watcher, one per connection ──at the end of its input──▶ TERM, KILL
//!   driver ────────"- KEY", it ended ────▶ ┘
//! ```
//! The watcher is a shell in a session of its own that reads lines. Its input ends when the connection does, however
//! that came about; whoever is still on its list then is asked to stop, and killed after its grace. A command's shell
//! writes itself on the list before it becomes the program, through the watcher's own input, so no moment is left in
//! between and no process is started for it. Where a system does not show that input as a file, the driver writes.
//! A server with one place for sessions keeps it for commands: those are not watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stead_runner::transport::{Reader, TransportError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::{Mutex, mpsc, oneshot, watch};

use super::connection::{Connection, Opened};
use super::program;

/// How long a watcher may take to be there; commands wait for it.
const PATIENCE: Duration = Duration::from_secs(30);
/// As much as it may say of itself.
const LONGEST_WORD: u64 = 256;

/// What the watcher's shell evaluates, without a newline. The list is ` KEY:PID:GRACE KEY:PID:GRACE `.
pub(super) const SCRIPT: &str = concat!(
    "stead_door=/proc/$$/fd/0; [ -p $stead_door ] || stead_door=none; echo $stead_door; stead_list=' '; ",
    "while IFS=' ' read -r stead_what stead_key stead_pid stead_grace; do ",
    "case \"$stead_key$stead_pid$stead_grace\" in ''|*[!0-9]*) continue;; esac; ",
    "case \"$stead_what\" in ",
    "+) [ \"${stead_pid:-0}\" -gt 1 ] && stead_list=\"$stead_list$stead_key:$stead_pid:${stead_grace:-0} \";; ",
    "-) case \"$stead_list\" in *\" $stead_key:\"*) stead_rest=${stead_list#*\" $stead_key:\"}; ",
    "stead_list=\"${stead_list%%\" $stead_key:\"*} ${stead_rest#* }\";; esac;; ",
    "esac; done; ",
    // Nobody listens any more.
    "exec </dev/null >/dev/null 2>&1; trap '' HUP INT TERM; ",
    "for stead_one in $stead_list; do stead_rest=${stead_one#*:}; ",
    "stead_pid=${stead_rest%:*}; stead_grace=${stead_rest#*:}; ",
    "( kill -s TERM -- -$stead_pid || kill -s TERM $stead_pid || exit 0; ",
    "while [ $stead_grace -gt 0 ] && kill -s 0 -- -$stead_pid; do sleep 1; stead_grace=$((stead_grace-1)); done; ",
    "kill -s KILL -- -$stead_pid || kill -s KILL $stead_pid ) & ",
    "done; wait",
);

/// The watcher of a connection, started with the first command that needs it.
#[derive(Default)]
pub(super) struct Watch {
    watcher: Mutex<State>,
    last_key: AtomicU64,
}

#[derive(Default)]
enum State {
    #[default]
    NotNeeded,
    There(Watcher),
    /// It cannot be had.
    Never,
}

struct Watcher {
    lines: mpsc::UnboundedSender<String>,
    door: watch::Receiver<Door>,
}

/// How a command gets on the list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Door {
    /// The watcher is still being started.
    Awaited,
    /// By writing to this file.
    At(String),
    /// The driver says so, once it knows.
    Driver,
    /// The watcher was there and is gone.
    Lost,
    /// There is none.
    Nowhere,
}

impl Watch {
    /// Returns what ties a command to the connection; nothing if nobody can watch it.
    pub(super) async fn tie(
        &self,
        connection: &Arc<Connection>,
        grace: Duration,
    ) -> Result<Option<Tie>, TransportError> {
        let mut state = self.watcher.lock().await;
        if let State::There(watcher) = &*state {
            match &*watcher.door.borrow() {
                Door::Awaited | Door::At(_) | Door::Driver => return Ok(Some(self.tie_to(watcher, grace))),
                Door::Lost => {}
                Door::Nowhere => return Ok(None),
            }
        }
        if matches!(*state, State::Never) {
            return Ok(None);
        }
        let Some(opened) = connection.open_beside().await? else {
            *state = State::Never;
            return Ok(None);
        };
        let (lines, receiver) = mpsc::unbounded_channel();
        let (says, door) = watch::channel(Door::Awaited);
        let (give_up, given_up) = oneshot::channel();
        connection.lend_place(give_up);
        connection.spawn(keep(Arc::clone(connection), opened, receiver, says, given_up));
        let watcher = Watcher { lines, door };
        let tie = self.tie_to(&watcher, grace);
        *state = State::There(watcher);
        Ok(Some(tie))
    }

    fn tie_to(&self, watcher: &Watcher, grace: Duration) -> Tie {
        let key = self.last_key.fetch_add(1, Ordering::Relaxed);
        // Whole seconds, and never less than was granted.
        let grace = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        Tie { key, grace, lines: watcher.lines.clone(), door: watcher.door.clone() }
    }
}

/// Starts the watcher and waits for its end, or until its place is needed.
async fn keep(
    connection: Arc<Connection>,
    opened: Opened,
    lines: mpsc::UnboundedReceiver<String>,
    door: watch::Sender<Door>,
    given_up: oneshot::Receiver<()>,
) {
    let watching = async {
        let starting = async {
            let mut running = program::start_watcher(&connection, opened, lines).await.ok()?;
            let place = first_line(&mut running.stdout).await?;
            Some((running, place))
        };
        let (mut running, place) = tokio::time::timeout(PATIENCE, starting).await.ok().flatten()?;
        door.send_replace(if place.starts_with('/') { Door::At(place) } else { Door::Driver });
        // However it ended.
        running.process.wait().await.ok();
        Some(())
    };
    let was_there = tokio::select! {
        ended = watching => ended.is_some(),
        // Also if the sender is gone: then nobody can ask for the place any more.
        Ok(()) = given_up => false,
    };
    door.send_replace(if was_there { Door::Lost } else { Door::Nowhere });
}

async fn first_line(from: &mut Reader) -> Option<String> {
    let mut line = String::new();
    BufReader::new(from.take(LONGEST_WORD)).read_line(&mut line).await.ok()?;
    Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
}

/// A command's place on the list. Dropping it takes the command off: it has ended.
pub(super) struct Tie {
    key: u64,
    grace: u64,
    lines: mpsc::UnboundedSender<String>,
    door: watch::Receiver<Door>,
}

impl Tie {
    /// Returns what the command's shell has to do first.
    pub(super) fn knot(&self) -> Knot {
        Knot { key: self.key, grace: self.grace, door: self.door.clone() }
    }

    /// Says that the command runs, unless it has done so itself.
    pub(super) fn started(&self, pid: u32) {
        if *self.door.borrow() == Door::Driver {
            // A watcher that is gone needs to know nothing.
            self.lines.send(format!("+ {} {pid} {}\n", self.key, self.grace)).ok();
        }
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        self.lines.send(format!("- {}\n", self.key)).ok();
    }
}

/// How a command's shell writes itself on the list.
pub(super) struct Knot {
    key: u64,
    grace: u64,
    door: watch::Receiver<Door>,
}

impl Knot {
    /// Returns the words for the shell, once it is known where to write; none if it does not have to.
    pub(super) async fn words(mut self) -> String {
        let Ok(door) = self.door.wait_for(|door| *door != Door::Awaited).await else { return String::new() };
        let Door::At(place) = &*door else { return String::new() };
        // A path that the watcher made of a number; without the watcher it does not exist.
        format!("{{ echo \"+ {} $$ {}\" >{place}; }} 2>/dev/null; ", self.key, self.grace)
    }
}

#[cfg(test)]
#[path = "watch/tests.rs"]
mod tests;
