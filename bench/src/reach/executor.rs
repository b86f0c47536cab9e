//! What the executor adds to an operation: the program is driven over pipes, as a connection would, without one.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use stead_drivers::Drivers;
use stead_model::event::Mode;
use stead_model::executor::{BANNER, Frame, FrameBuffer, FrameKind, Reply, Request};
use stead_runner::operate::operate_safely;
use stead_runner::operation::Params;
use stead_testkit::context::context;

use crate::sample::time;
use crate::shell::binary;

const HELLO: &str =
    r#"{"m":"hello","protocol":[1],"version":"bench","run":"bench","lease_ms":60000,"fresh":true}"#;
const ASSERT: &str = r#"{"m":"op","operation":"assert","params":{"that":["true"]},"diff":true,
    "env":{"STEAD_TASK":"t","STEAD_HOST":"h","STEAD_ATTEMPT":"1"},"answers":{"true":{"value":true}}}"#;

/// A session of the executor, ended when dropped.
pub(super) struct Executor {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    inbox: FrameBuffer,
    last_id: u32,
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.say(0, r#"{"m":"bye"}"#);
        self.stdin = None;
        self.child.wait().expect("a child");
    }
}

impl Executor {
    /// Starts one with its files in `base`.
    pub(super) fn start(base: &Path) -> Self {
        let mut command = Command::new(binary());
        command.args(["executor", "--attach", "bench", "--base"]).arg(base);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("stead starts");
        let (stdin, mut stdout) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let mut banner = vec![0; BANNER.len()];
        stdout.read_exact(&mut banner).expect("the executor's first line");
        let mut executor = Self { child, stdin, stdout, inbox: FrameBuffer::default(), last_id: 0 };
        executor.say(0, HELLO);
        assert!(matches!(executor.hear(), Reply::Hello(_)), "the executor did not say hello");
        executor
    }

    fn say(&mut self, id: u32, message: &str) {
        let mut frame = Vec::new();
        Frame::write(&mut frame, FrameKind::Json, id, message.as_bytes()).expect("short");
        self.stdin.as_mut().expect("open").write_all(&frame).expect("the executor listens");
    }

    fn hear(&mut self) -> Reply {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.inbox.next_frame().expect("a good frame") {
                return Reply::read(&frame.body).expect("a known message");
            }
            let count = self.stdout.read(&mut buffer).expect("the executor speaks");
            assert!(count > 0, "the executor ended");
            self.inbox.push(&buffer[..count]);
        }
    }

    /// Returns how long `count` times `assert` of `true` take, one after the other.
    pub(super) fn time(&mut self, count: u32) -> Duration {
        time(|| {
            for _ in 0..count {
                self.last_id += 1;
                self.say(self.last_id, ASSERT);
                let Reply::Result(result) = self.hear() else { panic!("no result") };
                assert!(result.error.is_none(), "{result:?}");
                self.say(0, &format!(r#"{{"m":"ack","id":{}}}"#, self.last_id));
            }
        })
    }
}

/// Returns how long the operations alone take, in this process.
pub(super) fn time_alone(count: u32) -> Duration {
    let registry = Drivers::standard();
    let entry = registry.get("assert").expect("an operation");
    let Ok(Request::Op(request)) = Request::read(ASSERT.as_bytes()) else { panic!("no operation") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let cx = context(Path::new("/"));
    time(|| {
        runtime.block_on(async {
            for _ in 0..count {
                let params = Params::new(request.params.clone());
                operate_safely(entry, &cx, params, Mode::Run, false).await.expect("true is true");
            }
        });
    })
}
