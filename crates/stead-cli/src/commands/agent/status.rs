//! `stead agent status`: what this machine is like for roles.

use stead_drivers::agent::{self, AgentStatus};
use stead_model::ExitCode;

use crate::args::AgentStatusArgs;
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &AgentStatusArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let workdirs = match &args.workdir {
        Some(workdir) => vec![settings.current_dir.join(workdir)],
        None => super::workdirs(settings),
    };
    let status = reach::block_on(agent::status(&workdirs, stead_runner::GIT_COMMIT))?;
    output.out.print(&if args.json { json::document(&status) } else { to_text(&status) });
    Ok(ExitCode::Success)
}

fn to_text(status: &AgentStatus) -> String {
    let yes = |answer: bool| if answer { "yes" } else { "no" };
    let mut text = format!(
        "Agent Status\n  version:   {}\n  commit:    {}\n  system:    {}/{}\n  hostname:  {}\n",
        status.version,
        status.git_commit.as_deref().unwrap_or("unknown"),
        status.os,
        status.arch,
        status.hostname.as_deref().unwrap_or("unknown"),
    );
    let workdir = &status.workdir;
    text.push_str(&format!(
        "\nWorking Directory\n  path:      {}\n  exists:    {}\n  writable:  {}\n",
        workdir.path,
        yes(workdir.exists),
        yes(workdir.writable)
    ));
    if let Some(error) = &workdir.error {
        text.push_str(&format!("  error:     {error}\n"));
    }
    text.push_str("\nNetwork Interfaces\n");
    for interface in &status.interfaces {
        let bind = if interface.can_bind { "" } else { " (cannot listen)" };
        text.push_str(&format!("  {}: {}{bind}\n", interface.name, interface.addresses.join(", ")));
    }
    let method = status.pcap_method.map_or_else(String::new, |method| format!(" ({method})"));
    text.push_str(&format!("\nPacket Capture\n  capable:   {}{method}\n", yes(status.pcap_capable)));
    let (roles, kits) = (status.supported_roles.join(", "), status.kits.join(", "));
    text.push_str(&format!("\nSupported Roles\n  kinds:     {roles}\n  kits:      {kits}\n"));
    text
}
