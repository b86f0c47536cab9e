//! `user.restored`: a user as it was recorded. The inverse of `user.absent`, and of `user.present` where it changed a password.

use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::password::Password;
use super::wish::{Primary, Seen, Wish};
use super::{LARGEST_ID, NAME, WRITE, check_name};
use crate::disk::Disk;
use crate::file::Filed;
use crate::file::restored::Restored as Files;
use crate::system::{need_root_in, op};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "user.restored",
    summary: "Makes sure a user is as it was recorded; the inverse of user.absent and of changed passwords.",
    params: &[
        NAME,
        ParamSpec::new("uid", ParamKind::Int(0, LARGEST_ID), "Its id.").required(),
        ParamSpec::new("gid", ParamKind::Int(0, LARGEST_ID), "The id of its primary group.").required(),
        ParamSpec::new("groups", ParamKind::TextList, "Groups it is a member of, and no others.").required(),
        ParamSpec::new("comment", ParamKind::Text, "Its full name or purpose.").required(),
        ParamSpec::new("home", ParamKind::Text, "Its home directory.").required(),
        ParamSpec::new("shell", ParamKind::Text, "Its login shell.").required(),
        ParamSpec::new("password", ParamKind::Text, "Its password field, lock included.").secret(),
        ParamSpec::new("aging", ParamKind::TextList, "The six fields of password aging, as written."),
        ParamSpec::new("subuids", ParamKind::TextList, "Its subordinate user ids, each `FIRST-LAST`."),
        ParamSpec::new("subgids", ParamKind::TextList, "Its subordinate group ids, each `FIRST-LAST`."),
        ParamSpec::new("own_group", ParamKind::Bool, "Its primary group is one of its own name."),
        ParamSpec::new("force", ParamKind::Bool, "Change the uid of an existing user; default: false.")
            .default(ParamDefault::Flag(false)),
        ParamSpec::new("entries", ParamKind::Map, "What was in its home, as `file.restored` takes it.")
            .secret(),
    ],
    result: &[("name", "The user's name.")],
    ..WRITE
};

pub(super) struct Restored;

impl Operation for Restored {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let disk = Disk::open(cx)?;
        let seen = serde_json::to_value(wish(params)?.see(cx, &disk)?).unwrap_or_default();
        let files = match files(params) {
            Some(files) => Filed(Files).observe(cx, &files)?.0,
            None => Value::Null,
        };
        Ok(Observed(json!({"user": seen, "files": files})))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let user = Seen::of(&Observed(seen.0["user"].clone()));
        let mut diff = wish(params).map(|wish| wish.diff(&user)).unwrap_or_default();
        if let Some(files_params) = files(params) {
            let files = Filed(Files).diff(&files_params, &Observed(seen.0["files"].clone()));
            diff.fields.extend(files.fields);
        }
        diff
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"name": params.text("name")}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, DESCRIPTOR.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let (wish, disk) = (wish(params)?, Disk::open(cx)?);
        wish.apply(cx, &disk)?;
        if let Some(files_params) = files(params) {
            let files = Filed(Files);
            let seen = files.observe(cx, &files_params)?;
            let diff = files.diff(&files_params, &seen);
            if !diff.is_empty() {
                files.apply(cx, &files_params, &diff)?;
            }
        }
        Ok(Applied { data: Some(json!({"name": wish.name})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, diff: &Diff) {
        let Ok(disk) = Disk::open(cx) else { return };
        if let Ok(wish) = wish(params) {
            wish.predict(cx, &disk).unwrap_or(());
        }
        if let Some(files) = files(params) {
            Filed(Files).predict(cx, &files, diff);
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let seen = Seen::of(&Observed(before.0["user"].clone()));
        if seen.user.is_some() {
            return None;
        }
        let made_home = files(params).is_some() && !seen.home_there;
        op("user.absent", [("name", params.text("name")?.into()), ("remove_home", made_home.into())])
    }
}

/// Returns the parameters of `file.restored` for the home directory, if it was recorded.
fn files(params: &Params) -> Option<Params> {
    let entries = params.get("entries")?;
    let values = [("path", params.get("home")?), ("entries", entries)];
    Some(Params::new(values.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()))
}

fn wish(params: &Params) -> Result<Wish, OpError> {
    let id = |name: &str| params.int(name).and_then(|id| u32::try_from(id).ok());
    let text = |name: &str| params.text(name).map(str::to_owned);
    let hash = text("password");
    if hash.iter().any(|hash| hash.contains([':', '\n', '\0'])) {
        return Err(OpError::invalid("`password` is not a password field"));
    }
    Ok(Wish {
        name: check_name(params.required("name")?)?.to_owned(),
        uid: id("uid"),
        group: id("gid").map(Primary::Id),
        make_group: params.flag("own_group", false),
        groups: Some(params.texts("groups").into_iter().collect()),
        exclusive: true,
        home: text("home"),
        shell: text("shell"),
        comment: text("comment"),
        password: Password { hash, locked: None, literal: true },
        subordinate: params
            .get("subuids")
            .or(params.get("subgids"))
            .map(|_| [params.texts("subuids"), params.texts("subgids")]),
        aging: params.get("aging").map(|_| params.texts("aging")),
        force: params.flag("force", false),
        ..Wish::default()
    })
}
