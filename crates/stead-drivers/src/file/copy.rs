//! `file.copy`: a file or a tree of the driver, on the target.
//!
//! Files are compared by hash and only those that differ are written. Links are kept as links. New files take the
//! source's permission bits less the umask; existing ones keep theirs unless `mode` says otherwise, which holds for
//! files (directories get execute wherever it has read).

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_model::Descriptor;
use stead_model::executor::{EntryKind, SourceEntry, SourceTree};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::files::{Exclude, Needs};
use stead_runner::operation::{OpContext, OpError, Params};

use super::absent::{join, see};
use super::entry::{Want, expect};
use super::params::{BACKUP, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, VALIDATE, WRITE};
use super::present::{read_source, want_source};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::body::{Body, WHOLE};
use crate::disk::seen::{Depth, Kind, Seen};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.copy",
    summary: "Makes sure a file or tree of the driver is on the target.",
    params: &[
        PATH,
        ParamSpec::new("source", ParamKind::SourcePath, "A file or directory on the driver.").required(),
        ParamSpec::new("delete", ParamKind::Bool, "Remove what is not in the source; default: false.").default(ParamDefault::Flag(false)),
        ParamSpec::new(
            "exclude",
            ParamKind::TextList,
            "Paths in the source, relative to it, that are left out, with all below; `*` and `?` match within a name; default: none.",
        ).default(ParamDefault::Texts(&[])),
        MODE,
        OWNER,
        GROUP,
        BACKUP,
        VALIDATE,
        FOLLOW,
        PARENTS,
    ],
    ..WRITE
};

pub(super) struct Copy;

impl Desire for Copy {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn needs(&self, params: &Params) -> Needs {
        let source = params.text("source").map(|source| (source.to_owned(), exclude(params)));
        Needs { sources: source.into_iter().collect(), ..Needs::default() }
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let source = params.required("source")?;
        let base = params::want(cx, disk, params, Kind::File)?;
        let tree = cx.files.tree(source, &exclude(params))?;
        let spot = params::spot(disk, params)?;
        if let Some(top) = tree.entries.first().filter(|top| top.kind == EntryKind::File) {
            let seen = disk.see(&spot, Depth::Content)?;
            expect(&spot, &seen, &[Kind::File, Kind::Absent])?;
            let want = Want { new_mode: Some(top.mode), ..base };
            let want = want_source(cx, want, source, top.clone(), seen.body.as_ref())?;
            return Ok(vec![Entry { label: String::new(), spot, seen, want }]);
        }
        let sources = Sources::new(source, &tree)?;
        let mut budget = WHOLE;
        let mut entries = Vec::new();
        for (below, wanted) in &sources.0 {
            let path = if below.as_os_str().is_empty() { spot.path.clone() } else { spot.path.join(below) };
            let spot = if below.as_os_str().is_empty() {
                spot.clone()
            } else {
                disk.locate(&path, crate::disk::Last::Keep)?
            };
            let seen =
                disk.see(&spot, if wanted.kind == Kind::File { Depth::Hash } else { Depth::Attributes })?;
            // Another kind of thing in the way is an error: what is in it would be lost.
            expect(&spot, &seen, &[wanted.kind, Kind::Absent])?;
            let label = below.to_str().ok_or_else(|| not_text(below))?.to_owned();
            let mut entry = Entry { label, spot, seen, want: wanted.with(&base) };
            keep_whole(cx, disk, &mut entry, &mut budget)?;
            entries.push(entry);
        }
        if params.flag("delete", false) {
            let extra = extra(cx, disk, &spot, &sources, &mut budget)?;
            entries.extend(extra);
        }
        Ok(entries)
    }
}

fn not_text(path: &Path) -> OpError {
    OpError::permanent(format!("the name `{}` in the source is not UTF-8", path.display()))
}

/// What the source holds, by path relative to it.
struct Sources(BTreeMap<PathBuf, Source>);

struct Source {
    kind: Kind,
    mode: u32,
    to: Option<String>,
    body: Option<Body>,
    from: Option<Arc<(String, SourceEntry)>>,
}

impl Source {
    fn with(&self, base: &Want) -> Want {
        let mut want = Want { kind: self.kind, new_mode: Some(self.mode), ..base.clone() };
        match self.kind {
            Kind::Directory => want.mode = base.mode.map(|mode| mode | (mode & 0o444) >> 2),
            Kind::Symlink => want.mode = None,
            Kind::File | Kind::Absent | Kind::Other | Kind::Unknown => {}
        }
        want.to.clone_from(&self.to);
        want.body.clone_from(&self.body);
        want.from.clone_from(&self.from);
        want
    }
}

impl Sources {
    fn new(source: &str, tree: &SourceTree) -> Result<Self, OpError> {
        let mut found = BTreeMap::new();
        for entry in &tree.entries {
            let below = PathBuf::from(std::ffi::OsStr::from_bytes(entry.path.as_bytes()));
            let mut item =
                Source { kind: Kind::Directory, mode: entry.mode, to: None, body: None, from: None };
            match entry.kind {
                EntryKind::Directory => {}
                EntryKind::Symlink => {
                    let to = entry.to.as_ref().map_or(&[][..], |to| to.as_bytes());
                    let to = std::str::from_utf8(to).map_err(|_| not_text(&below))?;
                    (item.kind, item.to) = (Kind::Symlink, Some(to.to_owned()));
                }
                EntryKind::File => {
                    item.kind = Kind::File;
                    item.body = Some(Body::named(entry.size, &entry.sha256));
                    item.from = Some(Arc::new((source.to_owned(), entry.clone())));
                }
            }
            found.insert(below, item);
        }
        Ok(Self(found))
    }
}

/// Reads both sides of a file that differs whole, for the diff and the inverse, while there is room.
fn keep_whole(cx: &OpContext, disk: &Disk, entry: &mut Entry, budget: &mut u64) -> Result<(), OpError> {
    let (Some(seen), Some(wanted)) = (&entry.seen.body, &entry.want.body) else { return Ok(()) };
    if seen == wanted || seen.size + wanted.size > *budget {
        return Ok(());
    }
    *budget -= seen.size + wanted.size;
    if let Some(from) = entry.want.from.clone() {
        entry.want.body = Some(read_source(cx, &from.0, &from.1)?);
    }
    entry.seen = disk.see(&entry.spot, Depth::Content)?;
    Ok(())
}

/// Returns what is on the target and not in the source, to be removed.
fn extra(
    cx: &OpContext,
    disk: &Disk,
    spot: &crate::disk::Spot,
    sources: &Sources,
    budget: &mut u64,
) -> Result<Vec<Entry>, OpError> {
    let mut entries = Vec::new();
    let mut todo = vec![(String::new(), spot.clone())];
    while let Some((label, spot)) = todo.pop() {
        let seen: Seen = disk.see(&spot, Depth::Attributes)?;
        if seen.kind == Kind::Directory {
            todo.extend(disk.children(&spot)?.into_iter().map(|child| (join(&label, &child), child)));
        }
        if sources.0.contains_key(Path::new(&label)) || seen.kind == Kind::Absent {
            continue;
        }
        let seen = see(cx, disk, &spot, budget)?;
        entries.push(Entry { label, spot, seen, want: Want::new(Kind::Absent) });
    }
    Ok(entries)
}

/// Returns what is left out.
fn exclude(params: &Params) -> Exclude {
    Exclude::new(&params.texts("exclude"))
}
