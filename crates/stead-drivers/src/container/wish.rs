//! What a container should be, with what is not said taken from the one that is there.

use std::collections::{BTreeMap, BTreeSet};

use stead_runner::operation::{Diff, OpError, Params};

use super::inspected::{Image, Inspected, Port, Volume};
use super::{LABEL, MADE, check_name};
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
        let mut labels = before.own_labels();
        labels.extend(params.text_map("labels").into_iter().filter(|(name, _)| name != LABEL));
        labels.entry(LABEL.to_owned()).or_insert_with(|| MADE.to_owned());
        let restart = params.text("restart").map(check_restart).transpose()?;
        let volumes = if given("volumes") {
            over(parse(params, "volumes", Volume::parse)?, before.volumes.clone())
        } else {
            before.volumes.clone()
        };
        Ok(Self {
            name: check_name(params.required("name")?)?.to_owned(),
            image: image.to_owned(),
            command: if given("command") { params.texts("command") } else { before.own_command().to_vec() },
            env: if given("env") { params.text_map("env") } else { before.own_env() },
            ports: if given("ports") { parse(params, "ports", Port::parse)? } else { before.ports },
            volumes,
            restart: restart
                .or(Some(before.restart).filter(|restart| !matches!(restart.as_str(), "" | "no"))),
            labels,
        })
    }

    /// Returns the fields that differ; the container has to be replaced for any of them.
    pub(super) fn diff(&self, seen: &Inspected, newest: Option<&Image>) -> Diff {
        let mut fields = Vec::new();
        let mut add = |name: &str, before: Value, after: Value| {
            if before != after {
                fields.push(field(name, before, after));
            }
        };
        if !seen.has_image(&self.image) {
            add("image", seen.image.as_str().into(), self.image.as_str().into());
        } else if let Some(newest) = newest.filter(|newest| !newest.is(&seen.base.id)) {
            // The name means another image by now.
            add("image_id", seen.base.id.as_str().into(), newest.id.as_str().into());
        }
        // Without a command it is the image's.
        let command = if self.command.is_empty() { seen.own_command() } else { &seen.command };
        add("command", json!(command), json!(self.command));
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
        let differing: Vec<&String> = self
            .labels
            .iter()
            .filter(|(name, value)| seen.labels.get(*name) != Some(value))
            .map(|(name, _)| name)
            .collect();
        let labels = |of: &BTreeMap<String, String>| {
            let some = differing
                .iter()
                .filter_map(|name| Some(((*name).clone(), Value::from(of.get(*name)?.as_str()))));
            Value::Object(some.collect())
        };
        add("labels", labels(&seen.labels), labels(&self.labels));
        let own = seen.own_env();
        let names: BTreeSet<&String> = own.keys().chain(self.env.keys()).collect();
        let differing: Vec<&String> =
            names.into_iter().filter(|name| seen.env.get(*name) != self.env.get(*name)).collect();
        // Which ones differ is told, their values are not.
        let variables = |of: &BTreeMap<String, String>| {
            let some = differing.iter().filter(|name| of.contains_key(**name));
            some.map(|name| ((*name).clone(), Value::from("***"))).collect::<serde_json::Map<_, _>>()
        };
        if !differing.is_empty() {
            fields.push(field("env", variables(&seen.env), variables(&self.env)));
        }
        Diff { fields, text: None }
    }

    /// Returns what the container will be.
    pub(super) fn after(&self, seen: Option<&Inspected>, running: bool, newest: Option<&Image>) -> Inspected {
        let same = seen.filter(|seen| seen.has_image(&self.image)).map(|seen| &seen.base);
        let base = newest.or(same).cloned().unwrap_or_default();
        let over = |base: &BTreeMap<String, String>, own: &BTreeMap<String, String>| {
            base.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        Inspected {
            image: self.image.clone(),
            command: if self.command.is_empty() { base.command.clone() } else { self.command.clone() },
            env: over(&base.env, &self.env),
            ports: self.ports.clone(),
            volumes: self.volumes.clone(),
            restart: self.restart.clone().unwrap_or_else(|| "no".to_owned()),
            labels: over(&base.labels, &self.labels),
            running,
            base,
        }
    }
}

/// Returns the volumes that are asked for, with what else they are mounted with, and those that nobody named: they
/// stay where nothing else is asked for.
fn over(asked: BTreeSet<Volume>, seen: BTreeSet<Volume>) -> BTreeSet<Volume> {
    let stays = |volume: &Volume| {
        let is_free = || asked.iter().all(|asked| asked.destination != volume.destination);
        asked.iter().any(|asked| asked.is_like(volume)) || volume.is_anonymous() && is_free()
    };
    let stay: BTreeSet<Volume> = seen.into_iter().filter(stays).collect();
    let new: Vec<Volume> =
        asked.into_iter().filter(|asked| !stay.iter().any(|volume| volume.is_like(asked))).collect();
    stay.into_iter().chain(new).collect()
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
