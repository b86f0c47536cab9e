//! `stead agent status`: what this machine is like for roles.

use std::path::PathBuf;

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
        None => workdirs(settings),
    };
    let status = reach::block_on(agent::status(&workdirs, stead_runner::GIT_COMMIT))?;
    output.out.print(&if args.json { json::document(&status) } else { to_text(&status) });
    Ok(ExitCode::Success)
}

/// Returns where roles work if nobody says otherwise, the first choice first.
pub(crate) fn workdirs(settings: &Settings) -> Vec<PathBuf> {
    let absolute =
        |name: &str| settings.environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = stead_drivers::facts::user();
    let home = absolute("HOME").or(user.home.map(PathBuf::from));
    let cache = absolute("XDG_CACHE_HOME").map(|cache| cache.join("stead"));
    let last = PathBuf::from(format!("/tmp/stead-{}", user.uid.unwrap_or_default()));
    [cache, home.map(|home| home.join(".cache/stead")), Some(last)].into_iter().flatten().collect()
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
    let roles = match status.supported_roles.as_slice() {
        [] => "none in this version".to_owned(),
        roles => roles.join(", "),
    };
    text.push_str(&format!("\nSupported Roles\n  {roles}\n"));
    text
}
