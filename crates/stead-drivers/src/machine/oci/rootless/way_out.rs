//! The network card of a container of an ordinary account: `slirp4netns` is the network behind it, as QEMU is behind a
//! card on its own. It passes on what comes out; what comes in goes through ports of this machine.

use std::io::{self, Read as _};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stead_runner::machine::MachineError;

use crate::machine::home::{Home, last_lines};
use crate::machine::local::SYSTEM_PATH;
use crate::machine::oci::MARK;

/// The address of the container on its card.
pub(in crate::machine::oci) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// What the card is called.
const CARD: &str = "eth0";
/// What it says.
const LOG: &str = "slirp.log";
/// How long it may take until the card is there.
const PATIENCE: Duration = Duration::from_secs(20);

/// A network card with a way out. Dropping it takes it away.
pub(in crate::machine::oci) struct WayOut {
    process: Child,
}

impl WayOut {
    /// Gives the container whose first process is `pid` its card.
    pub(in crate::machine::oci) fn open(home: &Home, program: &Path, pid: u32) -> Result<Self, MachineError> {
        let failed = |error: io::Error| home.failed("plug in", &error);
        let log = std::fs::File::create(home.file(LOG)).map_err(failed)?;
        let mut command = Command::new(program);
        // It ends with its input, whatever becomes of this process, and says with its output that it is there.
        command.args(["--configure", "--mtu=65520", "--exit-fd=0", "--ready-fd=1"]);
        command.args([&pid.to_string(), CARD]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        command.env_clear().env("PATH", SYSTEM_PATH).env(MARK, home.directory());
        let mut way_out = Self { process: command.spawn().map_err(failed)? };
        if way_out.is_there().map_err(failed)? {
            return Ok(way_out);
        }
        Err(MachineError::Failed {
            what: format!("{} gives the container no network card", program.display()),
            last_lines: last_lines(&home.file(LOG)),
        })
    }

    fn is_there(&mut self) -> io::Result<bool> {
        let Some(mut ready) = self.process.stdout.take() else { return Ok(false) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::from_borrowed_fd(ready.as_fd(), PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(ready.read(&mut [0])? > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        // One that is gone needs no end.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
