//! The records of runs, as the page wants them.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use globset::GlobSet;
use hyper::StatusCode;
use serde_json::{Value, json};
use stead_bundle::analysis::AnalysisOptions;
use stead_bundle::diff::{self, DiffOptions, DiffRequest, RoleChoice, Target};
use stead_bundle::{
    EVENTS, LOCK, LOGS, Listed, Lister, LoadError, PLAN, RUN_META, Source, Style, Unpacked, VerifyOptions,
};
use stead_model::RunStatus;

use crate::asked::Asked;
use crate::follow::Follow;
use crate::shown::{Shown, Whole};

/// How much of a log is shown at once.
const LOG_PIECE: u64 = 64 << 10;

/// Where roles keep what they wrote.
const ROLES: &str = "roles";

/// The runs of some directories.
#[derive(Debug)]
pub struct Desk {
    directories: Vec<PathBuf>,
    lister: Mutex<Lister>,
}

impl Desk {
    /// Returns the runs in `directories`.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        Self { directories, lister: Mutex::default() }
    }

    /// Answers a question about runs; there is nothing to say to any other. Blocks.
    pub fn answer(&self, asked: &Asked) -> Shown {
        let answered = match asked {
            Asked::Runs => Some(self.runs(&[])),
            Asked::Run(run) => self.run(run),
            Asked::Events { run, after } => self.events(run, *after),
            Asked::Log { run, file, from } => self.log(run, file, *from),
            Asked::Verify(run) => self.verify(run),
            Asked::Diff { from, to } => self.diff(from, to),
            Asked::About | Asked::Nodes | Asked::Jobs | Asked::Fleet => None,
        };
        answered.unwrap_or_else(Shown::nothing)
    }

    /// Returns all runs, newest first, behind rows of such that have no record yet. Blocks.
    pub fn runs(&self, waiting: &[Value]) -> Shown {
        let mut lister = self.lister.lock().unwrap_or_else(PoisonError::into_inner);
        match lister.list(&self.directories) {
            Err(error) => trouble(&error),
            Ok(listing) => {
                let recorded = listing.bundles.iter().map(row);
                let rows: Vec<Value> = waiting.iter().cloned().chain(recorded).collect();
                let problems: Vec<String> =
                    listing.problems.iter().map(|problem| with_causes(problem)).collect();
                Shown::json(&json!({"runs": rows, "problems": problems}))
            }
        }
    }

    /// Returns where the record called `key` is.
    fn find(&self, key: &str) -> Option<PathBuf> {
        let places = self.directories.iter().map(|directory| directory.join(key));
        places.into_iter().find(|path| path.join(RUN_META).is_file() || path.is_file())
    }

    fn run(&self, key: &str) -> Option<Shown> {
        let path = self.find(key)?;
        Some(match described(&path) {
            Ok(document) => Shown::json(&document),
            Err(error) => trouble(&error),
        })
    }

    fn events(&self, key: &str, after: u64) -> Option<Shown> {
        let path = self.find(key)?;
        Some(match unpacked(&path, |file| [EVENTS, RUN_META].iter().any(|name| file == Path::new(name))) {
            Ok(place) => Shown::Events(Box::new(Follow::new(place, after))),
            Err(error) => trouble(&error),
        })
    }

    fn log(&self, key: &str, file: &str, from: Option<u64>) -> Option<Shown> {
        let path = self.find(key)?;
        let file = Path::new(file);
        if !(file.starts_with(LOGS) || file.starts_with(ROLES)) {
            return None;
        }
        let place = match unpacked(&path, |name| name == file) {
            Ok(place) => place,
            Err(error) => return Some(trouble(&error)),
        };
        Some(match piece(place.path(), file, from) {
            Ok(whole) => Shown::Whole(whole),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => trouble(&error),
        })
    }

    fn verify(&self, key: &str) -> Option<Shown> {
        let path = self.find(key)?;
        let options = VerifyOptions { allow_extra: false, require_signature: false, signers: None };
        Some(match stead_bundle::verify(&path, &options) {
            Ok(found) => Shown::json(&serde_json::to_value(found).unwrap_or_default()),
            Err(error) => trouble(&error),
        })
    }

    fn diff(&self, from: &str, to: &str) -> Option<Shown> {
        let (base, new) = (self.find(from)?, self.find(to)?);
        let request = DiffRequest {
            // Nobody can be asked which: all of them are shown then.
            role: RoleChoice::DefaultOrAll,
            text: GlobSet::empty(),
            analysis: AnalysisOptions::default(),
            options: DiffOptions::default(),
            so_far: None,
        };
        let targets = Target::at(&base, from).and_then(|base| Ok((base, Target::at(&new, to)?)));
        let (base, new) = match targets {
            Ok(targets) => targets,
            Err(error) => return Some(trouble(&error)),
        };
        Some(match diff::diff_runs(&base, &new, &request) {
            Ok(found) => Shown::json(&json!({
                "text": diff::render_diff(&found.diff, Style::Text), "warnings": found.warnings,
            })),
            Err(error) => trouble(&error),
        })
    }
}

/// Returns what the list says of a run. Its key is what its record is called, which no two have in one directory.
fn row(bundle: &Listed) -> Value {
    let path = Path::new(&bundle.path);
    let mut row = serde_json::to_value(bundle).unwrap_or_default();
    row["key"] = json!(path.file_name().unwrap_or_default().to_string_lossy());
    row["status"] = json!(status_of(bundle));
    row
}

/// Returns how a run fares: one that is recorded as going on, and whose process is gone, is lost.
pub fn status_of(bundle: &Listed) -> &str {
    status(Path::new(&bundle.path), &bundle.status)
}

fn status<'a>(path: &Path, recorded: &'a str) -> &'a str {
    let is_over = recorded != RunStatus::Running.as_str();
    if is_over || is_held(path) { recorded } else { "lost" }
}

/// Whether the process of the run that is recorded at `path` is still there, as far as can be known.
pub fn is_held(path: &Path) -> bool {
    !stead_bundle::holder_of(&path.join(LOCK)).is_ok_and(|holder| holder.is_none())
}

/// Returns what the page needs of a run beside its events. Parameters and arguments stay where they are.
fn described(path: &Path) -> Result<Value, LoadError> {
    let place = unpacked(path, |file| [PLAN, RUN_META].iter().any(|name| file == Path::new(name)))?;
    let read = |name| fs::read(place.path().join(name)).ok();
    let parsed = |name| read(name).and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let plan = parsed(PLAN).unwrap_or_default();
    let meta = parsed(RUN_META).unwrap_or_default();
    let tasks = plan["tasks"].as_array().into_iter().flatten();
    let tasks: Vec<Value> =
        tasks.map(|task| json!({"name": task["name"], "depends_on": task["depends_on"]})).collect();
    let roles = plan["roles"].as_object().into_iter().flatten();
    let roles: serde_json::Map<String, Value> =
        roles.map(|(name, role)| (name.clone(), json!({"agent_id": role["agent_id"]}))).collect();
    let recorded = meta["status"].as_str().unwrap_or("unknown");
    Ok(json!({
        "path": path.to_string_lossy(),
        "meta": {
            "kind": meta["kind"], "plan": meta["plan"], "status": status(path, recorded), "error": meta["error"],
            "started_at": meta["started_at"], "exit_code": meta["exit_code"],
        },
        "plan": {"tasks": tasks, "roles": roles},
    }))
}

fn unpacked(path: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Unpacked, LoadError> {
    Unpacked::of(&Source::open(path)?, wanted)
}

/// Returns a part of a log: from a byte on, or its end.
fn piece(record: &Path, file: &Path, from: Option<u64>) -> io::Result<Whole> {
    let file = stead_bundle::open_inside(record, file)?;
    let size = file.metadata()?.len();
    let start = from.unwrap_or(size.saturating_sub(LOG_PIECE)).min(size);
    let mut bytes = vec![0; usize::try_from((size - start).min(LOG_PIECE)).unwrap_or_default()];
    file.read_exact_at(&mut bytes, start)?;
    // Text that is cut in the middle of a character goes on with the next part.
    let end = start + bytes.len() as u64;
    if end < size || from.is_some() {
        bytes.truncate(whole_text(&bytes));
    }
    let end = start + bytes.len() as u64;
    let extra = vec![("x-from", start), ("x-end", end), ("x-size", size)];
    let kind = "text/plain; charset=utf-8";
    Ok(Whole { status: StatusCode::OK, kind, extra, body: bytes.into() })
}

/// Returns how much of `bytes` ends with a whole character.
fn whole_text(bytes: &[u8]) -> usize {
    let cut = (1..=bytes.len().min(3)).find_map(|back| {
        let at = bytes.len() - back;
        let wants = match bytes[at] {
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            0x80..=0xbf => return None,
            _ => 1,
        };
        Some(if wants > back { at } else { bytes.len() })
    });
    // A piece always moves on.
    cut.filter(|cut| *cut > 0).unwrap_or(bytes.len())
}

fn trouble(error: &dyn std::error::Error) -> Shown {
    Shown::trouble(StatusCode::UNPROCESSABLE_ENTITY, &with_causes(error))
}

/// Returns an error and what it comes of, as one sentence.
fn with_causes(mut error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    while let Some(cause) = error.source() {
        text.push_str(&format!(": {cause}"));
        error = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        for (bytes, whole) in [
            (&b"abc"[..], 3),
            ("aé".as_bytes(), 3),
            (&"aé".as_bytes()[..2], 1),
            (&"a€".as_bytes()[..3], 1),
            (&"a😀".as_bytes()[..4], 1),
            ("a😀".as_bytes(), 5),
            (b"\x80\x80\x80\x80", 4),
            (b"", 0),
            // It moves on whatever it is.
            (b"\xf0", 1),
        ] {
            assert_eq!(whole_text(bytes), whole, "{bytes:?}");
        }
    }

    #[test]
    fn logs_come_in_parts_and_nothing_else_does() {
        let state = tempfile::tempdir().unwrap();
        let run = state.path().join("r1");
        fs::create_dir_all(run.join("logs")).unwrap();
        fs::write(
            run.join("run_meta.json"),
            r#"{"status":"success","kind":"plan","plan":"web","argv":["a-word"]}"#,
        )
        .unwrap();
        let plan = r#"{"tasks":[{"name":"a","action":"a-word"},{"name":"b","depends_on":["a"]}]}"#;
        fs::write(run.join("plan.json"), plan).unwrap();
        let log: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
        fs::write(run.join("logs/a.log"), &log).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", run.join("logs/way")).unwrap();
        let desk = Desk::new(vec![state.path().to_owned()]);
        let part = |run: &str, file: &str, from| {
            let asked = Asked::Log { run: run.to_owned(), file: file.to_owned(), from };
            let Shown::Whole(whole) = desk.answer(&asked) else { panic!("{asked:?}") };
            whole
        };
        let end = part("r1", "logs/a.log", None);
        let size = log.len() as u64;
        assert_eq!(end.extra, [("x-from", size - LOG_PIECE), ("x-end", size), ("x-size", size)]);
        assert!(log.as_bytes().ends_with(&end.body));
        let first = part("r1", "logs/a.log", Some(0));
        assert!(log.as_bytes().starts_with(&first.body) && first.body.len() as u64 == LOG_PIECE);
        assert!(part("r1", "logs/a.log", Some(size + 9)).body.is_empty());
        for (run, file) in [
            ("r1", "logs/none.log"),
            ("r1", "run_meta.json"),
            ("r1", "plan.json"),
            ("r1", "/etc/passwd"),
            ("none", "logs/a.log"),
        ] {
            assert_eq!(part(run, file, None).status, StatusCode::NOT_FOUND, "{run} {file}");
        }
        for file in ["logs/../../x", "logs/way"] {
            assert_ne!(part("r1", file, None).status, StatusCode::OK, "{file}");
        }
        let Shown::Whole(told) = desk.answer(&Asked::Run("r1".to_owned())) else { panic!("events") };
        let text = String::from_utf8_lossy(&told.body).into_owned();
        assert!(text.contains(r#""depends_on":["a"]"#) && !text.contains("a-word"), "{text}");
    }
}
