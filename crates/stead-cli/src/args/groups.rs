//! Examples of the groups of commands; each command has its own beside its arguments.

pub(super) const PLAN: &str = "\
Examples:
  stead plan show site.yaml                   what would run, in which order
  stead plan run site.yaml --dry-run          what would change
  stead plan run site.yaml                    do it";

pub(super) const RUN: &str = "\
Examples:
  stead run manifest run.yaml --dry-run       phases, roles and agents; does nothing
  stead run manifest run.yaml                 run it, bundle below runs/";

pub(super) const STEPS: &str = "\
Examples:
  stead steps list                            catalogues and their steps
  stead steps run --dry-run                   plan and configuration; does nothing
  stead steps run                             apply";

pub(super) const BUNDLE: &str = "\
Examples:
  stead bundle list                           what ran, newest first
  stead bundle verify last                    whether it is what was recorded
  stead bundle report last                    how it went";

pub(super) const DIFF: &str = "\
Examples:
  stead diff run baseline.zip last            what is different
  stead diff run before after --fail-on exit_codes_changed";

pub(super) const AGENT: &str = "\
Examples:
  stead agent list --check                    which agents there are, and whether they answer
  stead agent status                          what this machine is like for roles";

pub(super) const AGENT_SIGNAL: &str = "\
Examples:
  stead agent signal converge                 fetch the spec and become it, now
  stead agent signal converge --json";

pub(super) const CONFIG: &str = "\
Examples:
  stead config fetch                          this node's spec, from its server
  stead config apply --dry-run                what would change";

pub(super) const JOB: &str = "\
Examples:
  stead job submit --node edge --wait -- uptime
  stead job list                              with their ids";

pub(super) const TOKEN: &str = "\
Examples:
  stead token rotate                          also makes the first key
  stead token mint --node edge --spec base    what a node identifies itself with";

pub(super) const SERVER: &str = "\
Examples:
  stead server start                          in the background, at the site's port
  stead server status                         whether it runs, and its fingerprint";

pub(super) const FLEET: &str = "\
Examples:
  stead init fleet lab && stead fleet dev lab  a fleet in a minute
  stead fleet status                           how far it is, and what is wrong
  stead fleet wait --commit HEAD               until that runs";

pub(super) const FLEET_TOKEN: &str = "\
Examples:
  stead fleet token mint --role worker --name w1 > token
  stead fleet token list                      who joined, and what is not used yet";

pub(super) const INIT: &str = "\
Examples:
  stead init plan hello                       a plan, in ./hello
  stead init run soak                         a server, its client and what they leave
  stead init nodes                            a site of machines, in ./site-config
  stead init fleet lab                        a fleet, with its first commit";

pub(super) const SCHEMA: &str = "\
Examples:
  stead schema plan > plan.schema.json        for an editor's YAML language server
  stead schema operation command.exec         one operation";
