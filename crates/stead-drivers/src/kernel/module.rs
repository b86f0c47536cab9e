//! `kernel.module`: a kernel module, loaded now and after the next start.

use std::path::{Path, PathBuf};

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use super::modules::{cannot_unload, is_built_in, spelled};
use crate::disk::Last;
use crate::disk::seen::{Depth, Kind};
use crate::file::edit::Lines;
use crate::file::params::STATE;
use crate::setup::live::Live;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const LOADED: &str = "/etc/modules-load.d";
/// Read besides them on Debian.
const OLD_LIST: &str = "/etc/modules";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "kernel.module",
    summary: "Makes sure a kernel module is loaded, now and at every start, or is not.",
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "The module.").required(),
        ParamSpec::new(
            "options",
            ParamKind::Line,
            "Options such as `numdummies=2`, in /etc/modprobe.d; they hold from the next time it is loaded.",
        ),
        ParamSpec::new("persist", ParamKind::Bool, "Load it at every start; default: true.")
            .default(ParamDefault::Flag(true)),
        STATE,
    ],
    ..CONFIGURE
};

pub(super) struct Module;

impl Configure for Module {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let name = spelled(input::file_name(params, "name", "")?);
        let (load, options) =
            (format!("{LOADED}/stead-{name}.conf"), format!("/etc/modprobe.d/stead-{name}.conf"));
        if input::is_absent(params) {
            if setup.is_running() && is_built_in(&name) {
                return Err(cannot_unload(&name));
            }
            for list in lists(setup)? {
                unlist(setup, &list, &name)?;
            }
            setup.absent(&options)?;
            return setup.wish(Live::Module(name), false.into());
        }
        if let Some(given) = input::line(params, "options")? {
            let line = format!("options {name} {}\n", given.trim());
            setup.content(&options, line.into_bytes())?;
        }
        if params.flag("persist", true) {
            setup.content(&load, format!("{name}\n").into_bytes())?;
        }
        setup.wish(Live::Module(name), true.into())
    }
}

/// Returns every file that lists modules to be loaded at the start.
fn lists(setup: &Setup<'_>) -> Result<Vec<PathBuf>, OpError> {
    let spot = setup.disk.locate(LOADED.as_ref(), Last::Follow)?;
    let mut found = vec![PathBuf::from(OLD_LIST)];
    for child in setup.disk.children(&spot)? {
        let is_list = child.path.extension().is_some_and(|end| end == "conf");
        if is_list && setup.disk.see(&child, Depth::Attributes)?.kind == Kind::File {
            found.push(child.path);
        }
    }
    Ok(found)
}

/// Takes the module off a list; a list that holds nothing else goes.
fn unlist(setup: &mut Setup<'_>, list: &Path, name: &str) -> Result<(), OpError> {
    let Some(content) = setup.read(list)? else { return Ok(()) };
    let mut lines = Lines::new(&content);
    let is_module = |text: &[u8]| {
        // `/etc/modules` allows options after the name.
        let word = text.split(u8::is_ascii_whitespace).find(|word| !word.is_empty());
        word.is_some_and(|word| spelled(&String::from_utf8_lossy(word)) == name)
    };
    let found = lines.find(is_module);
    if found.is_empty() {
        return Ok(());
    }
    for i in found.into_iter().rev() {
        lines.remove(i..i + 1);
    }
    let left = lines.into_bytes();
    if left.is_empty() && list.starts_with(LOADED) { setup.absent(list) } else { setup.content(list, left) }
}
