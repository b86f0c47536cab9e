//! Files to and from a host, by programs every system has.
//!
//! A shell script on the other side writes beside the place, checks the hash and renames; its input is the content and
//! its end the only way it can be told to give up, so a broken connection leaves nothing behind.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use stead_model::plan::Digest;
use stead_runner::transport::{
    Command, Exit, FileMeta, Process, Reader, Source, TransportError, TransportErrorKind,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::oneshot;

use super::connection::Connection;
use super::program::{self, Content, Input, OnDrop};
use crate::transport::files::{self, Incoming};
use crate::transport::random_name;

const PUT: &str = concat!(include_str!("copying/hash.sh"), include_str!("copying/put.sh"));
const GET: &str = concat!(include_str!("copying/hash.sh"), include_str!("copying/get.sh"));
/// As much as the scripts and their programs may say.
const LONGEST_WORD: u64 = 8 << 10;

/// Writes `from` to the path `to` of the host.
pub(super) async fn put(
    connection: &Arc<Connection>,
    from: Source,
    to: &Path,
    meta: &FileMeta,
) -> Result<Digest, TransportError> {
    let (length, digest) = files::measure(&from).await?;
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(files::failed(format!("{} names no file", to.display())));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(".stead-");
    temporary.push(random_name(8)?);
    let mut command = Command::new(["sh", "-c", PUT, "sh"]);
    command.argv.extend([parent.into(), to.into(), parent.join(temporary).into()]);
    command.argv.push(meta.mode.map(|mode| format!("{mode:o}")).unwrap_or_default().into());
    command.argv.push(meta.owner.clone().unwrap_or_default().into());
    command.argv.push(meta.group.clone().unwrap_or_default().into());
    command.argv.extend([length.to_string().into(), digest.to_string().into()]);

    let (content, later) = oneshot::channel();
    let running = program::start_with(connection, &command, Input::Later(later), OnDrop::EndInput).await?;
    let mut script = Script {
        connection,
        path: to,
        stdout: BufReader::new(running.stdout.take(LONGEST_WORD)),
        stderr: running.stderr,
        process: running.process,
    };
    match script.word().await?.as_str() {
        "same" => return Ok(digest),
        "send" => {}
        other => return Err(script.failure(other, digest).await),
    }
    let ready = match from {
        Source::Bytes(bytes) => Content::Bytes(bytes.to_vec()),
        Source::File(path) => Content::Pieces(files::read_ahead(path)),
    };
    // If nobody takes it the script has ended, and says why below.
    content.send(ready).ok();
    match script.word().await?.as_str() {
        "done" => Ok(digest),
        other => Err(script.failure(other, digest).await),
    }
}

/// Reads the path `from` of the host into `to`.
pub(super) async fn get(
    connection: &Arc<Connection>,
    from: &Path,
    to: &Path,
) -> Result<Digest, TransportError> {
    let mut incoming = Incoming::create(to, &random_name(8)?).await?;
    let mut command = Command::new(["sh", "-c", GET, "sh"]);
    command.argv.push(from.into());
    let mut running = program::start(connection, &command, OnDrop::Kill, None).await?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count =
            running.stdout.read(&mut buffer).await.map_err(|_| connection.lost("a file was being read"))?;
        match buffer.get(..count).filter(|data| !data.is_empty()) {
            Some(data) => incoming.write(data).await?,
            None => break,
        }
    }
    let mut said = String::new();
    running.stderr.take(LONGEST_WORD).read_to_string(&mut said).await.ok();
    let exit = running.process.wait().await?;
    let hash = said.lines().find_map(|line| Digest::parse(line.strip_prefix("hash ")?));
    match (exit, hash) {
        (Exit::Code(0), Some(hash)) => incoming.finish(Some(hash), &FileMeta::default()).await,
        _ => {
            let said =
                said.lines().last().unwrap_or("its script ended without a word").trim_start_matches("fail ");
            let name = connection.name();
            Err(files::failed(format!("{} of {name} cannot be read: {said}", from.display())))
        }
    }
}

/// The running script of a `put`.
struct Script<'a> {
    connection: &'a Arc<Connection>,
    path: &'a Path,
    stdout: BufReader<tokio::io::Take<Reader>>,
    stderr: Reader,
    process: Box<dyn Process>,
}

impl Script<'_> {
    /// Returns the next line; empty at the end.
    async fn word(&mut self) -> Result<String, TransportError> {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line).await;
        read.map_err(|_| self.connection.lost("a file was being written"))?;
        Ok(line.trim_end_matches('\n').to_owned())
    }

    /// Returns what an answer other than the expected one means.
    async fn failure(&mut self, answer: &str, digest: Digest) -> TransportError {
        let name = self.connection.name();
        if let Some(found) = answer.strip_prefix("hash ").and_then(Digest::parse) {
            return files::mismatch(self.path, digest, found);
        }
        if let Err(error) = self.process.wait().await
            && error.kind == TransportErrorKind::Lost
        {
            return error;
        }
        let mut said = String::new();
        (&mut self.stderr).take(LONGEST_WORD).read_to_string(&mut said).await.ok();
        let reason = answer.strip_prefix("fail ").unwrap_or("its script ended without a word");
        let said = said.lines().last().map(|line| format!(" ({line})")).unwrap_or_default();
        files::failed(format!("{} of {name} cannot be written: {reason}{said}", self.path.display()))
    }
}
