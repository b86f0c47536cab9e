//! `stead plan submit FILE`: a server runs the plan.

use std::time::Duration;

use serde_json::{Value, json};
use stead_drivers::server_client::{ServerClient, Submitted};
use stead_model::plan::{PlanRun, PlanRunState, PlanSubmission};
use stead_model::{ExitCode, RunId};
use stead_runner::clock;
use stead_runner::journal::number_of;

use crate::args::PlanSubmitArgs;
use crate::commands::plan::source;
use crate::commands::{reach, server_way};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

/// How long one question waits for events.
const ONE_POLL: Duration = Duration::from_secs(50);
/// How long a server that is away is waited for, and how often it is asked meanwhile.
const PAUSE: Duration = Duration::from_millis(500);
const MOST_FAILURES: u32 = 120;

pub(crate) fn run(
    args: &PlanSubmitArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let loaded = source::load(&args.file, &(&args.vars).into(), None, settings)?;
    let asking = loaded.compiled.plan.asking_tasks();
    if !asking.is_empty() && !args.yes {
        let names: Vec<&str> = asking.iter().map(|name| name.as_str()).collect();
        let message = format!("tasks ask before they run, and a server asks nobody: {}", names.join(", "));
        return Err(Failure::new(FailureKind::Confirmation, message).hint("--yes answers yes to all of them"));
    }
    let source =
        String::from_utf8(loaded.bytes).map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    let key = args.key.clone().unwrap_or_else(|| clock::new_run_id(clock::now()).to_string());
    let submission = PlanSubmission {
        plan_hash: loaded.compiled.hash,
        plan: (*loaded.compiled.plan).clone(),
        source: Some(source),
        vars: loaded.given,
        idempotency_key: key,
        yes: args.yes,
    };
    let ended = reach::block_on(async {
        let client = server_way::operator(&args.operator, settings, output).await?;
        let submitted = client.submit_plan(&submission).await.map_err(server_way::failure)?;
        let submitted = match submitted {
            Submitted::Run(submitted) => submitted,
            Submitted::Invalid(problems) => return Ok(Err(problems)),
        };
        if !args.wait {
            return Ok(Ok((submitted, None)));
        }
        let run = follow(&client, &submitted.run_id).await?;
        Ok::<_, Failure>(Ok((submitted, Some(run))))
    })??;
    match ended {
        Err(problems) => Ok(refused(&problems, args.json, output)),
        Ok((submitted, None)) => {
            match args.json {
                true => output.out.print(&render_json::document(&json!(submitted))),
                false => output.out.print_line(submitted.run_id.as_str()),
            }
            Ok(ExitCode::Success)
        }
        Ok((_, Some(run))) => Ok(ended_run(&run, args.json, output)),
    }
}

/// Shows what a server finds wrong with a plan.
fn refused(problems: &[Value], json: bool, output: &Output) -> ExitCode {
    let code = ExitCode::Invalid;
    if json {
        let document = json!({"schema": 1, "exit_code": code, "diagnostics": problems});
        output.out.print(&render_json::document(&document));
        return code;
    }
    for problem in problems {
        let text = |key: &str| problem[key].as_str().unwrap_or_default();
        let place = problem["path"].as_str().filter(|path| !path.is_empty());
        let place = place.map(|path| format!("{path}: ")).unwrap_or_default();
        output.err.print_line(&format!("error[{}]: {place}{}", text("code"), text("message")));
    }
    code
}

/// Shows how a run ended.
fn ended_run(run: &PlanRun, json: bool, output: &Output) -> ExitCode {
    match (&run.report, json) {
        (Some(report), true) => output.out.print(&render_json::document(report)),
        (Some(report), false) => {
            output.out.print_line(report["summary"].as_str().unwrap_or_default());
            for error in report["errors"].as_array().into_iter().flatten() {
                let message = error["message"].as_str().unwrap_or_default();
                match error["task"].as_str() {
                    Some(task) => output.err.print_line(&format!("{task}: {message}")),
                    None => output.err.print_line(message),
                }
            }
        }
        (None, true) => output.out.print(&render_json::document(&json!(run))),
        (None, false) => {
            output.err.print_line(run.error.as_deref().unwrap_or("the run ended without a report"));
        }
    }
    run.exit_code.and_then(ExitCode::from_code).unwrap_or(ExitCode::Failed)
}

/// Follows a run to its end. A server that restarts meanwhile is waited for.
async fn follow(client: &ServerClient, run: &RunId) -> Result<PlanRun, Failure> {
    let (mut after, mut failures) = (0, 0);
    loop {
        let asked = async {
            let lines = client.plan_events(run, after, ONE_POLL).await?;
            let known = if lines.is_empty() { Some(client.plan_run(run).await?) } else { None };
            Ok((lines, known))
        };
        match asked.await {
            Ok((_, Some(known))) if known.state == PlanRunState::Finished => return Ok(known),
            Ok((lines, _)) => {
                failures = 0;
                // Also of an event that only a newer program knows: it is not asked for again.
                let numbers = lines.split(|byte| *byte == b'\n').filter_map(number_of);
                after = numbers.max().unwrap_or(after);
            }
            Err(error) => {
                let error: stead_drivers::server_client::ClientError = error;
                if !error.may_pass() || failures >= MOST_FAILURES {
                    return Err(server_way::failure(error));
                }
                failures += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::output::Handle;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a server finds wrong with a plan that was compiled here ends the command as what is found here does.
    #[test]
    fn what_a_server_refuses_is_shown_and_is_invalid() {
        let problem =
            json!({"code": "plan/unknown-operation", "path": "tasks[0].op", "message": "there is no `x`"});
        for (is_json, shown) in [
            (false, "error[plan/unknown-operation]: tasks[0].op: there is no `x`\n"),
            (true, "\"message\": \"there is no `x`\""),
        ] {
            let (out, err) = (Written::default(), Written::default());
            let output = Output::new(Handle::new(out.clone()), Handle::new(err.clone()));
            let code = refused(std::slice::from_ref(&problem), is_json, &output);
            drop(output);
            assert_eq!(code, ExitCode::Invalid);
            let written = if is_json { out } else { err };
            let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
            assert!(text.contains(shown), "{text}");
        }
    }
}
