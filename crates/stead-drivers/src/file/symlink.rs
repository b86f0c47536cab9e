//! `file.symlink`: a symbolic link with this text.

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::entry::expect;
use super::params::{GROUP, OWNER, PARENTS, PATH, WRITE};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::seen::{Depth, Kind};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.symlink",
    summary: "Makes sure a symbolic link is there, with this text.",
    params: &[
        PATH,
        ParamSpec::new("to", ParamKind::NonEmptyText, "The link's text: where it points. It need not exist.")
            .required(),
        ParamSpec::new(
            "force",
            ParamKind::Bool,
            "Replace a file or an empty directory at `path`; default: false, which is an error.",
        )
        .default(ParamDefault::Flag(false)),
        OWNER,
        GROUP,
        PARENTS,
    ],
    result: &[("path", "The path that was changed.")],
    ..WRITE
};

pub(super) struct Symlink;

impl Desire for Symlink {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let spot = params::spot(disk, params)?;
        let seen = disk.see(&spot, Depth::Content)?;
        let force = params.flag("force", false);
        if force {
            expect(&spot, &seen, &[Kind::Symlink, Kind::Absent, Kind::File, Kind::Directory])?;
            if seen.kind == Kind::Directory && !disk.children(&spot)?.is_empty() {
                return Err(OpError::permanent(format!(
                    "directory `{}` is not empty; `force` does not remove what is in it",
                    spot.path.display()
                )));
            }
        } else if !matches!(seen.kind, Kind::Symlink | Kind::Absent) {
            expect(&spot, &seen, &[Kind::Symlink]).map_err(|error| OpError {
                message: format!("{}; `force: true` replaces it", error.message),
                ..error
            })?;
        }
        let mut want = params::want(cx, disk, params, Kind::Symlink)?;
        want.to = Some(params.required("to")?.to_owned());
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}
