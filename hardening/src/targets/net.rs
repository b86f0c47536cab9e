//! What comes over a network: frames, requests, Cap'n Proto, hooks; and the files of OpenSSH.

use serde_json::Value;
use stead_drivers::transport::{ConfigText, KnownHosts, Outside, Query, SshConfig};
use stead_fleet::fuzzing as fleet;
use stead_model::executor::{Frame, FrameBuffer, FrameKind, Reply, Request};
use stead_model::fleet::webhook;
use stead_model::node::wire::{ErrorBody, JobRequest, NodeReport, SignalRequest};
use stead_model::plan::PlanSubmission;
use stead_server::fuzzing as server;

use super::{Target, chosen, text};

pub(super) const FRAMES: Target = Target {
    name: "frames",
    about: "frames of the executor, in pieces",
    run: frames,
    words: &["\u{0}\u{0}\u{0}\u{5}", "\u{0}\u{0}\u{0}\u{7}\u{1}", "{\"m\":\"beat\"}", "\u{1}\u{0}\u{0}\u{0}"],
};

pub(super) const MESSAGES: Target = Target {
    name: "messages",
    about: "messages of the executor, both ways",
    run: messages,
    words: &[
        "{\"m\":\"hello\"",
        "{\"m\":\"op\"",
        "{\"m\":\"exec\"",
        "{\"m\":\"put\"",
        "{\"m\":\"result\"",
        "{\"m\":\"role\"",
        "{\"m\":\"site\"",
        "\"protocol\":1",
        "\"operation\":\"file.present\"",
        "\"params\":{",
        "\"secrets\":[",
        "\"argv\":[",
        "\"id\":1",
        "\"path\":\"/x\"",
    ],
};

pub(super) const ROUTE: Target = Target {
    name: "route",
    about: "the path and query of a request to a server",
    run: route,
    words: &[
        "/health",
        "/specs",
        "/spec/",
        "/v1/nodes/",
        "/next",
        "?wait=5",
        "&after=s3",
        "/reports",
        "/v1/jobs/",
        "/v1/plans/",
        "/events",
        "/v1/hooks/",
        "/ui/data/",
        "/v1/artifacts/sha256/",
        ".git/",
        "%2e",
        "%2f",
        "..",
        "%00",
        "/input",
        "/v1/server/reload",
    ],
};

pub(super) const PAGE: Target = Target {
    name: "page",
    about: "what the page asks for",
    run: page,
    words: &[
        "about",
        "runs/",
        "/events",
        "?after=3",
        "/log",
        "file=",
        "&from=",
        "/verify",
        "diff?from=",
        "&to=",
        "%2e%2e",
        "%2f",
    ],
};

pub(super) const WIRE: Target = Target {
    name: "wire",
    about: "Cap'n Proto messages of a fleet",
    run: wire,
    words: &["\u{0}\u{0}\u{0}\u{0}", "\u{1}\u{0}\u{0}\u{0}", "web", "w1"],
};

pub(super) const WIRE_BODIES: Target = Target {
    name: "wire-bodies",
    about: "bodies of requests to a server, and its answers",
    run: wire_bodies,
    words: &[
        "{\"kind\":\"converge\"",
        "\"payload\":{",
        "\"argv\":[\"true\"]",
        "\"node\":\"edge\"",
        "\"status\":\"ok\"",
        "\"plan\":{",
        "\"plan_hash\":\"",
        "\"idempotency_key\":\"k\"",
        "\"error\":{\"code\":\"E100\"",
        "\"input\":\"",
        "\"timeout\":",
    ],
};

pub(super) const HOOK: Target = Target {
    name: "hook",
    about: "hooks: the header in the first line, the body behind it",
    run: hook,
    words: &[
        "sha256=",
        "d63fd8813bffaa25c0628456e58cf73409501acf93c857de82029409be3ea833",
        "{\"ref\":\"refs/heads/main\"}",
    ],
};

pub(super) const SSH_CONFIG: Target = Target {
    name: "ssh-config",
    about: "ssh_config of a user",
    run: ssh_config,
    words: &[
        "Host ",
        "Match ",
        "all",
        "canonical",
        "final",
        "exec \"",
        "host ",
        "originalhost ",
        "user ",
        "localuser ",
        "HostName ",
        "%h",
        "%%",
        "Port ",
        "User ",
        "ProxyJump ",
        "ProxyCommand ",
        "IdentityFile ",
        "Include ",
        "!",
        "*",
        "?",
        "\"",
        "=",
        "#",
    ],
};

pub(super) const KNOWN_HOSTS: Target = Target {
    name: "known-hosts",
    about: "known_hosts",
    run: known_hosts,
    words: &[
        "@cert-authority ",
        "@revoked ",
        "|1|",
        "[h]:22 ",
        "ssh-ed25519 ",
        "AAAAC3NzaC1lZDI1NTE5AAAA",
        "*",
        "!h",
        ",",
    ],
};

fn frames(bytes: &[u8]) {
    let Some((size, bytes)) = chosen(bytes) else { return };
    let mut buffer = FrameBuffer::default();
    let (mut read, mut taken) = (Vec::new(), 0);
    let mut failed = None;
    'pieces: for piece in bytes.chunks(usize::from(size) + 1) {
        buffer.push(piece);
        loop {
            match buffer.next_frame() {
                Ok(Some(frame)) => {
                    let mut written = Vec::new();
                    Frame::write(&mut written, frame.kind, frame.id, &frame.body).expect("it fitted before");
                    assert_eq!(written, bytes[taken..taken + written.len()], "a frame does not survive");
                    taken += written.len();
                    read.push(frame);
                }
                Ok(None) => break,
                Err(why) => {
                    failed = Some(why);
                    break 'pieces;
                }
            }
        }
    }
    // In one piece it is the same.
    let mut whole = FrameBuffer::default();
    whole.push(bytes);
    for frame in read {
        assert_eq!(whole.next_frame(), Ok(Some(frame.clone())));
        if frame.kind == FrameKind::Json {
            messages(&frame.body);
        }
    }
    assert_eq!(whole.next_frame().err(), failed);
}

fn messages(bytes: &[u8]) {
    if let Ok(request) = Request::read(bytes) {
        let written = serde_json::to_vec(&request).expect("a message is always JSON");
        assert_eq!(Request::read(&written).as_ref(), Ok(&request));
        drop(format!("{request:?}"));
    }
    if let Ok(reply) = Reply::read(bytes) {
        let written = serde_json::to_vec(&reply).expect("a message is always JSON");
        let again = Reply::read(&written).expect("what was written is read");
        assert_eq!(serde_json::to_vec(&again).ok(), Some(written));
    }
}

fn route(bytes: &[u8]) {
    if let Some(text) = text(bytes) {
        // What becomes the name of a file is one name.
        let names = server::route(text);
        let is_one = |name: &String| {
            !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
        };
        assert!(names.iter().all(is_one), "{text}: {names:?}");
    }
}

fn page(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let Some(asked) = stead_web::Asked::parse(path, query) else { return };
    use stead_web::Asked;
    let names: Vec<&String> = match &asked {
        Asked::Run(run) | Asked::Verify(run) | Asked::Events { run, .. } | Asked::Log { run, .. } => {
            vec![run]
        }
        Asked::Diff { from, to } => vec![from, to],
        Asked::About | Asked::Runs | Asked::Nodes | Asked::Jobs | Asked::Fleet => vec![],
    };
    assert!(names.iter().all(|name| !name.contains(['/', '\0']) && !name.starts_with('.')), "{asked:?}");
    drop(asked.behind(Some("7")));
}

fn wire(bytes: &[u8]) {
    assert!(fleet::messages(bytes), "a message does not survive");
}

fn wire_bodies(bytes: &[u8]) {
    if let Ok(job) = JobRequest::parse(bytes) {
        let written = serde_json::to_vec(&job).expect("a body is always JSON");
        assert_eq!(JobRequest::parse(&written), Ok(job));
    }
    if let Ok(signal) = SignalRequest::parse(bytes) {
        let written = serde_json::to_vec(&signal).expect("a body is always JSON");
        assert_eq!(SignalRequest::parse(&written), Ok(signal));
    }
    if let Ok(report) = NodeReport::parse(bytes) {
        let written = serde_json::to_vec(&report).expect("a body is always JSON");
        assert_eq!(NodeReport::parse(&written), Ok(report));
    }
    if let Ok(submission) = PlanSubmission::parse(bytes) {
        assert_eq!(submission.plan.digest(), submission.plan_hash);
    }
    drop(ErrorBody::parse(bytes));
}

fn hook(bytes: &[u8]) {
    let secret = b"s3cret-hook-key";
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (header, body) = (String::from_utf8_lossy(&bytes[..at]), bytes.get(at + 1..).unwrap_or_default());
    let signed = webhook::is_signed(secret, body, &header);
    assert_eq!(server::hook("s3cret-hook-key", &header, body), signed, "two doors, two answers");
    assert!(!webhook::is_signed(b"other", body, &header), "a signature was guessed");
    let payload = server::payload("s3cret-hook-key", body).expect("a short secret");
    let mut open = vec![&payload];
    while let Some(value) = open.pop() {
        let shows = |text: &str| {
            assert!(!text.contains("s3cret-hook-key"), "a trigger gets the hook's secret: {text}")
        };
        match value {
            Value::Object(fields) => {
                fields.keys().for_each(|key| shows(key));
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            Value::String(text) => shows(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn ssh_config(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let file = |path: &str, text: &str| ConfigText {
        path: path.to_owned(),
        base: "/home/u/.ssh".to_owned(),
        text: text.to_owned(),
    };
    let query = Query { host: "web1", user: Some("u"), port: Some(22), local_user: "u", home: "/home/u" };
    let resolved = || {
        // A file that includes itself ends, too.
        let mut include =
            |pattern: &str| if pattern.contains("self") { vec![file("self", text)] } else { Vec::new() };
        let mut exec = |command: &str| command.len().is_multiple_of(2);
        SshConfig::resolve(
            &[file("config", text)],
            &query,
            &mut Outside { include: &mut include, exec: &mut exec },
        )
    };
    match resolved() {
        Ok(config) => assert_eq!(resolved(), Ok(config)),
        Err(why) => assert!(why.line >= 1 && !why.message.is_empty(), "{why:?}"),
    }
}

fn known_hosts(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let mut known = KnownHosts::default();
    known.add("known_hosts", text);
    let names = ["h".to_owned(), "[h]:22".to_owned()];
    drop((known.judge(&names, b"\0\0\0\x0bssh-ed25519"), known.kinds(&names)));
    drop((known.revoked(&names, b""), known.is_authority(&names, b""), known.has_authority(&names)));
}
