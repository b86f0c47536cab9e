//! Which files a role left that are wanted: found by globs, below its workdir, links never followed.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use globset::{GlobBuilder, GlobMatcher};
use rustix::fs::OFlags;
use stead_model::role::{ArtifactQuestion, Found, FoundKind};
use stead_model::time::Timestamp;
use stead_runner::files::Content;
use stead_runner::operation::OpError;

use super::probe::is_older;

/// One glob, whole and by its parts.
struct Pattern {
    whole: GlobMatcher,
    /// Matchers of the directories on its way; none from `**` on.
    parts: Vec<Option<GlobMatcher>>,
}

impl Pattern {
    fn new(glob: &str) -> Result<Self, OpError> {
        let parts = glob.split('/').map(|part| match part.contains("**") {
            true => Ok(None),
            false => matcher(part).map(Some),
        });
        Ok(Self { whole: matcher(glob)?, parts: parts.collect::<Result<_, _>>()? })
    }

    /// Whether something below the directory `path` may fit.
    fn leads_into(&self, path: &str) -> bool {
        for (depth, name) in path.split('/').enumerate() {
            match self.parts.get(depth) {
                Some(None) => return true,
                // The last part names files.
                Some(Some(part)) if depth + 1 < self.parts.len() && part.is_match(name) => {}
                Some(Some(_)) | None => return false,
            }
        }
        true
    }
}

fn matcher(glob: &str) -> Result<GlobMatcher, OpError> {
    let built = GlobBuilder::new(&plain_braces(glob)).literal_separator(true).backslash_escape(false).build();
    let built = built.map_err(|error| OpError::invalid(format!("`{glob}` is no glob: {}", error.kind())))?;
    Ok(built.compile_matcher())
}

/// Returns the glob with its braces standing for themselves: artifacts have no alternatives.
fn plain_braces(glob: &str) -> String {
    let mut text = String::with_capacity(glob.len());
    let mut within_class = false;
    for character in glob.chars() {
        match character {
            '{' | '}' if !within_class => text.extend(['[', character, ']']),
            _ => {
                within_class = if within_class { character != ']' } else { character == '[' };
                text.push(character);
            }
        }
    }
    text
}

/// Returns what fits the globs, sorted by path.
pub(super) fn find(question: &ArtifactQuestion) -> Result<Vec<Found>, OpError> {
    let patterns: Vec<Pattern> =
        question.globs.iter().map(|glob| Pattern::new(glob)).collect::<Result<_, _>>()?;
    let root = Path::new(&question.workdir);
    if !root.is_dir() {
        return Err(OpError::operation(format!("the workdir {} is not there", question.workdir)));
    }
    let below = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    let walk = walkdir::WalkDir::new(root).min_depth(1).sort_by_file_name().into_iter();
    let walk = walk.filter_entry(|entry| {
        entry.depth() == 0
            || !entry.file_type().is_dir()
            || patterns.iter().any(|pattern| pattern.leads_into(&below(entry.path())))
    });
    let mut found = Vec::new();
    for entry in walk {
        // What cannot be entered holds nothing that could be collected; a file that vanished is none.
        let Ok(entry) = entry else { continue };
        let path = below(entry.path());
        let globs: Vec<usize> = patterns
            .iter()
            .enumerate()
            .filter(|(_, pattern)| pattern.whole.is_match(&path))
            .map(|(number, _)| number)
            .collect();
        if globs.is_empty() || entry.file_type().is_dir() {
            continue;
        }
        found.push(describe(entry.path(), path, globs, question));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn describe(path: &Path, name: String, globs: Vec<usize>, question: &ArtifactQuestion) -> Found {
    let mut found = Found {
        path: name,
        kind: FoundKind::Unreadable,
        bytes: 0,
        modified: Timestamp::default(),
        sha256: String::new(),
        globs,
    };
    let Ok(metadata) = path.symlink_metadata() else { return found };
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    (found.bytes, found.modified) = (metadata.len(), timestamp(modified));
    found.kind = if metadata.is_symlink() {
        FoundKind::Symlink
    } else if !metadata.is_file() {
        FoundKind::Special
    } else if path.to_str().is_none() {
        FoundKind::BadName
    } else if question.newer_than.is_some_and(|start| is_older(modified, start.as_micros())) {
        FoundKind::Stale
    } else if metadata.len() > question.max_bytes {
        // It is not wanted: reading it would keep the others waiting.
        FoundKind::File
    } else {
        match open_file(path).and_then(|mut file| Content::read(&mut file)) {
            Ok(content) => {
                (found.bytes, found.sha256) = (content.size, content.sha256);
                FoundKind::File
            }
            Err(_) => FoundKind::Unreadable,
        }
    };
    found
}

/// Opens a file that is no link, without waiting for whoever is at the other end of a pipe.
pub(super) fn open_file(path: &Path) -> std::io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = File::options().read(true).custom_flags(i32::try_from(flags).unwrap_or(0)).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// Returns a file's time.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    let micros = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    fn ask(workdir: &Path, globs: &[&str]) -> ArtifactQuestion {
        let globs = globs.iter().map(|glob| (*glob).to_owned()).collect();
        ArtifactQuestion {
            workdir: workdir.display().to_string(),
            globs,
            newer_than: None,
            max_bytes: 1 << 20,
        }
    }

    fn names(found: &[Found]) -> Vec<(&str, FoundKind)> {
        found.iter().map(|found| (found.path.as_str(), found.kind)).collect()
    }

    /// Case 18.
    #[test]
    fn globs_find_files_and_tell_of_links_and_special_files() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for path in [
            "a.pcap",
            "b.pcap.gz",
            "out/x.json",
            "out/deep/y.json",
            "out/deep/z.txt",
            "[odd].pcap",
            "{a,b}/x",
        ] {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), path).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", root.join("link.pcap")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("out/etc")).unwrap();
        let pipe = root.join("pipe.pcap");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();

        let found = find(&ask(root, &["*.pcap", "[ab].pcap"])).unwrap();
        use FoundKind::{File, Special, Symlink};
        assert_eq!(
            names(&found),
            [("[odd].pcap", File), ("a.pcap", File), ("link.pcap", Symlink), ("pipe.pcap", Special)]
        );
        assert_eq!(found[1].globs, [0, 1]);
        assert_eq!(found[1].sha256, stead_model::plan::Digest::of(b"a.pcap").to_string());
        let found = find(&ask(root, &["out/*.json"])).unwrap();
        assert_eq!(names(&found), [("out/x.json", File)]);
        let found = find(&ask(root, &["**/*.json"])).unwrap();
        assert_eq!(names(&found), [("out/deep/y.json", File), ("out/x.json", File)]);
        let found = find(&ask(root, &["out/**"])).unwrap();
        let all = ["out/deep/y.json", "out/deep/z.txt", "out/etc", "out/x.json"];
        assert_eq!(names(&found).iter().map(|(path, _)| *path).collect::<Vec<_>>(), all);
        assert_eq!(names(&find(&ask(root, &["{a,b}/*"])).unwrap()), [("{a,b}/x", File)]);
        assert!(find(&ask(root, &["[a"])).unwrap_err().message.contains("no glob"));
        assert!(find(&ask(&root.join("gone"), &["*"])).unwrap_err().message.contains("not there"));
    }

    #[test]
    fn old_files_of_a_workdir_that_was_there_are_stale() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.pcap"), "x").unwrap();
        let mut question = ask(directory.path(), &["*.pcap"]);
        question.newer_than = Some(stead_runner::clock::now());
        assert_eq!(names(&find(&question).unwrap()), [("a.pcap", FoundKind::File)]);
        let later = stead_runner::clock::now().as_micros() + 1_000_000;
        question.newer_than = Some(Timestamp::from_micros(later));
        assert_eq!(names(&find(&question).unwrap()), [("a.pcap", FoundKind::Stale)]);
    }

    #[test]
    fn a_file_that_is_too_big_is_told_and_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("huge.pcap")).unwrap();
        file.set_len(2_000 << 30).unwrap();
        std::fs::write(directory.path().join("small.pcap"), "x").unwrap();
        let found = find(&ask(directory.path(), &["*"])).unwrap();
        assert_eq!(names(&found), [("huge.pcap", FoundKind::File), ("small.pcap", FoundKind::File)]);
        assert_eq!((found[0].bytes, found[0].sha256.as_str()), (2_000 << 30, ""));
        assert!(!found[1].sha256.is_empty());
    }

    #[test]
    fn a_name_that_is_no_text_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let name = std::ffi::OsStr::from_bytes(b"bad\xff.pcap");
        std::fs::write(directory.path().join(name), "x").unwrap();
        let found = find(&ask(directory.path(), &["*.pcap"])).unwrap();
        assert_eq!(found[0].kind, FoundKind::BadName);
    }

    #[test]
    fn directories_no_glob_leads_into_are_not_walked() {
        let leads = |glob: &str, path: &str| Pattern::new(glob).unwrap().leads_into(path);
        assert!(leads("out/*/x", "out") && leads("out/*/x", "out/a") && !leads("out/*/x", "out/a/x"));
        assert!(!leads("*.pcap", "out") && leads("**/x", "any/where") && !leads("a/**", "b"));
    }
}
