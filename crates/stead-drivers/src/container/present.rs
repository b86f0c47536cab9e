//! `container.present`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::engine::Engine;
use super::inspected::{Image, Inspected, Port, Volume};
use super::wish::{Wish, check_image, check_restart};
use super::{ADOPT, ADOPTED, ASIDE, ENGINE, LABEL, NAME, TRIAL, WRITE, foreign};
use crate::setup::input;
use crate::system::{field, op};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "container.present",
    summary: "Makes sure a container of podman or docker is there with this configuration, and runs.",
    params: &[
        NAME,
        ParamSpec::new("image", ParamKind::NonEmptyText, "Its image.")
            .required()
            .judged(|value| judge_texts(value, |text| input::problem(check_image(text)))),
        ENGINE,
        ParamSpec::new("command", ParamKind::TextOrList, "What it runs; default: what the image says."),
        ParamSpec::new("env", ParamKind::TextMap, "Its variables, besides those of the image.").secret(),
        ParamSpec::new(
            "ports",
            ParamKind::TextList,
            "Published ports, each `[ADDRESS:]HOST:CONTAINER[/PROTOCOL]`.",
        )
        .judged(|value| {
            judge_texts(value, |text| {
                Port::parse(text).is_none().then(|| format!("`{}` is no port", text.escape_debug()))
            })
        }),
        ParamSpec::new("volumes", ParamKind::TextList, "Mounts, each `SOURCE:DESTINATION[:ro]`.").judged(|value| {
            judge_texts(value, |text| {
                Volume::parse(text).is_none().then(|| format!("`{}` is no mount", text.escape_debug()))
            })
        }),
        ParamSpec::new(
            "restart",
            ParamKind::NonEmptyText,
            "`no`, `always`, `unless-stopped`, `on-failure` or `on-failure:COUNT`.",
        )
        .judged(|value| judge_texts(value, |text| input::problem(check_restart(text)))),
        ParamSpec::new("labels", ParamKind::TextMap, "Its labels; others are kept."),
        ParamSpec::new(
            "pull",
            ParamKind::Enum(&["missing", "always", "never"]),
            "Fetch the image before a container is made from it: if it is `missing` (default), `always` or `never`.",
        ).default(ParamDefault::Text("missing")),
        ParamSpec::new("running", ParamKind::Bool, "Whether it runs; default: true.").default(ParamDefault::Flag(true)),
        ADOPT,
    ],
    result: &[
        ("name", "The container's name."),
        ("engine", "The engine."),
        ("replaced", "Whether it was made anew."),
    ],
    ..WRITE
};

pub(super) struct Present;

/// What is there. No `Debug`: variables may be secret.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    found: Found,
    /// The image that its name means here, if it is here.
    newest: Option<Image>,
}

/// A container, and what a replacement has left that did not end.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Found {
    /// The container. If another one was to take its place, the one that was put aside for it.
    pub(super) container: Option<Inspected>,
    pub(super) unfinished: Option<Unfinished>,
}

/// A replacement that did not end.
#[derive(Serialize, Deserialize)]
pub(super) struct Unfinished {
    /// What has the name by now.
    made: Option<Inspected>,
}

impl Seen {
    /// Whether a replacement that did not end lacks only that the old container goes.
    fn is_nearly_done(&self, wish: &Wish, running: bool) -> bool {
        let made = self.found.unfinished.as_ref().and_then(|unfinished| unfinished.made.as_ref());
        made.is_some_and(|made| made.running == running && wish.diff(made, self.newest.as_ref()).is_empty())
    }

    fn diff(&self, wish: &Wish, running: bool) -> Diff {
        let Some(container) = &self.found.container else {
            let nothing = Inspected { restart: "no".to_owned(), ..Inspected::default() };
            let mut diff = wish.diff(&nothing, None);
            diff.fields.retain(|field| field.name != "image" && field.name != "labels");
            diff.fields.insert(0, field("container", Value::Null, wish.image.as_str()));
            return diff;
        };
        let mut diff = wish.diff(container, self.newest.as_ref());
        if container.running != running {
            diff.fields.push(field("running", container.running, running));
        }
        diff
    }
}

impl Operation for Present {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        Ok(Observed(serde_json::to_value(see(cx, &Engine::new(cx, params)?, params)?).unwrap_or_default()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let seen: Seen = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        let Ok(wish) = Wish::new(params, seen.found.container.as_ref()) else { return Diff::default() };
        let running = params.flag("running", true);
        let mut diff =
            if seen.is_nearly_done(&wish, running) { Diff::default() } else { seen.diff(&wish, running) };
        if seen.found.unfinished.is_some() {
            diff.fields.push(field("put aside", format!("{}{ASIDE}", wish.name), Value::Null));
        }
        diff
    }

    fn unchanged(&self, cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        let engine = Engine::new(cx, params).ok()?;
        Some(json!({"name": params.text("name"), "engine": engine.program, "replaced": false}))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let engine = Engine::new(cx, params)?;
        let seen = see(cx, &engine, params)?;
        let wish = Wish::new(params, seen.found.container.as_ref())?;
        let running = params.flag("running", true);
        let mut applied = Applied::default();
        let replaced = if seen.is_nearly_done(&wish, running) {
            engine.undisturbed().remove(&aside(&wish.name))?;
            true
        } else {
            if seen.found.unfinished.is_some() {
                put_back(&engine.undisturbed(), &wish.name)?;
            }
            make(&engine, params, &seen, wish.clone(), &mut applied.notes)?
        };
        applied.data = Some(json!({"name": wish.name, "engine": engine.program, "replaced": replaced}));
        Ok(applied)
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let seen = Engine::new(cx, params).and_then(|engine| see(cx, &engine, params)).unwrap_or_default();
        let container = seen.found.container.as_ref();
        if let Ok(wish) = Wish::new(params, container) {
            let after = wish.after(container, params.flag("running", true), seen.newest.as_ref());
            cx.predicted.set(resource(&wish.name), serde_json::to_value(after).unwrap_or_default());
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let seen: Seen = serde_json::from_value(before.0.clone()).ok()?;
        inverse(params, seen.found.container.as_ref())
    }
}

/// Returns the operation that brings back what was there.
pub(super) fn inverse(params: &Params, before: Option<&Inspected>) -> Option<Op> {
    let mut values = vec![("name", params.get("name")?.clone())];
    values.extend(params.get("engine").map(|engine| ("engine", engine.clone())));
    let Some(container) = before else { return op("container.absent", values) };
    let texts = |items: Vec<String>| Value::from(items);
    let labels = container.own_labels().into_iter().filter(|(key, _)| key != LABEL);
    values.extend([
        ("image", Value::from(container.image.as_str())),
        ("env", json!(container.own_env())),
        ("ports", texts(container.ports.iter().map(Port::to_string).collect())),
        ("volumes", texts(container.volumes.iter().map(Volume::to_string).collect())),
        ("restart", container.restart.as_str().into()),
        ("labels", labels.map(|(key, value)| (key, Value::from(value))).collect()),
        ("running", container.running.into()),
        ("command", json!(container.own_command())),
    ]);
    op(DESCRIPTOR.name, values)
}

/// Returns the key under which a dry run remembers a container.
pub(super) fn resource(name: &str) -> String {
    format!("container:{name}")
}

fn aside(name: &str) -> String {
    format!("{name}{ASIDE}")
}

/// Returns the container, predicted or real, unless it is somebody else's.
pub(super) fn find(cx: &OpContext, engine: &Engine, params: &Params) -> Result<Found, OpError> {
    let name = super::check_name(params.required("name")?)?;
    let is_ours = |container: &Inspected| container.labels.contains_key(LABEL);
    let found = match cx.predicted.get(&resource(name)) {
        Some(predicted) => {
            Found { container: serde_json::from_value(predicted).unwrap_or_default(), unfinished: None }
        }
        None => {
            let named = engine.inspect(name)?;
            match (named, engine.inspect(&aside(name))?) {
                (named, None) => Found { container: named, unfinished: None },
                (Some(made), Some(_)) if !is_ours(&made) => {
                    return Err(OpError::permanent(format!(
                        "Stead was replacing container `{name}` and had put it aside as `{name}{ASIDE}`, and somebody has \
                         made another one since: remove one of both"
                    )));
                }
                // It was stopped to be put aside.
                (made, Some(old)) => Found {
                    container: Some(Inspected { running: true, ..old }),
                    unfinished: Some(Unfinished { made }),
                },
            }
        }
    };
    match &found.container {
        Some(container) if !is_ours(container) && !params.flag("adopt", false) => Err(foreign(name)),
        _ => Ok(found),
    }
}

fn see(cx: &OpContext, engine: &Engine, params: &Params) -> Result<Seen, OpError> {
    let found = find(cx, engine, params)?;
    // What cannot be parsed is refused before anything is compared.
    let wish = Wish::new(params, found.container.as_ref())?;
    let newest = engine.image(&wish.image)?;
    if newest.is_none() && params.text("pull") == Some("never") && found.container.is_none() {
        return Err(OpError::permanent(format!("image `{}` is not here, and `pull: never`", wish.image)));
    }
    Ok(Seen { found, newest })
}

/// Makes, replaces, starts or stops the container; returns whether another one has taken its place.
fn make(
    engine: &Engine,
    params: &Params,
    seen: &Seen,
    mut wish: Wish,
    notes: &mut Vec<String>,
) -> Result<bool, OpError> {
    let running = params.flag("running", true);
    let container = seen.found.container.as_ref();
    if container.is_some_and(|container| wish.diff(container, seen.newest.as_ref()).is_empty()) {
        engine.command(&[if running { "start" } else { "stop" }], &[&wish.name])?;
        return Ok(false);
    }
    match params.text("pull").unwrap_or("missing") {
        "always" => engine.pull(&wish.image)?,
        "missing" if engine.image(&wish.image)?.is_none() => engine.pull(&wish.image)?,
        _ => {}
    }
    let options = match container {
        Some(old) => taken_over(engine, old, &mut wish, notes)?,
        None => Vec::new(),
    };
    replace(engine, &wish, &options, container, running)?;
    Ok(container.is_some())
}

/// Returns options that give the new container what the old one was made with and Stead has no parameter for.
fn taken_over(
    engine: &Engine,
    old: &Inspected,
    wish: &mut Wish,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, OpError> {
    let name = wish.name.clone();
    let shown = engine.shown(&name)?.unwrap_or_default();
    let (options, lost) = engine
        .settings(&shown, &format!("{name}{TRIAL}"))
        .map_err(|error| error.within(format_args!("cannot tell what container `{name}` was made with")))?;
    if !lost.is_empty() && !old.labels.contains_key(LABEL) {
        return Err(OpError::permanent(format!(
            "container `{name}` was made with what Stead cannot give to the one that takes its place: {}; nothing was \
             changed. `{} rm --force {name}` lets it be made without that",
            lost.join(", "),
            engine.program
        )));
    }
    if !lost.is_empty() {
        notes.push(format!("container `{name}` was made anew without: {}", lost.join(", ")));
    }
    if !options.is_empty() {
        wish.labels.insert(LABEL.to_owned(), ADOPTED.to_owned());
    }
    // Another entry point takes the image's command away.
    if wish.command.is_empty() && options.iter().any(|option| option.starts_with("--entrypoint=")) {
        wish.command.clone_from(&old.command);
    }
    Ok(options)
}

/// Makes the container, keeping the old one aside until the new one is up.
fn replace(
    engine: &Engine,
    wish: &Wish,
    options: &[String],
    old: Option<&Inspected>,
    running: bool,
) -> Result<(), OpError> {
    let (name, aside) = (wish.name.as_str(), aside(&wish.name));
    let is_running = old.is_some_and(|old| old.running);
    let replaced = || {
        if is_running {
            engine.command(&["stop"], &[name])?;
        }
        if old.is_some() {
            engine.command(&["rename"], &[name, &aside])?;
        }
        engine.create(wish, options)?;
        if running { engine.command(&["start"], &[name]) } else { Ok(()) }
    };
    // What was begun is ended in one way or the other, whoever wants this attempt to stop.
    let undisturbed = engine.undisturbed();
    let error = match (replaced(), old) {
        (Ok(()), None) => return Ok(()),
        (Ok(()), Some(_)) => return undisturbed.remove(&aside),
        (Err(error), _) => error,
    };
    let restored = match old {
        None => discard(&undisturbed, name),
        Some(_) => put_back(&undisturbed, name)
            .and_then(|()| if is_running { undisturbed.command(&["start"], &[name]) } else { Ok(()) }),
    };
    Err(match restored {
        Ok(()) => error,
        Err(other) => OpError {
            message: format!(
                "{}; then container `{name}` was not brought back: {}; the next run does",
                error.message, other.message
            ),
            ..error
        },
    })
}

/// Gives the container that was put aside its name back, if there is one.
fn put_back(engine: &Engine, name: &str) -> Result<(), OpError> {
    let aside = aside(name);
    if engine.shown(&aside)?.is_none() {
        return Ok(());
    }
    discard(engine, name)?;
    engine.command(&["rename"], &[&aside, name])
}

/// Removes what Stead made of a container, if it did: nothing may be there, or something that did not start.
fn discard(engine: &Engine, name: &str) -> Result<(), OpError> {
    match engine.inspect(name)? {
        Some(made) if made.labels.contains_key(LABEL) => engine.remove(name),
        _ => Ok(()),
    }
}
