//! What this machine is like for roles that would run on it: where they could work, listen and capture.

mod check;

use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::Serialize;
use stead_model::facts::Interface;

use crate::command::program;
use crate::doctor::place;
use crate::facts;

pub use check::{AgentCheck, AgentQuestion, Health, check};

/// How long a program may take to list interfaces.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kits that need no file.
const BUILT_IN_KITS: [&str; 1] = ["cipdip"];

/// What `stead agent status` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentStatus {
    /// This program's version.
    pub version: String,
    /// What it was built from.
    pub git_commit: Option<String>,
    /// The operating system.
    pub os: String,
    /// The processor's architecture.
    pub arch: String,
    /// The machine's own name.
    pub hostname: Option<String>,
    /// Where roles would work.
    pub workdir: Workdir,
    /// Where roles could listen.
    pub interfaces: Vec<AgentInterface>,
    /// Whether packets can be captured.
    pub pcap_capable: bool,
    /// How.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap_method: Option<&'static str>,
    /// Which kinds of roles can run here.
    pub supported_roles: Vec<&'static str>,
    /// Which kits are known here.
    pub kits: Vec<String>,
}

/// A directory that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workdir {
    /// Where.
    pub path: String,
    /// Whether it was there.
    pub exists: bool,
    /// Whether a file could be made there.
    pub writable: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An interface with addresses others can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AgentInterface {
    /// Its name.
    pub name: String,
    /// Its addresses, link-local ones left out.
    pub addresses: Vec<String>,
    /// Whether a program could listen on each of them.
    pub can_bind: bool,
}

/// Looks at this machine; the first of `workdirs` that can be used is the one.
pub async fn status(workdirs: &[PathBuf], git_commit: Option<&str>) -> AgentStatus {
    let system = rustix::system::uname();
    let pcap_method = capture().await;
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: git_commit.map(str::to_owned),
        os: std::env::consts::OS.to_owned(),
        arch: std::env::consts::ARCH.to_owned(),
        hostname: system.nodename().to_str().ok().map(str::to_owned),
        workdir: workdir(workdirs),
        interfaces: facts::interfaces().iter().filter_map(interface).collect(),
        pcap_capable: pcap_method.is_some(),
        pcap_method,
        supported_roles: vec!["service", "task"],
        kits: BUILT_IN_KITS.map(str::to_owned).to_vec(),
    }
}

fn workdir(candidates: &[PathBuf]) -> Workdir {
    let tried: Vec<Workdir> = candidates.iter().map(|path| try_workdir(path)).collect();
    let usable = tried.iter().find(|workdir| workdir.writable).or(tried.first()).cloned();
    usable.unwrap_or_else(|| Workdir {
        path: String::new(),
        exists: false,
        writable: false,
        error: Some("no directory is known: name one with --workdir".to_owned()),
    })
}

fn try_workdir(path: &Path) -> Workdir {
    let exists = path.is_dir();
    let error = place::probe(path).err();
    Workdir { path: path.display().to_string(), exists, writable: error.is_none(), error }
}

fn interface(interface: &Interface) -> Option<AgentInterface> {
    let addresses: Vec<IpAddr> = interface
        .addresses
        .iter()
        .filter_map(|address| address.address.parse().ok())
        .filter(|address| !is_link_local(*address))
        .collect();
    if !interface.up || addresses.is_empty() {
        return None;
    }
    Some(AgentInterface {
        name: interface.name.clone(),
        can_bind: addresses.iter().all(|address| TcpListener::bind((*address, 0)).is_ok()),
        addresses: addresses.iter().map(ToString::to_string).collect(),
    })
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns how packets can be captured: by a socket of our own, else by a program that lists interfaces.
async fn capture() -> Option<&'static str> {
    if cfg!(target_os = "linux")
        && socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).is_ok()
    {
        return Some("af_packet");
    }
    for name in ["tcpdump", "dumpcap"] {
        if lists_interfaces(name).await {
            return Some(name);
        }
    }
    None
}

async fn lists_interfaces(name: &str) -> bool {
    let path = std::env::var_os("PATH");
    let Ok(file) = program::find(name, Path::new("/"), path.as_deref()) else { return false };
    let mut command = tokio::process::Command::new(file);
    command.arg("-D").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    matches!(output, Ok(Ok(output)) if output.status.success() && !output.stdout.trim_ascii().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::facts::{AddressFamily, InterfaceAddress};

    fn with_addresses(up: bool, addresses: &[&str]) -> Interface {
        let address = |text: &&str| InterfaceAddress {
            address: (*text).to_owned(),
            prefix: 24,
            family: AddressFamily::Inet,
        };
        Interface {
            name: "x".to_owned(),
            up,
            addresses: addresses.iter().map(address).collect(),
            ..Interface::default()
        }
    }

    #[test]
    fn only_interfaces_others_can_reach_count_and_binding_is_tried() {
        assert_eq!(interface(&with_addresses(false, &["127.0.0.1"])), None);
        assert_eq!(interface(&with_addresses(true, &["169.254.1.1", "fe80::1"])), None);
        let own = interface(&with_addresses(true, &["127.0.0.1", "fe80::1"])).unwrap();
        assert_eq!((own.addresses, own.can_bind), (vec!["127.0.0.1".to_owned()], true));
        // Nobody has an address for documentation.
        assert!(!interface(&with_addresses(true, &["203.0.113.77"])).unwrap().can_bind);
    }

    #[test]
    fn the_first_usable_directory_is_taken_and_left_as_it_was() {
        let here = std::env::temp_dir().join(format!("stead-agent-{}", std::process::id()));
        std::fs::create_dir(&here).unwrap();
        std::fs::write(here.join("file"), "").unwrap();
        let found = workdir(&[here.join("file/x"), here.join("new")]);
        assert_eq!((found.exists, found.writable, found.error), (false, true, None));
        assert!(found.path.ends_with("/new") && !here.join("new").exists());
        let none = workdir(&[here.join("file/x")]);
        assert!(!none.writable && none.error.unwrap().contains("cannot make"));
        std::fs::remove_dir_all(&here).unwrap();
    }
}
