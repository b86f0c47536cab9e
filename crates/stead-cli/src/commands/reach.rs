//! What commands that reach hosts share: ways to them, the programs there are for them, the registry of agents.

use std::path::PathBuf;

use stead_drivers::transport::{Notices, Transports};
use stead_model::Inventory;

use crate::args::InventoryArgs;
use crate::commands::plan::source;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::reach::surroundings;
use crate::settings::Settings;

/// Returns what opens connections for this command; what it has to say goes to standard error.
pub(crate) fn transports(settings: &Settings, output: &Output) -> Transports {
    let err = output.err.clone();
    let notices =
        Notices::new(move |notice| err.print_line(&format!("[warning] {}: {}", notice.code, notice.message)));
    Transports::new(surroundings(settings), notices)
}

/// Whether this driver has a program for machines called `name`: itself, or one that was put there.
pub(crate) fn has_binary(name: &str, settings: &Settings) -> bool {
    let own = match std::env::consts::OS {
        "linux" => std::env::consts::ARCH.to_owned(),
        other => format!("{}-{}", if other == "macos" { "darwin" } else { other }, std::env::consts::ARCH),
    };
    let given = settings.environment.get("STEAD_BINARIES").filter(|path| !path.is_empty()).map(PathBuf::from);
    let places = [given, Some(settings.state_dir.path.join("bin"))].into_iter().flatten();
    own == name || places.map(|place| place.join(name).join("stead")).any(|file| file.is_file())
}

/// Returns the hash of this program, which names it on targets.
pub(crate) fn own_sha256() -> &'static str {
    stead_drivers::facts::binary_sha256().unwrap_or_default()
}

/// Returns the agents there are: of the file that is named, else of `$STEAD_AGENTS`, else of `agents.yaml` here or in
/// the user's configuration.
pub(crate) fn registry(file: Option<&PathBuf>, settings: &Settings) -> Result<Inventory, Failure> {
    let near = [Some(settings.current_dir.clone()), settings.config_dir.clone()];
    let found = || near.into_iter().flatten().map(|dir| dir.join("agents.yaml")).find(|file| file.is_file());
    let Some(file) = file.cloned().or_else(|| settings.agents.clone()).or_else(found) else {
        return Ok(Inventory::default());
    };
    let args = InventoryArgs { agents: vec![file], ..InventoryArgs::default() };
    source::inventory(&args, &settings.current_dir, settings).map(|known| known.inventory)
}

/// Runs a future to its end on a runtime of its own.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let ended = runtime.block_on(future);
    // A connection that is still being given up must not hold the process.
    runtime.shutdown_background();
    Ok(ended)
}
