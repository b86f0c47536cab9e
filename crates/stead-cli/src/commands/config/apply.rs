//! `stead config apply`: a machine becomes what its spec wants.

use std::io::ErrorKind;

use serde_json::json;
use stead_drivers::config::{ApplyOptions, ConfigFiles, apply};
use stead_drivers::site::{Manifests, read_bounded};
use stead_engine::nodes::check_site;
use stead_model::diagnostic::{Place, suggest};
use stead_model::node::{Applied, Bootstrap, path, spec_file};
use stead_model::site::{FileKind, ResolveError, ResolvedSpec, resolve};
use stead_model::{Diagnostic, Diagnostics, ExitCode, NodeName, Site, SiteKey};
use stead_runner::{Canceller, Observer};
use tokio::sync::{oneshot, watch};

use crate::args::{ConfigApplyArgs, Sink};
use crate::commands::plan::drive::forward;
use crate::commands::plan::present::events;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;
use crate::signals;

pub(crate) fn run(
    args: &ConfigApplyArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    if let Some(host) = &args.host {
        let applied = super::host::apply(args, host, settings, output).map_err(with_document)?;
        print(args, output, &applied);
        return Ok(if applied.success { ExitCode::Success } else { ExitCode::Failed });
    }
    let spec = find_spec(args, settings).map_err(with_document)?;
    let observers = events(args.events.as_ref(), settings, output)?.into_iter().collect();
    let (applied, is_stopped) = act(args, settings, &spec, observers).map_err(with_document)?;
    print(args, output, &applied);
    Ok(match (applied.success, is_stopped) {
        (true, _) => ExitCode::Success,
        (false, true) => ExitCode::Cancelled,
        (false, false) => ExitCode::Failed,
    })
}

/// Returns the resolved spec that was asked for.
fn find_spec(args: &ConfigApplyArgs, settings: &Settings) -> Result<ResolvedSpec, Failure> {
    let Some(given) = &args.spec else {
        let files = ConfigFiles::below(&settings.root());
        return files.spec().ok_or_else(|| {
            let place = files.place(path::SPEC);
            Failure::new(FailureKind::Invalid, format!("there is no resolved spec at {}", place.display()))
                .hint("give one with --spec")
        });
    };
    if given == "-" {
        return spec_file::read("-", site::read_stdin()?).map_err(Failure::invalid);
    }
    let file = settings.current_dir.join(given);
    if given.contains('/') || file.is_file() {
        let bytes = read_bounded(&file).map_err(|error| {
            let failure = Failure::unreadable(given, &error);
            if error.kind() == ErrorKind::NotFound {
                failure.hint("a spec of the site has no `/` in its name")
            } else {
                failure
            }
        })?;
        return spec_file::read(given, bytes).map_err(Failure::invalid);
    }
    let node = match &args.node {
        Some(node) => node.clone(),
        None => this_node(settings)?,
    };
    of_site(args, settings, given, &node)
}

/// Returns the spec called `name` of the site, resolved for `node`.
fn of_site(
    args: &ConfigApplyArgs,
    settings: &Settings,
    name: &str,
    node: &NodeName,
) -> Result<ResolvedSpec, Failure> {
    let directory = site::find(&args.site, settings)?;
    let loaded = site::load(&directory, Manifests::None)?;
    resolved(&loaded.site, name, node)
}

/// Returns the spec called `name` of `site`, resolved for `node`.
pub(super) fn resolved(site: &Site, name: &str, node: &NodeName) -> Result<ResolvedSpec, Failure> {
    let key = SiteKey::parse(name).map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    resolve(site, &key, node).map_err(|error| match error {
        ResolveError::UnknownSpec(_) => {
            let known: Vec<String> = site.specs.keys().map(ToString::to_string).collect();
            let message = format!("there is no {}", FileKind::Spec.path_of(name));
            let problem =
                Diagnostic::error("node/unknown-fk", Place::Named(format!("--spec {name}")), message);
            let problem =
                problem.help(suggest(name, known.iter().map(String::as_str))).candidates(known.clone());
            Failure::invalid(Diagnostics(vec![problem]))
        }
        ResolveError::BrokenSpec(_)
        | ResolveError::UnknownPosture(_)
        | ResolveError::BrokenPosture(_)
        | ResolveError::UnknownKey(_)
        | ResolveError::BrokenSite(_) => {
            let problems = check_site(site);
            if problems.has_errors() {
                Failure::invalid(problems)
            } else {
                Failure::caused_by(FailureKind::Invalid, error)
            }
        }
    })
}

/// Returns the name of the node this is: as its sandbox, its bootstrap or the machine itself says.
fn this_node(settings: &Settings) -> Result<NodeName, Failure> {
    let place = ConfigFiles::below(&settings.root()).place(path::BOOTSTRAP);
    let told = || Some(Bootstrap::parse(&read_bounded(&place).ok()?).ok()?.node.to_string());
    let own = || {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        name.split('.').next().unwrap_or_default().to_ascii_lowercase()
    };
    let name = settings.node().or_else(told).unwrap_or_else(own);
    NodeName::parse(&name).map_err(|error| {
        Failure::caused_by(FailureKind::Invalid, error).hint("say which node this is with --node")
    })
}

/// Applies the spec. Whether somebody wanted it to stop comes with what was applied.
fn act(
    args: &ConfigApplyArgs,
    settings: &Settings,
    spec: &ResolvedSpec,
    observers: Vec<Box<dyn Observer>>,
) -> Result<(Applied, bool), Failure> {
    let internal = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
    let counts = signals::listen().map_err(internal)?;
    let heard = counts.clone();
    let (tell, told) = oneshot::channel::<Canceller>();
    let options = ApplyOptions {
        mode: args.mode.into(),
        dry_run: args.dry_run,
        server: None,
        // Who reads events from here is a driver: it confirms by coming back.
        confirmed_by_caller: args.events == Some(Sink::Stdout),
        observers,
        connect: Some(Box::new(|canceller| drop(tell.send(canceller)))),
    };
    let root = settings.root();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    let applied = runtime.block_on(async {
        tokio::select! {
            applied = apply(spec, &root, options) => Some(applied),
            () = stopped(counts, told) => None,
        }
    });
    runtime.shutdown_background();
    let Some(applied) = applied else {
        return Err(Failure::new(FailureKind::Cancelled, "stopped by a signal before anything was applied"));
    };
    let applied = applied.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let is_stopped = heard.borrow().count > 0;
    Ok((applied, is_stopped))
}

/// Tells the run of every signal. Returns at one that comes before there is a run, while others are waited for.
async fn stopped(counts: watch::Receiver<signals::Signals>, told: oneshot::Receiver<Canceller>) {
    let mut early = counts.clone();
    tokio::select! {
        biased;
        canceller = told => match canceller {
            Ok(canceller) => match forward(counts, canceller).await {},
            Err(_) => std::future::pending().await,
        },
        Ok(()) = early.changed() => {}
    }
}

fn print(args: &ConfigApplyArgs, output: &mut Output, applied: &Applied) {
    if args.events == Some(Sink::Stdout) {
        output.out.print_line(&serde_json::to_string(applied).expect("what was applied is always JSON"));
    } else if args.json {
        output.out.print(&render_json::document(applied));
    } else {
        output.out.print(&to_text(applied));
    }
    if let Some(error) = applied.error.as_ref().filter(|_| !args.json) {
        output.err.print_line(&format!("error[{}]: {}", error.code, error.message));
    }
}

fn to_text(applied: &Applied) -> String {
    let verb = match (applied.success, applied.dry_run) {
        (true, true) => "would be",
        (true, false) => "is",
        (false, _) => "is not",
    };
    let mut text =
        format!("{} {verb} what {} wants, {} changed\n", applied.node, applied.spec, applied.changed);
    for change in &applied.changes {
        text.push_str(&format!("  {}: {} -> {}\n", change.path, change.before, change.after));
    }
    text
}

/// Returns a failure whose document says that nothing was applied.
fn with_document(failure: Failure) -> Failure {
    let failure = site::with_document(failure, "stead config apply");
    failure.knowing("phase", json!("config")).knowing("success", json!(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_shown_line_by_line() {
        let applied: Applied = serde_json::from_value(json!({
            "phase": "config", "success": true, "dry_run": false, "node": "edge", "spec": "base",
            "spec_digest": "sha256:1", "state_digest": null, "duration_seconds": 0.1, "packages": 0,
            "services_enabled": 0, "services_disabled": 0, "users": 0, "changed": 1,
            "changes": [{"path": "hostname", "before": "old", "after": "edge"}],
        }))
        .unwrap();
        assert_eq!(
            to_text(&applied),
            "edge is what base wants, 1 changed\n  hostname: \"old\" -> \"edge\"\n"
        );
    }
}
