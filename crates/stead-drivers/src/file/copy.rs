//! `file.copy`: a file or a tree of the driver, on the target.
//!
//! Files are compared by hash and only those that differ are written. Links are kept as links. New files take the
//! source's permission bits less the umask; existing ones keep theirs unless `mode` says otherwise, which holds for
//! files (directories get execute wherever it has read).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::absent::{join, see};
use super::entry::{Want, expect};
use super::params::{BACKUP, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, VALIDATE, WRITE};
use super::present::source_body;
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

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let source = cx.base_dir.join(params.required("source")?);
        let base = params::want(cx, disk, params, Kind::File)?;
        let top = std::fs::metadata(&source).map_err(|error| {
            OpError::permanent(format!("cannot read source `{}`: {error}", source.display()))
        })?;
        let spot = params::spot(disk, params)?;
        if !top.is_dir() {
            let seen = disk.see(&spot, Depth::Content)?;
            expect(&spot, &seen, &[Kind::File, Kind::Absent])?;
            let new_mode = Some(top.permissions().mode() & 0o777);
            let want = Want { new_mode, body: Some(source_body(&source)?), ..base };
            return Ok(vec![Entry { label: String::new(), spot, seen, want }]);
        }
        let sources = Sources::list(&source, &Exclude::new(&params.texts("exclude"))?)?;
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
            keep_whole(disk, &mut entry, &mut budget)?;
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
        want
    }
}

impl Sources {
    fn list(source: &Path, exclude: &Exclude) -> Result<Self, OpError> {
        let mut found = BTreeMap::new();
        let walk = walkdir::WalkDir::new(source).follow_root_links(true).sort_by_file_name().into_iter();
        let below = |path: &Path| path.strip_prefix(source).unwrap_or(path).to_owned();
        for entry in walk.filter_entry(|entry| !exclude.hits(&below(entry.path()))) {
            let cannot = |error: &dyn std::fmt::Display| {
                OpError::permanent(format!("cannot read source `{}`: {error}", source.display()))
            };
            let entry = entry.map_err(|error| cannot(&error))?;
            let metadata = entry.metadata().map_err(|error| cannot(&error))?;
            let mode = metadata.permissions().mode() & 0o777;
            let mut item = Source { kind: Kind::Directory, mode, to: None, body: None };
            if entry.path_is_symlink() && entry.depth() > 0 {
                let to = std::fs::read_link(entry.path()).map_err(|error| cannot(&error))?;
                item.kind = Kind::Symlink;
                item.to = Some(to.to_str().ok_or_else(|| not_text(&to))?.to_owned());
            } else if metadata.is_file() {
                let mut file = File::open(entry.path()).map_err(|error| cannot(&error))?;
                item.kind = Kind::File;
                let body = Body::hashed(&mut file).map_err(|error| cannot(&error))?;
                item.body = Some(body.with_source(entry.path().to_owned()));
            } else if !metadata.is_dir() {
                return Err(cannot(&format_args!("`{}` is a special file", entry.path().display())));
            }
            found.insert(below(entry.path()), item);
        }
        Ok(Self(found))
    }
}

/// Reads both sides of a file that differs whole, for the diff and the inverse, while there is room.
fn keep_whole(disk: &Disk, entry: &mut Entry, budget: &mut u64) -> Result<(), OpError> {
    let (Some(seen), Some(wanted)) = (&entry.seen.body, &entry.want.body) else { return Ok(()) };
    if seen == wanted || seen.size + wanted.size > *budget {
        return Ok(());
    }
    *budget -= seen.size + wanted.size;
    if let Some(source) = wanted.source.clone() {
        entry.want.body = Some(source_body(&source)?);
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

/// What is left out.
struct Exclude(Vec<regex::Regex>);

impl Exclude {
    fn new(patterns: &[String]) -> Result<Self, OpError> {
        let compile = |pattern: &String| {
            let escaped = regex::escape(pattern.trim_end_matches('/'));
            let text = format!("^{}$", escaped.replace(r"\*", "[^/]*").replace(r"\?", "[^/]"));
            regex::Regex::new(&text).map_err(|error| OpError::invalid(format!("`exclude`: {error}")))
        };
        Ok(Self(patterns.iter().map(compile).collect::<Result<_, _>>()?))
    }

    fn hits(&self, below: &Path) -> bool {
        let text = below.to_string_lossy();
        self.0.iter().any(|pattern| pattern.is_match(&text))
    }
}
