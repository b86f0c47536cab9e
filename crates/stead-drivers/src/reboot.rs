//! `reboot`: the part on the target. It notes which boot this is, arranges for the machine to restart and returns;
//! run once more after that, it says that the machine is back.
//!
//! Waiting in between is the driver's, over the transport. The note (`BASE/undo/RUN/restart-…`) is what makes it safe
//! to repeat: a run that is taken up again after a crash finds in it that the machine has restarted since, or is about
//! to, and restarts nothing twice. On the driver's own machine it is refused, because the run would end with it: there
//! the registry is [`crate::Drivers::standard`]; the executor of a target uses [`crate::Drivers::on_target`].

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use stead_model::executor::Restart;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use crate::disk::Disk;
use crate::file::kept;
use crate::machine::oci;
use crate::machine::sandbox::Sandbox;
use crate::system::{Tool, has, need, need_root_in, off_thread};

/// The answer has to be on its way before the connection goes.
const SHORTEST: Duration = Duration::from_secs(1);
/// Which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// How long this boot has lasted, in seconds, before the first blank.
const UPTIME: &str = "/proc/uptime";

/// Where the program that restarts the machine is found.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Waits, then becomes the program that restarts the machine. Arguments: seconds, program and its arguments.
const LATER: &str = r#"sleep "$1"; shift; exec "$@""#;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "reboot",
    summary: "Restarts the machine; refused on the machine that runs the plan.",
    effect: Effect::Command,
    idempotent: true,
    check: false,
    undo: false,
    platforms: &["linux"],
    root: RootSupport::None,
    needs_root: true,
    params: &[
        ParamSpec::new(
            "only_if_exists",
            ParamKind::AbsolutePath,
            "Restart only if this path exists, such as /var/run/reboot-required.",
        ),
        ParamSpec::new("delay", ParamKind::Duration, "Wait this long first, at least 1s; default: 0s.")
            .default(ParamDefault::Text("0s")),
        ParamSpec::new("timeout", ParamKind::Duration, "How long it may take to come back; default: 10m.")
            .default(ParamDefault::Text("10m")),
        ParamSpec::new("message", ParamKind::NonEmptyText, "Said to everybody who is logged in."),
    ],
    exclusive: &[],
    one_of: &[],
    result: &[("boot_id", "The boot the machine is in now."), ("before", "The boot that ended.")],
};

const REFUSAL: &str =
    "reboot is refused on `local`: it would end this run; give the machine an ssh:// transport";

/// Restarts the machine it runs on, if that is a target.
pub(crate) enum Reboot {
    /// This is the machine that runs the plan.
    Refused,
    /// This is a target of it.
    Allowed,
}

#[async_trait::async_trait]
impl Action for Reboot {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn refused_here(&self) -> Option<&'static str> {
        Some(REFUSAL)
    }

    async fn check(&self, _cx: &OpContext, _params: &Params) -> Result<Outcome, OpError> {
        Err(OpError { not_known: true, ..OpError::operation("what a restart changes is not known before") })
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        if cx.root.is_some() && Sandbox::of(cx).is_none() {
            return Err(OpError::unsupported("a root prefix has nothing that could restart"));
        }
        match self {
            Self::Refused => Err(OpError::permanent(REFUSAL)),
            Self::Allowed => {
                let (cx, params) = (cx.clone(), params.clone());
                off_thread(move || schedule(&cx, &params)).await
            }
        }
    }
}

/// A restart that was arranged, as it is noted on the target.
#[derive(Serialize, Deserialize)]
struct Note {
    /// The boot that ends.
    boot_id: String,
    /// When it is not waited for any more, in seconds of that boot.
    until: u64,
}

impl Note {
    /// Returns where it is: one per task and host of the run.
    fn path(cx: &OpContext) -> Result<PathBuf, OpError> {
        let whose = Sha256::digest(format!("{} {}", cx.host, cx.task));
        let whose: String = whose.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(kept::directory(cx, "the note of a restart")?.join(format!("restart-{whose}")))
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// Writes it so that it outlives the machine's restart.
    fn write(&self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension("new");
        let mut file = fs::File::create(&temporary)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
    }
}

fn schedule(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    let sandbox = Sandbox::of(cx);
    let boot_id = match &sandbox {
        Some(sandbox) => {
            sandbox.boot_id().ok_or_else(|| OpError::operation("this sandbox has not booted"))?
        }
        None => oci::boot_id().map_or_else(|| line(BOOT_ID), Ok)?,
    };
    if let Some(before) = &cx.restarted {
        return finish(&Note::path(cx)?, before, &boot_id);
    }
    let note = Note::path(cx)?;
    let uptime = line(UPTIME)?;
    let uptime = uptime.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok()).unwrap_or_default();
    match Note::read(&note) {
        Some(Note { boot_id: before, .. }) if before != boot_id => return finish(&note, &before, &boot_id),
        Some(Note { boot_id, until }) if uptime < until => {
            return Ok(waiting(boot_id, Duration::from_secs(until - uptime)));
        }
        Some(_) | None => {}
    }
    if let Some(path) = params.text("only_if_exists")
        && !Disk::open(cx)?.exists(Path::new(path))?
    {
        return Ok(Outcome {
            reason: Some(format!("only_if_exists: {path} is not there")),
            ..Outcome::default()
        });
    }
    need_root_in(cx, DESCRIPTOR.name)?;
    need("setsid", "util-linux")?;
    let mut variables = vec![OsString::from(PATH)];
    let restart: Vec<OsString> = if let Some(sandbox) = &sandbox {
        let (program, variable) = sandbox.restarter();
        variables.push(variable.into());
        vec![program.into()]
    } else if oci::boot_id().is_some() {
        let own = std::env::current_exe().map_err(|error| OpError::io("finding this program", &error))?;
        vec![own.into(), "container".into(), "restart".into()]
    } else if Path::new("/run/systemd/system").is_dir() && has("systemctl") {
        vec!["systemctl".into(), "reboot".into()]
    } else {
        need("reboot", "systemd-sysv, openrc or busybox")?;
        vec!["reboot".into()]
    };
    let delay = params.duration("delay", Duration::ZERO).max(SHORTEST);
    let patience = delay.saturating_add(params.duration("timeout", Duration::from_secs(600)));
    let noted = Note { boot_id: boot_id.clone(), until: uptime.saturating_add(patience.as_secs()) };
    noted.write(&note).map_err(|error| OpError::io(format_args!("`{}`", note.display()), &error))?;
    if let Some(message) = params.text("message")
        && has("wall")
    {
        // Nobody logged in is no reason not to restart.
        Tool::new(cx, "wall").arg(message).run()?;
    }
    // In a session of its own and without the run's variables: what ends this one, and what a run left behind, must
    // not end it.
    let later = Tool::new(cx, "setsid").args(["--fork", "env", "-i"]).args(variables);
    let later = later.args(["/bin/sh", "-c", LATER, "sh"]);
    later.arg(format!("{:.3}", delay.as_secs_f64())).args(restart).without_output().must()?;
    Ok(waiting(boot_id, patience))
}

/// Returns that the driver is to wait for another boot.
fn waiting(boot_id: String, patience: Duration) -> Outcome {
    let timeout_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    Outcome { changed: true, restart: Some(Restart { boot_id, timeout_ms }), ..Outcome::default() }
}

/// Returns that the machine is back.
fn finish(note: &Path, before: &str, boot_id: &str) -> Result<Outcome, OpError> {
    match fs::remove_file(note) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(OpError::io(format_args!("`{}`", note.display()), &error));
        }
        Ok(()) | Err(_) => {}
    }
    let data = json!({"boot_id": boot_id, "before": before});
    Ok(Outcome { changed: true, data: Some(data), ..Outcome::default() })
}

/// Returns the first line of a file of the kernel.
fn line(path: &str) -> Result<String, OpError> {
    let text = fs::read_to_string(path).map_err(|error| OpError::io(path, &error))?;
    Ok(text.trim().to_owned())
}
