//! podman or docker, by its command line.

use std::collections::BTreeMap;

use serde_json::Value;
use stead_runner::operation::{Cancel, OpContext, OpError, Params};

use super::inspected::{Image, Inspected};
use super::settings;
use super::wish::Wish;
use crate::system::{Tool, has};

/// The engine of the target.
pub(super) struct Engine {
    cx: OpContext,
    pub(super) program: &'static str,
}

impl Engine {
    pub(super) fn new(cx: &OpContext, params: &Params) -> Result<Self, OpError> {
        if cx.root.is_some() {
            return Err(OpError::unsupported("a root prefix has no container engine"));
        }
        let asked = params.text("engine").unwrap_or("auto");
        let found =
            ["podman", "docker"].into_iter().find(|name| (asked == "auto" || asked == *name) && has(name));
        match found {
            Some(program) => Ok(Self { cx: cx.clone(), program }),
            None if asked == "auto" => Err(OpError::unsupported("this host has neither podman nor docker")),
            None => Err(OpError::unsupported(format!("this host has no {asked}"))),
        }
    }

    /// Returns the same engine for what has to be done to its end, also by an attempt that is to stop.
    pub(super) fn undisturbed(&self) -> Self {
        Self { cx: OpContext { cancel: Cancel::never(), ..self.cx.clone() }, program: self.program }
    }

    fn tool(&self) -> Tool<'_> {
        Tool::new(&self.cx, self.program)
    }

    /// Returns the container called `name`; nothing if there is none.
    pub(super) fn inspect(&self, name: &str) -> Result<Option<Inspected>, OpError> {
        let Some(container) = self.shown(name)? else { return Ok(None) };
        let image = container["Image"].as_str().unwrap_or_default();
        let image = self.ask(&["image", "inspect", "--"], image)?.unwrap_or_default();
        Inspected::read(&container, &image).map(Some).ok_or_else(|| {
            OpError::operation(format!(
                "`{} inspect` says something of `{name}` that Stead cannot read",
                self.program
            ))
        })
    }

    /// Returns all that the engine shows of a container; nothing if there is none.
    pub(super) fn shown(&self, name: &str) -> Result<Option<Value>, OpError> {
        self.ask(&["inspect", "--type", "container", "--"], name)
    }

    /// Returns an image that is here, if it is.
    pub(super) fn image(&self, image: &str) -> Result<Option<Image>, OpError> {
        Ok(self.ask(&["image", "inspect", "--"], image)?.as_ref().map(Image::read))
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

    /// Makes a container, with these options besides. Variables go over standard input: an argument list is for
    /// everybody to see.
    pub(super) fn create(&self, wish: &Wish, options: &[String]) -> Result<(), OpError> {
        let mut tool = self.tool().args(["create", "--pull=never", "--name", &wish.name]).args(options);
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
            tool = tool.arg("--volume").arg(volume.in_full());
        }
        if let Some(restart) = &wish.restart {
            tool = tool.arg("--restart").arg(restart);
        }
        tool.args(["--", &wish.image]).args(&wish.command).must().map(|_| ())
    }

    /// Returns what was asked for when `container` was made that Stead has no parameter for: as options of `create`,
    /// and the names of what no option brings back. A container called `trial` is made for it, and removed.
    pub(super) fn settings(
        &self,
        container: &Value,
        trial: &str,
    ) -> Result<(Vec<String>, Vec<String>), OpError> {
        self.remove_with_volumes(trial)?;
        let bare = self.tried(container, trial, &[])?;
        let options = settings::options(container, &bare, self.program == "podman");
        let made = if options.is_empty() { bare } else { self.tried(container, trial, &options)? };
        let lost = settings::lost(container, &made);
        Ok((options, lost))
    }

    /// Returns what the engine shows of a container of the same image with these options.
    fn tried(&self, container: &Value, trial: &str, options: &[String]) -> Result<Value, OpError> {
        let image = container["Image"].as_str().unwrap_or_default();
        let create = self.tool().args(["create", "--pull=never", "--name", trial]).args(options);
        let shown = create.args(["--", image]).must().and_then(|_| self.shown(trial));
        self.undisturbed().remove_with_volumes(trial)?;
        Ok(shown?.unwrap_or_default())
    }

    /// Does something to a container: `start`, `stop`, `rename OLD`.
    pub(super) fn command(&self, verb: &[&str], names: &[&str]) -> Result<(), OpError> {
        self.tool().args(verb).args(names).must().map(|_| ())
    }

    /// Removes a container, if there is one. Its volumes stay.
    pub(super) fn remove(&self, name: &str) -> Result<(), OpError> {
        self.rm(&["rm", "--force"], name)
    }

    /// Removes a container that never ran, and the volumes that were made for it alone.
    pub(super) fn remove_with_volumes(&self, name: &str) -> Result<(), OpError> {
        self.rm(&["rm", "--force", "--volumes"], name)
    }

    fn rm(&self, verb: &[&str], name: &str) -> Result<(), OpError> {
        let said = self.tool().args(verb).arg(name).run()?;
        if said.is_ok() || said.stderr.to_lowercase().contains("no such") {
            return Ok(());
        }
        Err(OpError::operation(format!("`{} rm`: {}", self.program, said.describe())))
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
