//! The way to a node: over SSH, with the driver's own key and the host key that was pinned when it was made.

use std::sync::Arc;
use std::time::Duration;

use stead_model::node::NodeEntry;
use stead_model::transport::{HostKeys, Jump, SshSpec, TransportSpec};
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::OpError;
use stead_runner::transport::Transport;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep};

use super::make::refused;
use super::{DriverKey, NodeView, NodesSurroundings};

/// How long one try to connect may take: emulated machines are slow to shake hands.
const ONE_TRY: Duration = Duration::from_secs(30);
/// How long the first one may: what takes connections for a machine that is not up yet may leave them hanging.
const FIRST_TRY: Duration = Duration::from_secs(4);
/// Between two tries: a machine that comes up is not hammered.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// As much is kept of what a command says.
const LONGEST_OUTPUT: u64 = 16 << 20;

/// What a command on a node left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    /// Its exit code; none: a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its output.
    pub(crate) stdout: Vec<u8>,
    /// Its errors.
    pub(crate) stderr: Vec<u8>,
}

impl Said {
    /// Returns the last lines it wrote to its errors, for a message.
    pub(crate) fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines.iter().skip(lines.len().saturating_sub(5)).copied().collect::<Vec<_>>().join("\n")
    }
}

impl NodesSurroundings {
    /// Returns the key this level logs in with.
    pub(crate) async fn key(&self) -> Result<&DriverKey, OpError> {
        let making = || async {
            let given = self.parts.site.settings.value.defaults.ssh_key_file.clone();
            let given =
                given.map(|file| self.parts.site_dir.join(expand_home(&file, &self.parts.environment)));
            let state_dir = self.parts.state_dir.clone();
            let made = tokio::task::spawn_blocking(move || DriverKey::ensure(given.as_deref(), &state_dir));
            let made = made.await.map_err(|_| OpError::operation("making the driver's key was cut off"))?;
            made.map_err(|error| OpError::operation(error.to_string()))
        };
        self.key.get_or_try_init(making).await
    }

    /// Returns how the node of `entry` is reached.
    pub(crate) async fn way_to(&self, name: &NodeName, entry: &NodeEntry) -> Result<TransportSpec, OpError> {
        let unreached =
            |what: &str| OpError::new(ErrorClass::Unreachable, format!("{name} has no {what} that is known"));
        let host = entry.ip.clone().ok_or_else(|| unreached("address"))?;
        let host_key = entry.host_key.clone().ok_or_else(|| unreached("host key"))?;
        let key = self.key().await?;
        Ok(TransportSpec::Ssh(Box::new(SshSpec {
            user: Some(self.parts.site.settings.value.defaults.vm_user.clone()),
            host,
            port: entry.ssh_port,
            key: Some(key.file.display().to_string()),
            host_key: Some(host_key),
            agent: Some(false),
            connect_timeout: Some(ONE_TRY),
            jump: self.hops_to(entry)?,
            // The node's own key is pinned; that of a host may be seen for the first time.
            host_keys: Some(HostKeys::AcceptNew),
            ssh_config: Some("none".to_owned()),
            ..SshSpec::default()
        })))
    }

    /// Returns the nodes on the way to the node of `entry`, outermost first: those it is in.
    ///
    /// Each of them knows the keys of all levels above it.
    fn hops_to(&self, entry: &NodeEntry) -> Result<Vec<Jump>, OpError> {
        let user = &self.parts.site.settings.value.defaults.vm_user;
        // A damaged file may say that nodes are in each other.
        let most = self.parts.memory.look(|state| state.nodes.len());
        let mut hops = Vec::new();
        let mut above = entry.parent.clone();
        let mut made_on = entry.host.clone();
        while let Some(name) = above {
            let known = self.entry(&name).filter(|_| hops.len() < most);
            let hop = known.as_ref().and_then(|hop| {
                let (user, host) = (Some(user.clone()), hop.ip.clone()?);
                Some(Jump { user, host, port: hop.ssh_port, host_key: Some(hop.host_key.clone()?) })
            });
            let Some(hop) = hop else {
                let message = format!("the way leads through {name}, of which too little is known");
                return Err(OpError::new(ErrorClass::Unreachable, message));
            };
            hops.push(hop);
            made_on = known.as_ref().and_then(|hop| hop.host.clone());
            above = known.and_then(|hop| hop.parent);
        }
        let host = made_on.as_ref().unwrap_or(&self.parts.host.name);
        if let Some(host) = self.parts.elsewhere.get(host) {
            hops.extend(self.hop_to(host));
        }
        hops.reverse();
        Ok(hops)
    }

    /// Leads to where the SSH of a node listens now, which its spec may change, and keeps the port at which it is reached.
    pub(super) async fn follow_port(&self, node: &NodeView<'_>, port: u16) -> Result<(), OpError> {
        let name = &node.node.name;
        let Some(entry) = self.entry(name) else { return Ok(()) };
        let Some(id) = &entry.machine_id else { return Ok(()) };
        let driver = self.driver(&self.host_of(Some(node), Some(&entry)))?;
        driver.ssh_moved(id, port).await.map_err(refused)?;
        let machine = driver.inspect(id).await.map_err(refused)?;
        match machine.and_then(|machine| machine.ssh) {
            Some(door) if entry.ssh_port != Some(door.port) => {
                self.update(name, true, |entry| entry.ssh_port = Some(door.port)).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Connects to a node, trying again for as long as its SSH may take to come up.
    pub(crate) async fn connect(&self, name: &NodeName) -> Result<Arc<dyn Transport>, OpError> {
        let entry = self.entry(name).ok_or_else(|| OpError::operation(format!("{name} was never made")))?;
        let way = self.way_to(name, &entry).await?;
        let limit = self.limit(name.as_str(), |limits| limits.ssh);
        self.connect_by(&way, name.as_str(), limit, Some(name)).await
    }

    /// Returns why nobody will answer any more at a machine that this level has made, as its driver says.
    pub(super) async fn end_of(&self, name: &NodeName) -> Option<String> {
        let entry = self.entry(name).filter(|entry| entry.parent.is_none())?;
        let driver = self.driver(&self.host_of(self.node(name.as_str()).ok().as_ref(), Some(&entry))).ok()?;
        match driver.inspect(entry.machine_id.as_ref()?).await.ok()? {
            None => Some("its machine is gone".to_owned()),
            Some(machine) if machine.state.is_live() => None,
            Some(machine) => {
                let why = machine.exit.map_or_else(String::new, |exit| format!(" ({})", exit.reason));
                Some(format!("its machine does not run{why}"))
            }
        }
    }

    /// Connects to a machine that is called `name`, trying again for as long as its SSH may take to come up; that of a `node`
    /// only while it runs.
    pub(super) async fn connect_by(
        &self,
        way: &TransportSpec,
        name: &str,
        limit: Duration,
        node: Option<&NodeName>,
    ) -> Result<Arc<dyn Transport>, OpError> {
        let mut way = way.clone();
        let deadline = Instant::now() + limit;
        let (mut pause, mut patience) = (FIRST_PAUSE, FIRST_TRY);
        loop {
            if let TransportSpec::Ssh(ssh) = &mut way {
                let left = deadline.saturating_duration_since(Instant::now());
                ssh.connect_timeout = Some(time_of_try(patience, left));
            }
            let error = match self.parts.connect.connect(&way).await {
                Ok(transport) => return Ok(transport),
                Err(error) => error,
            };
            if !error.may_pass() || Instant::now() + pause > deadline {
                let within = stead_model::duration::to_exact(limit);
                let message = match error.may_pass() {
                    true => format!("{name} was not reached over SSH within {within}: {error}"),
                    false => format!("{name} was not reached over SSH: {error}"),
                };
                return Err(OpError::new(error.class(), message));
            }
            if pause == LONGEST_PAUSE
                && let Some(node) = node
                && let Some(end) = self.end_of(node).await
            {
                let message = format!("{name} was not reached over SSH: {end}");
                return Err(OpError::new(ErrorClass::Unreachable, message));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            patience = (patience * 2).min(ONE_TRY);
        }
    }
}

/// Returns how long one try may take of the time that is left for all of them: the last one ends with it.
fn time_of_try(patience: Duration, left: Duration) -> Duration {
    patience.min(left.max(FIRST_PAUSE))
}

/// Runs a command to its end and returns what it left.
pub(crate) async fn run(
    transport: &dyn Transport,
    command: stead_runner::transport::Command,
) -> Result<Said, OpError> {
    use stead_runner::transport::{Exit, TransportError};
    let lost = |error: TransportError| OpError::new(error.class(), error.to_string());
    let mut running = transport.exec(command).await.map_err(lost)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut bounded_out = (&mut running.stdout).take(LONGEST_OUTPUT);
    let mut bounded_err = (&mut running.stderr).take(LONGEST_OUTPUT);
    let read = tokio::join!(bounded_out.read_to_end(&mut stdout), bounded_err.read_to_end(&mut stderr));
    let failed = |error: std::io::Error| {
        OpError::new(ErrorClass::Unreachable, format!("its output was cut off: {error}"))
    };
    read.0.map_err(failed)?;
    read.1.map_err(failed)?;
    let code = match running.process.wait().await.map_err(lost)? {
        Exit::Code(code) => Some(code),
        Exit::Signal(_) => None,
    };
    Ok(Said { code, stdout, stderr })
}

/// Returns `path` with the home directory in place of `~`.
pub(super) fn expand_home(path: &str, environment: &std::collections::BTreeMap<String, String>) -> String {
    match (path.strip_prefix("~/"), environment.get("HOME")) {
        (Some(rest), Some(home)) => format!("{home}/{rest}"),
        (Some(_), None) | (None, _) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_try_to_connect_ends_with_the_time_there_is() {
        let seconds = Duration::from_secs;
        assert_eq!(time_of_try(ONE_TRY, seconds(3)), seconds(3));
        assert_eq!(time_of_try(FIRST_TRY, seconds(63)), FIRST_TRY);
        assert_eq!(time_of_try(FIRST_TRY, Duration::ZERO), FIRST_PAUSE, "there is always one try");
    }
}
