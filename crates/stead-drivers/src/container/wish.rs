//! What a container should be, with what is not said taken from the one that is there.

use std::collections::{BTreeMap, BTreeSet};

use stead_runner::operation::{Diff, OpError, Params};

use super::inspected::{Inspected, Port, Volume};
use super::{LABEL, check_name};
use crate::system::field;
use serde_json::{Value, json};

/// A container as it should be. No `Debug`: variables may be secret.
#[derive(Clone, Default)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) command: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) ports: BTreeSet<Port>,
    pub(super) volumes: BTreeSet<Volume>,
    pub(super) restart: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
}

impl Wish {
    /// Returns what the parameters ask for, over what is there.
    pub(super) fn new(params: &Params, seen: Option<&Inspected>) -> Result<Self, OpError> {
        let before = seen.cloned().unwrap_or_default();
        let given = |name: &str| params.get(name).is_some();
        let image = check_image(params.required("image")?)?;
        let mut labels = before.labels;
        labels.extend(params.text_map("labels"));
        labels.insert(LABEL.to_owned(), "true".to_owned());
        let restart = params.text("restart").map(check_restart).transpose()?;
        Ok(Self {
            name: check_name(params.required("name")?)?.to_owned(),
            image: image.to_owned(),
            command: if given("command") { params.texts("command") } else { before.command },
            env: if given("env") { params.text_map("env") } else { before.env },
            ports: if given("ports") { parse(params, "ports", Port::parse)? } else { before.ports },
            volumes: if given("volumes") { parse(params, "volumes", Volume::parse)? } else { before.volumes },
            restart: restart.or(seen.map(|seen| seen.restart.clone())),
            labels,
        })
    }

    /// Returns the fields that differ; the container has to be replaced for any of them.
    pub(super) fn diff(&self, seen: &Inspected, newest: Option<&str>) -> Diff {
        let mut fields = Vec::new();
        let mut add = |name: &str, before: Value, after: Value| {
            if before != after {
                fields.push(field(name, before, after));
            }
        };
        if !seen.has_image(&self.image) {
            add("image", seen.image.as_str().into(), self.image.as_str().into());
        } else if let Some(newest) = newest.filter(|newest| bare(newest) != bare(&seen.image_id)) {
            // The name means another image by now.
            add("image_id", seen.image_id.as_str().into(), newest.into());
        }
        add("command", json!(seen.command), json!(self.command));
        let texts = |items: Vec<String>| Value::from(items);
        add(
            "ports",
            texts(seen.ports.iter().map(Port::to_string).collect()),
            texts(self.ports.iter().map(Port::to_string).collect()),
        );
        add(
            "volumes",
            texts(seen.volumes.iter().map(Volume::to_string).collect()),
            texts(self.volumes.iter().map(Volume::to_string).collect()),
        );
        if let Some(restart) = &self.restart {
            add("restart", seen.restart.as_str().into(), restart.as_str().into());
        }
        add("labels", json!(seen.labels), json!(self.labels));
        if seen.env != self.env {
            // Which ones differ is told, their values are not.
            let names = seen.env.keys().chain(self.env.keys()).collect::<BTreeSet<_>>();
            let differing: Vec<&&String> =
                names.iter().filter(|name| seen.env.get(**name) != self.env.get(**name)).collect();
            let side = |env: &BTreeMap<String, String>| {
                let of = differing.iter().filter(|name| env.contains_key(**name.to_owned()));
                of.map(|name| ((***name).clone(), Value::from("***"))).collect::<serde_json::Map<_, _>>()
            };
            fields.push(field("env", side(&seen.env), side(&self.env)));
        }
        Diff { fields, text: None }
    }

    /// Returns what the container will be.
    pub(super) fn after(&self, seen: Option<&Inspected>, running: bool, newest: Option<&str>) -> Inspected {
        let image_id = seen.map(|seen| seen.image_id.clone()).unwrap_or_default();
        Inspected {
            image: self.image.clone(),
            image_id: newest.map_or(image_id, str::to_owned),
            command: self.command.clone(),
            env: self.env.clone(),
            ports: self.ports.clone(),
            volumes: self.volumes.clone(),
            restart: self.restart.clone().unwrap_or_else(|| "no".to_owned()),
            labels: self.labels.clone(),
            running,
        }
    }
}

/// Returns an id without the name of its hash, which one engine leaves out.
fn bare(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}

/// Refuses what an engine would take for an option, or not at all.
pub(super) fn check_image(image: &str) -> Result<&str, OpError> {
    if image.starts_with('-') || image.contains(char::is_whitespace) {
        return Err(OpError::invalid(format!("`{}` is not an image", image.escape_debug())));
    }
    Ok(image)
}

pub(super) fn check_restart(policy: &str) -> Result<String, OpError> {
    let retries =
        policy.strip_prefix("on-failure:").is_some_and(|count| count.parse::<u32>().is_ok_and(|n| n > 0));
    if retries || matches!(policy, "no" | "always" | "unless-stopped" | "on-failure") {
        return Ok(policy.to_owned());
    }
    Err(OpError::invalid(format!(
        "restart `{}` is none of no, always, unless-stopped, on-failure, on-failure:COUNT",
        policy.escape_debug()
    )))
}

fn parse<T: Ord>(params: &Params, name: &str, parse: fn(&str) -> Option<T>) -> Result<BTreeSet<T>, OpError> {
    let form =
        if name == "ports" { "[ADDRESS:]HOST:CONTAINER[/PROTOCOL]" } else { "SOURCE:DESTINATION[:ro]" };
    let item = |text: String| {
        parse(&text)
            .ok_or_else(|| OpError::invalid(format!("`{name}`: `{}` is not {form}", text.escape_debug())))
    };
    params.texts(name).into_iter().map(item).collect()
}
