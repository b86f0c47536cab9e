//! Codes of plans, of the hosts they reach, and of how tasks end.

use super::{Explanation, said};

pub(super) const PLANS: &[Explanation] = &[
    said(
        "plan/bad-expression",
        "An expression or template cannot be read",
        "The text between `{{ }}`, or a guard, is not an expression, or asks for something that is not there.",
        "Correct it at the place that is named; `stead plan show FILE` checks a plan without running it.",
    ),
    said(
        "plan/bad-param",
        "An operation is given a parameter it does not take",
        "A parameter is unknown, missing, or of the wrong kind.",
        "`stead schema operation NAME` prints the parameters of an operation.",
    ),
    said(
        "plan/bad-value",
        "A value is not what its key takes",
        "The key is known, its value is of the wrong kind or outside of what is allowed.",
        "Write a value as the message says; durations need a unit (`30s`), and `stead schema plan` has every key.",
    ),
    said(
        "plan/cycle",
        "Tasks or variables wait for each other",
        "Following `depends_on`, or the references of variables, leads back to where it began.",
        "Take one of the dependencies of the printed path away.",
    ),
    said(
        "plan/duplicate-task",
        "Two tasks have one name",
        "Names are unique over `tasks` and `finally`.",
        "Rename one of them, and what refers to it.",
    ),
    said(
        "plan/empty-command",
        "A command says nothing to run",
        "`argv`, `script` or the like is empty or missing.",
        "Say what is to run.",
    ),
    said(
        "plan/missing-var",
        "A variable or secret has no value",
        "It is declared without a default and nobody gave it, or the variable or file it comes from is not there.",
        "Give it: `--var NAME=VALUE`, a `--vars-file`, or set the environment variable that is named.",
    ),
    said(
        "plan/needs-dependency",
        "A rule about dependencies on a task without any",
        "`only_if_changed` and `trigger_rule` look at what a task depends on.",
        "Add `depends_on`, or take the rule away.",
    ),
    said(
        "plan/never-runs",
        "A task can never run",
        "It waits for a failure that stops the whole run first.",
        "Set `on_error: continue` on what it depends on, or move it to `finally`.",
    ),
    said(
        "plan/no-inverse",
        "A change that cannot be undone",
        "A task with `undo: auto` changed something that the operation cannot bring back, such as files over 1 MiB or discarded changes.",
        "If the run is rolled back, this task's undo fails: bring back what was there by hand, or give the task an `undo` of its own.",
    ),
    said(
        "plan/not-upstream",
        "The result of a task that may not have run",
        "`results.NAME` is used by a task that does not depend on NAME.",
        "Add NAME to `depends_on`.",
    ),
    said(
        "plan/secret-in-argv",
        "A secret where others can see it",
        "Arguments, scripts, guards and variables are shown in reports and process lists.",
        "Hand the secret over in `env` or `stdin`.",
    ),
    said(
        "plan/short-secret",
        "A secret that cannot be masked",
        "A very short text would be masked everywhere in the output, or nowhere.",
        "Use a longer secret.",
    ),
    said(
        "plan/source-gone",
        "The plan's file is not there any more",
        "The run goes on with the plan as it was recorded.",
        "Nothing, unless the file has moved: then the new one can be run anew.",
    ),
    said(
        "plan/syntax",
        "A plan file is not YAML as it is read here",
        "The text is broken, has a key twice, a merge key, a tag, or more than one document.",
        "Correct the place that is named; an editor with `stead schema plan` shows it while you type.",
    ),
    said(
        "plan/undeclared",
        "A name that the file does not declare",
        "A variable, secret or environment variable is used or set, and is in no `vars`, `secrets` or `env`.",
        "Declare it, or correct its spelling: the nearest names are listed.",
    ),
    said(
        "plan/unknown-dependency",
        "A task depends on one that is not there",
        "`depends_on` names no task of the plan, or the task itself.",
        "Correct the name; the nearest are listed.",
    ),
    said(
        "plan/unknown-key",
        "A key that plan files do not have",
        "Unknown keys are never ignored.",
        "Correct its spelling, or remove it; `stead schema plan` has every key.",
    ),
    said(
        "plan/unknown-operation",
        "There is no such operation",
        "`op` names something that no driver can do.",
        "`stead schema operation` lists every operation.",
    ),
    said(
        "plan/unquoted-shell",
        "A value in a script is not quoted",
        "A shell may read it as several words, or as a command.",
        "Write `{{ … | quote }}`.",
    ),
];

pub(super) const REACH: &[Explanation] = &[
    said(
        "reach/bad-fact",
        "A fact of a host cannot be used",
        "A file in the host's directory of facts cannot be read, or gives a fact twice.",
        "Correct or remove the file that is named, on that host.",
    ),
    said(
        "reach/bad-label",
        "A label that is none",
        "Keys and values of labels have a fixed form.",
        "Write it as the message says.",
    ),
    said(
        "reach/bad-target",
        "A target that cannot be read",
        "Targets are names, globs, `role:NAME`, joined by `,`, `&` and `!`.",
        "Correct it at the character that is named; docs/reach.md has the forms.",
    ),
    said(
        "reach/bad-transport",
        "A way to a host that cannot be read",
        "Transports are `local`, `user@host` or `ssh://user@host:port?option=value`.",
        "Write it so; the part that is wrong is named.",
    ),
    said(
        "reach/bad-value",
        "A value of the inventory is not what its key takes",
        "The key is known, its value is of the wrong kind.",
        "Write a value as the message says; `stead schema inventory` has every key.",
    ),
    said(
        "reach/duplicate-host",
        "One host, two definitions",
        "Two files, or a file and a flag, say different things of one name.",
        "Write it the same everywhere, or give one of them another name.",
    ),
    said(
        "reach/host-keys",
        "A file of host keys cannot be used as it is",
        "Lines of a known_hosts file were passed over, or the file cannot be read or written.",
        "Correct the file that is named; without it hosts are not recognised.",
    ),
    said(
        "reach/input-cut",
        "The input of a command was cut",
        "The host had no room to keep what the command had not read yet.",
        "Free disk space there, or hand large input over in a file.",
    ),
    said(
        "reach/insecure",
        "A host's key is not checked",
        "`insecure=true` lets anybody answer for the host.",
        "Leave it out, or pin the key with `host_key=`.",
    ),
    said(
        "reach/new-host-key",
        "The key of a host was unknown",
        "It is recorded now, and only this key is accepted from here on.",
        "Compare the fingerprint with the host's own if you did not expect it.",
    ),
    said(
        "reach/no-match",
        "A part of a target matches no host",
        "Nothing is done for it.",
        "Check its spelling, or which inventory is read (`stead exec TARGET --list`).",
    ),
    said(
        "reach/noise",
        "A login prints something before commands begin",
        "Output of a profile or rc file goes in front of what commands print.",
        "Let the login files on that host print only in interactive shells.",
    ),
    said(
        "reach/passed-over",
        "A host was left out",
        "It cannot be reached or does not do what the task needs, and the task goes on without it.",
        "Look at the host's row in the report.",
    ),
    said(
        "reach/reserved-name",
        "A name that hosts cannot have",
        "Names such as `local` and `all` mean something already.",
        "Choose another name.",
    ),
    said(
        "reach/secret-in-spec",
        "A password in the way to a host",
        "It would be recorded with the plan.",
        "Write `password=env:NAME` or `password=file:PATH`, or put the host into an inventory.",
    ),
    said(
        "reach/ssh-config",
        "The SSH configuration cannot be used",
        "A file that `ssh` itself would read is not right, so the host is reached without it.",
        "Correct the file that is named.",
    ),
    said(
        "reach/syntax",
        "An inventory is not YAML as it is read here",
        "The text is broken, has a key twice, or more than one document.",
        "Correct the place that is named.",
    ),
    said(
        "reach/unknown-host",
        "There is no such host",
        "No inventory, site or agents.yaml that is read has this name.",
        "Correct its spelling: the nearest are listed; `-i FILE` reads another inventory.",
    ),
    said(
        "reach/unknown-key",
        "A key that inventories do not have",
        "Unknown keys are never ignored.",
        "Correct its spelling, or remove it; `stead schema inventory` has every key.",
    ),
    said(
        "reach/unreachable",
        "A host, server or master does not answer",
        "Nothing listens there, the network is down, or who answers is not who it should be.",
        "Check that it runs and that this machine reaches it; `stead doctor --target T` looks at each step of the way.",
    ),
];

/// Why a task failed: the words of `class`.
pub(super) const CLASSES: &[Explanation] = &[
    said(
        "failed/exit",
        "A command ended badly",
        "It exited with a code that is not in `ok_exit`, or a signal ended it.",
        "Its last lines are in the report; its whole output is in the bundle's logs.",
    ),
    said(
        "failed/operation",
        "An operation could not do its work",
        "The host answered, and the work failed there.",
        "The message says why; mend it and `stead resume` the run.",
    ),
    said(
        "failed/unreachable",
        "The host cannot be reached",
        "No connection came about, or it was lost.",
        "`stead doctor --target HOST` looks at the way there.",
    ),
    said(
        "failed/timeout",
        "An attempt took too long",
        "It was ended after the task's `timeout`.",
        "Find out what it waited for, or give it more time.",
    ),
    said(
        "failed/panic",
        "The task's own code broke",
        "A task written in Rust panicked; only this task failed.",
        "Mend the task; the message has the place.",
    ),
    said(
        "failed/permanent",
        "Trying again cannot help",
        "The task said so itself, and was not retried.",
        "The message says what to mend.",
    ),
    said(
        "failed/invalid",
        "Parameters, template or target were wrong when it came to running",
        "They depend on results or facts, so they could not be checked before.",
        "Correct the expression; the message shows its value.",
    ),
    said(
        "failed/guard",
        "A guard erred",
        "`when` or `changed_when` failed, or gave something that is no boolean.",
        "Write an expression that is true or false for every host.",
    ),
    said(
        "failed/interrupted",
        "The driver died in the middle of it",
        "What the task did is not known, and it is not one that may simply be done twice.",
        "Look at the host, then `stead resume RUN --rerun TASK`, or `--assume-done TASK` if it is done.",
    ),
    said(
        "failed/locked",
        "Another run holds the target",
        "One run at a time writes to a host.",
        "Wait for the run that is named, or give `--wait-lock`.",
    ),
    said(
        "failed/journal",
        "The record of the run cannot be written",
        "Without it nothing could be resumed, so the run stopped.",
        "Free disk space below the state directory, then `stead resume` it.",
    ),
    said(
        "failed/check",
        "Something is not as it should be",
        "A step reported a check as bad.",
        "The check's own line says what; mend that and run it again.",
    ),
];

/// Why a task was skipped: the words of `cause`.
pub(super) const CAUSES: &[Explanation] = &[
    said(
        "skipped/guard",
        "Its guard was false",
        "`when` or `when_host` said no.",
        "Nothing; the reason in the report has the expression.",
    ),
    said(
        "skipped/unchanged",
        "Nothing it looks at has changed",
        "`only_if_changed` is set, and all it depends on was as wanted.",
        "Nothing.",
    ),
    said(
        "skipped/rule",
        "Its trigger rule was not met",
        "How the tasks before it ended does not call for it, or its target has no hosts.",
        "Nothing, unless you expected hosts: `stead exec TARGET --list` shows them.",
    ),
    said(
        "skipped/unsupported",
        "No host can do it",
        "The operation is not for the system of these hosts.",
        "Choose another operation or other hosts; `stead schema operation NAME` says for whom it is.",
    ),
    said("skipped/declined", "A person said no", "The task asks first.", "Answer yes, or give `--yes`."),
    said(
        "skipped/not_selected",
        "It was not asked for",
        "`--only` or `--limit` left it out.",
        "Run without the flag, or name the task too.",
    ),
    said(
        "skipped/dependency",
        "Something before it went wrong",
        "A task it depends on failed or did not run.",
        "Mend that one; `stead resume` runs both.",
    ),
];
