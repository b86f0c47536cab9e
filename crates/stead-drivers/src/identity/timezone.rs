//! `timezone`: the zone of local time.

use std::path::{Component, Path, PathBuf};

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::machine::sandbox::Sandbox;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const ZONES: &str = "/usr/share/zoneinfo";
const LINK: &str = "/etc/localtime";
const NAME: &str = "/etc/timezone";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "timezone",
    summary: "Makes sure local time is that of a zone: the link /etc/localtime and /etc/timezone.",
    params: &[ParamSpec::new("zone", ParamKind::NonEmptyText, "Zone, such as Europe/Vienna.")
        .required()
        .judged(|value| judge_texts(value, |text| input::problem(zone_name(text))))],
    ..CONFIGURE
};

pub(super) struct Timezone;

impl Configure for Timezone {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let zone = zone_name(params.required("zone")?)?;
        let file = format!("{ZONES}/{zone}");
        // A directory of zones, such as Europe, exists and is none.
        let is_there = match Sandbox::of(setup.cx) {
            // A sandbox has the zones of the machine it runs on; where that has none, every name is one.
            Some(_) => !Path::new(ZONES).is_dir() || Path::new(&file).is_file(),
            None => setup.read_through(file.as_ref())?.is_some(),
        };
        if !is_there {
            return Err(OpError::permanent(format!(
                "there is no time zone `{zone}` (no file `{file}`; the package tzdata has them)"
            )));
        }
        let (spot, seen) = setup.look(LINK.as_ref())?;
        let mut want = Want::new(Kind::Symlink);
        // A relative link says the same.
        let leads = seen.to.as_ref().map(|to| joined(Path::new("/etc"), Path::new(to)));
        want.to = Some(match seen.to.clone() {
            Some(to) if leads.as_deref() == Some(Path::new(&file)) => to,
            Some(_) | None => file,
        });
        setup.push(spot, seen, want);
        setup.content(NAME, format!("{zone}\n").into_bytes())
    }
}

/// Returns `zone` if it can be the name of one, and not a path that leads elsewhere.
fn zone_name(zone: &str) -> Result<&str, OpError> {
    let part =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_+-".contains(c));
    if zone.split('/').all(part) {
        return Ok(zone);
    }
    Err(OpError::invalid(format!("`zone`, `{}`: expected a name such as Europe/Vienna", zone.escape_debug())))
}

/// Returns where a link with text `to` in `directory` leads, by its text alone.
fn joined(directory: &Path, to: &Path) -> PathBuf {
    let mut path = PathBuf::new();
    for part in directory.join(to).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            Component::RootDir | Component::Normal(_) | Component::Prefix(_) => path.push(part),
        }
    }
    path
}
