//! `service.started`, `service.stopped`, `service.enabled` and `service.disabled`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect, ErrorClass, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::{Activity, Boot, NAME, NAMES, ServiceManager, Unit, boot_manager, manager, names};
use crate::system::{field, need_root_in, op, pause};

/// How often a service on its way is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long a service that just started has to live to count.
const SETTLE: Duration = Duration::from_millis(300);

const TIMEOUT: ParamSpec =
    ParamSpec::new("timeout", ParamKind::Duration, "How long that may take; default: 30s.")
        .default(ParamDefault::Text("30s"));

const WRITE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &["linux"],
    root: RootSupport::None,
    needs_root: true,
    params: &[NAME, NAMES],
    exclusive: &[&["name", "names"]],
    one_of: &[&["name", "names"]],
    result: &[("services", "The services that were changed.")],
};

static STARTED: Descriptor = Descriptor {
    name: "service.started",
    summary: "Makes sure services run, and waits until they do.",
    params: &[NAME, NAMES, TIMEOUT],
    ..WRITE
};

static STOPPED: Descriptor = Descriptor {
    name: "service.stopped",
    summary: "Makes sure services do not run; one that does not exist does not.",
    params: &[NAME, NAMES, TIMEOUT],
    ..WRITE
};

static ENABLED: Descriptor = Descriptor {
    name: "service.enabled",
    summary: "Makes sure services start at boot.",
    root: RootSupport::Files,
    ..WRITE
};

static DISABLED: Descriptor = Descriptor {
    name: "service.disabled",
    summary: "Makes sure services do not start at boot; one that does not exist does not.",
    root: RootSupport::Files,
    ..WRITE
};

/// What a service should be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Started,
    Stopped,
    Enabled,
    Disabled,
}

impl Wish {
    /// Whether a service is as wished.
    fn is_met(self, unit: &Unit) -> bool {
        match self {
            Self::Started => unit.active == Activity::Active,
            Self::Stopped => !unit.known || matches!(unit.active, Activity::Inactive | Activity::Failed),
            Self::Enabled => unit.boot == Boot::Enabled,
            Self::Disabled => unit.boot != Boot::Enabled,
        }
    }

    /// Returns why a service can never be as wished, if so.
    fn refusal(self, unit: &Unit) -> Option<String> {
        let name = &unit.name;
        match self {
            // What does not exist, or must not start, does not.
            Self::Stopped | Self::Disabled => None,
            Self::Started | Self::Enabled if !unit.known => Some(format!("there is no service `{name}`")),
            Self::Started | Self::Enabled if unit.masked => {
                Some(format!("`{name}` is masked; `systemctl unmask {name}` lets it start again"))
            }
            Self::Enabled if unit.boot == Boot::Static => Some(format!(
                "`{name}` is static: it has no [Install] section that says what starts it at boot"
            )),
            Self::Started | Self::Enabled => None,
        }
    }

    /// Returns the word for what a service is, of the two that this is about.
    fn word(self, unit: &Unit) -> &'static str {
        match (self, unit.boot) {
            (Self::Started | Self::Stopped, _) => unit.active.as_str(),
            (Self::Enabled | Self::Disabled, Boot::Enabled) => "enabled",
            (Self::Enabled | Self::Disabled, Boot::Disabled | Boot::Static) => "disabled",
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Started => "active",
            Self::Stopped => "inactive",
            Self::Enabled => "enabled",
            Self::Disabled => "disabled",
        }
    }

    fn opposite(self) -> &'static Descriptor {
        match self {
            Self::Started => &STOPPED,
            Self::Stopped => &STARTED,
            Self::Enabled => &DISABLED,
            Self::Disabled => &ENABLED,
        }
    }

    /// Records that a service would be as wished.
    pub(crate) fn predict(self, cx: &OpContext, name: &str) {
        cx.predicted.set(self.resource(name), self.wanted().into());
    }

    fn resource(self, name: &str) -> String {
        match self {
            Self::Started | Self::Stopped => format!("service:{name}:active"),
            Self::Enabled | Self::Disabled => format!("service:{name}:boot"),
        }
    }
}

/// Brings services to one of the four states.
pub(super) struct State(pub(super) Wish);

impl State {
    fn manager<'a>(&self, cx: &'a OpContext) -> Result<Box<dyn ServiceManager + 'a>, OpError> {
        match self.0 {
            Wish::Started | Wish::Stopped => manager(cx),
            Wish::Enabled | Wish::Disabled => boot_manager(cx),
        }
    }

    fn see(
        &self,
        cx: &OpContext,
        manager: &dyn ServiceManager,
        params: &Params,
    ) -> Result<Vec<Unit>, OpError> {
        let mut units = manager.see(&names(manager, params)?)?;
        for unit in &mut units {
            overlay(cx, unit);
            if let Some(message) = self.0.refusal(unit) {
                // A package or a unit file of an earlier task of this dry run may bring it.
                let coming =
                    ["package:", "file:/etc/systemd/", "file:/usr/lib/systemd/", "file:/etc/init.d/"];
                let not_known =
                    !unit.known && coming.iter().any(|prefix| !cx.predicted.starting_with(prefix).is_empty());
                return Err(OpError { not_known, ..OpError::permanent(message) });
            }
        }
        Ok(units)
    }
}

/// Puts what a dry run has predicted over what is there.
pub(crate) fn overlay(cx: &OpContext, unit: &mut Unit) {
    let file = cx.predicted.get(&format!("file:/etc/systemd/system/{}", unit.name));
    if let Some(kind) = file.as_ref().and_then(|seen| seen["kind"].as_str()) {
        unit.known = kind != "absent";
    }
    let predicted = |wish: Wish| {
        cx.predicted.get(&wish.resource(&unit.name)).and_then(|word| Some(word.as_str()?.to_owned()))
    };
    let (active, boot) = (predicted(Wish::Started), predicted(Wish::Enabled));
    if let Some(active) = active {
        unit.active = if active == "active" { Activity::Active } else { Activity::Inactive };
    }
    if let Some(boot) = boot {
        unit.boot = if boot == "enabled" { Boot::Enabled } else { Boot::Disabled };
    }
}

impl Operation for State {
    fn descriptor(&self) -> &'static Descriptor {
        match self.0 {
            Wish::Started => &STARTED,
            Wish::Stopped => &STOPPED,
            Wish::Enabled => &ENABLED,
            Wish::Disabled => &DISABLED,
        }
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let units = self.see(cx, &*self.manager(cx)?, params)?;
        Ok(Observed(serde_json::to_value(units).unwrap_or_default()))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        let units: Vec<Unit> = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        let differing = units.iter().filter(|unit| !self.0.is_met(unit));
        let fields = differing.map(|unit| field(&unit.name, self.0.word(unit), self.0.wanted()));
        Diff { fields: fields.collect(), text: None }
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"services": []}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, _seen: &Observed) -> Result<(), OpError> {
        need_root_in(cx, self.descriptor().name)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let manager = self.manager(cx)?;
        let units = self.see(cx, &*manager, params)?;
        let open: Vec<String> =
            units.iter().filter(|unit| !self.0.is_met(unit)).map(|unit| unit.name.clone()).collect();
        let timeout = params.duration("timeout", Duration::from_secs(30));
        match self.0 {
            Wish::Started => {
                let asked = manager.start(&open);
                asked.map_err(|error| with_log(error, &*manager, &open))?;
                wait(cx, &*manager, &open, timeout, Wish::Started)?;
            }
            Wish::Stopped => {
                manager.stop(&open)?;
                wait(cx, &*manager, &open, timeout, Wish::Stopped)?;
            }
            Wish::Enabled => manager.enable(&open)?,
            Wish::Disabled => manager.disable(&open)?,
        }
        Ok(Applied { data: Some(json!({"services": open})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, _params: &Params, diff: &Diff) {
        for field in &diff.fields {
            self.0.predict(cx, &field.name);
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let names: Vec<String> =
            self.diff(params, before).fields.into_iter().map(|field| field.name).collect();
        op(self.0.opposite().name, [("names", json!(names))])
    }
}

/// Waits until services are as wished; those that were to start, a moment longer.
///
/// # Errors
/// With the last lines of its log if one that was to start fails or dies; class `timeout` if one takes too long.
pub(crate) fn wait(
    cx: &OpContext,
    manager: &dyn ServiceManager,
    names: &[String],
    timeout: Duration,
    wish: Wish,
) -> Result<(), OpError> {
    let deadline = Instant::now() + timeout;
    loop {
        let units = manager.see(names)?;
        let Some(unit) = units.iter().find(|unit| !wish.is_met(unit)) else { break };
        if wish == Wish::Started && matches!(unit.active, Activity::Failed | Activity::Inactive) {
            return Err(died(manager, unit));
        }
        if Instant::now() >= deadline {
            let limit = stead_model::duration::to_exact(timeout);
            let message = format!("`{}` is {} after {limit}", unit.name, unit.active.as_str());
            let error = OpError { changed: true, ..OpError::new(ErrorClass::Timeout, message) };
            return Err(with_log(error, manager, std::slice::from_ref(&unit.name)));
        }
        pause(cx, LOOK_AGAIN)?;
    }
    if wish != Wish::Started {
        return Ok(());
    }
    pause(cx, SETTLE)?;
    match manager.see(names)?.iter().find(|unit| !wish.is_met(unit)) {
        Some(unit) => Err(died(manager, unit)),
        None => Ok(()),
    }
}

fn died(manager: &dyn ServiceManager, unit: &Unit) -> OpError {
    let message = format!("`{}` did not stay up: it is {}", unit.name, unit.active.as_str());
    let error = OpError { changed: true, ..OpError::operation(message) };
    with_log(error, manager, std::slice::from_ref(&unit.name))
}

/// Returns the error with the last lines of the services' logs.
pub(super) fn with_log(error: OpError, manager: &dyn ServiceManager, names: &[String]) -> OpError {
    let mut message = error.message.clone();
    for name in names {
        let log = manager.log(name);
        if !log.is_empty() {
            message.push_str(&format!("; the last lines of its log:\n{log}"));
        }
    }
    OpError { message, ..error }
}
