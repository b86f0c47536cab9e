//! What machines boot: templates that are cloned, disk images that are imported, and file trees of containers.

use serde_json::Value;
use stead_model::machine::{Boot, MachineKind, MachineSpec};
use stead_runner::machine::MachineError;

use super::api::ApiError;
use super::form::encode;
use super::{Cluster, Method};

/// Endings of disk images.
const IMAGES: &[&str] = &["", ".qcow2", ".img", ".raw", ".vmdk"];
/// Endings of file trees.
const TREES: &[&str] = &["", ".tar.zst", ".tar.xz", ".tar.gz"];

/// What a machine is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The virtual machine with this number, a template.
    Clone(u32),
    /// A volume with a disk image.
    Import(String),
    /// A volume with a file tree.
    Tree(String),
}

/// Refuses what no machine here can boot.
pub(super) fn check(boot: Option<&Boot>) -> Result<(), MachineError> {
    match boot {
        Some(Boot::Image(_) | Boot::Template(_)) => Ok(()),
        Some(Boot::Kernel { .. } | Boot::Firmware(_)) => {
            let why = "Proxmox boots images and templates, not kernels or firmware";
            Err(MachineError::Unsupported(why.to_owned()))
        }
        None => {
            let why = "there is nothing to boot: name an `image`, or the `template` of a container";
            Err(MachineError::Invalid(why.to_owned()))
        }
    }
}

impl Cluster {
    /// Returns what the machine of `spec` is made from.
    pub(super) async fn source(&self, spec: &MachineSpec) -> Result<Source, MachineError> {
        check(spec.boot.as_ref())?;
        match (spec.kind, &spec.boot) {
            (MachineKind::Ct, Some(Boot::Template(name) | Boot::Image(name))) => {
                self.volume(name, &["vztmpl"], TREES).await.map(Source::Tree)
            }
            (MachineKind::Vm, Some(Boot::Image(name) | Boot::Template(name))) => self.image(name).await,
            (MachineKind::Ct | MachineKind::Vm, Some(Boot::Kernel { .. } | Boot::Firmware(_)) | None) => {
                Err(MachineError::Invalid("there is nothing to boot".to_owned()))
            }
        }
    }

    /// Returns what a virtual machine of the image `name` is made from.
    pub(super) async fn image(&self, name: &str) -> Result<Source, MachineError> {
        if self.settings.method == Method::Import {
            return self.volume(name, &["import", "iso"], IMAGES).await.map(Source::Import);
        }
        if let Some(vmid) = self.settings.images.get(name) {
            return Ok(Source::Clone(*vmid));
        }
        let listed = self.listed().await.map_err(|error| error.while_doing("looking for templates"))?;
        let templates = || listed.iter().filter(|one| one.is_template);
        if let Some(template) = templates().find(|one| one.name == name) {
            return Ok(Source::Clone(template.place.vmid));
        }
        let mut known: Vec<&str> = self.settings.images.keys().map(String::as_str).collect();
        known.extend(templates().map(|one| one.name.as_str()));
        Err(MachineError::Invalid(format!(
            "there is no template for the image `{}` on {}: `images` of the host names templates by number; there are {}",
            name.escape_debug(),
            self.settings.node,
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        )))
    }

    /// Returns the container template or disk image that a boot needs, as far as it is there.
    pub(super) async fn find_boot(&self, boot: &Boot) -> Result<(), MachineError> {
        match boot {
            Boot::Template(name) => self.volume(name, &["vztmpl"], TREES).await.map(drop),
            Boot::Image(name) => match self.image(name).await? {
                Source::Clone(vmid) => self.is_template(vmid).await,
                Source::Import(_) | Source::Tree(_) => Ok(()),
            },
            Boot::Kernel { .. } | Boot::Firmware(_) => check(Some(boot)),
        }
    }

    /// Refuses a number that is no template.
    async fn is_template(&self, vmid: u32) -> Result<(), MachineError> {
        let failed = |error: ApiError| error.while_doing("looking for a template");
        let what = match self.place_of(vmid).await.map_err(failed)? {
            None => "is not there",
            Some(place) => match self.config(&place).await.map_err(failed)? {
                Some(config) if config.get("template").and_then(super::find::number) == Some(1) => {
                    return Ok(());
                }
                Some(_) | None => "is no template",
            },
        };
        Err(MachineError::Invalid(format!("VM {vmid}, which `images` of the host names, {what}")))
    }

    /// Returns the volume that is called `name`, with one of the endings or without.
    async fn volume(&self, name: &str, kinds: &[&str], endings: &[&str]) -> Result<String, MachineError> {
        let storage = &self.settings.iso_storage;
        // A whole volume id names its storage itself.
        if let Some((storage, path)) = name.split_once(':')
            && !storage.is_empty()
            && !path.is_empty()
            && !name.contains([',', ' ', '='])
        {
            return Ok(name.to_owned());
        }
        let mut known = Vec::new();
        for kind in kinds {
            let path = format!(
                "nodes/{}/storage/{}/content?content={kind}",
                encode(&self.settings.node),
                encode(storage)
            );
            let list = self.api.get(&path).await;
            let list =
                list.map_err(|error| error.while_doing(&format!("looking at the storage {storage}")))?;
            let volumes =
                list.as_array().into_iter().flatten().filter_map(|entry| entry.get("volid")?.as_str());
            known.extend(volumes.map(str::to_owned));
        }
        let fits = |volume: &&String| {
            let file = volume.rsplit('/').next().unwrap_or_default();
            endings.iter().any(|ending| file == format!("{name}{ending}"))
        };
        known.iter().find(fits).cloned().ok_or_else(|| {
            let files: Vec<&str> = known.iter().filter_map(|volume| volume.rsplit('/').next()).collect();
            MachineError::Invalid(format!(
                "there is no `{}` in the storage {storage} of {}; there are {}",
                name.escape_debug(),
                self.settings.node,
                if files.is_empty() { "none".to_owned() } else { files.join(", ") }
            ))
        })
    }

    /// Whether a storage of the host's node has a volume.
    pub(super) async fn has_volume(&self, storage: &str, volume: &str) -> Result<bool, ApiError> {
        let path =
            format!("nodes/{}/storage/{}/content?content=iso", encode(&self.settings.node), encode(storage));
        let list = self.api.get(&path).await?;
        let mut volumes =
            list.as_array().into_iter().flatten().filter_map(|entry| entry.get("volid")?.as_str());
        Ok(volumes.any(|found| found == volume))
    }
}

/// Returns the disk that a virtual machine boots, and how large it is in bytes.
pub(super) fn boot_disk(config: &Value) -> Option<(String, Option<u64>)> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let order = text("boot").and_then(|boot| boot.split(',').find_map(|part| part.strip_prefix("order=")));
    let named = order.into_iter().flat_map(|order| order.split(';')).chain(text("bootdisk"));
    let usual = ["scsi0", "virtio0", "sata0", "ide0"];
    let is_disk =
        |name: &&str| text(name).is_some_and(|disk| !disk.contains("media=cdrom") && disk.contains(':'));
    let is_drive = |name: &&str| {
        ["scsi", "virtio", "sata", "ide"].iter().any(|bus| name.starts_with(bus)) && is_disk(name)
    };
    let name = named.chain(usual).find(is_drive)?;
    let size = text(name)?.split(',').find_map(|part| part.strip_prefix("size=")).and_then(bytes);
    Some((name.to_owned(), size))
}

/// Returns the drives that hold what Proxmox itself would tell cloud-init.
pub(super) fn cloudinit_drives(config: &Value) -> Vec<String> {
    let entries = config.as_object().into_iter().flatten();
    let is_one = |value: &Value| value.as_str().is_some_and(|text| text.contains("cloudinit"));
    let is_drive = |name: &str| ["ide", "sata", "scsi"].iter().any(|bus| name.starts_with(bus));
    entries.filter(|(name, value)| is_drive(name) && is_one(value)).map(|(name, _)| name.clone()).collect()
}

/// Returns the bytes of a size such as `2252M`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 10),
        (at, 'M') => (&text[..at], 20),
        (at, 'G') => (&text[..at], 30),
        (at, 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_boot_disk_is_the_first_that_is_one() {
        let config = json!({
            "boot": "order=ide2;net0;virtio1", "ide2": "local:iso/x.iso,media=cdrom",
            "virtio1": "lvm:vm-100-disk-0,iothread=1,size=2252M", "scsi0": "lvm:vm-100-disk-1,size=8G",
        });
        assert_eq!(boot_disk(&config), Some(("virtio1".to_owned(), Some(2252 << 20))));
        let older = json!({"bootdisk": "scsi0", "scsi0": "lvm:vm-100-disk-1,size=8G"});
        assert_eq!(boot_disk(&older), Some(("scsi0".to_owned(), Some(8 << 30))));
        assert_eq!(boot_disk(&json!({"scsihw": "virtio-scsi-pci", "net0": "virtio"})), None);
        assert_eq!(bytes("1T"), Some(1 << 40));
        assert_eq!(bytes("x"), None);
    }

    #[test]
    fn drives_of_the_other_seed_are_known() {
        let config = json!({"ide2": "lvm:vm-9000-cloudinit,media=cdrom", "scsi0": "lvm:vm-9000-disk-0", "scsihw": "x"});
        assert_eq!(cloudinit_drives(&config), ["ide2"]);
    }
}
