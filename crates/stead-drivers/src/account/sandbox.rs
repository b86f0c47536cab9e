//! Accounts of a sandbox: lines of its own files, written without the system's programs, which would need root.
//!
//! They are names. Everything in a sandbox belongs to the account that runs it, whatever its files call that.

use std::collections::BTreeSet;
use std::path::Path;

use stead_runner::operation::{OpContext, OpError, Params};

use crate::disk::seen::{Depth, Kind};
use crate::disk::{Disk, Last};
use crate::file;
use crate::file::entry::{Entry, Want};
use crate::machine::sandbox::Sandbox;

/// The first id of people, and of their groups.
const FIRST: u32 = 1000;
/// The last id of system accounts; they are given out from here downwards.
const LAST_SYSTEM: u32 = 999;

/// What is to become of a user. What is `None` stays, or is as for a new one.
pub(super) struct UserChange<'a> {
    pub(super) name: &'a str,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    /// All groups it is listed in.
    pub(super) groups: Option<BTreeSet<String>>,
    pub(super) home: String,
    pub(super) shell: Option<&'a str>,
    pub(super) comment: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) aging: Option<&'a [String]>,
    pub(super) system: bool,
    pub(super) create_home: bool,
}

/// The account files of a sandbox, each as lines of fields.
pub(super) struct Accounts<'a> {
    cx: &'a OpContext,
    disk: &'a Disk,
    users: Vec<Vec<String>>,
    groups: Vec<Vec<String>>,
    shadows: Vec<Vec<String>>,
    _lock: std::fs::File,
}

impl<'a> Accounts<'a> {
    /// Returns the accounts of `sandbox`, locked until they are dropped.
    pub(super) fn open(sandbox: &Sandbox, cx: &'a OpContext, disk: &'a Disk) -> Result<Self, OpError> {
        let lock = sandbox.hold_accounts()?;
        let read = |path: &str| -> Result<Vec<Vec<String>>, OpError> {
            let text = disk.text(Path::new(path))?.unwrap_or_default();
            Ok(text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect())
        };
        Ok(Self {
            cx,
            disk,
            users: read("/etc/passwd")?,
            groups: read("/etc/group")?,
            shadows: read("/etc/shadow")?,
            _lock: lock,
        })
    }

    /// Makes or changes a user.
    pub(super) fn set_user(&mut self, change: &UserChange<'_>) -> Result<(), OpError> {
        let is_new = !self.users.iter().any(|user| names(user, change.name));
        if is_new {
            let uid = change.uid.unwrap_or_else(|| free(&self.users, change.system));
            let gid = match change.gid.or_else(|| self.gid_of(change.name)) {
                Some(gid) => gid,
                None => self.add_group(change.name, None, change.system),
            };
            let fields = [change.name, "x", &uid.to_string(), &gid.to_string(), "", &change.home, "/bin/sh"];
            self.users.push(fields.map(str::to_owned).to_vec());
            self.shadows.push([change.name, "!", "", "", "", "", "", "", ""].map(str::to_owned).to_vec());
            if change.create_home {
                self.make_home(&change.home)?;
            }
        }
        let (uid, gid) = (change.uid.map(|uid| uid.to_string()), change.gid.map(|gid| gid.to_string()));
        let home = Some(change.home.as_str());
        let values =
            [(2, uid.as_deref()), (3, gid.as_deref()), (4, change.comment), (5, home), (6, change.shell)];
        for user in self.users.iter_mut().filter(|user| names(user, change.name)) {
            set(user, values);
        }
        if let Some(groups) = &change.groups {
            for group in &mut self.groups {
                let is_wanted = group.first().is_some_and(|name| groups.contains(name));
                set_member(group, change.name, is_wanted);
            }
        }
        if !self.shadows.iter().any(|shadow| names(shadow, change.name)) {
            self.shadows.push([change.name, "!", "", "", "", "", "", "", ""].map(str::to_owned).to_vec());
        }
        for shadow in self.shadows.iter_mut().filter(|shadow| names(shadow, change.name)) {
            set(shadow, [(1, change.password)]);
            let aging = change.aging.unwrap_or_default().iter().enumerate();
            set(shadow, aging.map(|(place, value)| (place + 2, Some(value.as_str()))));
        }
        self.write()
    }

    /// Removes a user, and the group that was its own.
    pub(super) fn remove_user(&mut self, name: &str) -> Result<(), OpError> {
        let gid = self.users.iter().find(|user| names(user, name)).and_then(|user| user.get(3).cloned());
        self.users.retain(|user| !names(user, name));
        self.shadows.retain(|shadow| !names(shadow, name));
        for group in &mut self.groups {
            set_member(group, name, false);
        }
        let is_used = self.users.iter().any(|user| user.get(3) == gid.as_ref());
        let is_own = |group: &[String]| {
            names(group, name) && group.get(2) == gid.as_ref() && group.get(3).is_none_or(String::is_empty)
        };
        self.groups.retain(|group| is_used || !is_own(group));
        self.write()
    }

    /// Makes or changes a group.
    pub(super) fn set_group(
        &mut self,
        name: &str,
        gid: Option<u32>,
        members: Option<&BTreeSet<String>>,
        system: bool,
    ) -> Result<(), OpError> {
        if self.gid_of(name).is_none() {
            self.add_group(name, gid, system);
        }
        let gid = gid.map(|gid| gid.to_string());
        let members = members.map(|members| members.iter().map(String::as_str).collect::<Vec<_>>().join(","));
        for group in self.groups.iter_mut().filter(|group| names(group, name)) {
            set(group, [(2, gid.as_deref()), (3, members.as_deref())]);
        }
        self.write()
    }

    /// Removes a group.
    pub(super) fn remove_group(&mut self, name: &str) -> Result<(), OpError> {
        self.groups.retain(|group| !names(group, name));
        self.write()
    }

    fn gid_of(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|group| names(group, name))?.get(2)?.parse().ok()
    }

    fn add_group(&mut self, name: &str, gid: Option<u32>, system: bool) -> u32 {
        let gid = gid.unwrap_or_else(|| free(&self.groups, system));
        self.groups.push([name, "x", &gid.to_string(), ""].map(str::to_owned).to_vec());
        gid
    }

    fn make_home(&self, home: &str) -> Result<(), OpError> {
        let path = self.disk.real_path(Path::new(home))?;
        std::fs::create_dir_all(&path).map_err(|error| OpError::io(format_args!("home `{home}`"), &error))
    }

    /// Replaces the files, those that others refer to first.
    fn write(&self) -> Result<(), OpError> {
        let mut entries = Vec::new();
        for (path, lines) in
            [("/etc/group", &self.groups), ("/etc/shadow", &self.shadows), ("/etc/passwd", &self.users)]
        {
            let text: String = lines.iter().map(|fields| format!("{}\n", fields.join(":"))).collect();
            let spot = self.disk.locate(Path::new(path), Last::Follow)?;
            let seen = self.disk.see(&spot, Depth::Content)?;
            let want = Want::new(Kind::File).content(text.into_bytes());
            let want = if path == "/etc/shadow" { want.mode(0o600) } else { want };
            entries.push(Entry { label: path.to_owned(), spot, seen, want });
        }
        entries.retain(Entry::differs);
        file::apply(self.cx, self.disk, &Params::default(), entries).map(drop)
    }
}

fn names(fields: &[String], name: &str) -> bool {
    fields.first().is_some_and(|first| first == name)
}

/// Sets fields by their place; those without a value stay.
fn set<'v>(fields: &mut [String], values: impl IntoIterator<Item = (usize, Option<&'v str>)>) {
    for (place, value) in values {
        if let (Some(field), Some(value)) = (fields.get_mut(place), value) {
            value.clone_into(field);
        }
    }
}

fn set_member(group: &mut [String], name: &str, is_member: bool) {
    let Some(field) = group.get_mut(3) else { return };
    let mut members: Vec<&str> = field.split(',').filter(|member| !member.is_empty()).collect();
    if members.contains(&name) != is_member {
        members.retain(|member| *member != name);
        members.extend(is_member.then_some(name));
        *field = members.join(",");
    }
}

/// Returns an id that no line has.
fn free(lines: &[Vec<String>], system: bool) -> u32 {
    let taken: BTreeSet<u32> = lines.iter().filter_map(|fields| fields.get(2)?.parse().ok()).collect();
    let mut people = FIRST..60_000;
    let mut services = (1..=LAST_SYSTEM).rev();
    let next =
        if system { services.find(|id| !taken.contains(id)) } else { people.find(|id| !taken.contains(id)) };
    next.unwrap_or(FIRST)
}
