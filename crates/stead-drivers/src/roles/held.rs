//! The holding end of a supervisor: starts it, gives it its order, passes on what it tells.
//!
//! Whoever holds it may vanish at any time: the pipe closes and the supervisor stops its role. If the supervisor
//! itself is killed, what it leaves is ended from here.

use std::path::PathBuf;
use std::process::Stdio;

use stead_model::executor::{FrameBuffer, write};
use stead_model::role::{PlainCommand, RoleEvent, RoleOrder, SupervisorRequest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};

use crate::supervisor::COMMAND;
use crate::supervisor::tree::Orphans;

/// A role to be supervised.
pub(crate) struct Start {
    /// The `stead` that supervises.
    pub(crate) executable: PathBuf,
    pub(crate) order: RoleOrder,
    /// The directory of its logs.
    pub(crate) logs: PathBuf,
    /// Where its end is noted.
    pub(crate) note: Option<PathBuf>,
    /// A plain program instead of a role.
    pub(crate) plain: Option<PlainCommand>,
}

/// Supervises a role to its end. Dropping the future, or `closing` becoming true, stops the role.
///
/// Every event goes to `tell`. If the supervisor was killed the last one never comes, and no process of the role is
/// left when this returns.
pub(crate) async fn hold(
    start: Start,
    mut requests: mpsc::UnboundedReceiver<SupervisorRequest>,
    mut closing: watch::Receiver<bool>,
    mut tell: impl FnMut(RoleEvent) + Send,
) {
    let marks = Marks::of(&start.order);
    let mut child = match spawn(&start) {
        Ok(child) => child,
        Err(error) => {
            let reason = format!("the supervisor {} cannot be started: {error}", start.executable.display());
            return tell(RoleEvent::NotStarted { reason });
        }
    };
    let session = child.id();
    let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let order = SupervisorRequest::Start {
        order: Box::new(start.order),
        logs: start.logs.to_string_lossy().into_owned(),
        note: start.note.map(|note| note.to_string_lossy().into_owned()),
        plain: start.plain,
    };
    send(&mut stdin, &order).await;
    drop(order);
    let mut has_ended = false;
    if let Some(mut stdout) = stdout {
        let mut inbox = FrameBuffer::default();
        let mut buffer = vec![0; 16 << 10];
        loop {
            while let Ok(Some(frame)) = inbox.next_frame() {
                if let Ok(event) = serde_json::from_slice::<RoleEvent>(&frame.body) {
                    has_ended |= event.is_last();
                    tell(event);
                }
            }
            tokio::select! {
                read = stdout.read(&mut buffer) => match read {
                    Ok(n) if n > 0 => inbox.push(buffer.get(..n).unwrap_or_default()),
                    Ok(_) | Err(_) => break,
                },
                request = requests.recv(), if stdin.is_some() => match request {
                    Some(request) => send(&mut stdin, &request).await,
                    None => stdin = None,
                },
                () = becomes_true(&mut closing), if stdin.is_some() => stdin = None,
            }
        }
    }
    drop(stdin);
    // How it ended is of no interest: either it said so, or it was killed.
    drop(child.wait().await);
    if !has_ended {
        let killing = move || {
            let marks: Vec<(&str, &str)> =
                marks.0.iter().map(|(name, value)| (*name, value.as_str())).collect();
            Orphans { session, marks: &marks }.kill()
        };
        drop(tokio::task::spawn_blocking(killing).await);
    }
}

/// What every process of a role carries in its environment.
struct Marks(Vec<(&'static str, String)>);

impl Marks {
    fn of(order: &RoleOrder) -> Self {
        let marks = ["STEAD_RUN_ID", "STEAD_ROLE", "STEAD_WORKDIR"];
        let marks: Option<Vec<_>> =
            marks.into_iter().map(|name| Some((name, order.env.get(name)?.clone()))).collect();
        // Without all of them it could be another's.
        Self(marks.unwrap_or_default())
    }
}

fn spawn(start: &Start) -> std::io::Result<Child> {
    let mut command = Command::new(&start.executable);
    command.arg(COMMAND).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn()
}

/// Sends a message; a supervisor that is gone needs none.
async fn send(stdin: &mut Option<ChildStdin>, message: &SupervisorRequest) {
    let mut bytes = Vec::new();
    if write(&mut bytes, 0, message).is_err() {
        // Too long for a frame: it ends without having started anything.
        *stdin = None;
    }
    let Some(pipe) = stdin.as_mut() else { return };
    let sent = async {
        pipe.write_all(&bytes).await?;
        pipe.flush().await
    };
    if sent.await.is_err() {
        *stdin = None;
    }
}

async fn becomes_true(closing: &mut watch::Receiver<bool>) {
    // Whoever could say so is gone, and that says it as well.
    drop(closing.wait_for(|closing| *closing).await);
}
