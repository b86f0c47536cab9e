//! Bringing this program to a machine: made smaller, checked by its hash there, whole under its name or not at all.

use std::ffi::OsString;
use std::path::PathBuf;

use stead_model::ErrorClass;
use stead_model::executor::target_arch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::operation::OpError;
use crate::transport::{Command, Running, Stdin, Transport};

use super::binary::{Binaries, Packing, Sendable};
use super::open::{last_lines, unreachable};

const UPLOAD: &str = include_str!("upload.sh");

/// Brings programs to machines that no session is opened on.
#[derive(Debug)]
pub struct Carrier {
    binaries: Binaries,
}

/// Where a program is brought, as the machine itself says.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// What it is called, for messages.
    pub host: &'a str,
    /// What `uname -sm` says there.
    pub system: &'a str,
    /// How content may be packed there: `zstd`, `gzip`, or anything else.
    pub packing: &'a str,
    /// The directory above `bin/SHA256/stead`.
    pub base: &'a str,
    /// What the upload is started with: the words before it.
    pub by: &'a [&'a str],
}

impl Carrier {
    /// Returns what brings `own` to machines that it fits, and to others what is in `directories` (`ARCH/stead`).
    pub fn new(own: PathBuf, directories: Vec<PathBuf>) -> Self {
        Self { binaries: Binaries::new(own, directories) }
    }

    /// Brings the program to `to`, and returns its hash.
    ///
    /// # Errors
    /// If there is none for that kind of machine, or it did not arrive whole.
    pub async fn bring(&self, transport: &dyn Transport, to: &Destination<'_>) -> Result<String, OpError> {
        let arch = target_arch(to.system)
            .ok_or_else(|| OpError::permanent(format!("`{}` is no machine stead knows", to.system)))?;
        let binary = self.binaries.for_arch(&arch, to.host).await?;
        let packing = Packing::parse(to.packing);
        let program = self.binaries.packed(&binary, packing).await?;
        let argv = to.by.iter().map(Into::into).chain(argv(to.base, &binary.sha256, packing)).collect();
        let command = Command { argv, stdin: Stdin::Piped, ..Command::default() };
        upload(transport, command, Vec::new(), &program).await?;
        Ok(binary.sha256)
    }
}

/// Returns the command that takes a program from its input.
pub(super) fn argv(base: &str, sha256: &str, packing: Packing) -> Vec<OsString> {
    ["/bin/sh", "-c", UPLOAD, "stead", base, sha256, packing.as_str()].iter().map(Into::into).collect()
}

/// Gives `input` and then `program` to `command`, which puts it in its place.
pub(super) async fn upload(
    transport: &dyn Transport,
    command: Command,
    input: Vec<u8>,
    program: &Sendable,
) -> Result<(), OpError> {
    let mut running = transport.exec(command).await.map_err(|error| unreachable(&error))?;
    let mut said = Vec::new();
    {
        let Running { stdin, stdout, .. } = &mut running;
        let mut stdin = stdin.take();
        let mut limited = stdout.take(64 << 10);
        if let Some(stdin) = &mut stdin {
            // One that does not read has already given up, and says why.
            drop(stdin.write_all(&input).await);
            drop(stdin.flush().await);
        }
        // Nothing is sent where somebody else has brought it in the meantime.
        let lost = |error: std::io::Error| OpError::new(ErrorClass::Unreachable, error.to_string());
        while answer(&said).is_none() {
            if limited.read_buf(&mut said).await.map_err(lost)? == 0 {
                break;
            }
        }
        let wanted = answer(&said).is_some_and(|(word, _)| word == "send");
        let writing = async {
            if let (Some(mut stdin), true) = (stdin, wanted) {
                let mut sent = 0;
                loop {
                    let piece = program.piece(sent).await?;
                    if piece.is_empty() {
                        break;
                    }
                    stdin.write_all(&piece).await?;
                    sent += piece.len() as u64;
                }
                stdin.shutdown().await?;
                // A pipe ends only when its writer is gone.
                drop(stdin);
            }
            Ok::<(), std::io::Error>(())
        };
        // What it says counts: a write fails when it has already given up.
        let (_, read) = tokio::join!(writing, limited.read_to_end(&mut said));
        read.map_err(lost)?;
    }
    match answer(&said) {
        Some((word, _)) if word == "done" => Ok(()),
        Some((word, why)) if word == "failed" => {
            Err(OpError::operation(format!("upload of the executor: {why}")))
        }
        Some(_) | None => {
            let last = last_lines(&mut running).await;
            let message = format!("the upload of the executor ended early: {last}");
            Err(OpError::new(ErrorClass::Unreachable, message))
        }
    }
}

/// Returns the last whole answer in what an upload said so far: a word, and what it is about.
fn answer(said: &[u8]) -> Option<(String, String)> {
    let end = said.iter().rposition(|byte| *byte == b'\n')?;
    let said = String::from_utf8_lossy(said.get(..end)?);
    let line = said.lines().rev().find_map(|line| line.strip_prefix("STEAD-UPLOAD "))?;
    line.split_once(' ').map(|(word, about)| (word.to_owned(), about.to_owned()))
}
