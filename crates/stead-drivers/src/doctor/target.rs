//! What connecting to a target, and looking at it, says as checks.

use stead_runner::transport::{TransportError, TransportErrorKind};

use super::Check;
use crate::examine::Findings;

/// A clock that is further away than this confuses certificates, tokens and people.
const LARGEST_SKEW_MS: f64 = 5_000.0;

/// The steps of getting to a machine, in order.
const STEPS: [&str; 3] = ["connection", "host-key", "login"];

/// Returns the checks of a machine that could not be reached: the step that failed, those before it and those after.
pub fn unreached(error: &TransportError) -> Vec<Check> {
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

/// Returns the checks of a machine that was reached and looked at; `has_binary`: this driver has a program for it.
pub fn reached(findings: &Findings, has_binary: bool) -> Vec<Check> {
    let mut checks: Vec<Check> = STEPS.iter().map(|step| Check::pass(*step, "ok")).collect();
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
        assert!(reached(&good, true).iter().all(|check| check.status == CheckStatus::Pass));
        let bad = Findings {
            base: Err(vec!["/a: noexec".to_owned()]),
            clock_offset_ms: Some(60_000.0),
            noise: 12,
            ..good
        };
        let checks = reached(&bad, false);
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
