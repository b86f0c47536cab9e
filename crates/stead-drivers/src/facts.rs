//! Facts: what a host is, found out on the host itself.
//!
//! On Linux nothing is started for them: everything is read from `/proc`, `/sys`, `/etc` and the kernel's own answers.
//! Only files in `/etc/stead/facts.d` that are programs run, each for a short while. With a root prefix what belongs to
//! the installation comes from there, what belongs to the machine from the running system.

mod account;
mod custom;
mod files;
mod hardware;
mod mounts;
#[cfg(target_os = "linux")]
mod netlink;
mod network;
mod os;
mod virtualization;

use stead_model::facts::{Container, Facts, PackageManager, Selection, ServiceManager};
use stead_model::operation::{ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_model::report::Warning;
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use crate::disk::Disk;
use crate::machine::sandbox::Sandbox;
use files::Files;

pub(crate) use account::hash_in_path;
pub use account::{binary_sha256, user};
pub use network::interfaces;
pub(crate) use os::arch;

/// Returns the network interface of the default route.
pub(crate) fn primary_interface() -> Option<String> {
    network::read().1.interface
}

static DESCRIPTOR: Descriptor = Descriptor {
    name: "facts",
    summary: "Finds out what a host is: system, hardware, addresses, and what it says of itself.",
    effect: Effect::Read,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[ParamSpec::new(
        "only",
        ParamKind::TextOrList,
        "Dotted paths such as `os.family`; nothing else is gathered; default: all facts.",
    )
    .judged(|value| {
        judge_texts(value, |path| {
            Selection::parse(&[path.to_owned()]).err().map(|unknown| unknown.to_string())
        })
    })],
    exclusive: &[],
    one_of: &[],
    result: &[
        ("schema", "The version of this shape."),
        ("os", "`family`, `distribution`, `version`, `major`, `codename`, `name`."),
        ("arch", "The processor's architecture."),
        ("kernel", "`name`, `release`."),
        ("hostname", "The host's own name for itself."),
        ("fqdn", "Its name with the domain, where the host knows it."),
        ("machine_id", "The id of this installation."),
        ("boot_id", "The id of this boot."),
        ("cpu", "`count`, `model`."),
        ("memory", "`total_bytes`, `available_bytes`, `swap_total_bytes`."),
        ("disks", "Block devices: `name`, `size_bytes`, `rotational`, `type`."),
        ("mounts", "File systems: `path`, `device`, `fstype`, `size_bytes`, `available_bytes`."),
        ("interfaces", "`name`, `mac`, `mtu`, `up`, `addresses` of `address`, `prefix`, `family`."),
        ("address", "`primary4`, `primary6`, `interface`, `gateway4`: of the default route."),
        ("package_manager", "What installs packages."),
        ("service_manager", "What starts services."),
        ("virtualization", "`type`, `role`, `container`."),
        ("user", "Who asked: `name`, `uid`, `home`."),
        ("timezone", "The time zone's name."),
        ("uptime_seconds", "Seconds since it booted."),
        ("stead", "The program that gathered: `version`, `sha256`."),
        ("custom", "What the host says of itself in `/etc/stead/facts.d`, by name."),
    ],
};

/// Finds out what a host is.
pub(crate) struct GatherFacts;

#[async_trait::async_trait]
impl Action for GatherFacts {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        self.run(cx, params).await
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let selection = Selection::parse(&params.texts("only"))
            .map_err(|unknown| OpError::invalid(format!("parameter `only`: {unknown}")))?;
        let Gathered { facts, warnings } = gather(cx, &selection).await?;
        Ok(Outcome { data: Some(selection.take(facts.to_json())), warnings, ..Outcome::default() })
    }
}

/// Facts, and what is wrong with those the host says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gathered {
    /// The facts; what was not wanted is as if it were absent.
    pub facts: Facts,
    /// Custom facts that were left out, each with the reason.
    pub warnings: Vec<Warning>,
}

/// Gathers the facts of this machine, or of the root that `cx` names.
///
/// # Errors
/// If the root cannot be opened. A fact that cannot be found out is absent.
pub async fn gather(cx: &OpContext, selection: &Selection) -> Result<Gathered, OpError> {
    let files = Files::new(Disk::open(cx)?, cx.root.is_some());
    let (wanted, below) = (selection.clone(), files.clone());
    let built_in = tokio::task::spawn_blocking(move || built_in(&below, &wanted));
    // Hashing the program takes as long as everything else: beside it.
    let wants_stead = selection.wants("stead");
    let stead = tokio::task::spawn_blocking(move || wants_stead.then(account::stead).unwrap_or_default());
    let custom = async {
        if selection.wants("custom") {
            custom::gather(cx, &files, selection).await
        } else {
            Default::default()
        }
    };
    let (built_in, stead, (custom, warnings)) = tokio::join!(built_in, stead, custom);
    let stopped = |_| OpError::operation("gathering facts was stopped");
    let mut facts = built_in.map_err(stopped)?;
    if let Some(sandbox) = Sandbox::of(cx) {
        facts.package_manager = PackageManager::Sandbox;
        facts.service_manager = ServiceManager::Sandbox;
        facts.virtualization.container = Container::Sandbox;
        facts.boot_id = sandbox.boot_id();
    }
    facts.stead = stead.map_err(stopped)?;
    facts.custom = custom;
    Ok(Gathered { facts, warnings })
}

/// Returns the wanted facts that need no program.
fn built_in(files: &Files, selection: &Selection) -> Facts {
    let mut facts = Facts::default();
    let wants = |name: &str| selection.wants(name);
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_str().ok().map(str::to_owned);
    facts.kernel.name = text(system.sysname());
    facts.kernel.release = text(system.release());
    facts.arch = text(system.machine()).map(os::arch);
    if wants("os") || wants("package_manager") {
        facts.os = os::read(files);
        facts.package_manager = os::package_manager(files, facts.os.family);
    }
    if wants("hostname") || wants("fqdn") {
        let running = text(system.nodename()).filter(|name| !name.is_empty());
        facts.fqdn = running.as_deref().and_then(os::fqdn);
        facts.hostname = if files.is_prefixed() { os::hostname(files) } else { running };
    }
    facts.machine_id = os::machine_id(files);
    facts.boot_id = crate::machine::oci::boot_id().or_else(|| files::line("/proc/sys/kernel/random/boot_id"));
    facts.timezone = os::timezone(files);
    facts.uptime_seconds = hardware::uptime();
    facts.service_manager = os::service_manager();
    if wants("cpu") {
        facts.cpu = hardware::cpu();
    }
    if wants("memory") {
        facts.memory = hardware::memory();
    }
    if wants("disks") {
        facts.disks = hardware::disks();
    }
    if wants("mounts") {
        facts.mounts = mounts::read();
    }
    if wants("interfaces") || wants("address") {
        (facts.interfaces, facts.address) = network::read();
    }
    if wants("virtualization") {
        facts.virtualization = virtualization::read();
    }
    if wants("user") {
        facts.user = account::user();
    }
    facts
}
