//! A stand-in for the program `cloud-hypervisor`: a process with its socket, its states, its answers and its ways to
//! fail. Its guest says `up` on the serial port and powers off when the button is pressed, unless it is deaf.
//!
//! A test binary becomes it: [`install`] writes a program that starts the binary again as the test that calls [`run`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Holds the arguments of a process that is to be the stand-in.
const ARGUMENTS: &str = "STEAD_TEST_CLOUD_HYPERVISOR";
/// The first bytes of what the stand-in takes for a kernel.
pub const KERNEL: &[u8] = b"MICRO";
/// A file in the machine's directory: its guest goes deaf, and the file away.
pub const DEAF: &str = "deaf";
/// A file in the machine's directory: its guest writes as many bytes as the file says, and the file goes away.
pub const TALK: &str = "talk";
/// How long the guest takes to power off.
const POWER_OFF: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Longer than anybody waits for an answer.
const TOO_LATE: Duration = Duration::from_secs(11);

/// Writes the program to `directory` and returns its path. `test` is the full name of the test that calls [`run`];
/// `DIRECTORY/faults.json` says what goes wrong: `not_created` (the status of `vm.info` before `vm.create`), `lose`
/// (calls that are done but not answered), `late` (calls that are done and answered too late, each once), `pending` (how often `vm.create` has to wait), `refuse` (statuses by call, each
/// answered once instead of doing it), `delay_ms`.
///
/// # Panics
/// If it cannot be written.
pub fn install(directory: &Path, test: &str) -> PathBuf {
    let program = directory.join("cloud-hypervisor");
    let binary = std::env::current_exe().expect("a test binary");
    let script = format!(
        "#!/bin/sh\n{ARGUMENTS}=\"$*\" STEAD_TEST_FAULTS='{}' exec '{}' '{test}' --exact --nocapture --quiet\n",
        directory.join("faults.json").display(),
        binary.display(),
    );
    fs::write(&program, script).expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it can be started");
    program
}

/// Is the stand-in, if this process was started to be one; returns when its machine has ended.
///
/// # Panics
/// As the program ends with an error: if its socket is there already.
pub fn run() {
    let Some(line) = std::env::var_os(ARGUMENTS) else { return };
    let line = line.to_string_lossy().into_owned();
    let words: Vec<&str> = line.split(' ').collect();
    let after = |name: &str| {
        let place = words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("no {name}"));
        words.get(place + 1).unwrap_or_else(|| panic!("nothing after {name}"))
    };
    let events = after("--event-monitor").strip_prefix("path=").expect("a file of events");
    let listener = UnixListener::bind(after("--api-socket")).expect("a socket of its own");
    listener.set_nonblocking(true).expect("a socket");
    let mut program = Program {
        events: File::create(events).expect("a file"),
        faults: PathBuf::from(std::env::var_os("STEAD_TEST_FAULTS").expect("where faults are")),
        calls: BTreeMap::new(),
        machine: None,
        ends_at: None,
        ended: false,
    };
    program.event("vmm", "starting");
    program.serve(&listener);
}

struct Program {
    events: File,
    faults: PathBuf,
    calls: BTreeMap<String, u64>,
    machine: Option<Virtual>,
    ends_at: Option<Instant>,
    ended: bool,
}

/// What `vm.create` made.
struct Virtual {
    config: Value,
    state: &'static str,
    serial: Option<File>,
    /// Locked as long as they are open.
    disks: Vec<File>,
    is_deaf: bool,
}

type Answer = (u16, Value);

fn messages(status: u16, texts: &[&str]) -> Answer {
    (status, json!(texts))
}

const DONE: fn() -> Answer = || (204, Value::Null);

impl Program {
    fn serve(&mut self, listener: &UnixListener) {
        while !self.ended {
            if self.ends_at.is_some_and(|at| Instant::now() >= at) {
                self.say("powering off\r\n");
                self.event("vm", "shutdown");
                return;
            }
            self.go_deaf();
            self.talk();
            match listener.accept() {
                // A client that goes away is its own business.
                Ok((stream, _)) => self.answer(stream).unwrap_or(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK_AGAIN),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn go_deaf(&mut self) {
        if self.machine.is_some() && fs::remove_file(DEAF).is_ok() {
            self.say("deaf\r\n");
            if let Some(machine) = &mut self.machine {
                machine.is_deaf = true;
            }
        }
    }

    fn talk(&mut self) {
        let size = fs::read_to_string(TALK).ok().and_then(|text| text.parse().ok());
        if let Some(size) = size.filter(|_| self.machine.is_some()) {
            fs::remove_file(TALK).expect("it was there");
            self.say(&"x".repeat(size));
            self.say("\r\nall is said\r\n");
        }
    }

    fn say(&mut self, text: &str) {
        if let Some(serial) = self.machine.as_mut().and_then(|machine| machine.serial.as_mut()) {
            serial.write_all(text.as_bytes()).expect("a console");
        }
    }

    fn event(&mut self, source: &str, event: &str) {
        let event = json!({ "timestamp": { "secs": 0, "nanos": 0 }, "source": source, "event": event, "properties": null });
        let text = serde_json::to_string_pretty(&event).expect("JSON");
        write!(self.events, "{text}\n\n").expect("a file of events");
    }

    fn fault(&self, name: &str) -> Value {
        let text = fs::read(&self.faults).unwrap_or_default();
        serde_json::from_slice::<Value>(&text).map(|faults| faults[name].clone()).unwrap_or_default()
    }

    /// Returns the status that a call is refused with, once for each that `refuse` names.
    fn refusal(&self, call: &str) -> Option<u16> {
        let mut faults: Value = serde_json::from_slice(&fs::read(&self.faults).ok()?).ok()?;
        let statuses = faults.get_mut("refuse")?.get_mut(call)?.as_array_mut()?;
        let status = (!statuses.is_empty()).then(|| statuses.remove(0))?;
        fs::write(&self.faults, faults.to_string()).expect("a file of faults");
        u16::try_from(status.as_u64()?).ok()
    }

    /// Whether a call is answered too late, once for each time that `late` names it.
    fn is_late(&self, call: &str) -> bool {
        let mut faults = fs::read(&self.faults)
            .ok()
            .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
            .unwrap_or_default();
        let Some(calls) = faults.get_mut("late").and_then(Value::as_array_mut) else { return false };
        let Some(place) = calls.iter().position(|late| late == call) else { return false };
        calls.remove(place);
        fs::write(&self.faults, faults.to_string()).expect("a file of faults");
        true
    }

    fn answer(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let length = head
            .iter()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let mut words = head.first().map(String::as_str).unwrap_or_default().split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let call = path.strip_prefix("/api/v1/").unwrap_or_default().to_owned();
        std::thread::sleep(Duration::from_millis(self.fault("delay_ms").as_u64().unwrap_or(0)));
        let (status, value) = match self.refusal(&call) {
            Some(status) => messages(status, &["Error from API", "as the test wants it"]),
            None => self.call(method, &call, &body),
        };
        *self.calls.entry(call.clone()).or_default() += 1;
        if self.is_late(&call) {
            std::thread::sleep(TOO_LATE);
        }
        let loses = self.fault("lose").as_array().is_some_and(|calls| calls.contains(&json!(call)));
        // Lost once: whoever asks again is told.
        if loses && self.calls.get(&call) == Some(&1) {
            return Ok(());
        }
        let text = if value.is_null() { String::new() } else { value.to_string() };
        let length =
            if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", text.len()) };
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {status} \r\nServer: Cloud Hypervisor API\r\nConnection: close\r\n{length}\r\n{text}"
        )
    }

    fn call(&mut self, method: &str, call: &str, body: &[u8]) -> Answer {
        match (method, call) {
            ("GET", "vmm.ping") => (
                200,
                json!({ "build_version": "v40.0-stand-in", "version": "40.0.0", "pid": std::process::id(), "features": [] }),
            ),
            ("GET", "vm.info") => match &self.machine {
                Some(machine) => (200, json!({ "config": machine.config, "state": machine.state })),
                None => {
                    let status = self.fault("not_created").as_u64().and_then(|status| status.try_into().ok());
                    messages(
                        status.unwrap_or(404),
                        &["Error from API", "The VM info is not available", "VM is not created"],
                    )
                }
            },
            ("PUT", "vm.create") => self.create(body),
            ("PUT", "vm.boot") => self.boot(),
            ("PUT", "vm.power-button") => match &self.machine {
                Some(machine) if machine.state == "Running" => {
                    if !machine.is_deaf {
                        self.ends_at.get_or_insert(Instant::now() + POWER_OFF);
                    }
                    DONE()
                }
                Some(_) | None => messages(
                    404,
                    &["Error from API", "The VM could not be sent a power button", "VM is not running"],
                ),
            },
            ("PUT", "vm.shutdown") => match &mut self.machine {
                Some(machine) => {
                    machine.state = "Created";
                    machine.serial = None;
                    machine.disks.clear();
                    self.event("vm", "shutdown");
                    DONE()
                }
                None => {
                    messages(404, &["Error from API", "The VM could not be shutdown", "VM is not created"])
                }
            },
            ("PUT", "vm.delete") => {
                self.machine = None;
                DONE()
            }
            ("PUT", "vmm.shutdown") => {
                self.event("vmm", "shutdown");
                self.ended = true;
                DONE()
            }
            (_, _) => (404, Value::Null),
        }
    }

    fn create(&mut self, body: &[u8]) -> Answer {
        let waits = self.fault("pending").as_u64().unwrap_or(0);
        if self.calls.get("vm.create").copied().unwrap_or(0) < waits {
            return messages(
                429,
                &["Error from API", "The VM could not be created", "another change is pending"],
            );
        }
        if self.machine.is_some() {
            return messages(
                409,
                &["Error from API", "The VM could not be created", "VM is already created"],
            );
        }
        let bad = |why: &str| messages(400, &["Error from API", "The VM could not be created", why]);
        let Ok(config) = serde_json::from_slice::<Value>(body) else { return bad("not JSON") };
        if config["payload"]["kernel"].as_str().or(config["payload"]["firmware"].as_str()).is_none() {
            return bad("the payload has neither kernel nor firmware");
        }
        if config["memory"]["size"].as_u64().is_none_or(|size| size == 0 || size % (1 << 20) != 0) {
            return bad("the memory has no size");
        }
        if config["cpus"]["boot_vcpus"].as_u64() > config["cpus"]["max_vcpus"].as_u64() {
            return bad("more processors at boot than at most");
        }
        for disk in config["disks"].as_array().into_iter().flatten() {
            if !matches!(disk["image_type"].as_str(), Some("Raw" | "Qcow2"))
                || disk["path"].as_str().is_none()
            {
                return bad("a disk without path or type");
            }
        }
        self.machine =
            Some(Virtual { config, state: "Created", serial: None, disks: Vec::new(), is_deaf: false });
        DONE()
    }

    fn boot(&mut self) -> Answer {
        let failed = |why: &str| {
            writeln!(io::stderr(), "Error booting VM: {why}").expect("a log");
            messages(500, &["Error from API", "The VM could not boot", why])
        };
        let Some(machine) = &mut self.machine else {
            return messages(404, &["Error from API", "The VM could not boot", "VM is not created"]);
        };
        if machine.state == "Running" {
            return messages(409, &["Error from API", "The VM could not boot", "VM is already running"]);
        }
        // A boot that fails keeps no disk.
        let mut disks = Vec::new();
        for disk in machine.config["disks"].as_array().into_iter().flatten() {
            let path = disk["path"].as_str().unwrap_or_default();
            let Ok(file) = File::open(path) else { return failed(&format!("no disk {path}")) };
            if disk["image_type"] == "Qcow2" && disk["backing_files"] != true && is_layer(&file) {
                return failed("Backing file support is disabled");
            }
            let is_locked =
                rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err();
            if disk["readonly"] != true && is_locked {
                return failed(&format!(
                    "Error from device manager: failed to acquire lock for disk image {path}"
                ));
            }
            disks.push(file);
        }
        let kernel = machine.config["payload"]["kernel"].as_str().unwrap_or_default();
        if !fs::read(kernel).is_ok_and(|bytes| bytes.starts_with(KERNEL)) {
            return failed(&format!("Cannot load the kernel {kernel}"));
        }
        let serial = machine.config["serial"]["file"].as_str().map(File::create);
        let Some(Ok(serial)) = serial else { return failed("no serial port") };
        (machine.serial, machine.disks) = (Some(serial), disks);
        machine.state = "Running";
        self.say("up\r\n");
        self.event("vm", "booted");
        DONE()
    }
}

/// Whether a disk is a layer over another one.
fn is_layer(disk: &File) -> bool {
    let mut head = [0; 16];
    disk.read_exact_at(&mut head, 0).is_ok() && head.starts_with(b"QFI\xfb") && head[8..] != [0; 8]
}
