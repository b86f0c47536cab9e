//! `command.exec` and `command.shell`: run a program, say how it ended.
//!
//! They own the meaning of `creates`, `unless` and `ok_exit`. Starting, streaming and ending the process is
//! [`process`]; nothing here builds a shell line: a script is an argument of `/bin/sh`, or several if it is long.
//!
//! A command that ends normally may leave background children. What they still write is waited for at most one
//! second after the command's own exit; then their pipe is closed and they live on. After a cancel nothing of the
//! command's process group survives.

pub(crate) mod blocking;
mod group;
mod over;
pub(crate) mod process;
pub(crate) mod program;
mod tail;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;
use stead_model::event::{Mode, Stream};
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::plan_file::keys::is_env_name;
use stead_model::{Descriptor, Effect, ErrorClass};
use stead_runner::operation::{Action, BareAction, OpContext, OpError, Outcome, Params, Stop};

use stead_runner::transport::Transport;

use process::{Capture, Ended, Start};
use tail::Tail;

use crate::disk::Disk;

const SHELL: &str = "/bin/sh";

/// The kernel takes no longer argument than 128 KiB, with the NUL at its end.
const LONGEST_ARGUMENT: usize = (128 << 10) - 1;

/// Runs the script that its arguments make together, without arguments and variables of its own.
const JOINED: &str = r#"stead_script=; for stead_part; do stead_script=$stead_script$stead_part; done; set --; eval "unset stead_script stead_part; $stead_script""#;

/// Returns the arguments by which `/bin/sh` runs `script`.
fn shell_arguments(script: &str) -> Vec<OsString> {
    if script.len() <= LONGEST_ARGUMENT {
        return vec!["-c".into(), script.into()];
    }
    let mut arguments = vec!["-c".into(), JOINED.into(), SHELL.into()];
    let mut rest = script;
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(LONGEST_ARGUMENT));
        arguments.push(part.into());
        rest = after;
    }
    arguments
}

const CWD: ParamSpec = ParamSpec::new(
    "cwd",
    ParamKind::NonEmptyText,
    "Directory to start in, relative to the plan file; default: the plan file's directory, or the root prefix.",
);
const ENV: ParamSpec =
    ParamSpec::new("env", ParamKind::TextMap, "Variables set besides the inherited ones; default: none.")
        .secret()
        .default(ParamDefault::EmptyMap);
const STDIN: ParamSpec = ParamSpec::new(
    "stdin",
    ParamKind::Text,
    "Text the command reads from its standard input; default: nothing.",
)
.secret()
.default(ParamDefault::Text(""));
const OK_EXIT: ParamSpec =
    ParamSpec::new("ok_exit", ParamKind::IntList(0, 255), "Exit codes that are success; default: [0].")
        .default(ParamDefault::Numbers(&[0]));
const CREATES: ParamSpec = ParamSpec::new(
    "creates",
    ParamKind::NonEmptyText,
    "If this path exists, relative to `cwd`, the command is not run and the task is unchanged.",
);
const UNLESS: ParamSpec = ParamSpec::new(
    "unless",
    ParamKind::NonEmptyText,
    "If this command line, run by /bin/sh, exits 0, the command is not run and the task is unchanged. It must not write: a dry run runs it too.",
);

const RESULT: &[(&str, &str)] = &[
    ("exit_code", "Its exit code; null if a signal ended it."),
    ("stdout", "The last 1 MiB of its standard output."),
    ("stderr", "The last 1 MiB of its standard error."),
];

static EXEC: Descriptor = Descriptor {
    name: "command.exec",
    summary: "Runs a program with arguments, without a shell.",
    params: &[
        ParamSpec::new(
            "command",
            ParamKind::NonEmptyText,
            "The program: a path, or a name looked for in PATH and the system directories.",
        )
        .required(),
        ParamSpec::new("args", ParamKind::TextList, "Its arguments, passed byte for byte; default: none.")
            .default(ParamDefault::Texts(&[])),
        CWD,
        ENV,
        STDIN,
        OK_EXIT,
        CREATES,
        UNLESS,
    ],
    ..BASE
};

static SHELL_SCRIPT: Descriptor = Descriptor {
    name: "command.shell",
    summary: "Runs a script by /bin/sh.",
    params: &[
        ParamSpec::new(
            "script",
            ParamKind::Script,
            "The script, run by `/bin/sh -c`; at most 1 MiB, put a longer one into a file.",
        )
        .required(),
        CWD,
        ENV,
        STDIN,
        OK_EXIT,
        CREATES,
        UNLESS,
    ],
    ..BASE
};

/// The part both descriptors share, as a constant: a static cannot be copied from.
const BASE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Command,
    idempotent: false,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: RESULT,
};

/// Runs a program with arguments.
pub(crate) struct Exec;

/// Runs a script by `/bin/sh`.
pub(crate) struct Shell;

#[async_trait::async_trait]
impl Action for Exec {
    fn descriptor(&self) -> &'static Descriptor {
        &EXEC
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        Surroundings::new(cx, params)?.check(cx, params).await
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let args = params.texts("args").into_iter().map(OsString::from).collect();
        Surroundings::new(cx, params)?.run(cx, params, params.required("command")?, args).await
    }

    fn as_bare(&self) -> Option<&dyn BareAction> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl BareAction for Exec {
    async fn act_over(
        &self,
        transport: &dyn Transport,
        cx: &OpContext,
        params: &Params,
        mode: Mode,
    ) -> Result<Outcome, OpError> {
        let mut argv = vec![OsString::from(params.required("command")?)];
        argv.extend(params.texts("args").into_iter().map(OsString::from));
        over::act(transport, cx, params, mode, argv).await
    }
}

#[async_trait::async_trait]
impl BareAction for Shell {
    async fn act_over(
        &self,
        transport: &dyn Transport,
        cx: &OpContext,
        params: &Params,
        mode: Mode,
    ) -> Result<Outcome, OpError> {
        let mut argv = vec![SHELL.into()];
        argv.extend(shell_arguments(params.required("script")?));
        over::act(transport, cx, params, mode, argv).await
    }
}

#[async_trait::async_trait]
impl Action for Shell {
    fn descriptor(&self) -> &'static Descriptor {
        &SHELL_SCRIPT
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        Surroundings::new(cx, params)?.check(cx, params).await
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let args = shell_arguments(params.required("script")?);
        Surroundings::new(cx, params)?.run(cx, params, SHELL, args).await
    }

    fn as_bare(&self) -> Option<&dyn BareAction> {
        Some(self)
    }
}

/// Where and with which variables a command runs.
struct Surroundings {
    cwd: PathBuf,
    env: BTreeMap<String, String>,
    /// `creates`, as a path on this machine or inside the root prefix.
    creates: Option<PathBuf>,
}

impl Surroundings {
    fn new(cx: &OpContext, params: &Params) -> Result<Self, OpError> {
        let env = given_env(params)?;
        // Inside a root prefix a command starts there, and its paths are that system's.
        let start = if cx.root.is_some() { Path::new("/") } else { cx.base_dir.as_path() };
        let inside = start.join(params.text("cwd").unwrap_or(""));
        let creates = params.text("creates").map(|creates| inside.join(creates));
        let cwd = match &cx.root {
            Some(_) => Disk::open(cx)?.real_path(&inside)?,
            None => inside,
        };
        Ok(Self { cwd, env, creates })
    }

    /// Returns why the command has nothing to do, if so.
    async fn settled(&self, cx: &OpContext, params: &Params) -> Result<Option<String>, OpError> {
        if let Some(creates) = &self.creates
            && Disk::open(cx)?.exists(creates)?
        {
            return Ok(Some(format!("creates: {} exists", params.text("creates").unwrap_or_default())));
        }
        let Some(unless) = params.text("unless") else { return Ok(None) };
        let start = self.start(cx, SHELL, vec!["-c".into(), unless.into()], Capture::Discard)?;
        let Ok(start) = start else { return Ok(None) };
        let ended = process::run(start, &cx.cancel, cx.grace, &mut |_, _| {}).await;
        let ended = ended.map_err(|error| self.spawn_error("unless", &error))?;
        Ok((ended.exit_code == Some(0)).then(|| format!("unless: `{unless}` succeeded")))
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        if let Some(reason) = self.settled(cx, params).await? {
            return Ok(Outcome { reason: Some(reason), ..Outcome::default() });
        }
        if let Some(creates) = &self.creates {
            Disk::open(cx)?.predict_made(creates)?;
        }
        Ok(Outcome { changed: true, ..Outcome::default() })
    }

    async fn run(
        &self,
        cx: &OpContext,
        params: &Params,
        program: &str,
        args: Vec<OsString>,
    ) -> Result<Outcome, OpError> {
        if cx.cancel.now() >= Stop::Ask {
            return Err(OpError::operation("cancelled before the command started"));
        }
        if let Some(reason) = self.settled(cx, params).await? {
            return Ok(Outcome { reason: Some(reason), ..Outcome::default() });
        }
        // The probe may have been what was cancelled.
        if cx.cancel.now() >= Stop::Ask {
            return Err(OpError::operation("cancelled before the command started"));
        }
        let ok_exit = ExitCodes::new(params);
        let mut start = match self.start(cx, program, args, Capture::Stream)? {
            Ok(start) => start,
            Err(missing) => {
                let line = format!("{}\n", missing.message);
                cx.output.write(Stream::Stderr, line.as_bytes());
                let message = format!("exit code {}: {}", missing.code, missing.message);
                let ended = Ended { exit_code: Some(missing.code), signal: None, stopped: false };
                return Ok(outcome(&ended, &ok_exit, message, String::new(), line));
            }
        };
        start.stdin = params.text("stdin").map(|text| text.as_bytes().to_vec());
        let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
        let mut sink = |stream, bytes: &[u8]| {
            cx.output.write(stream, bytes);
            match stream {
                Stream::Stdout => stdout.push(bytes),
                Stream::Stderr => stderr.push(bytes),
            }
        };
        let ended = process::run(start, &cx.cancel, cx.grace, &mut sink).await;
        let ended = ended.map_err(|error| self.spawn_error(program, &error))?;
        Ok(outcome(&ended, &ok_exit, ended.describe(), stdout.into_text(), stderr.into_text()))
    }

    fn start(
        &self,
        cx: &OpContext,
        name: &str,
        args: Vec<OsString>,
        capture: Capture,
    ) -> Result<Result<Start, program::NotStarted>, OpError> {
        if name.contains('\0') || args.iter().any(|arg| arg.as_encoded_bytes().contains(&0)) {
            return Err(OpError::invalid("an argument holds a NUL byte"));
        }
        let mut env = cx.marks();
        env.extend(self.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        let path = match env.get("PATH") {
            Some(path) => Some(OsString::from(path)),
            None if cx.hidden_env.iter().any(|hidden| hidden == "PATH") => None,
            None => std::env::var_os("PATH"),
        };
        let program = match program::find(name, &self.cwd, path.as_deref()) {
            Ok(program) => program,
            Err(missing) => return Ok(Err(missing)),
        };
        Ok(Ok(Start {
            program,
            name: name.to_owned(),
            args,
            cwd: self.cwd.clone(),
            hidden_env: cx.hidden_env.to_vec(),
            env,
            stdin: None,
            capture,
        }))
    }

    /// Says why a program that is there could not be started: the system gives one code for several causes.
    fn spawn_error(&self, program: &str, error: &std::io::Error) -> OpError {
        if !self.cwd.is_dir() {
            return OpError::operation(format!("cwd `{}` is not a directory", self.cwd.display()));
        }
        OpError::io(format_args!("cannot run `{program}`"), error)
    }
}

/// Returns the variables of parameter `env`.
fn given_env(params: &Params) -> Result<BTreeMap<String, String>, OpError> {
    let env = params.text_map("env");
    // What a shell cannot set cannot be set on every way to a host; the same holds on all of them.
    match env.keys().find(|name| !is_env_name(name)) {
        Some(name) => Err(OpError::invalid(format!(
            "`{}` is not a name for an environment variable: letters, digits and `_`, and no digit first",
            name.escape_debug()
        ))),
        None => Ok(env),
    }
}

fn outcome(ended: &Ended, ok_exit: &ExitCodes, message: String, stdout: String, stderr: String) -> Outcome {
    let failed = !ended.exit_code.is_some_and(|code| ok_exit.contains(code));
    let failure = failed.then(|| OpError { changed: true, ..OpError::new(ErrorClass::Exit, message) });
    Outcome {
        changed: true,
        failure,
        reason: None,
        exit_code: ended.exit_code,
        signal: ended.signal,
        stopped: ended.stopped,
        data: Some(json!({"exit_code": ended.exit_code, "stdout": stdout, "stderr": stderr})),
        ..Outcome::default()
    }
}

/// The exit codes that count as success.
struct ExitCodes(Vec<(i64, i64)>);

impl ExitCodes {
    fn new(params: &Params) -> Self {
        let ranges = crate::ranges::parse(params, "ok_exit");
        Self(ranges.unwrap_or_else(|| vec![(0, 0)]))
    }

    fn contains(&self, code: i32) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&i64::from(code)))
    }
}
