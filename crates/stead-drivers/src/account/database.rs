//! The account files of the target, seen through what a dry run has predicted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stead_runner::operation::{OpContext, OpError};

use crate::disk::Disk;

/// A user, as the account files have it. No `Debug`: it may hold a password hash.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct User {
    /// Predicted users may not have one yet.
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) comment: String,
    pub(crate) home: String,
    pub(crate) shell: String,
    /// A predicted `shadow` line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shadow: Option<Shadow>,
    /// Predicted subordinate user and group ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subordinate: Option<[Vec<String>; 2]>,
}

/// A group, as the account files have it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Predicted groups may not have one yet.
    pub(crate) gid: Option<u32>,
    pub(crate) members: BTreeSet<String>,
}

/// Users and groups, by name.
pub(crate) struct Database {
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) groups: BTreeMap<String, Group>,
}

/// A line of `shadow`, without the name. No `Debug`: it holds a password hash.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Shadow {
    pub(super) password: String,
    /// Last change, minimum, maximum, warning, inactive, expiry: as written.
    pub(super) aging: Vec<String>,
}

impl Database {
    /// Reads the users and groups of the target.
    pub(crate) fn read(cx: &OpContext, disk: &Disk) -> Result<Self, OpError> {
        let Some(passwd) = text(disk, "/etc/passwd")? else {
            return Err(OpError::unsupported("this host has no `/etc/passwd`"));
        };
        let mut users: BTreeMap<String, User> = passwd.lines().filter_map(user).collect();
        let group_file = text(disk, "/etc/group")?.unwrap_or_default();
        let mut groups: BTreeMap<String, Group> = group_file.lines().filter_map(group).collect();
        overlay(cx, "user:", &mut users);
        overlay(cx, "group:", &mut groups);
        Ok(Self { users, groups })
    }

    /// Returns the name of the group with this id.
    pub(super) fn group_name(&self, gid: u32) -> Option<&str> {
        self.groups.iter().find(|(_, group)| group.gid == Some(gid)).map(|(name, _)| name.as_str())
    }

    /// Returns the groups that list `user` as a member.
    pub(super) fn groups_of(&self, user: &str) -> BTreeSet<String> {
        let of = self.groups.iter().filter(|(_, group)| group.members.contains(user));
        of.map(|(name, _)| name.clone()).collect()
    }
}

/// Returns the `shadow` line of `name`; root alone can read it.
pub(super) fn shadow(disk: &Disk, name: &str) -> Result<Option<Shadow>, OpError> {
    let text = text(disk, "/etc/shadow")?.unwrap_or_default();
    let line = text.lines().find(|line| line.split(':').next() == Some(name));
    Ok(line.map(|line| {
        let mut fields = line.split(':').skip(1).map(str::to_owned);
        Shadow { password: fields.next().unwrap_or_default(), aging: fields.take(6).collect() }
    }))
}

/// Returns the subordinate ids of `name` in `file` (`/etc/subuid`, `/etc/subgid`), as `FIRST-LAST`.
pub(super) fn subordinate(disk: &Disk, file: &str, name: &str) -> Result<Vec<String>, OpError> {
    let text = text(disk, file)?.unwrap_or_default();
    let ranges = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [owner, first, count] = fields[..] else { return None };
        let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
        (owner == name && count > 0).then(|| format!("{first}-{}", first.saturating_add(count - 1)))
    });
    Ok(ranges.collect())
}

/// Returns the text of a file of the target, or nothing if it is not there.
pub(super) fn text(disk: &Disk, path: &str) -> Result<Option<String>, OpError> {
    disk.text(Path::new(path))
}

fn user(line: &str) -> Option<(String, User)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, comment, home, shell] = fields[..] else { return None };
    let user = User {
        uid: uid.parse().ok(),
        gid: gid.parse().ok(),
        comment: comment.to_owned(),
        home: home.to_owned(),
        shell: shell.to_owned(),
        shadow: None,
        subordinate: None,
    };
    Some((name.to_owned(), user))
}

fn group(line: &str) -> Option<(String, Group)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields[..] else { return None };
    let members = members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect();
    Some((name.to_owned(), Group { gid: gid.parse().ok(), members }))
}

/// Puts what was predicted (null: gone) over what is there.
fn overlay<T: for<'de> Deserialize<'de>>(cx: &OpContext, prefix: &str, known: &mut BTreeMap<String, T>) {
    for (resource, state) in cx.predicted.starting_with(prefix) {
        let name = resource[prefix.len()..].to_owned();
        match serde_json::from_value(state) {
            Ok(Some(state)) => known.insert(name, state),
            Ok(None) | Err(_) => known.remove(&name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_system_reads_them() {
        let (name, user) = user("zoe:x:1000:100:Zoe,,,:/home/zoe:/bin/sh").unwrap();
        assert_eq!((name.as_str(), user.uid, user.gid), ("zoe", Some(1000), Some(100)));
        assert_eq!((user.comment.as_str(), user.home.as_str()), ("Zoe,,,", "/home/zoe"));
        let (_, group) = group("adm:x:4:syslog,zoe").unwrap();
        assert_eq!(group.members.into_iter().collect::<Vec<_>>(), ["syslog", "zoe"]);
        assert!(super::user("# comment").is_none() && super::group("+::").is_none());
    }
}
