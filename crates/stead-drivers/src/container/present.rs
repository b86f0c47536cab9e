//! `container.present`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::engine::Engine;
use super::inspected::{Inspected, Port, Volume};
use super::wish::{Wish, check_image, check_restart};
use super::{ADOPT, ENGINE, LABEL, NAME, WRITE, foreign};
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
    container: Option<Inspected>,
    /// The id that the image's name means here, if it is here.
    newest: Option<String>,
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
        let Ok(wish) = Wish::new(params, seen.container.as_ref()) else { return Diff::default() };
        let running = params.flag("running", true);
        match &seen.container {
            Some(container) => {
                let mut diff = wish.diff(container, seen.newest.as_deref());
                if container.running != running {
                    diff.fields.push(field("running", container.running, running));
                }
                diff
            }
            None => {
                let mut diff =
                    wish.diff(&Inspected { restart: "no".to_owned(), ..Inspected::default() }, None);
                diff.fields.retain(|field| field.name != "image" && field.name != "labels");
                diff.fields.insert(0, field("container", Value::Null, wish.image.as_str()));
                Diff { fields: diff.fields, text: None }
            }
        }
    }

    fn unchanged(&self, cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        let engine = Engine::new(cx, params).ok()?;
        Some(json!({"name": params.text("name"), "engine": engine.program, "replaced": false}))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let engine = Engine::new(cx, params)?;
        let seen = see(cx, &engine, params)?;
        let wish = Wish::new(params, seen.container.as_ref())?;
        let (name, running) = (wish.name.as_str(), params.flag("running", true));
        let replaced = match &seen.container {
            Some(container) if wish.diff(container, seen.newest.as_deref()).is_empty() => {
                engine.command(&[if running { "start" } else { "stop" }], &[name])?;
                false
            }
            container => {
                match params.text("pull").unwrap_or("missing") {
                    "always" => engine.pull(&wish.image)?,
                    "missing" if engine.image(&wish.image)?.is_none() => engine.pull(&wish.image)?,
                    _ => {}
                }
                replace(&engine, &wish, container.as_ref(), running)?;
                container.is_some()
            }
        };
        let data = json!({"name": name, "engine": engine.program, "replaced": replaced});
        Ok(Applied { data: Some(data), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let seen = Engine::new(cx, params).and_then(|engine| see(cx, &engine, params)).unwrap_or_default();
        if let Ok(wish) = Wish::new(params, seen.container.as_ref()) {
            let after =
                wish.after(seen.container.as_ref(), params.flag("running", true), seen.newest.as_deref());
            cx.predicted.set(resource(&wish.name), serde_json::to_value(after).unwrap_or_default());
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let seen: Seen = serde_json::from_value(before.0.clone()).ok()?;
        inverse(params, seen.container.as_ref())
    }
}

/// Returns the operation that brings back what was there.
pub(super) fn inverse(params: &Params, before: Option<&Inspected>) -> Option<Op> {
    let mut values = vec![("name", params.get("name")?.clone())];
    values.extend(params.get("engine").map(|engine| ("engine", engine.clone())));
    let Some(container) = before else { return op("container.absent", values) };
    let texts = |items: Vec<String>| Value::from(items);
    let labels = container.labels.iter().filter(|(key, _)| *key != LABEL);
    values.extend([
        ("image", Value::from(container.image.as_str())),
        ("env", json!(container.env)),
        ("ports", texts(container.ports.iter().map(Port::to_string).collect())),
        ("volumes", texts(container.volumes.iter().map(Volume::to_string).collect())),
        ("restart", container.restart.as_str().into()),
        ("labels", labels.map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect()),
        ("running", container.running.into()),
        ("command", json!(container.command)),
    ]);
    op(DESCRIPTOR.name, values)
}

/// Returns the key under which a dry run remembers a container.
pub(super) fn resource(name: &str) -> String {
    format!("container:{name}")
}

/// Returns the container, predicted or real, unless it is somebody else's.
pub(super) fn inspect(
    cx: &OpContext,
    engine: &Engine<'_>,
    params: &Params,
) -> Result<Option<Inspected>, OpError> {
    let name = super::check_name(params.required("name")?)?;
    let container = match cx.predicted.get(&resource(name)) {
        Some(predicted) => serde_json::from_value(predicted).unwrap_or_default(),
        None => engine.inspect(name)?,
    };
    match container {
        Some(container) if !container.labels.contains_key(LABEL) && !params.flag("adopt", false) => {
            Err(foreign(name))
        }
        container => Ok(container),
    }
}

fn see(cx: &OpContext, engine: &Engine<'_>, params: &Params) -> Result<Seen, OpError> {
    let container = inspect(cx, engine, params)?;
    // What cannot be parsed is refused before anything is compared.
    let wish = Wish::new(params, container.as_ref())?;
    let newest = engine.image(&wish.image)?;
    if newest.is_none() && params.text("pull") == Some("never") && container.is_none() {
        return Err(OpError::permanent(format!("image `{}` is not here, and `pull: never`", wish.image)));
    }
    Ok(Seen { container, newest })
}

/// Makes the container, keeping the old one aside until the new one is up.
fn replace(engine: &Engine<'_>, wish: &Wish, old: Option<&Inspected>, running: bool) -> Result<(), OpError> {
    let name = wish.name.as_str();
    let aside = format!("{name}.stead-old");
    if let Some(old) = old {
        if old.running {
            engine.command(&["stop"], &[name])?;
        }
        engine.command(&["rename"], &[name, &aside])?;
    }
    let made =
        engine.create(wish).and_then(|()| if running { engine.command(&["start"], &[name]) } else { Ok(()) });
    match (made, old) {
        (Ok(()), Some(_)) => engine.command(&["rm", "--force"], &[&aside]),
        (Ok(()), None) => Ok(()),
        (Err(error), old) => {
            // Nothing may be there, or something that did not start.
            drop(engine.command(&["rm", "--force"], &[name]));
            if let Some(old) = old {
                engine.command(&["rename"], &[&aside, name])?;
                if old.running {
                    engine.command(&["start"], &[name])?;
                }
            }
            Err(error)
        }
    }
}
