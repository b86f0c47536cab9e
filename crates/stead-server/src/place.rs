//! Where a server keeps its files, and what it is started with.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stead_drivers::nodes::{is_handed_down, server_directory};

use crate::lock;

/// Of which site a server is, and where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerPlace {
    /// The site directory.
    pub site: PathBuf,
    /// The state directory.
    pub state: PathBuf,
}

impl ServerPlace {
    /// Returns the directory of the server's files.
    pub fn directory(&self) -> PathBuf {
        server_directory(&self.state, &self.site)
    }

    pub(crate) fn of_port(&self, port: u16, extension: &str) -> PathBuf {
        self.directory().join(format!("server-{port}.{extension}"))
    }

    /// Returns the file that holds the server's process id, once it answers.
    pub fn pid_file(&self, port: u16) -> PathBuf {
        self.of_port(port, "pid")
    }

    /// Returns the socket for operators of the same account.
    pub fn socket(&self, port: u16) -> PathBuf {
        self.of_port(port, "sock")
    }

    /// Returns where the server says what it was asked, unless it is told otherwise.
    pub fn log(&self, port: u16) -> PathBuf {
        self.of_port(port, "log")
    }

    pub(crate) fn lock(&self, port: u16) -> PathBuf {
        self.of_port(port, "lock")
    }

    pub(crate) fn journal(&self, port: u16) -> PathBuf {
        self.of_port(port, "journal")
    }

    pub(crate) fn outputs(&self, port: u16) -> PathBuf {
        self.of_port(port, "outputs")
    }

    pub(crate) fn inputs(&self, port: u16) -> PathBuf {
        self.of_port(port, "inputs")
    }

    pub(crate) fn plans(&self, port: u16) -> PathBuf {
        self.of_port(port, "plans")
    }

    /// Returns what nobody does any more: plans and runs of servers at other ports that do not run.
    pub(crate) fn plans_of_others(&self, port: u16) -> Vec<String> {
        let named = fs::read_dir(self.directory()).into_iter().flatten().flatten();
        let ports = named.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix("server-")?.strip_suffix(".plans")?.parse::<u16>().ok()
        });
        let mut left: Vec<u16> = ports.filter(|other| *other != port).collect();
        left.sort_unstable();
        let holds_any = |directory: PathBuf, is_idle: &dyn Fn(&Path) -> bool| {
            let mut found = fs::read_dir(directory).into_iter().flatten().flatten();
            found.any(|entry| !is_idle(&entry.path()))
        };
        left.retain(|other| {
            let plans = self.plans(*other);
            let is_served = !matches!(lock::holder(&self.lock(*other)), Ok(None));
            !is_served
                && (holds_any(plans.join("armed"), &|_| false)
                    || holds_any(plans.join("runs"), &|run| run.join("end.json").exists()))
        });
        let told = |other: &u16| {
            format!("plans of a server at port {other} are armed or unfinished there, and it does not run")
        };
        left.iter().map(told).collect()
    }

    pub(crate) fn repos(&self, port: u16) -> PathBuf {
        self.of_port(port, "repos")
    }

    pub(crate) fn audit(&self) -> PathBuf {
        self.directory().join("audit.log")
    }

    /// Returns the file that holds the port that was found when any would do, and those before it while things are under way.
    pub(crate) fn port_file(&self) -> PathBuf {
        self.directory().join("port")
    }

    /// Returns the ports that this file holds.
    pub(crate) fn kept_ports(&self) -> Vec<u16> {
        let text = fs::read_to_string(self.port_file()).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Returns the port to serve at: the one that is `given`, else the site's.
    pub(crate) fn wanted_port(&self, given: Option<u16>, of_site: u16) -> WantedPort {
        let number = given.unwrap_or(of_site);
        // Sites that share a machine know nothing of each other.
        let any_will_do = number == 0 || (given.is_none() && is_handed_down(&self.state, &self.site));
        let kept = if any_will_do { self.kept_ports().first().copied() } else { None };
        WantedPort { number, any_will_do, kept }
    }
}

/// At which port a server is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedPort {
    /// The one that was asked for; 0 is any.
    pub(crate) number: u16,
    /// Whether another one is as good, if that is taken.
    pub(crate) any_will_do: bool,
    /// The one that was found the last time when any would do.
    pub(crate) kept: Option<u16>,
}

/// What a server is started with; what is not given is what the site says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// Its port; 0 is any that is free, the same again while it stays free.
    pub port: Option<u16>,
    /// The address it listens at.
    pub bind: Option<IpAddr>,
    /// A certificate and its key, in PEM, instead of the one it makes.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether to make a new certificate.
    pub new_certificate: bool,
    /// Where to say what it was asked.
    pub log: Option<PathBuf>,
    /// Whether a run needs it: then the run that removes the last node of it stops it.
    pub for_run: bool,
}

/// What clients need to know of a server that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// How it is reached on its own machine.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// Its process.
    pub pid: u32,
    /// SHA-256 of its certificate, `AB:CD:…`.
    pub fingerprint: String,
    /// That of the certificate before, if this start has replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_fingerprint: Option<String>,
    /// SHA-256 of its key, `sha256:…`.
    pub spki_pin: String,
    /// The socket for operators of the same account.
    pub socket: PathBuf,
    /// How many specs it serves.
    pub specs: usize,
    /// How many repositories.
    pub repos: usize,
}
