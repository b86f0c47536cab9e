//! Between generated code and the types of a fleet. Everything that is read is checked; nothing panics.

use std::sync::Arc;

use capnp::{data_list, text};
use serde_json::Value;
use stead_engine::fleet::cluster::{MOST_SEEN, MOVES_TOGETHER};
use stead_model::diagnostic::{Diagnostic, Diagnostics};
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::{
    Assigned, BrokenVm, Heartbeat, InstanceState, Outcome, Problem, Publication, Seen, Verdict, WorkerFacts,
};
use stead_model::fleet::vm::Resources;
use stead_model::fleet::{Code, CommitId, FleetFile, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId, WorkerName};

use super::fleet_capnp::{assigned, assignment, desired, hello, observed, problem, verdict};
use super::request::{Desired, Hello, SentAssignment, read_spec};
use super::{MAX_SPECS, MAX_TOGETHER};
use crate::api::CallError;

/// What begins the text of every error that another side gave.
const REMOTE: &str = "remote exception: ";
/// The code of an answer that another master leads; its message is the address.
const NOT_LEADER: &str = "not-leader";
/// The largest spec: a store keeps several in one value.
const LARGEST_SPEC: usize = 512 << 10;
/// The most that a worker says of itself.
const LARGEST_FACTS: usize = 64 << 10;
/// The longest name of a boot or a process.
const LONGEST_NAME: usize = 128;
/// The most that is kept of what is said of an instance.
const LONGEST_DETAIL: usize = 2 << 10;
/// The most problems that an answer lists.
const MOST_PROBLEMS: usize = 1_000;

/// Returns the error that says `code` and `message` to the other side.
pub(super) fn refusal(code: &str, message: &str) -> capnp::Error {
    capnp::Error::failed(format!("{code}: {message}"))
}

/// Returns the error that says why a call has no answer.
pub(super) fn to_error(error: &CallError) -> capnp::Error {
    match error {
        CallError::Away(message) => refusal("away", message),
        CallError::NotLeader { leader } => refusal(NOT_LEADER, leader),
        CallError::Refused { code, message } => refusal(code, message),
    }
}

/// Returns why a call has no answer, as the other side said it.
pub(super) fn from_error(error: &capnp::Error, unimplemented: &str) -> CallError {
    let text = error.extra.strip_prefix(REMOTE);
    let refused =
        |code: &str, message: &str| CallError::Refused { code: code.to_owned(), message: message.to_owned() };
    match (error.kind, text) {
        (capnp::ErrorKind::Unimplemented, _) => {
            refused(unimplemented, "the master is older and does not know this; upgrade it")
        }
        (capnp::ErrorKind::Failed | capnp::ErrorKind::Overloaded, Some(text)) => {
            let is_code = |code: &str| {
                (1..=64).contains(&code.len())
                    && code
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            };
            match text.split_once(": ").filter(|(code, _)| is_code(code)) {
                Some((NOT_LEADER, leader)) => CallError::NotLeader { leader: leader.to_owned() },
                Some(("away", message)) => CallError::Away(message.to_owned()),
                Some((code, message)) => refused(code, message),
                None => refused("failed", text),
            }
        }
        (_, _) => CallError::Away(format!("the connection ended: {error}")),
    }
}

fn malformed(what: &str) -> capnp::Error {
    refusal("malformed", what)
}

/// Returns a text.
pub(super) fn text(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<String> {
    Ok(reader?.to_str().map_err(|_| malformed("a text is not UTF-8"))?.to_owned())
}

fn parsed<T, E: std::fmt::Display>(
    reader: capnp::Result<text::Reader<'_>>,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> capnp::Result<T> {
    let text = text(reader)?;
    parse(&text).map_err(|error| malformed(&error.to_string()))
}

/// Returns a worker's name.
pub(super) fn worker(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<WorkerName> {
    parsed(reader, WorkerName::parse)
}

/// Returns a commit.
pub(super) fn commit(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<CommitId> {
    parsed(reader, CommitId::parse)
}

/// Returns an instance.
pub(super) fn instance(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<InstanceKey> {
    parsed(reader, InstanceKey::parse)
}

/// Returns a role.
pub(super) fn role(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<Role> {
    parsed(reader, |word| Role::parse(word).ok_or("this is not a role"))
}

/// Returns a document as text.
pub(super) fn json_text(bytes: capnp::Result<&[u8]>) -> capnp::Result<String> {
    String::from_utf8(bytes?.to_vec()).map_err(|_| malformed("a document is not UTF-8"))
}

/// Returns a document as what it says.
pub(super) fn json<T: serde::de::DeserializeOwned>(bytes: capnp::Result<&[u8]>) -> capnp::Result<T> {
    serde_json::from_slice(bytes?).map_err(|error| malformed(&format!("a document cannot be read: {error}")))
}

pub(super) fn write_hello(mut to: hello::Builder<'_>, from: &Hello) {
    to.set_proto_major(from.proto_major);
    to.set_proto_minor(from.proto_minor);
    to.set_version(&from.version);
    to.set_fleet_id(&from.fleet);
    to.set_leader(&from.leader);
    to.set_epoch(from.epoch);
}

pub(super) fn read_hello(from: hello::Reader<'_>) -> capnp::Result<Hello> {
    Ok(Hello {
        proto_major: from.get_proto_major(),
        proto_minor: from.get_proto_minor(),
        version: text(from.get_version())?,
        fleet: text(from.get_fleet_id())?,
        leader: text(from.get_leader())?,
        epoch: from.get_epoch(),
    })
}

fn write_blobs(mut to: data_list::Builder<'_>, from: &[Vec<u8>]) {
    for (at, bytes) in (0..).zip(from) {
        to.set(at, bytes);
    }
}

fn read_blobs(from: data_list::Reader<'_>) -> capnp::Result<Vec<Vec<u8>>> {
    if usize::try_from(from.len()).is_ok_and(|len| len > MAX_SPECS) {
        return Err(refusal("too-large", &format!("a group has at most {MAX_SPECS} VMs")));
    }
    from.iter().map(|bytes| bytes.map(<[u8]>::to_vec)).collect()
}

fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

pub(super) fn write_desired(mut to: desired::Builder<'_>, from: &Desired) {
    to.set_group(&from.group);
    to.set_commit(&from.commit);
    to.set_generation(from.generation);
    to.set_intent_hash(&from.intent_hash);
    to.set_specs_hash(&from.specs_hash);
    to.set_policy(&from.policy);
    to.set_publisher(&from.publisher);
    write_blobs(to.reborrow().init_specs(length(from.specs.len())), &from.specs);
    if !from.with.is_empty() {
        let mut with = to.init_with(length(from.with.len()));
        for (at, one) in (0..).zip(&from.with) {
            write_desired(with.reborrow().get(at), one);
        }
    }
}

/// Takes a publication and those that go with it off the wire; [`read_publications`] then says what they are.
pub(super) fn read_desired(from: desired::Reader<'_>) -> capnp::Result<Desired> {
    let with = from.get_with()?;
    if usize::try_from(with.len()).is_ok_and(|len| len > MAX_TOGETHER) {
        return Err(refusal("too-large", &format!("at most {MAX_TOGETHER} groups are published at once")));
    }
    let with = with.iter().map(read_one).collect::<capnp::Result<_>>()?;
    Ok(Desired { with, ..read_one(from)? })
}

fn read_one(from: desired::Reader<'_>) -> capnp::Result<Desired> {
    Ok(Desired {
        group: text(from.get_group())?,
        commit: text(from.get_commit())?,
        generation: from.get_generation(),
        intent_hash: text(from.get_intent_hash())?,
        specs_hash: text(from.get_specs_hash())?,
        specs: read_blobs(from.get_specs()?)?,
        policy: from.get_policy()?.to_vec(),
        publisher: text(from.get_publisher())?,
        with: Vec::new(),
    })
}

/// Returns the publications that were sent, or everything that is wrong with them. Takes long for many VMs.
pub(super) fn read_publications(from: &Desired) -> Result<Vec<Publication>, Vec<Verdict>> {
    let found: Vec<Result<Publication, Verdict>> =
        std::iter::once(from).chain(&from.with).map(read_publication).collect();
    if found.iter().all(Result::is_ok) {
        return Ok(found.into_iter().flatten().collect());
    }
    // Of those that go together nothing is taken if one cannot be read.
    let beside = |publication: Publication| Problem {
        code: MOVES_TOGETHER.to_owned(),
        message: "VMs move between it and a group that cannot be read".to_owned(),
        subject: publication.group.to_string(),
    };
    let verdict = |one: Result<Publication, Verdict>| match one {
        Ok(publication) => invalid(vec![beside(publication)]),
        Err(verdict) => verdict,
    };
    Err(found.into_iter().map(verdict).collect())
}

/// Returns the publication that was sent, or everything that is wrong with it.
fn read_publication(from: &Desired) -> Result<Publication, Verdict> {
    let mut problems = Vec::new();
    let mut bad = |subject: &str, message: String| {
        problems.push(Problem { code: "malformed".to_owned(), message, subject: subject.to_owned() });
    };
    let group = GroupName::parse(&from.group).map_err(|error| bad("group", error.to_string())).ok();
    let commit = CommitId::parse(&from.commit).map_err(|error| bad("commit", error.to_string())).ok();
    let mut digest = |name: &str, text: &str| {
        let found = Digest::parse(text);
        if found.is_none() {
            bad(name, "this is not a SHA-256 in lower-case hex digits".to_owned());
        }
        found
    };
    let intent_hash = digest("intentHash", &from.intent_hash);
    let specs_hash = digest("specsHash", &from.specs_hash);
    let (specs, broken) = read_vms(&from.specs);
    let policy = read_policy(&from.policy).map_err(|found| problems.extend(found)).ok().flatten();
    match (group, commit, intent_hash, specs_hash) {
        (Some(group), Some(commit), Some(intent_hash), Some(specs_hash)) if problems.is_empty() => {
            let generation = from.generation;
            Ok(Publication { group, commit, generation, intent_hash, specs_hash, specs, policy, broken })
        }
        (_, _, _, _) => {
            problems.extend(broken.into_iter().flat_map(|vm| vm.problems));
            Err(invalid(problems))
        }
    }
}

/// Returns the VMs that were sent, and those that break a rule.
fn read_vms(sent: &[Vec<u8>]) -> (Vec<Arc<VmSpec>>, Vec<BrokenVm>) {
    let (mut specs, mut broken) = (Vec::with_capacity(sent.len()), Vec::new());
    let mut found = 0;
    for (index, bytes) in sent.iter().enumerate() {
        let is_large = bytes.len() > LARGEST_SPEC;
        let diagnostics = match read_spec(bytes) {
            Ok(spec) if !is_large => {
                specs.push(Arc::new(spec));
                continue;
            }
            Ok(_) => None,
            Err(diagnostics) => Some(diagnostics),
        };
        let value: Option<Value> = serde_json::from_slice(bytes).ok();
        let id = value.as_ref().and_then(|value| VmId::parse(value.get("id")?.as_str()?).ok());
        // One without an id is told by its place.
        let name = id.as_ref().map_or_else(|| format!("[{index}]"), ToString::to_string);
        let mut problems = diagnostics.map(|found| problems_of_vm(&found, &name)).unwrap_or_default();
        if is_large {
            let message = format!("it takes {} bytes, and {LARGEST_SPEC} is the most", bytes.len());
            problems.push(Problem { code: "too-large".to_owned(), message, subject: name });
        }
        found += problems.len();
        broken.push(BrokenVm { id, problems });
        if found > MOST_PROBLEMS {
            break;
        }
    }
    (specs, broken)
}

/// Returns the problems of the VM `name`, which was read as the only one of a list.
fn problems_of_vm(diagnostics: &Diagnostics, name: &str) -> Vec<Problem> {
    let mut problems = problems_of(diagnostics, name);
    for problem in &mut problems {
        if let Some(field) = problem.subject.strip_prefix("[0]") {
            problem.subject = format!("{name}{field}");
        }
    }
    problems
}

/// Returns the verdict on a publication that cannot be read.
fn invalid(mut problems: Vec<Problem>) -> Verdict {
    problems.truncate(MOST_PROBLEMS);
    Verdict { outcome: Outcome::Invalid, problems, active: 0, highest: 0 }
}

/// Returns the problems of `what`, of which there is at least one.
fn problems_of(diagnostics: &Diagnostics, what: &str) -> Vec<Problem> {
    let problem = |found: &Diagnostic| Problem {
        code: found.code.to_owned(),
        message: found.message.clone(),
        subject: found.path.clone(),
    };
    let mut problems: Vec<Problem> = diagnostics.iter().map(problem).collect();
    if problems.is_empty() {
        let message = "this cannot be read".to_owned();
        problems.push(Problem { code: "malformed".to_owned(), message, subject: what.to_owned() });
    }
    problems
}

/// Returns what `fleet.yaml` says, if anything was sent.
fn read_policy(bytes: &[u8]) -> Result<Option<Arc<FleetFile>>, Vec<Problem>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| problems_of(&Diagnostics::default(), "policy"))?;
    let file = FleetFile::from_canonical("policy", text);
    file.map(|file| Some(Arc::new(file))).map_err(|diagnostics| problems_of(&diagnostics, "policy"))
}

const OUTCOMES: [(Outcome, verdict::Result); 7] = [
    (Outcome::Accepted, verdict::Result::Accepted),
    (Outcome::Duplicate, verdict::Result::Duplicate),
    (Outcome::Stale, verdict::Result::Stale),
    (Outcome::Conflict, verdict::Result::Conflict),
    (Outcome::Invalid, verdict::Result::Invalid),
    (Outcome::Held, verdict::Result::Held),
    (Outcome::Suspended, verdict::Result::Suspended),
];

/// Writes the verdicts on a publication and on those that went with it.
pub(super) fn write_verdicts(mut to: verdict::Builder<'_>, from: &[Verdict]) {
    let Some((first, rest)) = from.split_first() else { return };
    write_verdict(to.reborrow(), first);
    if !rest.is_empty() {
        let mut with = to.init_with(length(rest.len()));
        for (at, one) in (0..).zip(rest) {
            write_verdict(with.reborrow().get(at), one);
        }
    }
}

fn write_verdict(mut to: verdict::Builder<'_>, from: &Verdict) {
    if let Some((_, result)) = OUTCOMES.iter().find(|(outcome, _)| *outcome == from.outcome) {
        to.set_result(*result);
    }
    to.set_active(from.active);
    to.set_highest(from.highest);
    write_problems(to.init_problems(length(from.problems.len())), &from.problems);
}

/// Says that another master leads.
pub(super) fn write_not_leader(mut to: verdict::Builder<'_>, leader: &str) {
    to.set_result(verdict::Result::NotLeader);
    let message = "another master leads".to_owned();
    let problem = Problem { code: NOT_LEADER.to_owned(), message, subject: leader.to_owned() };
    write_problems(to.init_problems(1), &[problem]);
}

fn write_problems(mut to: capnp::struct_list::Builder<'_, problem::Owned>, from: &[Problem]) {
    for (at, problem) in (0..).zip(from) {
        let mut to = to.reborrow().get(at);
        to.set_code(&problem.code);
        to.set_message(&problem.message);
        to.set_subject(&problem.subject);
    }
}

/// Returns the verdicts on a publication and on those that went with it, or that another master leads.
pub(super) fn read_verdicts(from: verdict::Reader<'_>) -> capnp::Result<Result<Vec<Verdict>, CallError>> {
    let mut verdicts = Vec::new();
    for one in std::iter::once(from).chain(from.get_with()?) {
        match read_verdict(one)? {
            Ok(verdict) => verdicts.push(verdict),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(verdicts))
}

fn read_verdict(from: verdict::Reader<'_>) -> capnp::Result<Result<Verdict, CallError>> {
    let mut problems = Vec::new();
    for problem in from.get_problems()? {
        problems.push(Problem {
            code: text(problem.get_code())?,
            message: text(problem.get_message())?,
            subject: text(problem.get_subject())?,
        });
    }
    let result = from.get_result().map_err(|_| malformed("the verdict is of a later version"))?;
    let Some((outcome, _)) = OUTCOMES.iter().find(|(_, word)| *word == result) else {
        let leader = problems.pop().map(|problem| problem.subject).unwrap_or_default();
        return Ok(Err(CallError::NotLeader { leader }));
    };
    let (active, highest) = (from.get_active(), from.get_highest());
    Ok(Ok(Verdict { outcome: *outcome, problems, active, highest }))
}

pub(super) fn write_assignment(mut to: assignment::Builder<'_>, from: &SentAssignment) {
    to.set_generation(from.generation);
    to.set_revision(from.revision);
    to.set_epoch(from.epoch);
    write_blobs(to.reborrow().init_specs(length(from.specs.len())), &from.specs);
    let mut instances = to.init_instances(length(from.instances.len()));
    for (at, assigned) in (0..).zip(&from.instances) {
        write_assigned(instances.reborrow().get(at), assigned);
    }
}

fn write_assigned(mut to: assigned::Builder<'_>, from: &Assigned) {
    to.set_instance(from.instance.to_string());
    to.set_generation(from.generation);
    to.set_vm_hash(from.vm_hash.to_string());
    to.set_spec(from.spec);
    to.set_leaving(from.leaving);
    to.set_frozen(from.frozen);
}

pub(super) fn read_assignment(from: assignment::Reader<'_>) -> capnp::Result<SentAssignment> {
    let mut instances = Vec::new();
    for assigned in from.get_instances()? {
        instances.push(Assigned {
            instance: instance(assigned.get_instance())?,
            generation: assigned.get_generation(),
            vm_hash: digest(assigned.get_vm_hash())?,
            spec: assigned.get_spec(),
            leaving: assigned.get_leaving(),
            frozen: assigned.get_frozen(),
        });
    }
    Ok(SentAssignment {
        generation: from.get_generation(),
        revision: from.get_revision(),
        epoch: from.get_epoch(),
        specs: read_blobs(from.get_specs()?)?,
        instances,
    })
}

fn digest(reader: capnp::Result<text::Reader<'_>>) -> capnp::Result<Digest> {
    parsed(reader, |text| Digest::parse(text).ok_or("this is not a SHA-256 in lower-case hex digits"))
}

pub(super) fn write_observed(mut to: observed::Builder<'_>, from: &Heartbeat) {
    to.set_worker_id(from.worker.as_str());
    to.set_boot_id(&from.boot_id);
    to.set_session(from.session);
    to.set_process(&from.process);
    to.set_seq(from.seq);
    to.set_seen_generation(from.seen_generation);
    to.set_seen_revision(from.seen_revision);
    to.set_full(from.full);
    if let Some(facts) = &from.facts {
        to.set_facts(&serde_json::to_vec(facts).unwrap_or_default());
    }
    let mut instances = to.init_instances(length(from.instances.len()));
    for (at, seen) in (0..).zip(&from.instances) {
        write_seen(instances.reborrow().get(at), seen);
    }
}

fn write_seen(mut to: observed::instance::Builder<'_>, from: &Seen) {
    to.set_key(from.key.to_string());
    if let Some(hash) = &from.vm_hash {
        to.set_vm_hash(hash.to_string());
    }
    let state = InstanceState::WORDS.iter().find(|(_, state)| *state == from.state);
    to.set_state(state.map_or("", |(word, _)| *word));
    to.set_ready(from.ready);
    to.set_uptime_ms(from.uptime_ms);
    to.set_attempts(from.attempts);
    to.set_code(from.code.map_or("", Code::word));
    to.set_detail(&from.detail);
    to.set_cpu_milli(u32::try_from(from.takes.cpu_milli).unwrap_or(u32::MAX));
    to.set_mem_mi_b(u32::try_from(from.takes.mem_mib).unwrap_or(u32::MAX));
    to.set_disk_mi_b(from.takes.disk_mib);
    to.set_group(from.group.as_ref().map_or("", GroupName::as_str));
}

pub(super) fn read_observed(from: observed::Reader<'_>) -> capnp::Result<Heartbeat> {
    let facts = from.get_facts()?;
    if facts.len() > LARGEST_FACTS {
        let message = format!(
            "a worker's facts take {} bytes, and {LARGEST_FACTS} is the most; give it fewer labels",
            facts.len()
        );
        return Err(refusal("too-large", &message));
    }
    let list = from.get_instances()?;
    if usize::try_from(list.len()).is_ok_and(|len| len > MOST_SEEN) {
        return Err(refusal("too-large", &format!("a worker has at most {MOST_SEEN} instances")));
    }
    let mut instances = Vec::new();
    for seen in list {
        instances.push(read_seen(seen)?);
    }
    Ok(Heartbeat {
        worker: worker(from.get_worker_id())?,
        boot_id: short(text(from.get_boot_id())?, LONGEST_NAME),
        session: from.get_session(),
        process: short(text(from.get_process())?, LONGEST_NAME),
        seq: from.get_seq(),
        seen_generation: from.get_seen_generation(),
        seen_revision: from.get_seen_revision(),
        full: from.get_full(),
        instances,
        facts: if facts.is_empty() { None } else { Some(json::<WorkerFacts>(Ok(facts))?) },
    })
}

/// Returns the beginning of a text.
fn short(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}

fn read_seen(from: observed::instance::Reader<'_>) -> capnp::Result<Seen> {
    let (state, code) = (text(from.get_state())?, text(from.get_code())?);
    let detail = text(from.get_detail())?;
    let state = InstanceState::WORDS.iter().find(|(word, _)| *word == state);
    let known = Code::ALL.iter().find(|known| known.word() == code).copied();
    // A code of a later version is told in words.
    let detail = match known {
        None if !code.is_empty() => format!("{code}: {detail}"),
        Some(_) | None => detail,
    };
    let detail = short(detail, LONGEST_DETAIL);
    Ok(Seen {
        key: instance(from.get_key())?,
        vm_hash: if from.get_vm_hash()?.is_empty() { None } else { Some(digest(from.get_vm_hash())?) },
        state: state.map(|(_, state)| *state).ok_or_else(|| malformed("an instance has no known state"))?,
        ready: from.get_ready(),
        uptime_ms: from.get_uptime_ms(),
        attempts: from.get_attempts(),
        code: known,
        detail,
        group: if from.get_group()?.is_empty() {
            None
        } else {
            Some(parsed(from.get_group(), GroupName::parse)?)
        },
        takes: Resources {
            cpu_milli: from.get_cpu_milli().into(),
            mem_mib: from.get_mem_mi_b().into(),
            disk_mib: from.get_disk_mi_b(),
        },
    })
}
