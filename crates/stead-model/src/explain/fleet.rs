//! Codes of fleets: their files, what masters refuse, and where a repository stands.

use super::{Explanation, said};

pub(super) const FILES: &[Explanation] = &[
    said(
        "fleet/bad-enum",
        "A word that is not one of the values",
        "The key takes one of a few words.",
        "Write one of those that are listed.",
    ),
    said(
        "fleet/bad-image",
        "An image cannot be used",
        "Its file cannot be read, or is not what its hash says.",
        "Correct `images` of fleet.yaml.",
    ),
    said(
        "fleet/bad-name",
        "A name that is none",
        "Names of VMs, labels, branches and variables have a fixed form.",
        "Write it as the message says.",
    ),
    said(
        "fleet/bad-snapshot",
        "A snapshot of a fleet cannot be read",
        "It is no document of `stead fleet status --snapshot`, or of another version.",
        "Write it anew.",
    ),
    said(
        "fleet/bad-type",
        "A value of the wrong kind",
        "A text, number, list or mapping was expected.",
        "Write it as the message says; `stead schema fleet` has every key.",
    ),
    said(
        "fleet/bad-yaml",
        "A file of the fleet is not YAML as it is read here",
        "The text is broken, has a key twice, or more than one document.",
        "Correct the place that is named.",
    ),
    said(
        "fleet/conflict",
        "Two things that do not go together",
        "Keys exclude each other, or a name is taken.",
        "Leave one of the two out.",
    ),
    said(
        "fleet/duplicate-id",
        "One name twice",
        "Names of VMs are unique in a fleet, those of volumes in a VM.",
        "Rename one of them, or take it out of one of its groups.",
    ),
    said("fleet/missing-field", "A key that must be there is not", "The message names it.", "Add it."),
    said(
        "fleet/out-of-range",
        "A number or text outside of its range",
        "Sizes, counts and times have bounds.",
        "Write it as the message says.",
    ),
    said(
        "fleet/unknown-image",
        "There is no such image",
        "`fleet.yaml` has none of this name.",
        "Add it to `images`, or correct its spelling.",
    ),
    said(
        "fleet/unknown-key",
        "A key that this file does not have",
        "Unknown keys are never ignored.",
        "Correct its spelling, or remove it; `stead schema fleet` has every key.",
    ),
    said(
        "fleet/unknown-manifest",
        "No manifest is called like that",
        "A glob of `manifests` matches no file of the commit.",
        "Commit a manifest there, or take the glob out.",
    ),
    said(
        "fleet/unknown-node",
        "There is no such node",
        "`fleet.yaml` says something of a node that no manifest has.",
        "Correct its spelling, or remove it.",
    ),
    said(
        "fleet/unknown-preset",
        "There is no such preset",
        "A node refers to it.",
        "Add presets/NAME.yaml, or correct its spelling.",
    ),
    said(
        "fleet/unknown-volume",
        "There is no such volume",
        "A VM mounts a volume it does not have.",
        "Add it to `volumes`, or correct its spelling.",
    ),
    said(
        "fleet/unresolved-spec",
        "A node's spec cannot be resolved",
        "Something it refers to is missing or broken.",
        "`stead validate` shows what.",
    ),
    said(
        "fleet/unsupported-field",
        "A key that a fleet has no use for",
        "Manifests can say more than a fleet does, and `manifests`, `vms` and `images` of fleet.yaml are for sites, not for Nix.",
        "Leave it out, or make these nodes with `stead create`.",
    ),
];

/// What a master, or the way to it, refuses; messages show `error[fleet/WORD]`.
pub(super) const REFUSALS: &[Explanation] = &[
    said(
        "fleet/bad-certificate",
        "A certificate cannot be read",
        "Its file was changed or cut.",
        "Join anew.",
    ),
    said(
        "fleet/bad-group",
        "A group with what it may not have",
        "Only the group `fleet` has a policy.",
        "Publish with a publisher of the same version.",
    ),
    said(
        "fleet/bad-hold",
        "A hold that lasts too long",
        "Holds end by themselves, at the latest after 24h.",
        "Ask for less; give it again if need be.",
    ),
    said(
        "fleet/bad-request",
        "A request for a certificate cannot be read",
        "It is not one that `stead` makes.",
        "Join with a program of the same version.",
    ),
    said(
        "fleet/bad-token",
        "A token cannot be made so",
        "Its role, name or times are not allowed.",
        "Change what the message names.",
    ),
    said(
        "fleet/busy",
        "The master has too much to do at once",
        "Too many calls on one connection, or others changed the same record.",
        "Try again.",
    ),
    said(
        "fleet/certificate-expired",
        "The certificate has expired",
        "It was not renewed in time.",
        "Join anew with a new token.",
    ),
    said(
        "fleet/certificate-refused",
        "The master does not accept the certificate",
        "It is of another fleet, or of an authority that was replaced.",
        "Join anew with a token of this fleet.",
    ),
    said(
        "fleet/empty-set",
        "A group would become empty",
        "That stops everything in it, so it is held.",
        "Put the printed hash into `approve` of fleet.yaml if you mean it, or revert the commit.",
    ),
    said(
        "fleet/evaluation-not-deterministic",
        "One commit, two results",
        "Evaluating the same commit gave other VMs than before.",
        "Make the flake pure: no time, no network, no environment.",
    ),
    said("fleet/failed", "The master failed at it", "It said something that is no code.", "Look at its log."),
    said(
        "fleet/forbidden",
        "The role does not allow it",
        "Observers look, publishers publish, workers report.",
        "Ask with an identity of a role that may: `stead fleet token mint --role …`.",
    ),
    said(
        "fleet/generation-conflict",
        "Two publications of one number",
        "Another publisher was faster, or an old one came back.",
        "Run one publisher; it tries again by itself.",
    ),
    said(
        "fleet/identity",
        "An identity cannot be made or used",
        "A key, certificate or file of it failed.",
        "Check the directory of `--identity`, or join anew.",
    ),
    said(
        "fleet/intent-hash",
        "A publication that does not fit its hash",
        "It was changed on the way.",
        "Publish again, with programs of one version.",
    ),
    said(
        "fleet/internal",
        "The master broke at it",
        "That is a fault of Stead.",
        "Look at its log, and report it.",
    ),
    said(
        "fleet/join-ca",
        "The token is for another fleet",
        "Who answers is not a master of the token's fleet; the token was not sent.",
        "Check `--masters`, or mint a token where the master runs.",
    ),
    said(
        "fleet/join-expired",
        "The token has expired",
        "Or it is from the future.",
        "Mint a new one; compare the clocks.",
    ),
    said(
        "fleet/join-malformed",
        "It is no token",
        "It was not copied whole.",
        "Copy it again, or mint a new one.",
    ),
    said(
        "fleet/join-name",
        "The name cannot be had",
        "Somebody is called so already, or the token is for another name.",
        "Choose another name, or mint a token for this one.",
    ),
    said(
        "fleet/join-role",
        "The token is for another role",
        "A token says what it makes of its bearer; this one was not sent, and can still be used.",
        "Mint one of the role that is named.",
    ),
    said(
        "fleet/join-signature",
        "The token is not of this fleet",
        "Another authority signed it.",
        "Mint one where this fleet's master runs.",
    ),
    said("fleet/join-used", "The token was used", "Or it was revoked.", "Mint a new one."),
    said(
        "fleet/malformed",
        "A message cannot be read",
        "A name, number or hash in it has not its form.",
        "Use programs of one version.",
    ),
    said(
        "fleet/moves-together",
        "A VM changes its group, and the other group waits",
        "Groups between which a commit moves VMs become active together or not at all.",
        "Look at the other group: it is suspended, held or refused.",
    ),
    said(
        "fleet/no-masters",
        "No master is known",
        "Neither the identity nor `--masters` names one.",
        "Give `--masters HOST:PORT`.",
    ),
    said(
        "fleet/not-built",
        "Something was not built",
        "A spec refers to a store path that is not there.",
        "Add it to `orchestrator.vmImages` of the flake.",
    ),
    said(
        "fleet/replaced",
        "Another process speaks for this worker",
        "Two workers were started with one identity.",
        "Stop one of them; join the other under a name of its own.",
    ),
    said(
        "fleet/revoked",
        "The certificate is revoked",
        "Somebody ended it with `stead fleet token revoke`.",
        "Join anew with a new token.",
    ),
    said(
        "fleet/specs-hash",
        "A publication that does not fit its hash",
        "It was changed on the way.",
        "Publish again, with programs of one version.",
    ),
    said(
        "fleet/store-unavailable",
        "The store of the fleet is away",
        "The master cannot read or write it.",
        "Look at the store; the master goes on when it is back.",
    ),
    said(
        "fleet/too-large",
        "It is too large",
        "Messages, specs and groups are bounded.",
        "Ask for one group, worker or VM; make groups smaller.",
    ),
    said(
        "fleet/too-many-specs",
        "A group has too many VMs",
        "The bound is in the message.",
        "Divide the group.",
    ),
    said(
        "fleet/too-many-stops",
        "Too many instances would stop at once",
        "A commit that stops much is held.",
        "Put the printed hash into `approve` of fleet.yaml if you mean it, or revert the commit.",
    ),
    said(
        "fleet/unknown",
        "Nobody is called so",
        "No token and no member has this id or name.",
        "`stead fleet token list` shows them.",
    ),
    said(
        "fleet/unknown-hold",
        "There is no such hold",
        "It may have ended by itself.",
        "`stead fleet status` shows the holds.",
    ),
    said(
        "fleet/unknown-instance",
        "There is no such instance",
        "Instances are called VM/NUMBER.",
        "`stead fleet status` shows them.",
    ),
    said(
        "fleet/unknown-target",
        "There is nothing of this name to hold",
        "Holds are of VMs, groups, instances or workers.",
        "`stead fleet status` shows them.",
    ),
    said(
        "fleet/version-unsupported",
        "Another version of the protocol",
        "Programs speak with others of their own and the version before.",
        "Upgrade masters first, and nobody by more than one version.",
    ),
    said(
        "fleet/wrong-group",
        "A VM of another group",
        "A spec says another group than it is published in.",
        "Publish with a publisher of the same version.",
    ),
];

/// Where the repository of a fleet stands: the words of `watcher.state` and of the `repository:` line.
pub(super) const WATCHER: &[Explanation] = &[
    said(
        "repository/ref-missing",
        "The branch is not there",
        "The repository answers and does not have the ref.",
        "Commit something, or correct `ref` of publisher.yaml.",
    ),
    said(
        "repository/rewrite-rejected",
        "The branch was rewritten",
        "Its head does not follow what runs, so it is not taken.",
        "Push a commit that follows, or allow this one as docs/fleet.md says.",
    ),
    said(
        "repository/signature-rejected",
        "A commit is not signed by somebody allowed",
        "It is not taken, and nothing changes.",
        "Sign it, or add the signer to the allowed ones.",
    ),
    said(
        "repository/unreachable",
        "The repository cannot be reached",
        "What runs goes on; it is tried again.",
        "Check its address, the network and the key.",
    ),
    said(
        "repository/waiting-for-master",
        "The master does not answer the publisher",
        "Nothing is published until it does; it is tried again.",
        "Look at the master.",
    ),
];

/// Why a worker does not take an instance: the words of `stead fleet explain`.
pub(super) const FILTERS: &[Explanation] = &[
    said(
        "filter/state",
        "The worker takes nothing at present",
        "It is silent, draining or lost.",
        "Bring it back, or end the drain.",
    ),
    said(
        "filter/driver",
        "The worker has not the driver",
        "It cannot run machines of this kind.",
        "Add the driver to its worker.yaml, or choose another for the VM.",
    ),
    said(
        "filter/arch",
        "The worker is of another architecture",
        "The VM is built for one.",
        "Add a worker of that architecture.",
    ),
    said(
        "filter/specVersion",
        "The worker is too old",
        "It does not know a field of the spec.",
        "Upgrade the worker.",
    ),
    said(
        "filter/selector",
        "The worker has not the labels",
        "The VM asks for workers with certain labels.",
        "Label a worker in its worker.yaml, or ask for others.",
    ),
    said(
        "filter/pin",
        "The VM is pinned elsewhere",
        "It names the worker it runs on.",
        "Remove the pin, or bring that worker back.",
    ),
    said(
        "filter/volume",
        "Its volume is elsewhere",
        "The volume lies on another worker and does not move.",
        "Bring that worker back, or make the volume `movable`.",
    ),
    said(
        "filter/maxPerWorker",
        "The worker has enough of them",
        "`spread.maxPerWorker` is reached.",
        "Add a worker, or raise it.",
    ),
    said(
        "filter/notWith",
        "The worker runs what it keeps away from",
        "`spread.notWith` names a VM there.",
        "Add a worker, or take the rule away.",
    ),
    said(
        "filter/cpu",
        "Not enough processors are free",
        "What is asked for exceeds what is left.",
        "Ask for less `cpuMilli`, or add a worker.",
    ),
    said(
        "filter/memory",
        "Not enough memory is free",
        "What is asked for exceeds what is left.",
        "Ask for less `memMiB`, or add a worker.",
    ),
    said(
        "filter/disk",
        "Not enough disk is free",
        "What is asked for exceeds what is left.",
        "Ask for less `diskMiB`, or add a worker.",
    ),
    said(
        "filter/diskPressure",
        "The worker's disk is nearly full",
        "It takes nothing more.",
        "Free some, or lower `min_free_disk`.",
    ),
];
