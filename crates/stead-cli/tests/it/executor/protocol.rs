//! The protocol as a driver of another make would speak it.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use stead_model::executor::{BANNER, Frame, FrameBuffer, FrameKind};

/// A connection to an executor, killed and reaped when dropped.
pub(super) struct Wire {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    inbox: FrameBuffer,
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Wire {
    pub(super) fn attach(base: &Path, run: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
        command.args(["executor", "--attach", run, "--base"]).arg(base);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let mut stdout = child.stdout.take().unwrap();
        let mut banner = vec![0; BANNER.len()];
        stdout.read_exact(&mut banner).unwrap();
        assert_eq!(banner, BANNER);
        Self { child, stdin, stdout, inbox: FrameBuffer::default() }
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub(super) fn say(&mut self, id: u32, message: &Value) {
        let mut frame = Vec::new();
        Frame::write(&mut frame, FrameKind::Json, id, message.to_string().as_bytes()).unwrap();
        self.raw(&frame);
    }

    /// Returns the next frame; nothing at the end.
    fn hear(&mut self) -> Option<Frame> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.inbox.next_frame().unwrap() {
                return Some(frame);
            }
            match self.stdout.read(&mut buffer).unwrap() {
                0 => return None,
                n => self.inbox.push(&buffer[..n]),
            }
        }
    }

    fn message(&mut self) -> (u32, Value) {
        let frame = self.hear().expect("an answer");
        assert_eq!(frame.kind, FrameKind::Json);
        (frame.id, serde_json::from_slice(&frame.body).unwrap())
    }

    pub(super) fn hello(&mut self, run: &str, protocol: &[u32], fresh: bool) -> Value {
        let hello = json!({"m": "hello", "protocol": protocol, "version": "9.9", "run": run, "lease_ms": 15000,
            "fresh": fresh, "mood": "good"});
        self.say(0, &hello);
        self.message().1
    }
}

pub(super) fn op(operation: &str, params: Value) -> Value {
    let env = json!({"STEAD_TASK": "t", "STEAD_HOST": "h", "STEAD_ATTEMPT": "1"});
    json!({"m": "op", "operation": operation, "params": params, "diff": true, "env": env, "grace_ms": 200})
}

/// Ends the session and waits until its directory has gone.
pub(super) fn end(mut wire: Wire, base: &Path) {
    wire.say(0, &json!({"m": "bye"}));
    while wire.hear().is_some() {}
    assert_eq!(
        std::fs::read_dir(base.join("run"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().is_dir())
            .count(),
        0
    );
}

/// Case 10.
#[test]
fn unknown_messages_and_members_and_protocols_are_answered_as_said() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    let refused = wire.hello("r1", &[99], true);
    let message = refused["message"].as_str().unwrap();
    assert!(refused["m"] == "error" && message.contains("99") && message.contains("[1]"), "{refused}");
    assert!(wire.hear().is_none(), "the connection is over");

    let mut wire = Wire::attach(base.path(), "r1");
    let welcome = wire.hello("r1", &[99, 1], true);
    assert_eq!(
        (&welcome["m"], &welcome["protocol"], &welcome["resumed"]),
        (&json!("hello"), &json!(1), &json!([]))
    );
    assert_eq!(welcome["sha256"].as_str().unwrap().len(), 64);
    wire.say(5, &json!({"m": "dance"}));
    let (id, error) = wire.message();
    assert!(
        id == 5 && error["m"] == "error" && error["message"].as_str().unwrap().contains("dance"),
        "{error}"
    );
    wire.raw(b"\x00\x00\x00\x07\x00\x00\x00\x00\x06{}");
    assert_eq!(wire.message().1["m"], "error");
    wire.say(0, &json!({"m": "beat"}));
    assert_eq!(wire.message(), (0, json!({"m": "beat"})));
    wire.say(7, &op("no.such", json!({})));
    let (_, result) = wire.message();
    assert_eq!((&result["status"], &result["class"]), (&json!("failed"), &json!("invalid")), "{result}");
    end(wire, base.path());
}

/// Case 10: the connection ends, the session and what runs in it do not.
#[test]
fn a_bad_frame_ends_the_connection_and_nothing_else() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    let pid = wire.hello("r1", &[1], true)["pid"].clone();
    wire.say(3, &op("command.shell", json!({"script": "echo begun; sleep 0.5; echo done"})));
    assert_eq!(wire.message().1, json!({"m": "out", "stream": "stdout", "offset": 0}));
    assert_eq!(wire.hear().unwrap().body, b"begun\n");
    for bad in [&b"\x01\x00\x00\x01"[..], b"\x00\x00\x00\x04", b"\x00\x00\x00\x05\x02\x00\x00\x00\x00"] {
        wire.raw(bad);
        let (id, error) = wire.message();
        assert!(id == 0 && error["message"].as_str().unwrap().contains("frame"), "{error}");
        assert!(wire.hear().is_none());
        wire = Wire::attach(base.path(), "r1");
        let welcome = wire.hello("r1", &[1], false);
        assert_eq!((&welcome["pid"], &welcome["resumed"]), (&pid, &json!([3])));
        // It knows nothing of what this driver has heard, so it says it again.
        assert_eq!(wire.message().1, json!({"m": "out", "stream": "stdout", "offset": 0}));
        assert!(wire.hear().unwrap().body.starts_with(b"begun\n"));
    }
    // A frame that is cut by the end of the connection is no frame.
    wire.raw(b"\x00\x00\x00\x20\x00\x00");
    wire.stdin = None;
    while wire.hear().is_some() {}
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], false);
    let result = loop {
        let frame = wire.hear().unwrap();
        if frame.kind == FrameKind::Json {
            let message: Value = serde_json::from_slice(&frame.body).unwrap();
            if message["m"] == "result" {
                break message;
            }
        }
    };
    assert_eq!(result["data"]["stdout"], "begun\ndone\n", "{result}");
    wire.say(0, &json!({"m": "ack", "id": 3}));
    end(wire, base.path());
}

/// Content is asked for only where it differs, and verified.
#[test]
fn content_is_asked_for_by_hash_and_only_if_it_differs() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("f");
    std::fs::write(&path, "same\n").unwrap();
    let same = "7f3a7ec3ec5ae9f2f5c8c1d1a1b9a4f2a9a3b6b1f7e3d1c5b3a2f1e0d9c8b7a6";
    let hash = |bytes: &[u8]| {
        let content = stead_runner::files::Content::read(&mut &*bytes).unwrap();
        content.sha256
    };
    let request = |content: &[u8], sha256: &str| {
        let entry = json!({"path": "", "kind": "file", "mode": 420, "size": content.len(), "sha256": sha256});
        let mut op = op("file.present", json!({"path": path, "source": "s"}));
        op["sources"] = json!({"s": {"Ok": {"entries": [entry]}}});
        op
    };
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    wire.say(1, &request(b"same\n", &hash(b"same\n")));
    let (id, result) = wire.message();
    assert!(id == 1 && result["status"] == "unchanged", "{result}");
    wire.say(2, &request(b"other\n", &hash(b"other\n")));
    let (id, want) = wire.message();
    assert_eq!((id, &want["m"], &want["sha256"]), (2, &json!("want"), &json!(hash(b"other\n"))));
    wire.say(2, &json!({"m": "blob", "sha256": hash(b"other\n"), "size": 6, "offset": 0}));
    let mut frame = Vec::new();
    Frame::write(&mut frame, FrameKind::Bytes, 2, b"other\n").unwrap();
    wire.raw(&frame);
    assert_eq!(wire.message().1["status"], "changed");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "other\n");
    // Bytes that are not what was announced are not taken.
    wire.say(4, &request(b"third\n", same));
    assert_eq!(wire.message().1["m"], "want");
    wire.say(4, &json!({"m": "blob", "sha256": same, "size": 6, "offset": 0}));
    let mut frame = Vec::new();
    Frame::write(&mut frame, FrameKind::Bytes, 4, b"third\n").unwrap();
    wire.raw(&frame);
    let (_, result) = wire.message();
    assert!(
        result["status"] == "failed" && result["error"].as_str().unwrap().contains("SHA-256"),
        "{result}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "other\n");
    end(wire, base.path());
}

/// A driver that knows nothing of what runs there ends it first.
#[test]
fn a_fresh_driver_ends_what_the_last_one_left() {
    let base = tempfile::tempdir().unwrap();
    let marker = base.path().join("pid");
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    let script = format!("echo $$ > {}; exec sleep 600", marker.display());
    wire.say(1, &op("command.shell", json!({"script": script})));
    super::direct::Place::until("the command runs", || {
        std::fs::read_to_string(&marker).is_ok_and(|text| text.ends_with('\n'))
    });
    drop(wire);
    let pid = std::fs::read_to_string(&marker).unwrap();
    assert!(Path::new("/proc").join(pid.trim()).exists());
    let mut wire = Wire::attach(base.path(), "r1");
    let welcome = wire.hello("r1", &[1], true);
    assert_eq!(welcome["resumed"], json!([]));
    let state = std::fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
    end(wire, base.path());
}

impl Wire {
    /// Returns what an id says until its answer: its output, and the messages.
    pub(super) fn until_answer(&mut self, id: u32) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
        let (mut stdout, mut stderr, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Value::Null;
        loop {
            let frame = self.hear().expect("an answer");
            assert_eq!(frame.id, id);
            if frame.kind == FrameKind::Bytes {
                let to = if next["stream"] == "stdout" { &mut stdout } else { &mut stderr };
                assert_eq!(next["offset"].as_u64(), Some(to.len() as u64));
                to.extend_from_slice(&frame.body);
                continue;
            }
            next = serde_json::from_slice(&frame.body).unwrap();
            match next["m"].as_str().unwrap() {
                "out" => {}
                "started" => messages.push(next.clone()),
                _ => {
                    messages.push(next);
                    return (stdout, stderr, messages);
                }
            }
        }
    }

    fn give(&mut self, id: u32, bytes: &[u8]) {
        self.say(id, &json!({"m": "stdin"}));
        let mut frame = Vec::new();
        Frame::write(&mut frame, FrameKind::Bytes, id, bytes).unwrap();
        self.raw(&frame);
    }
}

/// Input that a program does not read yet is neither cut nor held in memory, however much there is.
#[test]
fn input_that_nobody_reads_yet_waits_on_the_disk() {
    let base = tempfile::tempdir().unwrap();
    let go = base.path().join("go");
    let mut wire = Wire::attach(base.path(), "r1");
    let welcome = wire.hello("r1", &[1], true);
    let script = format!("until [ -e {} ]; do sleep 0.05; done; wc -c", go.display());
    wire.say(3, &json!({"m": "exec", "argv": ["sh", "-c", script], "stdin": true}));
    let (piece, pieces) = (vec![b'z'; 256 << 10], 400);
    for _ in 0..pieces {
        wire.give(3, &piece);
    }
    wire.say(3, &json!({"m": "stdin", "end": true}));
    // The beat is answered once everything before it was taken; until then the program has only been started.
    wire.say(0, &json!({"m": "beat"}));
    let heard = std::iter::from_fn(|| wire.hear()).find(|frame| frame.id == 0);
    assert!(heard.is_some());
    let status = std::fs::read_to_string(format!("/proc/{}/status", welcome["pid"])).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kibibytes: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kibibytes < pieces * piece.len() / 1024, "{peak}");
    std::fs::write(&go, "").unwrap();
    let (stdout, _, messages) = wire.until_answer(3);
    assert_eq!(String::from_utf8(stdout).unwrap().trim(), (pieces * piece.len()).to_string());
    let result = messages.last().unwrap();
    assert_eq!((&result["exit_code"], result.get("warnings")), (&json!(0), None), "{result}");
    wire.say(0, &json!({"m": "ack", "id": 3}));
    end(wire, base.path());
}

/// An executor that was told how long an operation may take ends it by itself.
#[test]
fn an_operation_ends_when_its_time_is_up() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    let mut slow = op("command.exec", json!({"command": "sleep", "args": ["600"]}));
    slow["timeout_ms"] = json!(300);
    wire.say(1, &slow);
    let (_, result) = wire.message();
    assert_eq!((&result["status"], &result["class"]), (&json!("failed"), &json!("timeout")), "{result}");
    assert_eq!(result["error"], "timed out after 300ms");
    end(wire, base.path());
}

#[test]
fn programs_get_words_environment_and_input_as_they_are() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    let script = "printf '%s|' \"$0\" \"$@\" \"$ODD\" \"$HOME\"; cat; echo err >&2; exit 5";
    let exec = json!({"m": "exec", "argv": ["sh", "-c", script, "", "a b", "it's", "$(x)", {"b64": "/w=="}],
        "env": {"ODD": "x\ny"}, "cwd": "/", "stdin": true, "clear_env": true});
    wire.say(3, &exec);
    wire.give(3, b"in\0put ");
    wire.give(3, &vec![b'z'; 200_000]);
    wire.say(3, &json!({"m": "stdin", "end": true}));
    let (stdout, stderr, messages) = wire.until_answer(3);
    let mut wanted = b"|a b|it's|$(x)|\xff|x\ny||in\0put ".to_vec();
    wanted.extend_from_slice(&vec![b'z'; 200_000]);
    assert!(stdout == wanted, "{}", String::from_utf8_lossy(&stdout[..60.min(stdout.len())]));
    assert_eq!(stderr, b"err\n");
    assert!(messages[0]["pid"].as_u64().is_some_and(|pid| pid > 1), "{messages:?}");
    let result = &messages[1];
    assert_eq!((&result["m"], &result["exit_code"]), (&json!("result"), &json!(5)), "{result}");
    assert!(result["max_rss_bytes"].as_u64().unwrap() > 0 && result["cpu_ms"].is_u64(), "{result}");
    wire.say(0, &json!({"m": "ack", "id": 3}));

    wire.say(4, &json!({"m": "exec", "argv": ["no-such-program-here"]}));
    let (_, stderr, messages) = wire.until_answer(4);
    assert_eq!(messages[0]["exit_code"], json!(127), "{messages:?}");
    assert!(String::from_utf8_lossy(&stderr).contains("no-such-program-here"));
    wire.say(5, &json!({"m": "exec", "argv": ["sh", "-c", "kill -KILL $$"]}));
    let (_, _, messages) = wire.until_answer(5);
    assert_eq!((&messages[1]["exit_code"], &messages[1]["signal"]), (&Value::Null, &json!(9)));
    wire.say(6, &json!({"m": "exec", "argv": ["sleep", "600"]}));
    assert_eq!(wire.message().1["m"], "started");
    wire.say(6, &json!({"m": "cancel", "signal": "TERM", "grace_ms": 100}));
    let (_, _, messages) = wire.until_answer(6);
    assert_eq!(messages[0]["signal"], json!(15), "{messages:?}");
    // One that does not listen is killed when its grace is over.
    let deaf = "trap '' TERM; echo deaf; while :; do sleep 600 & wait; done";
    wire.say(8, &json!({"m": "exec", "argv": ["sh", "-c", deaf]}));
    while wire.hear().expect("its output").kind != FrameKind::Bytes {}
    wire.say(8, &json!({"m": "cancel", "signal": "TERM", "grace_ms": 100}));
    let (_, _, messages) = wire.until_answer(8);
    assert_eq!(messages[0]["signal"], json!(9), "{messages:?}");
    wire.say(7, &json!({"m": "exec", "argv": ["true"], "tty": true}));
    assert_eq!(wire.message().1["class"], "invalid");
    end(wire, base.path());
}

/// A daemon that a program leaves on purpose is its result.
#[test]
fn what_a_program_leaves_running_stays() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    wire.say(1, &json!({"m": "exec", "argv": ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]}));
    let (stdout, _, messages) = wire.until_answer(1);
    assert_eq!(messages[1]["exit_code"], json!(0), "{messages:?}");
    let pid: i32 = String::from_utf8_lossy(&stdout).trim().parse().unwrap();
    wire.say(0, &json!({"m": "ack", "id": 1}));
    end(wire, base.path());
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it still runs");
}

#[test]
fn files_are_put_got_and_looked_at_by_hash() {
    let base = tempfile::tempdir().unwrap();
    let mut wire = Wire::attach(base.path(), "r1");
    wire.hello("r1", &[1], true);
    let path = base.path().join("deep/down/file");
    let sha256 = stead_model::plan::Digest::of(b"hello").to_string();
    let put = json!({"m": "put", "path": path, "mode": 0o640, "sha256": sha256, "size": 5});
    wire.say(1, &put);
    assert_eq!(wire.message(), (1, json!({"m": "want", "sha256": sha256, "offset": 0})));
    wire.say(1, &json!({"m": "blob", "sha256": sha256, "size": 5, "offset": 0}));
    let mut frame = Vec::new();
    Frame::write(&mut frame, FrameKind::Bytes, 1, b"hello").unwrap();
    wire.raw(&frame);
    assert_eq!(wire.message(), (1, json!({"m": "done", "sha256": sha256, "changed": true})));
    assert_eq!(std::fs::read(&path).unwrap(), b"hello");
    wire.say(2, &put);
    assert_eq!(wire.message().1["changed"], json!(false), "the same again writes nothing");
    wire.say(3, &json!({"m": "stat", "path": path, "hash": true}));
    let (_, stat) = wire.message();
    assert_eq!((&stat["sha256"], &stat["found"]["mode"]), (&json!(sha256), &json!(0o640)), "{stat}");
    wire.say(4, &json!({"m": "get", "path": path}));
    assert_eq!(wire.message(), (4, json!({"m": "keep", "size": 5, "sha256": sha256})));
    assert_eq!(wire.message().1["stream"], "file");
    assert_eq!(wire.hear().unwrap().body, b"hello");
    wire.say(4, &json!({"m": "done", "sha256": sha256, "path": "/there"}));
    assert_eq!(wire.message(), (4, json!({"m": "done", "sha256": sha256, "changed": true})));
    wire.say(5, &json!({"m": "get", "path": "relative"}));
    assert_eq!(wire.message().1["class"], "invalid");
    wire.say(6, &json!({"m": "probe", "probe": "file", "path": path}));
    assert_eq!(wire.message().1["ok"], json!(true));
    end(wire, base.path());
}
