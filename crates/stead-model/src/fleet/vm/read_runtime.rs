//! Reads what runs in a VM.

use std::collections::BTreeMap;

use super::keys::{DISK_KEYS, NET_KEYS, PORT_KEYS, RUNTIME_KEYS};
use super::{Arch, Disk, DiskFormat, DiskSource, Driver, Net, NetMode, Port, Runtime};
use crate::fleet::artifact::{self, Artifact};
use crate::id::VmId;
use crate::site::read;
use crate::yaml::{Fields, Node, Walk};

/// Returns the texts of a list, which may be empty.
pub(super) fn texts(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for item in walk.list(node, "texts").into_iter().flatten() {
        found.extend(walk.text(item).map(str::to_owned));
    }
    found
}

/// Reads `runtime`; `driver` is the one where it names none.
pub(super) fn read_runtime(walk: &mut Walk<'_>, node: Node<'_>, driver: Option<Driver>) -> Option<Runtime> {
    let fields = walk.map(node, &RUNTIME_KEYS)?;
    let named = fields.get("driver");
    let driver = match named {
        Some(node) => walk.choice(node, &Driver::WORDS),
        None => driver,
    };
    if named.is_none() && driver.is_none() {
        walk.report(node.error("fleet/missing-field", "`runtime` needs the key `driver`"));
    }
    let arch = read::word(walk, fields, "arch", &Arch::WORDS).unwrap_or_default();
    let mut one = |key: &str| fields.get(key).and_then(|node| artifact::read(walk, node));
    let (kernel, initrd, firmware) = (one("kernel"), one("initrd"), one("firmware"));
    let (rootfs, config) = (one("rootfs"), one("config"));
    let cmdline = fields.get("cmdline").and_then(|node| walk.text(node)).unwrap_or_default().to_owned();
    let disks = list(walk, fields, "disks", "disks", read_disk);
    let nets = list(walk, fields, "nets", "network cards", read_net);
    let artifacts: Vec<Artifact> = list(walk, fields, "artifacts", "artifacts", artifact::read);
    let vsock = read::flag(walk, fields, "vsock").unwrap_or_default();
    let cwd = read::text(walk, fields, "cwd");
    if let (Some(cwd), Some(node)) = (&cwd, fields.get("cwd"))
        && !cwd.starts_with('/')
    {
        walk.report(node.bad("a directory here begins with `/`"));
    }
    let argv = fields.get("argv").map(|node| texts(walk, node)).unwrap_or_default();
    let env = fields.get("env").map(|node| read_env(walk, node)).unwrap_or_default();
    Some(Runtime {
        driver: driver?,
        arch,
        kernel,
        initrd,
        firmware,
        cmdline,
        disks,
        rootfs,
        argv,
        env,
        cwd,
        nets,
        vsock,
        config,
        artifacts,
    })
}

fn list<T>(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    key: &str,
    what: &str,
    read: fn(&mut Walk<'_>, Node<'_>) -> Option<T>,
) -> Vec<T> {
    let mut found = Vec::new();
    for item in fields.get(key).and_then(|node| walk.list(node, what)).into_iter().flatten() {
        found.extend(read(walk, item));
    }
    found
}

fn read_env(walk: &mut Walk<'_>, node: Node<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of variables, found {}", node.describe())));
        return env;
    };
    for (key, value) in entries {
        let name = key.as_text().unwrap_or_default();
        if name.is_empty() || name.contains(['=', '\0']) {
            walk.report(key.error("fleet/bad-name", "this is not the name of a variable"));
        }
        if let Some(value) = walk.text(value) {
            env.insert(name.to_owned(), value.to_owned());
        }
    }
    env
}

fn read_disk(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Disk> {
    let fields = walk.map(node, &DISK_KEYS)?;
    let read_only = read::flag(walk, fields, "readOnly").unwrap_or_default();
    let format = read::word(walk, fields, "format", &DiskFormat::WORDS).unwrap_or_default();
    let source = match (fields.get("image"), fields.get("volume")) {
        (Some(image), None) => DiskSource::Image(artifact::read(walk, image)?),
        (None, Some(volume)) => DiskSource::Volume(walk.id::<VmId>(volume)?),
        (Some(_), Some(volume)) => {
            walk.report(volume.error("fleet/conflict", "a disk has an `image` or a `volume`, not both"));
            return None;
        }
        (None, None) => {
            walk.report(node.error("fleet/missing-field", "a disk needs an `image` or a `volume`"));
            return None;
        }
    };
    Some(Disk { source, read_only, format })
}

fn read_net(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Net> {
    let fields = walk.map(node, &NET_KEYS)?;
    let net = Net {
        mode: read::word(walk, fields, "mode", &NetMode::WORDS).unwrap_or_default(),
        bridge: read::text(walk, fields, "bridge"),
        mac: read::text(walk, fields, "mac"),
        ports: list(walk, fields, "ports", "ports", read_port),
    };
    if let (Some(mac), Some(node)) = (&net.mac, fields.get("mac"))
        && !is_mac(mac)
    {
        walk.report(node.bad(format!("`{mac}` is not a hardware address")).help("write 02:00:00:00:00:01"));
    }
    for (key, is_used, mode) in
        [("bridge", net.mode == NetMode::Tap, "tap"), ("ports", net.mode == NetMode::User, "user")]
    {
        if let Some(key_node) = fields.node().key(key)
            && !is_used
        {
            let message = format!("only a card of mode `{mode}` has `{key}`");
            walk.report(key_node.error("fleet/conflict", message));
        }
    }
    if net.mode == NetMode::Tap && net.bridge.is_none() {
        walk.report(node.error("fleet/missing-field", "a card of mode `tap` needs the key `bridge`"));
    }
    Some(net)
}

fn is_mac(text: &str) -> bool {
    let is_byte =
        |part: &str| part.len() == 2 && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.split(':').count() == 6 && text.split(':').all(is_byte)
}

fn read_port(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Port> {
    let fields = walk.map(node, &PORT_KEYS)?;
    let guest = read::number(walk, fields, "guest", 1..=65535);
    let host = read::number(walk, fields, "host", 1..=65535);
    Some(Port { guest: guest?, host: host? })
}
