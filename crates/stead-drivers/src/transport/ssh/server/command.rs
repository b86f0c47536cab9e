//! One session channel: the requests before the command, its streams, signals and end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use russh::server::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;

use super::SshHost;
use crate::transport::ssh::program;
use crate::transport::ssh::spool;

/// Code of extended data that is standard error.
const STDERR: u32 = 1;
/// One packet's worth.
const PIECE: usize = 32 << 10;
/// Variables of the language, at most this many.
const MOST_VARIABLES: usize = 32;

/// A command that runs, in a process group of its own.
pub(crate) struct Started {
    /// The process, its pipes open.
    pub(crate) child: Child,
    /// Told when nobody waits for it here any more.
    pub(crate) guard: Box<dyn Send + Sync>,
}

/// Serves a channel to its end.
pub(super) async fn serve(channel: Channel<Msg>, handle: Handle, host: Arc<dyn SshHost>, user: String) {
    let id = channel.id();
    let (mut reads, writes) = channel.split();
    let Some((line, locale)) = requested(&mut reads, &handle, id).await else { return };
    match host.start(&user, line, &locale) {
        Ok(started) => {
            // A client that does not hear it has gone.
            handle.channel_success(id).await.ok();
            run(started, &mut reads, &writes, &handle).await;
        }
        Err(error) => {
            host.note(&format!("a command of {user} cannot be started: {error}"));
            handle.channel_failure(id).await.ok();
        }
    }
    writes.close().await.ok();
}

/// Waits for the command; returns its line, if it has one, and variables of the language.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a foreign enum: what is not a request before a command is passed over"
)]
async fn requested(
    reads: &mut ChannelReadHalf,
    handle: &Handle,
    id: russh::ChannelId,
) -> Option<(Option<OsString>, BTreeMap<String, String>)> {
    let mut locale = BTreeMap::new();
    loop {
        let granted = match reads.wait().await? {
            ChannelMsg::Exec { command, .. } => return Some((Some(OsString::from_vec(command)), locale)),
            ChannelMsg::RequestShell { .. } => return Some((None, locale)),
            ChannelMsg::SetEnv { variable_name: name, variable_value: value, .. } => {
                let granted = (name == "LANG" || name.starts_with("LC_"))
                    && locale.len() < MOST_VARIABLES
                    && !value.contains('\0');
                if granted {
                    locale.insert(name, value);
                }
                granted
            }
            ChannelMsg::RequestPty { .. }
            | ChannelMsg::RequestSubsystem { .. }
            | ChannelMsg::RequestX11 { .. } => false,
            ChannelMsg::Close => return None,
            _ => continue,
        };
        let told = if granted { handle.channel_success(id).await } else { handle.channel_failure(id).await };
        told.ok()?;
    }
}

async fn run(started: Started, reads: &mut ChannelReadHalf, writes: &ChannelWriteHalf<Msg>, handle: &Handle) {
    let Started { mut child, guard } = started;
    let group = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (spool, mut spooled) = spool::stream();
    let feeding = async {
        if let Some(mut stdin) = stdin {
            // A command that reads no more gets no more.
            tokio::io::copy(&mut spooled, &mut stdin).await.ok();
        }
        std::future::pending::<()>().await;
    };
    let working = async {
        let out = async {
            if let Some(stdout) = stdout {
                program::copy(writes, stdout).await.ok();
            }
        };
        let err = async {
            if let Some(stderr) = stderr {
                copy_errors(writes, stderr).await;
            }
        };
        let end = async {
            if let Ok(status) = child.wait().await {
                tell_end(status, writes, handle).await;
            }
        };
        // As sshd does: what a command left in the background may still speak.
        tokio::join!(out, err, end);
        writes.eof().await.ok();
    };
    let receiving = async {
        let mut spool = Some(spool);
        loop {
            match reads.wait().await {
                Some(ChannelMsg::Data { data }) => {
                    if let Some(spool) = &spool {
                        spool.write(data);
                    }
                }
                Some(ChannelMsg::Eof) => spool = None,
                Some(ChannelMsg::Signal { signal }) => {
                    if let (Some(group), Some(signal)) = (group, number(&signal)) {
                        // One that has ended needs no signal.
                        kill_process_group(group, signal).ok();
                    }
                }
                None | Some(ChannelMsg::Close) => break,
                Some(_) => {}
            }
        }
    };
    tokio::select! {
        () = working => {}
        () = receiving => {}
        () = feeding => {}
    }
    drop(guard);
}

async fn copy_errors(writes: &ChannelWriteHalf<Msg>, mut from: impl AsyncRead + Unpin) {
    loop {
        let mut buffer = bytes::BytesMut::with_capacity(PIECE);
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) if writes.extended_data_bytes(STDERR, buffer.freeze()).await.is_err() => return,
            Ok(_) => {}
        }
    }
}

async fn tell_end(status: ExitStatus, writes: &ChannelWriteHalf<Msg>, handle: &Handle) {
    match (status.code(), status.signal()) {
        (Some(code), _) => {
            writes.exit_status(u32::try_from(code).unwrap_or(255)).await.ok();
        }
        (None, signal) => {
            let name = name(signal.unwrap_or(9));
            let (dumped, empty) = (status.core_dumped(), String::new());
            handle.exit_signal_request(writes.id(), name, dumped, empty.clone(), empty).await.ok();
        }
    }
}

/// Returns the name of a signal.
fn name(number: i32) -> Sig {
    match number {
        1 => Sig::HUP,
        2 => Sig::INT,
        3 => Sig::QUIT,
        4 => Sig::ILL,
        6 => Sig::ABRT,
        8 => Sig::FPE,
        9 => Sig::KILL,
        10 => Sig::USR1,
        11 => Sig::SEGV,
        12 => Sig::Custom("USR2".to_owned()),
        13 => Sig::PIPE,
        14 => Sig::ALRM,
        15 => Sig::TERM,
        other => Sig::Custom(format!("SIG{other}@stead")),
    }
}

/// Returns the signal of a name; none if nobody may send it.
fn number(name: &Sig) -> Option<Signal> {
    Some(match name {
        Sig::HUP => Signal::HUP,
        Sig::INT => Signal::INT,
        Sig::QUIT => Signal::QUIT,
        Sig::ILL => Signal::ILL,
        Sig::ABRT => Signal::ABORT,
        Sig::FPE => Signal::FPE,
        Sig::KILL => Signal::KILL,
        Sig::USR1 => Signal::USR1,
        Sig::SEGV => Signal::SEGV,
        Sig::PIPE => Signal::PIPE,
        Sig::ALRM => Signal::ALARM,
        Sig::TERM => Signal::TERM,
        Sig::Custom(name) if name == "USR2" => Signal::USR2,
        Sig::Custom(_) => return None,
    })
}
