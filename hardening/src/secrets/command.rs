//! `secrets`: what is looked at, and what is said.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal and for CI")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::watch::{ENOUGH, Watch};
use super::{Allowed, Finder, Leak};

/// What was looked at, and what was found.
struct Search {
    finder: Finder,
    allowed: Allowed,
    files: u64,
    bytes: u64,
    /// By file, so that one that is written a hundred times is told once.
    leaks: BTreeMap<PathBuf, Vec<Leak>>,
}

impl Search {
    fn new() -> Result<Self, super::AllowedError> {
        let allowed = Allowed::parse(Allowed::LISTED)?;
        Ok(Self { finder: Finder::new(), allowed, files: 0, bytes: 0, leaks: BTreeMap::new() })
    }

    fn look(&mut self, path: &Path, bytes: Vec<u8>) {
        self.files += 1;
        self.bytes += bytes.len() as u64;
        let leaks = self.finder.find(path, bytes);
        let leaks: Vec<Leak> = leaks.into_iter().filter(|leak| !self.allowed.may_hold(&leak.path)).collect();
        if !leaks.is_empty() {
            self.leaks.insert(path.to_owned(), leaks);
        }
    }

    /// Says what was found.
    fn told(&self) -> ExitCode {
        for leak in self.leaks.values().flatten() {
            println!("error: {}: `{}` {}: …{}…", leak.path.display(), leak.mark, leak.form, leak.around);
        }
        println!("{} files, {} MB, {} with a secret", self.files, self.bytes / 1_000_000, self.leaks.len());
        if self.leaks.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn failed(error: impl Into<Box<dyn Error>>) -> ExitCode {
    eprintln!("error: {}", error.into());
    ExitCode::from(2)
}

/// Looks at what is in `directories` now.
pub(crate) fn scan(directories: &[PathBuf]) -> ExitCode {
    match searched(directories) {
        Ok(search) => search.told(),
        Err(error) => failed(error),
    }
}

fn searched(directories: &[PathBuf]) -> Result<Search, Box<dyn Error>> {
    let mut search = Search::new()?;
    for entry in directories.iter().flat_map(walkdir::WalkDir::new) {
        let entry = entry?;
        if entry.file_type().is_file() {
            let bytes =
                fs::read(entry.path()).map_err(|error| format!("{}: {error}", entry.path().display()))?;
            search.look(entry.path(), bytes);
        }
    }
    Ok(search)
}

/// Looks at what is written below `directory`, until it is said that it is enough.
pub(crate) fn watch(directory: &Path) -> ExitCode {
    let watch = Watch::new(directory)
        .map_err(|error| format!("files that are written cannot be seen: {error}; are you root?"));
    let begun = Search::new().map_err(Box::<dyn Error>::from).and_then(|search| Ok((search, watch?)));
    let (mut search, watch) = match begun {
        Ok(begun) => begun,
        Err(error) => return failed(error),
    };
    println!("watching");
    std::io::stdout().flush().ok();
    match watch.run(|path, bytes| search.look(path, bytes)) {
        Ok(()) => search.told(),
        Err(error) => failed(error),
    }
}

/// Plants secrets in every way, and says whether each was found: as it lies, and as it is written and removed.
pub(crate) fn self_check() -> ExitCode {
    match check() {
        Ok(count) => {
            println!("{count} planted secrets found, inputs left alone");
            ExitCode::SUCCESS
        }
        Err(error) => failed(error),
    }
}

fn check() -> Result<usize, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let planted: Vec<(&str, Vec<u8>)> = vec![
        ("events.jsonl", b"{\"seq\":1,\"text\":\"hunter2\"}".to_vec()),
        ("run.tar.zst", zstd::encode_all(b"sesame".as_slice(), 1)?),
        ("report.json", stead_model::base64::encode(b"u:hunter2").into_bytes()),
        ("store.db", [b"SQLite format 3\0".as_slice(), &[0; 4096], b"s3cret-value"].concat()),
    ];
    let mut search = Search::new()?;
    let watch = Watch::new(directory.path())?;
    // Another process writes: what this one does is not looked at.
    for (name, bytes) in &planted {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "cat > \"$1\" && rm \"$1\"", "sh"])
            .arg(directory.path().join(name))
            .stdin(std::process::Stdio::piped())
            .spawn()?;
        child.stdin.take().ok_or("no input")?.write_all(bytes)?;
        child.wait()?;
    }
    let allowed = "printf hunter2 > \"$1/secrets.yaml\"; printf x > \"$1/$2\"";
    let wrote = std::process::Command::new("sh")
        .args(["-c", allowed, "sh"])
        .arg(directory.path())
        .arg(ENOUGH)
        .status()?;
    if !wrote.success() {
        return Err("the shell does not write".into());
    }
    watch.run(|path, bytes| search.look(path, bytes))?;
    let found: Vec<String> =
        search.leaks.keys().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let mut wanted: Vec<&str> = planted.iter().map(|(name, _)| *name).collect();
    wanted.sort_unstable();
    if found != wanted {
        return Err(format!("planted in {wanted:?}, found in {found:?}").into());
    }
    // As it lies.
    fs::write(directory.path().join("left.log"), "password=hunter2")?;
    if searched(&[directory.path().to_owned()])?.leaks.len() != 1 {
        return Err("a secret that lies there is not found, or an input is".into());
    }
    Ok(planted.len() + 1)
}
