//! A target: whether it is reached, and what is there for the executor.

use std::ffi::OsString;
use std::time::Duration;

use stead_model::transport::{Become, BecomeMethod, TransportSpec};
use stead_runner::remote::Account;
use stead_runner::transport::{Connect, Exit, Transport, TransportError, TransportErrorKind};

use super::{Check, CheckStatus};
use crate::examine::{self, Findings};

/// A target to look at.
pub struct Target<'a> {
    /// How it is reached.
    pub transport: &'a TransportSpec,
    /// Where its user wants the executor to live.
    pub workdir: Option<&'a str>,
    /// Who operations run as, with the password.
    pub account: Option<(&'a Become, Option<String>)>,
    /// The hash of the program that would be uploaded.
    pub sha256: &'a str,
    /// Whether there is a program for a machine, by the name binaries are kept under.
    pub has_binary: &'a (dyn Fn(&str) -> bool + Sync),
    /// How long it may take.
    pub patience: Duration,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("transport", &self.transport.to_string()).finish_non_exhaustive()
    }
}

/// Returns the checks of a target. It is connected to, and nothing stays on it.
pub async fn target(connect: &dyn Connect, target: &Target<'_>) -> Vec<Check> {
    let looking = async {
        let transport = match connect.connect(target.transport).await {
            Ok(transport) => transport,
            Err(error) => return unreached(&error),
        };
        let mut checks: Vec<Check> = match target.transport {
            TransportSpec::Ssh(_) => STEPS.iter().map(|step| Check::pass(*step, "ok")).collect(),
            TransportSpec::Local => Vec::new(),
        };
        let account = target
            .account
            .as_ref()
            .map(|(to, password)| Account { to: (*to).clone(), password: password.clone() });
        let mut changes = None;
        if let Some(account) = &account {
            changes = Some(change_account(&*transport, account).await);
        }
        // What the executor needs is looked for as the account that it will run as, if that is to be had.
        let is_given = changes.as_ref().is_some_and(|check| check.status == CheckStatus::Pass);
        let account = account.as_ref().filter(|_| is_given);
        match examine::examine(&*transport, target.workdir, target.sha256, account).await {
            Ok(findings) => checks.extend(reached(&findings, target.has_binary)),
            Err(error) => {
                let fix = "look at the account's login shell and its start-up files";
                checks.push(Check::fail("shell", error.message, fix));
                return checks;
            }
        }
        checks.extend(changes);
        checks
    };
    match tokio::time::timeout(target.patience, looking).await {
        Ok(checks) => checks,
        Err(_) => {
            let seconds = target.patience.as_secs();
            vec![Check::fail(
                "connection",
                format!("no answer within {seconds} s"),
                "try again, or look at the machine",
            )]
        }
    }
}

/// Tries `sudo` or `doas` with a program that does nothing.
async fn change_account(transport: &dyn Transport, account: &Account) -> Check {
    let user = account.to.user.as_deref().unwrap_or("root");
    let program = match account.to.method {
        BecomeMethod::Sudo => "sudo",
        BecomeMethod::Doas => "doas",
    };
    let argv: Vec<OsString> = ["id", "-un"].iter().map(OsString::from).collect();
    let ran = examine::run(transport, examine::as_account(account, argv)).await;
    let why = match ran {
        Ok((Exit::Code(0), stdout, _)) if stdout.trim_ascii() == user.as_bytes() => {
            return Check::pass("become", format!("{program} gives the account {user}"));
        }
        Ok((_, _, stderr)) => {
            let said = String::from_utf8_lossy(&stderr);
            let last =
                said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it does not say why").trim();
            last.to_owned()
        }
        Err(error) => error.message,
    };
    let fix = "allow the account this without a password, or set `become_password` of the host";
    Check::fail("become", format!("{program} does not give the account {user}: {why}"), fix)
}

/// A clock that is further away than this confuses certificates, tokens and people.
const LARGEST_SKEW_MS: f64 = 5_000.0;

/// The steps of getting to a machine, in order.
const STEPS: [&str; 3] = ["connection", "host-key", "login"];

/// Returns the checks of a machine that could not be reached: the step that failed, those before it and those after.
fn unreached(error: &TransportError) -> Vec<Check> {
    use TransportErrorKind as Kind;
    let (failed, fix) = match error.kind {
        Kind::NameNotFound => (0, "check the host's name, or write its address"),
        Kind::Refused => (0, "check address and port, and whether an SSH server listens there"),
        Kind::TimedOut => (0, "check address, port and firewall, or raise `connect_timeout`"),
        Kind::Lost => (0, "try again; if it stays so, look at the server's log"),
        Kind::HostKey => (1, "verify the key, then `known_hosts=`, `host_key=` or `host_keys=accept-new`"),
        Kind::Login => (2, "check the user, `key=`, the agent, and the account's authorized_keys"),
        Kind::Invalid | Kind::Failed => (0, "correct the transport"),
    };
    let steps = STEPS.iter().enumerate().map(|(i, step)| match i.cmp(&failed) {
        std::cmp::Ordering::Less => Check::pass(*step, "ok"),
        std::cmp::Ordering::Equal => Check::fail(*step, error.message.clone(), fix),
        std::cmp::Ordering::Greater => Check::skip(*step, format!("after {}", STEPS[failed])),
    });
    steps.collect()
}

/// Returns the checks of a machine that was looked at.
fn reached(findings: &Findings, has_binary: &(dyn Fn(&str) -> bool + Sync)) -> Vec<Check> {
    let has_binary = findings.binary_name().is_some_and(|name| has_binary(&name));
    let mut checks = Vec::new();
    if findings.noise == 0 {
        checks.push(Check::pass("shell", "programs run and say nothing of their own"));
    } else {
        let detail = format!("the login shell's start-up files print {} bytes", findings.noise);
        checks.push(Check::skip("shell", detail).fix("make them silent for shells that are not interactive"));
    }
    let user = findings.user.as_deref().unwrap_or("unknown");
    let uid = findings.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
    checks.push(Check::pass("system", format!("{}, account {user} (uid {uid})", findings.uname)));
    checks.push(match &findings.base {
        Ok(base) => Check::pass("base-directory", format!("{base} can be written and may run programs")),
        Err(refused) => {
            let fix = "set `workdir` of the host to a directory of the account that may run programs";
            Check::fail("base-directory", refused.join("; "), fix)
        }
    });
    checks.push(match (&findings.stead, has_binary) {
        (Some((path, version)), _) => {
            Check::pass("binary", format!("{path} ({})", version.as_deref().unwrap_or("version unknown")))
        }
        (None, true) => {
            let how = findings
                .unpacks
                .as_deref()
                .map_or_else(|| "as it is".to_owned(), |how| format!("packed ({how})"));
            Check::pass("binary", format!("not there yet; it will be uploaded {how}"))
        }
        (None, false) => {
            let fix =
                "put a stead for it into $STEAD_BINARIES/ARCH/stead or the state directory's bin/ARCH/stead";
            Check::fail("binary", format!("there is none for {}", findings.uname), fix)
        }
    });
    checks.push(match findings.clock_offset_ms {
        Some(offset) if offset.abs() <= LARGEST_SKEW_MS => {
            Check::pass("clock", format!("{offset:.0} ms from this machine's"))
        }
        Some(offset) => {
            let detail = format!("{:.1} s from this machine's", offset / 1000.0);
            Check::fail("clock", detail, "set the time of both machines by NTP")
        }
        None => Check::skip("clock", "the machine's `date` does not say"),
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckStatus;

    fn statuses(checks: &[Check]) -> Vec<(&str, CheckStatus)> {
        checks.iter().map(|check| (check.name.as_str(), check.status)).collect()
    }

    #[test]
    fn the_step_that_failed_is_named() {
        use CheckStatus::{Fail, Pass, Skip};
        for (kind, expected) in [
            (TransportErrorKind::Refused, [Fail, Skip, Skip]),
            (TransportErrorKind::HostKey, [Pass, Fail, Skip]),
            (TransportErrorKind::Login, [Pass, Pass, Fail]),
        ] {
            let checks = unreached(&TransportError::new(kind, "why"));
            assert_eq!(checks.iter().map(|check| check.status).collect::<Vec<_>>(), expected, "{kind:?}");
        }
    }

    #[test]
    fn what_was_found_is_judged() {
        let good = Findings {
            uname: "Linux x86_64".to_owned(),
            uid: Some(0),
            user: Some("root".to_owned()),
            base: Ok("/var/lib/stead".to_owned()),
            workdir: Ok("/root/.cache/stead".to_owned()),
            stead: None,
            capture: None,
            unpacks: Some("zstd".to_owned()),
            latency_ms: 1.0,
            clock_offset_ms: Some(-20.0),
            noise: 0,
        };
        assert!(
            reached(&good, &|name| name == "x86_64").iter().all(|check| check.status == CheckStatus::Pass)
        );
        let bad = Findings {
            base: Err(vec!["/a: noexec".to_owned()]),
            clock_offset_ms: Some(60_000.0),
            noise: 12,
            ..good
        };
        let checks = reached(&bad, &|_| false);
        let failed: Vec<&str> = statuses(&checks)
            .into_iter()
            .filter(|(_, status)| *status == CheckStatus::Fail)
            .map(|(name, _)| name)
            .collect();
        assert_eq!(failed, ["base-directory", "binary", "clock"]);
        assert!(
            checks.iter().filter(|check| check.status == CheckStatus::Fail).all(|check| check.fix.is_some())
        );
    }
}
