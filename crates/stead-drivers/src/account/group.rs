//! `group.present`, `group.absent` and `group.restored`, which is how the second is undone.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::database::{Database, Group};
use super::sandbox::Accounts;
use super::{LARGEST_ID, NAME, WRITE, check_name, is_busy, tool};
use crate::disk::Disk;
use crate::machine::sandbox::Sandbox;
use crate::system::{field, need_root_in, op};

const GID: ParamSpec = ParamSpec::new("gid", ParamKind::Int(0, LARGEST_ID), "Its id; default: kept.");
const RESULT: &[(&str, &str)] = &[("name", "The group's name."), ("gid", "Its id.")];

static PRESENT: Descriptor = Descriptor {
    name: "group.present",
    summary: "Makes sure a group is there, with this id.",
    params: &[
        NAME,
        GID,
        ParamSpec::new("system", ParamKind::Bool, "A new group gets a system id; default: false.")
            .default(ParamDefault::Flag(false)),
    ],
    result: RESULT,
    ..WRITE
};

static ABSENT: Descriptor = Descriptor {
    name: "group.absent",
    summary: "Makes sure a group is not there; a user's primary group is refused.",
    params: &[NAME],
    result: &[("name", "The group's name.")],
    ..WRITE
};

static RESTORED: Descriptor = Descriptor {
    name: "group.restored",
    summary: "Makes sure a group is as it was recorded; the inverse of group.absent.",
    params: &[
        NAME,
        GID.required(),
        ParamSpec::new("members", ParamKind::TextList, "Its members, and no others.").required(),
    ],
    result: RESULT,
    ..WRITE
};

/// What is there of a group.
#[derive(Default, Serialize, Deserialize)]
struct Seen(Option<Group>);

impl Seen {
    fn of(observed: &Observed) -> Self {
        serde_json::from_value(observed.0.clone()).unwrap_or_default()
    }
}

/// What a group should be.
struct Wish {
    name: String,
    gid: Option<u32>,
    members: Option<BTreeSet<String>>,
    system: bool,
}

impl Wish {
    fn new(params: &Params) -> Result<Self, OpError> {
        Ok(Self {
            name: check_name(params.required("name")?)?.to_owned(),
            gid: params.int("gid").and_then(|gid| u32::try_from(gid).ok()),
            members: params.get("members").map(|_| params.texts("members").into_iter().collect()),
            system: params.flag("system", false),
        })
    }

    fn see(&self, cx: &OpContext) -> Result<Seen, OpError> {
        let database = Database::read(cx, &Disk::open(cx)?)?;
        let other = self.gid.and_then(|gid| database.group_name(gid)).filter(|other| *other != self.name);
        if let (Some(other), Some(gid)) = (other, self.gid) {
            return Err(OpError::permanent(format!("gid {gid} belongs to `{other}`")));
        }
        Ok(Seen(database.groups.get(&self.name).cloned()))
    }

    fn diff(&self, seen: &Seen) -> Diff {
        let mut fields = Vec::new();
        let group = seen.0.as_ref();
        if group.is_none() {
            fields.push(field("group", Value::Null, self.name.as_str()));
        }
        let gid = group.and_then(|group| group.gid);
        if let Some(wanted) = self.gid.filter(|wanted| gid != Some(*wanted)) {
            fields.push(field("gid", json!(gid), wanted));
        }
        let members = group.map(|group| &group.members);
        if let Some(wanted) = self.members.as_ref().filter(|wanted| members != Some(wanted)) {
            fields.push(field("members", json!(members), json!(wanted)));
        }
        Diff { fields, text: None }
    }

    fn apply(&self, cx: &OpContext) -> Result<Applied, OpError> {
        if let Some(sandbox) = Sandbox::of(cx) {
            let disk = Disk::open(cx)?;
            let mut accounts = Accounts::open(&sandbox, cx, &disk)?;
            accounts.set_group(&self.name, self.gid, self.members.as_ref(), self.system)?;
            return self.applied(cx);
        }
        let seen = self.see(cx)?;
        let has = |name: &str| self.diff(&seen).fields.iter().any(|field| field.name == name);
        let gid = self.gid.map(|gid| gid.to_string());
        let gid_args = || gid.iter().flat_map(|gid| ["-g", gid]);
        if seen.0.is_none() {
            let mut make = tool(cx, "groupadd")?.args(gid_args());
            if self.system {
                make = make.arg("-r");
            }
            make.args(["--", &self.name]).must_when_free(is_busy)?;
        } else if has("gid") {
            tool(cx, "groupmod")?.args(gid_args()).args(["--", &self.name]).must_when_free(is_busy)?;
        }
        if let Some(members) = self.members.as_ref().filter(|_| has("members")) {
            let members = members.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            tool(cx, "gpasswd")?.args(["-M", &members, "--", &self.name]).must_when_free(is_busy)?;
        }
        self.applied(cx)
    }

    fn applied(&self, cx: &OpContext) -> Result<Applied, OpError> {
        let gid = self.see(cx)?.0.and_then(|group| group.gid);
        Ok(Applied { data: Some(json!({"name": self.name, "gid": gid})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext) -> Result<(), OpError> {
        let mut group = self.see(cx)?.0.unwrap_or_default();
        group.gid = self.gid.or(group.gid);
        group.members = self.members.clone().unwrap_or(group.members);
        cx.predicted.set(format!("group:{}", self.name), serde_json::to_value(group).unwrap_or_default());
        Ok(())
    }
}

fn observed(seen: &Seen) -> Observed {
    Observed(serde_json::to_value(seen).unwrap_or_default())
}

pub(super) struct Present;
pub(super) struct Absent;
pub(super) struct Restored;

impl Operation for Present {
    fn descriptor(&self) -> &'static Descriptor {
        &PRESENT
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        Ok(observed(&Wish::new(params)?.see(cx)?))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        Wish::new(params).map(|wish| wish.diff(&Seen::of(seen))).unwrap_or_default()
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, seen: &Observed) -> Option<Value> {
        Some(json!({"name": params.text("name"), "gid": Seen::of(seen).0?.gid}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, PRESENT.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        Wish::new(params)?.apply(cx)
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        Wish::new(params).and_then(|wish| wish.predict(cx)).unwrap_or(());
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let name = ("name", Value::from(params.text("name")?));
        match Seen::of(before).0 {
            Some(group) => op(PRESENT.name, [name, ("gid", group.gid?.into())]),
            None => op(ABSENT.name, [name]),
        }
    }
}

impl Operation for Absent {
    fn descriptor(&self) -> &'static Descriptor {
        &ABSENT
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let name = check_name(params.required("name")?)?;
        let database = Database::read(cx, &Disk::open(cx)?)?;
        let group = database.groups.get(name);
        let gid = group.and_then(|group| group.gid);
        let user = gid.and_then(|gid| database.users.iter().find(|(_, user)| user.gid == Some(gid)));
        if let Some((user, _)) = user {
            return Err(OpError::permanent(format!("`{name}` is the primary group of user `{user}`")));
        }
        Ok(observed(&Seen(group.cloned())))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let there = Seen::of(seen).0.is_some();
        let gone = there.then(|| field("group", params.text("name").unwrap_or_default(), Value::Null));
        Diff { fields: gone.into_iter().collect(), text: None }
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"name": params.text("name")}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, ABSENT.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let name = params.required("name")?;
        match Sandbox::of(cx) {
            Some(sandbox) => Accounts::open(&sandbox, cx, &Disk::open(cx)?)?.remove_group(name)?,
            None => drop(tool(cx, "groupdel")?.args(["--", name]).must_when_free(is_busy)?),
        }
        Ok(Applied { data: Some(json!({"name": name})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        cx.predicted.set(format!("group:{}", params.text("name").unwrap_or_default()), Value::Null);
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let group = Seen::of(before).0?;
        let name = ("name", Value::from(params.text("name")?));
        op(RESTORED.name, [name, ("gid", group.gid?.into()), ("members", json!(group.members))])
    }
}

impl Operation for Restored {
    fn descriptor(&self) -> &'static Descriptor {
        &RESTORED
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        Present.observe(cx, params)
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        Present.diff(params, seen)
    }

    fn unchanged(&self, cx: &OpContext, params: &Params, seen: &Observed) -> Option<Value> {
        Present.unchanged(cx, params, seen)
    }

    fn permit(&self, cx: &OpContext, params: &Params, seen: &Observed) -> Result<(), OpError> {
        Present.permit(cx, params, seen)
    }

    fn apply(&self, cx: &OpContext, params: &Params, diff: &Diff) -> Result<Applied, OpError> {
        Present.apply(cx, params, diff)
    }

    fn predict(&self, cx: &OpContext, params: &Params, diff: &Diff) {
        Present.predict(cx, params, diff);
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let name = ("name", Value::from(params.text("name")?));
        match Seen::of(before).0 {
            Some(group) => {
                op(RESTORED.name, [name, ("gid", group.gid?.into()), ("members", json!(group.members))])
            }
            None => op(ABSENT.name, [name]),
        }
    }
}
