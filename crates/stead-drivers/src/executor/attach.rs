//! `stead executor --attach RUN`: finds or starts the run's session and copies bytes between it and the driver.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use stead_model::executor::{BANNER, Reply, write};
use stead_model::{ErrorClass, RunId};

use super::home::{Home, private_directory};
use super::leftovers::{self, MARK};
use super::versions;

/// Said by a session that listens.
pub(super) const READY: &[u8] = b"ready\n";

/// Attaches this process's standard input and output to the session of `run`; returns whether that went well.
///
/// What goes wrong is told to the driver in its own language.
pub fn attach(run: &RunId, base: &Path, clean: bool) -> bool {
    let home = Home::new(base, run);
    let found = find_or_start(&home, run);
    if clean {
        versions::remove_unused(base);
    }
    match found.and_then(|socket| relay(&home, socket)) {
        Ok(ended) => ended,
        Err(error) => {
            let message = match home.last_words() {
                said if said.is_empty() => format!("the executor in {}: {error}", base.display()),
                said => format!("the executor in {}: {error}; it said: {said}", base.display()),
            };
            tell(true, message);
            false
        }
    }
}

/// Tells the driver why there is no session.
fn tell(with_banner: bool, message: String) {
    let mut bytes = if with_banner { BANNER.to_vec() } else { Vec::new() };
    let error = Reply::Error { message, class: Some(ErrorClass::Operation) };
    if write(&mut bytes, 0, &error).is_ok() {
        // Nobody is left to tell if this fails.
        drop(output().and_then(|mut out| out.write_all(&bytes)));
    }
}

fn output() -> io::Result<File> {
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

fn find_or_start(home: &Home, run: &RunId) -> io::Result<UnixStream> {
    let doorstep = home.doorstep()?;
    if let Ok(socket) = home.connect() {
        return Ok(socket);
    }
    leftovers::sweep(&home.base);
    private_directory(&home.directory)?;
    start(home, run)?;
    let socket = home.connect()?;
    drop(doorstep);
    Ok(socket)
}

/// Starts the session and waits until it listens.
fn start(home: &Home, run: &RunId) -> io::Result<()> {
    let mut options = File::options();
    let stderr = options.create(true).append(true).mode(0o600).open(home.stderr())?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["executor", "--session", run.as_str(), "--base"]).arg(&home.base);
    command.env(MARK, &home.directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut session = command.spawn()?;
    let mut said = Vec::new();
    if let Some(stdout) = session.stdout.take() {
        stdout.take(READY.len() as u64).read_to_end(&mut said)?;
    }
    if said == READY {
        // It outlives this process, on purpose.
        return Ok(());
    }
    session.wait()?;
    Err(io::Error::other("its session did not start"))
}

/// Copies bytes both ways until one side ends; returns whether the session is well.
fn relay(home: &Home, socket: UnixStream) -> io::Result<bool> {
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut out = output()?;
    out.write_all(BANNER)?;
    let mut to_session = socket.try_clone()?;
    std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
        // Whatever ended it, the session sees the end of its connection and waits for another.
        drop(copy(&mut input, &mut to_session));
        drop(to_session.shutdown(Shutdown::Both));
    })?;
    let copied = copy(&mut &socket, &mut out);
    let is_dead = home.directory.exists()
        && matches!(home.connect(), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused);
    if is_dead {
        let said = home.last_words();
        let ended = leftovers::sweep(&home.base);
        let mut message = "the executor's session was killed".to_owned();
        if ended > 0 {
            message.push_str(&format!("; {ended} processes it had started were ended"));
        }
        if !said.is_empty() {
            message.push_str(&format!("; it said: {said}"));
        }
        tell(false, message);
        return Ok(false);
    }
    Ok(copied.is_ok())
}

/// Copies until the end. Not `io::copy`: it would splice, and a splice that waits for a socket keeps the pipe it fills
/// locked, so that nobody can read what is in it already.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(buffer.get(..n).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
