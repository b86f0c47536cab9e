//! `ssh.daemon`: settings of the SSH daemon, in a drop-in of their own.
//!
//! What counts is the effective value: `sshd -T` is asked for it, and for how it spells the wanted one, so that
//! `Prohibit-Password` and `without-password` are the same. A setting that another file gives first stays different
//! and is an error that names it.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::sshd_config::{drop_in, effective, settings, with_include};
use crate::command::program;
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::setup::live::Live;
use crate::setup::settle::{self, Settle};
use crate::setup::{CONFIGURE, Configure, Setup, Wish, input};

const MAIN: &str = "/etc/ssh/sshd_config";
/// Made by the service when it starts; without it the daemon does not even look at its configuration.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "ssh.daemon",
    summary: "Makes sure the SSH daemon has settings, by a drop-in that is read before all others.",
    params: &[
        ParamSpec::new(
            "settings",
            ParamKind::Map,
            "By sshd_config name: a text, number, boolean (yes, no), or a list for one line each; empty: no drop-in.",
        )
        .required(),
        ParamSpec::new("name", ParamKind::NonEmptyText, "The drop-in is 10-NAME.conf; default: stead.")
            .default(ParamDefault::Text("stead"))
            .judged(input::judge_plain_name),
        ParamSpec::new("reload", ParamKind::Bool, "Make the daemon read it now; sessions stay; default: true.").default(ParamDefault::Flag(true)),
    ],
    ..CONFIGURE
};

pub(crate) struct Daemon;

impl Configure for Daemon {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let name = match params.get("name") {
            Some(_) => input::file_name(params, "name", "")?,
            None => "stead",
        };
        let path = format!("/etc/ssh/sshd_config.d/10-{name}.conf");
        let settings = settings(params)?;
        // Under a root prefix the machine's own daemon knows neither its host keys nor its version.
        let sshd = if setup.is_running() { Some(program()?) } else { None };
        let checked = |want: Want| match &sshd {
            Some(sshd) => want.validated(&[sshd, "-t", "-f", "{}"]),
            None => want,
        };
        if settings.is_empty() {
            setup.absent(path)?;
        } else {
            let want = Want::new(Kind::File).content(drop_in(&settings).into_bytes());
            if sshd.is_none() {
                setup.notes.push(format!("`{path}` was not checked: no daemon runs under a root prefix"));
            }
            setup.file(path, checked(want))?;
            let main = with_include(&setup.read(MAIN.as_ref())?.unwrap_or_default());
            setup.file(MAIN, checked(Want::new(Kind::File).content(main)))?;
        }
        if let Some(sshd) = &sshd {
            setup.wishes = wishes(setup.cx, sshd, &settings)?;
        }
        setup.settle(Settle::Sshd { reload: params.flag("reload", true) });
        Ok(())
    }
}

/// Returns the path of the daemon, which insists on being started by it.
fn program() -> Result<String, OpError> {
    let found = program::find("sshd", Path::new("/"), std::env::var_os("PATH").as_deref());
    let found = found.ok().and_then(|path| path.to_str().map(str::to_owned));
    found.ok_or_else(|| OpError::permanent("`sshd` is not there: the package openssh-server has it"))
}

/// Returns what the effective settings are and should be.
fn wishes(
    cx: &OpContext,
    sshd: &str,
    settings: &BTreeMap<String, Vec<String>>,
) -> Result<Vec<Wish>, OpError> {
    if !Path::new(PRIVILEGE_SEPARATION).is_dir() || settings.is_empty() {
        return Ok(Vec::new());
    }
    let mut args = vec!["-T".to_owned(), "-f".to_owned(), "/dev/null".to_owned()];
    for (name, values) in settings {
        args.extend(values.iter().flat_map(|value| ["-o".to_owned(), format!("{name}={value}")]));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let wanted = settle::run(cx, sshd, &args)?;
    if !wanted.is_ok() {
        return Err(OpError::invalid(format!("`sshd` refuses `settings`: {}", wanted.describe())));
    }
    let wanted = effective(&wanted.stdout);
    let now = settle::run(cx, sshd, &["-T"])?;
    // A configuration that cannot be read is not what is wanted, whatever it says.
    let broken = (!now.is_ok()).then(|| Value::from(now.describe()));
    let now = effective(&now.stdout);
    let mut wishes = Vec::new();
    for name in settings.keys().map(|name| name.to_ascii_lowercase()) {
        let Some(want) = wanted.get(&name) else { continue };
        let part = Live::Sshd(name.clone());
        let predicted = part.read(cx)?;
        let lines = now.get(&name).cloned().unwrap_or_default();
        let want_value = Value::from(want.join("; "));
        let seen = match &broken {
            _ if !predicted.is_null() => predicted,
            Some(broken) => broken.clone(),
            // Settings that add up may have other lines too.
            None if want.iter().all(|line| lines.contains(line)) => want_value.clone(),
            None => lines.join("; ").into(),
        };
        let differs = seen != want_value;
        wishes.push(Wish { part, seen, want: want_value, differs });
    }
    Ok(wishes)
}

/// Makes sure the daemon can look at configurations.
pub(crate) fn prepare() -> Result<(), OpError> {
    let made = std::fs::DirBuilder::new().mode(0o755).recursive(true).create(PRIVILEGE_SEPARATION);
    made.map_err(|error| OpError::io(format_args!("cannot make `{PRIVILEGE_SEPARATION}`"), &error))
}

/// Makes a running daemon read its configuration again, without ending sessions.
pub(crate) fn reload(cx: &OpContext) -> Result<Option<String>, OpError> {
    if settle::has_systemd() {
        for name in ["ssh.service", "sshd.service"] {
            if settle::run(cx, "systemctl", &["is-active", "--quiet", name])?.is_ok() {
                return settle::checked(cx, "systemctl", &["reload", name]).map(|_| None);
            }
        }
    }
    let said = settle::checked(cx, &program()?, &["-T"])?;
    let file = effective(&said.stdout).remove("pidfile").and_then(|mut lines| lines.pop());
    let pid = file.and_then(|file| std::fs::read_to_string(file).ok());
    let pid = pid.and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw);
    // The number may be another process's by now.
    let is_daemon = |pid: &Pid| {
        std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .is_ok_and(|comm| comm.trim() == "sshd")
    };
    let Some(pid) = pid.filter(is_daemon) else {
        return Ok(Some("no SSH daemon runs that could be reloaded".to_owned()));
    };
    rustix::process::kill_process(pid, Signal::HUP)
        .map_err(|errno| OpError::io("cannot reload the SSH daemon", &errno.into()))?;
    Ok(None)
}
