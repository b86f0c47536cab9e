//! The files of a test's report: one for programs, one for people, where reports go and in the run's bundle.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use stead_model::node::TestReport;

/// Where a report is tried to be put before giving up: nobody tests one manifest so often in a second.
const MOST: u32 = 1_000;

/// Writes `report` to `directory` and to `bundle`, and returns the path of the one for programs.
///
/// # Errors
/// If a file cannot be written.
pub fn write_test_report(
    report: &TestReport,
    directory: &Path,
    bundle: Option<&Path>,
) -> io::Result<PathBuf> {
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    let markdown = report.to_markdown();
    let opened = fs::create_dir_all(directory).and_then(|()| open(report, directory));
    if let Some(bundle) = bundle {
        // The run keeps it also where nobody else can.
        let stem = opened.as_ref().map_or_else(|_| report.file_stem(1), |(_, stem)| stem.clone());
        fs::write(bundle.join(format!("{stem}.json")), &json)?;
        fs::write(bundle.join(format!("{stem}.md")), &markdown)?;
    }
    let (mut file, stem) = opened?;
    file.write_all(json.as_bytes())?;
    file.sync_all()?;
    fs::write(directory.join(format!("{stem}.md")), &markdown)?;
    Ok(directory.join(format!("{stem}.json")))
}

/// Opens a file that nobody else has, and returns it with its name.
fn open(report: &TestReport, directory: &Path) -> io::Result<(File, String)> {
    for number in 1..MOST {
        let stem = report.file_stem(number);
        match OpenOptions::new().write(true).create_new(true).open(directory.join(format!("{stem}.json"))) {
            Ok(file) => return Ok((file, stem)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
