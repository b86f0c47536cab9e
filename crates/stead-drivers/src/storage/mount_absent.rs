//! `mount.absent`: no file system at a path, now and after the next start.

use serde_json::Value;
use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use super::fstab::{self, Table};
use super::mount_present::path;
use crate::disk::Last;
use crate::setup::live::Live;
use crate::setup::{CONFIGURE, Configure, Setup};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "mount.absent",
    summary: "Makes sure nothing is mounted at a path and /etc/fstab has no line for it.",
    params: &[ParamSpec::new("path", ParamKind::AbsolutePath, "Mount point; the directory stays.").required()],
    ..CONFIGURE
};

pub(super) struct MountAbsent;

impl Configure for MountAbsent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let path = path(params)?;
        let point = setup.disk.locate(path.as_ref(), Last::Follow)?.path;
        if point == std::path::Path::new("/") {
            return Err(OpError::invalid("`/` cannot be unmounted"));
        }
        if let Some(content) = setup.read(fstab::PATH.as_ref())? {
            let mut table = Table::new(&content);
            table.remove(path);
            setup.content(fstab::PATH, table.into_bytes())?;
        }
        setup.wish(Live::Mount(point), Value::Null)
    }
}
