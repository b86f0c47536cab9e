//! One look at something a role should answer by: an address, a page, a file, a command.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use regex::bytes::Regex;
use rustix::process::{Pid, Signal};
use stead_model::argv::quote_text;
use stead_model::role::{Address, Probe, ProbeAnswer, StatusRange};
use tokio::net::TcpStream;

use crate::http::Kept;
use crate::http::client::{self, Request, Roots};

/// How long one look may take.
pub(crate) const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// Files have the time of the kernel's last tick, which lies up to this far before the clock's.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Looks once.
pub(crate) async fn look(probe: &Probe) -> ProbeAnswer {
    match probe {
        Probe::Tcp(address) => tcp(address, LONGEST_LOOK).await,
        Probe::Http { url, expect_status, body_regex } => {
            http(url, expect_status, body_regex.as_deref()).await
        }
        Probe::File { path, newer_than_micros } => file(Path::new(path), *newer_than_micros),
        Probe::Command { command, workdir } => run(command, workdir).await,
    }
}

fn answer(ok: bool, seen: impl Into<String>) -> ProbeAnswer {
    ProbeAnswer { ok, seen: seen.into() }
}

/// Looks whether an address accepts a connection within `patience`.
pub(crate) async fn tcp(address: &Address, patience: Duration) -> ProbeAnswer {
    let connecting = TcpStream::connect((address.host.as_str(), address.port));
    match tokio::time::timeout(patience, connecting).await {
        Ok(Ok(stream)) if is_own_echo(&stream) => answer(false, "nobody listens"),
        Ok(Ok(_)) => answer(true, "it accepts connections"),
        Ok(Err(error)) => answer(false, error.to_string()),
        Err(_) => answer(false, "no answer"),
    }
}

/// Whether a connection ended up with itself, as one to a free port of the range for outgoing ones may.
fn is_own_echo(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

async fn http(url: &str, expected: &[StatusRange], body: Option<&str>) -> ProbeAnswer {
    let pattern = match body.map(Regex::new).transpose() {
        Ok(pattern) => pattern,
        Err(error) => return answer(false, format!("`body_regex` is no regular expression: {error}")),
    };
    let request = Request {
        url,
        method: "GET",
        headers: Vec::new(),
        body: Vec::new(),
        roots: Roots::System,
        timeout: LONGEST_LOOK,
    };
    let mut kept = Kept::default();
    let status = match client::send_uncancelled(request, &mut |bytes| kept.push(bytes)).await {
        Ok(response) => response.status,
        Err(error) => return answer(false, error.message),
    };
    if !expected.iter().any(|range| (range.from..=range.to).contains(&status)) {
        return answer(false, format!("status {status}"));
    }
    match pattern {
        Some(pattern) if !pattern.is_match(&kept.bytes) => {
            answer(false, format!("status {status}, the body does not match"))
        }
        Some(_) | None => answer(true, format!("status {status}")),
    }
}

fn file(path: &Path, newer_than_micros: Option<i64>) -> ProbeAnswer {
    let modified = match std::fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(modified) => modified,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return answer(false, "it is not there");
        }
        Err(error) => return answer(false, error.to_string()),
    };
    match newer_than_micros {
        Some(start) if is_older(modified, start) => answer(false, "it is from before the role's start"),
        Some(_) | None => answer(true, "it is there"),
    }
}

/// Whether a file of this time was there before `micros`.
pub(crate) fn is_older(modified: SystemTime, micros: i64) -> bool {
    let moment = UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0));
    modified + TICK < moment
}

async fn run(command: &[String], workdir: &str) -> ProbeAnswer {
    let Some((program, arguments)) = command.split_first() else {
        return answer(false, "it names no program");
    };
    let mut process = tokio::process::Command::new(program);
    process.args(arguments).current_dir(workdir).process_group(0);
    process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let unusable = |error| answer(false, format!("`{}` cannot be started: {error}", quote_text(command)));
    let mut looking = match process.spawn() {
        Ok(child) => Looking(child),
        Err(error) => return unusable(error),
    };
    match tokio::time::timeout(LONGEST_LOOK, looking.0.wait()).await {
        Ok(Ok(status)) => exited(status.code(), command),
        Ok(Err(error)) => unusable(error),
        Err(_) => answer(false, overdue(command)),
    }
}

/// A command that looks. It and all it started are killed if nobody waits for it any more.
struct Looking(tokio::process::Child);

impl Drop for Looking {
    fn drop(&mut self) {
        // One that was waited for has no number any more, which may be another's by now.
        let leader = self.0.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(leader) = leader {
            rustix::process::kill_process_group(leader, Signal::KILL).unwrap_or(());
        }
    }
}

/// Returns what a command's end says.
pub(crate) fn exited(code: Option<i32>, command: &[String]) -> ProbeAnswer {
    match code {
        Some(0) => answer(true, "exit code 0"),
        Some(code) => answer(false, format!("`{}` exited {code}", quote_text(command))),
        None => answer(false, format!("`{}` was ended by a signal", quote_text(command))),
    }
}

/// Returns what is said of a command that takes too long.
pub(crate) fn overdue(command: &[String]) -> String {
    format!("`{}` took longer than {} s", quote_text(command), LONGEST_LOOK.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 14.
    #[tokio::test]
    async fn each_kind_of_look_says_yes_and_no() {
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = Address { host: "127.0.0.1".to_owned(), port };
        assert!(look(&Probe::Tcp(address.clone())).await.ok);
        drop(listener);
        assert!(!look(&Probe::Tcp(address)).await.ok);

        let path = directory.path().join("up");
        let at = |path: &Path, newer_than_micros| Probe::File {
            path: path.display().to_string(),
            newer_than_micros,
        };
        assert_eq!(look(&at(&path, None)).await.seen, "it is not there");
        std::fs::write(&path, "").unwrap();
        let now = stead_runner::clock::now().as_micros();
        assert!(look(&at(&path, Some(now))).await.ok);
        assert_eq!(look(&at(&path, Some(now + 1_000_000))).await.seen, "it is from before the role's start");

        let command = |words: &[&str]| Probe::Command {
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            workdir: directory.path().display().to_string(),
        };
        assert!(look(&command(&["test", "-e", "up"])).await.ok);
        assert_eq!(look(&command(&["test", "-e", "down"])).await.seen, "`test -e down` exited 1");
        assert!(look(&command(&["no-such-program-anywhere"])).await.seen.contains("cannot be started"));
    }

    #[tokio::test]
    async fn a_look_that_nobody_waits_for_leaves_no_process() {
        let directory = tempfile::tempdir().unwrap();
        let line = "sleep 7777 & echo $! > sleeper; sleep 7778";
        let words = ["sh", "-c", line].map(str::to_owned).to_vec();
        let probe = Probe::Command { command: words, workdir: directory.path().display().to_string() };
        let sleeper = directory.path().join("sleeper");
        let pid = async {
            loop {
                match std::fs::read_to_string(&sleeper) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        let pid = tokio::select! {
            pid = pid => pid,
            answer = look(&probe) => panic!("it answered: {answer:?}"),
        };
        let is_there = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            status.is_ok_and(|status| !status.contains(") Z "))
        };
        while is_there() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
