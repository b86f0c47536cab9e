//! The system's own administration programs, as operations use them: by argument list, in the C locale, on the whole
//! machine or a root prefix, waiting while another holds the system's lock.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use stead_model::plan::Param;
use stead_model::{Op, OperationName};
use stead_runner::operation::{FieldDiff, OpContext, OpError, Stop};

use crate::command::blocking::{self, Program, Said};
use crate::command::process::Capture;
use crate::command::program;
use crate::machine::sandbox::Sandbox;

/// How long another program may hold the lock of the package or account database.
const BUSY: Duration = Duration::from_secs(60);
/// How often a held lock is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A program to run on behalf of an operation.
pub(crate) struct Tool<'a> {
    cx: &'a OpContext,
    name: &'a str,
    args: Vec<OsString>,
    env: BTreeMap<String, String>,
    stdin: Option<Vec<u8>>,
    capture: Capture,
    limit: Option<Duration>,
}

impl<'a> Tool<'a> {
    /// Returns the program called `name`, without arguments.
    pub(crate) fn new(cx: &'a OpContext, name: &'a str) -> Self {
        let env = BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]);
        Self { cx, name, args: Vec::new(), env, stdin: None, capture: Capture::Stream, limit: None }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub(crate) fn args<T: Into<OsString>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds `option` and the root prefix, if there is one.
    pub(crate) fn root(self, option: &str) -> Self {
        match &self.cx.root {
            Some(root) => {
                let root = root.clone();
                self.arg(option).arg(root)
            }
            None => self,
        }
    }

    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Gives it something to read, such as what must not be in an argument list.
    pub(crate) fn stdin(mut self, bytes: Vec<u8>) -> Self {
        self.stdin = Some(bytes);
        self
    }

    /// Lets what it leaves running keep no pipe of ours.
    pub(crate) fn without_output(mut self) -> Self {
        self.capture = Capture::Discard;
        self
    }

    /// Lets it take no longer than this.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Runs it to its end, however that is.
    pub(crate) fn run(&self) -> Result<Said, OpError> {
        let program = Program {
            name: self.name.to_owned(),
            args: self.args.clone(),
            cwd: "/".into(),
            env: self.env.clone(),
        };
        blocking::run_with(self.cx, program, self.stdin.clone(), self.capture, self.limit)
    }

    /// Runs it and returns what it printed; a failure is an error with the end of what it said.
    pub(crate) fn must(&self) -> Result<String, OpError> {
        self.checked(self.run()?)
    }

    /// Like [`Tool::must`], trying again while `is_busy` says that another program holds the lock, up to 60 s.
    pub(crate) fn must_when_free(&self, is_busy: fn(&Said) -> bool) -> Result<String, OpError> {
        self.must_within(BUSY, is_busy)
    }

    fn must_within(&self, limit: Duration, is_busy: fn(&Said) -> bool) -> Result<String, OpError> {
        let deadline = Instant::now() + limit;
        loop {
            let said = self.run()?;
            if said.is_ok() || !is_busy(&said) {
                return self.checked(said);
            }
            if Instant::now() >= deadline {
                let after = stead_model::duration::to_exact(limit);
                return self
                    .checked(said)
                    .map_err(|error| error.within(format_args!("still locked after {after}")));
            }
            pause(self.cx, LOOK_AGAIN)?;
        }
    }

    fn checked(&self, said: Said) -> Result<String, OpError> {
        if said.is_ok() {
            return Ok(said.stdout);
        }
        let failed = format!("`{}`: {}", self.name, said.describe());
        let text = said.stderr.to_lowercase();
        let refused = ["permission denied", "are you root", "access denied", "authentication required"];
        if refused.iter().any(|words| text.contains(words)) {
            return Err(OpError::permanent(format!(
                "{failed}; another account can, by `become` on the host"
            )));
        }
        Err(OpError::operation(failed))
    }
}

/// Waits, unless the attempt is to stop.
pub(crate) fn pause(cx: &OpContext, time: Duration) -> Result<(), OpError> {
    std::thread::sleep(time);
    if cx.cancel.now() >= Stop::Ask { Err(OpError::operation("cancelled while waiting")) } else { Ok(()) }
}

/// Whether a program called `name` can be run.
pub(crate) fn has(name: &str) -> bool {
    program::find(name, Path::new("/"), std::env::var_os("PATH").as_deref()).is_ok()
}

/// Refuses to go on without a program, naming the package that has it.
pub(crate) fn need(name: &str, package: &str) -> Result<(), OpError> {
    if has(name) {
        return Ok(());
    }
    Err(OpError::unsupported(format!("this host has no `{name}` (package {package})")))
}

/// Refuses to go on without root, naming what gives it.
pub(crate) fn need_root(operation: &str) -> Result<(), OpError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(OpError::permanent(format!("{operation} needs root; `become: sudo` on the host gives it")))
}

/// As [`need_root`], but in a sandbox, where everything belongs to the account that runs it.
pub(crate) fn need_root_in(cx: &OpContext, operation: &str) -> Result<(), OpError> {
    if Sandbox::of(cx).is_some() { Ok(()) } else { need_root(operation) }
}

/// Returns an operation with plain parameters.
pub(crate) fn op(
    name: &str,
    params: impl IntoIterator<Item = (&'static str, serde_json::Value)>,
) -> Option<Op> {
    let params = params.into_iter().map(|(name, value)| (name.to_owned(), Param::Value(value)));
    Some(Op { operation: OperationName::parse(name).ok()?, params: params.collect() })
}

/// Returns a field that differs.
pub(crate) fn field(
    name: &str,
    before: impl Into<serde_json::Value>,
    after: impl Into<serde_json::Value>,
) -> FieldDiff {
    FieldDiff { name: name.to_owned(), before: before.into(), after: after.into() }
}

/// Runs blocking work of an action on a thread of its own. It ends soon after `cx.cancel` asks its programs to.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpError> + Send + 'static,
) -> Result<T, OpError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(OpError::operation(format!("the operation was stopped: {error}"))))
}

#[cfg(test)]
mod tests {
    use stead_model::ErrorClass;
    use stead_testkit::context::context;

    use super::*;

    /// Section 7, rule 6: a lock that is never free is waited for and then an error that says so.
    #[test]
    fn a_lock_that_stays_held_is_an_error_at_its_bound() {
        assert_eq!(BUSY, Duration::from_secs(60));
        let directory = tempfile::tempdir().unwrap();
        let cx = context(directory.path());
        let script = "echo try >>\"$1\"; echo 'cannot get lock' >&2; exit 100";
        let tries = directory.path().join("tries");
        let tool = Tool::new(&cx, "sh").args(["-c", script, "sh"]).arg(&tries);
        let is_busy = |said: &Said| said.stderr.contains("cannot get lock");
        let error = tool.must_within(Duration::from_secs(3), is_busy).unwrap_err();
        assert_eq!(error.class, ErrorClass::Operation);
        assert!(error.message.starts_with("still locked after 3s: `sh`: "), "{}", error.message);
        assert!(error.message.contains("cannot get lock"), "{}", error.message);
        assert!(std::fs::read_to_string(&tries).unwrap().lines().count() > 2, "it was tried again and again");
    }

    #[test]
    fn a_lock_that_becomes_free_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let cx = context(directory.path());
        let script = "[ -e \"$1\" ] && { echo done; exit 0; }; touch \"$1\"; echo busy >&2; exit 1";
        let tool = Tool::new(&cx, "sh").args(["-c", script, "sh"]).arg(directory.path().join("free"));
        let said = tool.must_within(Duration::from_secs(30), |said| said.stderr.contains("busy")).unwrap();
        assert_eq!(said, "done\n");
    }
}
