//! Looking at a machine over a transport, before anything is there: who we are on it, where things could go, what runs.
//!
//! One program on the other side, a shell with a fixed text, reports lines of `KEY VALUE`. It leaves nothing behind and
//! uploads nothing. What it says is bounded and never trusted further than to be shown.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Instant;

use stead_runner::clock;
use stead_runner::remote::Account;
use stead_runner::transport::{Command, Exit, Reader, Stdin, Transport, TransportError, TransportErrorKind};
use tokio::io::AsyncReadExt;

use crate::facts;

/// What the machine runs. Its arguments are the wanted directory (or nothing) and the hash of this program.
const SCRIPT: &str = include_str!("examine/look.sh");

/// An answer is a few lines.
const LARGEST: u64 = 64 << 10;

/// What was found on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// System and processor, as `uname -sm` has them.
    pub uname: String,
    /// The account's number.
    pub uid: Option<u32>,
    /// The account's name.
    pub user: Option<String>,
    /// Where the executor would live, or each place with why not.
    pub base: Result<String, Vec<String>>,
    /// Where runs would work, or each place with why not.
    pub workdir: Result<String, Vec<String>>,
    /// The `stead` that is there: its path and what it says its version is.
    pub stead: Option<(String, Option<String>)>,
    /// How packets could be captured.
    pub capture: Option<String>,
    /// How the machine unpacks an upload: `zstd`, `gzip` or nothing.
    pub unpacks: Option<String>,
    /// How long a command takes there and back.
    pub latency_ms: f64,
    /// The machine's clock less this one's.
    pub clock_offset_ms: Option<f64>,
    /// What came besides the answer.
    pub noise: usize,
}

impl Findings {
    /// Returns the system's name: `linux`, `darwin`.
    pub fn os(&self) -> Option<String> {
        self.uname.split_once(' ').map(|(system, _)| system.to_ascii_lowercase())
    }

    /// Returns the processor's architecture.
    pub fn arch(&self) -> Option<String> {
        self.uname.split_once(' ').map(|(_, machine)| facts::arch(machine.trim().to_owned()))
    }

    /// Returns what binaries for the machine are kept under: the architecture, for other systems than Linux with it.
    pub fn binary_name(&self) -> Option<String> {
        let (os, arch) = (self.os()?, self.arch()?);
        let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_name(&os) || !is_name(&arch) || arch.is_empty() {
            return None;
        }
        Some(if os == "linux" { arch } else { format!("{os}-{arch}") })
    }
}

/// Looks at the machine behind `transport`, as `account` if one is given; `workdir` is where its user wants things to be.
///
/// # Errors
/// If the connection fails, or the machine cannot run a shell.
pub async fn examine(
    transport: &dyn Transport,
    workdir: Option<&str>,
    sha256: &str,
    account: Option<&Account>,
) -> Result<Findings, TransportError> {
    // A first command, so that what is measured is not the opening of a channel.
    collect(transport, ["true"].map(OsString::from).to_vec()).await?;
    let began = Instant::now();
    collect(transport, ["true"].map(OsString::from).to_vec()).await?;
    let latency = began.elapsed();
    let argv = ["sh", "-c", SCRIPT, "stead-look", workdir.unwrap_or_default(), sha256];
    let asked = clock::now();
    let began = Instant::now();
    let argv = argv.map(OsString::from).to_vec();
    let command =
        account.map_or_else(|| Command::new(argv.clone()), |account| as_account(account, argv.clone()));
    let (exit, stdout, stderr) = run(transport, command).await?;
    let took = began.elapsed();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let mut findings = read(&text).ok_or_else(|| {
        let said = String::from_utf8_lossy(&stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        let ended = match exit {
            Exit::Code(code) => format!("exit code {code}"),
            Exit::Signal(signal) => format!("signal {signal}"),
        };
        let message = format!("the machine runs no POSIX shell that answers ({ended}): {last}");
        TransportError::new(TransportErrorKind::Failed, message)
    })?;
    findings.latency_ms = latency.as_secs_f64() * 1000.0;
    findings.clock_offset_ms = findings.clock_offset_ms.map(|there_ms| {
        // The machine looked at its clock about half-way.
        let here_ms = asked.as_micros() as f64 / 1000.0 + took.as_secs_f64() * 500.0;
        there_ms - here_ms
    });
    Ok(findings)
}

/// Runs a program to its end and returns what it said, as far as it is of interest.
pub(crate) async fn collect(
    transport: &dyn Transport,
    argv: Vec<OsString>,
) -> Result<(Exit, Vec<u8>, Vec<u8>), TransportError> {
    run(transport, Command::new(argv)).await
}

/// Returns `argv` as another account, its password on the input.
pub(crate) fn as_account(account: &Account, argv: Vec<OsString>) -> Command {
    let (argv, input) = account.wrap(argv);
    Command { argv, stdin: Stdin::Bytes(input), ..Command::default() }
}

pub(crate) async fn run(
    transport: &dyn Transport,
    command: Command,
) -> Result<(Exit, Vec<u8>, Vec<u8>), TransportError> {
    let mut running = transport.exec(command).await?;
    let (stdout, stderr, exit) =
        tokio::join!(drain(running.stdout), drain(running.stderr), running.process.wait());
    Ok((exit?, stdout, stderr))
}

/// Reads to the end and keeps the start: a program must not wait for a reader who has heard enough.
async fn drain(mut reader: Reader) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 8 << 10];
    while let Ok(n @ 1..) = reader.read(&mut buffer).await {
        let room = usize::try_from(LARGEST).unwrap_or(usize::MAX).saturating_sub(kept.len()).min(n);
        kept.extend_from_slice(&buffer[..room]);
    }
    kept
}

/// Reads the answer; `clock_offset_ms` is the machine's time in milliseconds.
fn read(text: &str) -> Option<Findings> {
    let (noise, answer) = text.split_once("stead-look begins\n")?;
    let answer = answer.split_once("stead-look ends").map(|(answer, _)| answer)?;
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in answer.lines() {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        values.entry(key).or_default().push(value.trim_end());
    }
    let first = |key: &str| {
        values
            .get(key)
            .and_then(|found| found.first())
            .copied()
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    };
    let place = |key: &str| {
        let refused = || values.get(&*format!("no-{key}")).into_iter().flatten().map(|why| (*why).to_owned());
        first(key).ok_or_else(|| refused().collect::<Vec<_>>())
    };
    Some(Findings {
        uname: first("uname")?,
        uid: first("uid").and_then(|uid| uid.parse().ok()),
        user: first("user"),
        base: place("base"),
        workdir: place("workdir"),
        stead: first("stead").map(|path| (path, first("version"))),
        capture: first("capture"),
        unpacks: first("unpacks"),
        latency_ms: 0.0,
        // Where `date` knows no fractions it prints the letter.
        clock_offset_ms: first("now")
            .and_then(|now| now.trim_end_matches(".N").parse::<f64>().ok())
            .map(|now| now * 1000.0),
        noise: noise.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(directory: &std::path::Path, env: &[(&str, &str)], workdir: &str) -> Findings {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", SCRIPT, "stead-look", workdir, &"0".repeat(64)]).current_dir(directory);
        let output = command.envs(env.iter().copied()).output().unwrap();
        read(&String::from_utf8(output.stdout).unwrap()).unwrap()
    }

    #[test]
    fn a_shell_finds_out_and_leaves_nothing_behind() {
        let here = std::env::temp_dir().join(format!("stead-look-{}", std::process::id()));
        std::fs::create_dir(&here).unwrap();
        let cache = here.join("cache");
        let env = [("XDG_CACHE_HOME", cache.to_str().unwrap()), ("HOME", here.to_str().unwrap())];
        let found = look(&here, &env, "");
        assert_eq!(found.uname.split(' ').next(), Some("Linux"));
        assert_eq!(found.uid, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(found.workdir, Ok(format!("{}/stead", cache.display())));
        assert_eq!(found.stead, None);
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "what was made to be tried is gone");

        // A wanted place that cannot be used is an error that names it; a link is none.
        std::os::unix::fs::symlink("/tmp", here.join("link")).unwrap();
        let wanted = here.join("link").display().to_string();
        let found = look(&here, &env, &wanted);
        assert_eq!(found.workdir, Err(vec![format!("{wanted}: is a symbolic link")]));
        assert_eq!(found.base, found.workdir);
        std::fs::write(here.join("file"), "").unwrap();
        let wanted = here.join("file/below").display().to_string();
        assert_eq!(look(&here, &env, &wanted).base, Err(vec![format!("{wanted}: cannot be made")]));
        std::fs::remove_dir_all(&here).unwrap();
    }

    #[test]
    fn answers_are_found_behind_noise_and_bad_ones_are_none() {
        let found = read("Welcome!\nstead-look begins\nuname Linux x86_64\nnow 12.5\nno-base /a: full\nno-base /b: noexec\nstead-look ends\n").unwrap();
        assert_eq!((found.noise, found.clock_offset_ms), (9, Some(12_500.0)));
        assert_eq!(found.base, Err(vec!["/a: full".to_owned(), "/b: noexec".to_owned()]));
        assert_eq!(
            read("stead-look begins\nuname Linux x86_64\nnow 12.N\nstead-look ends").unwrap().clock_offset_ms,
            Some(12_000.0)
        );
        for bad in
            ["", "uname Linux x", "stead-look begins\nuname Linux", "stead-look begins\nstead-look ends"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
