//! `node.push`: the driver applies a node's spec over one SSH connection.

use std::path::PathBuf;

use stead_model::node::{Applied, NodeStatus, path};
use stead_model::site::ResolvedSpec;
use stead_model::site::manifest::Mode;
use stead_model::{ErrorClass, NodeName};
use stead_runner::operation::{OpContext, OpError, Outcome};
use stead_runner::transport::{Command, FileMeta, Source, Stdin, Transport};
use tokio::time::timeout;

use super::NodesSurroundings;
use super::reach::{self, Said};

/// Starts the program of the hash that is the first argument, with the others; says so if it is not there.
///
/// Everything lies below the node's root, which a sandbox names. Who is not root on a whole machine becomes it.
const START: &str = r#"root=${STEAD_ROOT:-}
program=$root/var/lib/stead/bin/$1/stead
shift
[ -x "$program" ] || { uname -m; exit 97; }
if [ -z "$root" ] && [ "$(id -u)" != 0 ]; then exec sudo -n -- "$program" "$@"; fi
exec "$program" "$@""#;

/// What [`START`] exits with when the program is not there.
const ABSENT: i32 = 97;

/// Puts an uploaded program in its place: from, directory, name.
const INSTALL: &str = r#"as=
if [ "$(id -u)" != 0 ]; then as='sudo -n'; fi
$as mkdir -p -- "$2" && $as chmod 0755 -- "$1" && $as mv -f -- "$1" "$2/stead""#;

impl NodesSurroundings {
    /// Applies the spec of a node over SSH.
    pub(super) async fn push(&self, _: &OpContext, name: &NodeName) -> Result<Outcome, OpError> {
        let node = self.node(name.as_str())?;
        let spec = self.spec_of(&node)?.ok_or_else(|| OpError::invalid(format!("{name} has no spec")))?;
        let transport = self.connect(name).await?;
        let limit = self.limit(|limits| limits.config);
        let applied =
            timeout(limit, self.apply_over(&*transport, name, &spec)).await.unwrap_or_else(|_| {
                let within = stead_model::duration::to_exact(limit);
                let message = format!("{name} was not configured within {within}");
                Err(OpError { changed: true, ..OpError::new(ErrorClass::Timeout, message) })
            })?;
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
        let stopped = self.leave_pull(&*transport, name).await?;
        let changed = applied.changed > 0 || stopped;
        let is_done = !node.known.is_hosting;
        self.update(name, changed, |entry| {
            (entry.mode, entry.spec) = (Mode::Push, Some(spec.spec.clone()));
            entry.spec_digest = Some(applied.spec_digest.clone());
            entry.state_digest = applied.state_digest.clone();
            entry.jti = None;
            if is_done {
                (entry.status, entry.error) = (NodeStatus::Completed, None);
            }
        })
        .await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Has the node's own stead apply `spec`, and returns what became of it.
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
        let broken = |message: String| OpError { changed: true, ..OpError::operation(message) };
        let Some(applied) = last else {
            let how = said.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            let why = said.complaint();
            return Err(broken(format!("`stead config apply` on {name} ended with {how}: {why}")));
        };
        match applied.error {
            Some(error) => Err(OpError {
                changed: applied.changed > 0,
                ..OpError::operation(format!("{}: {}", error.code, error.message))
            }),
            None if !applied.success => Err(broken(format!("{name} did not become what its spec wants"))),
            None => Ok(applied),
        }
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
            let arch = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            sha256 = self.bring_program(transport, &arch).await?;
        }
        Err(OpError::operation("the program was brought to the node and is not there"))
    }

    /// Brings the program for machines called `arch` to a node, and returns its hash.
    async fn bring_program(&self, transport: &dyn Transport, arch: &str) -> Result<String, OpError> {
        let program = match arch == std::env::consts::ARCH {
            true => self.parts.program.clone(),
            false => self.parts.state_dir.join("bin").join(arch).join("stead"),
        };
        if !program.is_file() {
            let place = program.display();
            return Err(OpError::permanent(format!("the node is {arch}: put a stead for it at {place}")));
        }
        let hashed = program.clone();
        let hashing =
            tokio::task::spawn_blocking(move || stead_bundle::hash_file(&hashed, &mut vec![0; 1 << 16]));
        let hashed = hashing.await.map_err(|_| OpError::operation("hashing the program was cut off"))?;
        let sha256 = hashed.map_err(|error| OpError::io("hashing the program", &error))?.to_string();
        let lost =
            |error: stead_runner::transport::TransportError| OpError::new(error.class(), error.to_string());
        let temporary = PathBuf::from(format!("/tmp/.stead-{sha256}"));
        let meta = FileMeta { mode: Some(0o700), ..FileMeta::default() };
        transport.put(Source::File(program), &temporary, meta).await.map_err(lost)?;
        let directory = format!("{}/{sha256}", path::PROGRAMS);
        let argv = ["sh", "-c", INSTALL, "stead", &temporary.display().to_string(), &directory];
        let said = reach::run(transport, Command::new(argv)).await?;
        match said.code {
            Some(0) => Ok(sha256),
            Some(_) | None => Err(OpError::operation(format!("installing stead: {}", said.complaint()))),
        }
    }

    /// Stops the agent of a node that fetched its spec before. Whether there was one.
    async fn leave_pull(&self, transport: &dyn Transport, name: &NodeName) -> Result<bool, OpError> {
        let had = self.entry(name).is_some_and(|entry| entry.jti.is_some() || entry.mode != Mode::Push);
        if !had {
            return Ok(false);
        }
        let said = self.on_node(transport, &["agent", "disable"], Vec::new()).await?;
        match said.code {
            Some(0) => Ok(true),
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
