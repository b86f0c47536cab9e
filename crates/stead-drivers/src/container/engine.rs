//! podman or docker, by its command line.

use std::collections::BTreeMap;

use serde_json::Value;
use stead_runner::operation::{OpContext, OpError, Params};

use super::inspected::Inspected;
use super::wish::Wish;
use crate::system::{Tool, has};

/// The engine of the target.
pub(super) struct Engine<'a> {
    cx: &'a OpContext,
    pub(super) program: &'static str,
}

impl<'a> Engine<'a> {
    pub(super) fn new(cx: &'a OpContext, params: &Params) -> Result<Self, OpError> {
        if cx.root.is_some() {
            return Err(OpError::unsupported("a root prefix has no container engine"));
        }
        let asked = params.text("engine").unwrap_or("auto");
        let found =
            ["podman", "docker"].into_iter().find(|name| (asked == "auto" || asked == *name) && has(name));
        match found {
            Some(program) => Ok(Self { cx, program }),
            None if asked == "auto" => Err(OpError::unsupported("this host has neither podman nor docker")),
            None => Err(OpError::unsupported(format!("this host has no {asked}"))),
        }
    }

    fn tool(&self) -> Tool<'a> {
        Tool::new(self.cx, self.program)
    }

    /// Returns the container called `name`, with what its image gives it taken off; nothing if there is none.
    pub(super) fn inspect(&self, name: &str) -> Result<Option<Inspected>, OpError> {
        let Some(container) = self.ask(&["inspect", "--type", "container", "--"], name)? else {
            return Ok(None);
        };
        let image = container["Image"].as_str().unwrap_or_default();
        let image = self.ask(&["image", "inspect", "--"], image)?.unwrap_or_default();
        Inspected::read(&container, &image).map(Some).ok_or_else(|| {
            OpError::operation(format!(
                "`{} inspect` says something of `{name}` that Stead cannot read",
                self.program
            ))
        })
    }

    /// Returns the id of an image that is here, if it is.
    pub(super) fn image(&self, image: &str) -> Result<Option<String>, OpError> {
        let found = self.ask(&["image", "inspect", "--"], image)?;
        Ok(found.and_then(|found| found["Id"].as_str().map(str::to_owned)))
    }

    fn ask(&self, verb: &[&str], name: &str) -> Result<Option<Value>, OpError> {
        let said = self.tool().args(verb).arg(name).run()?;
        let text = said.stderr.to_lowercase();
        if !said.is_ok()
            && (text.contains("no such") || text.contains("not found") || text.contains("not known"))
        {
            return Ok(None);
        }
        if !said.is_ok() {
            return Err(OpError::operation(format!("`{} {}`: {}", self.program, verb[0], said.describe())));
        }
        let answer: Value = serde_json::from_str(&said.stdout).map_err(|error| {
            OpError::operation(format!("`{} {}` says no JSON: {error}", self.program, verb[0]))
        })?;
        Ok(answer.get(0).cloned())
    }

    /// Fetches an image.
    pub(super) fn pull(&self, image: &str) -> Result<(), OpError> {
        self.tool().args(["pull", "--quiet", "--", image]).must().map(|_| ())
    }

    /// Makes a container. Variables go over standard input: an argument list is for everybody to see.
    pub(super) fn create(&self, wish: &Wish) -> Result<(), OpError> {
        let mut tool = self.tool().args(["create", "--pull=never", "--name", &wish.name]);
        for (key, value) in &wish.labels {
            tool = tool.arg("--label").arg(format!("{key}={value}"));
        }
        if !wish.env.is_empty() {
            tool = tool.args(["--env-file", "/dev/stdin"]).stdin(env_file(&wish.env)?);
        }
        for port in &wish.ports {
            tool = tool.arg("--publish").arg(port.to_string());
        }
        for volume in &wish.volumes {
            tool = tool.arg("--volume").arg(volume.to_string());
        }
        if let Some(restart) = &wish.restart {
            tool = tool.arg("--restart").arg(restart);
        }
        tool.args(["--", &wish.image]).args(&wish.command).must().map(|_| ())
    }

    /// Does something to a container: `start`, `stop`, `rename OLD`, `rm --force`.
    pub(super) fn command(&self, verb: &[&str], names: &[&str]) -> Result<(), OpError> {
        self.tool().args(verb).args(names).must().map(|_| ())
    }
}

fn env_file(env: &BTreeMap<String, String>) -> Result<Vec<u8>, OpError> {
    let mut text = String::new();
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\n', '\0', '#']) || value.contains(['\n', '\0']) {
            return Err(OpError::invalid(format!(
                "variable `{}`: neither name nor value can hold a line end here",
                name.escape_debug()
            )));
        }
        text.push_str(&format!("{name}={value}\n"));
    }
    Ok(text.into_bytes())
}
