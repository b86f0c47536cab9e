//! `stead exec TARGET -- CMD`: one task on some hosts, run like any plan.
//!
//! Nothing is recorded: there is nothing to resume, and `last` stays the last run of a plan. What writes takes the
//! locks of its hosts; a command does not, so that one can look at hosts while a run holds them.

mod list;
mod results;

use serde_json::{Map, Value};
use stead_engine::compile::single::{single, typed};
use stead_engine::compile::{Catalogue, CompiledPlan, VarFlag};
use stead_engine::target::{HostSet, TargetExpr};
use stead_model::inventory::{Host, Inventory};
use stead_model::{Diagnostic, Diagnostics, ExitCode, OperationName, Severity, diagnostic};
use stead_runner::operation::{Params, Registry};
use stead_runner::{CheckedPlan, Runner};

use crate::args::ExecArgs;
use crate::commands::nodes::hosts::{ALL, Reached};
use crate::commands::plan::drive::{self, Person};
use crate::commands::plan::present::Shown;
use crate::commands::plan::source::{self, KnownHosts};
use crate::commands::{nodes, site};
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint};
use crate::reach;
use crate::render::hosts::{self, HostLines};
use crate::settings::Settings;

use results::Asked;

/// What is to be done on the hosts.
struct Task {
    operation: OperationName,
    params: Map<String, Value>,
    asked: Asked,
}

pub(super) fn run(args: &ExecArgs, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let Reached { mut inventory, targets: wanted } = reached(args, settings)?;
    let limit = source::limit(&args.inventory, &inventory)?;
    limit.say(output);
    let limit = limit.exprs;
    if args.list {
        return list::run(args, &inventory, &limit, output);
    }
    let registry = stead_drivers::Drivers::standard();
    let task = task(args, &registry)?;
    let targets = targets(&wanted, &mut inventory)?;
    let catalogue = Catalogue::new(registry.descriptors()).with_hosts((&inventory).into());
    let compiled = single(&task.operation, task.params, &targets, &catalogue).map_err(refused)?;
    say_warnings(&compiled, settings, output);

    let mut runner = Runner::new(registry)
        .inventory(inventory)
        .limit(limit)
        .environment(settings.environment.to_map())
        .lock_in(&settings.state_dir.path);
    runner = reach::connect(runner, settings)?;
    if let Some(wait) = args.wait_lock {
        runner = runner.wait_lock(wait);
    }
    runner = runner.parent_runs(settings.parent_runs.clone());
    let streams = !args.json && task.asked == Asked::Command;
    let shown = if streams { hosts::Shown::Yes } else { hosts::Shown::No };
    let (lines, written) = HostLines::new(output.clone(), shown);
    let shown = Shown { renderers: vec![Box::new(lines)], pauser: None };
    let plan = CheckedPlan::from(compiled).with_base_dir(&settings.current_dir);
    let dry_run = args.dry_run;
    let report = drive::drive(runner, shown, &[], Person::Absent, move |runner| async move {
        if dry_run { runner.dry_run(plan).await } else { runner.run(plan).await }
    })?;
    Ok(results::show(&report, task.asked, args, &written, settings, output))
}

/// Returns the hosts there are: of the inventory, and nodes where those are asked for or the inventory has no such host.
fn reached(args: &ExecArgs, settings: &Settings) -> Result<Reached, Failure> {
    let pair = &args.inventory.nodes;
    let names_files = !args.inventory.inventory.is_empty() || !args.inventory.agents.is_empty();
    if pair.manifest.is_some() || pair.host.is_some() {
        if names_files {
            let KnownHosts { inventory, .. } =
                source::inventory(&args.inventory, &settings.current_dir, settings)?;
            return Ok(Reached { inventory, targets: args.target.clone() });
        }
        return nodes::hosts::inventory(pair, &args.target, settings);
    }
    let KnownHosts { mut inventory, files, .. } =
        source::inventory(&args.inventory, &settings.current_dir, settings)?;
    let hosts = HostSet::from(&inventory);
    let is_unknown = |target: &&String| match TargetExpr::parse(target) {
        Ok(_) if *target == ALL => files.is_empty(),
        Ok(expr) => !expr.unknown_hosts(&hosts).is_empty() || !expr.unmatched(&hosts).is_empty(),
        Err(_) => false,
    };
    let (unknown, targets): (Vec<&String>, Vec<&String>) = args.target.iter().partition(is_unknown);
    let has_site = || site::find(&pair.site, settings).is_ok();
    if args.list || unknown.is_empty() || !has_site() {
        return Ok(Reached { inventory, targets: args.target.clone() });
    }
    let unknown: Vec<String> = unknown.into_iter().cloned().collect();
    let known = nodes::hosts::inventory(pair, &unknown, settings)?;
    let all = known.targets.into_iter().chain(targets.into_iter().cloned()).collect();
    for (name, host) in known.inventory.hosts {
        inventory.hosts.entry(name).or_insert(host);
    }
    Ok(Reached { inventory, targets: all })
}

/// Returns the operation that the flags ask for.
fn task(args: &ExecArgs, registry: &Registry) -> Result<Task, Failure> {
    let operation = |name: &str| {
        OperationName::parse(name).map_err(|error| Failure::caused_by(FailureKind::Usage, error))
    };
    if args.facts {
        let mut params = Map::new();
        if !args.only.is_empty() {
            params.insert("only".to_owned(), args.only.clone().into());
        }
        return Ok(Task { operation: operation("facts")?, params, asked: Asked::Facts });
    }
    if let Some((name, pairs)) = args.op.split_first() {
        let Some(entry) = registry.get(name) else {
            let known = registry.descriptors().map(|descriptor| descriptor.name);
            return Err(Failure::unknown_name(FailureKind::Usage, format!("there is no operation `{name}`"))
                .hint(diagnostic::suggest(name, known)));
        };
        let params = match &args.params {
            Some(_) if !pairs.is_empty() => {
                let message = "parameters are given as NAME=VALUE or by --params, not both";
                return Err(Failure::new(FailureKind::Usage, message));
            }
            Some(json) => object(json)?,
            None => {
                let mut params = Map::new();
                for pair in pairs {
                    let VarFlag { name, value } = VarFlag::parse(pair)
                        .map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
                    let value = typed(entry.descriptor(), &name, value);
                    if params.insert(name.clone(), value).is_some() {
                        let message = format!("the parameter `{name}` is given twice");
                        return Err(Failure::new(FailureKind::Usage, message));
                    }
                }
                params
            }
        };
        let keeps = entry.needs(&Params::new(params.clone())).keeps;
        if keeps.is_some_and(|place| place.to.is_none()) {
            let message =
                "`stead exec` records nothing and keeps no artifacts: say where the file goes with `to`";
            return Err(Failure::new(FailureKind::Usage, message));
        }
        return Ok(Task { operation: operation(name)?, params, asked: Asked::Operation });
    }
    let words = args.command.iter().map(|word| word.to_str().map(str::to_owned));
    let Some(words) = words.collect::<Option<Vec<String>>>() else {
        return Err(Failure::new(FailureKind::Usage, "the command is not UTF-8"));
    };
    let mut params = Map::new();
    if let Some((program, arguments)) = words.split_first() {
        params.insert("command".to_owned(), program.clone().into());
        params.insert("args".to_owned(), arguments.to_vec().into());
    }
    Ok(Task { operation: operation("command.exec")?, params, asked: Asked::Command })
}

fn object(json: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(json) {
        Ok(Value::Object(params)) => Ok(params),
        Ok(_) => Err(Failure::new(FailureKind::Usage, "--params takes a JSON object")),
        // The text is not repeated: it may hold a secret.
        Err(error) => Err(Failure::new(
            FailureKind::Usage,
            format!(
                "--params takes a JSON object: not JSON at line {}, column {}",
                error.line(),
                error.column()
            ),
        )),
    }
}

/// Returns the targets as the plan has them; a host whose transport holds a secret is known by its name only.
fn targets(typed: &[String], inventory: &mut Inventory) -> Result<Vec<String>, Failure> {
    let mut targets = Vec::new();
    for text in typed {
        let expr = TargetExpr::parse(text).map_err(|error| Failure::target(vec![error]))?;
        match expr.ad_hoc() {
            Some(host) if host.transport.has_literal_secret() => {
                let new = Host::reached_by(host.transport.clone());
                let known = inventory.hosts.entry(host.name.clone()).or_insert_with(|| new.clone());
                if known.transport != new.transport {
                    let message = format!("the host `{}` has two different definitions", host.name);
                    return Err(Failure::new(FailureKind::Invalid, message));
                }
                targets.push(host.name.to_string());
            }
            Some(_) | None => targets.push(text.clone()),
        }
    }
    Ok(targets)
}

/// Problems of parameters are the command line's: exit 2. A target that means nothing makes it exit 3.
fn refused(problems: Diagnostics) -> Failure {
    let of_target = |problem: &Diagnostic| problem.code.starts_with("reach/");
    let errors = || problems.iter().filter(|problem| problem.severity == Severity::Error);
    let kind = if errors().any(of_target) { FailureKind::Invalid } else { FailureKind::Usage };
    Failure::of(kind, problems)
}

fn say_warnings(compiled: &CompiledPlan, settings: &Settings, output: &Output) {
    if !compiled.warnings.is_empty() {
        let warnings = Diagnostics(compiled.warnings.clone());
        output.err.print(&warnings.render(settings.stderr_paint == Paint::Ansi));
    }
}
