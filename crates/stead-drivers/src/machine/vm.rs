//! What virtual machines share, whatever runs them: images, the seed, networks.

pub(super) mod device;
pub(super) mod image;
mod iso;
pub(super) mod network;
pub(super) mod run;
pub(super) mod seed;
pub mod volume;

use std::io;

use stead_model::machine::{Boot, MachineSpec, Owner};
use stead_runner::machine::MachineError;

use super::home::{Home, write_text};
use crate::transport::ssh::server::ServerKey;

/// Where the public half of the machine's host key is kept.
const HOST_KEY: &str = "host_key.pub";
/// Processors of a machine that does not say.
pub(super) const CPUS: u32 = 1;
/// Memory of a machine that does not say.
pub(super) const MEMORY_MB: u64 = 512;

/// What a host says of the kernels and images its machines boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootSettings {
    /// Where images are looked for by name.
    pub image_dir: Option<std::path::PathBuf>,
    /// The kernel of machines that name neither image nor kernel.
    pub kernel: Option<String>,
    /// Its first file system.
    pub initrd: Option<String>,
    /// Its arguments.
    pub cmdline: Option<String>,
}

/// What a machine boots, with every path known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Booted {
    pub(super) image: Option<image::Image>,
    pub(super) kernel: Option<Kernel>,
    pub(super) firmware: Option<String>,
}

/// A kernel without a boot loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) path: String,
    pub(super) initrd: Option<String>,
    pub(super) cmdline: String,
}

impl BootSettings {
    fn default_kernel(&self) -> Option<Kernel> {
        let path = self.kernel.clone()?;
        let cmdline = self.cmdline.clone().unwrap_or_default();
        Some(Kernel { path, initrd: self.initrd.clone(), cmdline: or_console(cmdline) })
    }

    /// Returns what the machine boots: what its spec says, else what the host says.
    pub(super) fn resolve(&self, boot: Option<&Boot>) -> Result<Booted, MachineError> {
        let booted = match boot {
            Some(Boot::Image(name)) => {
                let image = image::find(self.image_dir.as_deref(), name)?;
                Booted { image: Some(image), kernel: self.default_kernel(), firmware: None }
            }
            Some(Boot::Kernel { kernel, initrd, cmdline }) => {
                let kernel = Kernel {
                    path: kernel.clone(),
                    initrd: initrd.clone(),
                    cmdline: or_console(cmdline.clone()),
                };
                Booted { image: None, kernel: Some(kernel), firmware: None }
            }
            Some(Boot::Template(name)) => {
                return Err(MachineError::Unsupported(format!(
                    "a virtual machine boots an image or a kernel, not the template `{}`",
                    name.escape_debug()
                )));
            }
            Some(Boot::Firmware(path)) => Booted { image: None, kernel: None, firmware: Some(path.clone()) },
            None => Booted { image: None, kernel: self.default_kernel(), firmware: None },
        };
        if let Some(firmware) = &booted.firmware {
            readable(firmware)?;
            return Ok(booted);
        }
        if booted.image.is_none() && booted.kernel.is_none() {
            let why = "there is nothing to boot: give the machine an `image`, or its host a `kernel`";
            return Err(MachineError::Invalid(why.to_owned()));
        }
        if let Some(kernel) = &booted.kernel {
            for path in std::iter::once(&kernel.path).chain(&kernel.initrd) {
                readable(path)?;
            }
        }
        Ok(booted)
    }
}

/// Without a word on it a kernel says nothing on the console.
fn or_console(cmdline: String) -> String {
    if cmdline.trim().is_empty() { "console=ttyS0".to_owned() } else { cmdline }
}

fn readable(path: &str) -> Result<(), MachineError> {
    if !path.starts_with('/') {
        let why = format!("`{}` is not an absolute path", path.escape_debug());
        return Err(MachineError::Invalid(why));
    }
    let failed = |error: io::Error| MachineError::Invalid(format!("{path} cannot be read: {error}"));
    std::fs::File::open(path).map(drop).map_err(failed)
}

/// Refuses what no virtual machine can be.
pub(super) fn check(spec: &MachineSpec) -> Result<(), MachineError> {
    let invalid = |what: String| Err(MachineError::Invalid(what));
    if spec.cpus == Some(0) || spec.memory_mb == Some(0) || spec.disk_gb == Some(0) {
        return invalid("`cpus`, `memory_mb` and `disk_gb` are at least 1".to_owned());
    }
    if spec.program.is_some() || !spec.mounts.is_empty() {
        let why =
            "a virtual machine runs what it boots: it has neither a program nor directories of this machine";
        return Err(MachineError::Unsupported(why.to_owned()));
    }
    for drive in &spec.drives {
        readable(&drive.path)?;
    }
    for disk in &spec.disks {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if disk.name.is_empty() || disk.name.len() > 32 || !disk.name.chars().all(fits) {
            return invalid(format!(
                "`{}` is not a disk's name: up to 32 lower-case letters, digits and hyphens",
                disk.name.escape_debug()
            ));
        }
        if disk.size_gb == 0 {
            return invalid(format!("disk {} has no size", disk.name));
        }
        if spec.disks.iter().filter(|other| other.name == disk.name).count() > 1 {
            return invalid(format!("there are two disks {}", disk.name));
        }
    }
    Ok(())
}

/// Returns the number by which the socket between a machine and this one finds the machine; the first three are taken.
pub(super) fn context_id(owner: &Owner) -> u32 {
    let digits: String = owner.uuid().chars().filter(char::is_ascii_hexdigit).take(7).collect();
    u32::from_str_radix(&digits, 16).unwrap_or_default() + 3
}

/// Writes the seed and the host key's public half.
pub(super) fn plant(home: &Home, spec: &MachineSpec, cards: &[network::Card]) -> Result<(), MachineError> {
    let failed = |error: io::Error| home.failed("make", &error);
    let key = match &spec.host_key {
        Some(key) => ServerKey::parse(key.expose()).map_err(MachineError::Invalid)?,
        None => ServerKey::generate().map_err(failed)?,
    };
    let public = key.public().map_err(failed)?;
    write_text(&home.file(HOST_KEY), &public, 0o600).map_err(failed)?;
    seed::write(home, spec, cards, &key).map_err(failed)
}

/// Returns the public half of the key that the machine shows.
pub(super) fn host_key(home: &Home) -> Option<String> {
    std::fs::read_to_string(home.file(HOST_KEY)).ok()
}
