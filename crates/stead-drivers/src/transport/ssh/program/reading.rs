//! What comes back from a program: output, errors, and its end.

use std::sync::Arc;

use bytes::Bytes;
use russh::{ChannelMsg, ChannelReadHalf, Sig};
use stead_runner::transport::{Exit, TransportError, TransportErrorKind};
use tokio::sync::{oneshot, watch};

use super::End;
use crate::transport::ssh::connection::{Connection, Slot};
use crate::transport::ssh::preamble::{LONGEST_NOISE, Preamble, Step};
use crate::transport::ssh::spool::{SpoolReader, SpoolWriter, stream};
use crate::transport::ssh::watch::Tie;

/// As much of a login shell's last words as an error repeats.
const LAST_WORDS: usize = 2048;

/// What a started program said of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    pub(super) pid: u32,
    pub(super) is_root: bool,
}

impl Started {
    fn parse(line: &str) -> Option<Self> {
        let (pid, account) = line.split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, is_root: account != "user" })
    }
}

/// The task that reads a channel. It waits for nothing else.
pub(super) struct Reading {
    connection: Arc<Connection>,
    out: Stream,
    err: Stream,
    started: Option<oneshot::Sender<Result<(), TransportError>>>,
    ended: watch::Sender<End>,
    closed: watch::Sender<bool>,
    pid: watch::Sender<Option<Started>>,
    refused: bool,
    no_directory: bool,
    // Held until the program has ended.
    tie: Option<Tie>,
    // Held until the channel is closed.
    _slot: Slot,
}

struct Stream {
    preamble: Preamble,
    spool: SpoolWriter,
}

impl Reading {
    pub(super) fn new(
        connection: Arc<Connection>,
        nonce: &str,
        started: oneshot::Sender<Result<(), TransportError>>,
        ended: watch::Sender<End>,
        closed: watch::Sender<bool>,
        (slot, tie): (Slot, Option<Tie>),
    ) -> (Self, SpoolReader, SpoolReader) {
        let (out, stdout) = stream();
        let (err, stderr) = stream();
        let reading = Self {
            connection,
            out: Stream { preamble: Preamble::new(nonce), spool: out },
            err: Stream { preamble: Preamble::new(nonce), spool: err },
            started: Some(started),
            ended,
            closed,
            pid: watch::channel(None).0,
            refused: false,
            no_directory: false,
            tie,
            _slot: slot,
        };
        (reading, stdout, stderr)
    }

    /// Where the process id will be.
    pub(super) fn pid(&self) -> watch::Receiver<Option<Started>> {
        self.pid.subscribe()
    }

    pub(super) async fn run(mut self, mut reads: ChannelReadHalf, mut stopped: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                message = reads.wait() => match message {
                    None | Some(ChannelMsg::Close) => break,
                    Some(message) => self.take(message),
                },
                // Also when its sender is gone: nobody is interested any more.
                () = async { stopped.wait_for(|stopped| *stopped).await.ok(); } => break,
            }
        }
        self.closed.send_replace(true);
        if self.started.is_some() {
            let error = self.never_started();
            self.fail_start(error);
        }
        if self.ended.borrow().is_none() {
            let error = self.connection.lost("a program ran");
            self.out.spool.fail(&error.message);
            self.err.spool.fail(&error.message);
            self.end(Err(error));
        }
    }

    fn take(&mut self, message: ChannelMsg) {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is open; other messages mean nothing here"
        )]
        match message {
            ChannelMsg::Data { data } => self.output(data),
            ChannelMsg::ExtendedData { data, ext: 1 } => self.errors(data),
            ChannelMsg::ExitStatus { exit_status } => {
                self.end(Ok(Exit::Code(i32::try_from(exit_status).unwrap_or(i32::MAX))));
            }
            ChannelMsg::ExitSignal { signal_name, .. } => self.end(match signal_number(&signal_name) {
                Some(number) => Ok(Exit::Signal(number)),
                None => Err(TransportError::new(
                    TransportErrorKind::Failed,
                    "the program was ended by a signal that the SSH server does not name",
                )),
            }),
            ChannelMsg::Failure => self.refused = true,
            _ => {}
        }
    }

    fn output(&mut self, data: Bytes) {
        if self.out.preamble.is_over() {
            return self.out.spool.write(data);
        }
        match self.out.preamble.feed(&data) {
            Step::Waiting => {}
            Step::TooMuch => self.fail_start(self.too_noisy()),
            Step::Marked(line, rest) => {
                self.connection.note_noise(self.out.preamble.noise().len());
                self.out.spool.write(Bytes::from(rest));
                match Started::parse(&line) {
                    Some(started) => {
                        self.pid.send_replace(Some(started));
                        if let Some(tie) = &self.tie {
                            tie.started(started.pid);
                        }
                        if let Some(started) = self.started.take() {
                            started.send(Ok(())).ok();
                        }
                    }
                    // Why is on its way, on the other stream.
                    None => self.no_directory = true,
                }
            }
        }
    }

    fn errors(&mut self, data: Bytes) {
        if self.err.preamble.is_over() {
            return self.err.spool.write(data);
        }
        match self.err.preamble.feed(&data) {
            Step::Waiting => {}
            Step::TooMuch => self.fail_start(self.too_noisy()),
            Step::Marked(_, rest) => {
                self.connection.note_noise(self.err.preamble.noise().len());
                self.err.spool.write(Bytes::from(rest));
            }
        }
    }

    fn end(&mut self, exit: Result<Exit, TransportError>) {
        self.ended.send_if_modified(|end| {
            let first = end.is_none();
            if first {
                *end = Some(exit);
            }
            first
        });
        // What it leaves running on purpose stays.
        self.tie = None;
    }

    fn fail_start(&mut self, error: TransportError) {
        if let Some(started) = self.started.take() {
            started.send(Err(error)).ok();
        }
    }

    fn last_words(&self) -> String {
        let mut words = Vec::new();
        for noise in [self.out.preamble.noise(), self.err.preamble.noise()] {
            words.extend_from_slice(noise.get(noise.len().saturating_sub(LAST_WORDS)..).unwrap_or_default());
        }
        String::from_utf8_lossy(&words).trim().to_owned()
    }

    fn never_started(&self) -> TransportError {
        let name = self.connection.name();
        if self.connection.is_closed() && self.ended.borrow().is_none() {
            return self.connection.lost("a program was being started");
        }
        let words = self.last_words();
        if self.no_directory {
            let message = format!("the working directory on {name} cannot be entered: {words}");
            return TransportError::new(TransportErrorKind::Failed, message);
        }
        let end = match &*self.ended.borrow() {
            Some(Ok(Exit::Code(code))) => format!("ended with code {code}"),
            Some(Ok(Exit::Signal(signal))) => format!("was ended by signal {signal}"),
            _ if self.refused => "was refused by the server".to_owned(),
            _ => "ended".to_owned(),
        };
        let said = if words.is_empty() { String::new() } else { format!("; it said: {words}") };
        TransportError::new(
            TransportErrorKind::Failed,
            format!(
                "the login shell on {name} {end} before any program was started: the account needs a shell that runs \
                 commands{said}"
            ),
        )
    }

    fn too_noisy(&self) -> TransportError {
        let name = self.connection.name();
        TransportError::new(
            TransportErrorKind::Failed,
            format!(
                "the login shell on {name} printed more than {LONGEST_NOISE} bytes before the program was started: \
                 let its start-up files print only for interactive shells"
            ),
        )
    }
}

/// Returns the number of a signal that RFC 4254 names.
fn signal_number(signal: &Sig) -> Option<i32> {
    Some(match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::USR1 => 10,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        Sig::Custom(name) if name == "USR2" => 12,
        Sig::Custom(_) => return None,
    })
}
