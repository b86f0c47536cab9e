//! `node.push`: the driver applies a node's spec over one SSH connection.

use stead_model::node::{Applied, NodeStatus};
use stead_model::site::ResolvedSpec;
use stead_model::site::manifest::Mode;
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::{OpContext, OpError, Outcome};
use stead_runner::remote::Destination;
use stead_runner::transport::{Command, Stdin, Transport};
use tokio::time::timeout;

use super::NodesSurroundings;
use super::reach::{self, Said};

/// Starts the program of the hash that is the first argument, with the others; says so if it is not there.
///
/// Everything lies below the node's root, which a sandbox names. Who is not root on a whole machine becomes it.
const START: &str = r#"base=${STEAD_ROOT:-}/var/lib/stead
program=$base/bin/$1/stead
shift
as=
if [ -z "${STEAD_ROOT:-}" ] && [ "$(id -u)" != 0 ]; then as='sudo -n --'; fi
if ! $as test -x "$program"; then
  uname -sm
  for tool in zstd gzip none; do command -v $tool >/dev/null 2>&1 && break; done
  printf '%s\n%s\n' $tool "$base"
  exit 97
fi
exec $as "$program" "$@""#;

/// What [`START`] exits with when the program is not there.
const ABSENT: i32 = 97;

/// Runs the command that its arguments are as whoever programs of this node belong to.
pub(super) const AS_OWNER: &str = r#"if [ -z "${STEAD_ROOT:-}" ] && [ "$(id -u)" != 0 ]; then exec sudo -n -- "$@"; fi
exec "$@""#;

impl NodesSurroundings {
    /// Applies the spec of a node over SSH.
    pub(super) async fn push(&self, cx: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let spec = self.spec_of(&node)?.ok_or_else(|| OpError::invalid(format!("{name} has no spec")))?;
        // Reading this program takes about as long as connecting.
        let connected = tokio::try_join!(self.connect(name), self.program_sha256());
        let transport = match connected {
            Ok((transport, _)) => transport,
            Err(error) => return Err(self.with_last_words(name, error).await),
        };
        let limit = self.limit(name.as_str(), |limits| limits.config);
        let applied =
            timeout(limit, self.apply_over(&*transport, name, &spec)).await.unwrap_or_else(|_| {
                let within = stead_model::duration::to_exact(limit);
                let message = format!("{name} was not configured within {within}");
                Err(OpError { changed: true, ..OpError::new(ErrorClass::Timeout, message) })
            })?;
        if let Some(port) = port_after(&applied, &spec) {
            self.follow_port(&node, port).await?;
        }
        let applied = well(name, applied)?;
        let transport = match applied.unconfirmed {
            None => transport,
            Some(_) => {
                // Reached anew, through the network as it is now.
                drop(transport);
                let again = self.connect(name).await?;
                self.confirm_network(&*again, &applied).await?;
                again
            }
        };
        let agent = node.agent_mode();
        let (told, stopped) = match agent {
            // What runs on it later is asked for by its agent.
            Some(_) => (self.enable_agent(cx, &node).await?, false),
            None => (false, self.leave_pull(cx, &*transport, name).await?),
        };
        let changed = applied.changed > 0 || told || stopped;
        let is_done = !node.known.is_hosting;
        self.update(name, changed, |entry| {
            (entry.mode, entry.spec) = (Mode::Push, Some(spec.spec.clone()));
            entry.spec_digest = Some(applied.spec_digest.clone());
            entry.state_digest = applied.state_digest.clone();
            if agent.is_none() {
                entry.forget_agent();
            }
            if is_done {
                (entry.status, entry.error) = (NodeStatus::Completed, None);
            }
        })
        .await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Has the node's own stead apply `spec`, and returns what became of it, well or not.
    async fn apply_over(
        &self,
        transport: &dyn Transport,
        name: &NodeName,
        spec: &ResolvedSpec,
    ) -> Result<Applied, OpError> {
        let argv = ["config", "apply", "--mode", "push", "--spec", "-", "--events", "-"];
        let said = self.on_node(transport, &argv, spec.to_canonical_json().into_bytes()).await?;
        let lines = String::from_utf8_lossy(&said.stdout);
        let last = lines.lines().rev().find_map(|line| serde_json::from_str::<Applied>(line).ok());
        last.ok_or_else(|| {
            let how = said.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            let why = said.complaint();
            broken(format!("`stead config apply` on {name} ended with {how}: {why}"))
        })
    }

    /// Runs stead on a node, brought there first if it is not there, with `input` on its standard input.
    pub(crate) async fn on_node(
        &self,
        transport: &dyn Transport,
        argv: &[&str],
        input: Vec<u8>,
    ) -> Result<Said, OpError> {
        let mut sha256 = self.program_sha256().await?.to_string();
        for last_try in [false, true] {
            let said = reach::run(transport, start(&sha256, argv, input.clone())).await?;
            if said.code != Some(ABSENT) {
                return Ok(said);
            }
            if last_try {
                break;
            }
            sha256 = self.bring_program(transport, &said).await?;
        }
        Err(OpError::operation("the program was brought to the node and is not there"))
    }

    /// Brings the program to the machine that said that it is not there, and returns its hash.
    async fn bring_program(&self, transport: &dyn Transport, said: &Said) -> Result<String, OpError> {
        let text = String::from_utf8_lossy(&said.stdout);
        // Its login may have said something first.
        let mut last = text.trim_end_matches('\n').rsplitn(4, '\n');
        let (Some(base), Some(packing), Some(system)) = (last.next(), last.next(), last.next()) else {
            return Err(OpError::operation(format!("it did not say what it is: {}", said.complaint())));
        };
        let by = ["sh", "-c", AS_OWNER, "stead"];
        let host = transport.spec().address();
        let to = Destination { host: &host, system, packing, base, by: &by };
        self.carrier.bring(transport, &to).await
    }

    /// Stops the agent of a node that needs none, and makes its tokens worthless. Whether there was one.
    pub(super) async fn leave_pull(
        &self,
        cx: &OpContext,
        transport: &dyn Transport,
        name: &NodeName,
    ) -> Result<bool, OpError> {
        let entry = self.entry(name);
        let Some(entry) = entry.filter(|entry| self.may_have_tokens(cx, entry)) else { return Ok(false) };
        let stopped = self.disable_agent(transport, name).await?;
        if stopped || entry.jti.is_some() {
            self.revoke_tokens(name, entry.jti, None).await?;
        }
        Ok(stopped)
    }

    /// Stops the agent of a node, if it has one. Whether it had.
    pub(super) async fn disable_agent(
        &self,
        transport: &dyn Transport,
        name: &NodeName,
    ) -> Result<bool, OpError> {
        let said = self.on_node(transport, &["agent", "disable"], Vec::new()).await?;
        match said.code {
            Some(0) => {
                self.unclaim(name);
                Ok(said.stdout.starts_with(b"changed"))
            }
            Some(_) | None => {
                Err(OpError::operation(format!("stopping the agent of {name}: {}", said.complaint())))
            }
        }
    }
}

/// Returns the command that starts the stead of this hash.
pub(crate) fn start(sha256: &str, argv: &[&str], input: Vec<u8>) -> Command {
    let mut words = vec!["sh", "-c", START, "stead", sha256];
    words.extend(argv);
    Command { stdin: Stdin::Bytes(input), ..Command::new(words) }
}

/// Returns where the SSH of a node listens after its spec was applied; none: where it did before.
fn port_after(applied: &Applied, spec: &ResolvedSpec) -> Option<u16> {
    if applied.success && applied.error.is_none() {
        return Some(spec.access.security.ssh.port);
    }
    // Something after it went wrong.
    let moved = applied.changes.iter().find(|change| change.path == "security.ssh.port")?;
    moved.after.as_u64().and_then(|port| u16::try_from(port).ok())
}

/// Refuses what did not become of a node.
fn well(name: &NodeName, applied: Applied) -> Result<Applied, OpError> {
    match &applied.error {
        Some(error) => Err(OpError {
            changed: applied.changed > 0,
            ..OpError::operation(format!("{}: {}", error.code, error.message))
        }),
        None if !applied.success => Err(broken(format!("{name} did not become what its spec wants"))),
        None => Ok(applied),
    }
}

/// Returns the error of something that left changes behind.
fn broken(message: String) -> OpError {
    OpError { changed: true, ..OpError::operation(message) }
}
