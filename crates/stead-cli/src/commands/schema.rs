//! `stead schema`: what an editor checks files against, from the types that read them.

use serde_json::Value;
use stead_model::schema::{
    FleetFileKind, fleet_schema, inventory_schema, kit_schema, plan_schema, run_schema, site_schema,
    steps_schema,
};
use stead_model::site::FileKind;
use stead_model::{ExitCode, diagnostic};

use crate::args::SchemaCommand;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;

pub(super) fn run(command: &SchemaCommand, output: &Output) -> Result<ExitCode, Failure> {
    let document = match command {
        SchemaCommand::Plan => plan_schema(),
        SchemaCommand::Inventory => inventory_schema(),
        SchemaCommand::Steps => steps_schema(),
        SchemaCommand::Run => run_schema(),
        SchemaCommand::Kit => kit_schema(),
        SchemaCommand::Site => site_schema(FileKind::Site),
        SchemaCommand::Secrets => site_schema(FileKind::Secrets),
        SchemaCommand::Host => site_schema(FileKind::Host),
        SchemaCommand::Instance => site_schema(FileKind::Instance),
        SchemaCommand::Spec => site_schema(FileKind::Spec),
        SchemaCommand::Preset => site_schema(FileKind::Preset),
        SchemaCommand::Posture => site_schema(FileKind::Posture),
        SchemaCommand::Manifest => site_schema(FileKind::Manifest),
        SchemaCommand::Fleet => fleet_schema(FleetFileKind::Fleet),
        SchemaCommand::Publisher => fleet_schema(FleetFileKind::Publisher),
        SchemaCommand::Master => fleet_schema(FleetFileKind::Master),
        SchemaCommand::Worker => fleet_schema(FleetFileKind::Worker),
        SchemaCommand::Operation { name } => operations(name.as_deref())?,
    };
    output.out.print(&json::bare(&document));
    Ok(ExitCode::Success)
}

fn operations(name: Option<&str>) -> Result<Value, Failure> {
    let registry = stead_drivers::Drivers::standard();
    let Some(name) = name else {
        return Ok(registry.descriptors().map(|descriptor| descriptor.to_json()).collect());
    };
    match registry.get(name) {
        Some(entry) => Ok(entry.descriptor().to_json()),
        None => {
            let known = registry.descriptors().map(|descriptor| descriptor.name);
            Err(Failure::unknown_name(FailureKind::Usage, format!("there is no operation `{name}`"))
                .hint(diagnostic::suggest(name, known)))
        }
    }
}
