//! What a guest reads of its seed: the files of the volume, and what cloud-init would make of them.

use serde_json::Value;
use stead_model::base64;
use stead_model::machine::{HostKey, MachineKind, MachineSpec, Owner, PlantedFile};

const SECTOR: usize = 2048;

/// Returns a file of a seed's volume.
pub fn file_of_seed(volume: &[u8], name: &str) -> Option<String> {
    let number = |bytes: &[u8]| Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize);
    let root = volume.get(16 * SECTOR + 156..)?;
    let directory = volume.get(number(root.get(2..)?)? * SECTOR..)?.get(..number(root.get(10..)?)?)?;
    let wanted = format!("{}.;1", name.to_ascii_uppercase());
    let mut place = 0;
    while let Some(length) = directory.get(place).filter(|length| **length > 0) {
        let entry = directory.get(place..place + usize::from(*length))?;
        let found = entry.get(33..33 + usize::from(*entry.get(32)?))?;
        if found == wanted.as_bytes() {
            let content =
                volume.get(number(entry.get(2..)?)? * SECTOR..)?.get(..number(entry.get(10..)?)?)?;
            return Some(String::from_utf8_lossy(content).into_owned());
        }
        place += usize::from(*length);
    }
    None
}

/// Returns the machine that cloud-init makes of a seed: its name, account, keys, host key and files. It belongs to `scope`.
///
/// # Panics
/// If the volume is no seed.
pub fn machine_of_seed(volume: &[u8], scope: &str) -> MachineSpec {
    let read = |name: &str| file_of_seed(volume, name).unwrap_or_else(|| panic!("the seed has no {name}"));
    let meta_data = read("meta-data");
    let name = meta_data.lines().find_map(|line| line.strip_prefix("local-hostname: ")).expect("a name");
    let vendor_data = read("vendor-data");
    let data: Value =
        serde_json::from_str(vendor_data.strip_prefix("#cloud-config\n").expect("a cloud-config"))
            .expect("JSON");
    assert!(read("user-data").starts_with("#cloud-config\n"), "user-data is one too");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let files = data["write_files"].as_array().into_iter().flatten().map(|file| PlantedFile {
        path: text(&file["path"]),
        mode: u32::from_str_radix(&text(&file["permissions"]), 8).expect("a mode"),
        content: base64::decode(&text(&file["content"])).expect("base64"),
    });
    let account = &data["users"][0];
    MachineSpec {
        user: text(&account["name"]),
        authorized_keys: account["ssh_authorized_keys"].as_array().into_iter().flatten().map(text).collect(),
        host_key: Some(HostKey::new(text(&data["ssh_keys"]["ed25519_private"]))),
        files: files.collect(),
        ..MachineSpec::new(Owner::new(scope, name).expect("an owner"), MachineKind::Vm)
    }
}
