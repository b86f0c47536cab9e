//! `reboot`: the part on the target. It says which boot this is, arranges for the machine to restart and returns.
//!
//! Waiting until the machine is back is the driver's, over the transport: another `boot_id` than the one in the result
//! means that it is. On the driver's own machine it is refused, because the run would end with it: there the registry
//! is [`crate::Drivers::standard`]; the executor of a target uses [`crate::Drivers::on_target`].

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use crate::disk::Disk;
use crate::system::{Tool, has, need, need_root, off_thread};

/// The answer has to be on its way before the connection goes.
const SHORTEST: Duration = Duration::from_secs(1);
/// Which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Waits, then becomes the program that restarts the machine. Arguments: seconds, program and its arguments.
const LATER: &str = r#"sleep "$1"; shift; exec "$@""#;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "reboot",
    summary: "Restarts the machine; refused on the machine that runs the plan.",
    effect: Effect::Command,
    idempotent: false,
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
    result: &[
        ("boot_id", "The boot that ends; the machine is back when it has another."),
        ("timeout", "How long to wait for that, in milliseconds."),
    ],
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
        if cx.root.is_some() {
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

fn schedule(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    if let Some(path) = params.text("only_if_exists")
        && !Disk::open(cx)?.exists(Path::new(path))?
    {
        return Ok(Outcome {
            reason: Some(format!("only_if_exists: {path} is not there")),
            ..Outcome::default()
        });
    }
    need_root(DESCRIPTOR.name)?;
    need("setsid", "util-linux")?;
    let boot_id = std::fs::read_to_string(BOOT_ID).map_err(|error| OpError::io(BOOT_ID, &error))?;
    let restart: &[&str] = if Path::new("/run/systemd/system").is_dir() && has("systemctl") {
        &["systemctl", "reboot"]
    } else {
        need("reboot", "systemd-sysv, openrc or busybox")?;
        &["reboot"]
    };
    if let Some(message) = params.text("message")
        && has("wall")
    {
        // Nobody logged in is no reason not to restart.
        Tool::new(cx, "wall").arg(message).run()?;
    }
    let delay = params.duration("delay", Duration::ZERO).max(SHORTEST);
    // In a session of its own: what ends this one must not end it.
    let later = Tool::new(cx, "setsid").args(["--fork", "/bin/sh", "-c", LATER, "sh"]);
    later.arg(format!("{:.3}", delay.as_secs_f64())).args(restart).without_output().must()?;
    let timeout = params.duration("timeout", Duration::from_secs(600));
    let data = json!({"boot_id": boot_id.trim(), "timeout": timeout.as_millis() as u64});
    Ok(Outcome { changed: true, data: Some(data), ..Outcome::default() })
}
