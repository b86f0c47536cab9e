//! `stead agent …`: this machine and others, as places where roles run; the agent of a node.

use std::path::PathBuf;

use crate::settings::Settings;

pub(crate) mod check;
pub(super) mod control;
pub(super) mod list;
pub(super) mod run;
pub(super) mod status;

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
