//! `stead init nodes`: a site directory that works.

use std::path::{Path, PathBuf};

use serde_json::json;
use stead_drivers::site::new_signing_key;
use stead_model::ExitCode;
use stead_model::site::starter::{Persona, starter};

use crate::args::{InitNodesArgs, PersonaWord};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::{json as render_json, shown_path};
use crate::settings::Settings;

pub(crate) fn run(
    args: &InitNodesArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let persona = match args.persona {
        PersonaWord::Homelab => Persona::Homelab,
        PersonaWord::Managed => Persona::Managed,
        PersonaWord::Enterprise => Persona::Enterprise,
    };
    let given = args.directory.as_ref().or(args.site.as_ref());
    let directory = settings.current_dir.join(given.map_or(Path::new("site-config"), PathBuf::as_path));
    let key = match persona.needs_key() {
        true => Some(new_signing_key().map_err(|error| Failure::caused_by(FailureKind::Work, error))?),
        false => None,
    };
    let files = starter(persona, key.as_ref());
    super::write(&directory, &files, "nothing was written; name another directory")?;
    if args.json {
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        output
            .out
            .print(&render_json::document(&json!({"site": directory.display().to_string(), "files": paths})));
    } else {
        let shown = shown_path(&directory.display().to_string(), &settings.current_dir);
        output.out.print_line(&format!("wrote {} files below {shown}", files.len()));
        // A site is found here and in ./site-config.
        let site = if given.is_some() { format!(" --site {shown}") } else { String::new() };
        output.err.print_line(&format!("next: stead create -M first -H local{site}"));
    }
    Ok(ExitCode::Success)
}
