//! `stead job list`.

use serde_json::json;
use stead_model::ExitCode;
use stead_model::node::JobId;
use stead_model::node::wire::Job;
use tokio::task::JoinSet;

use super::way::{self, Way};
use crate::args::JobListArgs;
use crate::commands::nodes::jobs::{self, Below, Place};
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

/// What was found.
#[derive(Default)]
struct Found {
    jobs: Vec<Job<JobId>>,
    /// Whoever did not answer, and why.
    unreachable: Vec<(String, String)>,
}

pub(crate) fn run(args: &JobListArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let (below, wants_own, needs_own) = meant(args, settings)?;
    let mut found = reach::block_on(async {
        let mut found = Found::default();
        if wants_own {
            match own(args, settings, output).await {
                Ok(jobs) => found.jobs.extend(jobs),
                Err(failure) if needs_own => return Err(failure),
                // Nobody of this level asks it.
                Err(_) => {}
            }
        }
        found.ask(below).await;
        Ok(found)
    })??;
    found.jobs.retain(|job| args.node.as_ref().is_none_or(|node| job.node == *node));
    found.jobs.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    let unreachable: Vec<&String> = found.unreachable.iter().map(|(name, _)| name).collect();
    if args.json {
        let told = json!({"jobs": found.jobs, "unreachable": unreachable});
        output.out.print(&render_json::document(&told));
    } else if found.jobs.is_empty() && unreachable.is_empty() {
        output.err.print_line("no jobs");
    } else {
        found.jobs.iter().for_each(|job| output.out.print_line(&super::line(job)));
    }
    for (name, why) in &found.unreachable {
        output.err.print_line(&format!("{name} was not asked: {why}"));
    }
    Ok(if unreachable.is_empty() { ExitCode::Success } else { ExitCode::Unreachable })
}

/// Returns the servers below that are asked, whether that of this level is, and whether it has to answer.
fn meant(args: &JobListArgs, settings: &Settings) -> Result<(Vec<Below>, bool, bool), Failure> {
    let pair = way::pair(&args.operator, &args.pair);
    if args.operator.server.is_some() {
        return Ok((Vec::new(), true, true));
    }
    if let Some(node) = &args.node {
        return Ok(match jobs::of_node(&pair, node, settings)? {
            Place::Below(below) => (vec![below], false, false),
            Place::Own | Place::Nowhere => (Vec::new(), true, true),
        });
    }
    let (below, has_own) = jobs::all(&pair, settings)?;
    let needs_own = has_own || below.is_empty();
    Ok((below, true, needs_own))
}

async fn own(args: &JobListArgs, settings: &Settings, output: &Output) -> Result<Vec<Job<JobId>>, Failure> {
    Way::to(Place::Own, &args.operator, settings, output).await?.jobs().await
}

impl Found {
    /// Asks all of them at once.
    async fn ask(&mut self, below: Vec<Below>) {
        let mut asked = JoinSet::new();
        for below in below {
            let name = below.to_string();
            asked.spawn(async move { (name, Way::Below(below).jobs().await) });
        }
        while let Some(ended) = asked.join_next().await {
            match ended {
                Ok((_, Ok(jobs))) => self.jobs.extend(jobs),
                Ok((name, Err(failure))) => self.unreachable.push((name, failure.message())),
                Err(_) => {}
            }
        }
        self.unreachable.sort();
    }
}
