//! What each request does, and what it refuses.

use serde_json::{Map, Value, json};

use super::request::{Request, decode};
use super::world::{Effect, Guest, Kind, World};
use super::{DOOMED, NODE, Wrong};

/// Storages, with what they hold.
const STORAGES: &[(&str, &[&str])] =
    &[("local", &["iso", "vztmpl", "import"]), ("fast", &["images", "rootdir"])];

/// What is answered.
pub(super) struct Answer {
    pub(super) status: u16,
    /// What the status line says.
    pub(super) reason: Option<String>,
    pub(super) body: Value,
}

impl Answer {
    fn data(data: impl Into<Value>) -> Self {
        Self { status: 200, reason: None, body: json!({ "data": data.into() }) }
    }

    pub(super) fn refused(status: u16, words: &str) -> Self {
        let body = json!({ "data": null, "message": format!("{words}\n") });
        Self { status, reason: Some(words.to_owned()), body }
    }

    fn bad_field(field: &str, why: &str) -> Self {
        let words = "Parameter verification failed.";
        let body =
            json!({ "data": null, "errors": { field: format!("{why}\n") }, "message": format!("{words}\n") });
        Self { status: 400, reason: Some(words.to_owned()), body }
    }

    fn no_config(kind: Kind, vmid: u32) -> Self {
        let folder = match kind {
            Kind::Qemu => "qemu-server",
            Kind::Lxc => "lxc",
        };
        Self::refused(500, &format!("Configuration file 'nodes/{NODE}/{folder}/{vmid}.conf' does not exist"))
    }
}

/// Answers a request. `wrong` is what goes wrong with its task, or with the number it asks for.
pub(super) fn answer(world: &mut World, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    match (request.method.as_str(), path.as_slice()) {
        ("GET", ["version"]) => Answer::data(json!({ "version": "8.4.1", "release": "8.4" })),
        ("GET", ["cluster", "nextid"]) => next_id(world, request, wrong),
        ("GET", ["cluster", "resources"]) => resources(world),
        (_, ["nodes", node, ..]) if *node != NODE => {
            Answer::refused(500, &format!("hostname lookup '{node}' failed - failed to get address info"))
        }
        ("GET", ["nodes", _, "tasks"]) => tasks(world, request),
        ("GET", ["nodes", _, "tasks", upid, what]) => task(world, upid, what),
        ("GET", ["nodes", _, "storage", storage, "status"]) => storage_status(storage),
        ("GET", ["nodes", _, "storage", storage, "content"]) => content(world, request, storage),
        ("POST", ["nodes", _, "storage", storage, "upload"]) => upload(world, request, storage, wrong),
        ("DELETE", ["nodes", _, "storage", _, "content", volume]) => match world.volumes.remove(*volume) {
            Some(_) => Answer::data(world.task("imgdel", 0, Effect::None, wrong)),
            None => Answer::refused(500, &format!("volume '{volume}' does not exist")),
        },
        ("GET", ["nodes", _, "qemu"]) => list(world, Kind::Qemu),
        ("GET", ["nodes", _, "lxc"]) => list(world, Kind::Lxc),
        ("POST", ["nodes", _, "qemu"]) => import(world, request, wrong),
        ("POST", ["nodes", _, "lxc"]) => container(world, request, wrong),
        (method, ["nodes", _, kind @ ("qemu" | "lxc"), vmid, rest @ ..]) => {
            let kind = if *kind == "qemu" { Kind::Qemu } else { Kind::Lxc };
            let Ok(vmid) = vmid.parse::<u32>() else {
                return Answer::bad_field("vmid", "type check ('integer') failed");
            };
            if world.guests.get(&vmid).is_none_or(|guest| guest.kind != kind) {
                return Answer::no_config(kind, vmid);
            }
            guest(world, method, kind, vmid, rest, request, wrong)
        }
        (method, _) => {
            Answer::refused(501, &format!("Method '{method} /{}' not implemented", path.join("/")))
        }
    }
}

fn next_id(world: &mut World, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let found = match request.number("vmid") {
        Some(vmid) if world.guests.contains_key(&vmid) => {
            return Answer::bad_field("vmid", &format!("VM {vmid} already exists"));
        }
        Some(vmid) => vmid,
        None => (100..).find(|vmid| !world.guests.contains_key(vmid)).unwrap_or_default(),
    };
    if wrong == Some(&Wrong::Race) {
        world.plant(found, "faster");
    }
    Answer::data(found.to_string())
}

fn resources(world: &World) -> Answer {
    let entries = world.guests.iter().map(|(vmid, guest)| {
        let mut entry = json!({
            "id": format!("{}/{vmid}", guest.kind.word()), "vmid": vmid, "node": NODE,
            "type": guest.kind.word(), "template": u8::from(guest.is_template), "status": "unknown",
        });
        if let Some(tags) = guest.config.get("tags") {
            entry["tags"] = json!(tags);
        }
        if guest.is_known() {
            entry["name"] = json!(guest.name());
            entry["status"] = json!(status(guest));
        }
        entry
    });
    Answer::data(entries.collect::<Vec<_>>())
}

fn status(guest: &Guest) -> &'static str {
    if guest.runs_since.is_some() { "running" } else { "stopped" }
}

fn list(world: &World, kind: Kind) -> Answer {
    let guests = world.guests.iter().filter(|(_, guest)| guest.kind == kind);
    let entries = guests.map(|(vmid, guest)| {
        // Containers have had their numbers as texts.
        let vmid = if kind == Kind::Lxc { json!(vmid.to_string()) } else { json!(vmid) };
        let mut entry = json!({ "vmid": vmid, "name": guest.name(), "status": status(guest) });
        for key in ["tags", "lock"] {
            if let Some(value) = guest.config.get(key) {
                entry[key] = json!(value);
            }
        }
        if guest.is_template {
            entry["template"] = json!(1);
        }
        entry
    });
    Answer::data(entries.collect::<Vec<_>>())
}

fn tasks(world: &World, request: &Request) -> Answer {
    let since = request.field("since").and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
    let vmid = request.field("vmid").unwrap_or_default();
    let fitting = world.tasks.iter().filter(|(_, task)| {
        task.ended.is_some() && task.started >= since && (vmid.is_empty() || task.vmid == vmid)
    });
    let entries = fitting.map(|(upid, task)| {
        json!({
            "upid": upid, "type": task.kind, "id": task.vmid, "user": "root@pam", "tokenid": "stead",
            "starttime": task.started, "endtime": task.ended, "status": task.exit, "node": NODE,
        })
    });
    Answer::data(entries.collect::<Vec<_>>())
}

fn task(world: &World, upid: &str, what: &str) -> Answer {
    let Some(task) = world.tasks.get(upid) else {
        return Answer::refused(500, &format!("no such task '{upid}'"));
    };
    match what {
        "status" => {
            let mut status = json!({ "upid": upid, "type": task.kind, "id": task.vmid, "status": "running" });
            if task.ended.is_some() {
                (status["status"], status["exitstatus"]) = (json!("stopped"), json!(task.exit));
            }
            Answer::data(status)
        }
        "log" => {
            let lines =
                task.log.iter().enumerate().map(|(number, line)| json!({ "n": number + 1, "t": line }));
            Answer::data(lines.collect::<Vec<_>>())
        }
        _ => Answer::refused(501, "not implemented"),
    }
}

fn storage_status(storage: &str) -> Answer {
    match STORAGES.iter().find(|(name, _)| *name == storage) {
        Some((_, content)) => {
            Answer::data(json!({ "active": 1, "enabled": 1, "content": content.join(",") }))
        }
        None => Answer::refused(500, &format!("storage '{storage}' does not exist")),
    }
}

fn content(world: &World, request: &Request, storage: &str) -> Answer {
    if !STORAGES.iter().any(|(name, _)| *name == storage) {
        return Answer::refused(500, &format!("storage '{storage}' does not exist"));
    }
    let folder = format!("{storage}:{}/", request.field("content").unwrap_or_default());
    let volumes = world.volumes.iter().filter(|(volume, _)| volume.starts_with(&folder));
    let entries = volumes.map(|(volume, bytes)| json!({ "volid": volume, "size": bytes.len() }));
    Answer::data(entries.collect::<Vec<_>>())
}

fn upload(world: &mut World, request: &Request, storage: &str, wrong: Option<&Wrong>) -> Answer {
    if request.field("content") != Some("iso") {
        return Answer::bad_field("content", "property is missing and it is not optional");
    }
    let Some((name, bytes)) = &request.file else {
        return Answer::bad_field("filename", "property is missing and it is not optional");
    };
    if !name.ends_with(".iso") {
        return Answer::bad_field("filename", "wrong file extension");
    }
    world.volumes.insert(format!("{storage}:iso/{name}"), bytes.clone());
    Answer::data(world.task("imgcopy", 0, Effect::None, wrong))
}

/// Returns why a configuration cannot hold these fields.
fn check(world: &World, kind: Kind, fields: &[(String, String)]) -> Result<(), Answer> {
    const QEMU: &[&str] = &[
        "vmid",
        "name",
        "description",
        "tags",
        "cores",
        "memory",
        "agent",
        "ciuser",
        "sshkeys",
        "delete",
        "boot",
        "ostype",
        "scsihw",
        "net",
        "ipconfig",
        "ide",
        "scsi",
        "serial",
    ];
    const LXC: &[&str] = &[
        "vmid",
        "hostname",
        "description",
        "tags",
        "cores",
        "memory",
        "ostemplate",
        "rootfs",
        "unprivileged",
        "net",
        "ssh-public-keys",
        "password",
        "nameserver",
        "delete",
    ];
    let known = match kind {
        Kind::Qemu => QEMU,
        Kind::Lxc => LXC,
    };
    for (name, value) in fields {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        if !known.contains(&stem) {
            let why = "property is not defined in schema and the schema does not allow additional properties";
            return Err(Answer::bad_field(name, why));
        }
        let is_number = value.parse::<u64>().is_ok_and(|number| number > 0);
        if matches!(stem, "cores" | "memory") && !is_number {
            return Err(Answer::bad_field(name, "type check ('integer') failed"));
        }
        if stem == "sshkeys" && (value.contains([' ', '+']) || decode(value) == *value) {
            return Err(Answer::bad_field(name, "invalid format - invalid urlencoded string"));
        }
        if stem == "description" && value.len() > 8192 {
            return Err(Answer::bad_field(name, "value may only be 8192 characters long"));
        }
        if matches!(stem, "name" | "hostname")
            && !value.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        {
            return Err(Answer::bad_field(
                name,
                "invalid format - value does not look like a valid DNS name",
            ));
        }
        let volume = value.split(',').next().unwrap_or_default();
        if stem == "ide" && value.contains("media=cdrom") && !world.volumes.contains_key(volume) {
            return Err(Answer::refused(500, &format!("volume '{volume}' does not exist")));
        }
    }
    Ok(())
}

/// Writes fields into a configuration.
fn write(guest: &mut Guest, fields: &[(String, String)]) {
    for (name, value) in fields {
        match name.as_str() {
            "vmid" | "ostemplate" | "ssh-public-keys" | "password" => {}
            "delete" => value.split(',').for_each(|key| drop(guest.config.remove(key))),
            // Notes end with a line's end, whether it was given or not.
            "description" => {
                drop(guest.config.insert(name.clone(), format!("{}\n", value.trim_end_matches('\n'))))
            }
            _ => drop(guest.config.insert(name.clone(), value.clone())),
        }
    }
}

/// Returns a number for a new machine, if it is free.
fn new_number(world: &World, request: &Request, field: &str, kind: Kind) -> Result<u32, Answer> {
    let Some(vmid) = request.number(field) else {
        return Err(Answer::bad_field(field, "property is missing and it is not optional"));
    };
    match world.guests.contains_key(&vmid) {
        true => {
            let noun = kind.noun();
            let words =
                format!("unable to create {noun} {vmid} - {noun} {vmid} already exists on node '{NODE}'");
            Err(Answer::refused(500, &words))
        }
        false => Ok(vmid),
    }
}

fn import(world: &mut World, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let vmid = match new_number(world, request, "vmid", Kind::Qemu) {
        Ok(vmid) => vmid,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = check(world, Kind::Qemu, &request.fields) {
        return refusal;
    }
    let disk = request.field("scsi0").unwrap_or_default();
    let Some((storage, volume)) = disk.split_once(":0,import-from=") else {
        return Answer::bad_field("scsi0", "invalid format - unable to parse volume ID");
    };
    if !world.volumes.contains_key(volume) {
        return Answer::refused(500, &format!("volume '{volume}' does not exist"));
    }
    let mut guest = Guest::new(Kind::Qemu, &[("lock", "create")]);
    write(&mut guest, &request.fields);
    guest.config.insert("scsi0".to_owned(), format!("{storage}:vm-{vmid}-disk-0,size=2G"));
    world.guests.insert(vmid, guest);
    Answer::data(world.task("qmcreate", vmid, Effect::Unlock(vmid), wrong))
}

fn container(world: &mut World, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let vmid = match new_number(world, request, "vmid", Kind::Lxc) {
        Ok(vmid) => vmid,
        Err(refusal) => return refusal,
    };
    if let Err(refusal) = check(world, Kind::Lxc, &request.fields) {
        return refusal;
    }
    let template = request.field("ostemplate").unwrap_or_default();
    if !world.volumes.contains_key(template) {
        return Answer::refused(500, &format!("volume '{template}' does not exist"));
    }
    let mut guest = Guest::new(Kind::Lxc, &[("lock", "create")]);
    write(&mut guest, &request.fields);
    world.guests.insert(vmid, guest);
    Answer::data(world.task("vzcreate", vmid, Effect::Unlock(vmid), wrong))
}

fn clone(world: &mut World, from: u32, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let vmid = match new_number(world, request, "newid", Kind::Qemu) {
        Ok(vmid) => vmid,
        Err(refusal) => return refusal,
    };
    const KNOWN: &[&str] = &["newid", "name", "description", "full", "storage", "target"];
    if let Some((name, _)) = request.fields.iter().find(|(name, _)| !KNOWN.contains(&name.as_str())) {
        let why = "property is not defined in schema and the schema does not allow additional properties";
        return Answer::bad_field(name, why);
    }
    let Some(template) = world.guests.get(&from) else { return Answer::no_config(Kind::Qemu, from) };
    // A copy of its own has to be asked for: a template is otherwise what the disk lies on.
    if request.field("full") != Some("1") {
        return Answer::refused(500, "parameter 'storage' not allowed for linked clones");
    }
    let mut copy = Guest::new(Kind::Qemu, &[]);
    copy.config.clone_from(&template.config);
    copy.config.remove("template");
    copy.config.insert("lock".to_owned(), "clone".to_owned());
    copy.config.insert("scsi0".to_owned(), format!("fast:vm-{vmid}-disk-0,size=2G"));
    if from == DOOMED {
        copy.config.insert("args".to_owned(), "-device doomed".to_owned());
    }
    let told = request.fields.iter().filter(|(name, _)| matches!(name.as_str(), "name" | "description"));
    write(&mut copy, &told.cloned().collect::<Vec<_>>());
    world.guests.insert(vmid, copy);
    Answer::data(world.task("qmclone", vmid, Effect::Unlock(vmid), wrong))
}

/// Refuses to change a guest that somebody else works on.
fn free(world: &World, kind: Kind, vmid: u32) -> Result<(), Answer> {
    if let Some(lock) = world.guests.get(&vmid).and_then(|guest| guest.config.get("lock")) {
        return Err(Answer::refused(500, &format!("{} is locked ({lock})", kind.noun())));
    }
    if world.is_held(vmid) {
        let words = format!("can't lock file '/var/lock/qemu-server/lock-{vmid}.conf' - got timeout");
        return Err(Answer::refused(500, &words));
    }
    Ok(())
}

fn guest(
    world: &mut World,
    method: &str,
    kind: Kind,
    vmid: u32,
    rest: &[&str],
    request: &Request,
    wrong: Option<&Wrong>,
) -> Answer {
    let is_running = world.is_running(vmid);
    let changes = method != "GET" && !matches!(rest, ["clone"]);
    if changes && let Err(refusal) = free(world, kind, vmid) {
        return refusal;
    }
    let lxc = kind == Kind::Lxc;
    match (method, rest) {
        ("GET", ["config"]) => Answer::data(shown(world, vmid)),
        ("PUT", ["config"]) => {
            if let Err(refusal) = check(world, kind, &request.fields) {
                return refusal;
            }
            if let Some(guest) = world.guests.get_mut(&vmid) {
                write(guest, &request.fields);
            }
            Answer::data(Value::Null)
        }
        ("PUT", ["resize"]) => resize(world, vmid, request, wrong),
        ("POST", ["clone"]) if !lxc => clone(world, vmid, request, wrong),
        ("GET", ["status", "current"]) => {
            let status = if is_running { "running" } else { "stopped" };
            Answer::data(json!({ "vmid": vmid, "status": status, "qmpstatus": status }))
        }
        ("POST", ["status", "start"]) if is_running => {
            let upid = world.task(if lxc { "vzstart" } else { "qmstart" }, vmid, Effect::None, None);
            if let Some(task) = world.tasks.get_mut(&upid) {
                task.exit = format!("{} {vmid} already running", kind.noun());
            }
            Answer::data(upid)
        }
        ("POST", ["status", "start"]) => Answer::data(world.task(
            if lxc { "vzstart" } else { "qmstart" },
            vmid,
            Effect::Start(vmid),
            wrong,
        )),
        ("POST", ["status", "stop"]) => {
            Answer::data(world.task(if lxc { "vzstop" } else { "qmstop" }, vmid, Effect::Stop(vmid), wrong))
        }
        ("POST", ["status", "shutdown"]) if !is_running => {
            Answer::refused(500, &format!("{} {vmid} not running", kind.noun()))
        }
        ("POST", ["status", "shutdown"]) => {
            let timeout = request.number("timeout").unwrap_or(60);
            let kind = if lxc { "vzshutdown" } else { "qmshutdown" };
            Answer::data(world.shutdown(kind, vmid, timeout.into(), wrong))
        }
        ("DELETE", []) if is_running => {
            Answer::refused(500, &format!("{} {vmid} is running - destroy failed", kind.noun()))
        }
        ("DELETE", []) => {
            // What goes along only if that is asked for.
            for (field, stays) in [
                ("purge", format!("a backup job that names {vmid}")),
                ("destroy-unreferenced-disks", format!("fast:vm-{vmid}-disk-7")),
            ] {
                if request.field(field) != Some("1") {
                    world.volumes.insert(stays, Vec::new());
                }
            }
            let task = if lxc { "vzdestroy" } else { "qmdestroy" };
            Answer::data(world.task(task, vmid, Effect::Remove(vmid), wrong))
        }
        ("GET", ["agent", "network-get-interfaces"]) if !lxc => agent(world, vmid),
        ("GET", ["interfaces"]) if lxc => interfaces(world, vmid),
        (method, _) => Answer::refused(501, &format!("Method '{method}' not implemented")),
    }
}

fn shown(world: &World, vmid: u32) -> Value {
    let config = world.guests.get(&vmid).map(|guest| guest.config.clone()).unwrap_or_default();
    let mut shown: Map<String, Value> = config.into_iter().map(|(key, value)| (key, json!(value))).collect();
    if shown.contains_key("template") {
        shown.insert("template".to_owned(), json!(1));
    }
    shown.insert("digest".to_owned(), json!("0".repeat(40)));
    Value::Object(shown)
}

fn resize(world: &mut World, vmid: u32, request: &Request, wrong: Option<&Wrong>) -> Answer {
    let disk = request.field("disk").unwrap_or_default().to_owned();
    let size = request.field("size").unwrap_or_default().to_owned();
    let gigabytes = |text: &str| text.trim_end_matches('G').parse::<u64>().ok();
    let Some(guest) = world.guests.get_mut(&vmid) else { return Answer::no_config(Kind::Qemu, vmid) };
    let Some(drive) = guest.config.get_mut(&disk) else {
        return Answer::refused(500, &format!("disk '{disk}' does not exist"));
    };
    let Some((volume, now)) = drive.split_once(",size=") else {
        return Answer::refused(500, "unable to read the size of the disk");
    };
    match (gigabytes(now), gigabytes(&size)) {
        (Some(now), Some(wanted)) if wanted >= now => {
            *drive = format!("{volume},size={size}");
            Answer::data(world.task("resize", vmid, Effect::None, wrong))
        }
        (Some(_), Some(_)) => Answer::refused(500, "shrinking disks is not supported"),
        (_, _) => Answer::bad_field("size", "value does not match the regex pattern"),
    }
}

/// Whether a guest is up so far that it tells its address.
fn tells(world: &World, vmid: u32) -> Option<(String, String)> {
    let guest = world.guests.get(&vmid)?;
    guest.runs_since.filter(|since| since.elapsed() >= world.agent_takes)?;
    let mac = guest.config.get("net0")?.split(',').find_map(|part| {
        part.strip_prefix("virtio=").or_else(|| part.strip_prefix("hwaddr=")).map(str::to_ascii_lowercase)
    });
    Some((guest.address.clone()?, mac.unwrap_or_default()))
}

fn agent(world: &World, vmid: u32) -> Answer {
    let has_agent = world.config(vmid, "agent").is_some_and(|agent| agent.starts_with('1'));
    if !has_agent {
        return Answer::refused(500, "No QEMU guest agent configured");
    }
    if !world.is_running(vmid) {
        return Answer::refused(500, &format!("VM {vmid} is not running"));
    }
    let Some((address, mac)) = tells(world, vmid) else {
        return Answer::refused(500, "QEMU guest agent is not running");
    };
    let address_of =
        |text: &str, prefix: u8| json!({ "ip-address": text, "ip-address-type": "ipv4", "prefix": prefix });
    Answer::data(json!({ "result": [
        { "name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [address_of("127.0.0.1", 8)] },
        { "name": "docker0", "hardware-address": "02:42:00:00:00:01", "ip-addresses": [address_of("172.17.0.1", 16)] },
        { "name": "eth0", "hardware-address": mac, "ip-addresses": [
            { "ip-address": "fe80::1", "ip-address-type": "ipv6", "prefix": 64 }, address_of(&address, 24),
        ] },
    ] }))
}

fn interfaces(world: &World, vmid: u32) -> Answer {
    let mut cards = vec![json!({ "name": "lo", "hwaddr": "00:00:00:00:00:00", "inet": "127.0.0.1/8" })];
    if let Some((address, mac)) = tells(world, vmid) {
        cards.push(json!({ "name": "eth0", "hwaddr": mac, "inet": format!("{address}/24") }));
    }
    Answer::data(cards)
}
