//! `stead job submit`.

use std::time::{Duration, Instant};

use stead_drivers::nodes::known_mode;
use stead_drivers::server_client::ClientError;
use stead_model::node::JobId;
use stead_model::node::wire::{Job, JobRequest, WireCode};
use stead_model::site::manifest::Mode;
use stead_model::{ExitCode, MessageId, NodeName};

use super::way::{self, Way};
use crate::args::JobSubmitArgs;
use crate::commands::nodes::jobs::{self, Place};
use crate::commands::{reach, server_way, site};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// How often a job is looked at that is waited for: at first, and at last.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a server may be away while one of its jobs is waited for.
const AWAY: Duration = Duration::from_secs(30);

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
        key: None,
        input: None,
    };
    let place = place(args, settings)?;
    let job = reach::block_on(async {
        let way = Way::to(place, &args.operator, settings, output).await?;
        let id = way.submit(&request).await?;
        match (args.wait, args.json) {
            (true, _) => ended(&way, &id.id).await.map(Ok),
            (false, true) => way.job(&id.id, false).await.map(Ok),
            (false, false) => Ok(Err(id)),
        }
    })??;
    match job {
        Ok(job) => {
            super::print(&job, args.json, output);
            Ok(if args.wait { super::exit_code(job.state) } else { ExitCode::Success })
        }
        Err(id) => {
            output.out.print_line(&id.to_string());
            Ok(ExitCode::Success)
        }
    }
}

/// Returns where the node gets its jobs from.
fn place(args: &JobSubmitArgs, settings: &Settings) -> Result<Place, Failure> {
    if args.operator.server.is_some() {
        return Ok(Place::Own);
    }
    let place = match mode(args, settings)? {
        Some(Mode::Push) => Place::Nowhere,
        Some(Mode::Pull | Mode::Hybrid) | None => {
            jobs::of_node(&way::pair(&args.operator, &args.pair), &args.node, settings)?
        }
    };
    if matches!(place, Place::Nowhere) {
        let why = format!("the mode of {} is push: it has no agent", args.node);
        return Err(Failure::new(FailureKind::Work, why).hint(exec_hint(&args.node)));
    }
    Ok(place)
}

/// A node that no agent answers for is reached another way. One that is not known is as for `stead exec`: exit 3.
pub(super) fn refused(error: ClientError, request: &JobRequest) -> Failure {
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

/// Waits for the end of a job. A server that restarts meanwhile is waited for, and so is who leads to it.
async fn ended(way: &Way, id: &MessageId) -> Result<Job<JobId>, Failure> {
    let (mut pause, longest) = LOOK_AGAIN;
    let mut away: Option<Instant> = None;
    loop {
        let next = match way.job(id, true).await {
            Ok(job) if job.state.is_final() => return Ok(job),
            Ok(_) => {
                away = None;
                way.pause(pause)
            }
            Err(failure) if may_pass(&failure) => {
                if away.get_or_insert_with(Instant::now).elapsed() > AWAY {
                    return Err(
                        failure.hint(format!("the job goes on: stead job show {}", way.named(id.clone())))
                    );
                }
                pause
            }
            Err(failure) => return Err(failure),
        };
        tokio::time::sleep(next).await;
        pause = (pause * 2).min(longest);
    }
}

/// Whether who asks later may be answered: nobody was reached, or it was too often.
fn may_pass(failure: &Failure) -> bool {
    failure.kind == FailureKind::Unreachable || failure.stable_code() == WireCode::E105.as_str()
}
