//! `stead job submit`.

use std::time::Duration;

use stead_drivers::nodes::known_mode;
use stead_drivers::server_client::{ClientError, ServerClient};
use stead_model::node::wire::{Job, JobRequest, WireCode};
use stead_model::site::manifest::Mode;
use stead_model::{ExitCode, MessageId, NodeName};

use crate::args::JobSubmitArgs;
use crate::commands::{reach, server_way, site};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// How often a job is looked at that is waited for: at first, and at last.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(crate) fn run(
    args: &JobSubmitArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let request = JobRequest {
        node: args.node.clone(),
        argv: args.command.clone(),
        ttl: args.ttl.as_secs().max(1),
        timeout: args.timeout.map(|timeout| timeout.as_secs().max(1)),
        idempotent: args.idempotent,
        live: false,
        input: None,
    };
    if args.operator.server.is_none() && mode(args, settings)? == Some(Mode::Push) {
        let why = format!("the mode of {} is push: it has no agent", args.node);
        return Err(Failure::new(FailureKind::Work, why).hint(exec_hint(&args.node)));
    }
    let job = reach::block_on(async {
        let client = server_way::operator(&args.operator, settings, output).await?;
        let id = client.submit(&request).await.map_err(|error| refused(error, &request))?;
        match (args.wait, args.json) {
            (true, _) => ended(&client, &id).await.map(Ok),
            (false, true) => client.job(&id).await.map(Ok).map_err(server_way::failure),
            (false, false) => Ok(Err(id)),
        }
    })??;
    match job {
        Ok(job) => {
            super::print(&job, args.json, output);
            Ok(if args.wait { super::exit_code(job.state) } else { ExitCode::Success })
        }
        Err(id) => {
            output.out.print_line(id.as_str());
            Ok(ExitCode::Success)
        }
    }
}

/// A node that no agent answers for is reached another way. One that is not known is as for `stead exec`: exit 3.
fn refused(error: ClientError, request: &JobRequest) -> Failure {
    let has_no_agent = matches!(error, ClientError::Refused { status: 404 | 409, .. });
    let is_unknown = matches!(error.code(), Some(WireCode::E200));
    let mut failure = server_way::failure(error);
    if is_unknown {
        failure.kind = FailureKind::Invalid;
    }
    if has_no_agent {
        return failure.hint(exec_hint(&request.node));
    }
    failure
}

fn exec_hint(node: &NodeName) -> String {
    format!("a node without an agent is reached over SSH: stead exec {node} -- …")
}

/// Returns the mode of the node as this site remembers it.
fn mode(args: &JobSubmitArgs, settings: &Settings) -> Result<Option<Mode>, Failure> {
    let directory = site::find(&args.operator.site, settings)?;
    Ok(known_mode(&settings.state_dir.from(&directory.path).path, &args.node))
}

/// Waits for the end of a job. A server that restarts meanwhile is waited for.
async fn ended(client: &ServerClient, id: &MessageId) -> Result<Job, Failure> {
    let (mut pause, longest) = LOOK_AGAIN;
    let mut failures = 0;
    loop {
        match client.job(id).await {
            Ok(job) if job.state.is_final() => return Ok(job),
            Ok(_) => failures = 0,
            Err(error) if error.may_pass() && failures < 30 => failures += 1,
            Err(error) => return Err(server_way::failure(error)),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}
