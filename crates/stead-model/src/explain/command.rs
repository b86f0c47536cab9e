//! Codes of commands themselves, and what exit codes mean.

use super::{Explanation, said};

pub(super) const COMMANDS: &[Explanation] = &[
    said(
        "confirm/needed",
        "Somebody has to say yes",
        "The command would change or remove something that cannot be brought back, and there is no terminal to ask on.",
        "Read what it would do, then give the flag that is named.",
    ),
    said(
        "input/exists",
        "Something is there already",
        "The command writes new files and never over others.",
        "Choose another name, or remove what is there.",
    ),
    said(
        "input/invalid",
        "What was given is not right",
        "A file, a value in it or a name that it refers to cannot be used.",
        "Correct what the message names.",
    ),
    said(
        "input/unreadable",
        "A file or directory cannot be read",
        "It is not there, is of another kind, or this account may not read it.",
        "Check the path and its permissions; relative paths begin where you are.",
    ),
    said(
        "lock/held",
        "Another run holds it",
        "One process at a time works on a host, target, run or directory.",
        "Wait for the one that is named, or give `--wait-lock` where the command has it.",
    ),
    said(
        "usage/argument",
        "A flag or argument is wrong",
        "It is unknown, missing, malformed, or does not go with another.",
        "`--help` of the command has examples.",
    ),
    said(
        "usage/unknown-name",
        "A name that was typed does not exist",
        "Nothing of the kind that is meant is called so.",
        "Correct its spelling: what there is, or where to look it up, is said below the message.",
    ),
    said(
        "verify/failed",
        "Something is not what it should be",
        "A record, signature, plan or directory is not what was recorded or expected.",
        "Do not go on with it before you know why; the message says what differs.",
    ),
    said(
        "work/cancelled",
        "It was stopped by a signal",
        "What was done is recorded.",
        "`stead resume` goes on with a run.",
    ),
    said(
        "work/failed",
        "The work failed",
        "The command understood what was wanted and could not do it.",
        "Mend what the message says, and try again.",
    ),
    said(
        "work/output",
        "Output could not be written",
        "The pipe was closed, or the disk is full.",
        "Check where the output goes; the work itself may have been done.",
    ),
    said(
        "work/timed-out",
        "It took too long",
        "The time that was given is over.",
        "Give more, or find out what it waits for.",
    ),
];

pub(super) const EXITS: &[Explanation] = &[
    said("exit/0", "Done", "Everything is as it should be: done, converged, valid.", "Nothing."),
    said(
        "exit/1",
        "The work failed",
        "A task, step, role, node or check failed. A command whose whole job is to check exits with 1 when its check failed.",
        "The message and the report say what; `stead resume` goes on with a run.",
    ),
    said(
        "exit/2",
        "Usage",
        "A flag or argument is wrong, or names something that does not exist.",
        "`--help` of the command has examples.",
    ),
    said(
        "exit/3",
        "Invalid input",
        "A file, a key, a name in a file, a path or a schema is not right. Nothing was done.",
        "Correct every place that is named.",
    ),
    said(
        "exit/4",
        "Verification failed",
        "A bundle or journal was changed, a difference is over its threshold, or a machine has drifted.",
        "Read what differs before you go on.",
    ),
    said(
        "exit/5",
        "Locked",
        "Another run holds this target, run or directory.",
        "Wait for the one that is named, or give `--wait-lock` where the command has it.",
    ),
    said(
        "exit/6",
        "Confirmation needed",
        "The command would destroy something, and nobody said yes. Nothing was done.",
        "Give `--yes`, or `--confirm TARGET` for steps.",
    ),
    said(
        "exit/7",
        "Unreachable",
        "A host, server or master does not answer, or is not the one it should be.",
        "`stead doctor --target T` looks at the way there.",
    ),
    said(
        "exit/8",
        "Timed out",
        "It did not end in the time that was given.",
        "Give more, or find out what it waits for.",
    ),
    said(
        "exit/10",
        "A fleet is converging",
        "It is on its way to what the commit says.",
        "Wait: `stead fleet wait --commit REV`.",
    ),
    said(
        "exit/11",
        "A fleet is degraded",
        "Something in it needs somebody.",
        "`stead fleet status` names each with a code; `stead explain CODE` says what to do.",
    ),
    said(
        "exit/130",
        "Cancelled by a signal",
        "The run was stopped; its bundle is complete.",
        "`stead resume RUN` goes on.",
    ),
];
