//! The server of a site: specs over TLS, waiting agents, and how long it takes to start.
//!
//! The clients are threads of this program, on the same processors as the server: figures are of both together, which
//! is why the rate of specs stands beside that of bytes that are just there, from the same server in the same run.

mod client;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use stead_model::SiteKey;
use stead_model::token::{Audience, Claims, SigningKey, Version, mint};

use crate::Effort;
use crate::sample::{median, memory_of, time};
use crate::site::{SPEC, Site};
use crate::table::{Table, bytes, millis, per_second};
use client::{Client, Trust};

/// Clients that ask at once.
const CLIENTS: usize = 16;
/// The bars of the contract.
const LEAST_SPECS: f64 = 5_300.0;
const LEAST_CONNECTIONS: f64 = 530.0;
const SLOWEST: f64 = 0.020;
const MOST_MEMORY: f64 = 16.0 * 1024.0;
const SLOWEST_SIGNAL: f64 = 0.050;
const SLOWEST_START: f64 = 0.300;
const SLOWEST_STOP: f64 = 1.0;
const SLOWEST_REFUSAL: f64 = 2.0;
const SLOWEST_BESIDE_SLOW: f64 = 0.100;

/// The lines about the server.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    starting(effort, table);
    let site = site();
    let server = Running::start(&site);
    answering(effort, &server, table);
    beside_slow_clients(effort, &server, table);
    waiting(effort, &server, table);
}

/// How many bytes the resolved spec of this site has, with its digest.
const SPEC_BYTES: usize = 672;

/// Returns a site that can be served.
fn site() -> Site {
    let site = Site::new(", public_specs: true, limits: {anonymous_per_second: 0, header_seconds: 60}");
    for name in filling() {
        site.write(&format!("specs/{name}.yaml"), SPEC);
    }
    site
}

/// Returns names of specs that make the list of them as long as a resolved spec.
fn filling() -> Vec<String> {
    let mut left = SPEC_BYTES - "{\"specs\":[\"base\"]}".len();
    let mut names = Vec::new();
    while left > 0 {
        // A name costs three bytes more than it has, so fewer than four cannot be filled.
        let length = match left - 3 {
            whole @ 1..=62 => whole,
            _ if left - 65 < 4 => 58,
            _ => 62,
        };
        names.push(["c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n"][names.len()].repeat(length));
        left -= length + 3;
    }
    names
}

/// A server that runs as long as this lives.
struct Running<'s> {
    site: &'s Site,
    port: u16,
    pid: u32,
    socket: PathBuf,
    trust: Trust,
}

impl<'s> Running<'s> {
    fn start(site: &'s Site) -> Self {
        let output = site.stead(&["server", "start", "--json"]).output().expect("stead can be started");
        assert!(output.status.success(), "the server does not start");
        let facts: stead_model::Value = serde_json(&output.stdout);
        let number = |key: &str| facts[key].as_u64().expect("a number");
        Self {
            site,
            port: u16::try_from(number("port")).expect("a port"),
            pid: u32::try_from(number("pid")).expect("a process"),
            socket: facts["socket"].as_str().expect("a path").into(),
            trust: Trust::new(),
        }
    }

    fn connect(&self) -> Client {
        Client::connect(self.port, &self.trust)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.site.stead(&["server", "stop"]).stdout(Stdio::null()).status().ok();
    }
}

fn serde_json(text: &[u8]) -> stead_model::Value {
    String::from_utf8_lossy(text).parse().expect("a JSON document")
}

/// Returns a token of a node.
fn token(node: &str) -> String {
    let key = SigningKey::from_bytes([0xab; 32]);
    let now = stead_runner::clock::now().as_micros() / 1_000_000;
    let version =
        Version::V2 { exp: now + 86_400, kid: key.kid(), aud: Audience::Node, jti: format!("bench-{node}") };
    let spec = SiteKey::parse("base").ok();
    mint(&key, &Claims { node: node.to_owned(), spec, iat: now, version })
}

fn starting(effort: Effort, table: &mut Table) {
    let (mut starts, mut stops, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    let held = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = held.local_addr().expect("it has a port").port().to_string();
    for _ in 0..effort.samples() {
        let site = site();
        let begun = Instant::now();
        let server = Running::start(&site);
        starts.push(begun.elapsed());
        stops.push(time(|| drop(server)));
        refusals.push(time(|| {
            let refused = site.stead(&["server", "start", "-p", &port]).stdout(Stdio::null()).status();
            assert_eq!(refused.expect("stead can be started").code(), Some(1), "the port is held");
        }));
    }
    for (what, times, limit) in [
        ("server start with a new certificate, until it answers", starts, SLOWEST_START),
        ("server stop, until it is gone", stops, SLOWEST_STOP),
        ("server start at a port that another program holds, until it is refused", refusals, SLOWEST_REFUSAL),
    ] {
        let taken = median(times).as_secs_f64();
        table.at_most(what, millis(taken), taken, millis(limit), limit);
    }
}

/// How many answers per second, and how long the slowest hundredth took.
struct Answered {
    per_second: f64,
    p99: f64,
}

/// Lets clients ask for a while, each with `ask`, which returns how long every answer took.
fn load(length: Duration, ask: impl Fn(Instant) -> Vec<Duration> + Sync) -> Answered {
    let begun = Instant::now();
    let deadline = begun + length;
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| ask(deadline))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client ends")).collect()
    });
    let per_second = times.len() as f64 / begun.elapsed().as_secs_f64();
    times.sort();
    let p99 = times.get(times.len() * 99 / 100).map_or(0.0, Duration::as_secs_f64);
    Answered { per_second, p99 }
}

/// Returns for how long clients ask.
fn load_length(effort: Effort) -> Duration {
    match effort {
        Effort::Quick => Duration::from_secs(1),
        Effort::Full => Duration::from_secs(3),
    }
}

/// Others, while many clients do not get on with what they ask.
fn beside_slow_clients(effort: Effort, server: &Running<'_>, table: &mut Table) {
    const SLOW: usize = 200;
    let slow = (0..SLOW).map(|_| {
        let mut client = server.connect();
        client.send_part();
        client
    });
    let slow: Vec<Client> = slow.collect();
    let token = token("edge");
    let answered =
        load(load_length(effort), |deadline| server.connect().repeat("/spec/edge", &token, deadline));
    drop(slow);
    let what = format!("GET /spec beside {SLOW} clients in the middle of a request, slowest hundredth");
    let (shown, limit) = (millis(answered.p99), millis(SLOWEST_BESIDE_SLOW));
    table.at_most(&what, shown, answered.p99, limit, SLOWEST_BESIDE_SLOW);
}

fn answering(effort: Effort, server: &Running<'_>, table: &mut Table) {
    let length = load_length(effort);
    let kept_alive = |path: &str, token: &str| {
        load(length, |deadline| {
            let mut client = server.connect();
            client.repeat(path, token, deadline)
        })
    };
    let token = token("edge");
    let (mut specs, mut statics) = (Vec::new(), Vec::new());
    for _ in 0..effort.samples() {
        statics.push(kept_alive("/specs", ""));
        specs.push(kept_alive("/spec/edge", &token));
    }
    let middle = |mut answered: Vec<Answered>| {
        answered.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        answered.swap_remove(answered.len() / 2)
    };
    let (specs, statics) = (middle(specs), middle(statics));
    let shown = per_second(specs.per_second, "requests");
    let what = format!("GET /spec, {CLIENTS} kept-alive TLS clients");
    table.at_least(&what, shown.clone(), specs.per_second, per_second(LEAST_SPECS, "requests"), LEAST_SPECS);
    let peer = format!("0.5 × {}", per_second(statics.per_second, "requests"));
    table.at_least(
        "the same, against static bytes of that size",
        shown,
        specs.per_second / statics.per_second,
        peer,
        0.5,
    );
    table.at_most("the same, slowest hundredth", millis(specs.p99), specs.p99, millis(SLOWEST), SLOWEST);
    let fresh = load(length, |deadline| {
        let mut times = Vec::new();
        while Instant::now() < deadline {
            let begun = Instant::now();
            server.connect().ask("/spec/edge", &token);
            times.push(begun.elapsed());
        }
        times
    });
    let shown = per_second(fresh.per_second, "requests");
    let what = "GET /spec, a new TLS connection each";
    table.at_least(
        what,
        shown,
        fresh.per_second,
        per_second(LEAST_CONNECTIONS, "requests"),
        LEAST_CONNECTIONS,
    );
}

fn waiting(effort: Effort, server: &Running<'_>, table: &mut Table) {
    let count: usize = match effort {
        Effort::Quick => 1_000,
        Effort::Full => 10_000,
    };
    if !client::allow_open_files(count + 100) {
        return table.skipped("idle long-polls", "this process may not open enough files");
    }
    let before = memory_of(server.pid, "VmRSS:");
    let mut agents: Vec<Client> = (0..count)
        .map(|number| {
            let node = format!("n{number}");
            let mut client = server.connect();
            client.send("GET", &format!("/v1/nodes/{node}/next?wait=55"), &token(&node));
            client
        })
        .collect();
    // They are there when the last one is counted.
    let connected = || client::ask_socket(&server.socket, "GET", "/v1/server", "")["agents"].as_u64();
    let deadline = Instant::now() + Duration::from_secs(20);
    while connected() < Some(count as u64) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(50));
    }
    let each = memory_of(server.pid, "VmRSS:").saturating_sub(before) as f64 / count as f64;
    table.at_most(
        &format!("memory of {count} idle long-polls over TLS, each"),
        bytes(each),
        each,
        bytes(MOST_MEMORY),
        MOST_MEMORY,
    );
    let mut times: Vec<Duration> = (0..200.min(count))
        .map(|number| {
            let path = format!("/v1/nodes/n{number}/signals");
            let begun = Instant::now();
            client::ask_socket(&server.socket, "POST", &path, "{\"kind\":\"converge\"}");
            agents[number].receive();
            begun.elapsed()
        })
        .collect();
    times.sort();
    let p99 = times[times.len() * 99 / 100].as_secs_f64();
    let what = "signal to an agent among them, slowest hundredth";
    table.at_most(what, millis(p99), p99, millis(SLOWEST_SIGNAL), SLOWEST_SIGNAL);
}
