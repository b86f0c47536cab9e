//! What a host says of itself: files in `/etc/stead/facts.d`, read or run.
//!
//! Whoever can write there decides what root runs, so nothing that everybody may write is looked at. A file that gives
//! nothing usable leaves its key out and is said; it never fails the others.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stead_model::event::Stream;
use stead_model::facts::Selection;
use stead_model::report::Warning;
use stead_runner::operation::OpContext;

use super::files::Files;
use crate::command::process::{self, Capture, Start};
use crate::disk::seen::{Depth, Kind, open_file};
use crate::disk::{Last, Spot};
use crate::together::all_of;

/// Where they are, below the root; and what is above that only Stead uses.
const DIRECTORY: &str = "/etc/stead/facts.d";
const ABOVE: &str = "/etc/stead";

/// How long one program may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// One fact is at most so large, all of them together at most four times as much: they go into the journal.
const LARGEST: usize = 256 << 10;
const LARGEST_SUM: usize = 4 * LARGEST;
/// More files than anybody needs.
const MOST: usize = 256;

const WORLD_WRITABLE: u32 = 0o002;
const EXECUTABLE: u32 = 0o111;

/// Returns the wanted custom facts by name, and a warning for each that had to be left out.
pub(super) async fn gather(
    cx: &OpContext,
    files: &Files,
    selection: &Selection,
) -> (BTreeMap<String, Value>, Vec<Warning>) {
    let mut warnings = Vec::new();
    let found = match list(files) {
        Ok(found) => found,
        Err((path, reason)) => return (BTreeMap::new(), vec![warning(cx, &path, &reason)]),
    };
    if found.len() > MOST {
        let reason = format!("only the first {MOST} files are looked at");
        warnings.push(warning(cx, DIRECTORY, &reason));
    }
    let mut facts: BTreeMap<String, Value> = BTreeMap::new();
    let mut room = LARGEST_SUM;
    // All at once: several slow ones take no longer than one.
    let mut running = Vec::new();
    for spot in found.into_iter().take(MOST) {
        let path = spot.path.to_string_lossy().into_owned();
        let Some(key) = key(&spot) else {
            warnings.push(warning(cx, &path, "its name is not text"));
            continue;
        };
        if !selection.wants_custom(&key) {
            continue;
        }
        running.push(async move { (key, path, one(cx, files, &spot).await) });
    }
    for (key, path, text) in all_of(running).await {
        let value = text.and_then(|text| {
            if text.len() > room {
                return Err(format!("all custom facts together are larger than {LARGEST_SUM} bytes"));
            }
            let value = serde_json::from_slice(&text).map_err(|error| format!("no valid JSON: {error}"))?;
            room -= text.len();
            Ok(value)
        });
        match value {
            Ok(value) if !facts.contains_key(&key) => {
                facts.insert(key, value);
            }
            Ok(_) => {
                warnings.push(warning(cx, &path, &format!("another file gives the fact `{key}` already")))
            }
            Err(reason) => warnings.push(warning(cx, &path, &reason)),
        }
    }
    (facts, warnings)
}

fn warning(cx: &OpContext, path: &str, reason: &str) -> Warning {
    Warning::new("reach/bad-fact", format!("{}: {path}: {reason}", cx.host))
}

/// Returns the files there are, by name, or why none of them may be looked at.
fn list(files: &Files) -> Result<Vec<Spot>, (String, String)> {
    let disk = &files.disk;
    for path in [ABOVE, DIRECTORY] {
        let says = |error: stead_runner::operation::OpError| (path.to_owned(), error.message);
        let spot = disk.locate(Path::new(path), Last::Follow).map_err(says)?;
        let seen = disk.see(&spot, Depth::Attributes).map_err(says)?;
        match seen.kind {
            Kind::Directory if seen.mode & WORLD_WRITABLE != 0 => {
                return Err((
                    path.to_owned(),
                    "everybody may write to this directory: `chmod o-w` it".to_owned(),
                ));
            }
            Kind::Directory if path == DIRECTORY => {
                let children = disk.children(&spot).map_err(says)?;
                // Editors leave hidden files behind.
                return Ok(children.into_iter().filter(|spot| !is_hidden(spot)).collect());
            }
            Kind::Directory => {}
            Kind::Absent => return Ok(Vec::new()),
            Kind::File | Kind::Symlink | Kind::Other | Kind::Unknown => {
                return Err((path.to_owned(), "it is not a directory".to_owned()));
            }
        }
    }
    Ok(Vec::new())
}

fn is_hidden(spot: &Spot) -> bool {
    spot.name.as_encoded_bytes().starts_with(b".")
}

/// Returns the key a file gives: its name without the last extension.
fn key(spot: &Spot) -> Option<String> {
    Path::new(&spot.name).file_stem()?.to_str().map(str::to_owned)
}

/// Returns the text one file gives, or why it gives none.
async fn one(cx: &OpContext, files: &Files, spot: &Spot) -> Result<Vec<u8>, String> {
    let is_json = spot.path.extension().is_some_and(|extension| extension == "json");
    // A link is followed, inside the root; what it is called here says what it is.
    let spot = files.disk.locate(&spot.path, Last::Follow).map_err(|error| error.message)?;
    let cannot = |error: std::io::Error| format!("cannot read it: {error}");
    let directory = spot.directory.as_deref().ok_or("it is not there")?;
    let file = open_file(directory, &spot.name).map_err(|errno| cannot(errno.into()))?;
    let about = file.metadata().map_err(cannot)?;
    let mode = std::os::unix::fs::MetadataExt::mode(&about);
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    if mode & WORLD_WRITABLE != 0 {
        return Err("everybody may write to it: `chmod o-w` it".to_owned());
    }
    if is_json {
        let mut text = Vec::new();
        file.take(LARGEST as u64 + 1).read_to_end(&mut text).map_err(cannot)?;
        return within_bounds(text);
    }
    if mode & EXECUTABLE == 0 {
        return Err("it is neither `NAME.json` nor executable".to_owned());
    }
    // An open file that is being written cannot be run.
    drop(file);
    run(cx, files, &spot).await
}

async fn run(cx: &OpContext, files: &Files, spot: &Spot) -> Result<Vec<u8>, String> {
    let start = Start {
        program: files.disk.outside(&spot.path),
        name: spot.path.to_string_lossy().into_owned(),
        args: Vec::new(),
        cwd: files.disk.outside(Path::new("/")),
        hidden_env: cx.hidden_env.to_vec(),
        env: BTreeMap::new(),
        stdin: None,
        capture: Capture::Stream,
    };
    let mut said = Vec::new();
    let mut complaint = Vec::new();
    let mut sink = |stream: Stream, bytes: &[u8]| {
        let (kept, limit) = match stream {
            Stream::Stdout => (&mut said, LARGEST + 1),
            Stream::Stderr => (&mut complaint, 1024),
        };
        let room = limit.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
    };
    // Too late, its future is dropped, which kills all it started.
    let ended = tokio::time::timeout(PATIENCE, process::run(start, &cx.cancel, cx.grace, &mut sink)).await;
    let ended = match ended {
        Ok(ended) => ended.map_err(|error| format!("cannot run it: {error}"))?,
        Err(_) => return Err(format!("it did not end within {} s", PATIENCE.as_secs())),
    };
    if ended.exit_code != Some(0) {
        let complaint = String::from_utf8_lossy(&complaint);
        let last = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        let ended = ended.describe();
        return Err(if last.is_empty() { ended } else { format!("{ended}: {last}") });
    }
    within_bounds(said)
}

fn within_bounds(text: Vec<u8>) -> Result<Vec<u8>, String> {
    if text.len() > LARGEST { Err(format!("it gives more than {LARGEST} bytes")) } else { Ok(text) }
}
