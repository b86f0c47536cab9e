//! Arguments of `stead fleet`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use stead_model::fleet::state::HoldTarget;
use stead_model::fleet::{CommitId, InstanceKey};
use stead_model::{GroupName, VmId, WorkerName};

use super::value::{duration, timeout};

/// What to do in a fleet. Nothing here writes what it should be: that is Git's.
#[derive(Clone, Debug, Subcommand)]
pub enum FleetCommand {
    /// Run a whole fleet on this machine, from a local Git repository
    #[command(after_long_help = DEV_EXAMPLES)]
    Dev(FleetDevArgs),
    /// Show how far the fleet is
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(FleetStatusArgs),
    /// Wait until a commit is what runs
    #[command(after_long_help = WAIT_EXAMPLES)]
    Wait(FleetWaitArgs),
    /// Show what a commit would change
    #[command(after_long_help = PLAN_EXAMPLES)]
    Plan(Box<FleetPlanArgs>),
    /// Say why an instance is where it is, and why it is not elsewhere
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(FleetExplainArgs),
    /// Freeze a worker, a VM or a group for a while
    #[command(after_long_help = HOLD_EXAMPLES)]
    Hold(FleetHoldArgs),
    /// End a hold before its time
    #[command(after_long_help = RELEASE_EXAMPLES)]
    Release(FleetReleaseArgs),
    /// Mint, list and revoke what machines and people join a fleet with
    #[command(subcommand, after_long_help = super::groups::FLEET_TOKEN)]
    Token(FleetTokenCommand),
    /// Watch a Git ref, build what it says and publish it
    #[command(after_long_help = PUBLISH_EXAMPLES)]
    Publish(Box<FleetPublishArgs>),
    /// Be a master: take what is published and say who runs what
    #[command(after_long_help = MASTER_EXAMPLES)]
    Master(Box<FleetMasterArgs>),
    /// Be a worker: run what this machine is assigned
    #[command(after_long_help = WORKER_EXAMPLES)]
    Worker(Box<FleetWorkerArgs>),
}

impl FleetCommand {
    /// Whether exactly one JSON document is wanted on standard output.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Dev(args) => args.json,
            Self::Status(args) => args.way.json || args.snapshot,
            Self::Wait(args) => args.way.json,
            Self::Plan(args) => args.way.json,
            Self::Explain(args) => args.way.json,
            Self::Hold(args) => args.way.json,
            Self::Release(args) => args.way.json,
            Self::Token(FleetTokenCommand::Mint(args)) => args.way.json,
            Self::Token(FleetTokenCommand::List(args)) => args.way.json,
            Self::Token(FleetTokenCommand::Revoke(args)) => args.way.json,
            Self::Publish(args) => args.way.json,
            Self::Master(args) => args.json,
            Self::Worker(args) => args.way.json,
        }
    }
}

const DEV_EXAMPLES: &str = "\
Examples:
  stead init fleet lab && stead fleet dev lab     a fleet in a minute
  stead fleet dev --workers 5                     of the repository here
  stead fleet dev lab --keep                      instances go on when it ends

Then change something in the repository, `git commit`, and watch; `git revert` goes back.

Exit codes:
  130 ended by Ctrl-C   3 the repository cannot be a fleet   5 one runs here already";

const STATUS_EXAMPLES: &str = "\
Examples:
  stead fleet status                       everything, with what is wrong and what to do
  stead fleet status --watch               again and again, as it changes
  stead fleet status --vm web --json       one VM, as JSON
  stead fleet status --snapshot > fleet.json   for `stead fleet plan --snapshot` elsewhere

Exit codes:
  0 converged   10 converging   11 degraded   7 no master answers";

const WAIT_EXAMPLES: &str = "\
Examples:
  stead fleet wait --commit HEAD                     in a pipeline, after a push
  stead fleet wait --commit 60a0e5f --timeout 30m

Exit codes:
  0 it runs, or a commit that contains it   1 it failed or was rejected   11 it is held
  8 not in time   7 no master answers";

const PLAN_EXAMPLES: &str = "\
Examples:
  stead fleet plan my-branch                          before it is merged
  stead fleet plan HEAD --snapshot fleet.json --fail-on replace,unschedulable
  stead fleet plan --specs specs.json --snapshot fleet.json --json

Exit codes:
  0 shown   1 it cannot be evaluated   3 it is invalid   4 something of --fail-on   7 no master answers";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  stead fleet explain web/0
  stead fleet explain web/0 --json";

const HOLD_EXAMPLES: &str = "\
Examples:
  stead fleet hold worker/w1 --for 2h --reason 'new memory'      nothing new is placed there
  stead fleet hold vm/web --for 30m --reason 'looking into it'   neither replaced, moved nor scaled
  stead fleet hold group/edge --for 12h --reason freeze          new commits wait

It never starts or stops anything, and ends by itself.";

const RELEASE_EXAMPLES: &str = "\
Examples:
  stead fleet release h1                   a name that `stead fleet status` shows
  stead fleet release h1 --json";

const PUBLISH_EXAMPLES: &str = "\
Examples:
  stead fleet publish --config publisher.yaml
  stead fleet publish --once --repo /srv/fleet.git --masters m1:44444

Exit codes of --once:
  0 published, or nothing new   1 the commit cannot be built   3 it is invalid
  4 rejected: rewritten, unsigned, stale, in conflict or held   7 no master or no repository";

const MASTER_EXAMPLES: &str = "\
Examples:
  stead fleet master --config master.yaml
  stead fleet master --rebuild             after its state was lost

Exit codes:
  3 bad configuration   4 its state is corrupt   5 one runs here already";

const WORKER_EXAMPLES: &str = "\
Examples:
  stead fleet worker --config worker.yaml --join-file token     the first time
  stead fleet worker --config worker.yaml
  stead fleet worker --stop-all                                 stop what runs here

Exit codes:
  1 the join is refused   3 bad configuration   5 one runs here already   7 no master answers";

/// How the master is found, and who asks.
#[derive(Clone, Debug, Default, Args)]
pub struct FleetWayArgs {
    /// The masters [default: those of the state directory]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub masters: Vec<String>,
    /// Where the certificate of whoever asks is [default: STATE/fleet/identity]
    #[arg(long, value_name = "DIR")]
    pub identity: Option<PathBuf>,
    /// The file with the token to join with, if there is no certificate yet
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead fleet dev`.
#[derive(Clone, Debug, Args)]
pub struct FleetDevArgs {
    /// The repository [default: the one here]
    #[arg(value_name = "REPO")]
    pub repo: Option<PathBuf>,
    /// How many workers
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// What stands in for every driver that a VM names
    #[arg(long, value_name = "DRIVER", default_value = "sandbox")]
    pub driver: FleetDriverWord,
    /// Leave the instances running when it ends
    #[arg(long)]
    pub keep: bool,
    /// Print one JSON document per line
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// A driver, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FleetDriverWord {
    /// Processes in a directory of their own.
    Sandbox,
    /// Containers.
    Oci,
    /// Virtual machines by QEMU.
    Qemu,
    /// Virtual machines by Cloud Hypervisor.
    CloudHypervisor,
}

/// Arguments of `stead fleet status`.
#[derive(Clone, Debug, Args)]
pub struct FleetStatusArgs {
    /// Print it anew whenever it changes
    #[arg(long, conflicts_with = "snapshot")]
    pub watch: bool,
    /// Only this group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<GroupName>,
    /// Only what is on this worker
    #[arg(long, value_name = "WORKER")]
    pub worker: Option<WorkerName>,
    /// Only this VM
    #[arg(long, value_name = "VM")]
    pub vm: Option<VmId>,
    /// Print everything that a plan needs
    #[arg(long, conflicts_with_all = ["group", "worker", "vm"])]
    pub snapshot: bool,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet wait`.
#[derive(Clone, Debug, Args)]
pub struct FleetWaitArgs {
    /// The commit; a name is looked up in the repository here
    #[arg(long, value_name = "SHA")]
    pub commit: String,
    /// How long
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
    /// Only this group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<GroupName>,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet plan`.
#[derive(Clone, Debug, Args)]
pub struct FleetPlanArgs {
    /// The revision, in the repository here
    #[arg(value_name = "REV", required_unless_present = "specs", conflicts_with = "specs")]
    pub rev: Option<String>,
    /// A JSON list of VMs instead
    #[arg(long, value_name = "FILE")]
    pub specs: Option<PathBuf>,
    /// The commit that the VMs are of
    #[arg(long, value_name = "SHA", requires = "specs")]
    pub commit: Option<CommitId>,
    /// The group of the VMs
    #[arg(long, value_name = "GROUP")]
    pub group: Option<GroupName>,
    /// Build images too, so that their contents are compared
    #[arg(long)]
    pub build: bool,
    /// What `stead fleet status --snapshot` wrote, instead of a master
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Exit with 4 if there is any of these
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub fail_on: Vec<FailOn>,
    /// The file of the publisher [default: that of a local repository]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// What a plan may be refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Something is replaced.
    Replace,
    /// Something goes elsewhere.
    Move,
    /// Something has no place.
    Unschedulable,
    /// It would wait for approval.
    Held,
}

/// Arguments of `stead fleet explain`.
#[derive(Clone, Debug, Args)]
pub struct FleetExplainArgs {
    /// The instance, such as web/0
    #[arg(value_name = "INSTANCE")]
    pub instance: InstanceKey,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet hold`.
#[derive(Clone, Debug, Args)]
pub struct FleetHoldArgs {
    /// What: worker/NAME, vm/ID or group/NAME
    #[arg(value_name = "TARGET", value_parser = hold_target)]
    pub target: HoldTarget,
    /// For how long, 24h at most
    #[arg(long = "for", value_name = "DURATION", value_parser = hold_duration)]
    pub duration: Duration,
    /// Why, for whoever looks at the status
    #[arg(long, value_name = "TEXT", value_parser = hold_reason)]
    pub reason: String,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet release`.
#[derive(Clone, Debug, Args)]
pub struct FleetReleaseArgs {
    /// The hold's name
    #[arg(value_name = "ID")]
    pub id: String,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// What to do with join tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum FleetTokenCommand {
    /// Print a token that one machine or person can join with, once
    #[command(after_long_help = MINT_EXAMPLES)]
    Mint(FleetMintArgs),
    /// List who joined, and tokens that are not used yet
    #[command(after_long_help = LIST_EXAMPLES)]
    List(FleetTokenListArgs),
    /// Make a token or a certificate invalid, at once
    #[command(after_long_help = REVOKE_EXAMPLES)]
    Revoke(FleetRevokeArgs),
}

const MINT_EXAMPLES: &str = "\
Examples:
  stead fleet token mint --role worker --name w1 > token
  stead fleet token mint --role observer --ttl 8h";

const LIST_EXAMPLES: &str = "\
Examples:
  stead fleet token list
  stead fleet token list --json";

const REVOKE_EXAMPLES: &str = "\
Examples:
  stead fleet token revoke w1              everything of a worker
  stead fleet token revoke w1 --json

Exit codes:
  0 revoked   2 nobody is called so   7 no master answers";

/// Arguments of `stead fleet token mint`.
#[derive(Clone, Debug, Args)]
pub struct FleetMintArgs {
    /// What it may be used for
    #[arg(long, value_name = "ROLE")]
    pub role: FleetRole,
    /// Who may use it [default: anybody, by a name of their choice]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it may be used
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = timeout)]
    pub ttl: Duration,
    /// When it was made, in seconds since 1970 [default: now]
    #[arg(long, value_name = "T")]
    pub iat: Option<i64>,
    /// When it ends, in seconds since 1970
    #[arg(long, value_name = "T", conflicts_with = "ttl")]
    pub exp: Option<i64>,
    /// Its name [default: random]
    #[arg(long, value_name = "J")]
    pub jti: Option<String>,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// A role, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FleetRole {
    /// Looks.
    Observer,
    /// Runs instances.
    Worker,
    /// Publishes.
    Publisher,
    /// Looks, freezes, mints tokens.
    Operator,
    /// Leads or follows.
    Master,
}

/// Arguments of `stead fleet token list`.
#[derive(Clone, Debug, Args)]
pub struct FleetTokenListArgs {
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet token revoke`.
#[derive(Clone, Debug, Args)]
pub struct FleetRevokeArgs {
    /// The token's name, or whose certificate
    #[arg(value_name = "JTI|NAME")]
    pub subject: String,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
}

/// Arguments of `stead fleet publish`.
#[derive(Clone, Debug, Args)]
pub struct FleetPublishArgs {
    /// Publish what is there now, and end
    #[arg(long)]
    pub once: bool,
    /// This commit instead of the newest
    #[arg(long, value_name = "SHA", requires = "once")]
    pub commit: Option<CommitId>,
    /// Its file [default: publisher.yaml in the state directory's `fleet`, if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
    /// Keys of the file: the last, for what follows would be under their heading.
    #[command(flatten)]
    pub keys: PublisherKeys,
}

/// Declares flags that stand for keys of a daemon's file, each with a value as it would be written there. A key of several
/// words has a flag as flags are spelled, and is understood in its own spelling too.
macro_rules! file_keys {
    (@flag $key:literal) => { $key };
    (@flag $key:literal $flag:literal) => { $flag };
    (@key $key:literal $flag:literal) => { $key };
    ($(#[$doc:meta])* $name:ident { $($(#[$key_doc:meta])* $field:ident = $key:literal $(as $flag:literal)?,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Args)]
        #[command(next_help_heading = "Keys of the file, as YAML")]
        pub struct $name {
            $(
                $(#[$key_doc])*
                #[arg(
                    long = file_keys!(@flag $key $($flag)?),
                    value_name = "YAML"
                    $(, alias = file_keys!(@key $key $flag))?
                )]
                pub $field: Option<String>,
            )+
        }

        impl $name {
            /// Returns the keys that were given with their values.
            pub fn given(&self) -> Vec<(&'static str, &str)> {
                let all = [$(($key, self.$field.as_deref())),+];
                all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
            }
        }
    };
}

file_keys! {
    /// Keys of `publisher.yaml`.
    PublisherKeys {
        /// The repository: URL or path
        repo = "repo",
        /// The full name of the branch
        reference = "ref",
        /// How often it is looked at
        poll = "poll",
        /// How long a new head has to stay
        debounce = "debounce",
        /// How long a fetch may take
        fetch_timeout = "fetch_timeout" as "fetch-timeout",
        /// How the repository is entered
        credentials = "credentials",
        /// Which commits have to be signed
        verify = "verify",
        /// Who may sign with SSH
        allowed_signers = "allowed_signers" as "allowed-signers",
        /// Who may sign with OpenPGP
        gpg_home = "gpg_home" as "gpg-home",
        /// What becomes of a rewritten branch
        rewrites = "rewrites",
        /// What turns a commit into VMs
        evaluator = "evaluator",
        /// Where in the repository it looks
        subdir = "subdir",
        /// How Nix is used
        nix = "nix",
        /// Where blobs are put
        artifacts = "artifacts",
        /// Where hooks are taken
        webhook = "webhook",
        /// Where its figures are, on this machine
        observe = "observe",
    }
}

file_keys! {
    /// Keys of `master.yaml`.
    MasterKeys {
        /// Its name
        name = "name",
        /// Where it listens
        listen = "listen",
        /// Where its page is
        observe = "observe",
        /// Where others reach it
        advertise = "advertise",
        /// What it keeps its state in
        store = "store",
        /// How many generations are kept
        history = "history",
    }
}

file_keys! {
    /// Keys of `worker.yaml`.
    WorkerKeys {
        /// Its name
        name = "name",
        /// Where its figures are
        observe = "observe",
        /// What it can make
        drivers = "drivers",
        /// Its labels
        labels = "labels",
        /// What it has for instances
        capacity = "capacity",
        /// How Nix is used
        nix = "nix",
        /// Where blobs are
        artifacts = "artifacts",
        /// How many earlier closures are kept
        keep_previous = "keep_previous" as "keep-previous",
        /// What is kept for itself
        reserve = "reserve",
        /// How often it looks at what runs
        drift_interval = "drift_interval" as "drift-interval",
        /// What has to be free of its disk
        min_free_disk = "min_free_disk" as "min-free-disk",
        /// What stands in for drivers it does not have
        map_driver = "map_driver" as "map-driver",
    }
}

/// Arguments of `stead fleet master`.
#[derive(Clone, Debug, Args)]
pub struct FleetMasterArgs {
    /// Its file [default: master.yaml in the state directory's `fleet`, if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Start anew after its state was lost: what runs is taken from what workers report
    #[arg(long)]
    pub rebuild: bool,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
    /// Keys of the file: the last, for what follows would be under their heading.
    #[command(flatten)]
    pub keys: MasterKeys,
}

/// Arguments of `stead fleet worker`.
#[derive(Clone, Debug, Args)]
pub struct FleetWorkerArgs {
    /// Its file [default: worker.yaml in the state directory's `fleet`, if there is one]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Stop everything that runs here, and end
    #[arg(long)]
    pub stop_all: bool,
    /// How the master is found.
    #[command(flatten)]
    pub way: FleetWayArgs,
    /// Keys of the file: the last, for what follows would be under their heading.
    #[command(flatten)]
    pub keys: WorkerKeys,
}

/// The longest hold.
const LONGEST_HOLD: Duration = Duration::from_secs(24 * 60 * 60);

fn hold_reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("say why, for whoever looks at the status".to_owned());
    }
    Ok(text.to_owned())
}

fn hold_duration(text: &str) -> Result<Duration, String> {
    let wanted = duration(text)?;
    if wanted.is_zero() || wanted > LONGEST_HOLD {
        return Err("a hold lasts 24h at most, and not 0".to_owned());
    }
    Ok(wanted)
}

fn hold_target(text: &str) -> Result<HoldTarget, String> {
    let (kind, name) = text.split_once('/').ok_or("write worker/NAME, vm/ID or group/NAME")?;
    match kind {
        "worker" => name.parse().map(HoldTarget::Worker).map_err(|error| format!("{error}")),
        "vm" => name.parse().map(HoldTarget::Vm).map_err(|error| format!("{error}")),
        "group" => name.parse().map(HoldTarget::Group).map_err(|error| format!("{error}")),
        kind => Err(format!("`{kind}` is none of worker, vm and group")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_has_a_reason() {
        assert_eq!(hold_reason("new fan").as_deref(), Ok("new fan"));
        assert!(["", " "].iter().all(|text| hold_reason(text).is_err()));
    }
}
