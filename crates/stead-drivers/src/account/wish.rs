//! What a user should be: read, compared, made or modified. Behind `user.present` and `user.restored`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_runner::operation::{Diff, Observed, OpContext, OpError};

use super::database::{self, Database, Group, Shadow, User};
use super::password::{Password, bare, is_locked};
use super::sandbox::{Accounts, UserChange};
use super::{is_busy, tool};
use crate::disk::{Disk, Last, seen};
use crate::file::entry::directory_on_the_way;
use crate::machine::sandbox::Sandbox;
use crate::system::field;

/// A user as wished. What is `None` is kept, or the system's default for a new one. No `Debug`: it may hold a hash.
#[derive(Clone, Default)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) uid: Option<u32>,
    pub(super) group: Option<Primary>,
    /// Make that group first, by the user's own name.
    pub(super) make_group: bool,
    pub(super) groups: Option<BTreeSet<String>>,
    /// No other groups than these.
    pub(super) exclusive: bool,
    pub(super) home: Option<String>,
    pub(super) shell: Option<String>,
    pub(super) comment: Option<String>,
    pub(super) password: Password,
    pub(super) aging: Option<Vec<String>>,
    /// Subordinate user and group ids that it has, each `FIRST-LAST`; none: as the system gives them.
    pub(super) subordinate: Option<[Vec<String>; 2]>,
    /// For a new one.
    pub(super) system: bool,
    /// For a new one.
    pub(super) create_home: bool,
    /// The uid of an existing one may change.
    pub(super) force: bool,
}

/// A primary group, by name or id.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Primary {
    Id(u32),
    Name(String),
}

/// What is there of a user. No `Debug`: it may hold a hash.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) user: Option<User>,
    /// The primary group's name.
    pub(super) group: Option<String>,
    pub(super) groups: BTreeSet<String>,
    /// Read only if it matters.
    pub(super) shadow: Option<Shadow>,
    wanted_password: Option<String>,
    /// Whether something was at the home directory's place.
    pub(super) home_there: bool,
    /// A group of the same name is there already.
    same_group: bool,
    /// Read only if it matters.
    #[serde(default)]
    subordinate: [Vec<String>; 2],
}

impl Seen {
    /// Returns what an observation holds.
    pub(super) fn of(observed: &Observed) -> Self {
        serde_json::from_value(observed.0.clone()).unwrap_or_default()
    }

    fn password(&self) -> Option<&str> {
        self.shadow.as_ref().map(|shadow| shadow.password.as_str())
    }
}

impl Wish {
    /// Returns what is there, and refuses what cannot be.
    pub(super) fn see(&self, cx: &OpContext, disk: &Disk) -> Result<Seen, OpError> {
        let database = Database::read(cx, disk)?;
        let name = &self.name;
        let user = database.users.get(name).cloned();
        let refuse = |message: String| Err(OpError::permanent(message));
        match (&self.group, self.gid(&database)) {
            (Some(Primary::Name(group)), None) if !database.groups.contains_key(group) => {
                return refuse(format!("there is no group `{group}`"));
            }
            (Some(Primary::Id(gid)), _)
                if database.group_name(*gid).is_none()
                    && (!self.make_group || database.groups.contains_key(name)) =>
            {
                return refuse(format!("there is no group with gid {gid}"));
            }
            _ => {}
        }
        let unknown = self.groups.iter().flatten().find(|group| !database.groups.contains_key(*group));
        if let Some(group) = unknown {
            return refuse(format!("there is no group `{group}`"));
        }
        if let Some(uid) = self.uid {
            let other = database.users.iter().find(|(other, user)| *other != name && user.uid == Some(uid));
            if let Some((other, _)) = other {
                return refuse(format!("uid {uid} belongs to `{other}`"));
            }
            let has = user.as_ref().and_then(|user| user.uid);
            if let Some(has) = has.filter(|has| *has != uid && !self.force) {
                return refuse(format!(
                    "`{name}` has uid {has}, not {uid}; `force: true` changes it, files outside its home keep the old"
                ));
            }
        }
        let mut shadow = None;
        if self.password.is_given() || self.aging.is_some() {
            shadow = database::shadow(disk, name)?.filter(|_| user.is_some());
            shadow = user.as_ref().and_then(|user| user.shadow.clone()).or(shadow);
        }
        let wanted = |shadow: &Option<Shadow>| {
            self.password.wanted(name, shadow.as_ref().map(|shadow| shadow.password.as_str()))
        };
        let wanted_password = if self.password.is_given() { Some(wanted(&shadow)?) } else { None };
        let home = self.home_of(disk, user.as_ref())?;
        let subordinate = match user.as_ref().and_then(|user| user.subordinate.clone()) {
            _ if self.subordinate.is_none() => Default::default(),
            Some(predicted) => predicted,
            None => [
                database::subordinate(disk, "/etc/subuid", name)?,
                database::subordinate(disk, "/etc/subgid", name)?,
            ],
        };
        Ok(Seen {
            subordinate,
            group: user.as_ref().and_then(|user| Some(database.group_name(user.gid?)?.to_owned())),
            groups: database.groups_of(name),
            home_there: disk.exists(Path::new(&home))?,
            same_group: database.groups.contains_key(name),
            shadow,
            wanted_password,
            user,
        })
    }

    fn gid(&self, database: &Database) -> Option<u32> {
        match self.group.as_ref()? {
            Primary::Id(gid) => Some(*gid),
            Primary::Name(name) => database.groups.get(name)?.gid,
        }
    }

    /// Returns where the home directory is or would be.
    fn home_of(&self, disk: &Disk, user: Option<&User>) -> Result<String, OpError> {
        if let Some(home) = self.home.as_ref().or(user.map(|user| &user.home)) {
            return Ok(home.clone());
        }
        let defaults = database::text(disk, "/etc/default/useradd")?.unwrap_or_default();
        let base = defaults.lines().find_map(|line| line.strip_prefix("HOME=")).unwrap_or("/home");
        Ok(format!("{}/{}", base.trim(), self.name))
    }

    /// Returns the fields that differ.
    pub(super) fn diff(&self, seen: &Seen) -> Diff {
        let mut fields = Vec::new();
        if seen.user.is_none() {
            fields.push(field("user", Value::Null, self.name.as_str()));
        }
        let user = seen.user.as_ref();
        if let Some(uid) = self.uid
            && user.and_then(|user| user.uid) != Some(uid)
        {
            fields.push(field("uid", json!(user.and_then(|user| user.uid)), uid));
        }
        match &self.group {
            Some(Primary::Id(gid)) if user.and_then(|user| user.gid) != Some(*gid) => {
                fields.push(field("group", json!(user.and_then(|user| user.gid)), *gid));
            }
            Some(Primary::Name(name)) if seen.group.as_ref() != Some(name) => {
                fields.push(field("group", json!(seen.group), name.as_str()));
            }
            Some(Primary::Id(_) | Primary::Name(_)) | None => {}
        }
        if let Some(groups) = self.wanted_groups(seen) {
            fields.push(field("groups", json!(seen.groups), json!(groups)));
        }
        let texts = [
            ("home", &self.home, user.map(|user| &user.home)),
            ("shell", &self.shell, user.map(|user| &user.shell)),
            ("comment", &self.comment, user.map(|user| &user.comment)),
        ];
        for (name, wanted, has) in texts {
            if let Some(wanted) = wanted
                && has != Some(wanted)
            {
                fields.push(field(name, json!(has), wanted.as_str()));
            }
        }
        if let Some(wanted) = &seen.wanted_password {
            let has = seen.password();
            if self.password.hash.is_some() && has.map(bare) != Some(bare(wanted)) {
                fields.push(field("password_hash", has.map(|_| "***"), "***"));
            }
            if has.map(is_locked) != Some(is_locked(wanted)) {
                fields.push(field("locked", json!(has.map(is_locked)), is_locked(wanted)));
            }
        }
        if let Some(aging) = &self.aging {
            let has = seen.shadow.as_ref().map(|shadow| &shadow.aging);
            if has != Some(aging) {
                fields.push(field("aging", json!(has), json!(aging)));
            }
        }
        for (name, (has, lacks)) in ["subuids", "subgids"].iter().zip(self.lacking(seen)) {
            if !lacks.is_empty() {
                fields.push(field(name, json!(has), json!([has.clone(), lacks].concat())));
            }
        }
        Diff { fields, text: None }
    }

    /// Returns the subordinate user and group ids that it has, each with those that it should have besides.
    fn lacking<'a>(&self, seen: &'a Seen) -> [(&'a Vec<String>, Vec<String>); 2] {
        let wanted = self.subordinate.clone().unwrap_or_default();
        [0, 1].map(|i| {
            let has = &seen.subordinate[i];
            (has, wanted[i].iter().filter(|ids| !has.contains(ids)).cloned().collect())
        })
    }

    /// Returns the groups it should be in, if that differs from those it is in.
    fn wanted_groups(&self, seen: &Seen) -> Option<BTreeSet<String>> {
        let groups = self.groups.as_ref()?;
        let wanted = if self.exclusive { groups.clone() } else { groups | &seen.groups };
        (wanted != seen.groups).then_some(wanted)
    }

    /// Makes or modifies the user.
    pub(super) fn apply(&self, cx: &OpContext, disk: &Disk) -> Result<(), OpError> {
        let seen = self.see(cx, disk)?;
        if let Some(sandbox) = Sandbox::of(cx) {
            return self.apply_in(&sandbox, cx, disk, &seen);
        }
        let is_new = seen.user.is_none();
        if let Some(Primary::Id(gid)) = &self.group
            && self.make_group
            && !seen.same_group
        {
            let gid = gid.to_string();
            tool(cx, "groupadd")?.args(["-g", &gid, "--", &self.name]).must_when_free(is_busy)?;
        }
        let mut change = tool(cx, if is_new { "useradd" } else { "usermod" })?;
        let mut changes = is_new;
        let diff = self.diff(&seen);
        for differing in &diff.fields {
            let option = match differing.name.as_str() {
                "uid" => "-u",
                "group" => "-g",
                "groups" => "-G",
                "home" => "-d",
                "shell" => "-s",
                "comment" => "-c",
                _ => continue,
            };
            let value = match &differing.after {
                Value::String(text) => text.clone(),
                Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
                other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                    other.to_string()
                }
            };
            change = change.arg(option).arg(value);
            changes = true;
        }
        if is_new {
            change = change.arg(if self.create_home { "-m" } else { "-M" });
            if self.system {
                change = change.arg("-r");
            }
            if self.subordinate.is_some() {
                change = change.args(["-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0"]);
            }
            if self.group.is_none() && seen.same_group {
                // `useradd` would want to make a group of the user's own, and finds it made.
                change = change.args(["-g", &self.name]);
            }
        }
        if changes {
            change.args(["--", &self.name]).must_when_free(is_busy)?;
        }
        // Also of one that is there: a run may have been cut off before this.
        for (option, (_, lacks)) in ["-v", "-w"].iter().zip(self.lacking(&seen)) {
            for ids in &lacks {
                tool(cx, "usermod")?
                    .args([option, ids.as_str(), "--", &self.name])
                    .must_when_free(is_busy)?;
            }
        }
        if let Some(wanted) = &seen.wanted_password
            && database::shadow(disk, &self.name)?.is_none_or(|shadow| shadow.password != *wanted)
        {
            let line = format!("{}:{wanted}\n", self.name).into_bytes();
            tool(cx, "chpasswd")?.arg("-e").stdin(line).must_when_free(is_busy)?;
        }
        if let Some(aging) = &self.aging {
            self.age(cx, aging)?;
        }
        Ok(())
    }

    /// As [`Self::apply`], by the sandbox's own files.
    fn apply_in(&self, sandbox: &Sandbox, cx: &OpContext, disk: &Disk, seen: &Seen) -> Result<(), OpError> {
        let gid = self.gid(&Database::read(cx, disk)?);
        let mut accounts = Accounts::open(sandbox, cx, disk)?;
        if self.make_group && !seen.same_group {
            accounts.set_group(&self.name, gid, None, self.system)?;
        }
        accounts.set_user(&UserChange {
            name: &self.name,
            uid: self.uid,
            gid,
            groups: self.wanted_groups(seen),
            home: self.home_of(disk, seen.user.as_ref())?,
            shell: self.shell.as_deref(),
            comment: self.comment.as_deref(),
            password: seen.wanted_password.as_deref(),
            aging: self.aging.as_deref(),
            system: self.system,
            create_home: self.create_home,
        })
    }

    fn age(&self, cx: &OpContext, aging: &[String]) -> Result<(), OpError> {
        let mut change = tool(cx, "chage")?;
        for (option, value) in ["-d", "-m", "-M", "-W", "-I", "-E"].iter().zip(aging) {
            // An empty field is written by -1.
            change = change.arg(option).arg(if value.is_empty() { "-1" } else { value });
        }
        change.args(["--", &self.name]).must_when_free(is_busy).map(|_| ())
    }

    /// Records what `apply` would leave.
    pub(super) fn predict(&self, cx: &OpContext, disk: &Disk) -> Result<(), OpError> {
        let seen = self.see(cx, disk)?;
        let database = Database::read(cx, disk)?;
        let is_new = seen.user.is_none();
        let home = self.home_of(disk, seen.user.as_ref())?;
        let mut user = seen.user.clone().unwrap_or_default();
        user.uid = self.uid.or(user.uid);
        user.gid = self.gid(&database).or(user.gid);
        user.home = home.clone();
        user.shell = self.shell.clone().unwrap_or(user.shell);
        user.comment = self.comment.clone().unwrap_or(user.comment);
        if self.password.is_given() || self.aging.is_some() {
            let mut shadow = seen.shadow.clone().unwrap_or_default();
            shadow.password = seen.wanted_password.clone().unwrap_or(shadow.password);
            shadow.aging = self.aging.clone().unwrap_or(shadow.aging);
            user.shadow = Some(shadow);
        }
        if self.subordinate.is_some() {
            let [uids, gids] = self.lacking(&seen).map(|(has, lacks)| [has.clone(), lacks].concat());
            user.subordinate = Some([uids, gids]);
        }
        let set = |name: &str, group: &Group| {
            cx.predicted.set(format!("group:{name}"), serde_json::to_value(group).unwrap_or_default());
        };
        let gets_own = is_new && self.group.is_none() && private_groups(disk)?;
        if (gets_own || self.make_group) && !seen.same_group {
            set(&self.name, &Group { gid: user.gid, members: BTreeSet::new() });
        }
        cx.predicted.set(format!("user:{}", self.name), serde_json::to_value(&user).unwrap_or_default());
        if let Some(wanted) = self.wanted_groups(&seen) {
            for (name, mut group) in database.groups {
                let was = group.members.clone();
                if wanted.contains(&name) {
                    group.members.insert(self.name.clone());
                } else {
                    group.members.remove(&self.name);
                }
                if group.members != was {
                    set(&name, &group);
                }
            }
        }
        if is_new && self.create_home && !seen.home_there {
            let spot = disk.locate(Path::new(&home), Last::Follow)?;
            for path in &spot.missing {
                disk.predict(path, &directory_on_the_way());
            }
            let made = directory_on_the_way();
            let (uid, gid) = (user.uid.unwrap_or(made.uid), user.gid.unwrap_or(made.gid));
            disk.predict(&spot.path, &seen::Seen { mode: home_mode(disk)?, uid, gid, ..made });
        }
        Ok(())
    }
}

/// Whether a new user gets a group of its own.
fn private_groups(disk: &Disk) -> Result<bool, OpError> {
    Ok(definition(disk, "USERGROUPS_ENAB")?.is_some_and(|value| value == "yes"))
}

/// Returns the permission bits that the home of a new user gets.
fn home_mode(disk: &Disk) -> Result<u32, OpError> {
    let octal = |text: String| u32::from_str_radix(&text, 8).ok();
    if let Some(mode) = definition(disk, "HOME_MODE")?.and_then(octal) {
        return Ok(mode & 0o7777);
    }
    Ok(0o777 & !definition(disk, "UMASK")?.and_then(octal).unwrap_or(0o022))
}

/// Returns what the system's definitions for new accounts say of `name`.
fn definition(disk: &Disk, name: &str) -> Result<Option<String>, OpError> {
    let definitions = database::text(disk, "/etc/login.defs")?.unwrap_or_default();
    let words = |line: &str| {
        let (word, value) = line.trim().split_once(char::is_whitespace)?;
        (word == name).then(|| value.trim().to_owned())
    };
    Ok(definitions.lines().find_map(words))
}
