//! Interfaces of the running system: addresses and properties, by `ip`.

use serde_json::Value;
use stead_runner::operation::{OpContext, OpError};

use super::prefix::Prefix;
use crate::setup::settle;

/// Returns `text` if it can name an interface, and is nothing else in a file or a list of arguments.
pub(super) fn name<'a>(param: &str, text: &'a str) -> Result<&'a str, OpError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if (1..=15).contains(&text.len()) && !text.starts_with(['-', '.']) && text.chars().all(fits) {
        return Ok(text);
    }
    Err(OpError::invalid(format!(
        "`{param}`, `{}`: expected the name of an interface: at most 15 letters, digits, `-` `_` `.`",
        text.escape_debug()
    )))
}

/// Returns what `ip -j` says: a list of links.
fn ask(cx: &OpContext, args: &[&str]) -> Result<Vec<Value>, OpError> {
    let said = settle::checked(cx, "ip", args)?;
    serde_json::from_str(&said.stdout).map_err(|error| {
        OpError::operation(format!("`ip {}` said what is not JSON: {error}", args.join(" ")))
    })
}

/// Returns an error if the running system has no such interface.
pub(super) fn require(cx: &OpContext, interface: &str) -> Result<(), OpError> {
    let links = ask(cx, &["-j", "link", "show"])?;
    let mut names: Vec<&str> = links.iter().filter_map(|link| link["ifname"].as_str()).collect();
    if names.contains(&interface) {
        return Ok(());
    }
    names.sort_unstable();
    Err(OpError::permanent(format!("there is no interface `{interface}`; there are {}", names.join(", "))))
}

/// Returns whether `address` is on the interface.
pub(crate) fn read_address(cx: &OpContext, interface: &str, address: &str) -> Result<Value, OpError> {
    let wanted = Prefix::parse(address);
    let links = ask(cx, &["-j", "address", "show", "dev", interface])?;
    let known = links.iter().filter_map(|link| link["addr_info"].as_array()).flatten();
    let mut prefixes = known.filter_map(|address| {
        Prefix::parse(&format!("{}/{}", address["local"].as_str()?, address["prefixlen"].as_u64()?))
    });
    Ok(prefixes.any(|prefix| Some(prefix) == wanted).into())
}

/// Returns the arguments of `ip` that put an address on an interface, or take it off.
pub(crate) fn address_args(interface: &str, address: &str, present: bool) -> Vec<String> {
    let verb = if present { "replace" } else { "delete" };
    ["address", verb, address, "dev", interface].map(str::to_owned).to_vec()
}

/// Puts `address` on the interface, or takes it off.
pub(crate) fn set_address(
    cx: &OpContext,
    interface: &str,
    address: &str,
    present: bool,
) -> Result<(), OpError> {
    run(cx, &address_args(interface, address, present))
}

/// Returns a property of an interface: `mtu`, `mac` or `state` (up, down).
pub(crate) fn read_property(cx: &OpContext, interface: &str, property: &str) -> Result<Value, OpError> {
    let links = ask(cx, &["-j", "link", "show", "dev", interface])?;
    let link = links.first().cloned().unwrap_or_default();
    Ok(match property {
        "mtu" => link["mtu"].as_u64().map(|mtu| mtu.to_string()).into(),
        "mac" => link["address"].as_str().map(str::to_ascii_lowercase).into(),
        _ => {
            let is_up = link["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "UP"));
            (if is_up { "up" } else { "down" }).into()
        }
    })
}

/// Returns the arguments of `ip` that give a property to an interface.
pub(crate) fn property_args(interface: &str, property: &str, value: &str) -> Vec<String> {
    let mut args = vec!["link", "set", "dev", interface];
    match property {
        "mtu" => args.extend(["mtu", value]),
        "mac" => args.extend(["address", value]),
        _ => args.push(value),
    }
    args.into_iter().map(str::to_owned).collect()
}

/// Gives a property to an interface.
pub(crate) fn set_property(
    cx: &OpContext,
    interface: &str,
    property: &str,
    value: &str,
) -> Result<(), OpError> {
    run(cx, &property_args(interface, property, value))
}

/// Runs `ip`, which has to succeed.
pub(super) fn run(cx: &OpContext, args: &[String]) -> Result<(), OpError> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    settle::checked(cx, "ip", &args).map(drop)
}
