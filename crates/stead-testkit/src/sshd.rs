//! A real SSH server for tests: the distribution's `sshd`, on a free port of the loopback, with its own keys.
//!
//! [`Sshd::start`] gives a server that the test's account can log in to with [`Sshd::spec`]; [`Sshd::builder`] changes
//! what it is like. Everything lives in one temporary directory. Dropping it ends the server, its sessions and all
//! they started, also what left its process group: every session carries a mark in its environment.

mod keys;
mod processes;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use stead_model::transport::SshSpec;

pub use keys::{KeyKind, SshAgent, certify, fingerprint, make_key, make_key_with, rekey};
use rustix::process::{Pid, Signal, kill_process};

const SSHD: &str = "/usr/sbin/sshd";
const DEADLINE: Duration = Duration::from_secs(60);

/// Whether this machine has an SSH server to start. A test without one is skipped, and says so.
///
/// # Panics
/// If there is none and `STEAD_CI` is set: then nothing may be skipped.
pub fn available() -> bool {
    let is_there = Path::new(SSHD).exists();
    if !is_there {
        assert!(std::env::var_os("STEAD_CI").is_none(), "{SSHD} is not installed");
        #[expect(clippy::print_stderr, reason = "the reader of the test's output is told")]
        {
            eprintln!("skipped: {SSHD} is not installed");
        }
    }
    is_there
}

/// What the server is to be like.
#[derive(Clone, Debug)]
pub struct Builder {
    config: Vec<String>,
    environment: Vec<(String, String)>,
    host_keys: Vec<KeyKind>,
    account: Option<Account>,
    port: Option<u16>,
}

/// Another picture of the account that logs in, for this server alone: it sees its own `passwd`, `shadow` and, if it
/// asks PAM, rules. Needs root, for a mount namespace.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Who logs in; none: the test's account. Another one needs a shell.
    pub user: Option<String>,
    /// The login shell; none: the account's.
    pub shell: Option<String>,
    /// The password, as `openssl passwd` or `mkpasswd` hash it; none: the account's.
    pub password: Option<String>,
    /// The rules of PAM for `sshd`; none: the system's.
    pub pam: Option<String>,
}

impl Builder {
    /// Adds a line of `sshd_config`, before those of the fixture: the first value of a keyword holds.
    pub fn config(mut self, line: &str) -> Self {
        self.config.push(line.to_owned());
        self
    }

    /// Sets a variable in every session.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Takes these kinds of host keys, in this order, instead of one ed25519 key.
    pub fn host_keys(mut self, kinds: &[KeyKind]) -> Self {
        self.host_keys = kinds.to_vec();
        self
    }

    /// Shows the server another picture of the account.
    pub fn account(mut self, account: Account) -> Self {
        self.account = Some(account);
        self
    }

    /// Listens on this port instead of a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts the server and waits until it listens.
    ///
    /// # Panics
    /// If it does not come up; its log is in the message.
    pub fn start(self) -> Sshd {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path();
        for name in ["home", "workdir"] {
            fs::create_dir(path.join(name)).expect("a directory");
        }
        // Needed by the server even where it separates no privileges.
        if rustix::process::geteuid().is_root() && !Path::new("/run/sshd").exists() {
            fs::create_dir_all("/run/sshd").expect("/run/sshd");
            fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        make_key(&path.join("id"), KeyKind::Ed25519);
        fs::copy(path.join("id.pub"), path.join("authorized_keys")).expect("authorized_keys");
        for kind in &self.host_keys {
            make_key(&path.join(format!("host_{}", kind.name())), *kind);
        }
        let user =
            self.account.as_ref().and_then(|account| account.user.clone()).unwrap_or_else(account_name);
        if self.account.as_ref().is_some_and(|account| account.user.is_some()) {
            give_to(path, &user);
        }
        // A port can be taken between the look and the bind: then another is tried.
        for attempt in 0.. {
            let port = self.port.unwrap_or_else(free_port);
            fs::write(path.join("sshd_config"), self.text(path, port)).expect("sshd_config");
            let mut server = self.spawn(path);
            if wait_until_listening(&mut server, port, &path.join("log")) {
                let mut sshd =
                    Sshd { directory, port, user, server: Some(server), host_keys: self.host_keys };
                sshd.write_known_hosts();
                return sshd;
            }
            let log = fs::read_to_string(path.join("log")).unwrap_or_default();
            assert!(attempt < 5 && self.port.is_none(), "sshd does not start:\n{log}");
        }
        unreachable!("the loop ends by itself")
    }

    fn text(&self, path: &Path, port: u16) -> String {
        let place = path.display();
        let mut lines = self.config.clone();
        lines.push(format!("Port {port}"));
        lines.push("ListenAddress 127.0.0.1".to_owned());
        lines.extend(self.host_keys.iter().map(|kind| format!("HostKey {place}/host_{}", kind.name())));
        lines.push(format!("AuthorizedKeysFile {place}/authorized_keys"));
        for line in [
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxStartups 1000",
            "MaxSessions 1000",
            "LogLevel VERBOSE",
            "PrintMotd no",
            // The default exchange costs the server a hundred milliseconds of computing.
            "KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org",
        ] {
            // Not for every keyword does the first value hold.
            let keyword = line.split(' ').next().unwrap_or_default();
            if !self.config.iter().any(|given| given.starts_with(keyword)) {
                lines.push(line.to_owned());
            }
        }
        let mut environment = format!("SetEnv STEAD_SSHD={place} HOME={place}/home");
        for (name, value) in &self.environment {
            environment.push_str(&format!(" {name}={value}"));
        }
        lines.push(environment);
        lines.push(String::new());
        lines.join("\n")
    }

    fn spawn(&self, path: &Path) -> Child {
        let log = fs::File::create(path.join("log")).expect("the log");
        let config = path.join("sshd_config");
        let mut command = match &self.account {
            None => Command::new(SSHD),
            Some(account) => {
                write_account(path, account);
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c"]);
                command.arg(
                    "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/shadow\" /etc/shadow && \
                     { [ ! -e \"$1/pam\" ] || mount --bind \"$1/pam\" /etc/pam.d/sshd; } && shift && exec \"$@\"",
                );
                if let Some(rules) = &account.pam {
                    fs::write(path.join("pam"), rules).expect("rules of PAM");
                }
                command.arg("sh").arg(path).arg(SSHD);
                command
            }
        };
        command.args(["-D", "-e", "-f"]).arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("sshd can be started")
    }
}

/// A running server.
#[derive(Debug)]
pub struct Sshd {
    directory: tempfile::TempDir,
    port: u16,
    user: String,
    server: Option<Child>,
    host_keys: Vec<KeyKind>,
}

impl Sshd {
    /// Starts a server that is like most.
    ///
    /// # Panics
    /// As [`Builder::start`].
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a server to be, for changes.
    pub fn builder() -> Builder {
        Builder {
            config: Vec::new(),
            environment: Vec::new(),
            host_keys: vec![KeyKind::Ed25519],
            account: None,
            port: None,
        }
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Who logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Where its files are: `id`, `authorized_keys`, `known_hosts`, `host_*`, `log`, `home`, `workdir`.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a file of [`Self::path`].
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The home directory of its sessions (`HOME`; they start in the account's own).
    pub fn home(&self) -> PathBuf {
        self.file("home")
    }

    /// A directory of its own, for the host's `workdir`.
    pub fn workdir(&self) -> PathBuf {
        self.file("workdir")
    }

    /// How it is reached: by its key and its known_hosts, without agent and ssh_config.
    pub fn spec(&self) -> SshSpec {
        SshSpec {
            user: Some(self.user.clone()),
            host: "127.0.0.1".to_owned(),
            port: Some(self.port),
            key: Some(self.file("id").display().to_string()),
            known_hosts: Some(self.file("known_hosts").display().to_string()),
            agent: Some(false),
            ssh_config: Some("none".to_owned()),
            ..SshSpec::default()
        }
    }

    /// [`Self::spec`] as text.
    pub fn spec_text(&self) -> String {
        let place = self.path().display();
        format!(
            "ssh://{}@127.0.0.1:{}?key={place}/id&known_hosts={place}/known_hosts&agent=false&ssh_config=none",
            self.user, self.port
        )
    }

    /// The process that listens.
    ///
    /// # Panics
    /// After [`Self::end`].
    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("it runs").id()
    }

    /// Stops the server and its sessions (SIGSTOP), so that connections stay and nothing answers.
    pub fn stop(&self) {
        self.to_all(Signal::STOP);
    }

    /// Lets it go on after [`Self::stop`].
    pub fn cont(&self) {
        self.to_all(Signal::CONT);
    }

    /// Ends every connection; the server listens on.
    pub fn drop_connections(&self) {
        for pid in processes::descendants(self.pid()) {
            if processes::name(pid).is_some_and(|name| name.starts_with("sshd")) {
                signal(pid, Signal::KILL);
            }
        }
    }

    /// How many connections are logged in or being so.
    pub fn connections(&self) -> usize {
        processes::children(self.pid()).len()
    }

    /// How often a login succeeded, by its log.
    pub fn logins(&self) -> usize {
        self.log().lines().filter(|line| line.starts_with("Accepted ") && line.contains(" for ")).count()
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Writes `known_hosts` anew, from the host keys as they are now.
    ///
    /// # Panics
    /// If a file cannot be read or written.
    pub fn write_known_hosts(&mut self) {
        let lines: Vec<String> = self.host_keys.iter().map(|kind| self.known_host(*kind)).collect();
        fs::write(self.file("known_hosts"), lines.concat()).expect("known_hosts");
    }

    /// Returns the line of known_hosts for one of its keys.
    ///
    /// # Panics
    /// If it has no key of this kind.
    pub fn known_host(&self, kind: KeyKind) -> String {
        let key = fs::read_to_string(self.file(&format!("host_{}.pub", kind.name()))).expect("a host key");
        let words: Vec<&str> = key.split_whitespace().take(2).collect();
        format!("[127.0.0.1]:{} {}\n", self.port, words.join(" "))
    }

    /// Ends it now, with all it started.
    pub fn end(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        // Stopped first, so that no session begins while the others are being ended.
        signal(server.id(), Signal::STOP);
        let mark = format!("STEAD_SSHD={}", self.path().display());
        let mut all = processes::descendants(server.id());
        all.extend(processes::with_environment(&mark));
        for pid in all {
            signal(pid, Signal::KILL);
        }
        signal(server.id(), Signal::KILL);
        // It was just killed; nothing else can be done if waiting fails.
        server.wait().ok();
        let end = Instant::now() + DEADLINE;
        while !processes::with_environment(&mark).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn to_all(&self, what: Signal) {
        signal(self.pid(), what);
        for pid in processes::descendants(self.pid()) {
            signal(pid, what);
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.end();
    }
}

fn signal(pid: u32, what: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        kill_process(pid, what).ok();
    }
}

/// Returns a port of the loopback that nothing listens on right now. It is below those that the system gives to whoever
/// asks for any, so that nobody takes it before it is used.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests that run at once, each in a process of its own, begin elsewhere.
    let first = std::process::id() % 1_250 * 16;
    (0..20_000)
        .filter_map(|_| u16::try_from(10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000).ok())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

fn wait_until_listening(server: &mut Child, port: u16, log: &Path) -> bool {
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        if server.try_wait().expect("a child").is_some() {
            return false;
        }
        // Its own word, not an open port: that may be another's.
        let listens = fs::File::open(log).is_ok_and(|log| {
            BufReader::new(log).lines().map_while(Result::ok).any(|line| line.starts_with("Server listening"))
        });
        if listens && TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // Too late is not up: it must not stay behind.
    server.kill().ok();
    server.wait().ok();
    false
}

fn account_name() -> String {
    let output = Command::new("id").arg("-un").output().expect("id runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Lets another account read what its login needs, and own its home and work directory.
fn give_to(path: &Path, user: &str) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    fs::set_permissions(path.join("authorized_keys"), fs::Permissions::from_mode(0o644)).expect("a mode");
    let changed = Command::new("chown").arg(user).arg(path.join("home")).arg(path.join("workdir")).status();
    assert!(changed.expect("chown runs").success());
}

/// Writes `passwd` and `shadow` with the account changed.
fn write_account(path: &Path, account: &Account) {
    let user = account.user.clone().unwrap_or_else(account_name);
    let change = |file: &str, fields: &[(usize, Option<String>)]| {
        let text = fs::read_to_string(format!("/etc/{file}")).expect("readable by root");
        let changed: Vec<String> = text
            .lines()
            .map(|line| {
                let mut parts: Vec<&str> = line.split(':').collect();
                if parts.first() == Some(&user.as_str()) {
                    for (place, value) in fields {
                        if let (Some(part), Some(value)) = (parts.get_mut(*place), value) {
                            *part = value;
                        }
                    }
                }
                parts.join(":")
            })
            .collect();
        fs::write(path.join(file), changed.join("\n") + "\n").expect("the copy");
    };
    let home = path.join("home").display().to_string();
    change("passwd", &[(1, Some("x".to_owned())), (5, Some(home)), (6, account.shell.clone())]);
    change("shadow", &[(1, account.password.clone())]);
}
