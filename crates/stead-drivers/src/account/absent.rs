//! `user.absent`: no such user, and perhaps no home.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::database::{self, Database, Shadow, User};
use super::sandbox::Accounts;
use super::{NAME, WRITE, check_name, is_busy, tool};
use crate::disk::Disk;
use crate::file;
use crate::file::entry::Entry;
use crate::machine::sandbox::Sandbox;
use crate::system::{field, need_root_in, op};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "user.absent",
    summary: "Makes sure a user is not there.",
    params: &[
        NAME,
        ParamSpec::new("remove_home", ParamKind::Bool, "Remove its home directory too; default: false.")
            .default(ParamDefault::Flag(false)),
        ParamSpec::new(
            "force",
            ParamKind::Bool,
            "Also if it has running processes, which live on; default: false.",
        )
        .default(ParamDefault::Flag(false)),
    ],
    result: &[("name", "The user's name.")],
    ..WRITE
};

pub(super) struct Absent;

/// What is there of a user that should not be. No `Debug`: it may hold a hash.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    user: Option<User>,
    groups: Vec<String>,
    shadow: Option<Shadow>,
    /// The id of the group of its own that goes with it.
    own_group: Option<u32>,
    subuids: Vec<String>,
    subgids: Vec<String>,
    /// The home directory's tree, as `file::observe` gives it.
    home: Value,
}

impl Operation for Absent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let disk = Disk::open(cx)?;
        let seen = see(cx, &disk, params)?;
        Ok(Observed(serde_json::to_value(seen).unwrap_or_default()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let seen: Seen = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        let mut fields = Vec::new();
        if seen.user.is_some() {
            fields.push(field("user", params.text("name").unwrap_or_default(), Value::Null));
        }
        if let Some(user) = seen.user.filter(|_| !file::records(&Observed(seen.home)).is_empty()) {
            fields.push(field("home", user.home, Value::Null));
        }
        Diff { fields, text: None }
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"name": params.text("name")}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, DESCRIPTOR.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let disk = Disk::open(cx)?;
        let name = check_name(params.required("name")?)?;
        let home = match Database::read(cx, &disk)?.users.get(name) {
            Some(user) => home(cx, &disk, params, user)?,
            None => Vec::new(),
        };
        // The home goes first: once the user is gone nobody knows where it was.
        if !home.is_empty() {
            file::apply(cx, &disk, &Params::default(), home)?;
        }
        if let Some(sandbox) = Sandbox::of(cx) {
            Accounts::open(&sandbox, cx, &disk)?.remove_user(name)?;
            return Ok(Applied { data: Some(json!({"name": name})), notes: Vec::new() });
        }
        let mut remove = tool(cx, "userdel")?;
        if params.flag("force", false) {
            remove = remove.arg("-f");
        }
        remove.args(["--", name]).must_when_free(is_busy)?;
        Ok(Applied { data: Some(json!({"name": name})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let Ok(disk) = Disk::open(cx) else { return };
        let Ok(database) = Database::read(cx, &disk) else { return };
        let name = params.text("name").unwrap_or_default();
        if let Some(user) = database.users.get(name) {
            let home = home(cx, &disk, params, user).unwrap_or_default();
            file::predict(&disk, &home);
            if own_group(&database, name, user).is_some() {
                cx.predicted.set(format!("group:{name}"), Value::Null);
            }
        }
        for group in database.groups_of(name) {
            let mut left = database.groups[&group].clone();
            left.members.remove(name);
            cx.predicted.set(format!("group:{group}"), serde_json::to_value(left).unwrap_or_default());
        }
        cx.predicted.set(format!("user:{name}"), Value::Null);
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let seen: Seen = serde_json::from_value(before.0.clone()).ok()?;
        let user = seen.user?;
        let mut values = vec![
            ("name", Value::from(params.text("name")?)),
            ("uid", user.uid?.into()),
            ("gid", user.gid?.into()),
            ("groups", json!(seen.groups)),
            ("comment", user.comment.into()),
            ("home", user.home.into()),
            ("shell", user.shell.into()),
            ("subuids", json!(seen.subuids)),
            ("subgids", json!(seen.subgids)),
        ];
        if let Some(shadow) = seen.shadow {
            values.push(("password", shadow.password.into()));
            values.push(("aging", json!(shadow.aging)));
        }
        if seen.own_group.is_some() {
            values.push(("own_group", true.into()));
        }
        let home = Observed(seen.home);
        let records = file::records(&home);
        if !records.is_empty() {
            let restored = file::restored::inverse(&records, &[])?;
            values.push(("entries", restored.params.get("entries")?.as_value()?.clone()));
        }
        op("user.restored", values)
    }
}

fn see(cx: &OpContext, disk: &Disk, params: &Params) -> Result<Seen, OpError> {
    let name = check_name(params.required("name")?)?;
    let database = Database::read(cx, disk)?;
    let Some(user) = database.users.get(name) else { return Ok(Seen::default()) };
    if user.uid == Some(0) {
        return Err(OpError::permanent(format!("`{name}` is root (uid 0) and is not removed")));
    }
    let force = params.flag("force", false);
    if cx.root.is_none()
        && let Some(pid) = user.uid.and_then(process_of)
        && !force
    {
        return Err(OpError::permanent(format!(
            "`{name}` has running processes, such as {pid}; `force: true` removes the user anyway"
        )));
    }
    let own_group = own_group(&database, name, user);
    if let Some(gid) = own_group {
        let other = database.users.iter().find(|(other, user)| *other != name && user.gid == Some(gid));
        if let Some((other, _)) = other.filter(|_| force) {
            return Err(OpError::permanent(format!("`{other}` has `{name}` as its primary group")));
        }
    }
    let home = home(cx, disk, params, user)?;
    let home = if home.is_empty() { Value::Null } else { file::observe(&home)?.0 };
    Ok(Seen {
        groups: database.groups_of(name).into_iter().collect(),
        // Read for the inverse alone: without root it is left out.
        shadow: database::shadow(disk, name).unwrap_or_default(),
        own_group,
        subuids: database::subordinate(disk, "/etc/subuid", name)?,
        subgids: database::subordinate(disk, "/etc/subgid", name)?,
        home,
        user: Some(user.clone()),
    })
}

/// Returns the id of the group of the user's own name and id, which `userdel` removes with it.
fn own_group(database: &Database, name: &str, user: &User) -> Option<u32> {
    let group = database.groups.get(name)?;
    let alone = group.members.iter().all(|member| member == name);
    group.gid.filter(|gid| Some(*gid) == user.gid && alone)
}

/// Returns the tree of the home directory, to be removed; empty if it is to stay or is not there.
fn home(cx: &OpContext, disk: &Disk, params: &Params, user: &User) -> Result<Vec<Entry>, OpError> {
    if !params.flag("remove_home", false) || !user.home.starts_with('/') {
        return Ok(Vec::new());
    }
    let values: Map<String, Value> = BTreeMap::from([("path", json!(user.home)), ("recursive", json!(true))])
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    let entries = file::entries_to_remove(cx, disk, &Params::new(values))?;
    let Some(top) = entries.first().filter(|entry| entry.differs()) else { return Ok(Vec::new()) };
    // Every account of a sandbox is the one that runs it.
    let owner = Sandbox::of(cx).map(|_| rustix::process::geteuid().as_raw()).or(user.uid);
    // A home shared with the system, such as /var or /nonexistent, is nobody's to remove.
    if Some(top.seen.uid) != owner {
        return Err(OpError::permanent(format!(
            "home `{}` belongs to uid {}, not to the user; it is not removed",
            user.home, top.seen.uid
        )));
    }
    Ok(entries)
}

/// Returns a running process of the user with this id.
fn process_of(uid: u32) -> Option<u32> {
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        if ids.split_whitespace().any(|id| id.parse() == Ok(uid)) {
            return Some(pid);
        }
    }
    None
}
