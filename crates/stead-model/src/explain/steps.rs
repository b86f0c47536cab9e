//! Codes of steps, their layers of values, and intents.

use super::{Explanation, said};

pub(super) const STEPS: &[Explanation] = &[
    said(
        "steps/ambiguous",
        "A word that several steps go by",
        "Steps are named by id, number or file name.",
        "Name one of those that are listed by its id.",
    ),
    said(
        "steps/catalogue",
        "A catalogue of steps is not right",
        "It cannot be read, or a key or value in it is wrong.",
        "Correct the place that is named; `stead schema steps` has every key and `stead steps check` checks all of it.",
    ),
    said(
        "steps/confirm-mismatch",
        "Another target was confirmed",
        "`--confirm` has to be exactly what the steps act on.",
        "Look at which target is current; nothing was run.",
    ),
    said(
        "steps/confirm-needed",
        "Something would be destroyed",
        "Deleting, and steps that destroy, need the target's name.",
        "Read the plan, then give `--confirm TARGET`.",
    ),
    said(
        "steps/empty",
        "No step is left to run",
        "A selection names nothing, or leaves nothing.",
        "Change `--only`, `--skip`, `--from` or `--until`; `stead steps list` shows the steps.",
    ),
    said(
        "steps/gated-off",
        "A named step is switched off",
        "A value of the layers leaves it out.",
        "Change that value, or do not name the step; `stead steps explain KEY` says where the value comes from.",
    ),
    said(
        "steps/kubeconfig",
        "The current context is not known",
        "A kubeconfig cannot be read or has no current context.",
        "Choose a context, or give the catalogue a `target.default`.",
    ),
    said(
        "steps/line",
        "A line for Stead that cannot be read",
        "A script printed a `::` line of an unknown or broken form; it was taken as output.",
        "Correct the script; docs/steps.md lists the lines.",
    ),
    said(
        "steps/missing",
        "A step's script is not there",
        "The path leads to no file.",
        "Write it, or correct `run` in the catalogue.",
    ),
    said(
        "steps/needs",
        "A selected step needs one that is not",
        "Running it alone could act on what is not there yet.",
        "`--with-needs` adds what is needed, `--skip-needs` goes without.",
    ),
    said(
        "steps/not-executable",
        "A step's script may not be executed",
        "Its execute bit is not set.",
        "`chmod +x` it.",
    ),
    said(
        "steps/not-runnable",
        "A step's file cannot be run",
        "It is no regular file, or begins neither with `#!` nor as a program.",
        "Give the script a first line such as `#!/bin/sh`.",
    ),
    said(
        "steps/only-ignored",
        "`ONLY` is not used after an intent",
        "The steps that follow an intent are fixed.",
        "Unset `ONLY`.",
    ),
    said(
        "steps/output",
        "Two steps gave one output",
        "An output that a step sets was set before.",
        "Give one of them another name.",
    ),
    said(
        "steps/plan-changed",
        "The plan is not what it was",
        "Catalogue, values or target have changed since the run began.",
        "`stead resume RUN --force` goes on with the plan as it is now; or start anew.",
    ),
    said(
        "steps/reserved-set",
        "`--set` of a name that has its own flag",
        "Some names are controls, or belong to the system.",
        "Use the flag that is named.",
    ),
    said(
        "steps/unknown-catalogue",
        "There is no such catalogue of steps",
        "No catalogue is called so, or none is here.",
        "`stead steps list` shows what is found; a path works too.",
    ),
    said(
        "steps/unknown-flag",
        "A flag that this catalogue does not take",
        "The catalogue declares no such layer or order.",
        "Use the flag that is named, or add it to the catalogue.",
    ),
    said(
        "steps/unknown-key",
        "There is no such value",
        "No variable, control or layer has this name.",
        "Correct its spelling: the nearest are listed.",
    ),
    said(
        "steps/unknown-token",
        "There is no such step",
        "No step goes by this id, number or file name in this order.",
        "Correct its spelling; `stead steps list` shows the steps.",
    ),
    said(
        "steps/value-changed",
        "A value is not what it was",
        "It changed between the start of the run and its resumption.",
        "Nothing, if you changed it; `stead steps explain KEY` says where it comes from.",
    ),
    said(
        "steps/wrong-mode",
        "A step of the other order",
        "It is listed for apply or for delete, not for this.",
        "Leave it out, or use the other order.",
    ),
];

pub(super) const VALUES: &[Explanation] = &[
    said("layer/duplicate", "A key is set twice in one file", "The last one counts.", "Remove one of them."),
    said(
        "layer/missing",
        "A layer's file is not there",
        "It was named by a flag, or the catalogue says that it must be there.",
        "Correct the path; relative ones begin where you are.",
    ),
    said(
        "layer/reserved",
        "A key that layers cannot set",
        "It belongs to the system, or is a control.",
        "Remove the line.",
    ),
    said(
        "layer/substitution",
        "A form that layers do not have",
        "Commands, arithmetic and most `${…}` forms are not run when a file is read.",
        "Write the value out; `${NAME}` and `${NAME:-text}` are known.",
    ),
    said(
        "layer/syntax",
        "A line of a layer cannot be read",
        "Lines are `NAME=value`, comments, or empty.",
        "Correct the line that is named.",
    ),
    said(
        "layer/undeclared",
        "A key that the catalogue does not declare",
        "It has no effect, or is a slip of the pen.",
        "Correct its spelling, declare it in `vars`, or set `undeclared: allow`.",
    ),
    said(
        "value/cycle",
        "Values refer to each other",
        "Following their references leads back to where it began.",
        "Write one of the printed chain out.",
    ),
    said(
        "value/environment",
        "A variable of the environment is not used",
        "It looks like a control, or is not UTF-8, and is not read.",
        "Use the flag that is named, or unset it.",
    ),
    said(
        "value/fallback",
        "An input is filled from another value",
        "It has none of its own.",
        "Give it one if that is not what you want.",
    ),
    said(
        "value/required",
        "A value that must be there is not",
        "A selected step needs it, and no layer, flag or default gives it.",
        "Set it in a layer, or with `--set NAME=VALUE`.",
    ),
    said(
        "value/rule",
        "A value breaks its rule",
        "The catalogue says what the value may be.",
        "Write one of the allowed values; name, value and source are in the message.",
    ),
    said(
        "value/short-secret",
        "A secret that cannot be masked",
        "A very short text would be masked everywhere in the output, or nowhere.",
        "Use a longer one, or do not declare it secret.",
    ),
    said(
        "value/undefined",
        "A value refers to a name that has none",
        "It is in no layer and not in the environment.",
        "Set it, or write `${NAME:-}` for nothing.",
    ),
    said(
        "value/visible-secret",
        "A secret on the command line",
        "Other processes can see the arguments of this one.",
        "Put it into a layer with `secret: true`.",
    ),
];

pub(super) const INTENTS: &[Explanation] = &[
    said(
        "intent/cut-off",
        "An earlier intent was cut off half way",
        "Its files are as they were when the machine or process stopped.",
        "The next intent that is not a dry run puts them back first.",
    ),
    said(
        "intent/dirty",
        "The work tree cannot be committed to",
        "A file has uncommitted changes, a merge or rebase is under way, or this is no work tree.",
        "Commit or stash first, or leave `--commit` out.",
    ),
    said(
        "intent/file",
        "A file that an intent edits cannot be used",
        "It cannot be read, or is not YAML that can be edited in one place.",
        "Correct the file that is named.",
    ),
    said(
        "intent/param",
        "A parameter is missing or not allowed",
        "Parameters of intents have a fixed list of values.",
        "`stead intent list` shows them.",
    ),
    said(
        "intent/path",
        "A path in a file leads nowhere",
        "The document or key that an intent edits is not there, or has another kind.",
        "Correct `path` or `select` of the intent, or the file.",
    ),
    said(
        "intent/unknown",
        "There is no such intent",
        "No catalogue has it.",
        "`stead intent list` shows them.",
    ),
];
