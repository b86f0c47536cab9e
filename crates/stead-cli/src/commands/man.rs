//! `stead man [--dir DIR]`.

use std::io;
use std::path::Path;

use clap::CommandFactory as _;
use stead_model::ExitCode;

use crate::args::{Cli, ManArgs};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;

/// Why pages could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages to {dir}")]
struct WritePages {
    dir: String,
    #[source]
    source: io::Error,
}

pub(super) fn run(args: &ManArgs, output: &Output) -> Result<ExitCode, Failure> {
    let command = Cli::command();
    match &args.dir {
        Some(dir) => write_pages(command, dir).map_err(|source| {
            Failure::caused_by(FailureKind::Output, WritePages { dir: dir.display().to_string(), source })
        })?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(|error| Failure::caused_by(FailureKind::Output, error))?;
            output.out.print(&String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::Success)
}

fn write_pages(command: clap::Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)
}
