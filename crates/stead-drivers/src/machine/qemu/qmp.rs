//! A client of QEMU's machine protocol: one connection per errand, every exchange with an end in time and size.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use stead_runner::socket::SocketPath;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::machine::home::Home;

/// The socket's file in the machine's directory.
pub(super) const SOCKET: &str = "qmp.sock";
/// Nothing that is asked for here is longer.
const LONGEST_LINE: usize = 1 << 20;
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// A conversation with a machine's QEMU. It takes one at a time.
pub(super) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and agrees on the protocol.
    pub(super) async fn connect(home: &Home) -> io::Result<Self> {
        let connecting = async {
            let socket = SocketPath::new(&home.directory().join(SOCKET))?;
            let stream = UnixStream::connect(socket.path()).await?;
            let mut qmp = Self { stream: BufReader::new(stream) };
            let greeting = qmp.line().await?;
            if greeting.get("QMP").is_none() {
                return Err(io::Error::other("what answers is not QEMU"));
            }
            qmp.exchange("qmp_capabilities", None).await?;
            Ok(qmp)
        };
        within(connecting).await
    }

    /// Gives an order and returns what comes back.
    pub(super) async fn execute(&mut self, command: &str, arguments: Option<Value>) -> io::Result<Value> {
        within(self.exchange(command, arguments)).await
    }

    /// Gives an order of the monitor for people, for what the protocol has none; returns what it says.
    pub(super) async fn human(&mut self, command: &str) -> io::Result<String> {
        let arguments = json!({ "command-line": command });
        let said = self.execute("human-monitor-command", Some(arguments)).await?;
        Ok(said.as_str().unwrap_or_default().trim().to_owned())
    }

    async fn exchange(&mut self, command: &str, arguments: Option<Value>) -> io::Result<Value> {
        let mut order = json!({ "execute": command });
        if let Some(arguments) = arguments {
            order["arguments"] = arguments;
        }
        self.stream.get_mut().write_all(format!("{order}\n").as_bytes()).await?;
        loop {
            let mut answer = self.line().await?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let said = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
                return Err(io::Error::other(format!("{command}: {said}")));
            }
            // Events come whenever they like.
        }
    }

    async fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        loop {
            let buffer = self.stream.fill_buf().await?;
            if buffer.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(buffer.len(), |end| end + 1);
            line.extend(buffer.iter().take(taken));
            self.stream.consume(taken);
            if line.len() > LONGEST_LINE {
                return Err(io::Error::other("QEMU says more than anybody asked for"));
            }
            if end.is_some() {
                return serde_json::from_slice(&line).map_err(io::Error::other);
            }
        }
    }
}

async fn within<T>(talk: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(ANSWER, talk).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::machine::qemu::KIND;

    const GREETING: &str = "{\"QMP\": {}}\n";
    const DONE: &str = "{\"event\": \"RESUME\"}\n{\"return\": {}}\n";

    /// Connects to a monitor that says these, whatever it hears, and no more; asks for its status.
    async fn asked(says: &[&str]) -> io::Result<Value> {
        let dir = tempfile::tempdir()?;
        let home = Home::at(&KIND, dir.path().to_owned());
        let listener = UnixListener::bind(dir.path().join(SOCKET))?;
        let talking = async {
            let (mut stream, _) = listener.accept().await?;
            stream.write_all(says.concat().as_bytes()).await?;
            stream.shutdown().await?;
            std::future::pending::<io::Result<Value>>().await
        };
        let asking = async { Qmp::connect(&home).await?.execute("query-status", None).await };
        tokio::select! {
            said = talking => said,
            answer = asking => answer,
        }
    }

    #[tokio::test]
    async fn a_monitor_may_refuse_or_say_no_more() {
        let refusal = "{\"error\": {\"desc\": \"not now\"}}\n";
        for (says, why) in [
            (vec![], "unexpected end of file"),
            (vec!["{}\n"], "what answers is not QEMU"),
            (vec!["hello\n"], "expected value"),
            (vec![GREETING], "unexpected end of file"),
            (vec![GREETING, refusal], "qmp_capabilities: not now"),
            (vec![GREETING, DONE], "unexpected end of file"),
            (vec![GREETING, DONE, refusal], "query-status: not now"),
        ] {
            let error = asked(&says).await.unwrap_err();
            assert!(error.to_string().contains(why), "{says:?}: {error}");
        }
        asked(&[GREETING, DONE, DONE]).await.unwrap();
    }
}
