//! `file.absent`: nothing at this path.

use std::path::{Component, Path};

use stead_model::Descriptor;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpContext, OpError, Params};

use super::entry::{Want, expect};
use super::params::{PATH, WRITE};
use super::{Desire, Entry};
use crate::disk::body::WHOLE;
use crate::disk::seen::{Depth, Kind, Seen};
use crate::disk::{Disk, Last, Spot};

const THE_ROOT: &str = "the root directory cannot be removed";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.absent",
    summary: "Makes sure nothing is at a path.",
    params: &[
        PATH.judged(|value| {
            judge_texts(value, |text| {
                let leads_on = |part: Component<'_>| matches!(part, Component::Normal(_));
                (!Path::new(text).components().any(leads_on)).then(|| THE_ROOT.to_owned())
            })
        }),
        ParamSpec::new(
            "recursive",
            ParamKind::Bool,
            "Remove a directory with all that is in it; default: false.",
        )
        .default(ParamDefault::Flag(false)),
    ],
    result: &[("path", "The path that was removed.")],
    ..WRITE
};

pub(super) struct Absent;

impl Desire for Absent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let path = Path::new(params.required("path")?);
        let spot = disk.locate(path, Last::Keep)?;
        if spot.is_root() {
            return Err(OpError::invalid(THE_ROOT));
        }
        let recursive = params.flag("recursive", false);
        let mut budget = WHOLE;
        let mut entries = Vec::new();
        let mut todo = vec![(String::new(), spot)];
        while let Some((label, spot)) = todo.pop() {
            let seen = see(cx, disk, &spot, &mut budget)?;
            if seen.kind == Kind::Directory {
                let children = disk.children(&spot)?;
                if !children.is_empty() && !recursive {
                    return Err(OpError::permanent(format!(
                        "directory `{}` is not empty; `recursive: true` removes what is in it",
                        spot.path.display()
                    )));
                }
                todo.extend(children.into_iter().map(|child| (join(&label, &child), child)));
            }
            expect(&spot, &seen, &[seen.kind])?;
            entries.push(Entry { label, spot, seen, want: Want::new(Kind::Absent) });
        }
        Ok(entries)
    }
}

/// Returns what is at `spot`; content only as long as an inverse could still hold it, then by hash if it is kept.
pub(super) fn see(cx: &OpContext, disk: &Disk, spot: &Spot, budget: &mut u64) -> Result<Seen, OpError> {
    let seen = disk.see(spot, Depth::Attributes)?;
    if seen.kind != Kind::File {
        return Ok(seen);
    }
    if *budget == 0 {
        return if cx.undo.is_wanted() { disk.see(spot, Depth::Hash) } else { Ok(seen) };
    }
    let seen = disk.see(spot, Depth::Content)?;
    *budget = budget.saturating_sub(seen.body.as_ref().map_or(0, |body| body.size));
    Ok(seen)
}

/// Returns what the child of the entry called `label` is called.
pub(super) fn join(label: &str, child: &Spot) -> String {
    let name = child.name.to_string_lossy();
    if label.is_empty() { name.into_owned() } else { format!("{label}/{name}") }
}
