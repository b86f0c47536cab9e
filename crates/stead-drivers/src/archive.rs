//! `archive.unpacked`: the files of an archive, in a directory.
//!
//! What is on disk is compared with what is in the archive, file by file and by hash. An archive behind a `url` is
//! not fetched just to compare: a list of its files and hashes, `.stead-unpacked.json`, is left in the directory
//! with the archive's own hash, and that is compared. Only files that differ are written, each as `file.*` writes
//! it; files that are in the directory and not in the archive are left alone.
//!
//! An archive with an entry, or a link, that leads out of `path` is refused as a whole, before anything is written.

mod read;
mod stage;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Op};
use stead_runner::files::Needs;
use stead_runner::operation::{Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params};

use crate::disk::body::{Body, WHOLE, hash};
use crate::disk::seen::{Depth, Kind, open_file};
use crate::disk::{Disk, Last, Spot};
use crate::file;
use crate::file::entry::{Entry, Want, expect};
use crate::file::params::{OWNER, PATH, WRITE, want};
use stage::Stage;

/// The list left with an archive that came from a `url`.
const LIST: &str = ".stead-unpacked.json";
/// Fetching a large archive takes its time; an attempt's own timeout may be shorter.
const FETCH_TIMEOUT: Duration = Duration::from_secs(3600);

static DESCRIPTOR: Descriptor = Descriptor {
    name: "archive.unpacked",
    summary: "Makes sure the files of an archive (tar, tar.gz, tar.xz, tar.zst, zip) are in a directory.",
    params: &[
        ParamSpec::new("source", ParamKind::SourcePath, "The archive: a file on the driver."),
        ParamSpec::new("url", ParamKind::Url, "The archive: an address; needs `sha256`.")
            .judged(crate::http::client::judge_address),
        ParamSpec::new("remote_path", ParamKind::AbsolutePath, "The archive: a file on the target."),
        ParamSpec::new("sha256", ParamKind::Sha256, "The archive's hash; needed with `url`.")
            .needed(Needed::With("url")),
        PATH,
        ParamSpec::new(
            "strip",
            ParamKind::Int(0, 64),
            "Leading directories to leave off each name; default: 0.",
        )
        .default(ParamDefault::Number(0)),
        ParamSpec::new("creates", ParamKind::AbsolutePath, "If this path exists nothing is done."),
        OWNER,
        crate::http::CA,
    ],
    exclusive: &[&["source", "url", "remote_path"]],
    one_of: &[&["source", "url", "remote_path"]],
    result: &[
        ("path", "The directory."),
        ("sha256", "The archive's hash."),
        ("files", "How many files it holds."),
    ],
    ..WRITE
};

/// One path of an archive, as the list holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Item {
    kind: Kind,
    mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<Body>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

type Items = BTreeMap<String, Item>;

#[derive(Debug, Serialize, Deserialize)]
struct List {
    sha256: String,
    strip: i64,
    items: Items,
}

/// Unpacks an archive.
pub(crate) struct Unpacked;

/// What an observation holds besides the entries.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Seen {
    /// The path existed.
    exists: bool,
    /// Another archive is wanted than was unpacked here, if one was; only with `url`.
    other: bool,
    /// The hash of the one that was.
    unpacked: Option<String>,
    /// The hash of the one that is wanted, and how many files it holds, where that is known.
    wanted: Option<(String, usize)>,
    entries: serde_json::Value,
}

impl Operation for Unpacked {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let work = Work::new(cx, params)?;
        let mut seen = Seen { exists: work.exists()?, ..Seen::default() };
        if !work.is_settled()? {
            match work.known()? {
                Known::Items(sha256, items) => {
                    seen.entries = file::observe_keeping(cx, &work.entries(&items)?)?.0;
                    seen.wanted = Some((sha256, files_of(&items)));
                }
                Known::Other(unpacked) => {
                    seen.other = true;
                    seen.unpacked = unpacked;
                }
            }
        }
        serde_json::to_value(seen).map(Observed).map_err(|error| OpError::operation(error.to_string()))
    }

    fn diff(&self, params: &Params, seen: &Observed) -> Diff {
        let seen: Seen = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        let mut diff = file::diff(&file::records(&Observed(seen.entries)));
        // The content of what is unpacked is not what people read in a diff.
        diff.text = None;
        if seen.other {
            let after = params.text("sha256").into();
            diff.fields.push(FieldDiff { name: "archive".to_owned(), before: json!(seen.unpacked), after });
        }
        diff
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, seen: &Observed) -> Option<Value> {
        let seen: Seen = serde_json::from_value(seen.0.clone()).ok()?;
        let (sha256, files) = seen.wanted.unzip();
        let sha256 = sha256.or_else(|| params.text("sha256").map(str::to_owned));
        Some(json!({"path": params.text("path"), "sha256": sha256, "files": files}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, seen: &Observed) -> Result<(), OpError> {
        let seen: Seen = serde_json::from_value(seen.0.clone()).unwrap_or_default();
        file::permit(&Disk::open(cx)?, &file::records(&Observed(seen.entries)))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let work = Work::new(cx, params)?;
        let stage = Stage::create(&work.disk, &work.spot)?;
        let archive = work.archive(&stage)?;
        let sha256 = work.checked(&archive)?;
        let items = read::unpack(archive, work.strip, Some(&stage))?;
        let mut entries = work.entries(&items)?;
        if params.text("url").is_some() {
            entries.push(work.list_entry(&List {
                sha256: sha256.clone(),
                strip: work.strip,
                items: listed(&items),
            })?);
        }
        let files = files_of(&items);
        let written = file::apply(cx, &work.disk, params, entries)?;
        let data = json!({"path": params.text("path"), "sha256": sha256, "files": files});
        Ok(Applied { data: Some(data), notes: written.notes })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let Ok(work) = Work::new(cx, params) else { return };
        match work.known() {
            Ok(Known::Items(_, items)) => {
                if let Ok(entries) = work.entries(&items) {
                    file::predict(&work.disk, &entries);
                }
            }
            Ok(Known::Other(_)) => {
                let sha256 = params.text("sha256").unwrap_or_default().to_owned();
                if let Ok(entry) = work.list_entry(&List { sha256, strip: work.strip, items: Items::new() }) {
                    work.disk.predict(&work.spot.path, &file::entry::new_directory());
                    file::predict(&work.disk, &[entry]);
                }
            }
            Err(_) => {}
        }
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let seen: Seen = serde_json::from_value(before.0.clone()).ok()?;
        if !seen.exists {
            let path = ("path".to_owned(), stead_model::plan::Param::Value(params.get("path")?.clone()));
            let all = ("recursive".to_owned(), stead_model::plan::Param::from(true));
            let operation = stead_model::OperationName::parse("file.absent").ok()?;
            return Some(Op { operation, params: BTreeMap::from([path, all]) });
        }
        // With another archive wanted from a `url`, which files it would write is not known before.
        if seen.other {
            return None;
        }
        file::restored::inverse(&file::records(&Observed(seen.entries)), &[])
    }

    fn needs(&self, params: &Params) -> Needs {
        crate::http::client::with_certificates(Needs::of(&DESCRIPTOR, params), params)
    }
}

fn files_of(items: &Items) -> usize {
    items.values().filter(|item| item.kind == Kind::File).count()
}

/// Whether the archive's files are known without fetching it.
enum Known {
    /// What the wanted one holds, with its hash.
    Items(String, Items),
    /// Another archive was unpacked here, or none.
    Other(Option<String>),
}

struct Work<'a> {
    cx: &'a OpContext,
    params: &'a Params,
    disk: Disk,
    spot: Spot,
    strip: i64,
}

impl<'a> Work<'a> {
    fn new(cx: &'a OpContext, params: &'a Params) -> Result<Self, OpError> {
        if params.text("url").is_some() && params.text("sha256").is_none() {
            return Err(OpError::invalid("`url` needs `sha256`: what is fetched must be what is meant"));
        }
        let disk = Disk::open(cx)?;
        let spot = disk.locate(Path::new(params.required("path")?), Last::Follow)?;
        if let Some(missing) = spot.missing.first() {
            return Err(OpError::operation(format!("directory `{}` does not exist", missing.display())));
        }
        Ok(Self { cx, params, disk, spot, strip: params.int("strip").unwrap_or(0) })
    }

    fn exists(&self) -> Result<bool, OpError> {
        let seen = self.disk.see(&self.spot, Depth::Attributes)?;
        expect(&self.spot, &seen, &[Kind::Directory, Kind::Absent])?;
        Ok(seen.kind == Kind::Directory)
    }

    fn is_settled(&self) -> Result<bool, OpError> {
        self.params.text("creates").map_or(Ok(false), |creates| self.disk.exists(Path::new(creates)))
    }

    fn known(&self) -> Result<Known, OpError> {
        if self.params.text("url").is_none() {
            let archive = self.local()?;
            let sha256 = self.checked(&archive)?;
            return Ok(Known::Items(sha256, read::unpack(archive, self.strip, None)?));
        }
        let list = self.disk.locate(&self.spot.path.join(LIST), Last::Keep)?;
        let seen = self.disk.see(&list, Depth::Content)?;
        let bytes = self.disk.read(&list, &seen, 256 << 20)?;
        Ok(match serde_json::from_slice::<List>(&bytes) {
            Ok(list)
                if Some(list.sha256.as_str()) == self.params.text("sha256") && list.strip == self.strip =>
            {
                Known::Items(list.sha256, list.items)
            }
            Ok(list) => Known::Other(Some(list.sha256)),
            Err(_) => Known::Other(None),
        })
    }

    /// Opens an archive that is a file already.
    fn local(&self) -> Result<File, OpError> {
        if let Some(source) = self.params.text("source") {
            let entry = file::present::source_file(self.cx, source)?;
            let path = self.cx.files.content(source, &entry)?;
            return File::open(&path).map_err(|error| {
                OpError::permanent(format!("cannot read source `{}`: {error}", path.display()))
            });
        }
        let path = Path::new(self.params.required("remote_path")?);
        let spot = self.disk.locate(path, Last::Follow)?;
        let opened = spot.directory.as_ref().map(|directory| open_file(directory, &spot.name));
        opened
            .unwrap_or(Err(rustix::io::Errno::NOENT))
            .map_err(|errno| crate::disk::io_error(&spot.path, "read", errno))
    }

    /// Opens the archive, fetching it if it is elsewhere.
    fn archive(&self, stage: &Stage) -> Result<File, OpError> {
        match self.params.text("url") {
            Some(url) => stage.fetch(self.cx, self.params, url, FETCH_TIMEOUT),
            None => self.local(),
        }
    }

    /// Returns the archive's hash, if it is the one that is meant.
    fn checked(&self, mut archive: &File) -> Result<String, OpError> {
        use std::io::Seek;
        let failed = |error: std::io::Error| OpError::io("cannot read the archive", &error);
        archive.rewind().map_err(failed)?;
        let (_, sha256) = hash(&mut archive).map_err(failed)?;
        archive.rewind().map_err(failed)?;
        match self.params.text("sha256") {
            Some(meant) if meant != sha256 => {
                Err(OpError::permanent(format!("the archive's SHA-256 is {sha256}, not {meant}")))
            }
            Some(_) | None => Ok(sha256),
        }
    }

    fn entries(&self, items: &Items) -> Result<Vec<Entry>, OpError> {
        let base = want(self.cx, &self.disk, self.params, Kind::File)?;
        let mut budget = WHOLE;
        let seen = self.disk.see(&self.spot, Depth::Attributes)?;
        // A directory that is there keeps its owner: it may hold more than the archive.
        let uid = base.uid.filter(|_| seen.kind == Kind::Absent);
        let own = Want { uid, ..Want::new(Kind::Directory) };
        let mut entries = vec![Entry { label: String::new(), spot: self.spot.clone(), seen, want: own }];
        for (label, item) in items {
            let spot = self.disk.locate(&self.spot.path.join(label), Last::Keep)?;
            if spot.path != self.spot.path.join(label) {
                return Err(OpError::permanent(format!(
                    "`{label}` of the archive would be written to `{}`: a link is in the way",
                    spot.path.display()
                )));
            }
            let depth = if item.kind == Kind::File { Depth::Hash } else { Depth::Attributes };
            let mut seen = self.disk.see(&spot, depth)?;
            expect(&spot, &seen, &[item.kind, Kind::Absent])?;
            // What is going to be replaced is kept for the inverse, while there is room.
            if let Some(old) = &seen.body
                && item.body.as_ref() != Some(old)
                && old.size <= budget
            {
                budget -= old.size;
                seen = self.disk.see(&spot, Depth::Content)?;
            }
            let want = Want {
                kind: item.kind,
                new_mode: Some(item.mode),
                body: item.body.clone(),
                to: item.to.clone(),
                ..base.clone()
            };
            entries.push(Entry { label: label.clone(), spot, seen, want });
        }
        Ok(entries)
    }

    fn list_entry(&self, list: &List) -> Result<Entry, OpError> {
        let spot = self.disk.locate(&self.spot.path.join(LIST), Last::Keep)?;
        let seen = self.disk.see(&spot, Depth::Content)?;
        let bytes = serde_json::to_vec(list).map_err(|error| OpError::operation(error.to_string()))?;
        Ok(Entry { label: LIST.to_owned(), spot, seen, want: Want::new(Kind::File).content(bytes) })
    }
}

/// Returns the items without where their bytes happen to be staged.
fn listed(items: &Items) -> Items {
    let mut items = items.clone();
    for body in items.values_mut().filter_map(|item| item.body.as_mut()) {
        body.source = None::<PathBuf>;
    }
    items
}
