//! Users and groups by name: from the root prefix's own files, or from this system.

use std::path::Path;

use serde_json::Value;
use stead_runner::operation::{OpContext, OpError, Params};

use crate::command::blocking::{self, Program};
use crate::disk::seen::Depth;
use crate::disk::{Disk, Last};
use crate::machine::sandbox::Sandbox;

/// Account databases are small; a larger file is not one.
const LARGEST: u64 = 16 << 20;

/// Returns the user id that parameter `name` means.
pub(crate) fn uid(cx: &OpContext, disk: &Disk, params: &Params, name: &str) -> Result<Option<u32>, OpError> {
    params.get(name).map(|value| resolve(cx, disk, value, "passwd", "user")).transpose()
}

/// Returns the group id that parameter `name` means.
pub(crate) fn gid(cx: &OpContext, disk: &Disk, params: &Params, name: &str) -> Result<Option<u32>, OpError> {
    params.get(name).map(|value| resolve(cx, disk, value, "group", "group")).transpose()
}

fn resolve(cx: &OpContext, disk: &Disk, value: &Value, database: &str, kind: &str) -> Result<u32, OpError> {
    let unknown = |name: &str| OpError::permanent(format!("there is no {kind} `{name}`"));
    let Some(name) = value.as_str() else {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        return id.ok_or_else(|| OpError::invalid(format!("{value} is not a {kind}")));
    };
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    match cx.predicted.get(&format!("{kind}:{name}")) {
        Some(Value::Null) => return Err(unknown(name)),
        Some(predicted) => {
            let id = predicted[if kind == "user" { "uid" } else { "gid" }].as_u64();
            let not_known = || OpError {
                not_known: true,
                ..OpError::operation(format!(
                    "an earlier task would make {kind} `{name}`; its id is not known yet"
                ))
            };
            return id.and_then(|id| u32::try_from(id).ok()).ok_or_else(not_known);
        }
        None => {}
    }
    let spot = disk.locate(&Path::new("/etc").join(database), Last::Follow)?;
    let seen = disk.see(&spot, Depth::Content)?;
    let text = disk.read(&spot, &seen, LARGEST)?;
    if let Some(id) = find(&String::from_utf8_lossy(&text), name) {
        return Ok(if Sandbox::of(cx).is_some() { own(database) } else { id });
    }
    if cx.root.is_some() {
        return Err(unknown(name));
    }
    // A directory service may know more than the file; `--` keeps a strange name from being an option.
    let args = vec!["--".into(), database.into(), name.into()];
    let getent = Program { name: "getent".to_owned(), args, cwd: "/".into(), env: Default::default() };
    let said = blocking::run(cx, getent).map_err(|_| unknown(name))?;
    find(&said.stdout, name).filter(|_| said.is_ok()).ok_or_else(|| unknown(name))
}

/// Returns this account's id: every account of a sandbox is this one.
fn own(database: &str) -> u32 {
    match database {
        "group" => rustix::process::getegid().as_raw(),
        _ => rustix::process::geteuid().as_raw(),
    }
}

/// Returns the id of `name` in the text of a `passwd` or `group` file.
fn find(text: &str, name: &str) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)).flatten()?.parse().ok()
    })
}
