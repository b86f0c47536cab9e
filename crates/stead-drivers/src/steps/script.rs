//! `script.run`: one script of a catalogue, as it is, without a shell.
//!
//! What the script says in `::` lines decides with its exit code how it went. A bad check fails it whatever it exits
//! with; one that does not say whether it changed something is assumed to have.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use stead_model::event::Stream;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::report::Warning;
use stead_model::steps::StepOutcome;
use stead_model::steps::lines::{Check, CheckLevel, LineReader, Spoken};
use stead_model::{Descriptor, Effect, ErrorClass, StepMode};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Stop};

use super::environment::Grants;
use super::{StepSurroundings, within};
use crate::command::process::{self, Capture, Ended, Start};

/// How many malformed lines of one attempt are told one by one.
const MOST_TOLD: usize = 10;
/// How many bad checks an error names.
const MOST_NAMED: usize = 5;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "script.run",
    summary: "Runs a script of a catalogue of steps; only `stead steps` does.",
    effect: Effect::Command,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::None,
    needs_root: false,
    params: &[
        ParamSpec::new("path", ParamKind::NonEmptyText, "The script, relative to the catalogue's root.")
            .required(),
        ParamSpec::new("args", ParamKind::TextList, "Its arguments; default: none.")
            .default(ParamDefault::Texts(&[])),
        ParamSpec::new(
            "cwd",
            ParamKind::NonEmptyText,
            "Directory to start in, as the catalogue writes it; default: the root.",
        ),
        ParamSpec::new(
            "env",
            ParamKind::TextList,
            "Names of variables it gets besides the values; default: none.",
        )
        .default(ParamDefault::Texts(&[])),
        ParamSpec::new(
            "secrets",
            ParamKind::TextList,
            "Names of secret variables it may see, `*` for all; default: none.",
        )
        .default(ParamDefault::Texts(&[])),
        MODE,
    ],
    exclusive: &[],
    one_of: &[],
    result: RESULT,
};

/// Which order the step is part of.
pub(super) const MODE: ParamSpec = ParamSpec::new(
    "mode",
    ParamKind::Enum(&[StepMode::Apply.as_str(), StepMode::Delete.as_str()]),
    "What the run does.",
)
.required();

/// The members of a [`StepOutcome`].
pub(super) const RESULT: &[(&str, &str)] = &[
    ("assumed", "Whether it is only assumed that something changed."),
    ("exit_code", "What its program exited with; null if a signal ended it."),
    ("checks", "Its checks, in order."),
    ("suggestions", "Its remedies, in order."),
    ("outputs", "What it hands to later steps."),
    ("inputs", "What happened to its document, by the name of the inputs."),
];

/// Runs a script of a catalogue.
pub(super) struct ScriptRun(pub(super) Option<Arc<StepSurroundings>>);

#[async_trait::async_trait]
impl Action for ScriptRun {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        within(&self.0)?;
        Ok(Outcome { changed: true, assumed: true, ..Outcome::default() })
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let surroundings = within(&self.0)?;
        if cx.cancel.now() >= Stop::Ask {
            return Err(OpError::operation("cancelled before the script started"));
        }
        let start = start(surroundings, cx, params)?;
        let (program, cwd) = (start.program.clone(), start.cwd.clone());
        let (mut lines, mut heard) = (LineReader::default(), Heard::default());
        let mut sink = |stream, bytes: &[u8]| {
            cx.output.write(stream, bytes);
            match stream {
                Stream::Stdout => lines.push(bytes, |line, spoken| heard.take(line, spoken)),
                Stream::Stderr => {}
            }
        };
        let ended = process::run(start, &cx.cancel, cx.grace, &mut sink).await;
        let ended = ended.map_err(|error| cannot_run(&program, &cwd, &error))?;
        lines.finish(|line, spoken| heard.take(line, spoken));
        let collisions = surroundings.outputs.collisions(&cx.task, &heard.outcome.outputs);
        let mut outcome = heard.into_outcome(&ended)?;
        let told = collisions.into_iter().map(|text| Warning::new("steps/output", text));
        outcome.warnings.extend(told);
        Ok(outcome)
    }
}

fn start(surroundings: &StepSurroundings, cx: &OpContext, params: &Params) -> Result<Start, OpError> {
    let environment = surroundings.environment(cx, &Grants::of(params));
    let (root, own) = (&surroundings.root, surroundings.own.get(&cx.task));
    let program = root.join(params.required("path")?);
    let args = params.texts("args");
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(OpError::invalid("an argument holds a NUL byte"));
    }
    Ok(Start {
        name: program.display().to_string(),
        program,
        args: args.into_iter().map(OsString::from).collect(),
        cwd: own.and_then(|own| own.cwd.as_ref()).map_or_else(|| root.clone(), |cwd| root.join(cwd)),
        hidden_env: environment.hidden,
        env: environment.set,
        stdin: None,
        capture: Capture::Stream,
    })
}

/// Says why a script that is there could not be started: the system gives one code for several causes.
fn cannot_run(program: &Path, cwd: &Path, error: &std::io::Error) -> OpError {
    if !cwd.is_dir() {
        return OpError::operation(format!("cwd `{}` is not a directory", cwd.display()));
    }
    OpError::io(format_args!("cannot run `{}`", program.display()), error)
}

/// What a script has said so far.
#[derive(Default)]
struct Heard {
    outcome: StepOutcome,
    changed: Option<bool>,
    malformed: Vec<String>,
    untold: usize,
}

impl Heard {
    fn take(&mut self, line: &str, spoken: Spoken) {
        match spoken {
            Spoken::Check(check) => self.outcome.checks.push(check),
            Spoken::Suggest(command) => self.outcome.suggestions.push(command),
            Spoken::Changed(changed) => self.changed = Some(changed || self.changed == Some(true)),
            Spoken::Output { key, value } => {
                self.outcome.outputs.insert(key, value);
            }
            Spoken::Malformed(rule) if self.malformed.len() < MOST_TOLD => {
                let shown: String = line.chars().take(80).collect();
                self.malformed.push(format!("`{}`: {rule}", shown.escape_debug()));
            }
            Spoken::Malformed(_) => self.untold += 1,
            Spoken::Text => {}
        }
    }

    fn into_outcome(self, ended: &Ended) -> Result<Outcome, OpError> {
        let Self { mut outcome, changed, mut malformed, untold } = self;
        if untold > 0 {
            malformed.push(format!("{untold} more lines like these"));
        }
        outcome.assumed = changed.is_none();
        outcome.exit_code = ended.exit_code;
        let changed = changed.unwrap_or(true);
        let failure = failure(&outcome.checks, ended);
        let data = serde_json::to_value(&outcome)
            .map_err(|error| OpError::operation(format!("cannot keep what the script said: {error}")))?;
        Ok(Outcome {
            changed,
            failure: failure.map(|failure| OpError { changed, ..failure }),
            exit_code: ended.exit_code,
            signal: ended.signal,
            stopped: ended.stopped,
            data: Some(data),
            warnings: malformed.into_iter().map(|text| Warning::new("steps/line", text)).collect(),
            ..Outcome::default()
        })
    }
}

fn failure(checks: &[Check], ended: &Ended) -> Option<OpError> {
    let bad: Vec<&Check> = checks.iter().filter(|check| check.level == CheckLevel::Bad).collect();
    match bad.as_slice() {
        [] if ended.exit_code == Some(0) => None,
        [] => Some(OpError::new(ErrorClass::Exit, ended.describe())),
        bad => {
            let named = bad.iter().take(MOST_NAMED).map(|check| match check.message.as_str() {
                "" => check.key.clone(),
                message => format!("{} {message}", check.key),
            });
            let more = bad.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            let noun = if bad.len() == 1 { "bad check" } else { "bad checks" };
            let named = named.collect::<Vec<_>>().join("; ");
            Some(OpError::new(ErrorClass::Check, format!("{} {noun}: {named}{more}", bad.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of(lines: &str, exit_code: i32) -> Outcome {
        let (mut reader, mut heard) = (LineReader::default(), Heard::default());
        reader.push(lines.as_bytes(), |line, spoken| heard.take(line, spoken));
        reader.finish(|line, spoken| heard.take(line, spoken));
        heard.into_outcome(&Ended { exit_code: Some(exit_code), signal: None, stopped: false }).unwrap()
    }

    fn class_of(outcome: &Outcome) -> Option<ErrorClass> {
        outcome.failure.as_ref().map(|failure| failure.class)
    }

    #[test]
    fn a_bad_check_fails_whatever_the_exit_code_says() {
        for code in [0, 3] {
            let outcome = outcome_of("::check ok a\n::check bad b:1 broken\n::check warn c\n", code);
            assert_eq!(class_of(&outcome), Some(ErrorClass::Check), "{code}");
            assert_eq!(outcome.failure.unwrap().message, "1 bad check: b:1 broken");
        }
        assert_eq!(class_of(&outcome_of("::check warn c\n", 0)), None);
        assert_eq!(class_of(&outcome_of("::check warn c\n", 7)), Some(ErrorClass::Exit));
    }

    #[test]
    fn silence_is_an_assumed_change_and_any_true_wins() {
        let assumed = |outcome: &Outcome| outcome.data.as_ref().unwrap()["assumed"].as_bool().unwrap();
        let silent = outcome_of("hello\n", 0);
        assert!(silent.changed && assumed(&silent));
        let unchanged = outcome_of("::changed false\n", 0);
        assert!(!unchanged.changed && !assumed(&unchanged));
        assert!(outcome_of("::changed true\n::changed false\n", 0).changed);
        assert!(outcome_of("::changed false\n::changed true\n", 0).changed);
    }

    #[test]
    fn malformed_lines_are_warnings_of_bounded_number() {
        let outcome = outcome_of(&"::check maybe x\n".repeat(500), 0);
        assert_eq!(outcome.warnings.len(), MOST_TOLD + 1);
        assert_eq!(outcome.warnings[MOST_TOLD].text, "490 more lines like these");
        assert_eq!(class_of(&outcome), None);
    }

    #[test]
    fn the_last_output_of_a_name_wins() {
        let outcome = outcome_of("::output A=1\n::output A=2\n::suggest x\n", 0);
        assert_eq!(outcome.data.unwrap()["outputs"], serde_json::json!({"A": "2"}));
    }
}
