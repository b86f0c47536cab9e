//! Opening a session: look at the target, bring the program if it is not there, attach, say hello.

use std::time::Duration;

use stead_model::executor::{
    BANNER, FrameBuffer, FrameKind, Hello, NOISE, PROTOCOL, Received, Reply, Request, Welcome, target_arch,
    write,
};
use stead_model::transport::TargetOs;
use stead_model::{ErrorClass, HostName, RunId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock;
use crate::operation::OpError;
use crate::transport::{Running, Transport, TransportError};

use super::become_account::{Account, asks_again, command};
use super::binary::{Binaries, Binary, Packing, own_arch};
use super::bring;
use super::session::keep_last;

const PROBE: &str = include_str!("probe.sh");

/// How long an executor that is there may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is known of a host before it is reached.
pub(crate) struct Opening<'a> {
    pub(crate) host: &'a HostName,
    pub(crate) run: &'a RunId,
    pub(crate) workdir: Option<&'a str>,
    pub(crate) root: Option<&'a str>,
    pub(crate) account: Option<&'a Account>,
    /// What kind of system it is, if that is not to be looked for.
    pub(crate) os: Option<TargetOs>,
    pub(crate) binaries: &'a Binaries,
    pub(crate) lease: Duration,
    /// None: nothing is known of an earlier connection.
    pub(crate) received: Option<Vec<Received>>,
}

/// A connection to a session.
pub(crate) struct Attached {
    pub(crate) running: Running,
    pub(crate) inbox: FrameBuffer,
    pub(crate) welcome: Welcome,
    /// What came before the executor's first line.
    pub(crate) noise: usize,
    /// Whether the program had to be brought there.
    pub(crate) uploaded: bool,
    /// How long the hello took there and back.
    pub(crate) latency: Duration,
    /// The clock there less the one here, in microseconds.
    pub(crate) clock_offset_micros: i64,
    /// Keeps the connection; dropped last.
    pub(crate) _transport: std::sync::Arc<dyn Transport>,
}

/// What the probe found.
#[derive(Debug, Default)]
struct Found {
    system: String,
    base: String,
    packing: Option<String>,
    bad: Vec<String>,
    end: String,
    noise: usize,
}

/// Returns the error of a transport as an operation's. Which host it is about is told by whose row it is.
pub(crate) fn unreachable(error: &TransportError) -> OpError {
    let in_vain = error.class() == ErrorClass::Unreachable && !error.may_pass();
    OpError { in_vain, ..OpError::new(error.class(), error.to_string()) }
}

impl Opening<'_> {
    /// Opens the session over `transport`.
    pub(crate) async fn open(&self, transport: std::sync::Arc<dyn Transport>) -> Result<Attached, OpError> {
        let mut binary = self.binaries.for_arch(&own_arch(), self.host.as_str()).await?;
        let mut fits = own_uname();
        let mut uploaded = false;
        // Each round brings it nearer: another kind of machine, then the program, then the session.
        for _ in 0..4 {
            let (running, inbox, found) = self.probe(&*transport, &binary, &fits, uploaded).await?;
            match found.end.as_str() {
                "present" => {
                    let attached = self.hello(transport, running, inbox, found.noise, &binary).await?;
                    return Ok(Attached { uploaded, ..attached });
                }
                "foreign" => {
                    let arch = target_arch(&found.system).ok_or_else(|| {
                        OpError::permanent(format!("`{}` is no machine stead knows", found.system))
                    })?;
                    binary = self.binaries.for_arch(&arch, self.host.as_str()).await?;
                    fits.clone_from(&found.system);
                }
                "absent" if !uploaded => {
                    self.upload(&*transport, &binary, &found).await?;
                    uploaded = true;
                }
                "nowhere" => {
                    let places = found.bad.join("; ");
                    return Err(OpError::permanent(format!(
                        "no directory for the executor: {places}; set `workdir` on the host"
                    )));
                }
                _ => break,
            }
        }
        Err(OpError::operation("the executor was brought there and is not found"))
    }

    /// Looks at the target. If the program is there it is running afterwards.
    async fn probe(
        &self,
        transport: &dyn Transport,
        binary: &Binary,
        fits: &str,
        clean: bool,
    ) -> Result<(Running, FrameBuffer, Found), OpError> {
        let clean = if clean { "clean" } else { "" };
        let workdir = self.workdir.unwrap_or_default();
        let os = match self.os {
            Some(TargetOs::Linux) => "Linux",
            Some(TargetOs::Darwin) => "Darwin",
            None => "",
        };
        let arguments =
            ["/bin/sh", "-c", PROBE, "stead", workdir, &binary.sha256, fits, self.run.as_str(), clean, os];
        let (command, input) = command(arguments.iter().map(Into::into).collect(), self.account);
        let reached = transport.exec(command).await.map_err(|error| unreachable(&error))?;
        let mut running = reached;
        self.give(&mut running, &input).await?;
        let mut inbox = FrameBuffer::default();
        let mut found = Found::default();
        let mut buffer = vec![0; 4 << 10];
        let mut begun = false;
        let mut answered = 0;
        let mut errors = [0; 512];
        let mut said = String::new();
        let mut asking = self.account.filter(|account| account.password.is_some());
        let mut deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            while let Some(line) = take_line(&mut inbox) {
                let length = line.len() + 1;
                let line = String::from_utf8_lossy(&line).into_owned();
                let found_line = probe_line(&line);
                begun |= found_line.is_some();
                *(if begun { &mut answered } else { &mut found.noise }) += length;
                let Some((key, value)) = found_line else { continue };
                match key {
                    "system" => found.system = value.to_owned(),
                    "base" => found.base = value.to_owned(),
                    "packing" => found.packing = Some(value.to_owned()),
                    "bad" => found.bad.push(value.to_owned()),
                    "end" => {
                        found.end = value.to_owned();
                        return Ok((running, inbox, found));
                    }
                    _ => {}
                }
            }
            if begun {
                // Who changes the account is through; errors from now on are for those who come after.
                asking = None;
                said.clear();
            }
            if begun && answered + inbox.rest().len() > NOISE {
                return Err(OpError::operation(format!(
                    "it says more than {NOISE} bytes about itself before the executor begins"
                )));
            }
            if !begun && found.noise + inbox.rest().len() > NOISE {
                return Err(OpError::operation(format!(
                    "its login prints more than {NOISE} bytes before a command begins"
                )));
            }
            tokio::select! {
                // Who asks does so before anything else is said.
                biased;
                () = tokio::time::sleep_until(deadline) => {
                    let message = format!("no answer within {} s", PATIENCE.as_secs());
                    return Err(OpError::new(ErrorClass::Unreachable, message));
                }
                read = running.stderr.read(&mut errors), if asking.is_some() => match (read, asking) {
                    (Ok(n @ 1..), Some(account)) => {
                        keep_last(&mut said, errors.get(..n).unwrap_or_default());
                        if asks_again(&said) {
                            return Err(account.refusal(&said));
                        }
                    }
                    (Ok(_) | Err(_), _) => asking = None,
                },
                read = running.stdout.read(&mut buffer) => match read {
                    Ok(n @ 1..) => {
                        inbox.push(buffer.get(..n).unwrap_or_default());
                        deadline = tokio::time::Instant::now() + PATIENCE;
                    }
                    Ok(_) | Err(_) => return Err(self.silent(running, begun, said).await),
                },
            }
        }
    }

    async fn give(&self, running: &mut Running, input: &[u8]) -> Result<(), OpError> {
        let Some(stdin) = &mut running.stdin else { return Ok(()) };
        let given = async {
            stdin.write_all(input).await?;
            stdin.flush().await
        };
        // A program that does not read ends by itself, and says why.
        given.await.or(Ok(()))
    }

    /// Returns why the probe said nothing more; `said` is what was heard of errors so far.
    async fn silent(&self, mut running: Running, begun: bool, said: String) -> OpError {
        let said = said + &last_lines(&mut running).await;
        match self.account {
            Some(account) if !begun => account.refusal(&said),
            _ if said.is_empty() => {
                OpError::new(ErrorClass::Unreachable, "the connection ended while the host was looked at")
            }
            _ => OpError::operation(said),
        }
    }

    async fn upload(&self, transport: &dyn Transport, binary: &Binary, found: &Found) -> Result<(), OpError> {
        let packing = found.packing.as_deref().map_or(Packing::None, Packing::parse);
        let program = self.binaries.packed(binary, packing).await?;
        let (command, input) = command(bring::argv(&found.base, &binary.sha256, packing), self.account);
        bring::upload(transport, command, input, &program).await
    }

    async fn hello(
        &self,
        transport: std::sync::Arc<dyn Transport>,
        mut running: Running,
        mut inbox: FrameBuffer,
        noise: usize,
        binary: &Binary,
    ) -> Result<Attached, OpError> {
        let hello = Hello {
            protocol: vec![PROTOCOL],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: self.run.clone(),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            root: self.root.map(str::to_owned),
            fresh: self.received.is_none(),
            host: self.host.to_string(),
            received: self.received.clone().unwrap_or_default(),
            workdir: self.workdir.map(str::to_owned),
        };
        let mut bytes = Vec::new();
        write(&mut bytes, 0, &Request::Hello(hello)).map_err(|error| OpError::invalid(error.to_string()))?;
        let mut has_banner = false;
        let mut buffer = vec![0; 4 << 10];
        let mut asked = (clock::instant(), clock::now());
        loop {
            if !has_banner && inbox.rest().len() >= BANNER.len() {
                if !inbox.rest().starts_with(BANNER) {
                    return Err(OpError::operation("what answers is no executor"));
                }
                inbox.skip(BANNER.len());
                has_banner = true;
                asked = (clock::instant(), clock::now());
                self.give(&mut running, &bytes).await?;
            }
            let bad = |error: &dyn std::fmt::Display| OpError::operation(error.to_string());
            let frame = if has_banner { inbox.next_frame().map_err(|error| bad(&error))? } else { None };
            if let Some(frame) = frame.filter(|frame| frame.kind == FrameKind::Json) {
                return match Reply::read(&frame.body).map_err(|error| bad(&error))? {
                    Reply::Hello(welcome) => {
                        self.check_version(&welcome, binary)?;
                        let latency = clock::instant().duration_since(asked.0);
                        let half = i64::try_from(latency.as_micros() / 2).unwrap_or(0);
                        Ok(Attached {
                            clock_offset_micros: welcome.time_micros - (asked.1.as_micros() + half),
                            latency,
                            uploaded: false,
                            running,
                            inbox,
                            welcome,
                            noise,
                            _transport: transport,
                        })
                    }
                    Reply::Error { message, class } => {
                        Err(OpError::new(class.unwrap_or(ErrorClass::Operation), message))
                    }
                    other @ (Reply::Out { .. }
                    | Reply::Result(_)
                    | Reply::Want { .. }
                    | Reply::Keep(_)
                    | Reply::Started { .. }
                    | Reply::Done { .. }
                    | Reply::Role { .. }
                    | Reply::Probe(_)
                    | Reply::Site(_)
                    | Reply::Lock { .. }
                    | Reply::Beat) => Err(bad(&format_args!("an answer out of turn: {other:?}"))),
                };
            }
            // The session may first have to end what an earlier driver left, within that run's grace period.
            let read = tokio::time::timeout(PATIENCE, running.stdout.read(&mut buffer)).await;
            match read {
                Ok(Ok(n)) if n > 0 => inbox.push(buffer.get(..n).unwrap_or_default()),
                Ok(_) | Err(_) => {
                    let said = last_lines(&mut running).await;
                    let message = format!("the executor did not answer {said}");
                    return Err(OpError::new(ErrorClass::Unreachable, message.trim_end().to_owned()));
                }
            }
        }
    }

    fn check_version(&self, welcome: &Welcome, binary: &Binary) -> Result<(), OpError> {
        let own = env!("CARGO_PKG_VERSION");
        if welcome.version == own {
            return Ok(());
        }
        Err(OpError::permanent(format!(
            "{} is stead {}, and {own} is needed",
            binary.path.display(),
            welcome.version
        )))
    }
}

fn own_uname() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.machine().to_string_lossy())
}

fn take_line(inbox: &mut FrameBuffer) -> Option<Vec<u8>> {
    let end = inbox.rest().iter().position(|byte| *byte == b'\n')?;
    let line = inbox.rest().get(..end)?.to_vec();
    inbox.skip(end + 1);
    Some(line)
}

fn probe_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("STEAD-PROBE ")?.split_once(' ')
}

/// Returns the end of what a program said of errors.
pub(super) async fn last_lines(running: &mut Running) -> String {
    let mut said = Vec::new();
    let mut limited = (&mut running.stderr).take(64 << 10);
    // One that says nothing more but does not end either has said all it will.
    drop(tokio::time::timeout(Duration::from_secs(2), limited.read_to_end(&mut said)).await);
    let said = String::from_utf8_lossy(&said);
    stead_model::tail::last_words(&said).join("\n")
}
