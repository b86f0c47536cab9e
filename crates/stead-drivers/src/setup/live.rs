//! Parts of the running system that operations compare and set, each by one small pair of functions.
//!
//! A part is data, so that an inverse can name it and put its recorded value back.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use crate::certificate;
use crate::identity::hostname;
use crate::kernel::{modules, parameters};
use crate::network::{links, routes};
use crate::storage::mount_table;

/// A part of the running system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Live {
    /// The kernel's host name: text.
    Hostname,
    /// A kernel parameter, by its path below `/proc/sys`: text.
    Parameter(String),
    /// A kernel module: whether it is loaded.
    Module(String),
    /// What is mounted at a path: device, type and options, or nothing.
    Mount(PathBuf),
    /// Whether an address (with prefix length) is on an interface.
    Address(String, String),
    /// A property of an interface, `mtu` or `mac`: text.
    Link(String, String),
    /// A route by destination, interface and metric: its gateway, or nothing.
    Route(routes::Route),
    /// An effective setting of the SSH daemon. Follows from its files.
    Sshd(String),
    /// Whether the certificate with this SHA-256 is in the bundle. Follows from the files of certificates.
    Certificate(String),
}

impl Live {
    /// Returns what holds: predicted, or true now.
    pub(crate) fn read(&self, cx: &OpContext) -> Result<Value, OpError> {
        if let Some(predicted) = cx.predicted.get(&self.resource()) {
            return Ok(predicted);
        }
        match self {
            Self::Hostname => hostname::read(),
            Self::Parameter(path) => parameters::read(path),
            Self::Module(name) => modules::read(name),
            Self::Mount(path) => mount_table::read(path),
            Self::Address(interface, address) => links::read_address(cx, interface, address),
            Self::Link(interface, property) => links::read_property(cx, interface, property),
            Self::Route(route) => routes::read(cx, route),
            // Read all at once by their operations; here only the prediction matters.
            Self::Sshd(_) => Ok(Value::Null),
            Self::Certificate(sha256) => certificate::read(sha256),
        }
    }

    /// Brings it about that `want` holds, where `seen` does.
    pub(crate) fn set(&self, cx: &OpContext, seen: &Value, want: &Value) -> Result<(), OpError> {
        let text = want.as_str().unwrap_or_default();
        let is_wanted = !is_gone(want);
        match self {
            Self::Hostname => hostname::set(text),
            Self::Parameter(path) => parameters::set(path, text),
            Self::Module(name) => modules::set(cx, name, is_wanted),
            Self::Mount(path) => mount_table::set(cx, path, seen, want),
            Self::Address(interface, address) => links::set_address(cx, interface, address, is_wanted),
            Self::Link(interface, property) => links::set_property(cx, interface, property, text),
            Self::Route(route) => routes::set(cx, route, want),
            Self::Sshd(_) | Self::Certificate(_) => Ok(()),
        }
    }

    /// Whether it follows from files, by settling, and cannot be set by itself.
    pub(crate) fn is_derived(&self) -> bool {
        match self {
            Self::Sshd(_) | Self::Certificate(_) => true,
            Self::Hostname
            | Self::Parameter(_)
            | Self::Module(_)
            | Self::Mount(_)
            | Self::Address(..)
            | Self::Link(..)
            | Self::Route(_) => false,
        }
    }

    /// Returns the arguments of `ip` that bring `want` about, for parts of the network.
    pub(crate) fn ip_args(&self, want: &Value) -> Option<Vec<String>> {
        match self {
            Self::Address(interface, address) => {
                Some(links::address_args(interface, address, !is_gone(want)))
            }
            Self::Link(interface, property) => {
                Some(links::property_args(interface, property, want.as_str().unwrap_or_default()))
            }
            Self::Route(route) => Some(routes::args(route, want)),
            Self::Hostname
            | Self::Parameter(_)
            | Self::Module(_)
            | Self::Mount(_)
            | Self::Sshd(_)
            | Self::Certificate(_) => None,
        }
    }

    /// Whether `seen` is not what `want` asks for.
    pub(crate) fn differs(&self, seen: &Value, want: &Value) -> bool {
        match self {
            Self::Mount(_) => mount_table::differs(seen, want),
            Self::Hostname
            | Self::Parameter(_)
            | Self::Module(_)
            | Self::Address(..)
            | Self::Link(..)
            | Self::Route(_)
            | Self::Sshd(_)
            | Self::Certificate(_) => seen != want,
        }
    }

    /// Records what would hold in a dry run.
    pub(crate) fn predict(&self, cx: &OpContext, want: &Value) {
        cx.predicted.set(self.resource(), want.clone());
    }

    fn resource(&self) -> String {
        format!("live:{self}")
    }
}

/// As diffs name it.
impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostname => f.write_str("running host name"),
            Self::Parameter(path) => write!(f, "running {}", parameters::dotted(path)),
            Self::Module(name) => write!(f, "module {name} loaded"),
            Self::Mount(path) => write!(f, "mounted at {}", path.display()),
            Self::Address(interface, address) => write!(f, "{interface} has {address}"),
            Self::Link(interface, property) => write!(f, "{interface} {property}"),
            Self::Route(route) => write!(f, "route {route}"),
            Self::Sshd(name) => write!(f, "effective {name}"),
            Self::Certificate(_) => f.write_str("in the bundle"),
        }
    }
}

/// Whether a value says that something should not be there.
pub(crate) fn is_gone(want: &Value) -> bool {
    want.is_null() || *want == Value::Bool(false)
}
