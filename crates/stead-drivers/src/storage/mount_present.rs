//! `mount.present`: a file system at a path, now and after the next start.

use std::path::Path;

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use super::fstab::{self, Line, Table};
use super::mount_table::Mount;
use crate::disk::Last;
use crate::disk::seen::{Depth, Kind};
use crate::file::entry::{Want, expect};
use crate::setup::live::Live;
use crate::setup::{CONFIGURE, Configure, Setup, input};

pub(super) const PATH: ParamSpec =
    ParamSpec::new("path", ParamKind::AbsolutePath, "Mount point; made if it is missing.").required();

static DESCRIPTOR: Descriptor = Descriptor {
    name: "mount.present",
    summary: "Makes sure a file system is in /etc/fstab and mounted.",
    params: &[
        PATH,
        ParamSpec::new(
            "device",
            ParamKind::Line,
            "Device, UUID=…, LABEL=…, server:/path or a word such as tmpfs.",
        )
        .required(),
        ParamSpec::new("fstype", ParamKind::Line, "Type of the file system.").required(),
        ParamSpec::new(
            "options",
            ParamKind::Line,
            "Mount options, separated by commas; default: those that are there, for a new line `defaults`.",
        ),
        ParamSpec::new("mounted", ParamKind::Bool, "Mount it now, too; default: true.")
            .default(ParamDefault::Flag(true)),
    ],
    ..CONFIGURE
};

pub(super) struct MountPresent;

impl Configure for MountPresent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let path = path(params)?;
        let needed = |name: &str| {
            let text = input::line(params, name)?.unwrap_or_default().trim();
            if text.is_empty() || text.starts_with('-') {
                return Err(OpError::invalid(format!(
                    "`{name}`, `{text}`: expected a device, a type or options"
                )));
            }
            Ok(text.to_owned())
        };
        let (device, fstype) = (needed("device")?, needed("fstype")?);
        let options = params.get("options").map(|_| needed("options")).transpose()?;
        if options.as_ref().is_some_and(|options| options.contains(char::is_whitespace)) {
            return Err(OpError::invalid("`options` are separated by commas, without white space"));
        }
        // What is mounted hides the directory, so only that there is one matters.
        let spot = setup.disk.locate(path.as_ref(), Last::Follow)?;
        let seen = setup.disk.see(&spot, Depth::Attributes)?;
        expect(&spot, &seen, &[Kind::Directory, Kind::Absent])?;
        let point = spot.path.clone();
        if !spot.is_root() {
            setup.push(spot, seen, Want::new(Kind::Directory));
        }
        let mut table = Table::new(&setup.read(fstab::PATH.as_ref())?.unwrap_or_default());
        let old = table.get(path).map(|line| line.options);
        let listed = options.clone().or(old).unwrap_or_else(|| "defaults".to_owned());
        table.set(&Line::new(&device, path, &fstype, &listed));
        setup.content(fstab::PATH, table.into_bytes())?;
        if params.flag("mounted", true) {
            let mount = Mount { device, fstype, options, ..Mount::default() };
            setup.wish(Live::Mount(point), mount.to_value())?;
        }
        Ok(())
    }
}

/// Returns the mount point as a table holds it.
pub(super) fn path(params: &Params) -> Result<&str, OpError> {
    let path = params.required("path")?;
    input::on_one_line("path", path)?;
    let is_plain = |path: &Path| !path.components().any(|part| part.as_os_str() == "..");
    if !path.starts_with('/') || !is_plain(Path::new(path)) {
        return Err(OpError::invalid(format!("`path`, `{path}`: expected an absolute path without `..`")));
    }
    Ok(if path.len() > 1 { path.trim_end_matches('/') } else { path })
}
