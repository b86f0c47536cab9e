//! Whether an agent could run roles: connected to, looked at, nothing uploaded.

use std::time::Duration;

use serde::Serialize;
use stead_model::transport::TransportSpec;
use stead_runner::transport::{Connect, TransportError, TransportErrorKind};

use crate::doctor::CheckStatus;
use crate::examine::{self, Findings};

/// An agent to look at.
pub struct AgentQuestion<'a> {
    /// How it is reached.
    pub transport: &'a TransportSpec,
    /// Where roles should work.
    pub workdir: Option<&'a str>,
    /// The hash of the program that would be uploaded.
    pub sha256: &'a str,
    /// Whether there is a program for a machine, by the name binaries are kept under.
    pub has_binary: &'a (dyn Fn(&str) -> bool + Sync),
    /// How long connecting and looking may take.
    pub timeout: Duration,
}

impl std::fmt::Debug for AgentQuestion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentQuestion")
            .field("transport", &self.transport.to_string())
            .finish_non_exhaustive()
    }
}

/// What `stead agent check` tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentCheck {
    /// Whether roles could run there.
    pub ok: bool,
    /// How it is reached, secrets masked.
    pub transport: String,
    /// Whether it was reached.
    pub connected: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_error: Option<String>,
    /// Whether a `stead` is there.
    pub stead_found: bool,
    /// Which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_os: Option<String>,
    /// Its architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_arch: Option<String>,
    /// How long a command takes there and back.
    pub latency_ms: Option<f64>,
    /// Its clock less this one's.
    pub clock_offset_ms: Option<f64>,
    /// What was looked at, in order.
    pub checks: Vec<AgentStep>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentStep {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub status: CheckStatus,
    /// What was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// An agent in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Roles could run there.
    Ok,
    /// It was not reached.
    Unreachable,
    /// It was, and they could not.
    Error,
}

impl Health {
    /// Returns the word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unreachable => "unreachable",
            Self::Error => "error",
        }
    }
}

const STEPS: [&str; 5] =
    ["connectivity", "stead_installed", "system_info", "workdir_writable", "pcap_capable"];

impl AgentCheck {
    /// Returns it in one word.
    pub fn health(&self) -> Health {
        match (self.connected, self.ok) {
            (_, true) => Health::Ok,
            (false, false) => Health::Unreachable,
            (true, false) => Health::Error,
        }
    }

    fn unreached(transport: &TransportSpec, error: &TransportError) -> Self {
        let steps = STEPS.iter().enumerate().map(|(i, name)| match i {
            0 => AgentStep { name, status: CheckStatus::Fail, detail: Some(error.message.clone()) },
            _ => AgentStep { name, status: CheckStatus::Skip, detail: Some("not connected".to_owned()) },
        });
        Self {
            ok: false,
            transport: transport.to_string(),
            connected: false,
            connect_error: Some(error.message.clone()),
            stead_found: false,
            version: None,
            remote_os: None,
            remote_arch: None,
            latency_ms: None,
            clock_offset_ms: None,
            checks: steps.collect(),
        }
    }

    /// Returns the check of an agent that lets us in and then runs nothing.
    fn silent(transport: &TransportSpec, error: &TransportError) -> Self {
        let mut check = Self::unreached(transport, error);
        (check.connected, check.connect_error) = (true, None);
        for (step, (status, detail)) in check.checks.iter_mut().zip([
            (CheckStatus::Pass, "connected"),
            (CheckStatus::Skip, "not known"),
            (CheckStatus::Fail, error.message.as_str()),
            (CheckStatus::Skip, "not known"),
            (CheckStatus::Skip, "not known"),
        ]) {
            (step.status, step.detail) = (status, Some(detail.to_owned()));
        }
        check
    }

    fn reached(transport: &TransportSpec, found: &Findings, has_binary: bool) -> Self {
        let step = |name, is_good: bool, detail: String| AgentStep {
            name,
            status: if is_good { CheckStatus::Pass } else { CheckStatus::Fail },
            detail: Some(detail),
        };
        let installed = match (&found.stead, has_binary) {
            (Some((path, version)), _) => {
                format!("{path} ({})", version.as_deref().unwrap_or("version unknown"))
            }
            (None, true) => "not there; it will be uploaded when it is needed".to_owned(),
            (None, false) => format!("not there, and there is no program for {} to upload", found.uname),
        };
        let is_usable = found.stead.is_some() || has_binary;
        let user = found.user.as_deref().unwrap_or("unknown");
        let steps = vec![
            step(STEPS[0], true, format!("{:.1} ms", found.latency_ms)),
            step(STEPS[1], is_usable, installed),
            step(STEPS[2], true, format!("{}, account {user}", found.uname)),
            match &found.workdir {
                Ok(path) => step(STEPS[3], true, path.clone()),
                Err(refused) => step(STEPS[3], false, refused.join("; ")),
            },
            match &found.capture {
                Some(how) => step(STEPS[4], true, how.clone()),
                None => step(
                    STEPS[4],
                    false,
                    "no right to open a packet socket, no tcpdump or dumpcap".to_owned(),
                ),
            },
        ];
        let version = found.stead.as_ref().and_then(|(_, version)| version.clone());
        Self {
            ok: is_usable && found.workdir.is_ok(),
            transport: transport.to_string(),
            connected: true,
            connect_error: None,
            stead_found: found.stead.is_some(),
            version: version.map(|text| text.strip_prefix("stead ").unwrap_or(&text).to_owned()),
            remote_os: found.os(),
            remote_arch: found.arch(),
            latency_ms: Some(found.latency_ms),
            clock_offset_ms: found.clock_offset_ms,
            checks: steps,
        }
    }
}

/// Returns the program that runs local roles: this one, whatever the PATH has.
fn this_program() -> Option<(String, Option<String>)> {
    let path = std::env::current_exe().ok()?;
    Some((path.display().to_string(), Some(stead_runner::versions().stead_version)))
}

/// Connects to an agent and looks at it.
pub async fn check(connect: &dyn Connect, question: &AgentQuestion<'_>) -> AgentCheck {
    let spec = question.transport;
    let looking = async {
        let transport = match connect.connect(spec).await {
            Ok(transport) => transport,
            Err(error) => return AgentCheck::unreached(spec, &error),
        };
        match examine::examine(&*transport, question.workdir, question.sha256, None).await {
            Ok(mut found) => {
                if *spec == TransportSpec::Local {
                    found.stead = this_program();
                }
                let has_binary = found.binary_name().is_some_and(|name| (question.has_binary)(&name));
                AgentCheck::reached(spec, &found, has_binary)
            }
            Err(error) => AgentCheck::silent(spec, &error),
        }
    };
    match tokio::time::timeout(question.timeout, looking).await {
        Ok(check) => check,
        Err(_) => {
            let limit = stead_model::duration::to_exact(question.timeout);
            let error =
                TransportError::new(TransportErrorKind::TimedOut, format!("no answer within {limit}"));
            AgentCheck::unreached(spec, &error)
        }
    }
}
