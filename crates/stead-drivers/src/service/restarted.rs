//! `service.restarted`: stop and start a service, or let it read its configuration anew.

use std::time::Duration;

use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use super::state::{Wish, overlay, wait, with_log};
use super::{Activity, NAME, Unit, manager, names};
use crate::system::{need_root_in, off_thread};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "service.restarted",
    summary: "Restarts a service, and waits until it runs.",
    effect: Effect::Command,
    idempotent: false,
    check: true,
    undo: false,
    platforms: &["linux"],
    root: RootSupport::None,
    needs_root: true,
    params: &[
        NAME.required(),
        ParamSpec::new(
            "reload",
            ParamKind::Bool,
            "Let it read its configuration anew instead, if it can; default: false.",
        )
        .default(ParamDefault::Flag(false)),
        ParamSpec::new(
            "only_if_active",
            ParamKind::Bool,
            "Leave a service alone that does not run; default: false, it is started.",
        )
        .default(ParamDefault::Flag(false)),
        ParamSpec::new("timeout", ParamKind::Duration, "How long that may take; default: 30s.")
            .default(ParamDefault::Text("30s")),
    ],
    exclusive: &[],
    one_of: &[],
    result: &[("service", "The service."), ("reloaded", "Whether it was reloaded and not restarted.")],
};

pub(super) struct Restarted;

#[async_trait::async_trait]
impl Action for Restarted {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let (cx, params) = (cx.clone(), params.clone());
        off_thread(move || look(&cx, &params).map(|(_, outcome)| outcome)).await
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let (cx, params) = (cx.clone(), params.clone());
        off_thread(move || restart(&cx, &params)).await
    }
}

/// Returns the service, and what restarting it would come to.
fn look(cx: &OpContext, params: &Params) -> Result<(Unit, Outcome), OpError> {
    let manager = manager(cx)?;
    let mut unit = manager.see(&names(&*manager, params)?)?.pop().unwrap_or_default();
    overlay(cx, &mut unit);
    if !unit.known {
        let not_known = !cx.predicted.starting_with("package:").is_empty()
            || !cx.predicted.starting_with("file:/etc/systemd/").is_empty();
        return Err(OpError {
            not_known,
            ..OpError::permanent(format!("there is no service `{}`", unit.name))
        });
    }
    if unit.masked {
        return Err(OpError::permanent(format!("`{}` is masked and cannot be started", unit.name)));
    }
    let mut outcome = Outcome { changed: true, ..Outcome::default() };
    if params.flag("only_if_active", false) && !matches!(unit.active, Activity::Active | Activity::Activating)
    {
        outcome = Outcome { reason: Some(format!("`{}` does not run", unit.name)), ..Outcome::default() };
    }
    if outcome.changed {
        need_root_in(cx, DESCRIPTOR.name)?;
    }
    Ok((unit, outcome))
}

fn restart(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    let (unit, outcome) = look(cx, params)?;
    if !outcome.changed {
        return Ok(outcome);
    }
    let manager = manager(cx)?;
    let names = std::slice::from_ref(&unit.name);
    let reload = params.flag("reload", false) && unit.can_reload && unit.active == Activity::Active;
    let timeout = params.duration("timeout", Duration::from_secs(30));
    let asked = if reload { manager.reload(&unit.name, timeout) } else { manager.restart(&unit.name) };
    asked
        .map_err(|error| with_log(error, &*manager, names))
        .and_then(|()| wait(cx, &*manager, names, timeout, Wish::Started))
        .map_err(|error| OpError { changed: true, ..error })?;
    let data = Some(json!({"service": unit.name, "reloaded": reload}));
    Ok(Outcome { data, ..outcome })
}
