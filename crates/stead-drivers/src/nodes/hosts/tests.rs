//! Every field that a host has for its driver reaches that driver.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stead_model::SiteKey;
use stead_model::site::{Entry, FileKind, Host, Site, SiteFile};

use super::*;

const STATE: &str = "/var/lib/stead";
const PROGRAM: &str = "/usr/bin/stead";

/// Returns what a file says of a host.
fn read(text: &str) -> Entry<Host> {
    let file = SiteFile {
        kind: FileKind::Host,
        stem: "h".to_owned(),
        name: "hosts/h.yaml".to_owned(),
        content: Ok(text.as_bytes().to_vec()),
    };
    Site::read(vec![file]).hosts.remove(&SiteKey::parse("h").unwrap()).unwrap()
}

/// Returns the host that a file describes, in which nothing is odd.
fn host(text: &str) -> Host {
    let entry = read(text);
    assert!(entry.diagnostics.0.is_empty(), "{}", entry.diagnostics);
    entry.value
}

fn secrets() -> Secrets {
    let text = "api_tokens: {h: 'root@pam!h=x', lab: 'root@pam!stead=y'}\n";
    let file = SiteFile {
        kind: FileKind::Secrets,
        stem: "secrets".to_owned(),
        name: "secrets.yaml".to_owned(),
        content: Ok(text.as_bytes().to_vec()),
    };
    Site::read(vec![file]).secrets.value
}

fn boot(image_dir: &str, kernel: &str, initrd: Option<&str>, cmdline: Option<&str>) -> BootSettings {
    BootSettings {
        image_dir: Some(PathBuf::from(image_dir)),
        kernel: Some(kernel.to_owned()),
        initrd: initrd.map(str::to_owned),
        cmdline: cmdline.map(str::to_owned),
    }
}

fn network(text: &str) -> Cidr {
    Cidr::parse(text).unwrap()
}

#[test]
fn a_sandbox_is_told_everything() {
    let (state, program) = (Path::new(STATE), Path::new(PROGRAM));
    let plain = sandbox_settings(&host("driver: sandbox\n"), state, program, None);
    assert_eq!(plain, SandboxSettings::new(state.join("machines"), program));
    let text = "driver: sandbox
root_dir: /srv/boxes
packages: [htop]
services: [ssh]
boot_delay_ms: 250
faults: [{node: edge, phase: boot, times: 2, error: no, delay_ms: 3, crash: true}]
";
    let told = sandbox_settings(&host(text), state, program, Some("/above".into()));
    let only = |name: &str| sandbox::Names::Only([name.to_owned()].into());
    let fault = sandbox::Fault {
        node: "edge".to_owned(),
        phase: sandbox::Phase::Boot,
        times: 2,
        error: Some("no".to_owned()),
        delay_ms: 3,
        crash: true,
    };
    let expected = SandboxSettings {
        root_dir: "/srv/boxes".into(),
        keeps_root_dir: true,
        program: program.to_owned(),
        packages: only("htop"),
        services: only("ssh"),
        boot_delay: Duration::from_millis(250),
        faults: vec![fault],
        parent: Some("/above".into()),
    };
    assert_eq!(told, expected);
}

#[test]
fn containers_are_told_everything() {
    let (state, program) = (Path::new(STATE), Path::new(PROGRAM));
    let plain = oci_settings("h", &host("driver: oci\n"), state, program).unwrap();
    let usual = OciSettings {
        image_dir: state.join("images"),
        hidden: vec![state.to_owned()],
        ..OciSettings::new(state.join("machines"), program)
    };
    assert_eq!(plain, usual);
    assert_eq!((plain.bridge.as_str(), plain.subnet), ("stead0", network("10.44.0.0/16")));
    assert_eq!((plain.runtime, plain.storage), (RuntimeChoice::Auto, StorageChoice::Auto));
    let text =
        "driver: oci\nruntime: crun\nstorage: copy\nimage_dir: trees\nbridge: br7\nsubnet: 10.7.0.0/20\n";
    let told = oci_settings("h", &host(text), state, program).unwrap();
    let expected = OciSettings {
        runtime: RuntimeChoice::parse("crun"),
        storage: StorageChoice::Copy,
        image_dir: state.join("trees"),
        bridge: "br7".to_owned(),
        subnet: network("10.7.0.0/20"),
        ..usual
    };
    assert_eq!(told, expected);
    for small in ["10.7.0.0/31", "fd00::/64"] {
        let refused = oci_settings("h", &host(&format!("driver: oci\nsubnet: {small}\n")), state, program);
        assert!(refused.is_err_and(|error| error.to_string().contains("`subnet`")), "{small}");
    }
}

#[test]
fn qemu_is_told_everything() {
    let (state, program) = (Path::new(STATE), Path::new(PROGRAM));
    let plain = qemu_settings(&host("driver: qemu\n"), state, program);
    let usual = QemuSettings {
        boot: BootSettings { image_dir: Some(state.join("images")), ..BootSettings::default() },
        ..QemuSettings::new(state.join("machines"), program)
    };
    assert_eq!(plain, usual);
    assert_eq!((plain.machine, plain.accel, plain.bridge), (Emulated::Auto, Accel::Auto, None));
    let text = "driver: qemu
binary: /opt/qemu
machine: microvm
accel: tcg
image_dir: /srv/images
kernel: vmlinuz
initrd: /boot/initrd
cmdline: quiet
network: tap
bridge: br7
subnet: 10.7.0.0/20
";
    let expected = QemuSettings {
        binary: "/opt/qemu".into(),
        machine: Emulated::Microvm,
        accel: Accel::Tcg,
        boot: boot("/srv/images", "/var/lib/stead/vmlinuz", Some("/boot/initrd"), Some("quiet")),
        bridge: Some("br7".to_owned()),
        subnet: Some(network("10.7.0.0/20")),
        ..usual.clone()
    };
    assert_eq!(qemu_settings(&host(text), state, program), expected);
    for (word, machine) in [("q35", Emulated::Q35), ("pc", Emulated::Pc), ("auto", Emulated::Auto)] {
        let told = qemu_settings(&host(&format!("driver: qemu\nmachine: {word}\n")), state, program);
        assert_eq!(told, QemuSettings { machine, ..usual.clone() });
    }
    let tap = qemu_settings(&host("driver: qemu\nnetwork: tap\n"), state, program);
    assert_eq!(tap, QemuSettings { bridge: Some("vmbr0".to_owned()), ..usual });
}

#[test]
fn cloud_hypervisor_is_told_everything() {
    let (state, program) = (Path::new(STATE), Path::new(PROGRAM));
    let plain = cloud_hypervisor_settings(&host("driver: cloud-hypervisor\n"), state, program);
    let usual = CloudHypervisorSettings {
        boot: BootSettings { image_dir: Some(state.join("images")), ..BootSettings::default() },
        bridge: Some("vmbr0".to_owned()),
        ..CloudHypervisorSettings::new(state.join("machines"), program)
    };
    assert_eq!(plain, usual);
    let text = "driver: cloud-hypervisor
binary: /opt/ch
image_dir: /srv/images
kernel: /boot/vmlinux
initrd: /boot/initrd
cmdline: console=ttyS0
firmware: fw.bin
bridge: br7
subnet: 10.7.0.0/20
";
    let expected = CloudHypervisorSettings {
        binary: "/opt/ch".into(),
        boot: boot("/srv/images", "/boot/vmlinux", Some("/boot/initrd"), Some("console=ttyS0")),
        firmware: Some("/var/lib/stead/fw.bin".to_owned()),
        bridge: Some("br7".to_owned()),
        subnet: Some(network("10.7.0.0/20")),
        ..usual
    };
    assert_eq!(cloud_hypervisor_settings(&host(text), state, program), expected);
}

#[test]
fn proxmox_is_told_everything() {
    let (state, secrets) = (Path::new(STATE), secrets());
    let told = |text: &str| proxmox_settings("h", &host(text), &secrets, state);
    let usual = ProxmoxSettings {
        endpoint: "https://10.0.0.5".to_owned(),
        fingerprint: None,
        token_name: "h".to_owned(),
        token: secrets.api_tokens["h"].clone(),
        node: "h".to_owned(),
        datastore: "fast".to_owned(),
        iso_storage: "local".to_owned(),
        method: Method::Clone,
        images: BTreeMap::new(),
        vmids: 100..=999_999_999,
        bridge: "vmbr0".to_owned(),
        lock_dir: state.join("locks"),
        pace: Pace { busy: Duration::from_secs(300), ..Pace::default() },
    };
    assert_eq!(told("driver: proxmox\nip: 10.0.0.5\ndatastore: fast\n").unwrap(), usual);
    let six = told("driver: proxmox\nip: fd00::5\ndatastore: fast\n").unwrap();
    assert_eq!(six.endpoint, "https://[fd00::5]");
    let text = "api_endpoint: https://pve.example:8006
api_token: lab
node: pve3
datastore: slow
iso_storage: iso
method: import
images: {debian-12: 9000}
vmid_range: [200, 299]
bridge: br7
fingerprint: ABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCDABCD
timeouts: {create: 30, destroy: 40}
";
    let expected = ProxmoxSettings {
        endpoint: "https://pve.example:8006".to_owned(),
        fingerprint: Some("ABCD".repeat(16)),
        token_name: "lab".to_owned(),
        token: secrets.api_tokens["lab"].clone(),
        node: "pve3".to_owned(),
        datastore: "slow".to_owned(),
        iso_storage: "iso".to_owned(),
        method: Method::Import,
        images: BTreeMap::from([("debian-12".to_owned(), 9000)]),
        vmids: 200..=299,
        bridge: "br7".to_owned(),
        pace: Pace { busy: Duration::from_secs(40), ..Pace::default() },
        ..usual
    };
    assert_eq!(told(text).unwrap(), expected);
    for (text, key) in [
        ("driver: proxmox\ndatastore: fast\n", "`api_endpoint`"),
        ("driver: proxmox\nip: 10.0.0.5\n", "`datastore`"),
        ("driver: proxmox\nip: 10.0.0.5\ndatastore: fast\napi_token: none\n", "`api_token`"),
    ] {
        let refused = proxmox_settings("h", &read(text).value, &secrets, state);
        assert!(refused.is_err_and(|error| error.to_string().contains(key)), "{text}");
    }
}

/// Reach, section 9: what each driver says that it can do.
#[test]
fn every_driver_says_what_it_can_do() {
    use stead_model::machine::MachineKind::{Ct, Vm};
    let able = |text: &str| {
        let driver = machine_driver("h", &host(text), &secrets(), Path::new(STATE), Path::new(PROGRAM), None);
        let able = driver.unwrap().capabilities();
        let said = [able.hosts, able.console, able.seed, able.kernel_boot, able.disk_resize, able.networks];
        (able.kinds, said)
    };
    let proxmox = "driver: proxmox\nip: 10.0.0.5\ndatastore: fast\n";
    for (text, kinds, said) in [
        ("driver: sandbox\n", vec![Vm, Ct], [true, true, false, false, false, false]),
        ("driver: oci\n", vec![Ct], [!is_rootless(), true, false, false, false, true]),
        ("driver: qemu\n", vec![Vm], [true; 6]),
        ("driver: cloud-hypervisor\n", vec![Vm], [true; 6]),
        // The API keeps nothing of what consoles say, and boots no kernels.
        (proxmox, vec![Vm, Ct], [true, false, true, false, true, true]),
    ] {
        assert_eq!(able(text), (kinds, said), "{text}");
    }
}
