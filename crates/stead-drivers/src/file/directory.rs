//! `file.directory`: a directory with this mode and owner.

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::absent::join;
use super::entry::{Want, expect};
use super::params::{FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, WRITE};
use super::write::SET_ID;
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::seen::{Depth, Kind};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.directory",
    summary: "Makes sure a directory is there, with this mode and owner.",
    params: &[
        PATH,
        MODE,
        OWNER,
        GROUP,
        ParamSpec::new(
            "recurse",
            ParamKind::Bool,
            "Mode and owner hold for everything below too (links keep their mode, programs that change hands lose setuid and setgid); default: false.",
        )
        .default(ParamDefault::Flag(false)),
        FOLLOW,
        PARENTS,
    ],
    result: &[("path", "The path that was changed.")],
    ..WRITE
};

pub(super) struct Directory;

impl Desire for Directory {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let spot = params::spot(disk, params)?;
        let seen = disk.see(&spot, Depth::Attributes)?;
        expect(&spot, &seen, &[Kind::Directory, Kind::Absent])?;
        let want = params::want(cx, disk, params, Kind::Directory)?;
        let mut todo = Vec::new();
        if params.flag("recurse", false) && seen.kind == Kind::Directory {
            todo.extend(disk.children(&spot)?.into_iter().map(|child| (join("", &child), child)));
        }
        let mut entries = vec![Entry { label: String::new(), spot, seen, want: want.clone() }];
        while let Some((label, spot)) = todo.pop() {
            let seen = disk.see(&spot, Depth::Attributes)?;
            expect(&spot, &seen, &[Kind::File, Kind::Directory, Kind::Symlink, Kind::Other])?;
            if seen.kind == Kind::Directory {
                todo.extend(disk.children(&spot)?.into_iter().map(|child| (join(&label, &child), child)));
            }
            let gets_another =
                want.uid.is_some_and(|uid| uid != seen.uid) || want.gid.is_some_and(|gid| gid != seen.gid);
            let mode = match seen.kind {
                Kind::Symlink => None,
                // What somebody else made must not run as its new owner because it was found here.
                Kind::File if gets_another && seen.mode & SET_ID != 0 => {
                    want.mode.or(Some(seen.mode & !SET_ID))
                }
                Kind::File | Kind::Directory | Kind::Other | Kind::Absent | Kind::Unknown => want.mode,
            };
            let want = Want { kind: seen.kind, mode, ..want.clone() };
            entries.push(Entry { label, spot, seen, want });
        }
        Ok(entries)
    }
}
