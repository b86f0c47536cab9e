//! `user.present`: a user with these fields.

use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::database::User;
use super::password::{self, Password};
use super::wish::{Primary, Seen, Wish};
use super::{LARGEST_ID, NAME, WRITE, check_name};
use crate::disk::Disk;
use crate::system::{need_root_in, op};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "user.present",
    summary: "Makes sure a user is there, with these fields.",
    params: &[
        NAME,
        ParamSpec::new(
            "uid",
            ParamKind::Int(0, LARGEST_ID),
            "Its id; that of an existing user is changed only with `force`.",
        ),
        ParamSpec::new(
            "group",
            ParamKind::Principal,
            "Its primary group, a name or an id; default: one of its own name, if the system makes such.",
        ),
        ParamSpec::new("groups", ParamKind::TextList, "Groups it is a member of; others are kept."),
        ParamSpec::new("exclusive_groups", ParamKind::Bool, "It is in no other groups; default: false.").default(ParamDefault::Flag(false)),
        ParamSpec::new("home", ParamKind::AbsolutePath, "Its home directory; an existing one is not moved.")
            .judged(judge_field),
        ParamSpec::new("create_home", ParamKind::Bool, "Make the home of a new user; default: true.").default(ParamDefault::Flag(true)),
        ParamSpec::new("shell", ParamKind::AbsolutePath, "Its login shell.").judged(judge_field),
        ParamSpec::new("comment", ParamKind::Text, "Its full name or purpose.").judged(judge_field),
        ParamSpec::new(
            "password_hash",
            ParamKind::NonEmptyText,
            "Its password as a crypt(3) hash, or `*` for none; a lock that is there stays unless `locked` is given.",
        )
        .secret(),
        ParamSpec::new("locked", ParamKind::Bool, "Whether its password opens nothing; keys still may."),
        ParamSpec::new("system", ParamKind::Bool, "A new user gets a system id; default: false.").default(ParamDefault::Flag(false)),
        ParamSpec::new("force", ParamKind::Bool, "Change the uid of an existing user; default: false.").default(ParamDefault::Flag(false)),
    ],
    result: &[("name", "The user's name."), ("uid", "Its id."), ("home", "Its home directory.")],
    ..WRITE
};

pub(super) struct Present;

impl Operation for Present {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let seen = wish(params)?.see(cx, &Disk::open(cx)?)?;
        Ok(Observed(serde_json::to_value(seen).unwrap_or_default()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        wish(params).map(|wish| wish.diff(&Seen::of(seen))).unwrap_or_default()
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, seen: &Observed) -> Option<Value> {
        let user = Seen::of(seen).user?;
        Some(json!({"name": params.text("name"), "uid": user.uid, "home": user.home}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, DESCRIPTOR.name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let (wish, disk) = (wish(params)?, Disk::open(cx)?);
        wish.apply(cx, &disk)?;
        let user = wish.see(cx, &disk)?.user.unwrap_or_default();
        let data = json!({"name": wish.name, "uid": user.uid, "home": user.home});
        Ok(Applied { data: Some(data), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let predicted = wish(params).and_then(|wish| wish.predict(cx, &Disk::open(cx)?));
        // It was observed a moment ago; if that fails now, later observations fail by themselves.
        predicted.unwrap_or(());
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let (wish, seen) = (wish(params).ok()?, Seen::of(before));
        let name = ("name", Value::from(wish.name.as_str()));
        let Some(user) = &seen.user else {
            let made_home = wish.create_home && !seen.home_there;
            return op("user.absent", [name, ("remove_home", made_home.into())]);
        };
        let differing = wish.diff(&seen);
        let differs = |field: &str| differing.fields.iter().any(|differing| differing.name == field);
        if differs("password_hash") || differs("locked") {
            return restored(name, user, &seen);
        }
        let mut values = vec![name, ("force", true.into())];
        for differing in &differing.fields {
            match differing.name.as_str() {
                "uid" => values.push(("uid", user.uid?.into())),
                "group" => values.push(("group", user.gid?.into())),
                "groups" => {
                    values.push(("groups", json!(seen.groups)));
                    values.push(("exclusive_groups", true.into()));
                }
                "home" => values.push(("home", user.home.as_str().into())),
                "shell" => values.push(("shell", user.shell.as_str().into())),
                "comment" => values.push(("comment", user.comment.as_str().into())),
                _ => {}
            }
        }
        op(DESCRIPTOR.name, values)
    }
}

/// Returns what brings the whole account back, the day of the last change of its password included: that day is
/// written by whatever writes the password.
fn restored(name: (&'static str, Value), user: &User, seen: &Seen) -> Option<Op> {
    let shadow = seen.shadow.as_ref()?;
    // The system's program writes no empty password, which an open account has.
    if shadow.password.is_empty() {
        return None;
    }
    op(
        "user.restored",
        [
            name,
            ("uid", user.uid?.into()),
            ("gid", user.gid?.into()),
            ("groups", json!(seen.groups)),
            ("comment", user.comment.as_str().into()),
            ("home", user.home.as_str().into()),
            ("shell", user.shell.as_str().into()),
            ("password", shadow.password.as_str().into()),
            ("aging", json!(shadow.aging)),
            ("force", true.into()),
        ],
    )
}

/// Whether account files can hold a text as a field.
fn is_field(text: &str) -> bool {
    !text.contains([':', '\n', '\0'])
}

fn judge_field(value: &Value) -> Option<String> {
    judge_texts(value, |text| {
        (!is_field(text)).then(|| "a `:` or a line end, which account files cannot hold".to_owned())
    })
}

fn wish(params: &Params) -> Result<Wish, OpError> {
    let name = check_name(params.required("name")?)?.to_owned();
    let text = |field: &str| match params.text(field) {
        Some(text) if !is_field(text) => {
            Err(OpError::invalid(format!("`{field}` holds a `:` or a line end, which account files cannot")))
        }
        Some(text) => Ok(Some(text.to_owned())),
        None => Ok(None),
    };
    if params.flag("exclusive_groups", false) && params.get("groups").is_none() {
        return Err(OpError::invalid(
            "`exclusive_groups` needs `groups`; an empty list takes the user off all of them",
        ));
    }
    let hash = params.text("password_hash").map(password::check_hash).transpose()?;
    let group = match params.get("group") {
        Some(Value::String(name)) => Some(match name.parse() {
            Ok(id) => Primary::Id(id),
            Err(_) => Primary::Name(name.clone()),
        }),
        Some(id) => id.as_u64().and_then(|id| u32::try_from(id).ok()).map(Primary::Id),
        None => None,
    };
    Ok(Wish {
        uid: params.int("uid").and_then(|uid| u32::try_from(uid).ok()),
        group,
        make_group: false,
        groups: params.get("groups").map(|_| params.texts("groups").into_iter().collect()),
        exclusive: params.flag("exclusive_groups", false),
        home: text("home")?,
        shell: text("shell")?,
        comment: text("comment")?,
        password: Password {
            hash: hash.map(str::to_owned),
            locked: params.get("locked").and_then(Value::as_bool),
            literal: false,
        },
        aging: None,
        subordinate: None,
        system: params.flag("system", false),
        create_home: params.flag("create_home", true),
        force: params.flag("force", false),
        name,
    })
}
