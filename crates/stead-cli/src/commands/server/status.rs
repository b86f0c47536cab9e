//! `stead server status`.

use serde_json::{Value, json};
use stead_model::ExitCode;
use stead_server::{StatusReport, status};

use crate::args::ServerStatusArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::render::text::counted;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ServerStatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let place = super::place(&args.site, settings)?;
    let report = status(&place, args.port).map_err(super::failure)?;
    if args.json {
        output.out.print(&render_json::document(&document(&report)));
    } else {
        print(output, &report);
    }
    Ok(match (report.running, report.healthy) {
        (true, true) => ExitCode::Success,
        (true, false) => ExitCode::Unreachable,
        (false, _) => ExitCode::Failed,
    })
}

/// Returns the document: what is not known of a server that does not answer is null.
fn document(status: &StatusReport) -> Value {
    let mut document = json!({
        "fingerprint": null, "uptime_seconds": null, "specs": null, "agents": null, "reload": null,
    });
    if let (Value::Object(members), Value::Object(known)) = (&mut document, json!(status)) {
        members.extend(known);
    }
    document
}

fn print(output: &Output, status: &StatusReport) {
    let port = status.port;
    let line = match (&status.report, status.pid) {
        (Some(report), _) => format!("running: {} (process {})", report.facts.url, report.facts.pid),
        (None, Some(pid)) => format!("process {pid} holds port {port} but does not answer"),
        (None, None) if status.running => {
            format!("the server on port {port} is starting, or does not answer")
        }
        (None, None) => format!("no server of this site runs on port {port}"),
    };
    output.out.print_line(&line);
    let Some(report) = &status.report else { return };
    output.out.print_line(&format!("fingerprint {}", report.facts.fingerprint));
    if let Some(problem) = &report.problem {
        output.out.print_line(&format!("nothing can be kept: {problem}"));
    }
    for problem in &report.unusable_plans {
        output.out.print_line(&format!("[warning] server/plans: {problem}"));
    }
    let (specs, agents, up) = (report.facts.specs, report.agents, report.uptime_seconds);
    let (specs, agents) = (counted(specs as u64, "spec"), counted(agents as u64, "agent"));
    output.out.print_line(&format!("{specs}, {agents} connected, up {up} s"));
    if let Some(reload) = report.reload.as_ref().filter(|reload| !reload.ok) {
        output
            .out
            .print_line(&format!("the reload of {} was refused, the site before it is served:", reload.at));
        reload.problems.iter().for_each(|problem| output.out.print_line(problem));
    }
}
