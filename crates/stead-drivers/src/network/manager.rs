//! Who keeps the network of a machine: netplan, or ifupdown by `interfaces.d`.

use stead_runner::operation::OpError;

use crate::disk::seen::{Depth, Kind};
use crate::disk::{Last, Spot};
use crate::file::edit::Lines;
use crate::setup::Setup;

const NETPLAN: &str = "/etc/netplan";
const MAIN: &str = "/etc/network/interfaces";
const DIRECTORY: &str = "/etc/network/interfaces.d";

/// Who keeps the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    Netplan,
    Interfaces,
}

impl Manager {
    /// Returns who keeps the network of this machine, or image.
    pub(super) fn of(setup: &Setup<'_>, operation: &str) -> Result<Self, OpError> {
        // The directory alone says that netplan is installed, not that it is used.
        let spot = setup.disk.locate(NETPLAN.as_ref(), Last::Follow)?;
        let is_file = |child: &Spot| child.path.extension().is_some_and(|end| end == "yaml");
        if setup.disk.children(&spot)?.iter().any(is_file) {
            return Ok(Self::Netplan);
        }
        if setup.exists(MAIN)? || setup.exists(DIRECTORY)? {
            return Ok(Self::Interfaces);
        }
        if setup.exists(NETPLAN)? {
            return Ok(Self::Netplan);
        }
        Err(OpError::unsupported(format!(
            "{operation} needs netplan (/etc/netplan) or ifupdown (/etc/network/interfaces); neither is here"
        )))
    }

    /// Returns the file for `name`.
    pub(super) fn path(self, name: &str) -> String {
        match self {
            Self::Netplan => format!("{NETPLAN}/90-stead-{name}.yaml"),
            Self::Interfaces => format!("{DIRECTORY}/stead-{name}"),
        }
    }

    /// Returns the mode of its files: netplan warns of what others can read.
    pub(super) fn mode(self) -> u32 {
        match self {
            Self::Netplan => 0o600,
            Self::Interfaces => 0o644,
        }
    }
}

/// Makes sure ifupdown reads the directory.
pub(super) fn source_directory(setup: &mut Setup<'_>) -> Result<(), OpError> {
    let content = setup.read(MAIN.as_ref())?.unwrap_or_default();
    let mut lines = Lines::new(&content);
    let reads = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let names = |word: &&str| {
            [DIRECTORY, "/etc/network/interfaces.d/*", "interfaces.d/*", "interfaces.d"].contains(word)
        };
        matches!(words.first(), Some(&"source" | &"source-directory")) && words.iter().any(names)
    };
    if lines.find(reads).is_empty() {
        lines.insert(lines.len(), &[format!("source {DIRECTORY}/*").as_bytes()]);
    }
    setup.content(MAIN, lines.into_bytes())
}

/// Returns an error if a file of somebody else configures the interface: the two would add up.
pub(super) fn refuse_foreign_stanza(setup: &Setup<'_>, interface: &str) -> Result<(), OpError> {
    let spot = setup.disk.locate(DIRECTORY.as_ref(), Last::Follow)?;
    let mut files = vec![MAIN.into()];
    for child in setup.disk.children(&spot)? {
        let name = child.name.to_string_lossy();
        // Hidden files are not read by ifupdown; ours are, and belong to it.
        let is_foreign = !name.starts_with('.') && !name.starts_with("stead-");
        if is_foreign && setup.disk.see(&child, Depth::Attributes)?.kind == Kind::File {
            files.push(child.path);
        }
    }
    for file in files {
        let Some(content) = setup.read(&file)? else { continue };
        let text = String::from_utf8_lossy(&content);
        let is_stanza = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some("iface") && words.next() == Some(interface)
        };
        if text.lines().any(is_stanza) {
            return Err(OpError::permanent(format!(
                "`{}` configures `{interface}` already; take its `iface {interface}` lines out first",
                file.display()
            )));
        }
    }
    Ok(())
}
