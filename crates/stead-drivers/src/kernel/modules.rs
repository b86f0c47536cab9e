//! Modules of the running kernel.

use serde_json::Value;
use stead_runner::operation::OpContext;
use stead_runner::operation::OpError;

use crate::setup::settle;

/// Returns the name as the kernel spells it.
pub(crate) fn spelled(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns whether the module is loaded; one that is part of the kernel always is.
pub(crate) fn read(name: &str) -> Result<Value, OpError> {
    let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    Ok((is_listed(&loaded, name) || is_built_in(name)).into())
}

/// Whether `name` is in the text of `/proc/modules`.
fn is_listed(modules: &str, name: &str) -> bool {
    modules.lines().any(|line| line.split(' ').next() == Some(name))
}

/// Whether the module is part of the kernel itself.
pub(crate) fn is_built_in(name: &str) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let list = std::fs::read_to_string(format!("/lib/modules/{release}/modules.builtin")).unwrap_or_default();
    let stem = |line: &str| {
        line.rsplit('/').next().and_then(|file| file.split('.').next()).map(spelled).unwrap_or_default()
    };
    list.lines().any(|line| stem(line) == name)
}

/// Returns the error of unloading what is part of the kernel.
pub(super) fn cannot_unload(name: &str) -> OpError {
    OpError::permanent(format!("module `{name}` is part of the kernel and cannot be unloaded"))
}

/// Loads the module, or unloads it.
pub(crate) fn set(cx: &OpContext, name: &str, loaded: bool) -> Result<(), OpError> {
    if loaded {
        return settle::checked(cx, "modprobe", &["--", name]).map(drop);
    }
    if is_built_in(name) {
        return Err(cannot_unload(name));
    }
    settle::checked(cx, "modprobe", &["-r", "--", name]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_their_whole_name() {
        let modules = "br_netfilter 32768 0 - Live 0x0\nbridge 311296 1 br_netfilter, Live 0x0\n";
        assert!(is_listed(modules, "bridge") && is_listed(modules, "br_netfilter"));
        assert!(!is_listed(modules, "br") && !is_listed(modules, "32768"));
    }
}
