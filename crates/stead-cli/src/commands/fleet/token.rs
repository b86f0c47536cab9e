//! `stead fleet token`.

use serde_json::json;
use stead_fleet::identity::{Enrolment, MintOrder};
use stead_model::ExitCode;
use stead_model::fleet::peer::Role;

use super::{call_failure, way};
use crate::args::{FleetMintArgs, FleetRole, FleetTokenCommand};
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::render::table;
use crate::settings::Settings;

pub(crate) fn run(
    command: &FleetTokenCommand,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    match command {
        FleetTokenCommand::Mint(args) => mint(args, settings, output),
        FleetTokenCommand::List(args) => {
            let found = reach::block_on(async {
                way::master(&args.way, settings).await?.enrolments().await.map_err(call_failure)
            })??;
            print(&found, args.way.json, output);
            Ok(ExitCode::Success)
        }
        FleetTokenCommand::Revoke(args) => {
            let gone = reach::block_on(async {
                way::master(&args.way, settings).await?.revoke(&args.subject).await.map_err(call_failure)
            })??;
            print(&gone, args.way.json, output);
            Ok(ExitCode::Success)
        }
    }
}

fn mint(args: &FleetMintArgs, settings: &Settings, output: &Output) -> Result<ExitCode, Failure> {
    let role = match args.role {
        FleetRole::Observer => Role::Observer,
        FleetRole::Worker => Role::Worker,
        FleetRole::Publisher => Role::Publisher,
        FleetRole::Operator => Role::Operator,
        FleetRole::Master => Role::Master,
    };
    if let Some(name) = args.name.as_ref().filter(|name| !role.names(name)) {
        return Err(Failure::new(FailureKind::Usage, format!("`{name}` is no name of a {role}"))
            .hint("names are lower-case letters, digits and `-`"));
    }
    let order = MintOrder {
        iat: args.iat,
        exp: args.exp,
        jti: args.jti.clone(),
        ..MintOrder::new(role, args.name.clone(), args.ttl)
    };
    let token = reach::block_on(async {
        let master = way::master(&args.way, settings).await?;
        master.mint_join(order).await.map_err(call_failure)
    })??;
    if args.way.json {
        output.out.print(&render_json::document(&json!({"token": token})));
    } else {
        output.out.print_line(&token);
    }
    Ok(ExitCode::Success)
}

fn print(enrolments: &[Enrolment], json: bool, output: &Output) {
    if json {
        output.out.print(&render_json::document(&json!({"enrolments": enrolments})));
        return;
    }
    let row = |enrolment: &Enrolment| {
        let state = match (enrolment.revoked, enrolment.certificates.is_empty()) {
            (true, _) => "revoked",
            (false, true) => "not used",
            (false, false) => "joined",
        };
        let name = enrolment.name.clone().unwrap_or_else(|| "-".to_owned());
        [enrolment.jti.clone(), enrolment.role.to_string(), name, state.to_owned()]
    };
    let rows: Vec<[String; 4]> = enrolments.iter().map(row).collect();
    output.out.print(&table::to_text(&rows));
}
