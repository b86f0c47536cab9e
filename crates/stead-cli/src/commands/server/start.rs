//! `stead server start`: in the background, or in this process.

use std::path::PathBuf;

use serde_json::json;
use stead_model::ExitCode;
use stead_server::{Attachment, ServerFacts, ServerOptions, Started, ensure, make_way, serve};

use crate::args::ServerStartArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ServerStartArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let place = super::place(&args.site, settings)?;
    let options = options(args, settings);
    if args.foreground {
        let attachment = if args.detached { Attachment::Detached } else { Attachment::Foreground };
        // Whoever started a detached one has looked.
        let before = match attachment {
            Attachment::Foreground => make_way(&place, &options).map_err(super::failure)?,
            Attachment::Detached => None,
        };
        if let Some(facts) = before {
            say_running(args, output, &facts);
            return Ok(ExitCode::Success);
        }
        let ready = |facts: &ServerFacts| print(args, output, facts, "running");
        serve(&place, &options, attachment, ready).map_err(super::serve_failure)?;
        return Ok(ExitCode::Success);
    }
    let program = std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    match ensure(&place, &options, &program).map_err(super::failure)? {
        Started::Now(facts) => print(args, output, &facts, "started"),
        Started::Before(facts) => say_running(args, output, &facts),
    }
    Ok(ExitCode::Success)
}

/// Says that a server was there before.
fn say_running(args: &ServerStartArgs, output: &Output, facts: &ServerFacts) {
    print(args, output, facts, "already running");
    say_ignored(args, output);
}

fn options(args: &ServerStartArgs, settings: &Settings) -> ServerOptions {
    let here = |path: &PathBuf| settings.current_dir.join(path);
    ServerOptions {
        port: args.port,
        bind: args.bind,
        certificate: args.cert.as_ref().zip(args.key.as_ref()).map(|(cert, key)| (here(cert), here(key))),
        new_certificate: args.new_cert,
        log: args.log.as_ref().map(here),
        for_run: args.for_run,
    }
}

/// Says which of the options do not count for a server that runs already.
fn say_ignored(args: &ServerStartArgs, output: &Output) {
    let given =
        [("--bind", args.bind.is_some()), ("--cert", args.cert.is_some()), ("--log", args.log.is_some())];
    let ignored: Vec<&str> =
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
    if !ignored.is_empty() {
        let options = ignored.join(", ");
        let line =
            format!("warning: {options} is what it was started with: `stead server stop` first to change it");
        output.err.print_line(&line);
    }
}

fn print(args: &ServerStartArgs, output: &Output, facts: &ServerFacts, how: &str) {
    if args.json {
        output.out.print(&render_json::document(&json!(facts)));
        return;
    }
    output.out.print_line(&format!("{how}: {} (process {})", facts.url, facts.pid));
    if let Some(old) = &facts.replaced_fingerprint {
        output.out.print_line(&format!("old fingerprint {old}"));
    }
    output.out.print_line(&format!("fingerprint {}", facts.fingerprint));
}
