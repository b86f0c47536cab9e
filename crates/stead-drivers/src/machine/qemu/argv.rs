//! The command line of a machine's QEMU. Paths are relative to the machine's directory, which it starts in.

use std::ffi::OsString;
use std::path::Path;

use stead_model::machine::{DriveAccess, DriveFormat, MachineSpec};

use super::qmp;
use crate::machine::console;
use crate::machine::vm::network::{Card, Wire};
use crate::machine::vm::{CPUS, Kernel, MEMORY_MB, context_id, image, seed};

/// The first disk.
pub(super) const DISK: &str = "disk.qcow2";

/// The kind of machine that is emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emulated {
    /// `microvm` for a kernel run by the processor itself, else what is usual.
    #[default]
    Auto,
    /// Nearly nothing: boots fastest, needs a kernel and KVM.
    Microvm,
    /// A PC with PCI Express.
    Q35,
    /// A PC.
    Pc,
    /// What ARM has.
    Virt,
}

impl Emulated {
    /// Returns what a host's word means.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "microvm" => Some(Self::Microvm),
            "q35" => Some(Self::Q35),
            "pc" => Some(Self::Pc),
            _ => None,
        }
    }

    /// Returns the machine that is meant.
    pub(super) fn resolve(self, has_kernel: bool, kvm: bool) -> Self {
        match self {
            Self::Auto if cfg!(target_arch = "aarch64") => Self::Virt,
            Self::Auto if has_kernel && kvm => Self::Microvm,
            Self::Auto => Self::Q35,
            Self::Microvm | Self::Q35 | Self::Pc | Self::Virt => self,
        }
    }

    /// Returns QEMU's word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Auto | Self::Q35 => "q35",
            Self::Microvm => "microvm",
            Self::Pc => "pc",
            Self::Virt => "virt",
        }
    }

    /// Returns the device of this name, as this machine has it.
    fn device(self, name: &str) -> String {
        match self {
            Self::Microvm => format!("{name}-device"),
            Self::Auto | Self::Q35 | Self::Pc | Self::Virt => format!("{name}-pci"),
        }
    }
}

/// Everything that the command line follows from.
pub(super) struct Order<'a> {
    pub(super) spec: &'a MachineSpec,
    pub(super) machine: Emulated,
    pub(super) kvm: bool,
    pub(super) has_disk: bool,
    pub(super) kernel: Option<&'a Kernel>,
    pub(super) firmware: Option<&'a str>,
    pub(super) cards: &'a [Card],
    /// The port of 127.0.0.1 that leads to SSH and the guest's own, for the first card on QEMU's own network.
    pub(super) port: Option<(u16, u16)>,
}

/// Returns the arguments.
pub(super) fn arguments(order: &Order<'_>) -> Vec<OsString> {
    let mut line = Line::default();
    let uuid = order.spec.owner.uuid();
    line.flag("-nodefaults").flag("-no-user-config").pair("-display", "none");
    line.pair("-name", format!("stead-{uuid}")).pair("-uuid", uuid);
    line.pair("-machine", order.machine.word());
    line.pair("-accel", if order.kvm { "kvm" } else { "tcg" });
    line.pair("-cpu", if order.kvm { "host" } else { "max" });
    line.pair("-smp", order.spec.cpus.unwrap_or(CPUS).to_string());
    line.pair("-m", order.spec.memory_mb.unwrap_or(MEMORY_MB).to_string());
    line.pair("-chardev", format!("file,id=console,path={},append=on", console::PIPE));
    line.pair("-serial", "chardev:console");
    line.pair("-chardev", format!("socket,id=orders,path={},server=on,wait=off", qmp::SOCKET));
    line.pair("-mon", "chardev=orders,mode=control");
    // Its events go to a file, by way of a monitor that nobody types into.
    line.pair("-chardev", "stdio,id=events,signal=off").pair("-mon", "chardev=events,mode=control");
    line.pair("-device", order.machine.device("virtio-rng"));
    if order.spec.vsock {
        let device = order.machine.device("vhost-vsock");
        line.pair("-device", format!("{device},guest-cid={}", context_id(&order.spec.owner)));
    }
    if order.machine != Emulated::Microvm {
        line.pair("-device", "pvpanic-pci");
    }
    disks(order, &mut line);
    kernel(order, &mut line);
    let mut port = order.port;
    for (index, card) in order.cards.iter().enumerate() {
        let netdev = match &card.wire {
            Wire::User => {
                let to_ssh =
                    port.take().map(|(port, guest)| format!(",hostfwd=tcp:127.0.0.1:{port}-:{guest}"));
                let passed =
                    card.ports.iter().map(|port| format!(",hostfwd=tcp::{}-:{}", port.host, port.guest));
                let passed: String = to_ssh.into_iter().chain(passed).collect();
                format!("user,id=net{index}{passed}")
            }
            Wire::Tap { name, .. } => format!("tap,id=net{index},ifname={name},script=no,downscript=no"),
        };
        line.pair("-netdev", netdev);
        // Without the rom it would boot from the network first.
        let rom = if order.machine == Emulated::Microvm { "" } else { ",romfile=" };
        let device = order.machine.device("virtio-net");
        line.pair("-device", format!("{device},netdev=net{index},mac={}{rom}", card.mac));
    }
    line.0
}

fn disks(order: &Order<'_>, line: &mut Line) {
    let device = order.machine.device("virtio-blk");
    for (index, drive) in order.spec.drives.iter().enumerate() {
        let place = match drive.access {
            // A comma would begin another setting.
            DriveAccess::ReadOnly | DriveAccess::Shared => drive.path.replace(',', ",,"),
            DriveAccess::Private => image::layer(index),
        };
        let format = match (drive.access, drive.format) {
            (DriveAccess::Private, _) | (_, DriveFormat::Qcow2) => "qcow2",
            (DriveAccess::ReadOnly | DriveAccess::Shared, DriveFormat::Raw) => "raw",
        };
        let read_only = if drive.access == DriveAccess::ReadOnly { ",readonly=on" } else { "" };
        line.pair("-drive", format!("if=none,id=drive{index},format={format}{read_only},file={place}"));
        let first = if index == 0 && order.kernel.is_none() { ",bootindex=0" } else { "" };
        line.pair("-device", format!("{device},drive=drive{index}{first}"));
    }
    // A kernel that is given boots first, by the same number.
    let boots = if order.spec.drives.is_empty() && order.kernel.is_none() { ",bootindex=0" } else { "" };
    let extra = order.spec.disks.iter().map(|disk| extra_disk(&disk.name));
    let first = order.has_disk.then(|| DISK.to_owned());
    for (index, file) in first.into_iter().chain(extra).enumerate() {
        line.pair("-drive", format!("if=none,id=disk{index},format=qcow2,discard=unmap,file={file}"));
        let order = if index == 0 { boots } else { "" };
        line.pair("-device", format!("{device},drive=disk{index}{order}"));
    }
    line.pair("-drive", format!("if=none,id=seed,format=raw,readonly=on,file={}", seed::FILE));
    line.pair("-device", format!("{device},drive=seed"));
}

fn kernel(order: &Order<'_>, line: &mut Line) {
    if let Some(firmware) = order.firmware {
        line.pair("-bios", firmware);
    }
    let Some(kernel) = order.kernel else { return };
    line.pair("-kernel", &kernel.path);
    if let Some(initrd) = &kernel.initrd {
        line.pair("-initrd", initrd);
    }
    line.pair("-append", &kernel.cmdline);
}

/// Returns the file of a disk besides the first.
pub(super) fn extra_disk(name: &str) -> String {
    format!("disk-{name}.qcow2")
}

/// Arguments, as they come.
#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn flag(&mut self, flag: &str) -> &mut Self {
        self.0.push(flag.into());
        self
    }

    fn pair(&mut self, flag: &str, value: impl AsRef<Path>) -> &mut Self {
        self.0.push(flag.into());
        self.0.push(value.as_ref().as_os_str().to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use stead_model::machine::{Drive, ExtraDisk, MachineKind, Owner, PassedPort};

    use super::*;

    fn words(order: &Order<'_>) -> String {
        let arguments = arguments(order);
        arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_machine_is_marked_and_only_its_port_is_open() {
        let owner = Owner::new("lab/harbour/local", "quay").unwrap();
        let spec = MachineSpec {
            cpus: Some(2),
            memory_mb: Some(256),
            disks: vec![ExtraDisk { name: "data".to_owned(), size_gb: 1 }],
            ..MachineSpec::new(owner, MachineKind::Vm)
        };
        let card = |wire| Card {
            wire,
            mac: "52:54:00:83:99:24".to_owned(),
            address: None,
            gateway: None,
            ports: Vec::new(),
        };
        let tap = Wire::Tap { name: "st0-1".to_owned(), bridge: "br0".to_owned() };
        let cards = [card(Wire::User), card(tap)];
        let kernel = Kernel {
            path: "/k".to_owned(),
            initrd: Some("/i".to_owned()),
            cmdline: "console=ttyS0 a=b".into(),
        };
        let order = Order {
            spec: &spec,
            machine: Emulated::Auto.resolve(false, true),
            kvm: false,
            has_disk: true,
            kernel: Some(&kernel),
            firmware: None,
            cards: &cards,
            port: Some((4022, 22)),
        };
        let line = words(&order);
        for part in [
            "-name stead-b8ca0a97-6f03-56c9-ab24-2f428cb4ff94 -uuid b8ca0a97-6f03-56c9-ab24-2f428cb4ff94",
            "-machine q35 -accel tcg -cpu max -smp 2 -m 256",
            "if=none,id=disk0,format=qcow2,discard=unmap,file=disk.qcow2",
            "virtio-blk-pci,drive=disk0",
            "file=disk-data.qcow2",
            "readonly=on,file=seed.iso",
            "-kernel /k -initrd /i -append console=ttyS0 a=b",
            "user,id=net0,hostfwd=tcp:127.0.0.1:4022-:22",
            "tap,id=net1,ifname=st0-1,script=no,downscript=no",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        assert!(!line.contains("bootindex"), "the kernel comes first: {line}");
        let imaged = words(&Order { kernel: None, ..order });
        assert!(imaged.contains("virtio-blk-pci,drive=disk0,bootindex=0"), "{imaged}");
        let micro = words(&Order { machine: Emulated::Auto.resolve(true, true), kvm: true, ..order });
        assert!(micro.contains("-machine microvm -accel kvm -cpu host"), "{micro}");
        assert!(micro.contains("virtio-net-device,") && !micro.contains("-pci"), "{micro}");
    }

    #[test]
    fn drives_are_read_layered_or_written_and_ports_are_passed_on() {
        let owner = Owner::new("fleet/w1", "web-0").unwrap();
        let drive = |path: &str, format, access| Drive { path: path.to_owned(), format, access };
        let spec = MachineSpec {
            drives: vec![
                drive("/store/disk.raw", DriveFormat::Raw, DriveAccess::Private),
                drive("/store/a,b.qcow2", DriveFormat::Qcow2, DriveAccess::ReadOnly),
                drive("/volumes/data.raw", DriveFormat::Raw, DriveAccess::Shared),
            ],
            vsock: true,
            ..MachineSpec::new(owner, MachineKind::Vm)
        };
        let ports = vec![PassedPort { guest: 80, host: 8080 }];
        let mac = "02:21:d2:e8:88:64".to_owned();
        let cards = [Card { wire: Wire::User, mac, address: None, gateway: None, ports }];
        let line = words(&Order {
            spec: &spec,
            machine: Emulated::Q35,
            kvm: false,
            has_disk: false,
            kernel: None,
            firmware: Some("/bios.bin"),
            cards: &cards,
            port: Some((4022, 2222)),
        });
        for part in [
            "if=none,id=drive0,format=qcow2,file=layer-0.qcow2 -device virtio-blk-pci,drive=drive0,bootindex=0",
            "if=none,id=drive1,format=qcow2,readonly=on,file=/store/a,,b.qcow2",
            "if=none,id=drive2,format=raw,file=/volumes/data.raw -device virtio-blk-pci,drive=drive2",
            "-bios /bios.bin",
            "user,id=net0,hostfwd=tcp:127.0.0.1:4022-:2222,hostfwd=tcp::8080-:80",
            "vhost-vsock-pci,guest-cid=",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}
