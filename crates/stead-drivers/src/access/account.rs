//! An account by name: from the root prefix's own `passwd`, or from this system.

use std::path::PathBuf;

use serde_json::Value;
use stead_runner::operation::OpError;

use crate::machine::sandbox::Sandbox;
use crate::setup::{Setup, input, settle};

/// What a file in an account's home needs to know of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) home: PathBuf,
}

impl Account {
    /// Refuses a `name` that no account has; one that a dry run would have made by now is there.
    pub(crate) fn require(setup: &Setup<'_>, name: &str) -> Result<(), OpError> {
        match setup.cx.predicted.get(&format!("user:{name}")) {
            Some(Value::Null) => Err(unknown(name)),
            Some(_) => Ok(()),
            None => Self::find(setup, name).map(drop),
        }
    }

    /// Returns the account called `name`.
    pub(super) fn find(setup: &Setup<'_>, name: &str) -> Result<Self, OpError> {
        let unknown = || unknown(name);
        input::word("user", name)?;
        let found = match setup.cx.predicted.get(&format!("user:{name}")) {
            Some(Value::Null) => return Err(unknown()),
            Some(predicted) => Some(Self::predicted(name, &predicted)?),
            None => {
                let passwd = setup.read_through("/etc/passwd".as_ref())?.unwrap_or_default();
                Self::in_text(&String::from_utf8_lossy(&passwd), name)
            }
        };
        if let Some(account) = found {
            if Sandbox::of(setup.cx).is_some() {
                // Every account of a sandbox is the one that runs it.
                let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                return Ok(Self { uid, gid, ..account });
            }
            return Ok(account);
        }
        if !setup.is_running() {
            return Err(unknown());
        }
        // A directory service may know more than the file.
        let said = settle::run(setup.cx, "getent", &["--", "passwd", name]).map_err(|_| unknown())?;
        Self::in_text(&said.stdout, name).filter(|_| said.is_ok()).ok_or_else(unknown)
    }

    /// Returns the account that a dry run would have made or changed by now, as far as that is known.
    fn predicted(name: &str, user: &Value) -> Result<Self, OpError> {
        let id = |field: &str| user[field].as_u64().and_then(|id| u32::try_from(id).ok());
        match (id("uid"), id("gid"), user["home"].as_str()) {
            (Some(uid), Some(gid), Some(home)) if home.starts_with('/') => {
                Ok(Self { uid, gid, home: home.into() })
            }
            _ => Err(OpError {
                not_known: true,
                ..OpError::operation(format!(
                    "an earlier task would make user `{name}`; its ids are not known yet"
                ))
            }),
        }
    }

    fn in_text(text: &str, name: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let &[found, _, uid, gid, _, home, _] = &fields[..] else { return None };
            (found == name && home.starts_with('/')).then_some(())?;
            Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: home.into() })
        })
    }
}

fn unknown(name: &str) -> OpError {
    OpError::permanent(format!("there is no user `{name}`"))
}
