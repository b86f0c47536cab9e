//! A run's events as they come, for a browser (`text/event-stream`).

use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use stead_bundle::{EVENTS, Unpacked};
use stead_runner::journal::Lines;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How much of a journal is read at once.
const PIECE: usize = 256 << 10;

/// How long a journal with nothing new is left alone.
const PAUSE: Duration = Duration::from_millis(200);

/// After how many such pauses a browser is told that somebody is still here, so that one that is gone is noticed.
const QUIET_PAUSES: u32 = 75;

/// What comes of a run. Whoever drops it ends it.
#[derive(Debug)]
pub struct Live {
    pieces: mpsc::Receiver<Bytes>,
    _writer: JoinSet<()>,
}

impl Live {
    /// Returns the next piece, when there is one; none at the end.
    pub fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.pieces.poll_recv(cx)
    }
}

/// The events of one run.
#[derive(Debug)]
pub struct Follow {
    lines: Lines,
    /// What is read must stay that long.
    place: Unpacked,
}

impl Follow {
    /// Returns the events of the record in `place` behind the one numbered `after`.
    pub(crate) fn new(place: Unpacked, after: u64) -> Self {
        Self { lines: Lines::new(place.path().join(EVENTS), after, 0), place }
    }

    /// Returns the pieces of the stream. It ends with the run, with `stop`, or when nobody reads it.
    pub fn start(self, stop: impl Future<Output = ()> + Send + 'static) -> Live {
        let (sender, pieces) = mpsc::channel(4);
        let mut writer = JoinSet::new();
        writer.spawn(async move {
            tokio::select! {
                () = self.send(sender) => {}
                () = stop => {}
            }
        });
        Live { pieces, _writer: writer }
    }

    async fn send(self, sender: mpsc::Sender<Bytes>) {
        let Self { mut lines, place } = self;
        let (mut is_over, mut quiet) = (false, 0_u32);
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let read = lines.next(PIECE);
                (lines, read)
            });
            let Ok((back, read)) = read.await else { return };
            lines = back;
            let read = match read {
                Ok(read) => read,
                // A run that has just begun has no journal yet; one that was removed has none any more.
                Err(_) if place.path().exists() => Vec::new(),
                Err(_) => return,
            };
            let message = if !read.is_empty() {
                for line in read.split(|byte| *byte == b'\n') {
                    match kind(line) {
                        Some("run_finished") => is_over = true,
                        Some("run_resumed") => is_over = false,
                        Some(_) | None => {}
                    }
                }
                quiet = 0;
                messages(&read)
            } else if is_over || has_ended(place.path()) {
                sender.send(Bytes::from_static(b"event: end\ndata: {}\n\n")).await.ok();
                return;
            } else {
                quiet += 1;
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = sender.closed() => return,
                }
                if !quiet.is_multiple_of(QUIET_PAUSES) {
                    continue;
                }
                Bytes::from_static(b": still here\n\n")
            };
            if sender.send(message).await.is_err() {
                return;
            }
        }
    }
}

/// Whether a record says that its run is over: a browser that saw the last event asks for those behind it.
fn has_ended(record: &Path) -> bool {
    stead_bundle::load_meta(record).is_ok_and(|meta| meta.status != stead_model::RunStatus::Running)
}

/// Returns what the event in a line is called. The name comes third, before anything that somebody else wrote.
fn kind(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once("\"ev\":\"")?;
    rest.split_once('"').map(|(kind, _)| kind)
}

/// Returns lines as messages, each with its number, which the browser names when it comes back.
fn messages(lines: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(lines.len() + lines.len() / 8);
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let number = stead_runner::journal::number_of(line).unwrap_or_default();
        out.extend_from_slice(format!("id: {number}\ndata: ").as_bytes());
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n\n");
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_messages() {
        let lines =
            b"{\"seq\":1,\"t\":\"x\",\"ev\":\"a\"}\n{\"seq\":2,\"t\":\"x\",\"ev\":\"run_finished\"}\n";
        let sent = messages(lines);
        let sent = std::str::from_utf8(&sent).unwrap();
        assert!(
            sent.starts_with("id: 1\ndata: {\"seq\":1") && sent.ends_with("\"run_finished\"}\n\n"),
            "{sent}"
        );
        assert_eq!(sent.matches("\n\n").count(), 2);
        // An event of a run below is not one of this run.
        let below = br#"{"seq":3,"t":"x","ev":"delegated","event":{"ev":"run_finished"}}"#;
        assert_eq!(kind(below), Some("delegated"));
        assert_eq!(kind(b"\xff"), None);
    }
}
